"""Generalized discrete Laplace noise: the difference of two negative binomial numbers of one shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.optimize import brentq

from dpsql.errors import CalibrationError
from dpsql.noise.divisible.exponential_powers import require_gamma
from dpsql.noise.divisible.gdl_pmf import log_pmf
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
        return log_pmf(np.abs(np.asarray(x, dtype=np.int64)), self.shape, decay_of(self.gamma))

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
    at_zero, at_change = log_pmf(np.array([0, max_change]), shape, decay).tolist()
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
