"""The levels at which points are made that nobody pays for: a fixed grid, a function of nothing but constants.

Whoever asks below the top of a cascade is served from this grid, so that requests which cost nothing can neither fill a
cascade nor choose a level for anyone else. A window's count of units has the window's own levels.
"""

from __future__ import annotations

import bisect

from dpsql.query.frame import NANO, Window
from dpsql.release.window import grid

_FINE = (100, 120, 150, 180, 200, 250, 300, 350, 400, 500, 600, 700, 800, 900)
"""Of each power of ten from 1e-6 to 100, in hundredths: what people ask for, and no step above 1.25."""
_COARSE = (100, 200, 500)
_LARGEST_NANO = 2**63 - 1
_FINE_FROM, _FINE_TO = NANO // 10**6, 100 * NANO
MOST_WINDOW_LEVELS = 128
"""Levels of a window that are all served for nothing; of a wider one every fifth is."""
_WIDE_STEP = 5


def _free_levels() -> tuple[int, ...]:
    found, power = [], 1
    while power <= _LARGEST_NANO:
        steps = _FINE if _FINE_FROM <= power < _FINE_TO else _COARSE
        found += [level for step in steps if (level := power * step // 100) <= _LARGEST_NANO]
        power *= 10
    return tuple(found)


FREE_LEVELS = _free_levels()
"""In nano-rho, lowest first: from one unit of account to the highest level that can be stored."""


def free_level(rho_nano: int, window: Window | None = None) -> int:
    """The highest level of the grid that is not above a level asked for.

    Args:
        rho_nano: asked for; in a window one of its levels.
        window: of a count of units with private keys; None for every other statistic.

    >>> free_level(200_000_000), free_level(199_999_999), free_level(1)
    (200000000, 180000000, 1)
    """
    levels = FREE_LEVELS if window is None else _window_levels(window)
    return levels[bisect.bisect_right(levels, rho_nano) - 1]


def is_free_level(rho_nano: int, window: Window | None = None) -> bool:
    """Whether a level is one of the grid."""
    return free_level(rho_nano, window) == rho_nano


def _window_levels(window: Window) -> tuple[int, ...]:
    levels = grid(window)
    return levels if len(levels) <= MOST_WINDOW_LEVELS else levels[::_WIDE_STEP]
