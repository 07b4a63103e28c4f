"""The cost of correlated Gaussian noise with a variance for each key, and the common term that costs the least.

Every key has noise N(0, s_i^2) of its own, and all keys share one draw of N(0, c). So the variance of key i is
v_i = s_i^2 + c. One unit moves each number by 0 to `most`, all in one direction (add or remove all of its rows).

*Guarantee*: such a release is one Gaussian release with a squared distance of at most (sum 1/s_i^2 + 1/c) most^2 / 4.
So it costs rho = (sum 1/s_i^2 + 1/c) most^2 / 8.
*Source*: docs/proofs/weighted-correlated.md, Theorem 1; for equal variances Lebeda 2024, Theorem 3.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsql.accounting.profile import require_positive
from dpsql.errors import CalibrationError

Floats = npt.NDArray[np.float64]

_UP = 1.0 + 2.0**-40
"""Covers the roundings of a sum of positive terms, and of its square roots."""
_HALVINGS = 100


@dataclass(frozen=True, slots=True, eq=False)
class Variances:
    """Variances of the noise of a release.

    Attributes:
        own: of the noise that each key has alone, above 0. *Shape*: (keys,).
        common: of the draw that all keys share, above 0.

    """

    own: Floats
    common: float

    @property
    def total(self) -> Floats:
        """Return the variance of each key. *Shape*: (keys,)."""
        return self.own + self.common

    def rho(self, most: float = 1.0) -> float:
        """Return the cost of the release in rho, rounded up.

        Args:
            most: the most that one unit adds to a number.

        >>> round(Variances(np.array([0.5]), 0.5).rho(), 9)
        0.5
        """
        return float((1.0 / self.own).sum() + 1.0 / self.common) * most**2 / 8.0 * _UP

    def at(self, rho: float, most: float = 1.0) -> Variances:
        """Return variances in the same ratios whose release costs no more than rho.

        Raises:
            CalibrationError: rho is not above 0.

        """
        factor = self.rho(most) / require_positive("rho", rho) * _UP
        return Variances(self.own * factor, self.common * factor)


def with_best_common(totals: Floats) -> Variances:
    """Return the split of variances into own and common ones that costs the least.

    The cost is convex in the common variance c. Its least value is where sum 1/(v_i - c)^2 = 1/c^2.

    Args:
        totals: the variance of each key, above 0. *Shape*: (keys,), with at least one key.

    Raises:
        CalibrationError: there is no key, or a variance is not above 0.

    >>> with_best_common(np.array([4.0, 4.0, 4.0, 4.0])).common
    1.3333333333333333
    """
    if not (len(totals) and np.all(np.isfinite(totals)) and np.all(totals > 0.0)):
        raise CalibrationError("correlated noise needs keys with variances above 0")
    # in ratios to the least variance neither a sum nor a square overflows
    least = float(totals.min())
    ratios = totals / least
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        if float(((middle / (ratios - middle)) ** 2).sum()) < 1.0:
            low = middle
        else:
            high = middle
    common = least * low
    return Variances(totals - common, common)


def most_keys(totals: Floats, rho: float, most: float = 1.0) -> int:
    """Return the largest number of keys, from the first on, whose release costs at most rho.

    More keys never cost less: a release of some keys is a part of a release of more.

    Args:
        totals: the variance that each key may have, in the order of preference. *Shape*: (keys,).
        rho: the level that may be spent.
        most: the most that one unit adds to a number.

    >>> most_keys(np.array([2.0, 2.0, 2.0]), 0.4), most_keys(np.array([2.0]), 0.2)
    (2, 0)
    """
    low, high = 0, len(totals)
    while low < high:
        middle = (low + high + 1) // 2
        if with_best_common(totals[:middle]).rho(most) <= rho:
            low = middle
        else:
            high = middle - 1
    return low


def equal_variance(keys: int, rho: float, most: float = 1.0) -> float:
    """Return the variance of each of several keys with equal variances at rho.

    >>> equal_variance(4, 0.5)
    2.25
    """
    return (math.sqrt(keys) + 1.0) ** 2 * most**2 / (8.0 * rho)
