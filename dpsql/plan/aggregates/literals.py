"""Literals among the arguments of an aggregate: numbers, and pairs of numbers or moments."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sqlglot import exp

from dpsql.errors import ParseError
from dpsql.plan.aggregates.lattice import Bounds
from dpsql.plan.aggregates.source import AggregateSource
from dpsql.plan.aggregates.times import is_time_literal, seconds_of
from dpsql.sql.statements import literal_value


def read_pair(node: exp.Expr, parts: Sequence[exp.Expr], source: AggregateSource) -> Bounds | None:
    """Return two numbers, or the seconds of two moments; None after noting that they are neither."""
    are_times = any_time(parts)
    numbers = [
        (seconds_of(part) if is_time_literal(part) else math.nan)
        if are_times
        else read_number(part, source.refusals.text)
        for part in parts
    ]
    if len(numbers) == 2 and all(map(math.isfinite, numbers)):
        return numbers[0], numbers[1]
    source.note_bounds(node, are_times=are_times)
    return None


def any_time(parts: Sequence[exp.Expr]) -> bool:
    """Return whether a part is a literal of a date or timestamp."""
    return any(map(is_time_literal, parts))


def read_number(node: exp.Expr, text: str) -> float:
    """Return the finite number that a literal stands for, or NaN if it stands for none."""
    try:
        value = literal_value(node, text)
    except ParseError:
        return math.nan
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    return number if math.isfinite(number) else math.nan
