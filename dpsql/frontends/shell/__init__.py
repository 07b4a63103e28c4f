"""The stock DuckDB shell: the process behind its table functions, and how both are started."""
