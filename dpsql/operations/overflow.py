"""Arithmetic that overflows on no row: whole numbers in a wider type, and what is far from usual values apart.

Whole numbers are computed in a wider type, and cast back by a cast that gives NULL.

What fails in a TRY is computed once more, row by row, with the 2,048 rows around it: a clock about the row that failed.
A TRY_CAST to the type of the result says the same of all rows at once. Division by zero likewise, by nullif. (One
result is another: the remainder of the least number by -1 is 0, where DuckDB fails.)

Types follow from those of the columns by DuckDB's rules, as far as they are known here. What they do not reach stands
as it is written, in TRY.

Values may be so far from the usual ones that computing with them may fail: rows that hold them are computed apart. What
computes with dates, timestamps and very wide numbers stands twice, for rows whose values are near, and for the others.
Both say the same; a failure in the second takes no row of the first with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from importlib.metadata import version

from sqlglot import exp

from dpsql.operations.dialect import to_sql

_SIGNED = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}
_UNSIGNED = {"UTINYINT": 8, "USMALLINT": 16, "UINTEGER": 32, "UBIGINT": 64}
_BITS = _SIGNED | _UNSIGNED
_CAST_NAMES = {"INT": "INTEGER", "INT128": "HUGEINT", "UINT": "UINTEGER"}
_OTHER_NUMBERS = ("FLOAT", "DOUBLE", "DECIMAL")
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.IntDiv, exp.Mod)
_COUNTS = (
    exp.Length,
    exp.Year,
    exp.Quarter,
    exp.Month,
    exp.Day,
    exp.DayOfMonth,
    exp.DayOfWeek,
    exp.DayOfYear,
    exp.Hour,
    exp.Minute,
    exp.Second,
    exp.DateDiff,
    exp.StrPosition,
)
"""Functions whose result is a BIGINT, whatever they are given."""

_LEAST_INTEGER = -(2**31)

_DIVISOR = "nullif"
"""What stands around a divisor; a nullif that somebody wrote is parsed to a node of its own."""


@dataclass(frozen=True, slots=True)
class _Typed:
    """A type, empty where it is not known; of a literal whole number its value too: it takes the type of what it meets.

    Attributes:
        kind: DuckDB's name.
        value: None for what is no literal.

    """

    kind: str
    value: int | None = None

    @property
    def bits(self) -> int:
        """Of a whole number; 0 of others."""
        return _BITS.get(self.kind, 0)

    @property
    def is_literal(self) -> bool:
        """Whether the value stands in the text."""
        return self.value is not None


_UNKNOWN = _Typed("")


def widened(root: exp.Expr, types: Mapping[str, str]) -> exp.Expr:
    """The expression with its whole numbers computed so that no row overflows; ``root`` changes.

    Args:
        root: a parsed expression.
        types: DuckDB types of columns, by their names.

    """
    # so that the root itself can be replaced
    holder = exp.Paren(this=root)
    _widen(root, types)
    found = holder.this
    found.parent = None
    return found  # type: ignore[no-any-return]


def is_divisor(node: exp.Expr) -> bool:
    """Whether a node is the nullif that ``widened`` writes: of a number and 0, and NULL or that number."""
    return isinstance(node, exp.Anonymous) and node.name == _DIVISOR


def _widen(node: exp.Expr, types: Mapping[str, str]) -> _Typed:
    """Widen a node and all below it; its type, where it is known."""
    children = list(node.iter_expressions())
    keys = [child.arg_key for child in children]
    found = [_widen(child, types) for child in children]
    literal = _literal(node)
    if literal.is_literal:
        return literal
    match node:
        case exp.Column():
            return _Typed(types.get(node.name, ""))
        case exp.Paren():
            return found[0]
        case exp.Cast():
            name = node.to.this.name
            return _Typed(_CAST_NAMES.get(name, name))
        case exp.Coalesce() | exp.Greatest() | exp.Least():
            return _alike(found)
        case exp.If() | exp.Case():
            return _alike([one for key, one in zip(keys, found, strict=True) if key != "this"])
        case exp.Round() if found[0].kind not in _SIGNED:
            return _UNKNOWN
        case exp.Neg() | exp.Abs() | exp.Round():
            # the type of the opposite of a literal's opposite is of no use
            return _UNKNOWN if found[0].is_literal else _computed(node, found[:1])
    if isinstance(node, _ARITHMETIC):
        return _computed(node, found)
    return _Typed("BIGINT") if isinstance(node, _COUNTS) else _UNKNOWN


def _computed(node: exp.Expr, operands: Sequence[_Typed]) -> _Typed:
    """The type of what is computed, which is widened if it is a whole number."""
    result = _together(operands)
    # the remainder by 0 of other numbers is NaN
    if isinstance(node, exp.IntDiv) or (isinstance(node, exp.Mod) and result.bits):
        _divide_by_no_zero(node, operands[1])
    # nothing is wider than a HUGEINT
    if not result.bits or result.kind == "HUGEINT" or _never_fails(node, operands):
        return result
    # one operand of that type is enough: the other one follows; a literal takes the type of what it meets
    place = "expression" if operands[0].is_literal else "this"
    node.set(place, exp.cast(node.args[place], _wide(node, result.kind), dialect="duckdb"))
    holder = exp.TryCast(this=None, to=exp.DataType.build(result.kind, dialect="duckdb"))
    node.replace(holder)
    holder.set("this", node)
    return result


def _never_fails(node: exp.Expr, operands: Sequence[_Typed]) -> bool:
    """Whether an operation fails on no row, or on all of them: on literals alone, and division by most of them."""
    divides = isinstance(node, exp.IntDiv | exp.Mod)
    return all(one.is_literal for one in operands) or (divides and operands[1].value not in (None, -1))


def _wide(node: exp.Expr, kind: str) -> str:
    """A type in which no result overflows, of a type that is narrower than a HUGEINT."""
    if not isinstance(node, exp.Mul):
        return "BIGINT" if _BITS[kind] < 64 else "HUGEINT"
    if kind == "UBIGINT":
        return "UHUGEINT"
    return "HUGEINT" if kind in ("UINTEGER", "BIGINT") else "BIGINT"


def _divide_by_no_zero(node: exp.Expr, divisor: _Typed) -> None:
    is_number = bool(divisor.bits) or divisor.kind.startswith(_OTHER_NUMBERS)
    # a literal fails on no row, or on all of them
    if is_number and not divisor.is_literal:
        node.set("expression", exp.Anonymous(this=_DIVISOR, expressions=[node.expression, exp.Literal.number(0)]))


def _literal(node: exp.Expr) -> _Typed:
    """Return the whole number that the text writes, with its least type, or an unknown type if it writes none."""
    number = node.this.unnest() if isinstance(node, exp.Neg) else node
    if not (isinstance(number, exp.Literal) and not number.is_string and number.name.isdecimal()):
        return _UNKNOWN
    value = int(number.name) if number is node else -int(number.name)
    if value == _LEAST_INTEGER:
        return _Typed(_kind_of_least_integer(), value)
    return _Typed(next((kind for kind in ("INTEGER", "BIGINT", "HUGEINT") if _fits(value, kind)), "UHUGEINT"), value)


@cache
def _kind_of_least_integer() -> str:
    """Return the type that the installed DuckDB gives to -2147483648.

    From 2.0.1 on it types the digits before it reads the sign, and 2147483648 is a BIGINT. The result of an expression
    must have the type with which it was planned, or one row could make a later statement fail.
    """
    release = version("duckdb").split(".")[:3]
    return "BIGINT" if [int(part) if part.isdecimal() else 0 for part in release] >= [2, 0, 1] else "INTEGER"


def _fits(value: int, kind: str) -> bool:
    if kind in _UNSIGNED:
        return value >= 0 and value.bit_length() <= _UNSIGNED[kind]
    # the least number is one further from 0 than the largest
    return (value if value >= 0 else ~value).bit_length() < _SIGNED[kind]


def _together(operands: Sequence[_Typed]) -> _Typed:
    """The type of arithmetic on whole numbers; not known where one is none."""
    if not all(one.bits for one in operands):
        return _UNKNOWN
    computed = [one.kind for one in operands if not one.is_literal]
    kind = reduce(_larger, computed or [one.kind for one in operands])
    for one in operands:
        if one.value is not None and not _fits(one.value, kind):
            kind = _larger(kind, one.kind)
    return _Typed(kind)


def _alike(values: Sequence[_Typed]) -> _Typed:
    """The type of what is one of several values: known where they are all signed, or all unsigned."""
    if len(values) == 1:
        return values[0]
    found = _together(values)
    kinds = {found.kind, *(one.kind for one in values if not one.is_literal)}
    return found if kinds <= _SIGNED.keys() or kinds <= _UNSIGNED.keys() else _UNKNOWN


def _larger(one: str, other: str) -> str:
    """The type in which DuckDB computes with two whole numbers."""
    if (one in _SIGNED) == (other in _SIGNED):
        return max(one, other, key=lambda kind: _BITS[kind])
    signed, unsigned = (one, other) if one in _SIGNED else (other, one)
    if _BITS[signed] > _BITS[unsigned]:
        return signed
    return "HUGEINT" if unsigned == "UBIGINT" else "BIGINT"


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


def near(root: exp.Expr, types: Mapping[str, str]) -> tuple[exp.Expr, ...]:
    """The conditions that all is near with which an expression computes; none where nothing of it may be far.

    They may fail on a row as the expression may.

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
    return tuple(conditions.values())


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
    is_far = kind in _WIDE_NUMBERS or _TIME.match(kind) or _digits(kind)[0] > _MOST_DIGITS
    return kind if is_far else ""


def _digits(kind: str) -> tuple[int, int]:
    """Of a DECIMAL its digits, and those behind the point."""
    found = _DECIMAL.match(kind)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


def _bounds(kind: str) -> list[exp.Expr]:
    """Literals that the type can hold."""
    if _TIME.match(kind):
        zone = " 00:00:00+00" if "ZONE" in kind or kind.endswith("TZ") else ""
        return [exp.cast(exp.Literal.string(f"{day}{zone}"), kind, dialect="duckdb") for day in _DAYS]
    width, scale = _digits(kind)
    largest = min(_LARGEST, 10 ** (width - scale) - 1) if width else _LARGEST
    return [exp.Literal.number(number) for number in (0 if kind == "UHUGEINT" else -largest, largest)]
