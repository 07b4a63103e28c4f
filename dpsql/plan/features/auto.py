"""AUTO: the questions that are asked of the data first, and what may come of them.

For ``max_groups_contributed`` units are counted by the number of groups that they are in, for bounds by their largest
and by their smallest value, for a norm by that of all that they have, all over fixed grids. A unit is in one place of
each histogram, and they are released before the frame, or the lattice of a sum, is known that they decide.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from dpsql.model.frame import Bounding, Frame, Statistic
from dpsql.model.private_query import AutoGroups, FoundBounds, FrameQuery
from dpsql.model.rows import PublicKeys

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


def bounded_by_norm(bounding: Bounding, key_count: int | None, max_rows: int | None) -> Bounding:
    """The same where a norm bounds what a unit adds.

    Args:
        bounding: with a number of groups, or None where that is refused.
        key_count: how many keys there are at most; None for any number.
        max_rows: most rows of a unit that are read; None for any number.

    """
    if not (most := bounding.max_groups):
        return bounding
    most = min(most, max_rows or most)
    # also where all weights are 1, exact values are read in steps of the noise
    counted = min(one for one in (_COUNTED * most, key_count, max_rows) if one)
    return replace(bounding, max_groups=most, counted_groups=counted, by_norm=True, max_rows=max_rows)


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


def asked_frame(frame: Frame) -> Frame:
    """The frame as AUTO asks of it: rows, keys, unit and version, and nothing that a query may still vary."""
    bounding = Bounding(max_groups=None, finer=frame.bounding.finer)
    return Frame(frame.rows, frame.rows_sql, bounding, frame.keys, frame.public_keys)


def auto_groups(frame: Frame, found: FoundBounds, *, weighted: bool) -> AutoGroups:
    """The question for a frame; with its answer where that decided how the text is planned."""
    most = MOST_GROUPS if frame.public_keys is None else min(MOST_GROUPS, frame.public_keys.count)
    groups = found.get(GROUPS)
    chosen = round(groups[1]) if isinstance(groups, tuple) else None
    return AutoGroups(asked_frame(frame), candidates(most), weighted, chosen)


def with_max_groups(query: FrameQuery, auto: AutoGroups, max_groups: int) -> FrameQuery:
    """The query on the frames that have this number of groups."""
    counted = counted_groups(max_groups, query.frame.public_keys) if auto.weighted else None
    frame, *others = (
        replace(frame, bounding=replace(frame.bounding, max_groups=max_groups, counted_groups=counted))
        for frame in (query.frame, *query.alternatives)
    )
    if frame.bounding.by_norm:
        frame = replace(frame, bounding=bounded_by_norm(frame.bounding, frame.key_count, frame.bounding.max_rows))
    return replace(query, frame=frame, alternatives=tuple(others))
