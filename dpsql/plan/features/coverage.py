"""Statistics of what bounding leaves out, beside those of a frame.

Of a count of rows, or a sum of values from 0 on, that is one number: how much is left out of the shown groups
(docs/proofs/left-out.md). Of all others it is a histogram of units over places that are the same for every table, a
unit in one of them (docs/proofs/coverage.md). Together they get one part in 32 of a query's rho.
"""

from __future__ import annotations

from dataclasses import replace

from dpsql.model.frame import PRESENCE, Norm, Statistic
from dpsql.model.private_query import FrameQuery
from dpsql.model.statistic_kinds import StatisticKind

COVERAGE_PARTS = 32
"""They get one part in so many of a query's rho."""
_COVERAGE: dict[str, StatisticKind] = {
    "presence": "presence_coverage",
    "rows": "rows_coverage",
    "sum": "sum_coverage",
}
_LEFT_OUT: dict[str, StatisticKind] = {"rows": "rows_left_out", "sum": "sum_left_out"}


def coverage_of(covered: Statistic) -> Statistic:
    """Return the histogram of units by what bounding leaves of them in a statistic."""
    return replace(covered, kind=_COVERAGE[covered.kind])


def with_coverage(query: FrameQuery) -> FrameQuery:
    """Return the query with what bounds leave out of its numbers; itself if they leave nothing out.

    A frame that adds up the groups of a finer one bounds nothing by itself.
    """
    found = _bounded(query)
    if not found:
        return query
    share, named = 1.0 / COVERAGE_PARTS, {one.covered for one in query.estimates}
    weights = tuple((1.0 - share) * weight for weight in query.weights)
    beside = (
        replace(one, kind=_LEFT_OUT[one.kind]) if one in named and _is_counted_out(one) else coverage_of(one)
        for one in found
    )
    return replace(
        query,
        statistics=(*query.statistics, *beside),
        weights=(*weights, *(share / len(found) for _ in found)),
    )


def _bounded(query: FrameQuery) -> tuple[Statistic, ...]:
    """Return the statistics of which a bound can leave something out: sums, rows, and units in several groups."""
    if not query.frame.is_measured:
        return ()
    cuts_groups = query.frame.cuts_groups
    named = {one.covered for one in query.estimates if one.covered}
    found = tuple(
        one
        for one in sorted(named.union(query.statistics) - {PRESENCE}, key=repr)
        if not one.is_raised
        if one.kind == "sum" or (one.kind == "rows" and (one.limit or one.group_bounds_steps or cuts_groups))
    )
    return (PRESENCE, *found) if cuts_groups and (PRESENCE in named or not found) else found


def _is_counted_out(covered: Statistic) -> bool:
    """Return whether a bound keeps no more of a unit than there is, so that what it leaves out is one number.

    A norm with a centre scales values below the centre up towards it (docs/proofs/left-out.md, Lemma 2).
    """
    has_centre = isinstance(covered.limit, Norm) and bool(covered.limit.centre_steps)
    return covered.kind in _LEFT_OUT and not covered.is_signed and not has_centre
