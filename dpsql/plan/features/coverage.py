"""Coverage: what bounding leaves of the units, asked for as further statistics of a frame.

Each is a histogram of units over places that are the same for every table, a unit in one of them. Together they get one
part in 32 of a query's rho (docs/proofs/coverage.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from dpsql.model.frame import PRESENCE, Frame, Statistic
from dpsql.model.private_query import FrameQuery

COVERAGE_PARTS = 32
"""Coverage gets one part in so many of a query's rho."""
_KINDS: dict[str, Literal["presence_coverage", "rows_coverage", "sum_coverage"]] = {
    "presence": "presence_coverage",
    "rows": "rows_coverage",
    "sum": "sum_coverage",
}


def coverage_of(covered: Statistic) -> Statistic:
    """The histogram of units by what bounding leaves of them in a statistic."""
    for kind, of_kind in _KINDS.items():
        if covered.kind == kind:
            return replace(covered, kind=of_kind)
    raise AssertionError("nothing is left out of this statistic")


def with_coverage(query: FrameQuery) -> FrameQuery:
    """The query with coverage of the numbers that a bound can make smaller; itself where there are none.

    A frame that adds up the groups of a finer one bounds nothing by itself.
    """
    found = _bounded(query)
    if not found:
        return query
    share = 1.0 / COVERAGE_PARTS
    weights = tuple((1.0 - share) * weight for weight in query.weights)
    return replace(
        query,
        statistics=(*query.statistics, *map(coverage_of, found)),
        weights=(*weights, *(share / len(found) for _ in found)),
    )


def _bounded(query: FrameQuery) -> tuple[Statistic, ...]:
    """Statistics of which a bound can leave something out: sums, numbers of rows, and units in several groups."""
    if not query.frame.is_measured:
        return ()
    cuts_groups = _cuts_groups(query.frame)
    named = {one.covered for one in query.estimates if one.covered}
    found = tuple(
        one
        for one in sorted(named.union(query.statistics) - {PRESENCE}, key=repr)
        if not one.is_raised
        if one.kind == "sum" or (one.kind == "rows" and (one.limit or one.group_bounds_steps or cuts_groups))
    )
    return (PRESENCE, *found) if cuts_groups and (PRESENCE in named or not found) else found


def _cuts_groups(frame: Frame) -> bool:
    """Whether a unit may have more groups than it may count in."""
    most, count = frame.bounding.max_groups, frame.key_count
    return bool(frame.keys) and (count is None or (most or count) < count)
