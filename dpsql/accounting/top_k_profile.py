"""The correlated stability histogram after top-k pre-processing: what counts, floor and sums cost together.

Top-k pre-processing subtracts the *floor* h, the (k+1)-th largest number of units, from every key's number and
cuts off at 0. So at most k keys have anything left, whatever the data and whatever one unit touches. Each of
these gets noise N(0, sigma^2) of its own and one common draw F ~ N(0, correlation sigma^2); it is shown if its
noisy count exceeds 1 + tau, strictly. The floor is released as h + C - F, C ~ N(0, floor_correlation sigma^2):
added to a shown count it gives back the number of units, and F cancels.

A pair of neighbours has j common keys, q of them the unit's own, and n keys that only the larger histogram has.
`docs/proofs/top-k.md` proves what is stated here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpsql.accounting import gaussian
from dpsql.accounting.calibration import (
    require_delta,
    require_finite,
    require_max_groups,
    require_positive,
    smallest_at_most,
    within_floats,
)
from dpsql.accounting.correlated_histogram import correlation_or_default, csh_threshold_delta
from dpsql.accounting.exceedance import FAR, shown_quantile
from dpsql.accounting.gaussian import Floats, shift_deltas
from dpsql.accounting.top_k_pair import FloorNoise, worst_floor_squared
from dpsql.accounting.worst_pair import largest_sum
from dpsql.errors import CalibrationError

# Finer thresholds than this (relative) would follow the slack of the bound, not delta.
_RESOLUTION = 2.0**-20
_UP, _DOWN = 1.0 + 2.0**-40, 1.0 - 2.0**-38


@within_floats
def top_k_delta(
    epsilon: float,
    *,
    k: int,
    sigma: float,
    tau: float,
    correlation: float | None = None,
    floor_correlation: float | None = None,
    max_groups: int | None = None,
    aggregate_precision: float = 0.0,
) -> float:
    """Delta for which the top-k histogram with its floor is (epsilon, delta)-differentially private.

    Guarantee: (epsilon, delta) when all rows of one unit are added or removed, for counts, floor and aggregates
        together.
    Source: docs/proofs/top-k.md, Theorem 2: over all pairs, the largest sum of the probability of showing a key
        that only one histogram has, and the delta of the common counts, the floor and the aggregates.
    Symbols: 1/correlation and 1/floor_correlation are lambda_2 and lambda_1.

    Args:
        epsilon: at least 0.
        k: the floor is the (k+1)-th largest count; at least 1.
        sigma: standard deviation of each key's own noise, above 0, in units.
        tau: at least 0, in units; a key is shown if its noisy count, above the floor, exceeds 1 + tau.
        correlation: variance of the common noise over sigma^2, at least 0; None for 1/sqrt(k).
        floor_correlation: variance of the floor's own noise over sigma^2, above 0; None for 1/sqrt(k).
        max_groups: most keys one unit touches in the data; None for any number. It bounds the counts and sums
            that rise, not the counts that fall: all k do where the unit raises the floor. **None for a sketch**,
            where later batches move counts of keys that the unit does not have (docs/proofs/top-k.md, 7).
        aggregate_precision: sum over the aggregates of (sensitivity_l2 per key / their noise)^2, at least 0;
            aggregates move on keys that the unit has, whether or not the key's count does. 0 for a sketch.
    Returns: a probability, rounded up (by a few millionths of itself where one kind of key costs most, by less
        than a fiftieth where both together do).
    Raises: CalibrationError for inputs outside these ranges.
    Assumes: continuous noise, or its sum rounded once on a lattice at tau + half a lattice step.
    Randomness: none.

    >>> round(top_k_delta(0.35, k=10, sigma=21.5, tau=119.0), 8)
    7.02e-06

    """
    require_finite("epsilon", epsilon, least=0.0)
    release = _release(k, sigma, correlation, floor_correlation, max_groups, aggregate_precision)
    return release.delta(epsilon, require_finite("tau", tau, least=0.0))


@within_floats
def top_k_threshold_delta(*, k: int, sigma: float, tau: float, correlation: float | None = None) -> float:
    """Probability that any of k keys with nothing but the unit in them is shown.

    Guarantee: the mechanism is top_k_threshold_delta-approximate `top_k_rho`-zCDP when all rows of one unit are
        added or removed; the ledger adds rho and this delta. No bound on a unit's keys makes it smaller: a
        unit with one key can take all k keys of the others out of the histogram.
    Source: docs/proofs/top-k.md, Theorem 3; approximate zCDP: Bun and Steinke 2016, Definition 8.1.
    Args: as `top_k_delta`.
    Returns: a probability, rounded up (by at most two millionths of itself).
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(top_k_threshold_delta(k=10, sigma=21.5, tau=119.0), 8)
    7.02e-06
    """
    return csh_threshold_delta(k=k, sigma=sigma, tau=tau, correlation=correlation)


@within_floats
def top_k_rho(
    *,
    k: int,
    sigma: float,
    correlation: float | None = None,
    floor_correlation: float | None = None,
    max_groups: int | None = None,
    aggregate_precision: float = 0.0,
) -> float:
    """Smallest rho of `top_k_threshold_delta`-approximate rho-zCDP: half the largest squared distance of the means.

    Guarantee, Source, Raises: as `top_k_threshold_delta`.
    Args: as `top_k_delta`.
    Returns: rho above 0, rounded up.
    Randomness: none.

    >>> round(top_k_rho(k=10, sigma=21.5), 6)
    0.004414
    """
    release = _release(k, sigma, correlation, floor_correlation, max_groups, aggregate_precision)
    squared = float(release.squared(np.zeros(1))[0])
    if not math.isfinite(squared):
        raise CalibrationError("rho leaves the floating-point range; the noise is far too small")
    return 0.5 * squared


@lru_cache(maxsize=4096)
@within_floats
def top_k_sigma(
    rho: float,
    *,
    k: int,
    correlation: float | None = None,
    floor_correlation: float | None = None,
    max_groups: int | None = None,
) -> float:
    """Smallest sigma at which counts and floor spend at most rho.

    Guarantee, Source: as `top_k_rho`, of which this is the inverse.
    Args: rho above 0; the others as `top_k_delta`.
    Returns: standard deviation of each key's own noise, in units, rounded up: top_k_rho(...) <= rho.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(top_k_sigma(0.02, k=10), 4)
    10.1009

    """
    require_positive("rho", rho)
    at_one = top_k_rho(
        k=k, sigma=1.0, correlation=correlation, floor_correlation=floor_correlation, max_groups=max_groups
    )
    return math.sqrt(at_one / rho) * _UP


@lru_cache(maxsize=4096)
@within_floats
def top_k_threshold(
    epsilon: float,
    delta: float,
    *,
    k: int,
    sigma: float,
    correlation: float | None = None,
    floor_correlation: float | None = None,
    max_groups: int | None = None,
    aggregate_precision: float = 0.0,
) -> float:
    """Smallest tau for which `top_k_delta` is at most delta.

    Guarantee, Source, Symbols, Assumes: as `top_k_delta`, of which this is the inverse.
    Args: delta strictly between 0 and 1; the others as `top_k_delta`.
    Returns: tau in units, at least 0, rounded up: top_k_delta(...) <= delta.
    Raises: CalibrationError for inputs outside these ranges, and if the noise alone already costs delta.
    Randomness: none.

    >>> round(top_k_threshold(0.35, 1e-5, k=10, sigma=22.0), 2)
    119.97

    """
    require_delta(delta)
    release = _release(k, sigma, correlation, floor_correlation, max_groups, aggregate_precision)

    require_finite("epsilon", epsilon, least=0.0)

    def value(tau: float) -> float:
        return release.delta(epsilon, tau)

    # With every key hidden for sure, what remains is the noise on common counts, floor and aggregates.
    highest = 1.1 * FAR * (1.0 + math.sqrt(release.noise.correlation)) * sigma
    if value(highest) > delta:
        raise CalibrationError(f"sigma = {sigma!r} is too small for epsilon = {epsilon!r}, delta = {delta!r}")
    # No smaller threshold hides k keys well enough beside the floor; this one does, and most often suffices.
    left = delta * _DOWN - float(release.gauss(epsilon, np.array([float(k)]))[0])
    lowest = shown_quantile(left, k, release.noise.correlation) * sigma if left > 0.0 else 0.0
    if lowest == 0.0:
        return 0.0 if value(0.0) <= delta else smallest_at_most(value, delta, sigma * _RESOLUTION, _RESOLUTION)
    return smallest_at_most(value, delta, lowest, _RESOLUTION)


@lru_cache(maxsize=4096)
@within_floats
def top_k_epsilon(
    delta: float,
    *,
    k: int,
    sigma: float,
    tau: float,
    correlation: float | None = None,
    floor_correlation: float | None = None,
    max_groups: int | None = None,
    aggregate_precision: float = 0.0,
) -> float:
    """Smallest epsilon for which `top_k_delta` is at most delta.

    Guarantee, Source, Symbols, Assumes: as `top_k_delta`, of which this is the inverse.
    Args: delta strictly between 0 and 1; the others as `top_k_delta`.
    Returns: epsilon at least 0, rounded up: top_k_delta(epsilon, ...) <= delta.
    Raises: CalibrationError for inputs outside these ranges, and if delta is not above the threshold part.
    Randomness: none.

    >>> round(top_k_epsilon(1e-5, k=10, sigma=21.5, tau=119.0), 3)
    0.318

    """
    require_delta(delta)
    lost = top_k_threshold_delta(k=k, sigma=sigma, tau=tau, correlation=correlation)
    if lost >= delta * _DOWN:
        raise CalibrationError(f"the threshold alone costs delta = {lost:.6g}, which leaves nothing of {delta:.6g}")

    release = _release(k, sigma, correlation, floor_correlation, max_groups, aggregate_precision)

    def value(epsilon: float) -> float:
        return release.delta(epsilon, tau)

    if value(0.0) <= delta:
        return 0.0
    # What common counts, floor and aggregates cost alone is a bound from below, and seldom far.
    common = gaussian.epsilon(delta, math.sqrt(float(release.squared(np.zeros(1))[0])), 1.0)
    return smallest_at_most(value, delta, max(common * _DOWN, _RESOLUTION), _RESOLUTION)


def floor_correlation_or_default(k: int, floor_correlation: float | None) -> float:
    """Return 1/sqrt(k) if none is given; refuse numbers that are not finite and above 0."""
    if floor_correlation is None:
        return 1.0 / math.sqrt(k)
    return require_positive("floor_correlation", floor_correlation)


@dataclass(frozen=True, slots=True)
class _Release:
    """One release, checked: the place of the floor, most keys of one unit (k + 1 for any number), and the noise."""

    k: int
    unit_keys: int
    noise: FloorNoise

    def squared(self, new: Floats) -> Floats:
        """Largest squared distance of what is common, by how many keys only the larger histogram has."""
        common = self.k - new
        # The unit's new keys use up its bound where the floor stays; raising the floor takes one key outside.
        own = np.minimum(common, np.maximum(self.unit_keys - new, 0.0))
        return worst_floor_squared(common, own, np.minimum(common, self.unit_keys - 1.0), self.noise)

    def gauss(self, epsilon: float, new: Floats) -> Floats:
        """Delta of what is common at its largest distance; it falls with the number of keys that are not."""
        return shift_deltas(epsilon, self.squared(new))

    def delta(self, epsilon: float, tau: float) -> float:
        """`top_k_delta`."""
        x = tau / self.noise.sigma
        return largest_sum(self.k, x, self.noise.correlation, lambda lost: self.gauss(epsilon, lost))


def _release(
    k: int,
    sigma: float,
    correlation: float | None,
    floor_correlation: float | None,
    max_groups: int | None,
    aggregate_precision: float,
) -> _Release:
    require_max_groups(k)
    unit_keys = k + 1 if max_groups is None else min(require_max_groups(max_groups), k + 1)
    noise = FloorNoise(
        require_positive("sigma", sigma),
        correlation_or_default(k, correlation),
        floor_correlation_or_default(k, floor_correlation),
        require_finite("aggregate_precision", aggregate_precision, least=0.0),
    )
    return _Release(k, unit_keys, noise)
