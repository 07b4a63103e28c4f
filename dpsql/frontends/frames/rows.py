"""How DuckDB reads the rows of a frame in place, under the name and the column types of the table they are of.

DuckDB can read its columns whatever is in them. An error or a type that one row decides would tell of that row. So a
value without a place in its column's type is missing, each for itself, and categories have the type of their members,
whether or not a value is missing.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.errors import EngineError, SchemaError
from dpsql.session import RememberedColumn, folded, open_database, quote

if TYPE_CHECKING:
    import polars as pl

Frame: TypeAlias = "pd.DataFrame | pl.DataFrame | pa.Table"

_ROWS = "dpsql rows"
_AS_TEXT = ("ENUM(", '"NULL"')
_PER_UNIT = {"s": 1_000_000, "ms": 1_000}
"""Microseconds of the units in which DuckDB would have to multiply, and fail where it cannot."""
_MOST = 2**63 - 2


def is_polars(frame: object) -> TypeGuard[pl.DataFrame]:
    """Whether it is a polars DataFrame; where polars was never imported, nothing is."""
    polars = sys.modules.get("polars")
    return polars is not None and isinstance(frame, polars.DataFrame)


def column_names(frame: Frame) -> list[str]:
    """The columns that SQL can name: texts that are there once, whatever the case of their letters."""
    names = list(frame.column_names if isinstance(frame, pa.Table) else frame.columns)
    texts = [name for name in names if isinstance(name, str) and name]
    alike = [folded(name) for name in texts]
    return [name for name, fold in zip(texts, alike, strict=True) if alike.count(fold) == 1]


def numeric_columns(frame: Frame) -> list[str]:
    """Return the columns of numbers that SQL can name."""
    empty = without_rows(frame)
    found = []
    for name in column_names(frame):
        # a column without a type in Arrow holds no numbers for SQL
        with contextlib.suppress(TypeError, ValueError, NotImplementedError):
            one = pd.DataFrame({name: empty[name]}) if isinstance(empty, pd.DataFrame) else empty.select([name])
            kind = arrow_schema(one).field(0).type
            if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
                found.append(name)
    return found


def require_column(frame: Frame, name: object, role: str) -> str:
    """The column of this name.

    Raises:
        SchemaError: there is none, or SQL cannot tell it from another.

    """
    known = column_names(frame)
    if isinstance(name, str) and name in known:
        return name
    if not isinstance(name, str):
        # only its type is named: a Series would print its rows
        raise SchemaError(
            f"{role} is of type {type(name).__name__}, and not the name of a column in text.",
            hint="Several are a list. Write what a function computes as a column first, as in df.assign(month=…).",
        )
    if isinstance(frame, pd.DataFrame) and name in frame.index.names:
        raise SchemaError(f"{role} {name!r} is a level of the index.", hint="Write df.reset_index().dp.groupby(…).")
    spelled = {folded(one): one for one in known}
    near = next((spelled[one] for one in difflib.get_close_matches(folded(name), spelled, n=1)), None)
    if near is not None and folded(near) == folded(name) and near != name:
        raise SchemaError(f"{role} {name!r} is not there.", hint=f"Write {near!r}.")
    names = list(frame.column_names if isinstance(frame, pa.Table) else frame.columns)
    if name in names:
        raise SchemaError(
            f"{role} {name!r} is there twice, or differs from another column in the case of its letters only.",
            hint="Rename one with df.rename(columns=…).",
        )
    hint = f"Did you mean {near!r}?" if near is not None else f"The frame has {', '.join(map(repr, known[:20]))}."
    raise SchemaError(f"{role} {name!r} is not a column of the frame.", hint=hint)


def require_key(frame: Frame, name: object) -> str:
    """The column to group by.

    Raises:
        SchemaError: there is none, or its values cannot be put in order.

    """
    key = require_column(frame, name, "the key")
    empty = without_rows(frame)
    try:
        kind = (
            pa.array(empty[key], from_pandas=True).type
            if isinstance(empty, pd.DataFrame)
            else arrow_schema(empty.select([key])).field(0).type
        )
    except (TypeError, ValueError, NotImplementedError):
        # without a type in Arrow; what reads it says so
        return key
    if pa.types.is_run_end_encoded(kind) or pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_duration(kind) or pa.types.is_interval(kind) or pa.types.is_nested(kind):
        raise SchemaError(
            f"the key {key!r} holds spans of time or lists, which have no order in an answer.",
            hint="Convert it first, as in df.assign(days=df['span'].dt.days).",
        )
    return key


def without_rows(frame: Frame) -> Frame:
    """The same columns, no rows: all of a frame that a declaration looks at."""
    return frame.slice(0, 0) if isinstance(frame, pa.Table) else frame.head(0)


def arrow_schema(frame: Frame) -> pa.Schema:
    """Names and Arrow types of a frame's columns."""
    empty = without_rows(frame)
    if isinstance(empty, pd.DataFrame):
        return pa.Schema.from_pandas(empty, preserve_index=False)
    return (empty if isinstance(empty, pa.Table) else empty.to_arrow()).schema


