"""Discrete Laplace noise that n parties can share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpsql.noise.divisible.exponential_powers import require_gamma
from dpsql.noise.divisible.gdl import GeneralizedDiscreteLaplace
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
from dpsql.noise.divisible.negative_binomial import draw_negative_binomials, require_count
from dpsql.noise.entropy import Entropy, Integers


@dataclass(frozen=True, slots=True)
class DiscreteLaplace:
    """Noise with P(x) proportional to exp(-a |x|).

    *Guarantee*: an exact whole number plus this noise is epsilon(max_change)-DP for changes of at most max_change.
    *Source*: Ghosh, Roughgarden and Sundararajan 2009; its shares: Harrison and Manurangsi 2025, Section 2.
    *Symbols*: a = -log(1 - exp(-gamma)), the decay.
    *Args*: `gamma`, a Fraction above 0; p = exp(-gamma) is the chance of success of the negative binomial law.
    *Raises*: CalibrationError for any other gamma.
    """

    gamma: Fraction

    def __post_init__(self) -> None:
        require_gamma(self.gamma)

    @classmethod
    def of(cls, epsilon: float, max_change: int) -> DiscreteLaplace:
        """Return the law that costs at most epsilon.

        >>> round(DiscreteLaplace.of(8, 20).variance, 1)
        12.3
        """
        return cls(gamma_for(require_epsilon(epsilon) / require_change(max_change)))

    @property
    def variance(self) -> float:
        """Return 1 / (cosh(a) - 1)."""
        return laplace_variance(self.gamma)

    def log_pmf(self, x: Integers) -> Logs:
        """Return the logarithms of tanh(a / 2) exp(-a |x|)."""
        decay = decay_of(self.gamma)
        logs: Logs = math.log(math.tanh(decay / 2)) - decay * np.abs(np.asarray(x, dtype=np.float64))
        return logs

    def epsilon(self, max_change: int) -> float:
        """Return a max_change, rounded up."""
        return rounded_up(decay_of(self.gamma) * require_change(max_change))

    def draw(self, count: int, entropy: Entropy) -> Integers:
        """Return `count` independent draws: differences of two geometric numbers."""
        drawn = draw_negative_binomials(Fraction(1), self.gamma, 2 * require_count(count), entropy)
        return drawn[:count] - drawn[count:]

    def share(self, parties: int) -> GeneralizedDiscreteLaplace:
        """Return the noise of one party: the difference of two negative binomials of shape 1 / parties."""
        return GeneralizedDiscreteLaplace(Fraction(1, require_parties(parties)), self.gamma)
