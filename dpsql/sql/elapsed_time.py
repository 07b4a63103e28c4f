"""Seconds and years between two times, as ``epoch(ended - started)``: computed without the INTERVAL between them.

What DuckDB does with an INTERVAL may fail where no TRY catches it. The number of microseconds between two timestamps,
and the number of whole years, say the same, and they may be computed.
"""

from __future__ import annotations

from functools import reduce

from sqlglot import exp

from dpsql.model.environment import TableSchema
from dpsql.sql.column_names import named_columns

_ZONED = ("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ")
_KINDS = ("TIMESTAMP", "DATE", *_ZONED)
_ALIKE = (exp.Coalesce, exp.Greatest, exp.Least, exp.Max, exp.Min)
"""Calls whose value is one of their arguments."""
_NOW = ("now", "get_current_timestamp")


def elapsed_time(node: exp.Expr, schema: TableSchema) -> exp.Expr | None:
    """Return the seconds between two times, or the years of an age, or None if a node is anything else.

    Args:
        node: a call, whose names are not resolved.
        schema: the columns that it can name.

    """
    part, span = _part(node)
    if isinstance(span, exp.Sub) and part == "EPOCH":
        return _seconds(span, schema)
    if isinstance(span, exp.Anonymous) and span.name.lower() == "age" and part == "YEAR":
        return _years(span)
    return None


def _part(node: exp.Expr) -> tuple[str, exp.Expr | None]:
    """Return the part that a call takes of its argument, in capital letters, and this argument."""
    if isinstance(node, exp.TimeToUnix | exp.Year):
        part, argument = "EPOCH" if isinstance(node, exp.TimeToUnix) else "YEAR", node.this
    else:
        named, argument = (node.this, node.expression) if isinstance(node, exp.Extract) else node.expressions
        part = named.name.upper()
    return part, argument.unnest() if isinstance(argument, exp.Expr) else None


def _seconds(span: exp.Sub, schema: TableSchema) -> exp.Expr | None:
    kinds = {_kind(side.unnest(), schema) for side in (span.left, span.right)}
    # the difference of two dates is a number of days
    if not kinds <= set(_KINDS) or kinds == {"DATE"}:
        return None
    between = exp.DateDiff(
        this=span.left.copy(), expression=span.right.copy(), unit=exp.var("MICROSECOND"), date_part_boundary=True
    )
    return exp.Paren(this=exp.Div(this=between, expression=exp.Literal.number("1e6"), typed=False, safe=False))


def _years(call: exp.Anonymous) -> exp.Expr | None:
    """Return the whole years from the second argument of age() to the first one, as date parts.

    Somebody who was born on 29 February is a year older on 1 March of a common year, as DuckDB's age() has it.
    DuckDB's date_sub() has 28 February.
    """
    if len(call.expressions) not in (1, 2):
        return None
    sides = [exp.CurrentDate(), *call.expressions][-2:]
    # age() reads dates as timestamps, too, and has no value for those that are out of their range
    later, earlier = (exp.cast(side.copy(), "TIMESTAMP", dialect="duckdb") for side in sides)
    in_year = _place_in_year(later), _place_in_year(earlier)
    one_less = exp.and_(_compared(exp.GTE, later, earlier), _compared(exp.LT, *in_year))
    one_more = exp.and_(_compared(exp.LT, later, earlier), _compared(exp.GT, *in_year))
    step = exp.case().when(one_less, "-1").when(one_more, "1").else_("0")
    return exp.Paren(this=exp.Add(this=_between("YEAR", earlier, later), expression=step))


def _place_in_year(moment: exp.Expr) -> exp.Expr:
    """Return a whole number that grows from the first moment of any year to its last one."""
    days: exp.Expr = exp.Add(this=_times(exp.Month(this=moment.copy()), "32"), expression=exp.Day(this=moment.copy()))
    midnight = exp.TimestampTrunc(this=moment.copy(), unit=exp.var("DAY"))
    return exp.Add(this=_times(exp.paren(days), "86400000000"), expression=_between("MICROSECOND", midnight, moment))


def _between(unit: str, earlier: exp.Expr, later: exp.Expr) -> exp.Expr:
    return exp.DateDiff(this=later.copy(), expression=earlier.copy(), unit=exp.var(unit), date_part_boundary=True)


def _compared(kind: type[exp.Binary], one: exp.Expr, other: exp.Expr) -> exp.Expr:
    return kind(this=one.copy(), expression=other.copy())


def _times(number: exp.Expr, factor: str) -> exp.Expr:
    return exp.Mul(this=number, expression=exp.Literal.number(factor))


def _kind(node: exp.Expr, schema: TableSchema) -> str:
    """Return the type of a time, or an empty text if it is not known."""
    if isinstance(node, exp.Cast):
        return node.to.sql(dialect="duckdb").upper()
    called = node.name.lower() if isinstance(node, exp.Anonymous) else ""
    if isinstance(node, exp.CurrentDate) or called == "today":
        return "DATE"
    if isinstance(node, exp.CurrentTimestamp) or called in _NOW:
        return _ZONED[0]
    if isinstance(node, _ALIKE):
        kinds = {_kind(part.unnest(), schema) for part in node.iter_expressions()}
        return reduce(lambda one, other: one if one == other else "", kinds)
    found = named_columns(schema, node) if isinstance(node, exp.Column) else []
    column = schema.column(found[0].output) if len(found) == 1 else None
    return column.type if column else ""
