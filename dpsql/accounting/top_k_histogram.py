"""The top-k histogram with its floor: noise and threshold for an (epsilon, delta), and the quietest correlation.

What they cost (`top_k_delta` and the other functions named top_k_...) is worked out in `top_k_profile`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpsql.accounting import gaussian
from dpsql.accounting.calibration import (
    place_of_minimum,
    require_delta,
    require_finite,
    require_max_groups,
    require_positive,
    within_floats,
)
from dpsql.accounting.correlated_histogram import correlation_or_default
from dpsql.accounting.exceedance import shown_quantile
from dpsql.accounting.top_k_profile import (
    floor_correlation_or_default,
    top_k_delta,
    top_k_epsilon,
    top_k_rho,
    top_k_sigma,
    top_k_threshold,
    top_k_threshold_delta,
)
from dpsql.errors import CalibrationError

__all__ = [
    "TopKPoint",
    "best_top_k",
    "quietest_top_k_correlation",
    "top_k_delta",
    "top_k_epsilon",
    "top_k_rho",
    "top_k_sigma",
    "top_k_threshold",
    "top_k_threshold_delta",
]

# Common keys and lost keys are each calibrated to (1 - slack) delta; at 1/2 their sum bounds every pair by delta.
_SLACKS = (2.0**-37, 2.0**-7, 2.0**-4, 2.0**-2, 0.5)
_UP, _DOWN = 1.0 + 2.0**-39, 1.0 - 2.0**-38


@dataclass(frozen=True, slots=True)
class TopKPoint:
    """One calibrated top-k histogram with its floor.

    Attributes:
        rho: what the query spends in zCDP when the levels of counts and aggregates are added (rounded up).
        sigma: standard deviation of each key's own noise, in units (rounded up).
        correlation: variance of the common noise over sigma^2.
        floor_correlation: variance of the floor's own noise over sigma^2.
        tau: a key is shown if its noisy count, above the floor, exceeds 1 + tau, in units (rounded up).
        delta: delta of the query alone at the requested epsilon (rounded up).
        threshold_delta: what the ledger adds beside rho (rounded up).

    """

    rho: float
    sigma: float
    correlation: float
    floor_correlation: float
    tau: float
    delta: float
    threshold_delta: float

    @property
    def total_sigma(self) -> float:
        """Standard deviation of a shown count with the floor added back, in units: the common noise cancels."""
        return self.sigma * math.sqrt(1.0 + self.floor_correlation)


@lru_cache(maxsize=4096)
@within_floats
def quietest_top_k_correlation(k: int, max_groups: int | None = None) -> float:
    """Correlation of keys and floor, the same for both, with which the top-k histogram has the least noise.

    Source: the variance of a noisy count above the floor, and that of a count with the floor added back, at rho
        are both `top_k_rho` at sigma = 1, times (1 + correlation) / rho. Without a bound on a unit's keys it is
        least at sqrt(2/k), up to whole numbers of keys (docs/proofs/top-k.md, 5).

    Args:
        k: the floor is the (k+1)-th largest count; at least 1.
        max_groups: most keys one unit touches in the data; None for any number.
    Returns: above 0. Not rounded: any number is private, this one is as good as any.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(quietest_top_k_correlation(1000) * 500**0.5, 2), round(quietest_top_k_correlation(1000, max_groups=1), 2)
    (1.0, 1.0)
    """
    require_max_groups(k)

    def variance(log_inverse: float) -> float:
        correlation = math.exp(-log_inverse)
        counts = top_k_rho(
            k=k, sigma=1.0, correlation=correlation, floor_correlation=correlation, max_groups=max_groups
        )
        return counts * (1.0 + correlation)

    # With few keys per unit it is near 1, with many near sqrt(2/k).
    grid = np.linspace(-1.0, 0.5 * math.log(k) + 1.0, 33).tolist()
    return math.exp(-place_of_minimum(variance, grid, 1e-9))


@dataclass(frozen=True, slots=True)
class _Request:
    """What is asked for, checked."""

    epsilon: float
    k: int
    max_groups: int | None
    presence_share: float
    correlation: float
    floor_correlation: float

    def aggregate_precision(self, rho: float) -> float:
        """Precision of aggregates that get their share of rho, spread over the keys of one unit that can be shown."""
        own = self.k if self.max_groups is None else min(self.max_groups, self.k)
        return 2.0 * rho * (1.0 - self.presence_share) / own

    def rho_at(self, sigma: float, aggregate_precision: float) -> float:
        """Joint `top_k_rho` of counts, floor and aggregates."""
        return top_k_rho(
            k=self.k,
            sigma=sigma,
            correlation=self.correlation,
            floor_correlation=self.floor_correlation,
            max_groups=self.max_groups,
            aggregate_precision=aggregate_precision,
        )


@lru_cache(maxsize=4096)
@within_floats
def best_top_k(
    epsilon: float,
    delta: float,
    *,
    k: int,
    correlation: float | None = None,
    floor_correlation: float | None = None,
    max_groups: int | None = None,
    presence_share: float = 1.0,
) -> TopKPoint:
    """Noise and threshold of an (epsilon, delta)-private top-k histogram with its floor.

    Guarantee: the point is (epsilon, delta)-private when all rows of one unit are added or removed; certified
        by `top_k_delta` before it is returned.
    Source: `top_k_delta`. The noise is the least at which the common keys alone cost delta, the threshold the
        least at which k lost keys do, beside the floor that moves with them; where other pairs cost more, both limits
        are eased until none does.
    Symbols: as `top_k_delta`.

    Args:
        epsilon: at least 0.
        delta: strictly between 0 and 1.
        k: the floor is the (k+1)-th largest count; at least 1.
        correlation: variance of the common noise over sigma^2; None for 1/sqrt(k).
        floor_correlation: variance of the floor's own noise over sigma^2; None for 1/sqrt(k).
        max_groups: most keys one unit touches in the data; None for any number.
        presence_share: part of rho that counts and floor get, above 0 and at most 1; the aggregates' noise has
            aggregate_precision = 2 rho (1 - presence_share) / min(max_groups, k).
    Returns: a point whose sigma, tau, rho and deltas are rounded up.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> point = best_top_k(0.35, 1e-5, k=10)
    >>> round(point.tau, 1), round(point.total_sigma, 1)
    (107.5, 22.6)

    """
    require_finite("epsilon", epsilon, least=0.0)
    require_delta(delta)
    require_max_groups(k)
    if max_groups is not None:
        require_max_groups(max_groups)
    if require_positive("presence_share", presence_share) > 1.0:
        raise CalibrationError(f"presence_share must be at most 1, got {presence_share!r}")
    request = _Request(
        epsilon,
        k,
        max_groups,
        presence_share,
        correlation_or_default(k, correlation),
        floor_correlation_or_default(k, floor_correlation),
    )
    for slack in _SLACKS:
        point = _point(request, delta, slack)
        if point.delta <= delta:
            return point
    raise CalibrationError(f"no top-k histogram meets epsilon = {epsilon!r}, delta = {delta!r}")


def _point(request: _Request, delta: float, slack: float) -> TopKPoint:
    """Point at which the common keys alone, and the lost keys with the floor, each cost (1 - slack) delta."""
    mu = 1.0 / gaussian.sigma(request.epsilon, delta * (1.0 - slack), 1.0) * _DOWN
    # At rho = 1 the shares fix sigma and the aggregates; jointly they move less than the levels add up to.
    sigma_at_one = math.sqrt(request.rho_at(1.0, 0.0) / request.presence_share)
    rho = 0.5 * mu * mu / request.rho_at(sigma_at_one, request.aggregate_precision(1.0)) * _UP
    sigma = sigma_at_one / math.sqrt(rho) * _UP
    tau = shown_quantile(_left_for_threshold(request, sigma, delta, slack), request.k, request.correlation) * sigma
    value = top_k_delta(
        request.epsilon,
        k=request.k,
        sigma=sigma,
        tau=tau,
        correlation=request.correlation,
        floor_correlation=request.floor_correlation,
        max_groups=request.max_groups,
        aggregate_precision=request.aggregate_precision(rho),
    )
    return TopKPoint(
        rho=rho,
        sigma=sigma,
        correlation=request.correlation,
        floor_correlation=request.floor_correlation,
        tau=tau,
        delta=value,
        threshold_delta=top_k_threshold_delta(k=request.k, sigma=sigma, tau=tau, correlation=request.correlation),
    )


def _left_for_threshold(request: _Request, sigma: float, delta: float, slack: float) -> float:
    """What lost keys may cost: (1 - slack) delta, less what goes to the floor, alone with them, beyond the slack."""
    floor_alone = sigma * math.sqrt(request.correlation + request.floor_correlation)
    return min(delta * (1.0 - slack), delta * _DOWN - gaussian.delta(request.epsilon, 1.0, floor_alone))
