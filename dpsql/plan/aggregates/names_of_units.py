"""Refusal of sums, averages and quantiles of the unit column, whose values are names."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from dpsql.operations.dialect import unquoted
from dpsql.plan.aggregates.source import AggregateSource


def require_no_unit(node: exp.Expr, function: str, value: exp.Expr, source: AggregateSource) -> None:
    """Refuse an aggregate of numbers that are computed from names of units.

    Args:
        node: the call as it stands in the text.
        function: its name.
        value: the value that is aggregated.
        source: which rows.

    Raises:
        RefusedCallError: they are.

    """
    names = (column for column in _added_columns(value) if column.name in source.owner.names_unit)
    if unit := next(names, None):
        column = unquoted(unit)
        source.refuse(
            "value_type",
            node,
            f"{column} holds the names of privacy units, and their {function} means nothing.",
            f"Write count(DISTINCT {column}) to count units, or aggregate another column.",
        )


def _added_columns(value: exp.Expr) -> Iterator[exp.Column]:
    """Yield the columns that arithmetic and casts make a value from; not those of a condition."""
    if isinstance(value, exp.Column):
        yield value
    elif isinstance(value, exp.Paren | exp.Cast | exp.Neg | exp.Add | exp.Sub | exp.Mul | exp.Div):
        for part in value.iter_expressions():
            yield from _added_columns(part)
