"""Bounds of one aggregate that neither policy nor text names, and that AUTO finds.

Only calls of a text whose missing bounds are left to AUTO (`AggregateSource.finds_bounds`) come here, and calls that
name AUTO. A bound that AUTO finds is a function of policy, text and stored points. No call is refused because of its
value: its histogram was charged before.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from dpsql.model.estimates import NotFound, ValueBounds
from dpsql.model.frame import Statistic
from dpsql.operations.dialect import to_sql
from dpsql.plan.aggregates.arguments import Call, CallBounds
from dpsql.plan.aggregates.lattice import Bounds
from dpsql.plan.aggregates.source import AggregateSource, BoundsNotFoundError, finite_sql
from dpsql.plan.aggregates.times import TIMES

_BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}
_INTEGER = re.compile(r"(U?)(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)")
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")


def found_extremes(
    source: AggregateSource, call: Call, form: str, instead: Bounds | None = None, name: str = ""
) -> Bounds:
    """Return the bounds that AUTO found, or their stand-in; note that AUTO is asked.

    Args:
        source: what the call is of.
        call: the call.
        form: ``per_group`` for sums of a unit in a group, ``per_row`` for values of a row.
        instead: bounds of a row that follow from domains.
        name: what receipts call the values, if it is not the text of the call.

    Raises:
        BoundsNotFoundError: AUTO found nothing, and no domain says more.

    """
    return source.found(_extremes(call, form), name or call.name, instead)


def found_positive(source: AggregateSource, call: Call) -> Bounds:
    """Return the bounds of the values of a row that AUTO found, of an aggregate of values above 0.

    Args:
        source: what the call is of.
        call: the call.

    Raises:
        BoundsNotFoundError: AUTO found none, or such that values may be 0 or less.

    """
    low, high = found_extremes(source, call, "per_row")
    if low > 0.0:
        return low, high
    if _extremes(call, "per_row") in source.found_bounds:
        raise BoundsNotFoundError(NotFound("range"))
    # what stands for bounds that AUTO is yet to find is around 0
    return high / 2.0, high


def value_bounds(source: AggregateSource, call: Call, form: str, bounds: Bounds, usual: Bounds | None) -> ValueBounds:
    """Return the bounds of values with their origin.

    Args:
        source: the source of the call.
        call: the call.
        form: ``per_group`` for totals of a unit in a group, ``per_row`` for values of a row.
        bounds: the bounds that the call has.
        usual: bounds of a row that follow from its columns, if there are any.

    """
    asked = _extremes(call, form)
    is_found = asked in source.asked and source.found_bounds.get(asked) == bounds
    hold_all = form == "per_row" and usual is not None and bounds[0] <= usual[0] and usual[1] <= bounds[1]
    found = ValueBounds("row" if form == "per_row" else "group", bounds, asked if is_found else None, hold_all)
    return _with_sizes(found, call.value_type)


def _extremes(call: Call, form: str) -> Statistic:
    """Return the question of AUTO for the largest and smallest values of a call."""
    return Statistic(
        kind="group_extremes" if form == "per_group" else "row_extremes",
        low_steps=1,
        high_steps=1,
        lattice_exponent=0,
        value_sql=finite_sql(to_sql(call.value), call.value_type),
        filter_sql=call.filter_sql,
    )


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
    if call.adds_rows:
        if source.by_norm or bounds.per_row:
            return bounds
        form = "per_row" if has_rows else "per_group"
        return bounds.with_pair(form, found_extremes(source, call, form))
    if bounds.per_row:
        return bounds
    return bounds.with_pair("per_row", found_extremes(source, call, "per_row"))


def _with_sizes(bounds: ValueBounds, value_type: str) -> ValueBounds:
    """Return bounds of values with the range and the least size that their type says.

    Totals of a unit have no range but a sign, and are whole numbers if all values are.

    >>> found = _with_sizes(ValueBounds("row", (0.0, 1.0), None), "UTINYINT")
    >>> found.possible, found.least_size
    ((0.0, 256.0), 1.0)

    Args:
        bounds: of the value of a row, or of the total of a unit in a group.
        value_type: the type of the value of a row.

    """
    integer, decimal = _INTEGER.fullmatch(value_type), _DECIMAL.fullmatch(value_type)
    if integer:
        high = 2.0 ** (_BITS[integer[2]] - (0 if integer[1] else 1))
        low, least = 0.0 if integer[1] else -high, 1.0
    elif decimal:
        digits, scale = int(decimal[1]), int(decimal[2])
        high = 10.0 ** (digits - scale)
        low, least = -high, 10.0**-scale
    else:
        return bounds
    if bounds.form != "row":
        # rounded parts of a total may add up to less than its least digit
        low, high, least = low and -math.inf, math.inf, least if least == 1.0 else 0.0
    return replace(bounds, possible=(low, high), least_size=least)
