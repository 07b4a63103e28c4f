"""Generalized discrete Laplace noise: the difference of two negative binomial numbers of one shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp

from dpsql.errors import CalibrationError
from dpsql.noise.divisible.exponential_powers import require_gamma
from dpsql.noise.divisible.law import (
    Logs,
    decay_of,
    gamma_for,
    laplace_variance,
    require_change,
    require_epsilon,
    require_parties,
    rounded_up,
)
from dpsql.noise.divisible.negative_binomial import (
    LARGEST_DENOMINATOR,
    draw_negative_binomials,
    require_count,
    require_shape,
)
from dpsql.noise.entropy import Entropy, Integers

_SHAPES = 13
_ROUNDS = 3
_LEAST_DECAY = 1e-5
_NODE_DISTANCE = 1 / 24
_NEGLIGIBLE = 45.0
_BLOCK = 1 << 11
_MOST_TERMS = 1 << 22
_MOST_WORK = 10**9


@dataclass(frozen=True, slots=True)
class GeneralizedDiscreteLaplace:
    """Noise that is the difference of two negative binomial numbers NB(shape, p), p = exp(-gamma).

    Sums of this noise have the same law with a larger shape. Shape 1 is discrete Laplace noise.

    *Guarantee*: an exact whole number plus this noise is epsilon(max_change)-DP for changes of at most max_change.
    *Source*: Harrison and Manurangsi 2025, Definition 9 and Theorem 13; docs/proofs/divisible-noise.md, 2.
    *Symbols*: `shape` is beta; a = -log(1 - exp(-gamma)).
    *Args*: `shape`, a Fraction above 0 with a denominator of at most 10**6; `gamma`, a Fraction above 0.
    *Raises*: CalibrationError for any other.
    """

    shape: Fraction
    gamma: Fraction

    def __post_init__(self) -> None:
        require_shape(self.shape)
        require_gamma(self.gamma)

    @classmethod
    def of(cls, epsilon: float, max_change: int, parties: int = 1) -> GeneralizedDiscreteLaplace:
        """Return the law of least variance that costs at most epsilon and has shares for this number of parties.

        The search is a grid over shapes from 1 downwards, refined around its best. It is an upper bound of the best.

        >>> round(GeneralizedDiscreteLaplace.of(8, 20).variance, 1)
        7.8
        """
        return _best(require_epsilon(epsilon), require_change(max_change), require_parties(parties))

    @classmethod
    def of_theorem_15(cls, epsilon: float, max_change: int) -> GeneralizedDiscreteLaplace:
        """Return the law with shape max_change exp(2 - epsilon) and a = 2 / max_change.

        *Source*: Harrison and Manurangsi 2025, Theorem 15.
        *Raises*: CalibrationError unless epsilon is above 2 + log(max_change).
        """
        wanted, change = require_epsilon(epsilon), require_change(max_change)
        if wanted <= 2 + math.log(change):
            raise CalibrationError(
                f"Theorem 15 needs an epsilon above 2 + log(max_change) = {2 + math.log(change):.4g}, got {wanted:.4g}"
            )
        shape = math.ceil(change * math.exp(2 - wanted) * LARGEST_DENOMINATOR)
        return cls(min(Fraction(shape, LARGEST_DENOMINATOR), Fraction(1)), gamma_for(2 / change))

    @property
    def variance(self) -> float:
        """Return shape / (cosh(a) - 1)."""
        return float(self.shape) * laplace_variance(self.gamma)

    def log_pmf(self, x: Integers) -> Logs:
        """Return the logarithms of equation (2) of the paper."""
        return _log_pmf(np.abs(np.asarray(x, dtype=np.int64)), self.shape, decay_of(self.gamma))

    def epsilon(self, max_change: int) -> float:
        """Return log(P(0) / P(max_change)) for shapes below 1, and a max_change from 1 on; rounded up."""
        change = require_change(max_change)
        return rounded_up(_loss(self.shape, decay_of(self.gamma), change))

    def draw(self, count: int, entropy: Entropy) -> Integers:
        """Return `count` independent draws."""
        drawn = draw_negative_binomials(self.shape, self.gamma, 2 * require_count(count), entropy)
        return drawn[:count] - drawn[count:]

    def share(self, parties: int) -> GeneralizedDiscreteLaplace:
        """Return the noise of one party, of the same gamma and shape / parties."""
        shape = self.shape / require_parties(parties)
        if shape.denominator > LARGEST_DENOMINATOR:
            raise CalibrationError(
                f"a share of shape {self.shape} / {parties:,} has a denominator above 10**6: choose the law with "
                f"parties={parties}, then it has shares for this number of parties"
            )
        return GeneralizedDiscreteLaplace(shape, self.gamma)


def _loss(shape: Fraction, decay: float, max_change: int) -> float:
    """Return Theorem 13's epsilon; the lengths of both steps of its proof are exact, so it is the smallest."""
    if shape >= 1:
        return decay * max_change
    at_zero, at_change = _log_pmf(np.array([0, max_change]), shape, decay).tolist()
    return float(at_zero - at_change)


