"""Tables that live in Spark: Spark brings rows to parts of whole units, and a DuckDB in each task computes."""
