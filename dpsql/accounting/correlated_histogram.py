"""The correlated stability histogram: delta by four analyses, threshold, epsilon, and what the ledger adds.

The mechanism adds N(0, sigma^2) to the number of units of every key that has one, and one common draw of
N(0, correlation sigma^2) to all of them; it shows the keys whose noisy count exceeds 1 + tau, strictly. At most
k keys have a unit, whatever the data (a public list of k keys, or top-k pre-processing that always runs).
One unit raises counts by 1, or lowers them by 1, never both; half of that common move hides in the common
noise, which therefore replaces almost half of the noise of each key.

A pair of neighbours has n new keys, k - n common ones, and m of these change. `docs/proofs/csh-exact.md`
proves what is stated here, `docs/proofs/csh-zcdp.md` what the ledger adds.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from scipy.special import log_ndtr, ndtri

from dpsql.accounting.calibration import (
    narrow,
    place_of_minimum,
    require_delta,
    require_finite,
    require_max_groups,
    require_positive,
    smallest_safe,
    within_floats,
)
from dpsql.accounting.correlated_pair import Noise, worst_shift_squared
from dpsql.accounting.exceedance import FAR, FINE, shown_probabilities, shown_probability, shown_quantile
from dpsql.accounting.gaussian import Floats, shift_deltas
from dpsql.accounting.worst_pair import Setting, largest_delta, splits_above
from dpsql.errors import CalibrationError

CorrelatedAnalysis = Literal["exact", "improved", "tight", "add-the-deltas"]

# Finer thresholds than this (relative) would follow the slack of the integrals, not delta.
_RESOLUTION = 2.0**-30
# Nodes that suffice to drop most numbers of new keys.
_ROUGH = 512
_MOST_REFINED = 256
_UP = 1.0 + 2.0**-40


@within_floats
def csh_delta(
    epsilon: float,
    *,
    k: int,
    sigma: float,
    tau: float,
    analysis: CorrelatedAnalysis = "exact",
    correlation: float | None = None,
    max_groups: int | None = None,
    aggregate_precision: float = 0.0,
) -> float:
    """Delta for which the correlated stability histogram is (epsilon, delta)-differentially private.

    Guarantee: (epsilon, delta) when all rows of one unit are added or removed, for counts and aggregates
        together.
    Source: Lebeda and Retschmeier 2025, Theorem 3.3 ("add-the-deltas") and the first three terms of Theorem
        3.5 ("tight"), both for any correlation; docs/proofs/csh-exact.md, Theorem 1 ("improved": exact
        probability of showing a new key, exact largest distance) and Theorem 2 ("exact": the largest
        hockey-stick divergence over all pairs of neighbours, no smaller delta holds for all inputs).
    Symbols: 1/correlation is lambda, by default the paper's sqrt(k).

    Args:
        epsilon: at least 0.
        k: most keys with a unit, at least 1. It must hold for every input, not for this one.
        sigma: standard deviation of each key's own noise, above 0, in units.
        tau: at least 0, in units; a key is shown if its noisy count exceeds 1 + tau.
        analysis: each is at most those after it, except that "tight" may exceed "add-the-deltas".
        correlation: variance of the common noise over sigma^2, at least 0; None for 1/sqrt(k).
        max_groups: most keys one unit touches; None if that may be all k. **Only where k comes from a public list
            of k keys.** After top-k pre-processing one row can move all k counts, as it may raise the
            (k+1)-th, which is subtracted from all of them: leave it None there.
        aggregate_precision: sum over the aggregates of (sensitivity_l2 per key / their noise)^2, at least 0.
            A key's aggregates must change only if its count does, which top-k pre-processing breaks.
    Returns: a probability, rounded up ("exact": by at most a few millionths of itself where a pure case is
        the worst, less than a thousandth where a mixed pair is).
    Raises: CalibrationError for inputs outside these ranges.
    Assumes: continuous noise, or its sum rounded once on a lattice at tau + half a lattice step.
    Randomness: none.

    >>> round(csh_delta(0.35, k=10, sigma=17.5, tau=97.0), 8)
    1.138e-05

    """
    require_finite("epsilon", epsilon, least=0.0)
    if analysis not in get_args(CorrelatedAnalysis):
        raise CalibrationError(f"analysis must be one of {get_args(CorrelatedAnalysis)}, got {analysis!r}")
    noise, unit_keys = _setting(k, sigma, correlation, max_groups, aggregate_precision)
    x = require_finite("tau", tau, least=0.0) / sigma
    paper = analysis in {"tight", "add-the-deltas"}

    def shown(new: Floats, nodes: int = FINE) -> Floats:
        return _shown_split(new, x, noise) if paper else shown_probabilities(new, x, noise.correlation, nodes)

    def gauss(new: Floats) -> Floats:
        return _gauss(epsilon, k - new, np.minimum(unit_keys - new, k - new), noise, paper=paper)

    only_new, only_common = float(shown(np.array([float(unit_keys)]))[0]), float(gauss(np.zeros(1))[0])
    if analysis == "add-the-deltas":
        return min(1.0, (only_new + only_common) * _UP)
    least = max(only_new, only_common)
    if least >= 1.0:
        return 1.0
    splits = splits_above(least, unit_keys, lambda new: shown(new, _ROUGH), gauss)
    if splits and not paper:
        # Where very many survive they are mixed pairs that rule, and a rough bound has to do for the rest.
        splits.sort(key=lambda split: -split[1])
        new = np.array([float(new) for new, _ in splits[:_MOST_REFINED]])
        bounds = ((shown(new) + gauss(new)) * _UP).tolist()
        splits = [(int(new), bound) for new, bound in zip(new, bounds, strict=True)] + splits[_MOST_REFINED:]
    if analysis == "exact":
        return min(1.0, largest_delta(epsilon, least, splits, Setting(k, unit_keys, x, noise)))
    return min(1.0, max([least, *(bound for _, bound in splits)]))


@within_floats
def csh_threshold_delta(
    *, k: int, sigma: float, tau: float, correlation: float | None = None, max_groups: int | None = None
) -> float:
    """Probability that a unit alone in its keys has any of them shown.

    Guarantee: the mechanism is csh_threshold_delta-approximate `csh_rho`-zCDP when all rows of one unit are
        added or removed; the ledger adds rho and this delta.
    Source: delta_inf of Lebeda and Retschmeier 2025, exact; docs/proofs/csh-zcdp.md; approximate zCDP: Bun and
        Steinke 2016, Definition 8.1.
    Args: as `csh_delta`.
    Returns: a probability, rounded up (by at most two millionths of itself).
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(csh_threshold_delta(k=10, sigma=17.5, tau=97.0), 8)
    6.78e-06
    """
    noise, unit_keys = _setting(k, sigma, correlation, max_groups, 0.0)
    return shown_probability(unit_keys, require_finite("tau", tau, least=0.0) / sigma, noise.correlation)


@within_floats
def csh_rho(
    *,
    k: int,
    sigma: float,
    correlation: float | None = None,
    max_groups: int | None = None,
    aggregate_precision: float = 0.0,
) -> float:
    """Smallest rho of `csh_threshold_delta`-approximate rho-zCDP: half the largest squared distance of the means.

    Guarantee, Source, Raises: as `csh_threshold_delta`.
    Args: as `csh_delta`.
    Returns: rho above 0, rounded up.
    Randomness: none.

    >>> round(csh_rho(k=10, sigma=17.5), 6)
    0.005351
    """
    noise, unit_keys = _setting(k, sigma, correlation, max_groups, aggregate_precision)
    return 0.5 * float(worst_shift_squared(np.array([float(unit_keys)]), np.array([float(k)]), noise)[0])


@lru_cache(maxsize=4096)
@within_floats
def csh_sigma(rho: float, *, k: int, correlation: float | None = None, max_groups: int | None = None) -> float:
    """Smallest sigma at which the counts spend at most rho.

    Guarantee, Source: as `csh_rho`, of which this is the inverse.
    Args: rho above 0; the others as `csh_delta`.
    Returns: standard deviation of each key's own noise, in units, rounded up: csh_rho(...) <= rho.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(csh_sigma(0.02, k=10), 4)
    9.0516

    """
    require_positive("rho", rho)
    at_one = csh_rho(k=k, sigma=1.0, correlation=correlation, max_groups=max_groups)
    return math.sqrt(at_one / rho) * _UP


@lru_cache(maxsize=4096)
@within_floats
def csh_threshold(
    epsilon: float,
    delta: float,
    *,
    k: int,
    sigma: float,
    analysis: CorrelatedAnalysis = "exact",
    correlation: float | None = None,
    max_groups: int | None = None,
    aggregate_precision: float = 0.0,
) -> float:
    """Smallest tau for which the correlated stability histogram is (epsilon, delta)-differentially private.

    Guarantee, Source, Symbols, Assumes: as `csh_delta`, of which this is the inverse. For "add-the-deltas" it is
        Lemma 3.4 with 1 - delta + delta_gauss in place of the printed 1 - delta - delta_gauss, which would
        give a threshold that is too small.
    Args: delta strictly between 0 and 1; the others as `csh_delta`.
    Returns: tau in units, at least 0, rounded up: csh_delta(...) <= delta.
    Raises: CalibrationError for inputs outside these ranges, and if the noise alone already costs delta.
    Randomness: none.

    >>> round(csh_threshold(0.35, 1e-5, k=10, sigma=18.0), 2)
    98.16

    """
    require_delta(delta)
    noise, unit_keys = _setting(k, sigma, correlation, max_groups, aggregate_precision)

    def is_safe(tau: float) -> bool:
        return (
            csh_delta(
                epsilon,
                k=k,
                sigma=sigma,
                tau=tau,
                analysis=analysis,
                correlation=correlation,
                max_groups=max_groups,
                aggregate_precision=aggregate_precision,
            )
            <= delta
        )

    lowest = _lowest_threshold(delta, unit_keys, noise, analysis)
    if is_safe(lowest):
        return lowest
    # With every new key hidden for sure, what remains is the noise on the common keys.
    highest = 1.1 * FAR * (1.0 + math.sqrt(noise.correlation)) * sigma
    if not is_safe(highest):
        raise CalibrationError(f"sigma = {sigma!r} is too small for epsilon = {epsilon!r}, delta = {delta!r}")
    return narrow(is_safe, lowest, highest, _RESOLUTION)


@lru_cache(maxsize=4096)
@within_floats
def csh_epsilon(
    delta: float,
    *,
    k: int,
    sigma: float,
    tau: float,
    correlation: float | None = None,
    max_groups: int | None = None,
    aggregate_precision: float = 0.0,
) -> float:
    """Smallest epsilon for which the correlated stability histogram is (epsilon, delta)-differentially private.

    Guarantee, Source, Symbols, Assumes: as `csh_delta` with the exact analysis, of which this is the inverse.
    Args: delta strictly between 0 and 1; the others as `csh_delta`.
    Returns: epsilon at least 0, rounded up: csh_delta(epsilon, ...) <= delta.
    Raises: CalibrationError for inputs outside these ranges, and if delta is below the threshold part.
    Randomness: none.

    >>> round(csh_epsilon(1e-5, k=10, sigma=17.5, tau=97.0), 3)
    0.353

    """
    require_delta(delta)
    lost = csh_threshold_delta(k=k, sigma=sigma, tau=tau, correlation=correlation, max_groups=max_groups)
    if lost > delta:
        raise CalibrationError(f"the threshold alone costs delta = {lost:.6g}, more than {delta:.6g}")

    def is_safe(epsilon: float) -> bool:
        return (
            csh_delta(
                epsilon,
                k=k,
                sigma=sigma,
                tau=tau,
                correlation=correlation,
                max_groups=max_groups,
                aggregate_precision=aggregate_precision,
            )
            <= delta
        )

    return 0.0 if is_safe(0.0) else smallest_safe(is_safe, 1.0)


@lru_cache(maxsize=4096)
@within_floats
def quietest_correlation(k: int, max_groups: int | None = None) -> float:
    """Correlation of the correlated stability histogram on a public list of k keys with the least noise.

    Source: a count's variance at rho is `csh_rho` at sigma = 1, times (1 + correlation) / rho. Without a bound on
        a unit's keys it is least at 1/sqrt(k), up to whole numbers of keys (docs/proofs/csh-exact.md, 4).

    Args:
        k: most keys with a unit, at least 1.
        max_groups: most keys one unit touches; None for all of them.
    Returns: variance of the common noise over that of a key's own; 0 if no common noise beats none. Not rounded:
        any number is private, this one is as good as any.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(1.0 / quietest_correlation(100), 2), quietest_correlation(100, max_groups=1)
    (10.0, 0.0)
    """
    require_max_groups(k)

    def variance(correlation: float) -> float:
        return csh_rho(k=k, sigma=1.0, correlation=correlation, max_groups=max_groups) * (1.0 + correlation)

    grid = np.linspace(0.5 * math.log(k) - 2.0, math.log(k) + 2.0, 33).tolist()
    best = math.exp(-place_of_minimum(lambda log_inverse: variance(math.exp(-log_inverse)), grid, 1e-9))
    return best if variance(best) < variance(0.0) else 0.0


def correlation_or_default(k: int, correlation: float | None) -> float:
    """Return the paper's choice 1/sqrt(k) if none is given; refuse negative, infinite and missing numbers."""
    return 1.0 / math.sqrt(k) if correlation is None else require_finite("correlation", correlation, least=0.0)


