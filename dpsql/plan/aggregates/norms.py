"""Statistics that are bounded over all groups of a unit together, in the l2 norm (``bounding = NORM``).

Gaussian noise has to hide the l2 norm of all that a unit adds, and nothing else. Bounds on each group and on their
number pay for the unit that has most in every one of them; a norm pays for what people have. What is noised is the
values less a centre, scaled down as a whole where their norm is larger. Of an average both parts are scaled down by one
factor, that of the rows, or their quotient would be no mean of rows.

*Guarantee*, *Source*: docs/proofs/norm.md, Theorem 1.
"""

from __future__ import annotations

import math
from typing import Literal, NoReturn

from dpsql.model.estimates import ValueBounds
from dpsql.model.frame import COUNT_LATTICE_EXPONENT, Norm, Statistic
from dpsql.model.refusals import refuse_combinations
from dpsql.operations.dialect import to_sql
from dpsql.plan.aggregates.arguments import Call, CallBounds
from dpsql.plan.aggregates.lattice import MOST_ROWS, SMALLEST_NORM, Bounds, in_steps, norm_exponent, steps_of
from dpsql.plan.aggregates.source import AggregateSource, RefusedCallError, finite_sql
from dpsql.sql.clauses import without_bounds

_ROW_STEPS = 2**-COUNT_LATTICE_EXPONENT
_FARTHEST = 2.0**16
"""Bounds lie within this many norms of 0, so that they are exact numbers of steps."""


def rows_norm(source: AggregateSource, call: Call, value_sql: str) -> float:
    """Most norm of a unit's numbers of rows: what call or policy says, and no more than the rows that are read of it.

    What neither says is left to AUTO.

    Args:
        source: what the call is of.
        call: the call.
        value_sql: what the rows that count have a value of; empty for all rows.

    Raises:
        RefusedCallError: it is no such number; why is noted.

    """
    rules = source.owner.rules
    is_bounded = rules.max_rows_per_unit and not source.finds_bounds
    norm = call.bounds.norm or rules.max_rows_norm or (None if is_bounded else "AUTO")
    if norm == "AUTO":
        norm = min(max(1.0, _found_norm(source, call, "rows_norm", value_sql)), MOST_ROWS)
    most = min(one for one in (norm, rules.max_rows_per_unit) if one)
    if not 1.0 <= most <= MOST_ROWS:
        source.refuse(
            "bounds_invalid",
            call.node,
            f"a norm of rows is a number from 1 to {MOST_ROWS:,}.",
            "Write contribution_norm => AUTO.",
        )
    return most


def _found_norm(
    source: AggregateSource,
    call: Call,
    kind: Literal["rows_norm", "sum_norm"],
    value_sql: str,
    instead: Bounds | None = None,
) -> float:
    """The norm that AUTO found, or stands for it before it is asked; notes what it is asked.

    Raises:
        RefusedCallError: bounds per group would change what has the norm.
        BoundsNotFoundError: AUTO found no norm of a sum whose rows have no bounds.

    """
    if call.bounds.per_group:
        source.refuse(
            "bounds_missing",
            call.node,
            f"{call.name} has bounds per group, and no norm over all groups of a unit.",
            f"Write {without_bounds(call.node)}, and leave the norm to AUTO.",
        )
    return source.found(_norm_asked(call, kind, value_sql), call.name, instead)[1]


def _norm_asked(call: Call, kind: Literal["rows_norm", "sum_norm"], value_sql: str) -> Statistic:
    """Return the question of AUTO for a norm."""
    return Statistic(kind, 1, 1, 0, value_sql, call.filter_sql)


def found_norm(source: AggregateSource, call: Call) -> ValueBounds | None:
    """Return the norm of a unit's totals that AUTO found for a sum; None if policy or text say it."""
    asked = _norm_asked(call, "sum_norm", finite_sql(to_sql(call.value), call.value_type))
    found = source.found_bounds.get(asked)
    return ValueBounds("norm", found, asked) if asked in source.asked and isinstance(found, tuple) else None


def refuse_by_norm(source: AggregateSource, call: Call) -> NoReturn:
    """Refuse a call whose values are not scaled down."""
    things = {"DISTINCT values or quantiles", "bounding = NORM"}
    refuse_combinations(things, things, call.node, source.refusals)
    raise RefusedCallError


