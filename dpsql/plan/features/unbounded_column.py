"""Columns for which AUTO found no bounds: they are NULL, and nothing is noised or paid for them.

A text is charged for AUTO before its bounds are known, so it is answered whatever AUTO finds. A column without bounds
is planned as it was before AUTO was asked. Then its statistics are left out, and all others keep their levels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sqlglot import exp

from dpsql.model.estimates import NotFound, NoValue
from dpsql.model.frame import PRESENCE
from dpsql.model.private_query import FrameQuery
from dpsql.operations import blanks
from dpsql.plan.aggregates.arguments import Aggregate
from dpsql.plan.aggregates.moments import BLANK_BOUNDS
from dpsql.plan.aggregates.source import AggregateSource, BoundsNotFoundError
from dpsql.sql.clauses import NAMED_ARGUMENTS, function_name, with_bounds


def without_bounds(
    read: Callable[[AggregateSource], Aggregate], source: AggregateSource, refused: Exception, node: exp.Expr
) -> Aggregate:
    """Return an aggregate whose column is NULL, because the bounds that AUTO found cannot be used.

    Args:
        read: reads the call from a source.
        source: the source, with what AUTO found.
        refused: why the call could not be read with that.
        node: the call.

    Raises:
        RefusedCallError: the call is refused without these bounds, too.

    """
    not_found = refused.not_found if isinstance(refused, BoundsNotFoundError) else NotFound("range")
    aggregate = read(replace(source, found_bounds={}))
    return replace(aggregate, no_value=NoValue(aggregate.estimate.value, not_found, _cure(node)))


def _cure(node: exp.Expr) -> str:
    """Return the call with bounds, as text that may be pasted."""
    call = node.this.this if isinstance(node, exp.Window) else node
    call = (call.this if isinstance(call, exp.Filter) else call).copy()
    # an argument with a name may be listed in any place
    named = [one for one in call.find_all(exp.Kwarg, exp.PropertyEQ) if one.this.name.lower() in NAMED_ARGUMENTS]
    form = "per_row"
    for argument in named:
        if argument.this.name.lower() == "contribution_bounds_per_group":
            form = "per_group"
        if argument.this.name.lower() != "weight":
            argument.pop()
    if bounds := BLANK_BOUNDS.get(function_name(call) or ""):
        return with_bounds(call, bounds, form)
    return with_bounds(call, blanks.pair(blanks.SUMS if form == "per_group" else blanks.VALUES), form)


def left_out(query: FrameQuery) -> FrameQuery:
    """Return the query without the statistics that only columns without bounds would need."""
    needed = {linear.statistic or PRESENCE for one in query.estimates for linear in one.value.linears} | {PRESENCE}
    shares = list(zip(query.statistics, query.weights, strict=True))
    asked = [(one, weight) for one, weight in shares if (one.covered or one) in needed]
    return replace(
        query,
        statistics=tuple(one for one, _ in asked),
        weights=tuple(weight for _, weight in asked),
        unasked=tuple(one for one in shares if one not in asked),
    )