def _setting(
    k: int, sigma: float, correlation: float | None, max_groups: int | None, aggregate_precision: float
) -> tuple[Noise, int]:
    """Refuse bad inputs; return the noise and the number of keys that one unit can touch."""
    require_max_groups(k)
    unit_keys = k if max_groups is None else min(require_max_groups(max_groups), k)
    precision = require_finite("aggregate_precision", aggregate_precision, least=0.0)
    return Noise(require_positive("sigma", sigma), correlation_or_default(k, correlation), precision), unit_keys


def _gauss(epsilon: float, common: Floats, most_changed: Floats, noise: Noise, *, paper: bool) -> Floats:
    """Delta of the common counts and aggregates alone: at their largest distance, or at the paper's bound on it."""
    if paper:
        own = 1.0 / noise.sigma / noise.sigma
        with np.errstate(divide="ignore"):
            # Half of the move is put on the common noise, or none of it; gamma(j) of Theorem 3.5.
            half = 0.25 * (common + np.divide(1.0, noise.correlation)) if noise.correlation > 0.0 else np.inf
        squared = (np.minimum(most_changed, half) * own + most_changed * noise.aggregate_precision) * _UP
    else:
        squared = worst_shift_squared(most_changed, common, noise)
    return shift_deltas(epsilon, squared)


def _shown_split(new: Floats, x: float, noise: Noise) -> Floats:
    """Bound of Lemma 3.2 on the probability that any of ``new`` keys is shown: 1 - psi(new)."""
    w = min(x / (1.0 + math.sqrt(noise.correlation)), FAR)
    extra = 1.0 if noise.correlation > 0.0 else 0.0
    shown = -np.expm1((new + extra) * float(log_ndtr(w))) * (1.0 + 2.0**-46 * (1.0 + w * w))
    return np.where(new > 0.0, np.clip(shown, math.nextafter(0.0, 1.0), 1.0), 0.0)


def _lowest_threshold(delta: float, unit_keys: int, noise: Noise, analysis: CorrelatedAnalysis) -> float:
    """Smallest tau, to rounding, at which new keys alone cost delta; no smaller one can be safe."""
    if analysis in {"exact", "improved"}:
        return shown_quantile(delta, unit_keys, noise.correlation) * noise.sigma
    terms = unit_keys + (noise.correlation > 0.0)
    quantile = -float(ndtri(-math.expm1(math.log1p(-delta) / terms)))
    return max(0.0, quantile * (1.0 + math.sqrt(noise.correlation)) * noise.sigma)
