"""The best noise, correlation and threshold of the correlated stability histogram for an (epsilon, delta)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from dpsql.accounting.calibration import (
    place_of_minimum,
    require_delta,
    require_finite,
    require_max_groups,
    require_positive,
    smallest_safe,
    within_floats,
)
from dpsql.accounting.correlated_histogram import (
    correlation_or_default,
    csh_delta,
    csh_rho,
    csh_threshold_delta,
)
from dpsql.accounting.exceedance import shown_quantile
from dpsql.accounting.gaussian import log_delta_up, round_delta_up
from dpsql.errors import CalibrationError

# Both pure cases are calibrated to (1 - slack) delta; at 1/2 their sum is at most delta and bounds every mixed pair.
_SLACKS = (2.0**-40, 2.0**-30, 2.0**-20, 2.0**-10, 2.0**-7, 2.0**-5, 2.0**-4, 2.0**-3, 2.0**-2, 0.5)
# Enough nodes to compare correlations; the point itself is then certified with all of them.
_SEARCH_NODES = 128
_UP, _DOWN = 1.0 + 2.0**-39, 1.0 - 2.0**-38


@dataclass(frozen=True, slots=True)
class CshPoint:
    """One calibrated correlated stability histogram.

    Attributes:
        rho: what the query spends in zCDP when the levels of presence count and aggregates are added (rounded up).
        sigma: standard deviation of each key's own noise, in units (rounded up).
        correlation: variance of the common noise over sigma^2.
        tau: a key is shown if its noisy presence count exceeds 1 + tau, in units (rounded up).
        delta: exact delta of the query alone at the requested epsilon (rounded up).
        threshold_delta: what the ledger adds beside rho (rounded up).

    """

    rho: float
    sigma: float
    correlation: float
    tau: float
    delta: float
    threshold_delta: float

    @property
    def total_sigma(self) -> float:
        """Standard deviation of a shown count, both noises together, in units."""
        return self.sigma * math.sqrt(1.0 + self.correlation)


@lru_cache(maxsize=4096)
@within_floats
def best_csh(
    epsilon: float,
    delta: float,
    *,
    k: int,
    correlation: float | Literal["best"] | None = None,
    max_groups: int | None = None,
    presence_share: float = 1.0,
    noise_weight: float = 0.0,
) -> CshPoint:
    """Noise and threshold of the (epsilon, delta)-private histogram with the smallest tau + noise_weight * noise.

    Guarantee: the point is (epsilon, delta)-private when all rows of one unit are added or removed; certified
        by `csh_delta` over every pair of neighbours before it is returned.
    Source: `csh_delta`. No sigma can be below the one at which common keys alone cost delta, and no tau / sigma
        below the one at which new keys alone do, so a certified point at both limits has the least
        threshold and the least noise for its correlation. Where mixed pairs cost more (tiny epsilon, or a
        correlation far above the default) both limits are eased by the same factor until one passes.
    Symbols: as `csh_delta`.

    Args:
        epsilon: at least 0.
        delta: strictly between 0 and 1.
        k: most keys with a unit, whatever the data.
        correlation: variance of the common noise over sigma^2; None for 1/sqrt(k), "best" to search for it.
        max_groups: as `csh_delta`, only for a public list of k keys.
        presence_share: part of rho that the presence count gets, above 0 and at most 1; the aggregates' noise
            has aggregate_precision = 2 rho (1 - presence_share) / (max_groups or k).
        noise_weight: at least 0: how much of threshold one unit of total noise is worth; 0 minimises the
            threshold alone, math.inf the noise alone. It only matters for correlation "best".
    Returns: a point whose sigma, tau, rho and deltas are rounded up.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> point = best_csh(0.35, 1e-5, k=10)
    >>> round(point.tau, 1), round(best_csh(0.35, 1e-5, k=2).tau, 2)
    (96.3, 51.24)

    """
    require_finite("epsilon", epsilon, least=0.0)
    require_delta(delta)
    require_max_groups(k)
    unit_keys = k if max_groups is None else min(require_max_groups(max_groups), k)
    if require_positive("presence_share", presence_share) > 1.0:
        raise CalibrationError(f"presence_share must be at most 1, got {presence_share!r}")
    if noise_weight != math.inf:
        require_finite("noise_weight", noise_weight, least=0.0)
    request = _Request(epsilon, k, unit_keys, presence_share, noise_weight)
    if correlation == "best":
        chosen = _best_correlation(request, delta)
    else:
        chosen = correlation_or_default(k, correlation)
    for slack in _SLACKS:
        point = _point(request, delta * (1.0 - slack), chosen)
        if point.delta <= delta:
            return point
    raise CalibrationError(f"no correlated histogram meets epsilon = {epsilon!r}, delta = {delta!r}")


@dataclass(frozen=True, slots=True)
class _Request:
    """What the search is about, checked."""

    epsilon: float
    k: int
    unit_keys: int
    presence_share: float
    noise_weight: float


def _shift(epsilon: float, target: float) -> float:
    """Largest distance of two unit Gaussians that costs at most the target."""

    def is_safe(spread: float) -> bool:
        return round_delta_up(float(log_delta_up(epsilon, 1.0 / spread))) <= target

    return 1.0 / smallest_safe(is_safe, 1.0) * _DOWN


def _rho_and_sigma(request: _Request, mu: float, correlation: float) -> tuple[float, float]:
    """Level, added over counts and aggregates, and sigma at which counts and aggregates together move by mu."""
    counts = csh_rho(k=request.k, sigma=1.0, correlation=correlation, max_groups=request.unit_keys)
    # At rho = 1 the shares fix sigma and the aggregates; jointly they move less than the levels add up to.
    sigma = math.sqrt(counts / request.presence_share)
    joint = csh_rho(
        k=request.k,
        sigma=sigma,
        correlation=correlation,
        max_groups=request.unit_keys,
        aggregate_precision=2.0 * (1.0 - request.presence_share) / request.unit_keys,
    )
    rho = 0.5 * mu * mu / joint
    return rho * _UP, sigma / math.sqrt(rho) * _UP


def _point(request: _Request, target: float, correlation: float) -> CshPoint:
    """Point at which either pure case alone costs the target, with its exact delta."""
    rho, sigma = _rho_and_sigma(request, _shift(request.epsilon, target), correlation)
    tau = shown_quantile(target, request.unit_keys, correlation) * sigma
    return CshPoint(
        rho=rho,
        sigma=sigma,
        correlation=correlation,
        tau=tau,
        delta=csh_delta(
            request.epsilon,
            k=request.k,
            sigma=sigma,
            tau=tau,
            correlation=correlation,
            max_groups=request.unit_keys,
            aggregate_precision=2.0 * rho * (1.0 - request.presence_share) / request.unit_keys,
        ),
        threshold_delta=csh_threshold_delta(
            k=request.k, sigma=sigma, tau=tau, correlation=correlation, max_groups=request.unit_keys
        ),
    )


def _best_correlation(request: _Request, delta: float) -> float:
    """Correlation with the smallest objective when both pure cases alone cost delta; 0 if none beats that."""

    def noise(log_inverse: float) -> float:
        correlation = math.exp(-log_inverse)
        return _rho_and_sigma(request, 1.0, correlation)[1] * math.sqrt(1.0 + correlation)

    def objective(log_inverse: float) -> float:
        correlation = math.exp(-log_inverse)
        total = noise(log_inverse)
        quantile = shown_quantile(delta, request.unit_keys, correlation, _SEARCH_NODES)
        return total * (quantile / math.sqrt(1.0 + correlation) + request.noise_weight)

    # The least noise costs next to nothing to find, and the least threshold lies near it.
    grid = np.linspace(0.5 * math.log(request.k) - 2.0, math.log(request.k) + 2.0, 33)
    quietest = place_of_minimum(noise, grid.tolist(), 1e-9)
    if request.noise_weight == math.inf:
        return math.exp(-quietest) if noise(quietest) < noise(math.inf) else 0.0
    near = place_of_minimum(objective, (quietest + np.linspace(-0.9, 0.9, 5)).tolist(), 1e-2)
    return math.exp(-min((quietest, near, math.inf), key=objective))