def rows_by_norm(source: AggregateSource, call: Call, value_sql: str, group: Bounds | None) -> Statistic:
    """The number of rows, in each group first clamped to bounds if there are any, and recentred to their middle."""
    most = math.floor(rows_norm(source, call, value_sql) * _ROW_STEPS)
    bounds = tuple(int(bound) * _ROW_STEPS for bound in group) if group else ()
    low, high = bounds or (0, most)
    centre = _centre(source, call, (low, high), most) if group else 0
    return Statistic(
        kind="rows",
        low_steps=low,
        high_steps=high,
        lattice_exponent=COUNT_LATTICE_EXPONENT,
        value_sql=value_sql,
        filter_sql=call.filter_sql,
        group_bounds_steps=(low, high) if group else None,
        limit=Norm(most, centre),
    )


def _centre(source: AggregateSource, call: Call, bounds: tuple[int, int], most: int) -> int:
    """The middle of bounds per group, all in steps; 0 where values are not recentred.

    Raises:
        RefusedCallError: it is beyond the norm, so that who has less would be scaled down to about the middle.

    """
    middle = sum(bounds) // 2 if source.recentred else 0
    if abs(middle) > most:
        source.refuse(
            "bounds_invalid",
            call.node,
            "the middle of the bounds per group is beyond the norm.",
            "Name a larger contribution_norm, or leave contribution_bounds_per_group out.",
        )
    return middle


def sum_by_norm(source: AggregateSource, call: Call, bounds: CallBounds, *, missing: bool) -> Statistic:
    """The sum of values; of a call without a norm, that which its rows can have by the norm of their numbers.

    What neither says is left to AUTO.

    Raises:
        RefusedCallError: bounds are too far from 0 for it; why is noted.

    """
    value_sql, rules = finite_sql(to_sql(call.value), call.value_type), source.owner.rules
    norm, is_found = call.bounds.norm, False
    has_rows = rules.max_rows_norm or (rules.max_rows_per_unit and not source.finds_bounds)
    if not norm and bounds.per_row and has_rows:
        norm = max(map(abs, bounds.per_row)) * rows_norm(source, call, value_sql)
    elif not norm or norm == "AUTO":
        norm, is_found = _found_norm(source, call, "sum_norm", value_sql, bounds.per_row), True
    given = [pair for pair in (bounds.per_group, bounds.per_row) if pair]
    is_far = any(abs(bound) > _FARTHEST * norm for pair in given for bound in pair)
    if is_far and is_found:
        # whoever comes near such a bound is scaled down by the norm
        bounds = CallBounds()
    elif is_far or not SMALLEST_NORM <= norm <= 2.0**100:
        source.refuse(
            "bounds_invalid",
            call.node,
            "the norm is too small, too large, or too small for the other bounds.",
            "Shift or scale the value, as in sum(x - 1000000).",
        )
    exponent = norm_exponent(norm)
    most = steps_of(norm, exponent)
    row = in_steps(bounds.per_row, exponent) if bounds.per_row else None
    low, high = group = in_steps(bounds.per_group, exponent) if bounds.per_group else (-most, most)
    if bounds.per_group and missing:
        low, high = min(low, 0), max(high, 0)
    elif row and min(row) >= 0:
        low = max(low, 0)
    # what AUTO finds is for most people, whose middle may be far beyond a norm that somebody else names
    centre = _centre(source, call, (low, high), most) if bounds.per_group and not call.bounds.auto else 0
    return Statistic(
        kind="sum",
        low_steps=low,
        high_steps=high,
        lattice_exponent=exponent,
        value_sql=value_sql,
        filter_sql=call.filter_sql,
        row_bounds_steps=row,
        group_bounds_steps=group if bounds.per_group else None,
        limit=Norm(most, centre),
    )


def sum_beside_rows(value_sql: str, most_value: float, rows: Statistic) -> Statistic:
    """The sum of a number of each row, scaled down as these rows are.

    A unit's sum in a group is at most ``most_value`` times its rows there, and so is the norm over its groups.

    Args:
        value_sql: what is added up, NULL in the rows that are not counted.
        most_value: its largest size.
        rows: the number of rows, by its norm.

    """
    if not isinstance(rows.limit, Norm):
        raise AssertionError("these rows have a norm")
    most_rows = rows.limit.l2_steps
    exponent = norm_exponent(most_value * most_rows / _ROW_STEPS)
    row = steps_of(most_value, exponent)
    most = -(-row * most_rows // _ROW_STEPS)
    return Statistic(
        kind="sum",
        low_steps=-most,
        high_steps=most,
        lattice_exponent=exponent,
        value_sql=value_sql,
        filter_sql=rows.filter_sql,
        row_bounds_steps=(-row, row),
        limit=Norm(most, row_steps=most_rows),
    )
