"""DuckDB's names of the types of a result's columns."""

from __future__ import annotations

import pyarrow as pa

from dpsql.operations.dialect import quote
from dpsql.receipts.layout import HUGEINT

_NAMES = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "uint32": "UINTEGER",
    "uint64": "UBIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "large_string": "VARCHAR",
    "string_view": "VARCHAR",
    "binary": "BLOB",
    "large_binary": "BLOB",
    "date32[day]": "DATE",
    "timestamp[s]": "TIMESTAMP_S",
    "timestamp[ms]": "TIMESTAMP_MS",
    "timestamp[us]": "TIMESTAMP",
    "timestamp[ns]": "TIMESTAMP_NS",
    "time64[us]": "TIME",
    "month_day_nano_interval": "INTERVAL",
    "null": '"NULL"',
}
"""By Arrow's names."""


def duckdb_type(kind: pa.DataType) -> str:
    """Return DuckDB's name of an Arrow type. Return Arrow's name if DuckDB's is unknown."""
    if kind == HUGEINT:
        return "HUGEINT"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return "TIMESTAMP WITH TIME ZONE"
    if pa.types.is_dictionary(kind):
        return duckdb_type(kind.value_type)
    if pa.types.is_map(kind):
        return f"MAP({duckdb_type(kind.key_type)}, {duckdb_type(kind.item_type)})"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"{duckdb_type(kind.value_type)}[]"
    if pa.types.is_fixed_size_list(kind):
        return f"{duckdb_type(kind.value_type)}[{kind.list_size}]"
    if pa.types.is_struct(kind):
        names = [field.name if field.name.isidentifier() else quote(field.name) for field in kind]
        types = [duckdb_type(field.type) for field in kind]
        return f"STRUCT({', '.join(map(' '.join, zip(names, types, strict=True)))})"
    return _NAMES.get(str(kind), str(kind))
