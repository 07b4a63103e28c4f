"""Poisson lossless multiple release: noise that is never negative, thinned exactly."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from dpsql.errors import CalibrationError
from dpsql.mechanisms.entropy import Entropy
from dpsql.mechanisms.exact_draws import LARGEST_MEAN, poisson, thinned
from dpsql.mechanisms.laws.law import Values, require_alike, require_level, require_order


@dataclass(frozen=True, slots=True)
class PoissonLaw:
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

    def draw(self, exact: Values, level: Fraction, entropy: Entropy) -> Values:
        """Return exact + noise. See `Law`."""
        require_alike(exact)
        return exact + poisson(_mean(level), exact.size, entropy)

    def step_up(self, values: Values, level: Fraction, higher: Fraction, exact: Values, entropy: Entropy) -> Values:
        """Return exact + the noise of the last point, thinned. See `Law`."""
        require_alike(values, exact)
        require_order(level, higher)
        return exact + thinned(values - exact, _mean(higher) / _mean(level), entropy)

    def step_down(self, values: Values, level: Fraction, lower: Fraction, entropy: Entropy) -> Values:
        """Return values + Poisson noise of the difference of means. See `Law`."""
        require_alike(values)
        require_order(lower, level)
        return values + poisson(_mean(lower) - _mean(level), values.size, entropy)

    def bridge(
        self,
        low_values: Values,
        low_level: Fraction,
        high_values: Values,
        high_level: Fraction,
        level: Fraction,
        entropy: Entropy,
    ) -> Values:
        """Return the higher point + the noise between both, thinned. See `Law`."""
        require_alike(low_values, high_values)
        require_order(low_level, level, high_level)
        least, middle, most = _mean(high_level), _mean(level), _mean(low_level)
        return high_values + thinned(low_values - high_values, (middle - least) / (most - least), entropy)

    def mean(self, level: Fraction) -> float:
        """Return 1 / level."""
        return float(_mean(level))

    def variance(self, level: Fraction) -> float:
        """Return 1 / level."""
        return float(_mean(level))


def _mean(level: Fraction) -> Fraction:
    mean = 1 / require_level("the level", level)
    if mean > LARGEST_MEAN:
        raise CalibrationError(f"the level of Poisson noise must be at least 2**-20, got {level!r}")
    return mean
