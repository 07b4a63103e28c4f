"""Laplace lossless multiple release, pure epsilon: discrete Laplace noise, exact on the integers.

Continuous Laplace noise cannot be drawn soundly on a finite computer, so it is not drawn: on a lattice that is fine
against the noise, `LaplaceLaw` is the discrete law whose step is one lattice step. The continuous formulas
(Koufogiannis et al. 2016, equations 22 and 25; the corrected Lemma F.5) are what its tests compare with.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

from dpsql.errors import CalibrationError
from dpsql.mechanisms.entropy import Entropy
from dpsql.mechanisms.laws.law import Values, require_alike, require_level, require_order
from dpsql.mechanisms.laws.lazy_jumps import LazyJumps
from dpsql.mechanisms.precise_normal import exp_bounds

_RATIO_BITS = 96
_LARGEST_RATIO = 1 - Fraction(1, 1 << 45)


class RatioLaw(ABC):
    """The steps of all laws whose noise stays or jumps; what differs is the ratio that a level means."""

    __slots__ = ()
    _jumps: ClassVar[LazyJumps]

    @abstractmethod
    def ratio(self, level: Fraction) -> Fraction:
        """Return the ratio of neighbouring probabilities of the noise at this level."""

    def draw(self, exact: Values, level: Fraction, entropy: Entropy) -> Values:
        """Return exact + noise. See `Law`."""
        require_alike(exact)
        return exact + self._jumps.noise(self.ratio(level), exact.size, entropy)

    def step_up(self, values: Values, level: Fraction, higher: Fraction, exact: Values, entropy: Entropy) -> Values:
        """Return a less noisy point, from the noise of the last: a split with nothing below. See `Law`.

        *Source*: equation 22 of Koufogiannis et al. 2016, on the integers.
        """
        require_alike(values, exact)
        high, middle = self._rising_ratios(level, higher)
        return exact + self._jumps.split(values - exact, Fraction(0), middle, high, entropy)

    def step_down(self, values: Values, level: Fraction, lower: Fraction, entropy: Entropy) -> Values:
        """Return a noisier point: it stays or jumps. See `Law`.

        *Source*: equation 25 of Koufogiannis et al. 2016, on the integers.
        """
        require_alike(values)
        high, low = self._rising_ratios(lower, level)
        return values + self._jumps.step(low, high, values.size, entropy)

    def bridge(
        self,
        low_values: Values,
        low_level: Fraction,
        high_values: Values,
        high_level: Fraction,
        level: Fraction,
        entropy: Entropy,
    ) -> Values:
        """Return a point between two others: Lemma F.5 of Andersson et al. 2025, corrected. See `Law`."""
        require_alike(low_values, high_values)
        high, middle, low = self._rising_ratios(low_level, level, high_level)
        return high_values + self._jumps.split(low_values - high_values, low, middle, high, entropy)

    def _rising_ratios(self, *levels: Fraction) -> tuple[Fraction, ...]:
        """Return the ratios of rising levels, which fall strictly."""
        require_order(*levels)
        ratios = tuple(self.ratio(level) for level in levels)
        require_order(*reversed(ratios))
        return ratios


class _TwoSided(RatioLaw):
    __slots__ = ()
    _jumps: ClassVar[LazyJumps] = LazyJumps(two_sided=True)

    def mean(self, level: Fraction) -> float:
        """Return 0: the noise is symmetric."""
        self.ratio(level)
        return 0.0

    def variance(self, level: Fraction) -> float:
        """Return 2 a / (1 - a)^2, a the ratio."""
        ratio = self.ratio(level)
        return float(2 * ratio / (1 - ratio) ** 2)


@dataclass(frozen=True, slots=True)
class DiscreteLaplaceLaw(_TwoSided):
    """Discrete Laplace noise with rational probabilities, P(x) proportional to level^-|x|.

    The level is e^(epsilon / sensitivity), a rational number above 1.

    *Guarantee*: all points together are epsilon(level)-DP, pure, for the largest level that was drawn or stepped up to:
    the joint loss is exactly that of the least private point. Nothing is added for the draws. Neighbours differ in all
    rows of one unit (add or remove).
    *Source*: Ghosh, Roughgarden and Sundararajan 2009 for the noise; docs/proofs/cascade.md, Theorems 4 to 6.
    *Args*: `sensitivity`, the l1 norm that one unit moves the exact values by, at most: a whole number above 0.
    Levels lie in (1 + 2**-45, 2**64].
    *Raises*: CalibrationError for any other.
    *Assumes*: words of the entropy are uniform and independent; exact values are below 2**61 in size.
    *Randomness*, *Timing*: see `LazyJumps`.
    """

    sensitivity: int

    def __post_init__(self) -> None:
        require_sensitivity(self.sensitivity)

    def ratio(self, level: Fraction) -> Fraction:
        """Return 1 / level."""
        return require_ratio(1 / require_level("the level", level, above=1))

    def epsilon(self, level: Fraction) -> float:
        """Return sensitivity ln(level), rounded up.

        >>> round(DiscreteLaplaceLaw(1).epsilon(Fraction(3)), 6)
        1.098612
        """
        self.ratio(level)
        # log1p keeps the digits of levels close to 1; the factor covers all roundings.
        return self.sensitivity * math.log1p(level - 1) * (1 + 2.0**-48)


@dataclass(frozen=True, slots=True)
class LaplaceLaw(_TwoSided):
    """Laplace noise of scale sensitivity / epsilon on a lattice: the discrete law with steps of the lattice.

    The level is epsilon.

    *Guarantee*: all points together are epsilon-DP, pure, for the largest epsilon that was drawn or stepped up to.
    Nothing is added for the draws. Neighbours differ in all rows of one unit (add or remove).
    *Source*: as `DiscreteLaplaceLaw`, with the ratio exp(-epsilon / sensitivity) rounded up to 96 binary places.
    *Args*: `sensitivity`, the l1 norm in lattice steps that one unit moves the exact values by, at most: a whole number
    above 0. Choose the lattice fine against the noise: the variance is 2 (sensitivity / epsilon)^2 - 1/6 squared steps,
    up to a share of (epsilon / sensitivity)^2 of one. Epsilon / sensitivity must lie in [2**-44, 64].
    *Raises*: CalibrationError for any other, and for two levels that have the same ratio.
    *Assumes*, *Randomness*, *Timing*: as `DiscreteLaplaceLaw`.
    """

    sensitivity: int

    def __post_init__(self) -> None:
        require_sensitivity(self.sensitivity)

    def ratio(self, level: Fraction) -> Fraction:
        """Return exp(-epsilon / sensitivity), rounded up."""
        return ratio_above(require_level("epsilon", level) / self.sensitivity)


@lru_cache(maxsize=1024)
def ratio_above(exponent: Fraction) -> Fraction:
    """Return the least multiple of 2**-96 that is surely no less than exp(-exponent), for exponents in [2**-44, 64].

    *Raises*: CalibrationError for any other exponent.
    """
    if not Fraction(1, 1 << 44) <= exponent <= 64:
        raise CalibrationError("epsilon over the sensitivity in lattice steps must be at least 2**-44 and at most 64")
    above = exp_bounds(exponent, 60)[1]
    return require_ratio(Fraction(math.ceil(above * (1 << _RATIO_BITS)), 1 << _RATIO_BITS))


def require_ratio(ratio: Fraction) -> Fraction:
    """Return the ratio, or raise CalibrationError unless it is at least 2**-96 and at most 1 - 2**-45."""
    if not Fraction(1, 1 << _RATIO_BITS) <= ratio <= _LARGEST_RATIO:
        raise CalibrationError("the noise of this level is too wide, or too narrow, for exact draws")
    return ratio


def require_sensitivity(sensitivity: int) -> None:
    """Raise CalibrationError unless the sensitivity is a whole number above 0."""
    if isinstance(sensitivity, bool) or not isinstance(sensitivity, int) or sensitivity < 1:
        raise CalibrationError(f"the sensitivity must be a whole number of lattice steps above 0, got {sensitivity!r}")
