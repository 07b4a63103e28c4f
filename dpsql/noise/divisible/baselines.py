"""Laws to compare with that cannot be drawn in shares, or whose privacy is not proven: nothing is drawn from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, kve

from dpsql.noise.divisible.law import Logs, require_change, require_epsilon, require_size, require_whole
from dpsql.noise.divisible.split import Numbers
from dpsql.noise.entropy import Integers

_NODE_DISTANCE = 1 / 256
_FIRST, _LAST = -40.0, 4.5
_BLOCK = 1 << 8


@dataclass(frozen=True, slots=True)
class DiscreteStaircase:
    """The noise on whole numbers of least variance at one epsilon; no sum of independent shares has this law.

    *Source*: Geng and Viswanath 2014; Harrison and Manurangsi 2025, Definition 33.
    *Symbols*: `inner` is r, the numbers 0 to r - 1 have one probability; b = exp(-epsilon).
    """

    loss: float
    max_change: int
    inner: int

    def __post_init__(self) -> None:
        require_epsilon(self.loss)
        require_whole("inner", self.inner, require_change(self.max_change))

    @classmethod
    def of(cls, epsilon: float, max_change: int) -> DiscreteStaircase:
        """Return the staircase of least variance.

        >>> round(DiscreteStaircase.of(8, 20).variance, 2)
        1.4
        """
        loss, change = require_epsilon(epsilon), require_change(max_change)
        return min((cls(loss, change, inner) for inner in range(1, change + 1)), key=lambda law: law.variance)

    @property
    def variance(self) -> float:
        """Return the variance; equal to Lemma 34, without its cancellations at large epsilon."""
        b, rest, inner, change = math.exp(-self.loss), -math.expm1(-self.loss), self.inner, self.max_change
        centre = (inner - 1) * inner * (2 * inner - 1) / 3
        # Sums of m and m^2 over one stair, which begins at `inner`.
        first = change * inner + change * (change - 1) / 2
        second = change * inner**2 + inner * change * (change - 1) + (change - 1) * change * (2 * change - 1) / 6
        stairs = change**3 * b * (1 + b) / rest**3 + 2 * change * first * b / rest**2 + second / rest
        return math.exp(self._log_top()) * (centre + 2 * b * stairs)

    def log_pmf(self, x: Integers) -> Logs:
        """Return the logarithms of the probabilities."""
        stairs = (np.abs(np.asarray(x, dtype=np.int64)) + self.max_change - self.inner) // self.max_change
        return self._log_top() - self.loss * stairs

    def epsilon(self, max_change: int) -> float:
        """Return the smallest epsilon: one loss for each stair that a change can cross."""
        return self.loss * -(-require_change(max_change) // self.max_change)

    def _log_top(self) -> float:
        rest = -math.expm1(-self.loss)
        ends = 2 * self.inner + 2 * math.exp(-self.loss) * (self.max_change - self.inner) - rest
        return math.log(rest / ends)


def continuous_staircase_variance(epsilon: float, max_change: float) -> float:
    """Return the least variance of all continuous noise at one epsilon.

    *Source*: Geng and Viswanath 2014, equation (51).

    >>> round(continuous_staircase_variance(10, 100), 2)
    8.47
    """
    b = math.exp(-require_epsilon(epsilon))
    variance: float = require_size(max_change) ** 2 * ((b * (1 + b) / 2) ** (2 / 3) + b) / math.expm1(-epsilon) ** 2
    return variance


@dataclass(frozen=True, slots=True)
class Arete:
    """Noise Z_1 - Z_2 + Z_3 of two gamma numbers of `shape` and `width`, and Laplace noise of scale `scale`.

    *Source*: Pagh and Stausholm 2022; Harrison and Manurangsi 2025, Definition 36. For figures only.
    *Symbols*: `shape` is k, `width` is theta, `scale` is lambda.
    """

    shape: float
    width: float
    scale: float

    @classmethod
    def of_conjecture_30(cls, epsilon: float, max_change: float) -> Arete:
        """Return the law of Conjecture 30 with t = 0. That it is epsilon-DP is not proven."""
        loss, change = require_epsilon(epsilon), require_size(max_change)
        return cls(math.exp(-2 * loss / 3), change / math.log(2), change * math.exp(-loss / 3))

    @property
    def variance(self) -> float:
        """Return 2 shape width^2 + 2 scale^2."""
        return 2 * self.shape * self.width**2 + 2 * self.scale**2

    def density(self, x: Numbers) -> Numbers:
        """Return the density: Laplace noise around the difference of the gamma numbers, whose size is integrated.

        Sizes u = exp(s) are in units of the width. All sizes below the first node are taken as 0.
        """
        s = np.arange(_FIRST, _LAST, _NODE_DISTANCE)
        u, order = np.exp(s), self.shape - 0.5
        # Twice the density of the difference at u, times u: a Bessel function.
        logs = (order + 1) * s - order * math.log(2) + np.log(kve(order, u)) - u
        weights = 2 * _NODE_DISTANCE * np.exp(logs - gammaln(self.shape)) / math.sqrt(math.pi)
        places = np.abs(np.atleast_1d(np.asarray(x, dtype=np.float64)))
        densities = np.exp(-places / self.scale) / (2 * self.scale) * max(1 - float(weights.sum()), 0.0)
        for start in range(0, places.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            distance = places[part, None]
            below, above = np.abs(distance - self.width * u), distance + self.width * u
            smoothed = (np.exp(-below / self.scale) + np.exp(-above / self.scale)) / (4 * self.scale)
            densities[part] += smoothed @ weights
        return densities
