"""Literals among the arguments of an aggregate: numbers, pairs of numbers or moments, weights and norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from sqlglot import exp

from dpsql.errors import ParseError
from dpsql.plan.aggregates.lattice import Bounds
from dpsql.plan.aggregates.source import AggregateSource
from dpsql.plan.aggregates.times import is_time_literal, seconds_of
from dpsql.sql.statements import literal_value

NORM = "contribution_norm"
"""Name of the argument with the norm of a unit."""


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


def read_weight(argument: exp.Expr, source: AggregateSource) -> float:
    """Return the weight that an argument names; note it if it is none."""
    weight = read_number(argument.expression, source.refusals.text)
    if not 1e-3 <= weight <= 1e3:
        source.refusals.add(
            "aggregate_argument", argument, "weight is a number from 0.001 to 1000.", "Leave weight out."
        )
    return weight


def read_norm(argument: exp.Expr, function: str, source: AggregateSource, *, has_norm: bool) -> float | Literal["AUTO"]:
    """Return the norm that an argument names; note it if it is none, or if the aggregate has none."""
    given = argument.expression
    is_auto = isinstance(given, exp.Var) and given.name == "AUTO"
    norm = 1.0 if is_auto else read_number(given, source.refusals.text)
    if not has_norm:
        source.refusals.add("aggregate_argument", argument, f"{function} has no norm.", "Leave contribution_norm out.")
    elif not source.by_norm:
        source.refusals.add(
            "aggregate_argument",
            argument,
            "a norm bounds all groups of a unit together.",
            "Write OPTIONS (bounding = NORM).",
        )
    elif not norm > 0.0:
        source.refusals.add(
            "bounds_invalid", argument, "a norm is a number above 0, or AUTO.", "Write contribution_norm => AUTO."
        )
    return "AUTO" if is_auto else norm
