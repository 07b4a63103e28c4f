"""Questions for the largest counts by method = CORRELATED: what they go with, and their plan.

Each unit counts in all of its groups, and moves each count one way. So the keys must be public, no number of groups may
be bounded, and the answer has one count.
"""

from __future__ import annotations

from dataclasses import replace

from dpsql.model.estimates import UNITS, Estimate, Sum
from dpsql.model.frame import PRESENCE, Largest
from dpsql.model.private_query import FrameQuery
from dpsql.model.query_kinds import LargestWithin
from dpsql.model.refusals import refuse_combinations, that_hold
from dpsql.plan.features.relative_errors import cap_of, relative_error
from dpsql.plan.features.target_columns import place_of_options
from dpsql.sql.clauses import is_aggregate_call
from dpsql.sql.source.sources import SelectText

_COUNTED = ("rows", "units")
"""Kinds of statistics that one unit moves by whole numbers of rows, or of one unit, and in one direction."""
_MECHANISM = "correlated_gaussian"


def without_auto(text: SelectText) -> SelectText:
    """Return a text without max_groups_contributed = AUTO, as its method bounds no number of groups."""
    options = text.options
    if not options.method or options.max_groups_contributed != "AUTO":
        return text
    return replace(text, options=replace(options, max_groups_contributed=None))


def largest_within(query: FrameQuery, text: SelectText) -> LargestWithin:
    """Return the plan of a text with method = CORRELATED.

    Args:
        query: the plan of its counts by another method, with what constraints say of its rows.
        text: the query.

    Raises:
        UnsupportedQueryError: something in the text does not go with the method.

    """
    options, (estimate, *others) = text.options, query.estimates
    _check(query, text, has_one_count=not others and _is_count(estimate))
    counted = next((one.statistic for one in estimate.value.linears), None)
    part = replace(
        query,
        frame=replace(query.frame, mechanism=_MECHANISM, largest=Largest(counted) if counted else None),
        alternatives=(),
        statistics=(PRESENCE,),
        weights=(1.0,),
        estimates=(replace(estimate, value=UNITS),),
    )
    return LargestWithin((part,), relative_error(options, options.target_relative_error or 0.0), cap_of(options))


def _check(query: FrameQuery, text: SelectText, *, has_one_count: bool) -> None:
    """Refuse what does not go with the method.

    Raises:
        UnsupportedQueryError: with every reason.

    """
    options, select, finish = text.options, text.select, query.finish
    known = options.given | that_hold(
        {
            "no GROUP BY": not select.keys,
            "a bound on groups": query.frame.cuts_groups,
            "HAVING": select.having,
            "QUALIFY": select.qualify,
            "AUTO bounds": query.auto,
            "more than one count": not has_one_count,
            "rows of the smallest numbers": not (select.having or select.qualify)
            and _begins_with_smallest(query, text),
            "min_privacy_units_per_group beside rows": query.request.min_units > 1 and query.statistics != (PRESENCE,),
        }
    )
    bound = "max_groups_contributed" if options.max_groups_contributed else "method"
    count = next((one.name for one in finish.columns if one.estimate is not None), "n")
    place = place_of_options(text)
    refuse_combinations({"method = CORRELATED"}, known, place, text.refusals, bound=bound, count=count)
    text.refusals.raise_if_any()


def _is_count(estimate: Estimate) -> bool:
    """Check that an estimate is a count of units or rows that one unit moves in one direction."""
    if not isinstance(estimate.value, Sum):
        return False
    statistic = estimate.value.linear.statistic
    return statistic.kind in _COUNTED if statistic else estimate.value == UNITS


def _begins_with_smallest(query: FrameQuery, text: SelectText) -> bool:
    """Check that the rows of a text are others than those of the largest numbers, or begin with the smallest one."""
    top, order = query.finish.top, text.select.order
    if text.clauses.limit is not None or text.clauses.offset:
        return top is None or not top.is_largest or top.offset > 0
    return bool(order) and is_aggregate_call(order[0].this) and not order[0].args.get("desc")
