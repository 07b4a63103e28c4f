{#- Passes where a privacy unit has at least this much left: of rho, of the delta that thresholds may spend, and of epsilon
    for one more question; a unit that counts epsilon has no rho. -#}
{% test dp_budget_left(model, unit, rho=0, delta=0, epsilon=0) %}
  {%- set left = dpsql.dp_ask('budget', {'unit': unit}) if dpsql.dp_runs() else {'rho': 'null', 'delta': 'null', 'epsilon': 'null'} -%}
  select '{{ unit | replace("'", "''") }}' as unit, {{ left['rho'] }} as rho_left, {{ left['delta'] }} as delta_left
  where {{ left['rho'] }} < {{ rho }} or {{ left['delta'] }} < {{ delta }} or {{ left['epsilon'] }} < {{ epsilon }}
{% endtest %}

{#- Passes where half of a column's 95 % interval, as the last run's receipt states it, is below a limit. -#}
{% test dp_half_width_below(model, column_name, half_width) %}
  {%- set width = dpsql.dp_ask('half_width', {'model_id': dpsql.dp_model_of(model), 'column': column_name})['half_width'] if dpsql.dp_runs() else 'null' -%}
  select {{ width }} as half_width_95 where not {{ width }} < {{ half_width }}
{% endtest %}

{#- Whether tests are run; where they are only compiled there may be no budget and no receipt yet. -#}
{% macro dp_runs() %}
  {{ return(execute and flags.WHICH not in ('compile', 'generate')) }}
{% endmacro %}

{% macro dp_model_of(relation) %}
  {%- for node in graph.nodes.values() if node.relation_name == relation | string and node.config.materialized == 'private_table' -%}
    {{ return(node.unique_id) }}
  {%- endfor -%}
  {% do exceptions.raise_compiler_error('dp_half_width_below is a test of a private_table, and ' ~ relation ~ ' is none') %}
{% endmacro %}
