"""What laws of lossless multiple release have in common: four steps between levels, and the levels' order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import CalibrationError, ReleaseError
from dpsql.noise.entropy import Entropy

Values = NDArray[np.int64]


class Law(Protocol):
    """One statistic at many privacy levels: noisy values are whole lattice steps, one per key.

    A larger level is less private. Points drawn in any order, each from its nearest neighbours, have one joint law,
    in which every point is the next less private one plus independent noise; so any set of points costs what its
    least private one costs. `draw` and `step_up` alone read exact values: they must be charged before, and what
    they cost is the law's own theorem. `step_down` and `bridge` see points that were paid for, and no more.

    Exact values must stay what they were when the first point was drawn: most laws take values - exact for the noise.
    The Gaussian laws alone stay private if they change, because each rise of theirs pays for itself.

    Levels are Fractions: what they mean, and their limits, is the law's to say. All steps raise CalibrationError
    for levels that are out of range or out of order (a level that is there already needs no step), ReleaseError
    for values that cannot be points of one cascade, EntropyError if the entropy fails. Shapes: (keys,) throughout.
    """

    def draw(self, exact: Values, level: Fraction, entropy: Entropy) -> Values:
        """Return the first point, from exact values."""

    def step_up(self, values: Values, level: Fraction, higher: Fraction, exact: Values, entropy: Entropy) -> Values:
        """Return a point above the highest one so far, which is `values` at `level`, from exact values."""

    def step_down(self, values: Values, level: Fraction, lower: Fraction, entropy: Entropy) -> Values:
        """Return a point below the lowest one so far, which is `values` at `level`."""

    def bridge(
        self,
        low_values: Values,
        low_level: Fraction,
        high_values: Values,
        high_level: Fraction,
        level: Fraction,
        entropy: Entropy,
    ) -> Values:
        """Return a point between two neighbours."""

    def mean(self, level: Fraction) -> float:
        """Return the expected noise in lattice steps: what an unbiased estimate has to subtract."""

    def variance(self, level: Fraction) -> float:
        """Return the variance of one key's noise in squared lattice steps, lattice roundings aside."""


class StepLaw(ABC):
    """A law whose noise at one level is its noise at a higher one and an independent step: how both are drawn differs.

    A level means a size of noise, a Fraction that falls strictly with the level; size 0 is no noise.
    """

    __slots__ = ()

    @abstractmethod
    def _size(self, level: Fraction) -> Fraction:
        """Return the size of the noise at this level."""

    @abstractmethod
    def _step(self, low: Fraction, high: Fraction, count: int, entropy: Entropy) -> Values:
        """Return what makes noise of size `high` of noise of size `low`, for `count` keys."""

    @abstractmethod
    def _part(self, steps: Values, low: Fraction, middle: Fraction, high: Fraction, entropy: Entropy) -> Values:
        """Return the steps from `low` to `middle` inside the `steps` from `low` to `high`."""

    def draw(self, exact: Values, level: Fraction, entropy: Entropy) -> Values:
        """Return exact + noise. See `Law`."""
        require_alike(exact)
        return exact + self._step(Fraction(0), self._size(level), exact.size, entropy)

    def step_up(self, values: Values, level: Fraction, higher: Fraction, exact: Values, entropy: Entropy) -> Values:
        """Return exact + the part of the last point's noise that remains. See `Law`.

        *Source*: for Laplace noise, equation 22 of Koufogiannis et al. 2016, on the integers.
        """
        require_alike(values, exact)
        high, middle = self._falling_sizes(level, higher)
        return exact + self._part(values - exact, Fraction(0), middle, high, entropy)

    def step_down(self, values: Values, level: Fraction, lower: Fraction, entropy: Entropy) -> Values:
        """Return values + a step. See `Law`.

        *Source*: for Laplace noise, equation 25 of Koufogiannis et al. 2016, on the integers.
        """
        require_alike(values)
        high, low = self._falling_sizes(lower, level)
        return values + self._step(low, high, values.size, entropy)

    def bridge(
        self,
        low_values: Values,
        low_level: Fraction,
        high_values: Values,
        high_level: Fraction,
        level: Fraction,
        entropy: Entropy,
    ) -> Values:
        """Return the higher point + a part of the step between both. See `Law`.

        *Source*: for Laplace noise, Lemma F.5 of Andersson et al. 2025, corrected.
        """
        require_alike(low_values, high_values)
        high, middle, low = self._falling_sizes(low_level, level, high_level)
        return high_values + self._part(low_values - high_values, low, middle, high, entropy)

    def _falling_sizes(self, *levels: Fraction) -> tuple[Fraction, ...]:
        """Return the sizes of rising levels, or raise CalibrationError unless levels rise and sizes fall strictly."""
        require_order(*levels)
        sizes = tuple(self._size(level) for level in levels)
        require_order(*reversed(sizes))
        return sizes


def require_level(name: str, level: Fraction, *, above: int = 0) -> Fraction:
    """Return the level, or raise CalibrationError unless it is a Fraction larger than `above`."""
    if not isinstance(level, Fraction) or level <= above:
        raise CalibrationError(f"{name} must be a Fraction above {above}, got {level!r}")
    return level


def require_order(*levels: Fraction) -> None:
    """Raise CalibrationError unless the levels rise strictly."""
    if any(low >= high for low, high in pairwise(levels)):
        raise CalibrationError(f"the levels of a step must rise strictly, got {', '.join(map(str, levels))}")


def require_alike(*values: Values) -> None:
    """Raise ReleaseError unless all arrays hold int64 for the same number of keys."""
    if any(array.dtype != np.int64 or array.shape != (array.size,) or array.size != values[0].size for array in values):
        raise ReleaseError("the points of one cascade must be int64 arrays of one length")
