"""Grids of levels: that of a window, whose thresholds are charged together, and that of levels which nobody pays for.

A window is charged with the first release of a frame. Inside it every level has a threshold of its own, and asking for
another level costs no further delta. The grid is geometric, and a function of the window's two ends alone.

The levels at which points are made that nobody pays for are a function of nothing but constants. Whoever asks below the
top of a cascade is served from them, so that requests which cost nothing can neither fill a cascade nor choose a level
for anyone else. A window's count of units has the window's own levels.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from functools import lru_cache

from dpsql.accounting.window import window_delta, window_threshold
from dpsql.errors import CalibrationError
from dpsql.mechanism.histogram import Histogram
from dpsql.mechanism.independent_gaussian import IndependentHistogram
from dpsql.model.frame import NANO, Window
from dpsql.noise.correlated_gaussian import effective_tau, threshold_to_compare

LEVELS_PER_DOUBLING = 4
MOST_LEVELS = 256
THRESHOLD_SHARE = 0.99
"""Part of a window's delta that thresholds may cost; the rest is room for the draws' imprecision at its levels.

A share of what the window names, and of nothing else that a query asks for: later levels stand on what the first paid.
"""


@lru_cache(maxsize=1024)
def grid(window: Window) -> tuple[int, ...]:
    """The levels of a window in nano-rho, lowest first; both ends are among them.

    >>> grid(Window(10**8, 2 * 10**8, 1e-6))
    (100000000, 118920711, 141421356, 168179283, 200000000)
    """
    low, high = window.low, window.high
    steps = min(MOST_LEVELS - 1, max(1, math.ceil(LEVELS_PER_DOUBLING * math.log2(high / low) - 1e-9)))
    inner = {math.floor(low * (high / low) ** (step / steps)) for step in range(1, steps)}
    return tuple(sorted({low, high} | inner))


def snapped(window: Window, rho_nano: int) -> int:
    """The highest level of a window that is not above a level asked for.

    Raises:
        CalibrationError: the window begins above it.

    """
    levels = grid(window)
    place = bisect.bisect_right(levels, rho_nano)
    if not place:
        raise CalibrationError(
            f"the count of units is asked for at rho = {rho_nano / NANO:.3g}, below the window's "
            f"{levels[0] / NANO:.3g}; ask for more rho, or for no window"
        )
    return levels[place - 1]


@lru_cache(maxsize=1024)
def window_taus(histogram: Histogram, window: Window) -> tuple[float, ...]:
    """Thresholds, as they are compared with, of all levels: together they cost at most their share of its delta.

    *Guarantee*: for independent noise the probability that a unit alone in its keys has any of them shown at any level
    of the grid, exactly (`accounting.window`); with a common term, which shown counts betray, the union bound.
    """
    delta = window.delta * THRESHOLD_SHARE
    levels = [rho_nano / NANO for rho_nano in grid(window)]
    if isinstance(histogram, IndependentHistogram):
        score = window_threshold(delta, levels, max_groups=histogram.unit_groups)
        return tuple(threshold_to_compare(score * histogram.sigma(rho), 0.0) for rho in levels)
    taus = [histogram.threshold(delta / len(levels), histogram.sigma(rho)) for rho in levels]
    return tuple(tau for tau in taus if tau is not None)


@lru_cache(maxsize=1024)
def charged_delta(histogram: Histogram, window: Window) -> float:
    """What the first release of a window pays for its thresholds, rounded up."""
    levels = [rho_nano / NANO for rho_nano in grid(window)]
    taus = window_taus(histogram, window)
    if isinstance(histogram, IndependentHistogram):
        compared = [effective_tau(tau, 0.0) for tau in taus]
        return window_delta(levels, compared, max_groups=histogram.unit_groups)
    parts = [histogram.threshold_delta(histogram.sigma(rho), tau) for rho, tau in zip(levels, taus, strict=True)]
    return min(1.0, math.nextafter(math.fsum(parts), math.inf))


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
    levels = _levels_of(window)
    return levels[bisect.bisect_right(levels, rho_nano) - 1]


def free_level_above(rho_nano: int, window: Window | None = None) -> int:
    """Return the lowest level of the grid that is not below a level, or the highest of all if there is none.

    Args:
        rho_nano: in a window one of its levels.
        window: of a count of units with private keys; None for every other statistic.

    >>> free_level_above(200_000_000), free_level_above(180_000_001), free_level_above(1)
    (200000000, 200000000, 1)
    """
    levels = _levels_of(window)
    return levels[min(bisect.bisect_left(levels, rho_nano), len(levels) - 1)]


def _levels_of(window: Window | None) -> Sequence[int]:
    """Return the levels of the grid, lowest first."""
    if window is None:
        return FREE_LEVELS
    levels = grid(window)
    return levels[::_WIDE_STEP] if len(levels) > MOST_WINDOW_LEVELS else levels


def is_free_level(rho_nano: int, window: Window | None = None) -> bool:
    """Whether a level is one of the grid."""
    return free_level(rho_nano, window) == rho_nano
