"""Bins of histogram(x, [10, 20, 30]): public keys that the text lists, and how DuckDB calls them.

A bin has the values up to its end, the end included, and above the end before it. One more bin has all values above the
last end. DuckDB calls it by the largest value of the type.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation

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
_ROW = "dpsql_row"

Bind = Callable[[str, Sequence[Column], str], list[tuple[str, str]]]
"""Returns names and types of the columns of a query over columns that have types."""


def read_bins(call: exp.Anonymous, refusals: Refusals) -> tuple[exp.Expr, ...]:
    """Return the ends of the bins of a call of histogram, in order and each once.

    Raises:
        UnsupportedQueryError: they are no literals.

    """
    listed = call.expressions[1]
    ends = list(listed.expressions) if isinstance(listed, exp.Array) else []
    try:
        ordered = sorted({_order(end): end for end in ends}.items(), key=lambda pair: pair[0])
    except (InvalidOperation, TypeError, ValueError):
        ordered = []
    if not 1 <= len(ordered) <= _MOST:
        text = f"histogram({unquoted(call.expressions[0])}, [10, 20, 30])"
        refusals.refuse(
            "aggregate_argument",
            call,
            f"the bins of histogram are 1 to {_MOST:,} numbers, dates or timestamps.",
            f"Write the upper end of each, as in {text}.",
        )
    return tuple(end for _, end in ordered)


def _order(end: exp.Expr) -> Decimal | dt.datetime:
    """Return the place of an end among others.

    Raises:
        InvalidOperation, ValueError: it is no literal.

    """
    if isinstance(end, exp.Neg):
        return -Decimal(end.this.name)
    if isinstance(end, exp.Cast) and end.is_type("date", "timestamp", "timestamptz"):
        return dt.datetime.fromisoformat(end.this.name)
    if not isinstance(end, exp.Literal) or end.is_string:
        raise ValueError
    return Decimal(end.name)


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
    """Return how DuckDB calls the bins, and the type of these names.

    Args:
        ends: the ends of the bins.
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
    integer = _INTEGER.fullmatch(kind)
    if integer:
        bits = _BITS[integer[2]] - (0 if integer[1] else 1)
        last: exp.Expr = exp.Literal.number(str(2**bits - 1))
    elif kind in ("FLOAT", "DOUBLE"):
        last = exp.Literal.string("inf")
    elif kind in _LAST:
        last = exp.Literal.string(_LAST[kind])
    else:
        refusals.refuse(
            "value_type",
            node,
            "bins are of numbers, dates or timestamps, as their ends are.",
            "Cast the value, as in x::DOUBLE.",
        )
        raise AssertionError("a refusal was just raised")
    return [*(end.copy() for end in ends), exp.cast(last, kind, dialect="duckdb")], kind
