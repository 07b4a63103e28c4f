"""Columns that DuckDB can read whatever is in them.

An error or a type that one row decides would tell of that row. So a value without a place in its column's type is
missing, each for itself, and categories have the type of their members, whether or not a value is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

_PER_UNIT = {"s": 1_000_000, "ms": 1_000}
"""Microseconds of the units in which DuckDB would have to multiply, and fail where it cannot."""
_MOST = 2**63 - 2


def readable_series(column: pd.Series[Any]) -> pd.Series[Any]:
    """A column of pandas; the same object where nothing in it can make DuckDB fail."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        members = dtype.categories
        if isinstance(members.dtype, pd.StringDtype) or _are_texts(members):
            return column
        known = readable_series(pd.Series(members)).array
        # a type with room for what is missing, whether or not something is
        values = pd.array(known.to_numpy()) if isinstance(known, pd.arrays.NumpyExtensionArray) else known
        return readable_series(pd.Series(values.take(column.cat.codes.to_numpy(), allow_fill=True)))
    if dtype == "object":
        return column if _are_texts(column) else pd.Series([_text(value) for value in column], dtype="object")
    if isinstance(dtype, pd.DatetimeTZDtype) and dtype.unit in _PER_UNIT:
        return pd.Series(readable_array(pa.array(column, from_pandas=True)).to_pandas())
    if isinstance(dtype, pd.ArrowDtype) and _overflows(dtype.pyarrow_dtype):
        values = readable_array(pa.chunked_array(pa.array(column)))
        return pd.Series(values.to_pandas(types_mapper=pd.ArrowDtype))
    return column


def readable_table(table: pa.Table) -> pa.Table:
    """An Arrow table; without a copy where nothing in it can make DuckDB fail."""
    return pa.table([readable_array(column) for column in table.columns], names=table.column_names)


def readable_array(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """An Arrow array, with times in microseconds where DuckDB would make them so.

    Raises:
        TypeError: such times are inside a list or the like.

    """
    kind = values.type
    if not _overflows(kind):
        return values
    if pa.types.is_dictionary(kind):
        return readable_array(values.cast(kind.value_type))
    if not pa.types.is_temporal(kind):
        raise TypeError
    factor = _PER_UNIT[kind.unit]
    ticks = values.cast(pa.int64())
    held = pc.and_(pc.greater_equal(ticks, -_MOST // factor + 1), pc.less_equal(ticks, _MOST // factor))
    micros = pc.multiply(pc.if_else(held, ticks, None), factor)
    return micros.cast(pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else pa.duration("us"))


def _overflows(kind: pa.DataType) -> bool:
    """Whether DuckDB would multiply, in values of this type or inside them."""
    if isinstance(kind, pa.BaseExtensionType):
        return _overflows(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _overflows(kind.value_type)
    if pa.types.is_nested(kind):
        return any(_overflows(kind.field(place).type) for place in range(kind.num_fields))
    zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    return (zoned or pa.types.is_duration(kind)) and kind.unit in _PER_UNIT


def _are_texts(values: Iterable[object]) -> bool:
    """Whether all are plain texts or None. A text with half a character is none."""
    if not set(map(type, values)) <= {str, type(None)}:
        return False
    try:
        pa.array(values, pa.large_string())
    except (UnicodeEncodeError, pa.ArrowException):
        return False
    return True


def _text(value: object) -> str | None:
    """What ``str`` says; None for what is missing, and for what has no text."""
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value)):
        return None
    try:
        return str(value).encode().decode()
    except Exception:
        return None
