"""Arguments of an aggregate of pairs: its two values, and the bounds of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn

from sqlglot import exp

from dpsql.operations import blanks
from dpsql.operations.dialect import unquoted
from dpsql.plan.aggregates.lattice import Bounds
from dpsql.plan.aggregates.literals import read_number
from dpsql.plan.aggregates.source import AggregateSource
from dpsql.sql.clauses import called_with

PAIRS: Final = "pairs of numbers"
"""Noun of the values of such an aggregate."""


def refuse_pair(source: AggregateSource, node: exp.Expr, function: str, values: Sequence[exp.Expr]) -> NoReturn:
    """Refuse a call of an aggregate of pairs that has not two values."""
    hint = f"Name two values, as in {called_with(node, function, 'y', 'x')}."
    if len(values) > 2 and not any(isinstance(value, exp.Star) for value in values):
        hint = f"Write {called_with(node, function, *map(unquoted, values[:2]))}."
    source.refuse("aggregate_argument", node, f"{function} takes two values, y and x.", hint)


def bounds_of_pair(argument: exp.Expr, function: str, source: AggregateSource) -> tuple[Bounds, Bounds]:
    """Return the named bounds of both values of a pair."""
    parts = argument.expression.expressions if isinstance(argument.expression, exp.Tuple | exp.Array) else []
    numbers = [[read_number(end, source.refusals.text) for end in part.expressions] for part in parts]
    if len(numbers) != 2 or not all(len(ends) == 2 and ends[0] < ends[1] for ends in numbers):
        source.refuse(
            "bounds_invalid",
            argument,
            f"{function} has bounds of its first and of its second value, each with the lower one first.",
            f"Write contribution_bounds_per_row => {blanks.PAIRS}.",
        )
    return (numbers[0][0], numbers[0][1]), (numbers[1][0], numbers[1][1])
