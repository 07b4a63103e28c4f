"""Bins of histogram(x, [10, 20, 30]): public keys that the text lists, and how DuckDB calls them.

A bin has the values up to its end, the end included, and above the end before it. One more bin has all values above the
last end. DuckDB calls it by the largest value of the type. If the text ends with that value, no value is above it, and
DuckDB has no further bin. So the end is left out here, and the bin above the one before has its name. DuckDB also takes
two ends for one that are equal in the type of the bins.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

from sqlglot import exp

from dpsql.errors import SchemaError
from dpsql.model.environment import Column
from dpsql.model.refusals import Refusals
from dpsql.model.rows import BINS
from dpsql.operations.dialect import to_sql, unquoted

_MOST = 256
_INTEGER = re.compile(r"(U?)(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)")
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}
_LAST = {
    "DATE": "9999-12-31",
    "TIMESTAMP": "9999-12-31 23:59:59.999999",
    "TIMESTAMP WITH TIME ZONE": "9999-12-31 23:59:59.999999+00",
}
"""How Python reads an infinite date of DuckDB. The year 9999 is one that all readers of an answer have."""
_TIMES = ("date", "timestamp", "timestampntz", "timestamptz")
_ROW = "dpsql_row"

Bind = Callable[[str, Sequence[Column], str], list[tuple[str, str]]]
"""Returns names and types of the columns of a query over columns that have types."""


def read_bins(call: exp.Expr, refusals: Refusals) -> tuple[exp.Expr, ...]:
    """Return the ends of the bins of a call of histogram, in order and each once.

    Raises:
        UnsupportedQueryError: they are no literals.

    """
    listed = call.expressions[1]
    ends = list(listed.expressions) if isinstance(listed, exp.Array) else []
    try:
        ordered = sorted({_order(end): end for end in ends}.items(), key=lambda pair: pair[0])
    except (ArithmeticError, TypeError, ValueError):
        ordered = []
    if not 1 <= len(ordered) <= _MOST:
        refusals.refuse(
            "aggregate_argument",
            call,
            f"the bins of histogram are 1 to {_MOST:,} numbers, dates or timestamps.",
            f"Write the upper end of each, as in {_example(call, are_times=bool(ends) and all(map(_is_time, ends)))}.",
        )
    return tuple(end for _, end in ordered)


def _example(call: exp.Expr, *, are_times: bool) -> str:
    ends = "[DATE '2024-01-31', DATE '2024-02-29']" if are_times else "[10, 20, 30]"
    return f"histogram({unquoted(call.expressions[0])}, {ends})"


def _is_time(end: exp.Expr) -> bool:
    return isinstance(end, exp.Cast) and end.is_type(*_TIMES)


def _order(end: exp.Expr) -> Decimal | dt.datetime:
    """Return the place of an end among others. A time without a zone is one of UTC, as in rows.

    Raises:
        ArithmeticError, ValueError: it is no literal, or no time of the years 1 to 9999.

    """
    if isinstance(end, exp.Neg):
        return Decimal(end.this.name).copy_negate()
    if _is_time(end):
        return _place_of_time(end.this.name)
    if not isinstance(end, exp.Literal) or end.is_string:
        raise ValueError
    return Decimal(end.name)


def _place_of_time(text: str) -> dt.datetime:
    found = dt.datetime.fromisoformat(text)
    return found.astimezone(dt.UTC) if found.tzinfo else found.replace(tzinfo=dt.UTC)


def bin_of(value: exp.Expr, ends: Sequence[exp.Expr]) -> exp.Expr:
    """Return the place of the bin that a value is in: a key whose list is public, because the text gives it."""
    known = exp.not_(exp.Is(this=value.copy(), expression=exp.null()))
    found = exp.case().when(known, _halved(value, ends, 0, len(ends)))
    found.meta[BINS] = len(ends) + 1
    return found


def _halved(value: exp.Expr, ends: Sequence[exp.Expr], first: int, last: int) -> exp.Expr:
    """Return the place of a bin among those from the first to the last, compared as often as these can be halved."""
    if first == last:
        return exp.Literal.number(first)
    middle = (first + last) // 2
    is_below = exp.LTE(this=value.copy(), expression=ends[middle].copy())
    above = _halved(value, ends, middle + 1, last)
    return exp.case().when(is_below, _halved(value, ends, first, middle)).else_(above)


def names_of_bins(
    ends: Sequence[exp.Expr], value_type: str, bind: Bind, node: exp.Expr, refusals: Refusals
) -> tuple[list[exp.Expr], str]:
    """Return how DuckDB calls the bins, and the type of these names. The last name is of the bin above all ends.

    Args:
        ends: the ends of the bins, in order.
        value_type: the type of the values.
        bind: finds the type.
        node: the call.
        refusals: collects.

    Raises:
        UnsupportedQueryError: values of this type have no bins, or none with such ends.

    """
    listed, kind = ", ".join(map(to_sql, ends)), ""
    sql = f"SELECT unnest(map_keys(histogram(x, [{listed}]))) AS name FROM {_ROW}"
    # values and ends may be of types that have none in common
    with suppress(SchemaError):
        ((_, kind),) = bind(_ROW, [Column("x", value_type, True)], sql)
    last = _last_of(kind)
    if not last:
        refusals.refuse(
            "value_type",
            node,
            "bins are of numbers, dates or timestamps, as their ends are.",
            "Cast the value, as in x::DOUBLE.",
        )
    kept = _different(ends, kind, last)
    if not kept:
        refusals.refuse(
            "aggregate_argument",
            node,
            f"an end of bins of type {kind} is too large or too small, or no value is above any end.",
            f"Write ends inside of the type, as in {_example(node, are_times=kind in _LAST)}.",
        )
    above = exp.Literal(this=last, is_string=not _INTEGER.fullmatch(kind))
    return [*(end.copy() for end in kept), exp.cast(above, kind, dialect="duckdb")], kind


def _last_of(kind: str) -> str:
    """Return the name of the bin above all ends; nothing if values of a type have no bins."""
    integer = _INTEGER.fullmatch(kind)
    if integer:
        return str(2 ** (_BITS[integer[2]] - (not integer[1])) - 1)
    return "inf" if kind in ("FLOAT", "DOUBLE") else _LAST.get(kind, "")


def _different(ends: Sequence[exp.Expr], kind: str, last: str) -> list[exp.Expr]:
    """Return the ends that differ in their type and are below the last name; none if an integer type lacks one."""
    most: Any = Decimal(last) if kind not in _LAST else _place_of_time(last)
    lowest = 0 if kind.startswith("U") else -int(last) - 1 if _INTEGER.fullmatch(kind) else None
    found: dict[Any, exp.Expr] = {}
    for end in ends:
        place = _in_type(_order(end), kind)
        if lowest is not None and not lowest <= place <= most:
            return []
        if place < most:
            found.setdefault(place, end)
    return list(found.values())


def _in_type(place: Any, kind: str) -> Any:
    """Return the place of an end once it is of a type: a number that is too large for it is infinite."""
    if kind == "FLOAT":
        try:
            return struct.unpack("f", struct.pack("f", place))[0]
        except OverflowError:
            return math.copysign(math.inf, place)
    return float(place) if kind == "DOUBLE" else place
