"""Gaussian lossless multiple release: independent noise, or noise with a term that all keys share.

The top rises by composition: a fresh release at the difference of levels, averaged by inverse variance. Lower
points are Brownian bridges between the values there are. All weights are rational; floating-point numbers enter
where published values are averaged, which is post-processing: their errors are bounded below, cost accuracy
and never privacy. Proofs: docs/proofs/cascade.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpsql.errors import CalibrationError
from dpsql.noise.entropy import Entropy
from dpsql.noise.law import Values, require_alike, require_level, require_order
from dpsql.noise.rounded_gaussian import RoundedGaussian


@dataclass(frozen=True, slots=True)
class Combination:
    """A new point: base + weight (other - base) + noise.

    Attributes:
        weight: of the other point; the base has the rest, so the weights of the exact value add up to 1.
        unit_variance: of the noise, where a sensitivity of 1 is meant.
    """

    weight: Fraction
    unit_variance: Fraction


def unit_variance(level: Fraction) -> Fraction:
    """Return 1 / (2 rho): the variance of a point for sensitivity 1."""
    return 1 / (2 * level)


def rise(level: Fraction, higher: Fraction) -> Combination:
    """Return how a point at `higher` is made of the one at `level` (base) and a fresh release at the difference.

    *Source*: Andersson et al. 2025, Lemma 3.1; the noise is that of the fresh release, none is added.
    """
    require_order(Fraction(0), level, higher)
    return Combination((higher - level) / higher, Fraction(0))


def fall(level: Fraction, lower: Fraction) -> Combination:
    """Return how a point at `lower` is made of the one at `level` (base) alone.

    *Source*: Lemma 3.3 with rho_l = 0: the term of the missing lower point is dropped, never multiplied by 0.
    """
    require_order(Fraction(0), lower, level)
    return Combination(Fraction(0), unit_variance(lower) - unit_variance(level))


def between(low: Fraction, level: Fraction, high: Fraction) -> Combination:
    """Return how a point at `level` is made of its neighbours: base at `high`, other at `low`.

    *Source*: Andersson et al. 2025, Lemma 3.3.
    """
    require_order(Fraction(0), low, level, high)
    gap = 1 - low / high
    weight = (low / level - low / high) / gap
    return Combination(weight, (1 - low / level) * (1 / level - 1 / high) / (2 * gap))


@dataclass(frozen=True, slots=True)
class GaussianLaw:
    """Independent Gaussian noise on a lattice. The level is rho; the variance is sensitivity^2 / (2 rho).

    *Guarantee*: all points together are rho-zCDP for the largest rho that was drawn or stepped up to, plus
    `slack_delta_zcdp` of the draws of `draw` and `step_up` (adaptive composition; the levels' order does not
    matter). Neighbours differ in all rows of one unit (add or remove). Laws on the lattice: each point has
    covariance sensitivity^2 / (2 max(rho_i, rho_j)) with every other, up to one rounding (1/12 of a squared step) for
    each step on the way: choose the lattice fine against the noise.
    *Source*: Andersson et al. 2025, Lemmas 3.1 to 3.3 and Algorithm 1; Bun and Steinke 2016, Proposition 1.6 and
    Lemma 2.3 (adaptive composition); docs/proofs/cascade.md, Theorems 1 and 2.
    *Symbols*: sensitivity is Delta_2, level is rho.
    *Args*: `sensitivity`, the l2 norm that one unit moves the exact values by, at most, in lattice steps: a Fraction
    above 0. Standard deviations beyond 2**45 steps are refused.
    *Raises*: CalibrationError for any other.
    *Assumes*: the draws of `RoundedGaussian`, exact values that are whole steps below 2**61 in size.
    *Randomness*: one draw of RoundedGaussian per key and step.
    """

    sensitivity: Fraction

    def __post_init__(self) -> None:
        require_level("the sensitivity", self.sensitivity)

    def draw(self, exact: Values, level: Fraction, entropy: Entropy) -> Values:
        """Return exact + noise of variance sensitivity^2 / (2 level). See `Law`."""
        require_alike(exact)
        return exact + self._noise(unit_variance(require_level("rho", level)), exact.size, entropy)

    def step_up(self, values: Values, level: Fraction, higher: Fraction, exact: Values, entropy: Entropy) -> Values:
        """Return the average of `values` and a fresh release at `higher` - `level`. See `Law`.

        *Guarantee*: exact values enter through the fresh release alone, which costs higher - level by the theorem of
        `draw`; the rest is post-processing. *Returns*: within 1/2 + |distance| 2**-51 of the real-valued average.
        """
        require_alike(values, exact)
        weight = rise(level, higher).weight
        return towards(values, self.draw(exact, higher - level, entropy), weight)

    def step_down(self, values: Values, level: Fraction, lower: Fraction, entropy: Entropy) -> Values:
        """Return `values` and noise of the difference of variances: post-processing. See `Law`."""
        require_alike(values)
        return values + self._noise(fall(level, lower).unit_variance, values.size, entropy)

    def bridge(
        self,
        low_values: Values,
        low_level: Fraction,
        high_values: Values,
        high_level: Fraction,
        level: Fraction,
        entropy: Entropy,
    ) -> Values:
        """Return a point of the Brownian bridge between two points: post-processing. See `Law`."""
        require_alike(low_values, high_values)
        made = between(low_level, level, high_level)
        noise = self._noise(made.unit_variance, high_values.size, entropy)
        return towards(high_values, low_values, made.weight) + noise

    def mean(self, level: Fraction) -> float:
        """Return 0: the noise is symmetric."""
        require_level("rho", level)
        return 0.0

    def variance(self, level: Fraction) -> float:
        """Return sensitivity^2 / (2 rho)."""
        return float(self.sensitivity**2 * unit_variance(require_level("rho", level)))

    def _noise(self, unit: Fraction, count: int, entropy: Entropy) -> Values:
        """Return noise for `count` keys, of this variance where a sensitivity of 1 is meant."""
        return RoundedGaussian(root_above(self.sensitivity**2 * unit)).draw(count, entropy)


@dataclass(frozen=True, slots=True)
class CorrelatedGaussianLaw(GaussianLaw):
    """Gaussian noise with a common term: each key's own, and one draw that all keys of a call share.

    The noise of a level is Z_i + F with Var Z_i = sensitivity^2 / (2 rho) and Var F = correlation Var Z_i, both
    whole lattice steps. Every step moves both terms alike, so points need not remember their common terms: averages
    of values are averages of both terms. One call has to hold all keys of the statistic.

    *Guarantee*: as `GaussianLaw`, where `sensitivity` is the Mahalanobis norm of what one unit moves under the
    covariance I + correlation 1 1^T, in steps. The two terms are rounded apart, so that norm is that of a shift of F
    by whole steps: with a lattice of 2**-20 of a count, `effective_sigma` is the standard deviation to account with.
    All draws of a call count for `slack_delta_zcdp`: keys and 1.
    *Source*: Lebeda and Retschmeier 2025, Algorithm 2, for the noise; Andersson et al. 2025, Lemma 3.3 for any
    covariance shape; docs/proofs/cascade.md, Theorem 3; docs/proofs/correlated-gaussian.md, Theorem 2, for the grid.
    *Symbols*: 1 / correlation is lambda.
    *Args*: `sensitivity` as above; `correlation`, a Fraction above 0.
    *Raises*: CalibrationError for any other.
    *Assumes*: as `GaussianLaw`.
    *Randomness*: one draw of RoundedGaussian per key and step, and one more per step.
    """

    correlation: Fraction

    def __post_init__(self) -> None:
        GaussianLaw.__post_init__(self)
        require_level("the correlation", self.correlation)

    def variance(self, level: Fraction) -> float:
        """Return the variance of one key's whole noise, sensitivity^2 (1 + correlation) / (2 rho)."""
        return float(self.sensitivity**2 * (1 + self.correlation) * unit_variance(require_level("rho", level)))

    def _noise(self, unit: Fraction, count: int, entropy: Entropy) -> Values:
        own = GaussianLaw._noise(self, unit, count, entropy)
        return own + GaussianLaw._noise(self, unit * self.correlation, 1, entropy)


def towards(base: Values, other: Values, weight: Fraction) -> Values:
    """Return base + weight (other - base), rounded to whole steps.

    Nothing overflows: both lie within 2**61 + 2**50. *Returns*: the error is at most 1/2 + |other - base| 2**-51, for
    the conversions of difference and weight and their product err by a share of 2**-53 each.
    """
    distance = other - base
    return base + np.rint(distance.astype(np.float64) * float(weight)).astype(np.int64)


def root_above(square: Fraction) -> float:
    """Return the square root of a positive rational number as a float, rounded up by a share below 2**-49.

    *Raises*: CalibrationError where no positive finite float is that root.
    """
    try:
        root = math.sqrt(square) * (1 + 2.0**-50)
    except OverflowError as error:
        raise CalibrationError("the noise of this level is beyond the range of floating-point numbers") from error
    if root == 0:
        raise CalibrationError("the noise of this level is beyond the range of floating-point numbers")
    return root
