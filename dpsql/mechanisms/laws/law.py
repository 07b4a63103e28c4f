"""What all laws of lossless multiple release have in common: four steps between levels, and the levels' order."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import CalibrationError, ReleaseError
from dpsql.mechanisms.entropy import Entropy

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
        ...

    def step_up(self, values: Values, level: Fraction, higher: Fraction, exact: Values, entropy: Entropy) -> Values:
        """Return a point above the highest one so far, which is `values` at `level`, from exact values."""
        ...

    def step_down(self, values: Values, level: Fraction, lower: Fraction, entropy: Entropy) -> Values:
        """Return a point below the lowest one so far, which is `values` at `level`."""
        ...

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
        ...

    def mean(self, level: Fraction) -> float:
        """Return the expected noise in lattice steps: what an unbiased estimate has to subtract."""
        ...

    def variance(self, level: Fraction) -> float:
        """Return the variance of one key's noise in squared lattice steps, lattice roundings aside."""
        ...


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
