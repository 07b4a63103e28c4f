"""Arithmetic of whole numbers that cannot overflow: computed in a wider type, and cast back by a cast that gives NULL.

What fails in a TRY is computed once more, row by row, with the 2,048 rows around it: a clock about the row that failed.
A TRY_CAST to the type of the result says the same of all rows at once. Division by zero likewise, by nullif. (One
result is another: the remainder of the least number by -1 is 0, where DuckDB fails.)

Types follow from those of the columns by DuckDB's rules, as far as they are known here. What they do not reach stands
as it is written, in TRY.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

_SIGNED = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}
_UNSIGNED = {"UTINYINT": 8, "USMALLINT": 16, "UINTEGER": 32, "UBIGINT": 64}
_BITS = _SIGNED | _UNSIGNED
_CAST_NAMES = {"INT": "INTEGER", "INT128": "HUGEINT", "UINT": "UINTEGER"}
_OTHER_NUMBERS = ("FLOAT", "DOUBLE", "DECIMAL")
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.IntDiv, exp.Mod)
_COUNTS = (
    exp.Length, exp.Year, exp.Quarter, exp.Month, exp.Day, exp.DayOfMonth, exp.DayOfWeek, exp.DayOfYear, exp.Hour,
    exp.Minute, exp.Second, exp.DateDiff, exp.StrPosition,
)  # fmt: skip
"""Functions whose result is a BIGINT, whatever they are given."""

_DIVISOR = "nullif"
"""What stands around a divisor; a nullif that somebody wrote is parsed to a node of its own."""


@dataclass(frozen=True, slots=True)
class _Typed:
    """A type; of a literal whole number its value as well, because it takes the type of what it meets."""

    kind: str
    value: int | None = None

    @property
    def bits(self) -> int:
        """Of a whole number; 0 of others."""
        return _BITS.get(self.kind, 0)

    @property
    def is_number(self) -> bool:
        return bool(self.bits) or self.kind.startswith(_OTHER_NUMBERS)


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


def _widen(node: exp.Expr, types: Mapping[str, str]) -> _Typed | None:
    """Widen a node and all below it; its type, where it is known."""
    children = list(node.iter_expressions())
    keys = [child.arg_key for child in children]
    found = [_widen(child, types) for child in children]
    literal = _literal(node)
    if literal is not None:
        return _Typed(_least_type(literal), literal)
    match node:
        case exp.Column():
            return _Typed(types[node.name]) if node.name in types else None
        case exp.Paren():
            return found[0]
        case exp.Cast():
            name = node.to.this.name
            return _Typed(_CAST_NAMES.get(name, name))
        case exp.Coalesce() | exp.Greatest() | exp.Least():
            return _alike(found)
        case exp.If():
            return _alike([one for key, one in zip(keys, found, strict=True) if key != "this"])
        case exp.Case():
            return _alike([one for key, one in zip(keys, found, strict=True) if key != "this"])
        case exp.Round() if found[0] is None or found[0].kind not in _SIGNED:
            return None
        case exp.Neg() | exp.Abs() | exp.Round():
            # the type of the opposite of a literal's opposite is of no use
            return None if found[0] is None or found[0].value is not None else _computed(node, found[:1])
    if isinstance(node, _ARITHMETIC):
        return _computed(node, found)
    return _Typed("BIGINT") if isinstance(node, _COUNTS) else None


def _computed(node: exp.Expr, operands: Sequence[_Typed | None]) -> _Typed | None:
    """The type of what is computed, which is widened if it is a whole number."""
    result = _together(operands)
    # the remainder by 0 of other numbers is NaN
    if isinstance(node, exp.IntDiv) or (isinstance(node, exp.Mod) and result is not None):
        _divide_by_no_zero(node, operands[1])
    if result is None:
        return None
    wide = _wide(node, result.kind)
    if wide is None or _never_fails(node, operands):
        return result
    # one operand of that type is enough: the other one follows; a literal takes the type of what it meets
    place = "expression" if operands[0] is not None and operands[0].value is not None else "this"
    node.set(place, exp.cast(node.args[place], wide, dialect="duckdb"))
    holder = exp.TryCast(this=None, to=exp.DataType.build(result.kind, dialect="duckdb"))
    node.replace(holder)
    holder.set("this", node)
    return result


def _never_fails(node: exp.Expr, operands: Sequence[_Typed | None]) -> bool:
    """Whether an operation fails on no row, or on all of them: on literals alone, and division by most of them."""
    values = [None if one is None else one.value for one in operands]
    return None not in values or (isinstance(node, exp.IntDiv | exp.Mod) and values[1] not in (None, -1))


def _wide(node: exp.Expr, kind: str) -> str | None:
    """A type in which no result overflows; None where there is none."""
    if kind == "HUGEINT":
        return None
    if not isinstance(node, exp.Mul):
        return "BIGINT" if _BITS[kind] < 64 else "HUGEINT"
    if kind == "UBIGINT":
        return "UHUGEINT"
    return "HUGEINT" if kind in ("UINTEGER", "BIGINT") else "BIGINT"


def _divide_by_no_zero(node: exp.Expr, divisor: _Typed | None) -> None:
    # a literal fails on no row, or on all of them
    if divisor is None or divisor.value is not None or not divisor.is_number:
        return
    node.set("expression", exp.Anonymous(this=_DIVISOR, expressions=[node.expression, exp.Literal.number(0)]))


def _literal(node: exp.Expr) -> int | None:
    if isinstance(node, exp.Neg) and isinstance(node.this.unnest(), exp.Literal):
        number = _literal(node.this.unnest())
        return None if number is None else -number
    if isinstance(node, exp.Literal) and not node.is_string and node.name.isdecimal():
        return int(node.name)
    return None


def _least_type(value: int) -> str:
    """The type of a literal that meets no type."""
    return next((kind for kind in ("INTEGER", "BIGINT", "HUGEINT") if _fits(value, kind)), "UHUGEINT")


def _fits(value: int, kind: str) -> bool:
    if kind in _UNSIGNED:
        return value >= 0 and value.bit_length() <= _UNSIGNED[kind]
    # the least number is one further from 0 than the largest
    return (value if value >= 0 else ~value).bit_length() < _SIGNED[kind]


def _together(operands: Sequence[_Typed | None]) -> _Typed | None:
    """The type of arithmetic on whole numbers."""
    if any(one is None or not one.bits for one in operands):
        return None
    kinds = [one.kind for one in operands if one is not None and one.value is None]
    kind = kinds[0] if kinds else "INTEGER"
    for other in kinds[1:]:
        kind = _larger(kind, other)
    for one in operands:
        if one is not None and one.value is not None and not _fits(one.value, kind):
            kind = _larger(kind, one.kind)
    return _Typed(kind)


def _alike(values: Sequence[_Typed | None]) -> _Typed | None:
    """The type of what is one of several values: known where they are all signed, or all unsigned."""
    if len(values) == 1:
        return values[0]
    found = _together(values)
    kinds = {one.kind for one in values if one is not None and one.value is None} | ({found.kind} if found else set())
    return found if kinds <= _SIGNED.keys() or kinds <= _UNSIGNED.keys() else None


def _larger(one: str, other: str) -> str:
    """The type in which DuckDB computes with two whole numbers."""
    if (one in _SIGNED) == (other in _SIGNED):
        return max(one, other, key=lambda kind: _BITS[kind])
    signed, unsigned = (one, other) if one in _SIGNED else (other, one)
    if _BITS[signed] > _BITS[unsigned]:
        return signed
    return "HUGEINT" if unsigned == "UBIGINT" else "BIGINT"
