"""Keys that are computed of one column of a DataFrame: bins with given edges, and periods of a calendar.

Each value of such a key is a function of one value of its column, and of what the caller wrote. A Series that was
computed before does not show how: ``pd.cut`` with a number of bins takes edges from the data. So only a column of the
frame itself is taken as a Series. It is known by where its values are, never by the values.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dpsql.errors import PolicyError, SchemaError
from dpsql.frontends.frames.rows import column_names, numeric_columns, require_column

_MOST_EDGES = 1_000
_PERIODS: dict[str, tuple[str, Any]] = {
    "D": ("day", None),
    "h": ("hour", None),
    "min": ("minute", None),
    "s": ("second", None),
    "W-SUN": ("week", np.timedelta64(7, "D")),
    "MS": ("month", None),
    "ME": ("month", np.timedelta64(1, "M")),
    "QS-JAN": ("quarter", None),
    "QE-DEC": ("quarter", np.timedelta64(3, "M")),
    "YS-JAN": ("year", None),
    "YE-DEC": ("year", np.timedelta64(12, "M")),
}
"""Periods by their name in pandas: the unit of DuckDB, and their length if pandas calls them by their last day."""
_TIME = re.compile(r"(\d+)(-\d\d-\d\d)( \(BC\))? (\d\d:\d\d:\d\d)")
"""A time as DuckDB writes it. In the text of numpy the year before 1 is 0, and years have signs."""
_GIVEN_EDGES = "bins are edges that are known without the data, as in df.dp.cut({column!r}, bins=[0, 18, 65, 120])"


@dataclass(frozen=True, slots=True)
class KeyTerm:
    """A key that is computed of one column.

    Attributes:
        column: of the frame; the key is called so in an answer.
        name: of the computed column in the source. It says all that decides the values, since releases go by it.
        sql: the computation, with ``{}`` in the place of the column. It has no error for any value.
        labelled: returns the values of the answer for those of SQL.
        listed: all values, if they are known without the data.

    """

    column: str
    name: str
    sql: str
    labelled: Callable[[pd.Series[Any]], pd.Series[Any]] = field(compare=False)
    listed: tuple[int, ...] = ()


def cut(
    frame: pd.DataFrame, column: object, bins: object, *, right: bool, labels: object, include_lowest: bool
) -> KeyTerm:
    """Return the key that ``pd.cut`` would compute of a column, with edges that the caller gives.

    Raises:
        PolicyError: the edges are not given, or ``pd.cut`` takes no such edges and labels.
        SchemaError: there is no such column, or it holds no numbers.

    """
    known = require_column(frame, column, "the column")
    if known not in numeric_columns(frame):
        raise SchemaError(f"cut takes a column of numbers, and {known!r} is none.", hint="Group by the column itself.")
    is_list = isinstance(bins, list | tuple | range | np.ndarray)
    edges = [float(one) for one in bins if _is_edge(one)] if is_list else []  # type: ignore[attr-defined]
    is_rising = all(one < other for one, other in itertools.pairwise(edges))
    if not is_list or len(edges) != len(bins) or not is_rising or not 2 <= len(edges) <= _MOST_EDGES:  # type: ignore[arg-type]
        raise PolicyError(
            f"{_GIVEN_EDGES.format(column=known)}: 2 to {_MOST_EDGES:,} numbers, each above the one before"
        )
    try:
        # without a value nothing but the arguments decides
        dtype = pd.cut(
            pd.Series([], dtype="float64"),
            list(bins),  # type: ignore[call-overload]
            right=right,
            labels=labels,
            include_lowest=include_lowest,
        ).dtype
    except (OverflowError, TypeError, ValueError) as error:
        raise PolicyError(f"pd.cut takes no such bins or labels: {error}") from None
    first, less = (">=" if include_lowest else ">", "<=") if right else (">=", "<")
    value, (lowest, *others) = "TRY_CAST({} AS DOUBLE)", (f"CAST('{edge!r}' AS DOUBLE)" for edge in edges)
    branches = " ".join(f"WHEN {value} {less} {edge} THEN {place}" for place, edge in enumerate(others))
    return KeyTerm(
        known,
        f"{known} in bins {edges}, right={bool(right)}, include_lowest={bool(include_lowest)}",
        f"CASE WHEN NOT {value} {first} {lowest} THEN NULL {branches} END",
        lambda values: _in_bins(values, dtype),
        tuple(range(len(others))),
    )


def _is_edge(value: Any) -> bool:
    if not isinstance(value, int | float | np.number) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(value)
    except (OverflowError, TypeError):
        # a whole number beyond all floats, or a complex one
        return False


def _in_bins(places: pd.Series[Any], dtype: Any) -> pd.Series[Any]:
    if not isinstance(dtype, pd.CategoricalDtype):
        # labels=False are the places of the bins
        return places
    codes = places.astype("float64").fillna(-1).astype("int64")
    return pd.Series(pd.Categorical.from_codes(codes.tolist(), dtype=dtype), index=places.index)


def period(frame: pd.DataFrame, grouper: Any) -> KeyTerm | str:
    """Return the key that a ``pd.Grouper`` computes, or its column if it names no frequency.

    Raises:
        SchemaError: there is no such column, or it holds no times without a zone.
        PolicyError: the Grouper groups by the index, or by periods that have no place in the calendar of their own.

    """
    if grouper.key is None or grouper.level is not None:
        raise PolicyError("a Grouper names a column, as in pd.Grouper(key='when', freq='MS'); the index is not read")
    column, freq = require_column(frame, grouper.key, "the key"), getattr(grouper, "freq", None)
    if freq is None:
        return column
    unit, length = _PERIODS.get(freq.freqstr, ("", None))
    end = "right" if length is not None else "left"
    plain = ("start_day", "epoch"), (None,), (end,), (end,)
    asked = grouper.origin, grouper.offset, grouper.closed, grouper.label
    if not unit or any(one not in known for one, known in zip(asked, plain, strict=True)):
        names = ", ".join(sorted(repr(name.split("-")[0]) for name in _PERIODS))
        raise PolicyError(
            f"a Grouper takes freq={names}, and no other word on its bins; for others compute a column, as in "
            f"df.assign({_identifier(column)}=df[{column!r}].dt.floor('15min')).dp.groupby({_identifier(column)!r}, …)"
        )
    if not pd.api.types.is_datetime64_dtype(frame[column].dtype):
        raise SchemaError(
            f"a Grouper takes a column of times without a zone, and {column!r} is none.",
            hint=f"Convert it first, as in df.assign({_identifier(column)}=pd.to_datetime(df[{column!r}])).",
        )
    dtype, moment = frame[column].dtype, "TRY_CAST({} AS TIMESTAMP)"
    return KeyTerm(
        column,
        f"{column} by {unit}",
        # the ends of the type are infinite to DuckDB, and in no period
        f"TRY(date_trunc('{unit}', CASE WHEN isfinite({moment}) THEN {moment} END))",
        lambda values: _labelled(values, length, dtype),
    )


def _labelled(starts: pd.Series[Any], length: Any, dtype: Any) -> pd.Series[Any]:
    """Return the labels of periods that start at some times, as seconds where the dtype of the column has no place."""
    if pd.api.types.is_datetime64_dtype(starts.dtype):
        places = starts.to_numpy().astype("datetime64[s]")
    else:
        places = np.array(list(map(_second, starts)), dtype="datetime64[s]")
    if length is not None:
        unit, _ = np.datetime_data(length.dtype)
        ends = places.astype(f"datetime64[{unit}]") + length
        places = (ends.astype("datetime64[D]") - np.timedelta64(1, "D")).astype("datetime64[s]")
    labels = pd.Series(places, index=starts.index)
    with suppress(pd.errors.OutOfBoundsDatetime):
        return labels.astype(dtype)
    return labels


def _second(start: object) -> np.datetime64:
    """Return a time that DuckDB wrote as text, because Python has no such year; none for an infinite one."""
    found = _TIME.fullmatch(str(start))
    if not found:
        return np.datetime64("NaT", "s")
    year, day, is_before, second = found.groups()
    return np.datetime64(f"{1 - int(year) if is_before else int(year):+05}{day}T{second}", "s")


def _identifier(column: str) -> str:
    return column if column.isidentifier() else "when"


def column_of(frame: pd.DataFrame, series: pd.Series[Any]) -> str:
    """Return the name of the column that a Series is.

    Raises:
        SchemaError: the Series holds other values than a column of the frame, or holds them elsewhere.

    """
    name = series.name
    if isinstance(name, str) and name in column_names(frame):
        column = frame[name]
        addresses = _addresses(series)
        if series.index.is_(column.index) and addresses and addresses == _addresses(column):
            return name
    shown = repr(name) if isinstance(name, str) else "without a name"
    is_cut = isinstance(series.dtype, pd.CategoricalDtype) and isinstance(series.dtype.categories, pd.IntervalIndex)
    raise SchemaError(
        f"the key is a Series ({shown}) that is no column of this frame.",
        hint=f"Write df.dp.groupby(df.dp.cut({name!r}, bins=[0, 18, 65, 120]), …), with edges that are known without "
        "the data."
        if is_cut
        else "Write the name of a column. What is computed of each row alone is a column first, as in "
        "df.assign(year=df['when'].dt.year).dp.groupby('year', …).",
    )


def _addresses(series: pd.Series[Any]) -> Sequence[object]:
    """Return where the values of a Series are, and in which form; nothing if that cannot be known without a copy."""
    values: Any = series.array
    form = [str(series.dtype), len(series)]
    if isinstance(values, pd.Categorical):
        return [*form, *_of_array(values.codes)] if len(series) else []
    if isinstance(series.dtype, pd.StringDtype | pd.ArrowDtype) and hasattr(values, "__arrow_array__"):
        arrow = values.__arrow_array__()
        chunks = arrow.chunks if isinstance(arrow, pa.ChunkedArray) else [arrow]
        return [*form, *((one.offset, *(each.address for each in one.buffers() if each)) for one in chunks)]
    if isinstance(series.dtype, np.dtype):
        return [*form, *_of_array(np.asarray(values))]
    return []


def _of_array(values: Any) -> Sequence[object]:
    return [values.__array_interface__["data"][0], values.strides]
