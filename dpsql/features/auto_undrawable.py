"""Norms of rows that AUTO finds and that are too large for the level of a query: their columns are NULL.

The histogram was charged before its norm is known, so the query is answered all the same. A lattice of a sum follows
its bounds. That of a number of rows does not, so only a norm of rows can need more noise than can be drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from dpsql.cascade.reader import Reader
from dpsql.errors import AccessError, CalibrationError
from dpsql.features.auto_price import USUAL_ROWS, may_come
from dpsql.features.kinds import kind_of
from dpsql.mechanism.calibrate import calibrate
from dpsql.mechanism.registry import histogram_of
from dpsql.model.estimates import NotFound
from dpsql.model.frame import Statistic
from dpsql.model.private_query import FoundBounds, FrameQuery, PrivateQuery
from dpsql.state import State


def large_norms(found: FoundBounds) -> list[Statistic]:
    """Return the norms of rows above `USUAL_ROWS` that AUTO found, the largest first."""
    rows = {one: bounds[1] for one, bounds in found.items() if one.kind == "rows_norm" and isinstance(bounds, tuple)}
    large = [one for one, norm in rows.items() if norm > USUAL_ROWS]
    return sorted(large, key=lambda one: (rows[one], repr(one)), reverse=True)


def without_undrawable(
    query: PrivateQuery, plan: Callable[[FoundBounds], PrivateQuery], found: FoundBounds, state: State, reader: Reader
) -> PrivateQuery:
    """Return the plan without the columns whose noise cannot be drawn.

    The largest norm is left out first, then the next one, until all noise can be drawn. If that never happens, the
    query is refused for another reason, and its plan is returned as it is.

    Args:
        query: the plan by all that AUTO found, bound to the reader.
        plan: plans and binds the text by other bounds.
        found: what AUTO found.
        state: the state file.
        reader: who asks.

    """
    planned, left = query, dict(found)
    for norm in large_norms(found):
        if _can_be_drawn(planned, state, reader):
            return planned
        left[norm] = NotFound("noise")
        planned = plan(left)
    return planned if _can_be_drawn(planned, state, reader) else query


def _can_be_drawn(query: PrivateQuery, state: State, reader: Reader) -> bool:
    """Check that the noise of each statistic can be drawn at its level."""
    try:
        for part in _released(query, state, reader):
            calibrate(part, histogram_of(part.frame))
    except (AccessError, CalibrationError):
        return False
    return True


def _released(query: PrivateQuery, state: State, reader: Reader) -> Iterator[FrameQuery]:
    """Yield the parts whose statistics are noised, at their levels and with the numbers of groups that may come."""
    options = may_come(query.first) if query.first.is_open else (query.first,)
    for option in (options[0], *options[1:][-1:]):
        parts = (option, *query.parts[1:])
        yield kind_of(query).noised(replace(query, parts=parts), state, reader)
