"""Rows that bounds leave out of shown groups, as they were released: whether a number is too low, and an estimate.

All of it is post-processing of the released number of rows left out and of the numbers that an answer shows. A unit
counts with at most a cut, so what one unit has beyond the cut is in none of these numbers. docs/proofs/left-out.md has
the theorems.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsql.mechanism.gaussian_measure import GAUSSIAN

Floats = npt.NDArray[np.float64]

SHARE = 0.05
"""Standard deviation of the released number, as a part of the shown numbers together."""
SHARE_OF_TARGET = 0.1
"""Standard deviation for questions by relative error, as a part of their error."""
CLEAR = 4.0
"""Shown numbers are compared with if they are at least so many standard deviations of their noise."""
SURE = 3.0
"""Standard deviations above which rows are said to be left out; a table that lacks nothing says so in 0.13 %."""
LOW_MISS = 0.05
"""Probability with which a lower end may be too high."""
HIGH_MISS = 0.0125
"""Probability with which each of two upper ends may be too low; both hold together with 97.5 %."""
LOW, HIGH = GAUSSIAN.quantile(LOW_MISS), GAUSSIAN.quantile(HIGH_MISS)
"""Standard deviations at which these ends are. Noise of another law is told as Gaussian noise that has its ends."""
_UNEVEN = 1.5
"""A group may lack so many times the mean share; with this, the noise in the shown numbers is covered too."""
LEAST_CUT_OF_ROWS = 0
"""A number of rows is cut at 2**0 rows of a unit or more."""


def cut_exponent(shown: float, shown_sigma: float, sigma: float, share: float, least: int, most: int) -> int:
    """Return the exponent of the cut: the power of two nearest to a share of the shown numbers, in units of the noise.

    Args:
        shown: sum of the released numbers over the shown groups.
        shown_sigma: standard deviation of its noise.
        sigma: standard deviation of the noise of the number of rows left out, in cuts.
        share: aim for its standard deviation, as a part of ``shown``.
        least: smallest exponent.
        most: largest exponent.

    >>> [cut_exponent(shown, 10.0, 1.0, 0.05, 0, 40) for shown in (0.0, 20.0, 600.0, 1000.0, 1e9)]
    [1, 1, 5, 6, 25]
    """
    wanted = share * max(shown, CLEAR * shown_sigma) / sigma
    if wanted <= 0.0:
        return least
    # the power P with 3/4 P <= wanted < 3/2 P
    exponent = math.floor(math.log2(wanted / 1.5)) + 1
    return min(max(exponent, least), most)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A released number of rows, or of an amount, that bounds leave out of shown groups.

    Attributes:
        value: the noisy number.
        sigma: standard deviation of its noise; of another law than the Gaussian one, that of Gaussian noise whose ends
            are no nearer.
        shown: sum of the numbers that it is compared with, over its groups.
        shown_sigma: standard deviation of their noise.
        cut: most with which one unit counts in it.
        groups: number of its groups.
        is_of_shown: whether the answer can show all of these groups.

    """

    value: float
    sigma: float
    shown: float
    shown_sigma: float
    cut: float
    groups: int
    is_of_shown: bool = True

    @property
    def is_clear(self) -> bool:
        """Return whether the shown numbers are large enough to compare with."""
        return self.shown > 0.0 and self.shown >= CLEAR * self.shown_sigma

    @property
    def is_too_low(self) -> bool:
        """Return whether it is said that numbers are too low."""
        return self.is_clear and self.value > SURE * self.sigma

    @property
    def factor(self) -> float:
        """Return the factor of the estimate, 1 or more."""
        return 1.0 + self.value / self.shown if self.is_too_low else 1.0

    @property
    def least(self) -> float:
        """Return the lower end of what is left out, 0 or more.

        *Guarantee*: it exceeds what is truly left out of these groups with a probability of at most 5 %, given all that
        was released before. *Source*: docs/proofs/left-out.md, Theorem 5.
        """
        return max(0.0, self.value - LOW * self.sigma)

    @property
    def most(self) -> float:
        """Return the upper end of what is left out, 0 or more, of units of which at most the cut is left out."""
        return max(0.0, self.value + HIGH * self.sigma)

    @property
    def could_be(self) -> float | None:
        """Return the part of the whole that could be left out, of units of which at most the cut is left out.

        Return None if the shown numbers are too small to compare with.
        """
        if not self.is_clear:
            return None
        return self.most / (self.shown + self.most)

    @property
    def high_factor(self) -> float:
        """Return the factor of an upper end, 1 or more; NaN if the shown numbers are too small to compare with."""
        if not self.is_clear:
            return math.nan
        return max(1.0, 1.0 + _UNEVEN * (self.value + HIGH * self.sigma) / self.shown)

    def estimated(self, values: Floats) -> Floats:
        """Return the numbers without their bounds, never below the numbers."""
        return np.maximum(values, values * self.factor)

    def upper_ends(self, highs: Floats) -> Floats:
        """Return upper ends of the whole numbers, from those of the bounded ones at `HIGH_MISS`; NaN if none is known.

        *Guarantee*: with the lower ends of the bounded numbers they hold a whole number with about 95 %, if no unit
        lacks more than the cut, and its group lacks at most the mean share. *Source*: docs/proofs/left-out.md,
        Theorem 6.
        """
        return np.maximum(highs, highs * self.high_factor) if self.is_clear else np.full_like(highs, math.nan)


@dataclass(frozen=True, slots=True)
class LeftOutReceipt:
    """Rows left out of one column, in a receipt.

    Attributes:
        columns: the columns of the answer that show the number; empty if none shows it by itself.
        of: ``rows``, or the aggregate that adds them up.
        unit: whose rows.
        found: the released number.
        is_amount: whether values are added up, not rows counted.

    """

    columns: tuple[str, ...]
    of: str
    unit: str
    found: LeftOut
    is_amount: bool = False

    @property
    def column(self) -> str:
        """Return the first column of the answer that shows the number; an empty text if none does."""
        return self.columns[0] if self.columns else ""
