"""The interval of a row expression, from the declared domains of its columns, by interval arithmetic.

An interval is no promise. Rows are clamped to it, so that a wrong domain costs accuracy and never privacy, and so do
the last digits of floating point. NULLs, and parts that fail on a row, are in no interval: they have no value. What
puts something in their place (coalesce, CASE, least, greatest) has that in its interval. Operands that are one and the
same are taken for several, but in a square.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from sqlglot import exp

from dpsql.operations.dialect import to_sql
from dpsql.sql.interval_arithmetic import (
    MOST_PLACES,
    UNKNOWN,
    Interval,
    absolute,
    between,
    cut,
    hull,
    negative,
    power,
    product,
    quotient,
    remainder,
    risen,
    rounded,
    single_precision,
    tidied,
    total,
    whole,
)

_BIT = between(0, 1)

_DATE_PARTS: dict[str, Interval] = {
    "quarter": between(1, 4),
    "month": between(1, 12),
    "week": between(1, 53),
    "day": between(1, 31),
    "hour": between(0, 23),
    "minute": between(0, 59),
    "second": between(0, 59),
    "millisecond": between(0, 59_999),
    "microsecond": between(0, 59_999_999),
    "dow": between(0, 6),
    "dayofweek": between(0, 6),
    "weekday": between(0, 6),
    "isodow": between(1, 7),
    "doy": between(1, 366),
    "dayofyear": between(1, 366),
}
"""Parts of a date that have a range, whatever the date; DuckDB's milliseconds hold the seconds."""

_DATE_CALLS: dict[type[exp.Expr], str] = {
    exp.Quarter: "quarter",
    exp.Month: "month",
    exp.Week: "week",
    exp.WeekOfYear: "week",
    exp.Day: "day",
    exp.DayOfMonth: "day",
    exp.Hour: "hour",
    exp.Minute: "minute",
    exp.Second: "second",
    exp.DayOfWeek: "dayofweek",
    exp.DayOfWeekIso: "isodow",
    exp.DayOfYear: "dayofyear",
}

_WHOLE_BITS: dict[str, tuple[int, bool]] = {
    "TINYINT": (8, True),
    "SMALLINT": (16, True),
    "INT": (32, True),
    "BIGINT": (64, True),
    "INT128": (128, True),
    "UTINYINT": (8, False),
    "USMALLINT": (16, False),
    "UINT": (32, False),
    "UBIGINT": (64, False),
    "UINT128": (128, False),
}
"""Whole types: their bits, and whether they are signed."""

_RISING: dict[type[exp.Expr], tuple[Callable[[float], float], float, float]] = {
    exp.Sqrt: (math.sqrt, 0.0, 0.0),
    exp.Cbrt: (math.cbrt, -math.inf, -math.inf),
    exp.Exp: (math.exp, -math.inf, 0.0),
    exp.Ln: (math.log, 0.0, -math.inf),
}
"""Functions that rise wherever they are defined: where that begins, and their value there."""

_UNARY: dict[type[exp.Expr], Callable[[Interval], Interval]] = {
    exp.Neg: negative,
    exp.Abs: absolute,
    exp.Ceil: lambda value: whole(value, math.ceil, math.ceil),
    exp.Floor: lambda value: whole(value, math.floor, math.floor),
    exp.Trunc: lambda value: whole(value, math.trunc, math.trunc),
}
_BINARY: dict[type[exp.Expr], Callable[[Interval, Interval], Interval]] = {
    exp.Add: total,
    exp.Sub: lambda a, b: total(a, negative(b)),
    exp.Mul: product,
    exp.Div: quotient,
    exp.IntDiv: lambda a, b: whole(quotient(a, b), math.floor, math.ceil),
    exp.Mod: remainder,
}


@dataclass(frozen=True, slots=True)
class Columns:
    """What is known of columns by name.

    Attributes:
        bounds: declared domain of a numeric column, (0, 1) of a BOOLEAN one; None where there is none.
        is_never_null: whether a column is NOT NULL.

    """

    bounds: Callable[[str], tuple[float, float] | None]
    is_never_null: Callable[[str], bool]


def interval_of(node: exp.Expr, columns: Columns) -> Interval:
    """The interval of a row expression; ends that nothing is known of are infinite.

    Args:
        node: an expression that is on the allow-list, its columns resolved.
        columns: what is known of them.

    """
    return tidied(_interval(node, columns))


def _interval(node: exp.Expr, columns: Columns) -> Interval:
    match node:
        case exp.Paren() | exp.Nullif():
            return interval_of(node.this, columns)
        case exp.Column() | exp.Literal():
            return _leaf(node, columns)
        case exp.Predicate() | exp.Boolean() | exp.Connector() | exp.Not() | exp.IsNan() | exp.IsInf():
            return _BIT
        case exp.RegexpLike() | exp.RegexpFullMatch():
            return _BIT
        case exp.Case() | exp.If() | exp.Coalesce():
            chosen = [part for part in _choices(node) if not isinstance(part, exp.Null)]
            return hull(interval_of(part, columns) for part in chosen)
        case exp.Least() | exp.Greatest():
            return _extreme(node, columns)
        case exp.Cast():
            return _cast(interval_of(node.this, columns), node.to)
        case _ if _date_part(node) in _DATE_PARTS:
            return _DATE_PARTS[_date_part(node)]
        case exp.Binary():
            return _of_two(node, columns)
        case exp.Unary() | exp.Func() if isinstance(node.this, exp.Expr):
            return _of_one(node, interval_of(node.this, columns))
        case _:
            return UNKNOWN


