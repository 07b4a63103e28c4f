"""The Gaussian sparse histogram with weighted units: exact delta up to a stated grid, threshold, epsilon, best point.

A unit in n <= max_groups keys adds 1 to each. One in more, n capped at counted_groups, adds w_n = sqrt(max_groups / n)
to each, so that its contribution has the same l2 norm whatever n is. Scaled by 1/w_n, the pair of neighbours that such
a unit makes is one of the plain mechanism with n keys, noise sigma/w_n and threshold (1 + tau)/w_n; the worst n
rules. `docs/proofs/weighted.md` proves every statement below.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, ndtri

from dpsql.accounting.calibration import (
    narrow,
    require_delta,
    require_finite,
    require_max_groups,
    require_positive,
    smallest_safe,
    within_floats,
)
from dpsql.accounting.gaussian import Floats, log_delta_up, round_delta_up
from dpsql.accounting.sparse_histogram import GshmPoint
from dpsql.errors import CalibrationError

# Numbers of keys are looked at one by one up to this many, in as many blocks beyond.
_BLOCKS = 2048
# Fractions of common keys between which delta is bounded: dense everywhere, and as fine as it gets at both ends.
_ENDS = 2.0 ** -np.arange(8.0, 50.0)
_FRACTIONS = np.unique(np.concatenate([np.linspace(0.0, 1.0, 1025), _ENDS, 1.0 - _ENDS]))
# Beyond this many standard deviations the tail, even of MOST_GROUPS keys, is below the floating-point range.
_FAR = 40.0
# Room that both pure terms leave for mixed ones, as in `sparse_histogram`; at 1/2 their sum is at most delta.
_SLACKS = (2.0**-40, 2.0**-30, 2.0**-20, 2.0**-10, 2.0**-5, 0.5)


@within_floats
def weighted_delta(
    epsilon: float,
    *,
    max_groups: int,
    counted_groups: int,
    sigma: float,
    tau: float,
    aggregate_precision: float = 0.0,
) -> float:
    """Delta for which the sparse histogram with weighted units is (epsilon, delta)-differentially private.

    Guarantee: (epsilon, delta) when all rows of one unit are added or removed, for counts and aggregates together.
    Source: docs/proofs/weighted.md, Theorem 1: `sparse_histogram.gshm_delta` of the scaled pair for every n, as one
        bound over all fractions of common keys.
    Symbols: max_groups is m, counted_groups is N, f = j/n the fraction of common keys, H the worst hazard.

    Args:
        epsilon: at least 0.
        max_groups: most keys in which a unit counts fully, at least 1.
        counted_groups: most keys in which it counts at all, at least max_groups.
        sigma: standard deviation of the presence count's noise, above 0, in units.
        tau: at least 0, in units; a key is shown if its noisy count exceeds 1 + tau.
        aggregate_precision: sum over the aggregates of (radius of a full unit / their noise)^2, at least 0.
    Returns: a probability, rounded up; at most 1.001 times the exact one where the extreme cases rule.
    Raises: CalibrationError for inputs outside these ranges.
    Assumes: weights rounded down; noise as `gshm_delta`.
    Randomness: none.

    >>> round(weighted_delta(1.0, max_groups=4, counted_groups=16, sigma=8.0, tau=35.0), 9)
    8.7171e-05

    """
    require_finite("epsilon", epsilon, least=0.0)
    require_finite("aggregate_precision", aggregate_precision, least=0.0)
    hazard = _worst_hazard(max_groups, counted_groups, sigma, tau)
    squared = max_groups * ((1.0 / sigma) / sigma + aggregate_precision)
    if not math.isfinite(squared):
        return 1.0
    return _delta_of(epsilon, hazard, squared)


@within_floats
def weighted_threshold_delta(*, max_groups: int, counted_groups: int, sigma: float, tau: float) -> float:
    """Probability that a unit alone in all of its keys has any of them shown, for the worst number of keys.

    Guarantee: the mechanism is this-delta-approximate rho-zCDP with rho = max_groups (1/sigma^2 +
        aggregate_precision) / 2, when all rows of one unit are added or removed; the ledger adds rho and this delta.
    Source: docs/proofs/weighted.md, Theorem 2.
    Args: as `weighted_delta`.
    Returns: a probability, rounded up.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> weighted_threshold_delta(max_groups=4, counted_groups=4, sigma=8.0, tau=35.0) < 2.43e-5
    True
    """
    hazard = _worst_hazard(max_groups, counted_groups, sigma, tau)
    return min(1.0, math.nextafter(-math.expm1(-hazard), math.inf))


@lru_cache(maxsize=4096)
@within_floats
def weighted_threshold(delta: float, *, max_groups: int, counted_groups: int, sigma: float) -> float:
    """Smallest tau whose threshold part is at most delta.

    Guarantee, Source: as `weighted_threshold_delta`, of which this is the inverse.
    Args: delta strictly between 0 and 1; the others as `weighted_delta`.
    Returns: tau in units, at least 0, rounded up: weighted_threshold_delta(...) <= delta.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.
    """
    require_delta(delta)
    _require_groups(max_groups, counted_groups)
    require_positive("sigma", sigma)

    def is_safe(tau: float) -> bool:
        shown = weighted_threshold_delta(max_groups=max_groups, counted_groups=counted_groups, sigma=sigma, tau=tau)
        return shown <= delta

    if is_safe(0.0):
        return 0.0
    # with every one of counted_groups keys at the value 1, tau is too large
    one_key = -math.expm1(math.log1p(-delta) / counted_groups)
    highest = max(0.0, -sigma * float(ndtri(one_key))) * (1.0 + 2.0**-30) + sigma * 2.0**-30
    while not is_safe(highest):
        highest = 2.0 * highest
    return narrow(is_safe, 0.0, highest)


@lru_cache(maxsize=4096)
@within_floats
def weighted_query_threshold(
    epsilon: float,
    delta: float,
    *,
    max_groups: int,
    counted_groups: int,
    sigma: float,
    aggregate_precision: float = 0.0,
) -> float:
    """Smallest tau for which the sparse histogram with weighted units is (epsilon, delta)-differentially private.

    Guarantee, Source, Symbols, Assumes: as `weighted_delta`, of which this is the inverse.
    Args: delta strictly between 0 and 1; the others as `weighted_delta`.
    Returns: tau in units, at least 0, rounded up: weighted_delta(...) <= delta.
    Raises: CalibrationError for inputs outside these ranges, and if the noise alone already costs delta.
    Randomness: none.
    """

    def is_safe(tau: float) -> bool:
        found = weighted_delta(
            epsilon,
            max_groups=max_groups,
            counted_groups=counted_groups,
            sigma=sigma,
            tau=tau,
            aggregate_precision=aggregate_precision,
        )
        return found <= delta

    lowest = weighted_threshold(delta, max_groups=max_groups, counted_groups=counted_groups, sigma=sigma)
    if is_safe(lowest):
        return lowest
    highest = 1.1 * _FAR * sigma
    if not is_safe(highest):
        raise CalibrationError(f"sigma = {sigma!r} is too small for epsilon = {epsilon!r}, delta = {delta!r}")
    return narrow(is_safe, lowest, highest)


@lru_cache(maxsize=4096)
@within_floats
def weighted_epsilon(
    delta: float,
    *,
    max_groups: int,
    counted_groups: int,
    sigma: float,
    tau: float,
    aggregate_precision: float = 0.0,
) -> float:
    """Smallest epsilon for which the sparse histogram with weighted units is (epsilon, delta)-differentially private.

    Guarantee, Source, Symbols, Assumes: as `weighted_delta`, of which this is the inverse.
    Args: delta strictly between 0 and 1; the others as `weighted_delta`.
    Returns: epsilon at least 0, rounded up: weighted_delta(epsilon, ...) <= delta.
    Raises: CalibrationError for inputs outside these ranges, and if delta is below the threshold part.
    Randomness: none.
    """
    require_delta(delta)
    lost = weighted_threshold_delta(max_groups=max_groups, counted_groups=counted_groups, sigma=sigma, tau=tau)
    if lost > delta:
        raise CalibrationError(f"the threshold alone costs delta = {lost:.6g}, more than {delta:.6g}")

    def is_safe(epsilon: float) -> bool:
        found = weighted_delta(
            epsilon,
            max_groups=max_groups,
            counted_groups=counted_groups,
            sigma=sigma,
            tau=tau,
            aggregate_precision=aggregate_precision,
        )
        return found <= delta

    return 0.0 if is_safe(0.0) else smallest_safe(is_safe, 1.0)


@lru_cache(maxsize=4096)
@within_floats
def best_weighted(
    epsilon: float, delta: float, *, max_groups: int, counted_groups: int, presence_share: float = 1.0
) -> GshmPoint:
    """Noise and threshold of the (epsilon, delta)-private sparse histogram with weighted units.

    Guarantee: the point is (epsilon, delta)-private when all rows of one unit are added or removed; it is certified by
        `weighted_delta` before it is returned.
    Source: as `sparse_histogram.best_gshm`: rho is the largest at which the noise alone costs delta, tau the smallest
        at which the threshold alone does.
    Args: as `sparse_histogram.best_gshm`; counted_groups as `weighted_delta`.
    Returns: a point whose sigma, tau and deltas are rounded up and whose rho is rounded down.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(best_weighted(1.0, 1e-6, max_groups=8, counted_groups=32).tau, 1)
    64.2

    """
    require_finite("epsilon", epsilon, least=0.0)
    require_delta(delta)
    _require_groups(max_groups, counted_groups)
    if require_positive("presence_share", presence_share) > 1.0:
        raise CalibrationError(f"presence_share must be at most 1, got {presence_share!r}")
    for slack in _SLACKS:
        point = _point(epsilon, delta * (1.0 - slack), max_groups, counted_groups, presence_share)
        if point.delta <= delta:
            return point
    raise CalibrationError(f"no sparse histogram meets epsilon = {epsilon!r}, delta = {delta!r}")


def _point(epsilon: float, target: float, max_groups: int, counted_groups: int, presence_share: float) -> GshmPoint:
    """Point at which either pure case alone costs the target, with its delta."""

    def is_safe(spread: float) -> bool:
        return round_delta_up(float(log_delta_up(epsilon, 1.0 / spread))) <= target

    spread = smallest_safe(is_safe, 1.0)
    rho = 0.5 / (spread * spread) * (1.0 - 2.0**-51)
    sigma = math.sqrt(max_groups / (2.0 * presence_share * rho)) * (1.0 + 2.0**-51)
    aggregate_precision = 2.0 * rho * (1.0 - presence_share) / max_groups
    tau = weighted_threshold(target, max_groups=max_groups, counted_groups=counted_groups, sigma=sigma)
    return GshmPoint(
        rho=rho,
        sigma=sigma,
        tau=tau,
        delta=weighted_delta(
            epsilon,
            max_groups=max_groups,
            counted_groups=counted_groups,
            sigma=sigma,
            tau=tau,
            aggregate_precision=aggregate_precision,
        ),
        threshold_delta=weighted_threshold_delta(
            max_groups=max_groups, counted_groups=counted_groups, sigma=sigma, tau=tau
        ),
    )


def _require_groups(max_groups: int, counted_groups: int) -> None:
    if require_max_groups(counted_groups) < require_max_groups(max_groups):
        raise CalibrationError(f"counted_groups must be at least max_groups = {max_groups}, got {counted_groups!r}")


def _worst_hazard(max_groups: int, counted_groups: int, sigma: float, tau: float) -> float:
    """Largest -ln of the probability that n keys of one unit all stay hidden, for n from m to N; rounded up.

    Fewer than m keys hide better than m. Within a block of numbers n the most keys and the largest weight bound it.
    """
    _require_groups(max_groups, counted_groups)
    require_positive("sigma", sigma)
    require_finite("tau", tau, least=0.0)
    edges = np.unique(np.rint(np.geomspace(max_groups, counted_groups, _BLOCKS)))
    if counted_groups - max_groups < _BLOCKS:
        edges = np.arange(max_groups, counted_groups + 1, dtype=float)
        least, most = edges, edges
    else:
        # the first block is one number, as the edges begin with it
        least, most = np.append(edges[0], edges[:-1]), edges
    x = np.minimum((tau + (1.0 - np.sqrt(max_groups / least))) / sigma, _FAR)
    hazards = -most * log_ndtr(x) * (1.0 + 2.0**-46 * (1.0 + x * x))
    return max(float(hazards.max()), math.nextafter(0.0, 1.0))


def _delta_of(epsilon: float, hazard: float, squared: float) -> float:
    """Largest delta over fractions f of common keys: hidden with probability exp(-(1-f) H), shifted by sqrt(f squared).

    Between two fractions the first hides least and the second is shifted most, which bounds both directions.
    """
    lost = hazard * (1.0 - _FRACTIONS[:-1]) * (1.0 + 2.0**-50)
    mu = np.sqrt(_FRACTIONS[1:] * squared) * (1.0 + 2.0**-50)
    # all common: nothing is lost
    lost, mu = np.append(lost, 0.0), np.append(mu, math.sqrt(squared) * (1.0 + 2.0**-50))
    with np.errstate(divide="ignore"):
        shown: Floats = np.log(-np.expm1(-lost))
    with_unit = np.logaddexp(shown, log_delta_up(epsilon + lost, mu) - lost)
    without_unit = log_delta_up(epsilon - lost, mu)
    only_new = math.nextafter(-math.expm1(-hazard), math.inf)
    return max(only_new, round_delta_up(max(float(with_unit.max()), float(without_unit.max()))))
