"""A result as a file's bytes, as DuckDB itself writes them, so that every type has DuckDB's own spelling."""

from __future__ import annotations

import tempfile
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.query.dialect import text_literal
from dpsql.session import Result

TEXT_FORMATS = {"csv": "FORMAT csv, HEADER true", "json": "FORMAT json, ARRAY true"}


def copied(result: Result, file_format: str) -> bytes:
    """The file that DuckDB writes of a result, in one of ``TEXT_FORMATS`` or as parquet."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "result")
        if file_format == "parquet":
            result.to_parquet(path)
        else:
            _write_text(result.arrow(), path, TEXT_FORMATS[file_format])
        return path.read_bytes()


def _write_text(table: pa.Table, path: Path, copy_options: str) -> None:
    if "json" in copy_options:
        # JSON has no word for NaN and infinity
        for i, column in enumerate(table.columns):
            if pa.types.is_floating(column.type):
                table = table.set_column(i, table.field(i), pc.if_else(pc.is_finite(column), column, None))
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("result", table)
        connection.execute(f"COPY (FROM result) TO {text_literal(str(path))} ({copy_options})")