def _relation(frame: Frame, names: Sequence[str], connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
    if isinstance(frame, pd.DataFrame):
        # columns as they are: neither a copy nor a look at those that are not asked for
        columns = {name: _readable_series(frame[name]).array for name in names}
        return connection.from_df(pd.DataFrame(columns, copy=False))
    table = frame.select(list(names)) if isinstance(frame, pa.Table) else frame.select(names).to_arrow()
    # without a copy of a column where nothing in it can make DuckDB fail
    return connection.from_arrow(pa.table([_readable_array(one) for one in table.columns], names=table.column_names))


def sql_columns(frame: Frame, connection: duckdb.DuckDBPyConnection) -> list[str]:
    """The columns whose type SQL knows."""
    empty = without_rows(frame)
    known = []
    for name in column_names(frame):
        # every failure means the same, and no row was there to be quoted
        with contextlib.suppress(Exception):
            _relation(empty, [name], connection)
            known.append(name)
    return known


@contextlib.contextmanager
def frame_database(state_path: Path | None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open an in-memory database for one question, which puts rows on disk beside the state file only.

    A column of Python objects is text: a type found by looking at some of them would depend on the data.
    """
    connection, close = open_database(":memory:", state_path)
    try:
        connection.execute("SET GLOBAL pandas_analyze_sample = 0")
        yield connection
    finally:
        close()


def create_source(
    connection: duckdb.DuckDBPyConnection,
    frame: Frame,
    names: Sequence[str],
    place: tuple[str, str],
    remembered: Sequence[RememberedColumn],
    owner: str | None = None,
    computed: Sequence[tuple[str, str]] = (),
) -> frozenset[str]:
    """Create the view that stands for the source; returns which of its columns hold no NULL.

    Where the state remembers the columns of the table, they have its types, and hold NULL where a value is none of the
    type; rows that it could not hold, because they lack a value where it has NOT NULL, are left out. Each row is
    changed or left out for itself, so the rows of one unit stay a function of its own; in the column ``owner``, which
    tells units apart, a value that another type would change is NULL, so that no two units become one. Categories are
    texts: the type of an ENUM would list them. ``computed`` are further columns, each with the SQL that computes it of
    one row.

    Raises:
        SchemaError: a column has a type that SQL does not know, or cannot be read as the table's type.
        EngineError: a column cannot be read.

    """
    try:
        relation = _relation(frame, names, connection)
        relation.create_view(_ROWS)
    except Exception:
        unknown = sorted(set(names) - set(sql_columns(frame, connection)))
        if not unknown:
            raise EngineError("the engine could not read the frame", charged=False) from None
        raise SchemaError(
            f"columns {', '.join(map(repr, unknown))} have a dtype without a type in SQL.",
            hint="Convert them first, as in df.astype({'month': 'str'}).",
        ) from None
    known = {folded(name): (name, kind, null) for name, kind, null in remembered}
    columns, never_null = [], []
    for name, kind in zip(names, map(str, relation.types), strict=True):
        spelled, wanted, nullable = known.get(folded(name), (name, kind, True))
        if wanted.startswith(_AS_TEXT):
            wanted = "VARCHAR"
        value = quote(name) if wanted == kind else f"TRY_CAST({_castable(name, kind)} AS {wanted})"
        if name == owner and wanted != kind:
            read = "VARCHAR" if kind.startswith(_AS_TEXT) else kind
            value = f"CASE WHEN TRY_CAST({value} AS {read}) = CAST({quote(name)} AS {read}) THEN {value} END"
        columns.append(f"{value} AS {quote(spelled)}")
        if not nullable:
            never_null.append((spelled, value))
    present = "".join(f" AND {value} IS NOT NULL" for _, value in never_null)
    rows = f"SELECT {', '.join(columns)} FROM memory.main.{quote(_ROWS)} WHERE true{present}"
    more = "".join(f", {sql} AS {quote(name)}" for name, sql in computed)
    _create_view(connection, place, f"SELECT *{more} FROM ({rows})")
    return frozenset(spelled for spelled, _ in never_null)


def _create_view(connection: duckdb.DuckDBPyConnection, place: tuple[str, str], query: str) -> None:
    schema, table = place
    try:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quote(schema)}")
        connection.execute(f"CREATE VIEW {quote(schema)}.{quote(table)} AS {query}")
    except duckdb.Error:
        raise SchemaError(
            "a column of the frame cannot be read as the type that the state file has for it.",
            hint="Convert it first, with df.astype(…).",
        ) from None


def _castable(name: str, kind: str) -> str:
    """A column without the values on which DuckDB raises an error inside TRY_CAST, too."""
    column = quote(name)
    if kind in ("TIMESTAMP_S", "TIMESTAMP_MS"):
        return f"TRY_CAST({column} AS TIMESTAMP)"
    if kind in ("TIME", "TIME_NS"):
        # Arrow holds times of day beyond the day
        ends = [f"CAST(TIME '{end}' AS {kind})" for end in ("00:00:00", "23:59:59.999999")]
        return f"CASE WHEN {column} BETWEEN {' AND '.join(ends)} THEN {column} END"
    return column


def source_column(name: str, remembered: Sequence[RememberedColumn]) -> str:
    """A column as the source spells it."""
    return next((spelled for spelled, _, _ in remembered if folded(spelled) == folded(name)), name)


def _readable_series(column: pd.Series[Any]) -> pd.Series[Any]:
    """A column of pandas; the same object where nothing in it can make DuckDB fail."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        members = dtype.categories
        if isinstance(members.dtype, pd.StringDtype) or _are_texts(members):
            return column
        known = _readable_series(pd.Series(members)).array
        # a type with room for what is missing, whether or not something is
        values = pd.array(known.to_numpy()) if isinstance(known, pd.arrays.NumpyExtensionArray) else known
        return _readable_series(pd.Series(values.take(column.cat.codes.to_numpy(), allow_fill=True)))
    if dtype == "object":
        return column if _are_texts(column) else pd.Series([_text(value) for value in column], dtype="object")
    if isinstance(dtype, pd.DatetimeTZDtype) and dtype.unit in _PER_UNIT:
        return pd.Series(_readable_array(pa.array(column, from_pandas=True)).to_pandas())
    if isinstance(dtype, pd.ArrowDtype) and _overflows(dtype.pyarrow_dtype):
        values = _readable_array(pa.chunked_array(pa.array(column)))
        return pd.Series(values.to_pandas(types_mapper=pd.ArrowDtype))
    return column


def _readable_array(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """An Arrow array, with times in microseconds where DuckDB would make them so.

    Raises:
        TypeError: such times are inside a list or the like.

    """
    kind = values.type
    if not _overflows(kind):
        return values
    if pa.types.is_dictionary(kind):
        return _readable_array(values.cast(kind.value_type))
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
    with contextlib.suppress(UnicodeEncodeError, pa.ArrowException):
        if set(map(type, values)) <= {str, type(None)}:
            pa.array(values, pa.large_string())
            return True
    return False


def _text(value: object) -> str | None:
    """What ``str`` says; None for what is missing, and for what has no text."""
    with contextlib.suppress(Exception):
        return None if is_missing(value) else str(value).encode().decode()
    return None


def is_missing(value: object) -> bool:
    """Whether a value is what pandas holds missing."""
    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value))
