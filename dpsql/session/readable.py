"""Columns as Python and pandas can hold them."""

from __future__ import annotations

import duckdb
import pyarrow as pa


def readable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column itself, or as text where it holds an infinite date, or one outside the years 1 to 9999."""
    innermost = column.type
    while pa.types.is_list(innermost) or pa.types.is_fixed_size_list(innermost):
        innermost = innermost.value_type
    if not pa.types.is_temporal(innermost):
        return column
    try:
        column.to_pylist()
        column.to_pandas()
    except (OverflowError, ValueError, NotImplementedError):
        with duckdb.connect(":memory:") as connection:
            text = connection.from_arrow(pa.table({"value": column})).project("CAST(value AS VARCHAR) AS value")
            return text.to_arrow_table().column("value")
    return column
