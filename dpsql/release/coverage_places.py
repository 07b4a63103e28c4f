"""Noisy places of coverage, read as numbers of units, sizes and what is left; and ends of ratios of their sums.

docs/proofs/coverage.md, Theorem 3, has the proof of each end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpsql.bound.coverage import BUCKETS, CORNERS
from dpsql.release.estimates import Floats

_MORE_UNITS = 4.0
"""Units more in each corner when the spread of roundings is computed: few units have a spread that they do not show."""


@dataclass(frozen=True, slots=True)
class Line:
    """Two sums over places, and the variances of their errors: a ratio of them is a number of coverage.

    Attributes:
        above, below: numerator and denominator.
        above_variance, below_variance, covariance: of their errors.

    """

    above: float
    below: float
    above_variance: float
    below_variance: float
    covariance: float = 0.0

    def is_sure(self, z: float) -> bool:
        """Check that the denominator exceeds ``z`` standard deviations of its error."""
        return self.below > z * math.sqrt(self.below_variance)

    def end(self, z: float, *, upper: bool) -> float:
        """Return one end of the interval of the ratio, by Fieller's method.

        *Guarantee*: the end is on its side of the true ratio r unless the error of ``above - r * below`` is larger than
        ``z`` of its standard deviations, with one sign. *Source*: Fieller 1954; docs/proofs/coverage.md, Lemma 2.
        *Assumes*: ``is_sure(z)``.
        """
        square = z * z
        first = self.below**2 - square * self.below_variance
        second = self.above * self.below - square * self.covariance
        third = self.above**2 - square * self.above_variance
        root = math.sqrt(max(0.0, second**2 - first * third))
        return (second + root if upper else second - root) / first


class Places:
    """The places of a noisy histogram of coverage.

    Attributes:
        ends: size at which each bucket ends.
        units: noisy number of units in each bucket, and last beyond all buckets.
        units_variance: of the noise in each of these.
        least_sizes: size that each unit there has at least.
        masses: noisy sum of sizes in each bucket.

    """

    def __init__(self, noisy: Floats, sigma: float, end: float, most: float, largest: float) -> None:
        """Read a histogram.

        Args:
            noisy: units in each place; shape (PLACES,).
            sigma: standard deviation of the noise of each.
            end: size at which the first bucket ends.
            most: what may be left of any unit.
            largest: size that no unit exceeds.

        """
        self.ends = end * np.ldexp(1.0, np.arange(BUCKETS))
        most_left = np.minimum(self.ends, most)
        starts = np.append(0.0, self.ends)
        # no unit is larger than the largest; of none more is left than it has
        is_possible = np.repeat((starts[:-1] < largest)[:, None], CORNERS, axis=1)
        is_possible[self.ends <= most, 2] = False
        self._corners = np.where(is_possible, noisy[:-1].reshape(BUCKETS, CORNERS), 0.0)
        last = starts[-1] < largest
        self.units = np.append(self._corners.sum(axis=1), noisy[-1] if last else 0.0)
        self.units_variance = sigma**2 * np.append(is_possible.sum(axis=1), float(last))
        self.least_sizes = np.append(self.ends / 2.0, self.ends[-1])
        sizes = np.where(is_possible, np.outer(self.ends, [0.0, 1.0, 0.0, 1.0]), 0.0)
        left = np.where(is_possible, np.outer(most_left, [0.0, 0.0, 1.0, 1.0]), 0.0)
        self.masses = (sizes * self._corners).sum(axis=1)
        self._mass, self._left = np.cumsum(self.masses), np.cumsum((left * self._corners).sum(axis=1))
        variance = sigma**2 + _MORE_UNITS
        self._mass_variance = np.cumsum(self._error(sizes, sizes, variance))
        self._left_variance = np.cumsum(self._error(left, left, variance))
        self._covariance = np.cumsum(self._error(left, sizes, variance))
        # a statement looks at all pairs of buckets: floats are faster than vectors of one number
        self._units, self._units_error = _running(self.units), _running(self.units_variance)
        weights = self.least_sizes
        self._least, self._least_error = _running(weights * self.units), _running(weights**2 * self.units_variance)

    def _error(self, one: Floats, other: Floats, variance: float) -> Floats:
        """Return the covariance of two sums in each bucket: of the noise, and of where units stand.

        Which groups of a unit are left varies by no more than its place does, so the second counts twice.
        """
        units = np.maximum(self._corners, 0.0)
        number = units.sum(axis=1)
        product = (units * one).sum(axis=1) * (units * other).sum(axis=1)
        mean = np.divide(product, number, out=np.zeros(BUCKETS), where=number > 0.0)
        spread = (units * one * other).sum(axis=1) - mean
        error: Floats = variance * (one * other).sum(axis=1) + 2.0 * spread
        return error

    def kept_up_to(self, bucket: int) -> Line:
        """Return what is left, by what there is, of units in the buckets up to one."""
        return Line(
            float(self._left[bucket]),
            float(self._mass[bucket]),
            float(self._left_variance[bucket]),
            float(self._mass_variance[bucket]),
            float(self._covariance[bucket]),
        )

    def least_beyond(self, bucket: int, last: int) -> Line:
        """Return what units in the buckets after one have at least, up to a last bucket, by what units before have."""
        return Line(
            self._least[last] - self._least[bucket],
            float(self._mass[bucket]),
            self._least_error[last] - self._least_error[bucket],
            float(self._mass_variance[bucket]),
        )

    def units_beyond(self, bucket: int, last: int = BUCKETS) -> tuple[float, float]:
        """Return the noisy number of units in the buckets after one up to a last one, and its standard deviation."""
        number, variance = self._units[last] - self._units[bucket], self._units_error[last] - self._units_error[bucket]
        return number, math.sqrt(variance)

    def enough(self, bucket: int, share: float) -> float:
        """Return the least end of a bucket to which units up to ``bucket`` can be cut with ``share`` of theirs left.

        Each unit is taken at the mean of its bucket; 0.0 if no end is enough.
        """
        number, ends = np.maximum(self._corners, 0.0)[: bucket + 1], self.ends[: bucket + 1]
        units = number.sum(axis=1)
        large = number[:, [1, 3]].sum(axis=1)
        means = ends * np.divide(large, units, out=np.zeros_like(units), where=units > 0.0)
        whole = float(units @ means)
        return next((float(most) for most in ends if units @ np.minimum(means, most) >= share * whole), 0.0)


def _running(values: Floats) -> list[float]:
    """Return the running totals of a vector."""
    totals: list[float] = np.cumsum(values).tolist()
    return totals