def _leaf(node: exp.Column | exp.Literal, columns: Columns) -> Interval:
    if isinstance(node, exp.Column):
        bounds = columns.bounds(node.name)
        return between(*bounds) if bounds else UNKNOWN
    # a long exponent would be a long number; a float says whether it is one of usual size
    if node.is_string or (node.name.strip("0.") and not 1e-90 < float(node.name) < 1e90):
        return UNKNOWN
    return Interval(Fraction(node.name), Fraction(node.name))


def _choices(node: exp.Expr) -> list[exp.Expr]:
    """The parts of which one is the value; where there is none the value is NULL."""
    if isinstance(node, exp.Coalesce):
        return [node.this, *node.expressions]
    branches, other = ([node], "false") if isinstance(node, exp.If) else (node.args["ifs"], "default")
    found = [*(branch.args["true"] for branch in branches), node.args.get(other)]
    return [part for part in found if part]


def _extreme(node: exp.Least | exp.Greatest, columns: Columns) -> Interval:
    """DuckDB's least and greatest skip NULLs: a part bounds the value from the far side only where it is never NULL."""
    parts = [part for part in (node.this, *node.expressions) if not isinstance(part, exp.Null)]
    intervals = [interval_of(part, columns) for part in parts]
    sure = [one for part, one in zip(parts, intervals, strict=True) if _is_never_null(part, columns)]
    widest = hull(intervals)
    if isinstance(node, exp.Least):
        return Interval(widest.low, min([widest.high, *(one.high for one in sure)], key=float))
    return Interval(max([widest.low, *(one.low for one in sure)], key=float), widest.high)


def _is_never_null(node: exp.Expr, columns: Columns) -> bool:
    """Whether a part has a value on every row: what may fail has none."""
    match node:
        case exp.Paren():
            return _is_never_null(node.this, columns)
        case exp.Neg():
            return isinstance(node.this, exp.Literal)
        case exp.Column():
            return columns.is_never_null(node.name)
        case exp.Coalesce() | exp.Least() | exp.Greatest():
            return any(_is_never_null(part, columns) for part in (node.this, *node.expressions))
        case _:
            return isinstance(node, exp.Literal)


def _cast(value: Interval, to: exp.DataType) -> Interval:
    """What casts make of an interval; values that do not fit become NULL, so the type's own range may cut it."""
    kind = to.this.name
    if kind in _WHOLE_BITS:
        bits, signed = _WHOLE_BITS[kind]
        least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        return cut(rounded(value, 0), least, most)
    if kind == "DECIMAL":
        sizes = [int(part.name) for part in to.expressions]
        return rounded(value, sizes[1] if len(sizes) > 1 else 0 if sizes else 3)
    if kind == "FLOAT":
        return single_precision(value)
    if kind == "BOOLEAN":
        return _BIT
    return value if kind == "DOUBLE" else UNKNOWN


def _date_part(node: exp.Expr) -> str:
    """The part of a date that a call takes, in small letters; empty for other calls."""
    if isinstance(node, exp.Extract):
        return str(node.this.name).lower()
    if isinstance(node, exp.Anonymous):
        name = node.name.lower()
        return str(node.expressions[0].name).lower() if name == "date_part" and node.expressions else name
    return _DATE_CALLS.get(type(node), "")


def _of_two(node: exp.Binary, columns: Columns) -> Interval:
    left, right = interval_of(node.this, columns), interval_of(node.expression, columns)
    if isinstance(node, exp.Mul) and to_sql(node.left.unnest()) == to_sql(node.right.unnest()):
        return power(left, 2)
    if isinstance(node, exp.Pow):
        exponent = _whole_number(node.expression)
        return power(left, exponent) if 1 <= exponent <= MOST_PLACES else UNKNOWN
    return _BINARY[type(node)](left, right) if type(node) in _BINARY else UNKNOWN


def _of_one(node: exp.Expr, value: Interval) -> Interval:
    if isinstance(node, exp.Round):
        places = _whole_number(node.args.get("decimals"))
        return rounded(value, places) if abs(places) <= MOST_PLACES else UNKNOWN
    if isinstance(node, exp.Sign | exp.Sin | exp.Cos):
        return between(-1, 1)
    if type(node) in _RISING:
        return risen(value, *_RISING[type(node)])
    has_form = type(node) in _UNARY and not (isinstance(node, exp.Trunc) and node.args.get("decimals"))
    return _UNARY[type(node)](value) if has_form else UNKNOWN


def _whole_number(node: exp.Expr | None) -> int:
    """The whole number that a literal is, 0 where there is none; one beyond all limits where it is something else."""
    if not node:
        return 0
    literal = node.this if isinstance(node, exp.Neg) else node
    if not isinstance(literal, exp.Literal) or literal.is_string or not literal.name.isdigit() or len(literal.name) > 3:
        return MOST_PLACES + 1
    return -int(literal.name) if isinstance(node, exp.Neg) else int(literal.name)
