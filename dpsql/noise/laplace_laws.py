"""Laplace and exponential lossless multiple release: noise that stays or jumps, exact on the integers.

Continuous noise of these laws cannot be drawn soundly on a finite computer, so it is not drawn: on a lattice that is
fine against the noise, each is the discrete law whose step is one lattice step. The continuous formulas (Koufogiannis
et al. 2016, equations 22 and 25; the corrected Lemma F.5) are what its tests compare with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

from dpsql.errors import CalibrationError
from dpsql.noise.law import require_level
from dpsql.noise.lazy_jumps import LazyJumps
from dpsql.noise.rounded_gaussian import exp_bounds

_RATIO_BITS = 96
_LARGEST_RATIO = 1 - Fraction(1, 1 << 45)


@dataclass(frozen=True, slots=True)
class RatioLaw(LazyJumps):
    """The steps of all laws whose noise stays or jumps; what differs is the ratio that a level means.

    Neighbouring probabilities of the noise have this ratio; the larger it is, the more noise.
    """

    sensitivity: int

    def __post_init__(self) -> None:
        """Refuse a sensitivity that is no whole number above 0."""
        if isinstance(self.sensitivity, bool) or not isinstance(self.sensitivity, int) or self.sensitivity < 1:
            raise CalibrationError(
                f"the sensitivity must be a whole number of lattice steps above 0, got {self.sensitivity!r}"
            )

    def ratio(self, level: Fraction) -> Fraction:
        """Return exp(-epsilon / sensitivity), rounded up."""
        return ratio_above(require_level("epsilon", level) / self.sensitivity)

    def mean(self, level: Fraction) -> float:
        """Return 0 if the noise is symmetric, else a / (1 - a), a the ratio."""
        ratio = self.ratio(level)
        return 0.0 if self._two_sided else float(ratio / (1 - ratio))

    def variance(self, level: Fraction) -> float:
        """Return 2 a / (1 - a)^2 if the noise is symmetric, else a / (1 - a)^2, a the ratio."""
        ratio = self.ratio(level)
        return float((2 if self._two_sided else 1) * ratio / (1 - ratio) ** 2)

    def _size(self, level: Fraction) -> Fraction:
        return self.ratio(level)


@dataclass(frozen=True, slots=True)
class DiscreteLaplaceLaw(RatioLaw):
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
class LaplaceLaw(RatioLaw):
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


@dataclass(frozen=True, slots=True)
class ExponentialLaw(RatioLaw):
    """Exponential noise of mean sensitivity / epsilon on a lattice; never negative.

    The level is epsilon.

    *Guarantee*: all points together are as private as the one of the largest epsilon, which is
    (epsilon, 1 - exp(-epsilon))-DP and no better: a value below the exact one of a neighbour gives it away. A building
    block (the noise of report-noisy-max), not a release for counts. Neighbours differ in all rows of one unit (add or
    remove).
    *Source*: Andersson et al. 2025, Claim F.7, on the integers: docs/proofs/cascade.md, Theorems 4 to 6.
    *Symbols*: epsilon / sensitivity is lambda.
    *Args*: as `LaplaceLaw`.
    *Raises*, *Assumes*, *Randomness*, *Timing*: as `LaplaceLaw`; ReleaseError for points that fall with the level.
    """

    _two_sided: ClassVar[bool] = False


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
