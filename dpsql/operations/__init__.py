"""DuckDB's dialect with the private clauses, and expressions that never fail and have one spelling."""
