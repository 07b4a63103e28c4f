"""The number of groups that AUTO chooses: post-processing of one noisy histogram, by a public formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsql.mechanisms.entropy import Entropy
from dpsql.mechanisms.rounded_gaussian import RoundedGaussian, slack_delta_zcdp
from dpsql.query.auto import counted_groups
from dpsql.query.frame import NANO, NOISE_GRID_EXPONENT
from dpsql.release.auto_evidence import holds_most, sure_places
from dpsql.release.histogram import FLOAT_SLACK, NoisyHistogram

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_EMPTY = 4.0
"""Places whose noisy count is below so many standard deviations are taken as empty: far out, noise would weigh much."""
_EULER = 0.5772156649015329


@dataclass(frozen=True, slots=True)
class Expected:
    """Noise of a count at some max_groups, and what its threshold leaves out; None without a threshold."""

    sigma: float
    threshold: float | None


def auto_sigma(rho_nano: int, l2: float) -> float:
    """Noise of a histogram of which one unit moves this much in the l2 norm."""
    return FLOAT_SLACK * l2 / math.sqrt(2.0 * rho_nano / NANO)


def auto_noise_delta(rho_nano: int, places: int) -> float:
    """What the precision of the draws on the places that a unit stands in adds to delta."""
    return slack_delta_zcdp(places, rho_nano / NANO)


def binned(groups: Integers, units: Integers, ends: Sequence[int]) -> Integers:
    """Number of units in each place: the last number of groups in it is its end; beyond the last end is its own."""
    places = np.minimum(np.searchsorted(np.asarray(ends), groups), len(ends) - 1)
    totals = np.zeros(len(ends), dtype=np.int64)
    np.add.at(totals, places, units)
    return totals


def noisy_histogram(exact: Integers, rho_nano: int, l2: float, entropy: Entropy) -> Integers:
    """Units in each place with Gaussian noise, in steps of the noise's grid.

    *Guarantee*: rho-zCDP at ``rho_nano`` when all rows of one unit are added or removed, if it stands in l2 squared
    places (docs/proofs/auto.md). *Source*: Bun and Steinke 2016, Proposition 1.6.
    *Randomness*: one draw for each place.
    """
    noise = RoundedGaussian(auto_sigma(rho_nano, l2) * 2.0**-NOISE_GRID_EXPONENT).draw(len(exact), entropy)
    return (exact << -NOISE_GRID_EXPONENT) + noise


def histogram_noise(entropy: Entropy) -> Callable[[int, float], NoisyHistogram]:
    """Noise alone, for so many places, at a standard deviation in units: it reads no data and costs nothing."""
    return lambda places, sigma: NoisyHistogram(
        RoundedGaussian(sigma * 2.0**-NOISE_GRID_EXPONENT).draw(places, entropy), 0
    )


def sure_groups(noisy: Floats, sigma: float) -> bool:
    """Whether the places that surely hold units hold three quarters of all of them.

    A histogram of noise alone does with probability at most `FALSE_POSITIVE`.
    """
    sure = sure_places(noisy, sigma, len(noisy))
    return bool(sure.any()) and holds_most(noisy[sure], noisy[~sure], sigma)


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
    units = np.where(noisy > _EMPTY * sigma, noisy, 0.0)
    last = np.asarray(ends, dtype=np.float64)
    groups = 0.5 * (last + np.append(0.0, last[:-1]) + 1.0)
    pairs = float(units @ groups)
    if pairs <= 0.0:
        return ends[0]
    largest = _largest_size(pairs, float(units.sum()), key_count)
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


def _largest_size(pairs: float, units: float, key_count: int | None) -> float:
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
