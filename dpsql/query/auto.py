"""``max_groups_contributed = AUTO``: the question that is asked of the data first, and the numbers that may come of it.

How many groups each unit is in is counted in a histogram over a fixed grid. A unit is in one place of it, so its
sensitivity is 1, and it is released before the frame is known whose max_groups it decides.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from dpsql.query.bound import listed_sql, rows_sql, source_sql
from dpsql.query.private_query import AutoGroups, Frame, PrivateQuery, PublicKeys, Statistic

MOST_GROUPS = 1024
"""Most groups that AUTO chooses for private keys: more need noise so wide that they should be named."""

_COUNTED = 2
"""With ``bounding = L2`` a unit counts in at most this many times max_groups groups: more would raise the threshold
for what is lost of very few units (docs/accuracy.md)."""
_STEPS_PER_DOUBLING = 4

GROUPS = Statistic(kind="groups", low_steps=1, high_steps=1, lattice_exponent=0)
"""Units by the number of groups that they are in."""


def counted_groups(max_groups: int, public: PublicKeys | None) -> int | None:
    """Most groups in which a unit counts with a weight; None where it counts fully in all that it may have."""
    counted = _COUNTED * max_groups if public is None else min(_COUNTED * max_groups, public.count)
    return counted if counted > max_groups else None


@lru_cache(maxsize=64)
def candidates(most: int) -> tuple[int, ...]:
    """The numbers that AUTO chooses from, and the ends of the places of its histogram.

    >>> candidates(20)
    (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20)
    """
    found, step = [1], 1
    while found[-1] < most:
        if found[-1] >= 2 * _STEPS_PER_DOUBLING * step:
            step *= 2
        found.append(min(found[-1] + step, most))
    return tuple(found)


def auto_groups(frame: Frame, *, weighted: bool) -> AutoGroups:
    """The question for a frame."""
    most = MOST_GROUPS if frame.public_keys is None else min(MOST_GROUPS, frame.public_keys.count)
    asked = replace(
        frame,
        max_groups=None,
        counted_groups=None,
        sparsity=None,
        minimum_units=1,
        mechanism="gaussian",
        window=None,
        ceiling=None,
        generation=0,
        factorised=None,
    )
    return AutoGroups(asked, candidates(most), weighted)


def with_max_groups(query: PrivateQuery, auto: AutoGroups, max_groups: int) -> PrivateQuery:
    """The query on the frames that have this number of groups."""
    counted = counted_groups(max_groups, query.frame.public_keys) if auto.weighted else None
    frame, *others = (
        replace(frame, max_groups=max_groups, counted_groups=counted) for frame in (query.frame, *query.alternatives)
    )
    return replace(query, frame=frame, alternatives=tuple(others), auto=auto)


def group_counts_sql(frame: Frame) -> str:
    """SQL for the number of units by their number of groups: columns groups and units (BIGINT), in no order."""
    keys = ", ".join(f"key_{i}" for i in range(len(frame.keys)))
    rows = listed_sql("rows", frame) if frame.public_keys is not None else "rows"
    return (
        f"WITH source AS ({source_sql(frame, [])}),\n"
        f"rows AS ({rows_sql(frame, [])}),\n"
        f"per_group AS (SELECT unit, {keys} FROM {rows} WHERE unit IS NOT NULL GROUP BY unit, {keys}),\n"
        "per_unit AS (SELECT count(*) AS groups FROM per_group GROUP BY unit)\n"
        "SELECT groups, count(*) AS units FROM per_unit GROUP BY groups"
    )
