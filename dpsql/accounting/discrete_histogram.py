"""The correlated stability histogram with discrete Gaussian noise in half counts: delta, epsilon, threshold, noise.

In half counts every key has noise N_Z(0, 4 sigma^2) of its own, and one draw of N_Z(0, 4 sigma^2 correlation) is
added to all. If the common term takes over half of a unit's move, every coordinate moves by exactly one step of
the lattice, whichever keys the unit touches. docs/proofs/discrete-gaussian.md proves what is stated here.

With a public list of keys the counts are all there is (`discrete_counts_...`, `discrete_rho`). With private keys the
chance of showing a new one is added, for one query alone.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache, partial
from numbers import Rational
from typing import Literal, get_args

import numpy as np
import scipy

from dpsql.accounting import zcdp
from dpsql.accounting.gaussian import Floats
from dpsql.accounting.profile import (
    UP,
    least_epsilon,
    require_delta,
    require_finite,
    require_max_groups,
    require_positive,
    within_floats,
)
from dpsql.errors import CalibrationError

DiscreteRoute = Literal["zcdp", "lattice"]

# Beyond this many standard deviations a discrete Gaussian has mass below 2 exp(-24^2 / 2) < 1e-124.
_REACH = 24.0
_CUT = 1e-124
# Common terms of smaller probability are not gone through; their mass is added instead.
_NEGLIGIBLE = 1e-30
# From this standard deviation on a law is kept in runs of points, and tails by Euler and Maclaurin's formula.
_WIDE = 2.0**12
# Variances in half counts at which the lattice is summed: every one that `rational_variance` gives and is drawn.
_LEAST, _MOST = 2.0**-24, 2.0**56
# Exponents are at most 24^2 / 2 in size and carry a few roundings each; sums add one per term.
_ROUNDING = 2.0**-52
_EXPONENT_ROUNDINGS = 1 << 14
# exp of a larger number leaves the floating-point range.
_MOST_EXPONENT = 700.0


class _Law:
    """N_Z(0, variance) cut at 24 standard deviations, every probability to `error` of itself.

    `masses` are those of runs of `run` neighbours, `points` the largest of each run: single points unless the law is
    wide. Whatever grows with the point is bounded from above by going through the runs.
    """

    def __init__(self, variance: float) -> None:
        sigma = math.sqrt(variance)
        # Odd, so that the middle of a run is a whole number.
        self.run = 2 * math.floor(sigma / _WIDE) + 1
        reach = math.ceil(_reach(variance) / self.run)
        middles = np.arange(-reach, reach + 1, dtype=float) * self.run
        squares = middles * middles / variance
        bend = (self.run * self.run - 1) / (24.0 * variance)
        weights = np.exp(-0.5 * squares) * (1.0 + bend * (squares - 1.0))
        self.points = middles + (self.run - 1) / 2
        self.masses = weights / weights.sum()
        self.error = _ROUNDING * (self.points.size + _EXPONENT_ROUNDINGS)
        if self.run > 1:
            self.error += 400.0 * (self.run / sigma) ** 4


class _Tails:
    """Probabilities that N_Z(0, variance) exceeds a whole number, to `error` of themselves and what is cut."""

    def __init__(self, variance: float) -> None:
        self.reach = _reach(variance)
        self._sigma = math.sqrt(variance)
        self.error = 2.0**-38
        self._sums: Floats | None = None
        if self._sigma < _WIDE:
            law = _law(variance)
            # Summed from the far end, so that the smallest tails are exact too.
            self._sums = np.append(np.cumsum(law.masses[::-1])[::-1], 0.0)
            self.error = 2.0 * law.error

    def above(self, bounds: Floats) -> Floats:
        if self._sums is None:
            u = np.clip((bounds + 0.5) / self._sigma, -2.0 * _REACH, 2.0 * _REACH)
            bend = u * np.exp(-0.5 * u * u) / (24.0 * math.sqrt(2.0 * math.pi) * self._sigma**2)
            return np.asarray(np.where(u > _REACH, 0.0, scipy.special.ndtr(-u) - bend))
        places = np.clip(bounds + (self.reach + 1), 0, self._sums.size - 1)
        return np.asarray(self._sums[places.astype(np.int64)])


def _reach(variance: float) -> int:
    return math.ceil(_REACH * math.sqrt(variance)) + 1


_law, _tails = lru_cache(maxsize=16)(_Law), lru_cache(maxsize=16)(_Tails)


@within_floats
def discrete_shown_probability(
    k: int, variance: float | Rational, correlation: float | Rational, tau: float | Rational
) -> float:
    """Probability that a unit alone in k keys has any of them shown.

    Guarantee: probability of H + (Z + F) / 2 > 1 + tau for any of k keys with H = 1.
    Source: delta_inf of Lebeda and Retschmeier 2025, Theorem 7.7, exact where Lemma 7.6 is a bound: given the
        common term the keys are independent. Where the common term's standard deviation is 2^12 half counts or
        more, it is the probability at a tau that is smaller by at most 2^-11 of that deviation.
    Symbols: variance is sigma^2, 1/correlation is lambda.

    Args:
        k: number of keys, at least 1.
        variance: of each key's own noise, above 0, in squared counts; the very one that is drawn.
        correlation: variance of the common noise over it, above 0.
        tau: at least 0, in counts.
    Returns: a probability, rounded up.
    Raises: CalibrationError for inputs outside these ranges, and for noise that cannot be drawn: a variance, of
        either term in squared half counts, outside 2^-24 to 2^56.
    Randomness: none.

    >>> round(discrete_shown_probability(10, 324.0, 0.316, 97.5), 8)
    1.1e-05

    """
    require_max_groups(k)
    own, common = _drawn_laws(variance, correlation)
    steps = math.floor(2.0 * require_finite("tau", tau, least=0.0))
    single = own.above(steps - common.points)
    with np.errstate(divide="ignore"):
        any_shown = -np.expm1(k * np.log1p(-np.minimum(single * (1.0 + own.error), 1.0)))
    total = float(any_shown @ common.masses) * (1.0 + own.error + 2.0 * common.error)
    return float(min(1.0, total * UP + (k + 2) * _CUT))


@within_floats
def discrete_rho(k: int, variance: float | Rational, correlation: float | Rational) -> float:
    """Rho of the counts of k public keys.

    Guarantee: with public keys the mechanism is rho-zCDP when all rows of one unit are added or removed.
    Source: Lebeda and Retschmeier 2025, Lemma 7.5, for any correlation: (k + lambda) / (8 sigma^2).

    Args: as `discrete_shown_probability`.
    Returns: rho above 0, rounded up.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(discrete_rho(10, 324.0, 0.316), 6)
    0.005079
    """
    return _one_step_rho(k, correlation) / require_positive("variance", variance) * UP


@within_floats
def discrete_sigma(rho: float, *, k: int, correlation: float | Rational) -> float:
    """Smallest sigma at which the counts of k public keys spend at most rho.

    Guarantee, Source: as `discrete_rho`, of which this is the inverse.
    Args: rho above 0; the others as `discrete_rho`.
    Returns: standard deviation of each key's own noise in counts, rounded up; `rational_variance` rounds its square
        up once more.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(discrete_sigma(0.02, k=10, correlation=0.316), 3)
    9.071
    """
    return math.sqrt(_one_step_rho(k, correlation) / require_positive("rho", rho)) * UP


@within_floats
def discrete_counts_delta(
    epsilon: float,
    *,
    k: int,
    variance: float | Rational,
    correlation: float | Rational,
    route: DiscreteRoute = "lattice",
) -> float:
    """Delta for which the counts of k public keys with discrete noise are (epsilon, delta)-differentially private.

    Guarantee: (epsilon, delta) when all rows of one unit are added or removed, for the counts of all k keys.
    Source: by zCDP, `discrete_rho` and its optimal conversion (Canonne, Kamath and Steinke 2020, Proposition 12); on
        the lattice, the exact delta of k + 1 discrete Gaussians that all move by one step
        (docs/proofs/discrete-gaussian.md, Theorem 3).

    Args: epsilon at least 0; the others as `discrete_rho`.
        route: "zcdp", or "lattice", the smaller of both. The lattice is summed at variances of both terms from 2^-24
            to 2^56 squared half counts; at others "lattice" is "zcdp".
    Returns: a probability, rounded up. On the lattice, where the common term's standard deviation is 2^12 half counts
        or more, it is, rounding aside, at most the exact delta at an epsilon that is smaller by
        2^-11 sqrt(lambda) / (2 sigma).
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(discrete_counts_delta(0.35, k=10, variance=324.0, correlation=0.316), 8)
    7.82e-06
    """
    if route not in get_args(DiscreteRoute):
        raise CalibrationError(f"route must be one of {get_args(DiscreteRoute)}, got {route!r}")
    require_finite("epsilon", epsilon, least=0.0)
    converted = zcdp.delta(epsilon, discrete_rho(k, variance, correlation))
    if route == "zcdp" or not _can_be_drawn(variance, correlation):
        return converted
    return min(converted, _lattice_delta(epsilon, k, float(variance), float(correlation)))


@lru_cache(maxsize=4096)
@within_floats
def discrete_counts_epsilon(
    delta: float, *, k: int, variance: float | Rational, correlation: float | Rational
) -> float:
    """Smallest epsilon for which the counts of k public keys are (epsilon, delta)-differentially private.

    Guarantee, Source: as `discrete_counts_delta` by way of the lattice, of which this is the inverse.
    Args: delta strictly between 0 and 1; the others as `discrete_counts_delta`.
    Returns: epsilon at least 0, rounded up: discrete_counts_delta(epsilon, ...) <= delta.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(discrete_counts_epsilon(1e-5, k=10, variance=324.0, correlation=0.316), 4)
    0.3436
    """
    cost = partial(discrete_counts_delta, k=k, variance=variance, correlation=correlation)
    return least_epsilon(cost, delta, zcdp.epsilon(delta, discrete_rho(k, variance, correlation)))


@within_floats
def discrete_delta(
    epsilon: float,
    *,
    k: int,
    variance: float | Rational,
    correlation: float | Rational,
    tau: float | Rational,
    route: DiscreteRoute = "lattice",
) -> float:
    """Delta for which the histogram with discrete noise is (epsilon, delta)-differentially private.

    Guarantee: (epsilon, delta) when all rows of one unit are added or removed, for the counts and which keys are
        shown, in one query alone: no ledger adds this up.
    Source: Lebeda and Retschmeier 2025, Theorem 7.7 (add the deltas), with the exact probability of showing a new
        key and `discrete_counts_delta`.

    Args: as `discrete_counts_delta` and `discrete_shown_probability`.
    Returns: a probability, rounded up.
    Raises: CalibrationError as both.
    Randomness: none.

    >>> round(discrete_delta(0.35, k=10, variance=342.25, correlation=0.316, tau=103.5), 8)
    1.024e-05

    """
    shown = discrete_shown_probability(k, variance, correlation, tau)
    counts = discrete_counts_delta(epsilon, k=k, variance=variance, correlation=correlation, route=route)
    return min(1.0, (shown + counts) * UP)


@within_floats
def discrete_threshold(
    epsilon: float,
    delta: float,
    *,
    k: int,
    variance: float | Rational,
    correlation: float | Rational,
    route: DiscreteRoute = "lattice",
) -> float:
    """Smallest tau for which the histogram with discrete noise is (epsilon, delta)-differentially private.

    Guarantee, Source: as `discrete_delta`, of which this is the inverse.
    Args: delta strictly between 0 and 1; the others as `discrete_delta`.
    Returns: tau, a whole number of half counts, in counts: discrete_delta(...) <= delta.
    Raises: CalibrationError as `discrete_delta`, and if the noise alone already costs delta.
    Randomness: none.

    >>> discrete_threshold(0.35, 1e-5, k=10, variance=342.25, correlation=0.316)
    104.0
    """
    require_delta(delta)
    counts = discrete_counts_delta(epsilon, k=k, variance=variance, correlation=correlation, route=route)
    own, common = _drawn_laws(variance, correlation)

    def is_safe(steps: int) -> bool:
        return (discrete_shown_probability(k, variance, correlation, 0.5 * steps) + counts) * UP <= delta

    farthest = own.reach + int(common.points[-1])
    if not is_safe(farthest):
        raise CalibrationError(f"variance = {variance!r} is too small for epsilon = {epsilon!r}, delta = {delta!r}")
    return 0.5 * bisect_left(range(farthest), True, key=is_safe)


def _one_step_rho(k: int, correlation: float | Rational) -> float:
    return (require_max_groups(k) + 1.0 / require_positive("correlation", correlation)) / 8.0


def _half_count_variances(variance: float | Rational, correlation: float | Rational) -> tuple[float, float]:
    own = 4.0 * require_positive("variance", variance)
    return own, own * require_positive("correlation", correlation)


def _can_be_drawn(variance: float | Rational, correlation: float | Rational) -> bool:
    return all(_LEAST <= term <= _MOST for term in _half_count_variances(variance, correlation))


def _drawn_laws(variance: float | Rational, correlation: float | Rational) -> tuple[_Tails, _Law]:
    """The tails of a key's own noise and the law of the common term, in half counts."""
    own, common = _half_count_variances(variance, correlation)
    if not _can_be_drawn(variance, correlation):
        raise CalibrationError(f"noise of variance {own:.6g} and {common:.6g} squared half counts cannot be drawn")
    return _tails(own), _law(common)


