"""Bounds of a sum that AUTO finds: post-processing of two noisy exponential histograms, of units' extreme values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpsql.query.auto import VALUE_BITS, VALUE_EXPONENT
from dpsql.release.auto_evidence import holds_most, sure_places

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_FURTHEST = VALUE_BITS + 1
PLACES = 2 * _FURTHEST + 1
"""Places of one histogram: 0 and, in both directions, one for each power of two."""
EXTREMES_L2 = np.sqrt(2.0).item()
"""One unit stands in one place of the largest values, and in one of the smallest."""


def placed(upper: npt.NDArray[np.bool_], place: Integers, units: Integers) -> Integers:
    """Number of units by the place of their largest value, lowest place first, then by that of their smallest."""
    totals = np.zeros(2 * PLACES, dtype=np.int64)
    np.add.at(totals, place + _FURTHEST + np.where(upper, 0, PLACES), units)
    return totals


def found_bounds(noisy: Floats, sigma: float) -> tuple[float, float] | None:
    """The interval between the lowest place of smallest values and the highest of largest that surely hold units.

    *Source*: Wilson et al. 2020, ApproxBounds, with Gaussian noise and a unit in one place of each histogram. A place
    passes where its noisy count exceeds tau; of 2 PLACES empty ones any passes with probability at most
    `FALSE_POSITIVE` (docs/proofs/auto.md).

    Returns: bounds that are powers of two or 0, the lower first; None where no place passes in one of both.
    """
    ends = _ends(noisy, sigma)
    if ends is None:
        return None
    # adding 0 makes of -0 what it is shown as
    low, high = 0.0 - _end(_FURTHEST - ends[0]), _end(ends[1] - _FURTHEST)
    if low >= high:
        # all that is sure is one value: room for what is next to it
        low, high = min(low, 0.0), max(high, 0.0)
    return (low, high) if low < high else (0.0, 2.0**VALUE_EXPONENT)


def sure_bounds(noisy: Floats, sigma: float) -> bool:
    """Whether there are bounds, and surely hold three quarters of the largest values and of the smallest."""
    ends = _ends(noisy, sigma)
    if ends is None:
        return False
    lowest, highest = ends
    upper, lower = noisy[:PLACES], noisy[PLACES:]
    sure_upper, sure_lower = (part[sure_places(part, sigma, 2 * PLACES)] for part in (upper, lower))
    return holds_most(sure_upper, upper[highest + 1 :], sigma) and holds_most(sure_lower, lower[:lowest], sigma)


def _ends(noisy: Floats, sigma: float) -> tuple[int, int] | None:
    """The lowest place that surely holds smallest values, and the highest of largest; None where one is missing."""
    highest, lowest = (
        np.flatnonzero(sure_places(part, sigma, 2 * PLACES)) for part in (noisy[:PLACES], noisy[PLACES:])
    )
    return (int(lowest[0]), int(highest[-1])) if highest.size and lowest.size else None


def _end(place: int) -> float:
    """Upper end of a place."""
    if place == 0:
        return 0.0
    return 2.0 ** (place - 1 + VALUE_EXPONENT) if place > 0 else -(2.0 ** (-place - 2 + VALUE_EXPONENT))
