"""Text formats that an answer can be written in, beside the box on the screen."""

TEXT_FORMATS = {"csv": "FORMAT csv, HEADER true", "json": "FORMAT json, ARRAY true"}
"""DuckDB's words for each format."""