def _lattice_delta(epsilon: float, k: int, variance: float, correlation: float) -> float:
    """Exact delta of k + 1 independent discrete Gaussians that all move by one step, rounded up.

    The loss is ((2 T + k) + (2 X + 1) / correlation) / (8 variance), where X is the common term and T, the sum of the
    keys' own noise, is N_Z(0, 4 k variance) up to a factor exp(+-spread) (Theorem 3).
    """
    own, common, step = _tails(4.0 * k * variance), _law(4.0 * variance * correlation), 8.0 * variance
    kept = common.masses > _NEGLIGIBLE
    masses, losses = common.masses[kept], (2.0 * common.points[kept] + 1.0) / (step * correlation)
    # Beyond the largest loss nothing falls with epsilon, but a product might overflow.
    left = min(epsilon, 1e100) - losses
    bounds = np.floor(0.5 * (step * left - k))
    exceeded = float(masses @ own.above(bounds))
    # Without the unit T lies lower by k. A smaller factor only makes delta larger.
    likelier = float((masses * np.exp(np.minimum(left, _MOST_EXPONENT))) @ own.above(bounds + k))
    doubtful = float(masses @ own.above(bounds - 1.0))
    sizes = min(epsilon, 1e100) + float(np.abs(losses).max()) + (2 * own.reach + k) / step
    error = 2.0 * (own.error + common.error) + 4.0 * _ROUNDING * sizes
    total = max(0.0, exceeded - likelier) + error * (exceeded + likelier + doubtful)
    cut = 3.0 * _CUT + _NEGLIGIBLE * float(np.count_nonzero(~kept))
    return float(min(1.0, (total * math.exp(_spread(k, variance)) + cut) * UP))


def _spread(k: int, variance: float) -> float:
    """Bound on |ln(P(T = t) / N_Z(0, 4 k variance)(t))| for the sum T of k draws from N_Z(0, 4 variance)."""
    first = math.exp(-4.0 * math.pi * math.pi * variance)
    ripple = 2.0 * first / (1.0 - first**3)
    if k == 1 or ripple >= 1.0:
        return 0.0 if k == 1 else _MOST_EXPONENT
    return min(_MOST_EXPONENT, 2.0 * (k - 1) * math.atanh(ripple) * UP)
