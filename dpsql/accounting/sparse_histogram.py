"""The Gaussian sparse histogram mechanism: exact delta, threshold, epsilon, and the best point for a target.

The mechanism adds N(0, sigma^2) to the number of units of every key that has one, and shows the keys whose
noisy count exceeds 1 + tau, strictly; noisy aggregates travel with each shown key. One unit touches at most
max_groups keys, of which j are also touched by others and n = max_groups - j are its own. A key of its own is
shown with probability 1 - Phi(tau/sigma), and that betrays the unit; the common keys are a Gaussian shift of
squared length j (1/sigma^2 + aggregate_precision). `docs/proofs/gshm.md` proves every statement below.

The correlated stability histogram (csh_...) is accounted for in `correlated_histogram` and `correlated_point`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

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
from dpsql.accounting.correlated_histogram import (
    CorrelatedAnalysis,
    csh_delta,
    csh_epsilon,
    csh_rho,
    csh_sigma,
    csh_threshold,
    csh_threshold_delta,
)
from dpsql.accounting.correlated_point import CshPoint, best_csh
from dpsql.accounting.gaussian import Floats, log_delta, log_delta_up, round_delta_up
from dpsql.errors import CalibrationError

__all__ = [
    "Analysis",
    "CorrelatedAnalysis",
    "CshPoint",
    "GshmPoint",
    "best_csh",
    "best_gshm",
    "csh_delta",
    "csh_epsilon",
    "csh_rho",
    "csh_sigma",
    "csh_threshold",
    "csh_threshold_delta",
    "gshm_delta",
    "gshm_epsilon",
    "gshm_threshold",
    "threshold",
    "threshold_delta",
]

Analysis = Literal["exact", "add-the-deltas"]

# The numbers of common keys are first bounded in this many blocks; only blocks that may hold the maximum are
# worked out one by one.
_BLOCKS = 512
# Splits worked out at once; more would leave the processor's cache and take five times as long.
_CHUNK = 8192
# Beyond this many standard deviations the tail, even of MOST_GROUPS keys, is below the floating-point range.
_FAR = 40.0
# Both pure terms are calibrated to (1 - slack) delta. The first covers the rounding of mixed terms; at 1/2
# the sum of both is at most delta, which bounds every mixed term, so the last one always succeeds.
_SLACKS = (2.0**-40, 2.0**-30, 2.0**-20, 2.0**-10, 2.0**-5, 0.5)


@dataclass(frozen=True, slots=True)
class GshmPoint:
    """One calibrated sparse histogram.

    Attributes:
        rho: what the whole query spends in zCDP, presence count and aggregates together.
        sigma: standard deviation of the presence count's noise, in units (rounded up).
        tau: a key is shown if its noisy presence count exceeds 1 + tau, in units (rounded up).
        delta: exact delta of the query alone at the requested epsilon (rounded up).
        threshold_delta: what the ledger adds beside rho (rounded up).

    """

    rho: float
    sigma: float
    tau: float
    delta: float
    threshold_delta: float


@within_floats
def gshm_delta(
    epsilon: float,
    *,
    max_groups: int,
    sigma: float,
    tau: float,
    aggregate_precision: float = 0.0,
    analysis: Analysis = "exact",
) -> float:
    """Smallest delta for which the Gaussian sparse histogram is (epsilon, delta)-differentially private.

    Guarantee: (epsilon, delta) when all rows of one unit are added or removed, for counts and aggregates
        together.
    Source: Wilkins et al. 2024, Theorem 5.4, as restated in the correlated stability histogram paper, Lemma
        2.7 (analysis "exact"); Google Anonymization Team 2020, there Lemma 2.6 (analysis "add-the-deltas").
    Symbols: max_groups is k, log psi(n) = n log Phi(tau/sigma) is gamma(k - n).

    Args:
        epsilon: at least 0.
        max_groups: most keys that one unit touches, at least 1.
        sigma: standard deviation of the presence count's noise, above 0, in units.
        tau: at least 0, in units; a key is shown if its noisy count exceeds 1 + tau.
        aggregate_precision: sum over the aggregates of (sensitivity_l2 per key / their noise)^2, at least 0.
        analysis: the exact maximum over all splits, or the looser sum of both extreme cases.
    Returns: a probability, rounded up.
    Raises: CalibrationError for inputs outside these ranges.
    Assumes: continuous noise, independent between keys and columns, or its rounding at tau + half a lattice
        step.
    Randomness: none.

    >>> round(gshm_delta(1.0, max_groups=4, sigma=8.0, tau=35.0), 9)
    2.4286e-05

    """
    require_finite("epsilon", epsilon, least=0.0)
    if analysis not in {"exact", "add-the-deltas"}:
        raise CalibrationError(f"analysis must be 'exact' or 'add-the-deltas', got {analysis!r}")
    precision = _precision(sigma, aggregate_precision)
    only_new = threshold_delta(max_groups=max_groups, sigma=sigma, tau=tau)
    if not math.isfinite(max_groups * precision):
        return 1.0
    mu = math.sqrt(max_groups * precision)
    if analysis == "add-the-deltas":
        only_common = round_delta_up(float(log_delta_up(epsilon, mu)))
        return min(1.0, math.nextafter(only_new + only_common, math.inf))
    x = min(tau / sigma, _FAR)
    splits = _candidate_splits(epsilon, max_groups, x, precision)
    parts = np.array_split(splits, 1 + splits.size // _CHUNK)
    worst = max(
        float(way.max()) for part in parts for way in _log_split_deltas(epsilon, part, max_groups, x, precision)
    )
    return max(only_new, round_delta_up(worst))


@within_floats
def threshold_delta(*, max_groups: int, sigma: float, tau: float) -> float:
    """Probability that a unit alone in max_groups keys has any of them shown: 1 - Phi(tau/sigma)^max_groups.

    Guarantee: the mechanism is threshold_delta-approximate rho-zCDP with
        rho = max_groups (1/sigma^2 + aggregate_precision) / 2, when all rows of one unit are added or
        removed; the ledger adds rho and this delta.
    Source: delta_inf of Lemma 2.6; approximate zCDP: Bun and Steinke 2016, Definition 8.1; proof in
        docs/proofs/gshm.md.
    Args: as `gshm_delta`.
    Returns: a probability, rounded up.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(threshold_delta(max_groups=1, sigma=10.0, tau=30.0), 7)
    0.0013499
    """
    require_max_groups(max_groups)
    require_positive("sigma", sigma)
    require_finite("tau", tau, least=0.0)
    x = tau / sigma
    if x > _FAR:
        return math.nextafter(0.0, 1.0)
    shown = -math.expm1(max_groups * float(log_ndtr(x)))
    return min(1.0, math.nextafter(shown * (1.0 + _tail_error(x)), math.inf))


@lru_cache(maxsize=4096)
@within_floats
def threshold(delta: float, *, max_groups: int, sigma: float) -> float:
    """Smallest tau whose threshold part is at most delta.

    Guarantee, Source: as `threshold_delta`, of which this is the inverse.
    Args: delta strictly between 0 and 1; max_groups and sigma as `gshm_delta`.
    Returns: tau in units, at least 0, rounded up: threshold_delta(...) <= delta.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(threshold(1e-9, max_groups=10, sigma=5.0), 4)
    31.8067

    """
    require_delta(delta)
    require_max_groups(max_groups)
    require_positive("sigma", sigma)
    one_key = -math.expm1(math.log1p(-delta) / max_groups)
    tau = max(0.0, -sigma * float(ndtri(one_key)))
    step = 2.0**-50
    while threshold_delta(max_groups=max_groups, sigma=sigma, tau=tau) > delta:
        # The step grows because a delta near the end of the floating-point range may need a longer way.
        tau = math.nextafter(tau * (1.0 + step) + sigma * step, math.inf)
        step *= 2.0
    return tau


@lru_cache(maxsize=4096)
@within_floats
def gshm_threshold(
    epsilon: float,
    delta: float,
    *,
    max_groups: int,
    sigma: float,
    aggregate_precision: float = 0.0,
    analysis: Analysis = "exact",
) -> float:
    """Smallest tau for which the Gaussian sparse histogram is (epsilon, delta)-differentially private.

    Guarantee, Source, Symbols, Assumes: as `gshm_delta`, of which this is the inverse.
    Args: delta strictly between 0 and 1; the others as `gshm_delta`.
    Returns: tau in units, at least 0, rounded up: gshm_delta(...) <= delta.
    Raises: CalibrationError for inputs outside these ranges, and if the noise alone already costs delta.
    Randomness: none.

    >>> round(gshm_threshold(0.35, 1e-5, max_groups=10, sigma=31.0), 2)
    147.36

    """
    require_delta(delta)

    def is_safe(tau: float) -> bool:
        return (
            gshm_delta(
                epsilon,
                max_groups=max_groups,
                sigma=sigma,
                tau=tau,
                aggregate_precision=aggregate_precision,
                analysis=analysis,
            )
            <= delta
        )

    lowest = threshold(delta, max_groups=max_groups, sigma=sigma)
    if is_safe(lowest):
        return lowest
    # With every new key hidden for sure, what remains is the noise on the common keys.
    highest = 1.1 * _FAR * sigma
    if not is_safe(highest):
        raise CalibrationError(f"sigma = {sigma!r} is too small for epsilon = {epsilon!r}, delta = {delta!r}")
    return narrow(is_safe, lowest, highest)


@lru_cache(maxsize=4096)
@within_floats
def gshm_epsilon(delta: float, *, max_groups: int, sigma: float, tau: float, aggregate_precision: float = 0.0) -> float:
    """Smallest epsilon for which the Gaussian sparse histogram is (epsilon, delta)-differentially private.

    Guarantee, Source, Symbols, Assumes: as `gshm_delta`, of which this is the inverse.
    Args: delta strictly between 0 and 1; the others as `gshm_delta`.
    Returns: epsilon at least 0, rounded up: gshm_delta(epsilon, ...) <= delta.
    Raises: CalibrationError for inputs outside these ranges, and if delta is below the threshold part.
    Randomness: none.

    >>> round(gshm_epsilon(1e-5, max_groups=10, sigma=31.0, tau=147.5), 3)
    0.348

    """
    require_delta(delta)
    lost = threshold_delta(max_groups=max_groups, sigma=sigma, tau=tau)
    if lost > delta:
        raise CalibrationError(f"the threshold alone costs delta = {lost:.6g}, more than {delta:.6g}")

    def is_safe(epsilon: float) -> bool:
        return (
            gshm_delta(
                epsilon,
                max_groups=max_groups,
                sigma=sigma,
                tau=tau,
                aggregate_precision=aggregate_precision,
            )
            <= delta
        )

    return 0.0 if is_safe(0.0) else smallest_safe(is_safe, 1.0)


@lru_cache(maxsize=4096)
@within_floats
def best_gshm(epsilon: float, delta: float, *, max_groups: int, presence_share: float = 1.0) -> GshmPoint:
    """Noise and threshold of the (epsilon, delta)-private sparse histogram with the smallest threshold.

    Guarantee: the point is (epsilon, delta)-private when all rows of one unit are added or removed; certified
        by `gshm_delta` over every split before it is returned.
    Source: `gshm_delta`. No rho can exceed the one at which max_groups common keys alone cost delta, and no
        tau can be below the one at which max_groups new keys alone cost delta; tau falls as rho grows, so a
        certified point at both limits is the optimum.
    Symbols: the query spends rho = max_groups (1/sigma^2 + aggregate_precision) / 2.

    Args:
        epsilon: at least 0.
        delta: strictly between 0 and 1.
        max_groups: at least 1.
        presence_share: part of rho that the presence count gets, above 0 and at most 1.
    Returns: a point whose sigma, tau and deltas are rounded up and whose rho is rounded down.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(best_gshm(0.35, 1e-5, max_groups=10).tau, 1)
    146.6

    """
    require_finite("epsilon", epsilon, least=0.0)
    require_delta(delta)
    require_max_groups(max_groups)
    if require_positive("presence_share", presence_share) > 1.0:
        raise CalibrationError(f"presence_share must be at most 1, got {presence_share!r}")
    for slack in _SLACKS:
        point = _point(epsilon, delta * (1.0 - slack), max_groups, presence_share)
        if point.delta <= delta:
            return point
    raise CalibrationError(f"no sparse histogram meets epsilon = {epsilon!r}, delta = {delta!r}")


def _point(epsilon: float, target: float, max_groups: int, presence_share: float) -> GshmPoint:
    """Point at which either pure case alone costs the target, with its exact delta."""

    def is_safe(spread: float) -> bool:
        mu = 1.0 / spread
        return round_delta_up(float(log_delta_up(epsilon, mu))) <= target

    # spread = 1 / mu is the noise per unit of sensitivity, and rho = mu^2 / 2.
    spread = smallest_safe(is_safe, 1.0)
    rho = 0.5 / (spread * spread) * (1.0 - 2.0**-51)
    sigma = math.sqrt(max_groups / (2.0 * presence_share * rho)) * (1.0 + 2.0**-51)
    aggregate_precision = 2.0 * rho * (1.0 - presence_share) / max_groups
    tau = threshold(target, max_groups=max_groups, sigma=sigma)
    return GshmPoint(
        rho=rho,
        sigma=sigma,
        tau=tau,
        delta=gshm_delta(epsilon, max_groups=max_groups, sigma=sigma, tau=tau, aggregate_precision=aggregate_precision),
        threshold_delta=threshold_delta(max_groups=max_groups, sigma=sigma, tau=tau),
    )


def _precision(sigma: float, aggregate_precision: float) -> float:
    """Squared length that one common key adds to the Gaussian shift."""
    require_positive("sigma", sigma)
    require_finite("aggregate_precision", aggregate_precision, least=0.0)
    # Two divisions, because sigma^2 may underflow where 1/sigma is still a number.
    return (1.0 / sigma) / sigma + aggregate_precision


def _log_split_deltas(
    epsilon: float, common: Floats, max_groups: int, x: float, precision: float
) -> tuple[Floats, Floats]:
    """Deltas of the law with the unit against that without, and the reverse, per number of common keys.

    Both are logarithms, rounded up. The second never exceeds the first (docs/proofs/gshm.md), but
    it is cheap to certify.
    """
    hazard = -(max_groups - common) * float(log_ndtr(x))
    most, least = hazard * (1.0 + _tail_error(x)), hazard * (1.0 - _tail_error(x))
    mu = np.sqrt(common * precision)
    with np.errstate(divide="ignore"):
        log_shown = np.log(-np.expm1(-most))
    with_unit = np.logaddexp(log_shown, log_delta_up(epsilon + least, mu) - least)
    without_unit = log_delta_up(epsilon - most, mu)
    return with_unit, without_unit


def _candidate_splits(epsilon: float, max_groups: int, x: float, precision: float) -> Floats:
    """Numbers of common keys among which the largest delta is certain to be.

    A block is dropped only if its bound, the shown part of its first split plus the Gaussian part of its
    last, does not reach the larger of the two pure cases; that sum bounds both directions of every split in
    between.
    """
    if max_groups <= 2 * _BLOCKS:
        return np.arange(max_groups + 1, dtype=float)
    edges = np.linspace(0, max_groups, _BLOCKS + 1).astype(np.int64)
    first, last = edges[:-1], edges[1:]
    with np.errstate(divide="ignore"):
        log_shown = np.log(-np.expm1((max_groups - first) * float(log_ndtr(x))))
    log_gauss = log_delta(epsilon, np.sqrt(last * precision))
    at_least = max(float(log_shown[0]), float(log_gauss[-1]))
    kept = np.logaddexp(log_shown, log_gauss) >= at_least - 1e-9
    # The last split is a pure case and no block's first, so it is always looked at.
    return np.flatnonzero(np.append(np.repeat(kept, last - first), True)).astype(float)


def _tail_error(x: float) -> float:
    """Bound on the relative error of 1 - Phi(x)^n that comes from rounding x itself."""
    return 2.0**-46 * (1.0 + x * x)
