"""Stand-ins for what AUTO is yet to find: the bounds with the most noise, and those with the least share of rho."""

from __future__ import annotations

import math

from dpsql.model.estimates import NotFound
from dpsql.model.private_query import AutoBounds, FrameQuery

_LARGEST = math.nextafter(2.0, 0.0)
"""A lattice has as many steps for a bound as it can have if the bound is just below a power of two."""
STAND_INS = ((-_LARGEST, _LARGEST), (0.0, _LARGEST), (1.0, 2.0))
"""Bounds on both sides of 0, on one side, and away from it; shares of rho are the least for the last."""
USUAL_ROWS = 256.0
"""A norm of rows that is priced before AUTO is charged: noise for it can be drawn, or the query is refused."""
ROWS = (-USUAL_ROWS, USUAL_ROWS)
"""A norm of numbers of rows: the lattice of a sum has as many steps for so many rows of a unit as it can have. If AUTO
finds more, noise can be drawn for it, or the column is NULL (`auto_undrawable`)."""
TOO_WIDE = NotFound("noise")
"""A norm of rows that is too large for a level, so that its column is NULL."""


def has_unknown_bounds(part: FrameQuery) -> bool:
    """Check whether AUTO may find a larger bound than the plan has: it is not found yet, or a stand-in for one."""
    # a norm for ratios follows from the histogram of groups, too
    waits = part.is_open and any(isinstance(asked, AutoBounds) and asked.is_norm for asked in part.auto)
    return waits or any(
        isinstance(asked, AutoBounds) and (not level.is_stored or asked.bounds in (ROWS, TOO_WIDE))
        for asked, level in zip(part.auto, part.auto_levels, strict=True)
    )
