"""Seconds between two timestamps, as ``extract(epoch FROM ended - started)``: computed without the INTERVAL between.

What DuckDB does with an INTERVAL may fail where no TRY catches it. The number of microseconds between both is the same,
and it may be computed.
"""

from __future__ import annotations

from sqlglot import exp

from dpsql.model.environment import TableSchema
from dpsql.sql.column_names import named_columns

_KINDS = ("TIMESTAMP", "DATE")


def elapsed_seconds(node: exp.Expr, schema: TableSchema) -> exp.Expr | None:
    """Return the seconds between two timestamps as a number of microseconds, or None if a node is anything else.

    Args:
        node: a call, whose names are not resolved.
        schema: the columns that it can name.

    """
    span = _argument_of_epoch(node)
    if not isinstance(span, exp.Sub):
        return None
    kinds = {_kind(side.unnest(), schema) for side in (span.left, span.right)}
    # the difference of two dates is a number of days
    if not kinds <= set(_KINDS) or kinds == {"DATE"}:
        return None
    between = exp.DateDiff(
        this=span.left.copy(), expression=span.right.copy(), unit=exp.var("MICROSECOND"), date_part_boundary=True
    )
    return exp.Paren(this=exp.Div(this=between, expression=exp.Literal.number("1e6"), typed=False, safe=False))


def _argument_of_epoch(node: exp.Expr) -> exp.Expr | None:
    """Return the argument of a call that asks for seconds, or None if a call asks for anything else."""
    if isinstance(node, exp.TimeToUnix):
        part, argument = "EPOCH", node.this
    else:
        named, argument = (node.this, node.expression) if isinstance(node, exp.Extract) else node.expressions
        part = named.name.upper()
    return argument.unnest() if part == "EPOCH" and isinstance(argument, exp.Expr) else None


def _kind(node: exp.Expr, schema: TableSchema) -> str:
    """Return the type of a column or a cast, or an empty text if a node is anything else."""
    if isinstance(node, exp.Cast):
        return node.to.sql(dialect="duckdb").upper()
    found = named_columns(schema, node) if isinstance(node, exp.Column) else []
    column = schema.column(found[0].output) if len(found) == 1 else None
    return column.type if column else ""
