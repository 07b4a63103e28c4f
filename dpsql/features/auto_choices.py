"""The public formulas by which AUTO chooses: what a noisy histogram says of units, and a number of groups or bounds.

What is chosen by a noisy histogram is post-processing. docs/proofs/auto.md says when a histogram says enough for a
choice that later queries keep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsql.accounting.profile import smallest_threshold
from dpsql.accounting.sparse_histogram import SparseProfile
from dpsql.bound.value_steps import VALUE_BITS, VALUE_EXPONENT
from dpsql.plan.features.auto import counted_groups

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

FALSE_POSITIVE = 1e-6
"""Probability that noise alone makes any place without units count as one that surely holds some."""
_MOST_LEFT_OUT = 0.25
_FURTHEST = VALUE_BITS + 1
PLACES = 2 * _FURTHEST + 1
"""Places of one histogram of values: 0 and, in both directions, one for each power of two."""
EXTREMES_L2 = np.sqrt(2.0).item()
"""One unit stands in one place of the largest values, and in one of the smallest."""
_EMPTY = 4.0
"""Places whose noisy count is below so many standard deviations are taken as empty: far out, noise would weigh much."""
WIDEST = 8
"""Most places that are added up to one where others are known to hold units: of norms up to four times as large."""
LIKELY = 0.1
"""Where no place surely holds units, noise alone may pass for some of usual ones with this probability: the choice does
not last."""
_USUAL_GROUPS = 16
"""In up to so many groups most units are in most tables."""
_EULER = 0.5772156649015329
MEAN_NOISE = math.sqrt(2.0 / math.pi)
"""Mean size of Gaussian noise over its standard deviation."""
TYPICAL_GROUPS = 8
"""In how many groups a unit is taken to be that may be in more."""


def sure_places(noisy: Floats, sigma: float, places: int, probability: float = FALSE_POSITIVE) -> npt.NDArray[np.bool_]:
    """Which places surely hold units: of so many empty ones, any is among them with at most the probability."""
    profile = SparseProfile(max_groups=places, sigma=sigma)
    passed: npt.NDArray[np.bool_] = noisy > smallest_threshold(profile, probability)
    return passed


def held_units(noisy: Floats, sigma: float, probability: float = FALSE_POSITIVE) -> Floats:
    """Units in each place, 0 where none are known of; of empty places any passes with at most about the probability.

    A place that does not surely hold units by itself is added up with neighbours, by two, four and eight, and by more
    where nothing else is known; what they surely hold together is spread evenly over them.
    """
    units, left, width = np.zeros_like(noisy), np.ones(len(noisy), dtype=np.bool_), 1
    while width < 2 * len(noisy) and (width <= WIDEST or left.all()):
        block = np.arange(len(noisy)) // width
        free = np.bincount(block, left)
        total = np.bincount(block, np.where(left, noisy, 0.0))
        each = total / np.sqrt(np.maximum(free, 1.0))
        passed = sure_places(each, sigma, len(free), probability) & (free > 0)
        found = left & passed[block]
        units[found] = (total / np.maximum(free, 1.0))[block][found]
        left &= ~found
        width *= 2
    return units


def holds_most(inside: Floats, outside: Floats, sigma: float) -> bool:
    """Whether places inside a choice hold three quarters of the units, by noisy counts.

    What lies outside is taken one standard deviation of its noise higher than it seems.
    """
    most_outside = max(float(outside.sum()), 0.0) + sigma * math.sqrt(len(outside))
    return (1.0 - _MOST_LEFT_OUT) * most_outside <= _MOST_LEFT_OUT * float(inside.sum())


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
    if not ends:
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
    if not ends:
        return False
    lowest, highest = ends
    upper, lower = noisy[:PLACES], noisy[PLACES:]
    sure_upper, sure_lower = (part[sure_places(part, sigma, 2 * PLACES)] for part in (upper, lower))
    return holds_most(sure_upper, upper[highest + 1 :], sigma) and holds_most(sure_lower, lower[:lowest], sigma)


def _ends(noisy: Floats, sigma: float) -> tuple[int, int] | tuple[()]:
    """The lowest place that surely holds smallest values, and the highest of largest; empty where one is missing."""
    highest, lowest = (
        np.flatnonzero(sure_places(part, sigma, 2 * PLACES)) for part in (noisy[:PLACES], noisy[PLACES:])
    )
    return (int(lowest[0]), int(highest[-1])) if highest.size and lowest.size else ()


def _end(place: int) -> float:
    """Upper end of a place."""
    if place == 0:
        return 0.0
    return 2.0 ** (place - 1 + VALUE_EXPONENT) if place > 0 else -(2.0 ** (-place - 2 + VALUE_EXPONENT))


def binned(groups: Integers, units: Integers, ends: Sequence[int]) -> Integers:
    """Number of units in each place: the last number of groups in it is its end; beyond the last end is its own."""
    places = np.minimum(np.searchsorted(np.asarray(ends), groups), len(ends) - 1)
    totals = np.zeros(len(ends), dtype=np.int64)
    np.add.at(totals, places, units)
    return totals


def sure_groups(noisy: Floats, sigma: float) -> bool:
    """Whether the places that surely hold units hold three quarters of all of them.

    A histogram of noise alone does with probability at most `FALSE_POSITIVE`.
    """
    sure = sure_places(noisy, sigma, len(noisy))
    return bool(sure.any()) and holds_most(noisy[sure], noisy[~sure], sigma)


@dataclass(frozen=True, slots=True)
class Expected:
    """Noise of a count at some max_groups, and what its threshold leaves out; None without a threshold."""

    sigma: float
    threshold: float | None


def held_groups(noisy: Floats, sigma: float, ends: Sequence[int]) -> tuple[Floats, Floats] | None:
    """Return units, and the middle of the numbers of groups, of places that are likely to hold some; None without any.

    Where no place by itself holds units, neighbouring ones are added up.

    Args:
        noisy: number of units in each place, in units.
        sigma: its noise.
        ends: last number of groups of each place.

    """
    units, last = np.where(noisy > _EMPTY * sigma, noisy, 0.0), np.asarray(ends, dtype=np.float64)
    if not units.any():
        units = held_units(noisy, sigma)
    if not units.any():
        units[last <= _USUAL_GROUPS] = held_units(noisy[last <= _USUAL_GROUPS], sigma, LIKELY)
    held = units > 0.0
    groups = 0.5 * (last + np.append(0.0, last[:-1]) + 1.0)
    return (units[held], groups[held]) if held.any() else None


def chosen_groups(
    noisy: Floats,
    sigma: float,
    ends: Sequence[int],
    expected: Callable[[int], Expected],
    *,
    key_count: int | None,
    weighted: bool,
) -> int:
    """The end with the least predicted sum of squared errors: what bounding leaves out, noise, and hidden groups.

    Group sizes are taken to fall as 1/rank, adding up to the pairs of units and groups that the histogram has. Nothing
    here reads data: a bad guess costs accuracy alone.

    Args:
        noisy: number of units in each place, in units.
        sigma: its noise.
        ends: last number of groups of each place.
        expected: noise and threshold of the count of units at some max_groups.
        key_count: number of public keys; None where keys are private.
        weighted: whether a unit in more groups counts in each with a weight.

    """
    held = held_groups(noisy, sigma, ends)
    if held is None:
        return ends[0]
    units, groups = held
    pairs = float(units @ groups)
    largest = largest_size(pairs, float(units.sum()), key_count)
    errors = [
        _predicted(largest, _lost(units, groups, end, weighted=weighted) / pairs, expected(end), key_count)
        for end in ends
    ]
    return ends[int(np.argmin(errors))]


def _lost(units: Floats, groups: Floats, max_groups: int, *, weighted: bool) -> float:
    """Pairs of units and groups that bounding leaves out."""
    counted = counted_groups(max_groups, None) if weighted else max_groups
    kept = np.sqrt(max_groups * np.minimum(groups, float(counted or max_groups)))
    return float(units @ np.maximum(groups - kept, 0.0))


def largest_size(pairs: float, units: float, key_count: int | None) -> float:
    """Size c of the largest group, if those of rank r have c / r: over all keys, or as long as that is at least 1."""
    if key_count is not None:
        return min(units, pairs / (math.log(key_count) + _EULER))
    size = pairs
    for _ in range(60):
        size = pairs / (math.log(max(size, 1.0)) + _EULER)
    return min(units, size)


def _predicted(largest: float, lost: float, expected: Expected, key_count: int | None) -> float:
    """Sum over all groups of the squared error; a group that is not shown counts as 0."""
    if expected.threshold is None or key_count is not None:
        shown = float(key_count or 1)
        hidden = 0.0
    else:
        shown = math.floor(largest * (1.0 - lost) / expected.threshold)
        hidden = largest**2 * (1.0 / shown if shown else math.pi**2 / 6.0)
    squares = math.pi**2 / 6.0 - 1.0 / max(shown, 1.0)
    return (lost * largest) ** 2 * squares * bool(shown) + shown * expected.sigma**2 + hidden
