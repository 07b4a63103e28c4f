"""dbt: a dbt-duckdb plugin, and beside it the dbt package with the materialization, the tests and what they call."""
