"""Values so far from the usual ones that computing with them may fail: rows that hold them are computed apart.

A TRY that fails on one row computes its part once more for each of the rows that the engine holds together with it. So
what computes with dates, timestamps and very wide numbers stands twice: for rows whose values are near, and for the
others. Both say the same; a failure in the second takes no row of the first with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sqlglot import exp

from dpsql.query.dialect import to_sql

_DAYS = ("1700-01-01", "2200-01-01")
"""All types of dates and timestamps have these."""
_LARGEST = 10**9
"""Products of four such numbers fit into a HUGEINT."""
_WIDE_NUMBERS = ("HUGEINT", "UHUGEINT")
_TIME = re.compile(r"(DATE|TIMESTAMP(TZ|_S|_MS|_NS| WITH TIME ZONE)?)$")
_DECIMAL = re.compile(r"DECIMAL\((\d+)(?:, ?(\d+))?\)$")
_MOST_DIGITS = 18
"""Of DECIMALs; two of them are multiplied without overflow."""

_NEVER_FAIL = (
    exp.Alias, exp.And, exp.Between, exp.Boolean, exp.Case, exp.Cast, exp.Coalesce, exp.Column, exp.DataType, exp.EQ,
    exp.GT, exp.GTE, exp.Greatest, exp.Identifier, exp.If, exp.In, exp.Is, exp.LT, exp.LTE, exp.Least, exp.Literal,
    exp.NEQ, exp.Not, exp.Null, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Nullif, exp.Or, exp.Paren, exp.Tuple,
)  # fmt: skip
"""Nodes that fail on no value, if all that they compare is of one type."""
_COMPARE_NOTHING = (exp.Alias, exp.And, exp.Cast, exp.Is, exp.Not, exp.Or, exp.Paren)


def near(root: exp.Expr, types: Mapping[str, str]) -> exp.Expr | None:
    """The condition that all is near with which an expression computes; None where nothing of it may be far.

    It may fail on a row as the expression may.

    Args:
        root: a parsed expression.
        types: DuckDB types of columns, by their names.

    """
    conditions = {}
    for node in _outermost(root, types):
        for operand, kind in _operands(node, types):
            low, high = _bounds(kind)
            between = exp.Between(this=operand.copy(), low=low, high=high)
            conditions[to_sql(operand)] = exp.Coalesce(this=between, expressions=[exp.true()])
    return exp.and_(*conditions.values(), copy=False) if conditions else None


def _outermost(node: exp.Expr, types: Mapping[str, str]) -> Iterator[exp.Expr]:
    """The parts that compute with values which may be far, and stand in no other such part."""
    if not isinstance(node, _COMPARE_NOTHING):
        kinds = {kind for part in node.walk() if (kind := _far_kind(part, types))}
        if len(kinds) > isinstance(node, _NEVER_FAIL):
            yield node
        if not kinds or len(kinds) > isinstance(node, _NEVER_FAIL):
            return
    for child in node.iter_expressions():
        yield from _outermost(child, types)


def _operands(node: exp.Expr, types: Mapping[str, str]) -> Iterator[tuple[exp.Expr, str]]:
    """Columns in an expression whose values may be far, and casts of others, with their types."""
    found = [operand for child in node.iter_expressions() for operand in _operands(child, types)]
    kind = _far_kind(node, types)
    if kind and not found:
        yield node, kind
    yield from found


def _far_kind(node: exp.Expr, types: Mapping[str, str]) -> str:
    """The type of a column or a cast whose values may be far; else empty."""
    kind = ""
    if isinstance(node, exp.Column):
        kind = types.get(node.name, "")
    elif isinstance(node, exp.Cast) and not isinstance(node.this, exp.Literal):
        kind = node.to.sql("duckdb")
    return kind if _may_be_far(kind) else ""


def _may_be_far(kind: str) -> bool:
    return kind in _WIDE_NUMBERS or _is_time(kind) or _digits(kind)[0] > _MOST_DIGITS


def _is_time(kind: str) -> bool:
    return _TIME.match(kind) is not None


def _digits(kind: str) -> tuple[int, int]:
    """Of a DECIMAL its digits, and those behind the point."""
    found = _DECIMAL.match(kind)
    return (0, 0) if found is None else (int(found[1]), int(found[2] or 0))


def _bounds(kind: str) -> list[exp.Expr]:
    """Literals that the type can hold."""
    if _is_time(kind):
        zone = " 00:00:00+00" if "ZONE" in kind or kind.endswith("TZ") else ""
        return [exp.cast(exp.Literal.string(f"{day}{zone}"), kind, dialect="duckdb") for day in _DAYS]
    width, scale = _digits(kind)
    largest = min(_LARGEST, 10 ** (width - scale) - 1) if width else _LARGEST
    return [exp.Literal.number(number) for number in (0 if kind == "UHUGEINT" else -largest, largest)]
