{#-
  A table of a private answer. The plugin charges and stores the answer before this model's transaction begins, so a
  rollback loses no more than time: the answer is stored, and the next run has it for nothing.
-#}
{% materialization private_table, adapter='duckdb' %}
  {%- set existing_relation = load_cached_relation(this) -%}
  {%- set target_relation = this.incorporate(type='table') -%}
  {%- set intermediate_relation = make_intermediate_relation(target_relation) -%}
  {%- set backup_relation = make_backup_relation(target_relation, 'table' if existing_relation is none else existing_relation.type) -%}
  {%- set grant_config = config.get('grants') -%}

  {%- if flags.EMPTY -%}
    {% do exceptions.raise_compiler_error('--empty asks for a table without rows, which no private answer is: leave private models out of that run, with --exclude config.materialized:private_table') %}
  {%- endif -%}
  {%- if config.get('contract').enforced -%}
    {#- a contract is held against the plan, so that a table that would break it costs nothing -#}
    {%- set planned = dpsql.dp_ask('plan', {'model': model, 'graph': graph}) -%}
    {%- do get_assert_columns_equivalent(dpsql.dp_empty(planned['columns'])) -%}
  {%- endif -%}

  {{ drop_relation_if_exists(load_cached_relation(intermediate_relation)) }}
  {{ drop_relation_if_exists(load_cached_relation(backup_relation)) }}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}

  {%- set release = dpsql.dp_ask('release', {'model': model, 'graph': graph}) -%}

  {{ run_hooks(pre_hooks, inside_transaction=True) }}

  {%- set build_sql = create_table_as(False, intermediate_relation, release['sql']) -%}
  {% call statement('build') -%}
    {{ build_sql }}
  {%- endcall %}
  {% call noop_statement('main', release['message'], 'OK') -%}
    {{ build_sql }}
  {%- endcall %}

  {% if existing_relation is not none %}
    {% do drop_indexes_on_relation(existing_relation) %}
    {{ adapter.rename_relation(existing_relation, backup_relation) }}
  {% endif %}
  {{ adapter.rename_relation(intermediate_relation, target_relation) }}

  {% do create_indexes(target_relation) %}

  {{ run_hooks(post_hooks, inside_transaction=True) }}

  {% do apply_grants(target_relation, grant_config, should_revoke=should_revoke(existing_relation, full_refresh_mode=True)) %}
  {% do persist_docs(target_relation, model) %}

  {{ adapter.commit() }}

  {{ drop_relation_if_exists(backup_relation) }}

  {{ run_hooks(post_hooks, inside_transaction=False) }}

  {{ return({'relations': [target_relation]}) }}
{% endmaterialization %}

{#- A query without rows, with these columns. -#}
{% macro dp_empty(columns) %}
  select
  {%- for name, type in columns %}
    cast(null as {{ type }}) as {{ adapter.quote(name | replace('"', '""')) }}{{ ',' if not loop.last }}
  {%- endfor %}
{% endmacro %}

{#- dbt show runs a model's text as it stands, which for a private model would be the exact groups. -#}
{% macro get_show_sql(compiled_code, sql_header, limit) %}
  {%- if model.config.materialized == 'private_table' -%}
    {% do exceptions.raise_compiler_error("dbt show would run the text of a private model as it stands, without noise. Build it with dbt run, and look at the table: dbt show --inline \"select * from {{ ref('" ~ model.name ~ "') }}\"") %}
  {%- endif -%}
  {{ return(dbt.get_show_sql(compiled_code, sql_header, limit)) }}
{% endmacro %}
