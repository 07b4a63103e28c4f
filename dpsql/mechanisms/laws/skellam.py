"""Skellam lossless multiple release: the difference of two Poisson variates, exact on the integers."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpsql.accounting.skellam import skellam_renyi_bound
from dpsql.errors import CalibrationError
from dpsql.mechanisms.entropy import Entropy
from dpsql.mechanisms.exact_draws import poisson, smaller_of_pair, thinned
from dpsql.mechanisms.laws.law import Values, require_alike, require_level, require_order

_LARGEST_VARIANCE = 1 << 16


@dataclass(frozen=True, slots=True)
class SkellamLaw:
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

    def draw(self, exact: Values, level: Fraction, entropy: Entropy) -> Values:
        """Return exact + noise. See `Law`."""
        require_alike(exact)
        return exact + _skellam(_variance(level), exact.size, entropy)

    def step_up(self, values: Values, level: Fraction, higher: Fraction, exact: Values, entropy: Entropy) -> Values:
        """Return exact + the part of the last point's noise that remains. See `Law`."""
        require_alike(values, exact)
        require_order(level, higher)
        return exact + _part(values - exact, _variance(level), _variance(higher), entropy)

    def step_down(self, values: Values, level: Fraction, lower: Fraction, entropy: Entropy) -> Values:
        """Return values + Skellam noise of the difference of variances. See `Law`."""
        require_alike(values)
        require_order(lower, level)
        return values + _skellam(_variance(lower) - _variance(level), values.size, entropy)

    def bridge(
        self,
        low_values: Values,
        low_level: Fraction,
        high_values: Values,
        high_level: Fraction,
        level: Fraction,
        entropy: Entropy,
    ) -> Values:
        """Return the higher point + a part of the noise between both. See `Law`."""
        require_alike(low_values, high_values)
        require_order(low_level, level, high_level)
        least = _variance(high_level)
        whole, part = _variance(low_level) - least, _variance(level) - least
        return high_values + _part(low_values - high_values, whole, part, entropy)

    def renyi_bound(self, order: int, level: Fraction, *, sensitivity_l1: float, sensitivity_l2: float) -> float:
        """Return what a point of this level costs: see `skellam_renyi_bound`; rounded up."""
        variance = float(_variance(level))
        return skellam_renyi_bound(order, variance, sensitivity_l1=sensitivity_l1, sensitivity_l2=sensitivity_l2)

    def mean(self, level: Fraction) -> float:
        """Return 0: the noise is symmetric."""
        _variance(level)
        return 0.0

    def variance(self, level: Fraction) -> float:
        """Return 1 / level."""
        return float(_variance(level))


def _variance(level: Fraction) -> Fraction:
    variance = 1 / require_level("the level", level)
    if variance > _LARGEST_VARIANCE:
        raise CalibrationError(f"the level of Skellam noise must be at least 2**-16, got {level!r}")
    return variance


def _skellam(variance: Fraction, count: int, entropy: Entropy) -> Values:
    return poisson(variance / 2, count, entropy) - poisson(variance / 2, count, entropy)


def _part(differences: Values, whole: Fraction, part: Fraction, entropy: Entropy) -> Values:
    """Return noise of variance `part` inside noise of variance `whole` that came out as `differences`."""
    smaller = smaller_of_pair(np.abs(differences), whole / 2, entropy)
    kept_up = thinned(smaller + np.maximum(differences, 0), part / whole, entropy)
    kept_down = thinned(smaller + np.maximum(-differences, 0), part / whole, entropy)
    return kept_up - kept_down
