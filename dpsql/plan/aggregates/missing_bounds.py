"""Bounds of one aggregate that neither policy nor text names, and that AUTO finds.

Only calls of a text whose missing bounds are left to AUTO (`AggregateSource.finds_bounds`) come here, and calls that
name AUTO. A bound that AUTO finds is a function of policy, text and stored points. No call is refused because of its
value: its histogram was charged before.
"""

from __future__ import annotations

from dpsql.model.frame import Statistic
from dpsql.operations.dialect import to_sql
from dpsql.plan.aggregates.arguments import Call, CallBounds
from dpsql.plan.aggregates.lattice import Bounds
from dpsql.plan.aggregates.source import AggregateSource, finite_sql
from dpsql.plan.aggregates.times import TIMES


def found_extremes(source: AggregateSource, call: Call, form: str, instead: Bounds | None = None) -> Bounds:
    """Return the bounds that AUTO found, or their stand-in; note that AUTO is asked.

    Args:
        source: what the call is of.
        call: the call.
        form: ``per_group`` for sums of a unit in a group, ``per_row`` for values of a row.
        instead: bounds of a row that follow from domains.

    Raises:
        BoundsNotFoundError: AUTO found nothing, and no domain says more.

    """
    asked = Statistic(
        kind="group_extremes" if form == "per_group" else "row_extremes",
        low_steps=1,
        high_steps=1,
        lattice_exponent=0,
        value_sql=finite_sql(to_sql(call.value), call.value_type),
        filter_sql=call.filter_sql,
    )
    return source.found(asked, call.name, instead)


def completed(source: AggregateSource, call: Call, bounds: CallBounds) -> CallBounds:
    """Return the bounds of a sum, average, spread or quantile with those that AUTO finds.

    Args:
        source: what the call is of.
        call: the call.
        bounds: the bounds that text and domains say. Bounds of dates and timestamps are not found.

    """
    if call.value_type in TIMES or bounds.per_group:
        return bounds
    has_rows = source.owner.rules.max_rows_per_group
    if call.function == "sum":
        if source.by_norm or bounds.per_row:
            return bounds
        form = "per_row" if has_rows else "per_group"
        return bounds.with_pair(form, found_extremes(source, call, form))
    if bounds.per_row:
        return bounds
    return bounds.with_pair("per_row", found_extremes(source, call, "per_row"))
