"""Multi-scale discrete Laplace noise: for all changes up to a limit, and for changes of known sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpsql.errors import CalibrationError
from dpsql.noise.divisible.exponential_powers import require_gamma
from dpsql.noise.divisible.law import (
    MOST_CHANGE,
    MOST_VALUES,
    Logs,
    decay_of,
    gamma_for,
    require_change,
    require_epsilon,
    require_parties,
    require_whole,
    rounded_up,
)
from dpsql.noise.divisible.scaled_sum import ScaledShare, Term, draw_terms, log_pmf, loss_bound
from dpsql.noise.divisible.split import Numbers, discrete_variance, least_splits, squares_to
from dpsql.noise.entropy import Entropy, Integers


@dataclass(frozen=True, slots=True)
class MultiScaleLaplace:
    """Noise spacing (X_1 + 2 X_2 + … + scales X_scales) + Y of independent discrete Laplace numbers X_i and Y.

    *Guarantee*: an exact whole number plus this noise is epsilon(max_change)-DP for changes of at most max_change.
    *Source*: Harrison and Manurangsi 2025, Theorems 16 and 18; docs/proofs/divisible-noise.md, 3 and 4.
    *Symbols*: `spacing` is r and `scales` is Delta_0; `coarse` and `fine` are gamma of the X_i and of Y.
    *Args*: `fine` is None if `spacing` is 1, where Y has nothing to hide.
    *Raises*: CalibrationError for a spacing or scales that are not whole numbers from 1 to 10,000.
    """

    spacing: int
    scales: int
    coarse: Fraction
    fine: Fraction | None = None

    def __post_init__(self) -> None:
        require_whole("the spacing", self.spacing, MOST_CHANGE)
        require_whole("the number of scales", self.scales, MOST_CHANGE)
        require_gamma(self.coarse)
        if (self.fine is None) != (self.spacing == 1):
            raise CalibrationError("a spacing above 1 needs a fine gamma, and a spacing of 1 takes none")
        if self.fine is not None:
            require_gamma(self.fine)

    @classmethod
    def of(cls, epsilon: float, max_change: int) -> MultiScaleLaplace:
        """Return the law of Theorem 18 with the spacing and the split of epsilon of least variance.

        Y hides up to spacing - 1, where the paper calibrates it to the spacing.

        >>> round(MultiScaleLaplace.of(4, 20).variance, 1), round(MultiScaleLaplace.of(8, 20).variance, 2)
        (79.0, 1.93)
        """
        change = require_change(max_change)
        spacings = np.arange(2, change + 1)
        return _least_variance(require_epsilon(epsilon), change, spacings, change // spacings, spacings - 1)

    @classmethod
    def of_nearest(cls, epsilon: float, max_change: int) -> MultiScaleLaplace:
        """Return the best law of a change that is split at its nearest multiple of the spacing.

        Y hides up to half the spacing, and the multiples reach as far as (max_change + spacing / 2) / spacing. No
        variance is larger than that of `of` by more than a rounding, and many are smaller by a third.

        *Source*: docs/proofs/divisible-noise.md, 4; not in the paper.

        >>> round(MultiScaleLaplace.of_nearest(4, 20).variance, 1)
        71.8
        """
        change = require_change(max_change)
        spacings = np.arange(2, change + 1)
        halves = spacings // 2
        return _least_variance(require_epsilon(epsilon), change, spacings, (change + halves) // spacings, halves)

    @property
    def variance(self) -> float:
        """Return the sum of the variances of all numbers."""
        return sum(term.variance for term in self.terms)

    @property
    def terms(self) -> tuple[Term, ...]:
        """Return the terms of the sum."""
        coarse = Term(tuple(self.spacing * scale for scale in range(1, self.scales + 1)), self.coarse)
        return (coarse,) if self.fine is None else (coarse, Term((1,), self.fine))

    def log_pmf(self, x: Integers) -> Logs:
        """Return the logarithms of the probabilities."""
        return log_pmf(self.terms, x)

    def epsilon(self, max_change: int) -> float:
        """Return the smallest epsilon, rounded up; or a proven bound where the noise is too wide to compute it."""
        change = require_change(max_change)
        proven = self._proven(change)
        if self.fine is None and change % self.scales == 0:
            return rounded_up(proven)
        return rounded_up(min(proven, loss_bound(self.terms, range(1, change + 1))))

    def draw(self, count: int, entropy: Entropy) -> Integers:
        """Return `count` independent draws; exact."""
        return draw_terms(self.terms, Fraction(1), count, entropy)

    def share(self, parties: int) -> ScaledShare:
        """Return the noise of one party."""
        return ScaledShare(self.terms, require_parties(parties))

    def _proven(self, max_change: int) -> float:
        """Return the epsilon of the proofs: the cheaper of two multiples of the spacing, for the worst change."""
        changes = np.arange(1, max_change + 1)
        below = changes // self.spacing
        fine = 0.0 if self.fine is None else decay_of(self.fine)
        costs = [
            decay_of(self.coarse) * np.ceil(multiple / self.scales) + fine * np.abs(changes - self.spacing * multiple)
            for multiple in (below, below + (changes % self.spacing > 0))
        ]
        return float(np.minimum(*costs).max())


@dataclass(frozen=True, slots=True)
class ValueLaplace:
    """Noise v_1 X_1 + v_2 X_2 + … for the values that one unit can add, with independent discrete Laplace X_i.

    *Guarantee*: an exact sum plus this noise is epsilon-DP if one unit adds or removes one of `values`, and nothing
    else. If a unit can replace one value by another, all differences of two values belong to `values`, too.
    *Source*: Harrison and Manurangsi 2025, Theorem 40; docs/proofs/divisible-noise.md, 5.
    *Args*: `values`, 1 to 1,000 different whole numbers from 1 to 10,000 that rise; `gamma` of all X_i.
    *Raises*: CalibrationError for any other.
    """

    values: tuple[int, ...]
    gamma: Fraction

    def __post_init__(self) -> None:
        if _require_values(self.values) != self.values:
            raise CalibrationError("the values must rise, and each must be there once")
        require_gamma(self.gamma)

    @classmethod
    def of(cls, epsilon: float, values: Iterable[int]) -> ValueLaplace:
        """Return the law for sums of known values that costs at most epsilon.

        >>> round(ValueLaplace.of(10, [5, 10, 30, 100]).variance, 3)
        1.001
        """
        known = _require_values(values)
        return cls(known, gamma_for(require_epsilon(epsilon)))

    @property
    def variance(self) -> float:
        """Return the sum of the squared values over cosh(epsilon) - 1."""
        return self.terms[0].variance

    @property
    def terms(self) -> tuple[Term, ...]:
        """Return the one term of the sum."""
        return (Term(self.values, self.gamma),)

    def log_pmf(self, x: Integers) -> Logs:
        """Return the logarithms of the probabilities; minus infinity where no sum of values leads."""
        return log_pmf(self.terms, x)

    def epsilon(self, max_change: int) -> float:
        """Return the smallest epsilon for adding or removing one of the values up to `max_change`, rounded up."""
        change = require_change(max_change)
        return self.epsilon_of(value for value in self.values if value <= change)

    def epsilon_of(self, changes: Iterable[int]) -> float:
        """Return the smallest epsilon for changes of these sizes, or a proven bound; infinite if none is proven.

        A change that is no value costs more than one value does, and infinitely much if no sum of values equals it.
        """
        moved = {require_change(change) for change in changes}
        if not moved:
            return 0.0
        decay = decay_of(self.gamma)
        proven = decay if moved <= set(self.values) else math.inf
        if proven == decay and max(moved) == self.values[-1]:
            return rounded_up(decay)
        return rounded_up(min(proven, loss_bound(self.terms, moved)))

    def draw(self, count: int, entropy: Entropy) -> Integers:
        """Return `count` independent draws; exact."""
        return draw_terms(self.terms, Fraction(1), count, entropy)

    def share(self, parties: int) -> ScaledShare:
        """Return the noise of one party."""
        return ScaledShare(self.terms, require_parties(parties))


def _require_values(values: Iterable[int]) -> tuple[int, ...]:
    """Return the different values in rising order, or raise CalibrationError."""
    if not isinstance(values, Iterable):
        raise CalibrationError(f"the values must be a list of whole numbers, got {values!r}")
    known = tuple(values)
    if not 1 <= len(known) <= MOST_VALUES:
        raise CalibrationError(f"there must be 1 to {MOST_VALUES:,} values, got {len(known):,}")
    return tuple(sorted({require_whole("each value", value, MOST_CHANGE) for value in known}))


def _least_variance(
    epsilon: float, max_change: int, spacings: Integers, scales: Integers, hidden: Integers
) -> MultiScaleLaplace:
    """Return the law of least variance over all spacings; `hidden` is how far Y has to hide at each."""
    plain = MultiScaleLaplace(1, max_change, gamma_for(epsilon))
    if not spacings.size:
        return plain
    squares = spacings**2 * squares_to(scales.astype(np.float64))

    def variance(split: Numbers) -> Numbers:
        return squares * discrete_variance(epsilon - split) + discrete_variance(split / hidden)

    splits = least_splits(epsilon, variance, spacings.size)
    best = int(np.argmin(variance(splits)))
    split = float(splits[best])
    law = MultiScaleLaplace(
        int(spacings[best]), int(scales[best]), gamma_for(epsilon - split), gamma_for(split / int(hidden[best]))
    )
    return min(plain, law, key=lambda either: either.variance)
