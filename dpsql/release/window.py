"""A window: a fixed grid of levels whose thresholds are charged together, with the first release of a frame.

Inside it every level has a threshold of its own, and asking for another level costs no further delta. The grid is
geometric, and a function of the window's two ends alone.
"""

from __future__ import annotations

import bisect
import math
from functools import lru_cache

from dpsql.accounting.window import window_delta, window_threshold
from dpsql.errors import CalibrationError
from dpsql.mechanisms.correlated_gaussian import effective_tau, threshold_to_compare
from dpsql.query.frame import NANO, Window
from dpsql.release.histogram import Histogram, IndependentHistogram

_LEVELS_PER_DOUBLING = 4
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
    steps = min(MOST_LEVELS - 1, max(1, math.ceil(_LEVELS_PER_DOUBLING * math.log2(high / low) - 1e-9)))
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