def _best(epsilon: float, max_change: int, parties: int) -> GeneralizedDiscreteLaplace:
    """Return the best of a refined grid of shapes; shape 1, discrete Laplace, is always one of them."""
    parts = LARGEST_DENOMINATOR // parties
    best = GeneralizedDiscreteLaplace(Fraction(1), gamma_for(epsilon / max_change))
    # Below this shape no decay is small enough: epsilon exceeds log(1 / shape), up to a small constant.
    low, high = max(math.exp(-epsilon) / 4, 1 / parts), 1.0
    for _ in range(_ROUNDS):
        grid = np.geomspace(low, high, _SHAPES)
        for shape in dict.fromkeys(Fraction(max(round(beta * parts), 1), parts) for beta in grid.tolist()):
            found = _of_shape(shape, epsilon, max_change)
            if found is not None and found.variance < best.variance:
                best = found
        ratio = grid[1] / grid[0]
        low, high = max(float(best.shape) / ratio, 1 / parts), min(float(best.shape) * ratio, 1.0)
    return best


def _of_shape(shape: Fraction, epsilon: float, max_change: int) -> GeneralizedDiscreteLaplace | None:
    """Return the law of a shape below 1 with the largest decay that costs at most epsilon, or None if none does."""

    def excess(log_decay: float) -> float:
        return _loss(shape, math.exp(log_decay), max_change) - epsilon

    low, high = math.log(_LEAST_DECAY / max_change), math.log(epsilon / max_change)
    if shape >= 1 or excess(low) > 0:
        return None
    decay = math.exp(float(brentq(excess, low, high, xtol=1e-11)))
    for retry in range(4):
        found = GeneralizedDiscreteLaplace(shape, gamma_for(decay * (1 - retry * 1e-10)))
        if found.epsilon(max_change) <= epsilon:
            return found
    return None


def _log_pmf(sizes: Integers, shape: Fraction, decay: float) -> Logs:
    """Return the logarithms of the probabilities of `sizes`, whole numbers of at least 0.

    *Source*: Harrison and Manurangsi 2025, equation (2). Its hypergeometric function is an integral of positive terms
    for shapes below 1, and a sum of positive terms for others: docs/proofs/divisible-noise.md, 2.
    """
    if shape == 1:
        line: Logs = math.log(math.tanh(decay / 2)) - decay * sizes.astype(np.float64)
        return line
    distinct, places = np.unique(sizes, return_inverse=True)
    values = np.empty(distinct.size)
    for start in range(0, distinct.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        if shape < 1:
            values[part] = _by_integral(distinct[part], shape, decay)
        else:
            values[part] = _by_sum(distinct[part], float(shape), decay)
    result: Logs = values[places].reshape(sizes.shape)
    return result


def _by_integral(sizes: Integers, shape: Fraction, decay: float) -> Logs:
    """Return Euler's integral over u = -log(t) by the trapezoidal rule, after u = exp(s - exp(-s))."""
    beta, rest = float(shape), float(1 - shape)
    # Left of the first node u^(1 - beta) is negligible, right of the last one exp(-beta u) is.
    first = -math.log(_NEGLIGIBLE / rest) - 1
    last = math.log(_NEGLIGIBLE / beta) + 1
    s = np.arange(math.floor(first / _NODE_DISTANCE), math.ceil(last / _NODE_DISTANCE) + 1) * _NODE_DISTANCE
    log_u = s - np.exp(-s)
    u = np.exp(log_u)
    tiny = u < 1e-12
    # log((1 - exp(-u)) / u) and log(1 - exp(-2 decay - u)).
    log_one = np.where(tiny, 0.0, np.log(-np.expm1(-np.where(tiny, 1.0, u))) - log_u)
    log_two = np.log(-np.expm1(-2 * decay - u))
    weights = rest * log_u + np.log1p(np.exp(-s)) - beta * (u + log_one + log_two) + math.log(_NODE_DISTANCE)
    log_p = math.log(-math.expm1(-decay))
    constant = 2 * beta * log_p + math.log(math.sin(math.pi * min(beta, rest)) / math.pi)
    sums = np.asarray(logsumexp(weights - sizes[:, None] * u, axis=1), dtype=np.float64)
    logs: Logs = constant - decay * sizes.astype(np.float64) + sums
    return logs


def _by_sum(sizes: Integers, beta: float, decay: float) -> Logs:
    """Return the logarithms of sums over s of P(NB = s) P(NB = s + size)."""
    terms = 64 + math.ceil((_NEGLIGIBLE + 4 * beta + 2 * beta * math.log1p(1 / decay)) / decay)
    if terms > _MOST_TERMS or terms * sizes.size > _MOST_WORK:
        raise CalibrationError(
            "these probabilities ask for too many operations: take a larger decay or a smaller shape"
        )
    s = np.arange(terms, dtype=np.float64)
    log_p = math.log(-math.expm1(-decay))
    own = gammaln(beta + s) - gammaln(1 + s) - math.lgamma(beta) - 2 * decay * s
    logs = np.empty(sizes.size)
    for place, size in enumerate(sizes.tolist()):
        shifted = gammaln(beta + s + size) - gammaln(1 + s + size) - math.lgamma(beta)
        logs[place] = 2 * beta * log_p - decay * size + float(logsumexp(own + shifted))
    return logs
