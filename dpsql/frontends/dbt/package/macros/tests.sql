{#- Passes where a privacy unit has at least this much left: of rho, and of the delta that thresholds may spend. -#}
{% test dp_budget_left(model, unit, rho=0, delta=0) %}
  {%- set left = dpsql.dp_ask('budget', {'unit': unit}) if execute else {'rho': 0, 'delta': 0} -%}
  select '{{ unit | replace("'", "''") }}' as unit, {{ left['rho'] }} as rho_left, {{ left['delta'] }} as delta_left
  where {{ left['rho'] }} < {{ rho }} or {{ left['delta'] }} < {{ delta }}
{% endtest %}

{#- Passes where half of a column's 95 % interval, as the last run's receipt states it, is below a limit. -#}
{% test dp_half_width_below(model, column_name, limit) %}
  {%- if execute -%}
    {%- set of = namespace(model=none) -%}
    {%- for node in graph.nodes.values() if node.relation_name == model | string and node.config.materialized == 'private_table' -%}
      {%- set of.model = node.unique_id -%}
    {%- endfor -%}
    {%- if of.model is none -%}
      {% do exceptions.raise_compiler_error('dp_half_width_below is a test of a private_table, and ' ~ model ~ ' is none') %}
    {%- endif -%}
    {%- set width = dpsql.dp_ask('half_width', {'model_id': of.model, 'column': column_name})['half_width'] -%}
  {%- else -%}
    {%- set width = 0 -%}
  {%- endif -%}
  select {{ width }} as half_width_95 where not {{ width }} < {{ limit }}
{% endtest %}
