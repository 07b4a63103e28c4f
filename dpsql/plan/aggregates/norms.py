"""Statistics that are bounded over all groups of a unit together, in the l2 norm (``bounding = NORM``).

Gaussian noise has to hide the l2 norm of all that a unit adds, and nothing else. Bounds on each group and on their
number pay for the unit that has most in every one of them; a norm pays for what people have. What is noised is the
values less a centre, scaled down as a whole where their norm is larger. Of an average both parts are scaled down by one
factor, that of the rows, or their quotient would be no mean of rows.

*Guarantee*, *Source*: docs/proofs/norm.md, Theorem 1.
"""

from __future__ import annotations

import math
from typing import NoReturn

from dpsql.model.frame import COUNT_LATTICE_EXPONENT, Norm, Statistic
from dpsql.model.refusals import refuse_combinations
from dpsql.operations.dialect import to_sql
from dpsql.plan.aggregates.arguments import Call, CallBounds
from dpsql.plan.aggregates.lattice import MOST_ROWS, Bounds, in_steps, norm_exponent, steps_of
from dpsql.plan.aggregates.source import AggregateSource, RefusedCallError, finite_sql

_ROW_STEPS = 2**-COUNT_LATTICE_EXPONENT
_FARTHEST = 2.0**16
"""Bounds lie within this many norms of 0, so that they are exact numbers of steps."""


def rows_norm(source: AggregateSource, call: Call) -> float:
    """Most norm of a unit's numbers of rows: what call or policy says, and no more than the rows that are read of it.

    Raises:
        RefusedCallError: neither says anything, or it is no such number; why is noted.

    """
    rules = source.owner.rules
    bounds = (call.bounds.norm or rules.max_rows_norm, rules.max_rows_per_unit)
    most = min((one for one in bounds if one), default=0.0)
    if not most:
        source.refuse(
            "bounds_missing", call.node, f"{call.name} has no bound on the norm of one unit's rows over its groups.",
            "Write contribution_norm => 14 in it, or declare max_rows_norm := 14 or max_rows_per_unit := 40 in "
            f"CALL dp_protect('{source.schema.canonical}', …).",
        )  # fmt: skip
    if not 1.0 <= most <= MOST_ROWS:
        source.refuse(
            "bounds_invalid", call.node, f"a norm of rows is a number from 1 to {MOST_ROWS:,}.",
            "Write contribution_norm => 14.",
        )  # fmt: skip
    return most


def refuse_by_norm(source: AggregateSource, call: Call) -> NoReturn:
    """Refuse a call whose values are not scaled down."""
    things = {"count(DISTINCT x) or quantiles", "bounding = NORM"}
    refuse_combinations(things, things, call.node, source.refusals)
    raise RefusedCallError


def rows_by_norm(source: AggregateSource, call: Call, value_sql: str, group: Bounds | None) -> Statistic:
    """The number of rows, in each group first clamped to bounds if there are any, and recentred to their middle."""
    most = math.floor(rows_norm(source, call) * _ROW_STEPS)
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
            "bounds_invalid", call.node, "the middle of the bounds per group is beyond the norm.",
            "Name a larger contribution_norm, or leave contribution_bounds_per_group out.",
        )  # fmt: skip
    return middle


def sum_by_norm(source: AggregateSource, call: Call, bounds: CallBounds, *, missing: bool) -> Statistic:
    """The sum of values; of a call without a norm, that which its rows can have by the norm of their numbers.

    Raises:
        RefusedCallError: there is none, or bounds are too far from 0 for it; why is noted.

    """
    norm = call.bounds.norm
    if not norm:
        if bounds.per_group or not bounds.per_row:
            source.refuse(
                "bounds_missing", call.node, f"{call.name} has no bound on the norm of one unit's sums.",
                "Write contribution_norm => 500 in it, or bound its rows.",
            )  # fmt: skip
        norm = max(map(abs, bounds.per_row)) * rows_norm(source, call)
    given = [pair for pair in (bounds.per_group, bounds.per_row) if pair]
    if not 2.0**-60 <= norm <= 2.0**100 or any(abs(bound) > _FARTHEST * norm for pair in given for bound in pair):
        source.refuse(
            "bounds_invalid", call.node, "the norm is too small, too large, or too small for the other bounds.",
            "Shift or scale the value, as in sum(x - 1000000, …).",
        )  # fmt: skip
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
        value_sql=finite_sql(to_sql(call.value), call.value_type),
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
