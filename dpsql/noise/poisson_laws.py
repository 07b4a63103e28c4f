"""Poisson and Skellam lossless multiple release: noise that is a sum of parts, split exactly on the integers.

Poisson noise is never negative and is thinned; Skellam noise is the difference of two Poisson variates.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from dpsql.accounting.skellam import skellam_renyi_bound
from dpsql.errors import CalibrationError
from dpsql.noise.entropy import Entropy
from dpsql.noise.law import StepLaw, Values, require_level
from dpsql.noise.refined_table import LARGEST_MEAN, poisson, smaller_of_pair, thinned


@dataclass(frozen=True, slots=True)
class PoissonLaw(StepLaw):
    """Poisson noise of mean 1 / level on the integers, exactly.

    *Guarantee*: all points together have the privacy of the one of the largest level, a single Poisson release: its
    (epsilon, delta) is at most that of Theorem E.2 (valid, three to seven times too large). Never pure DP: a value
    below the exact one of a neighbour gives it away. Nothing is added for the draws. Neighbours differ in all rows
    of one unit (add or remove).
    *Source*: Andersson et al. 2025, Lemma E.4 (thinning), Theorem E.2; docs/proofs/cascade.md, Theorem 7.
    *Symbols*: 1 / level is lambda, the mean and the variance of the noise.
    *Args*: levels are at least 2**-20.
    *Raises*: CalibrationError for any other level; ReleaseError for points that fall with the level.
    *Assumes*: words of the entropy are uniform and independent; exact values are below 2**61 in size.
    *Randomness*: one word per key for a draw, about mean / 32 words per key for a step between points (`thinned`).
    *Timing*: depends on the values that are thinned.
    """

    _name: ClassVar[str] = "Poisson"
    _largest_bits: ClassVar[int] = LARGEST_MEAN.bit_length() - 1

    def _size(self, level: Fraction) -> Fraction:
        size = 1 / require_level("the level", level)
        if size > 1 << self._largest_bits:
            raise CalibrationError(
                f"the level of {self._name} noise must be at least 2**-{self._largest_bits}, got {level!r}"
            )
        return size

    def variance(self, level: Fraction) -> float:
        """Return 1 / level."""
        return float(self._size(level))

    def _step(self, low: Fraction, high: Fraction, count: int, entropy: Entropy) -> Values:
        return poisson(high - low, count, entropy)

    def _part(self, steps: Values, low: Fraction, middle: Fraction, high: Fraction, entropy: Entropy) -> Values:
        return thinned(steps, (middle - low) / (high - low), entropy)

    def mean(self, level: Fraction) -> float:
        """Return 1 / level."""
        return float(self._size(level))


@dataclass(frozen=True, slots=True)
class SkellamLaw(PoissonLaw):
    """Skellam noise of variance 1 / level on the integers, exactly.

    A step between points has to know the two Poisson variates whose difference it splits. They are not stored: given
    the difference of two points they are independent of all other points, so a fresh pair does (a Bessel variate).

    *Guarantee*: all points together have the privacy of the one of the largest level, a single Skellam release:
    `renyi_bound`, or exactly `dpsql.accounting.skellam.skellam_renyi`. Nothing is added for the draws. Neighbours
    differ in all rows of one unit (add or remove).
    *Source*: Agarwal, Kairouz and Liu 2021 for the noise; docs/proofs/cascade.md, Theorem 7, for the steps.
    *Symbols*: 1 / level is the variance mu (m in our notes), each Poisson variate has mean mu / 2.
    *Args*: levels are at least 2**-16.
    *Raises*: CalibrationError for any other level.
    *Assumes*: words of the entropy are uniform and independent; exact values are below 2**61 in size.
    *Randomness*: two words per key for a draw; about variance / 32 words per key and one table of about variance / 2 +
    10 sqrt(variance) entries for each different difference for a step between points.
    *Timing*: depends on the values that are split.
    """

    _name: ClassVar[str] = "Skellam"
    _largest_bits: ClassVar[int] = 16

    def _step(self, low: Fraction, high: Fraction, count: int, entropy: Entropy) -> Values:
        mean = (high - low) / 2
        return poisson(mean, count, entropy) - poisson(mean, count, entropy)

    def _part(self, steps: Values, low: Fraction, middle: Fraction, high: Fraction, entropy: Entropy) -> Values:
        smaller, share = smaller_of_pair(np.abs(steps), (high - low) / 2, entropy), (middle - low) / (high - low)
        kept_up = thinned(smaller + np.maximum(steps, 0), share, entropy)
        return kept_up - thinned(smaller + np.maximum(-steps, 0), share, entropy)

    def renyi_bound(self, order: int, level: Fraction, *, sensitivity_l1: float, sensitivity_l2: float) -> float:
        """Return what a point of this level costs: see `skellam_renyi_bound`; rounded up."""
        variance = float(self._size(level))
        return skellam_renyi_bound(order, variance, sensitivity_l1=sensitivity_l1, sensitivity_l2=sensitivity_l2)

    def mean(self, level: Fraction) -> float:
        """Return 0: the noise is symmetric."""
        self._size(level)
        return 0.0
