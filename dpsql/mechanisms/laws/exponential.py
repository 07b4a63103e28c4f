"""Exponential lossless multiple release: one-sided noise, drawn as geometric noise on a lattice."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from dpsql.mechanisms.laws.laplace import RatioLaw, ratio_above, require_sensitivity
from dpsql.mechanisms.laws.law import require_level
from dpsql.mechanisms.laws.lazy_jumps import LazyJumps


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

    _jumps: ClassVar[LazyJumps] = LazyJumps(two_sided=False)
    sensitivity: int

    def __post_init__(self) -> None:
        require_sensitivity(self.sensitivity)

    def ratio(self, level: Fraction) -> Fraction:
        """Return exp(-epsilon / sensitivity), rounded up."""
        return ratio_above(require_level("epsilon", level) / self.sensitivity)

    def mean(self, level: Fraction) -> float:
        """Return a / (1 - a), a the ratio."""
        ratio = self.ratio(level)
        return float(ratio / (1 - ratio))

    def variance(self, level: Fraction) -> float:
        """Return a / (1 - a)^2, a the ratio."""
        ratio = self.ratio(level)
        return float(ratio / (1 - ratio) ** 2)
