{#- The one way from a macro into the plugin: what comes of the job is put into the call itself. -#}
{% macro dp_ask(job, arguments) %}
  {%- set call = {'job': job} -%}
  {%- do call.update(arguments) -%}
  {%- do adapter.store_relation('dpsql', none, [], '', '', call) -%}
  {{ return(call['answer']) }}
{% endmacro %}
