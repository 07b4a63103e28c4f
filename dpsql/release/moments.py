"""Covariances, correlations and lines through pairs of values, from their noisy sums.

Of n rows let a and b be the sums of the distances of x and y to the middles of their bounds, and p the sum of the
products. Let q be the sum of the squares of the distances of x, each less r²/2, half of the largest. Then n times the
covariance is p - ab/n, and n times the variance of x is q + n r²/2 - a²/n. All numbers here are quotients of such ones.

Each number carries its derivatives by the noise of each statistic. Their squares, times the variances of the noise, are
its variance to the first order (the delta method). Statistics are noised independently. So numbers that are computed
of one statistic have a known covariance, and the interval of a quotient is Fieller's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsql.model.estimates import Linear, Moments
from dpsql.model.frame import PRESENCE, Statistic

Floats = npt.NDArray[np.float64]

FEWEST_ROWS = 2.0
"""Noisy numbers of rows up to this one leave the value and its interval unknown."""


@dataclass(frozen=True, slots=True)
class Noisy:
    """A number of each group, with its derivatives by the noise of statistics."""

    value: Floats
    slopes: Mapping[Statistic, Floats]

    def __add__(self, other: Noisy) -> Noisy:
        return _combined(self.value + other.value, (self, 1.0), (other, 1.0))

    def __sub__(self, other: Noisy) -> Noisy:
        return _combined(self.value - other.value, (self, 1.0), (other, -1.0))

    def __mul__(self, other: Noisy) -> Noisy:
        return _combined(self.value * other.value, (self, other.value), (other, self.value))

    def __truediv__(self, other: Noisy) -> Noisy:
        quotient = self.value / other.value
        return _combined(quotient, (self, 1.0 / other.value), (other, -quotient / other.value))

    def root(self) -> Noisy:
        """Return the square root."""
        root = np.sqrt(self.value)
        return _combined(root, (self, 0.5 / root))

    def plus(self, constant: float) -> Noisy:
        """Return the sum with a constant."""
        return Noisy(self.value + constant, self.slopes)

    def times(self, constant: float) -> Noisy:
        """Return the product with a constant."""
        return _combined(self.value * constant, (self, constant))

    def where(self, known: npt.NDArray[np.bool_]) -> Noisy:
        """Return the number where it is known, and 1 elsewhere."""
        return Noisy(np.where(known, self.value, 1.0), self.slopes)


def _combined(value: Floats, *parts: tuple[Noisy, Floats | float]) -> Noisy:
    """Return a number whose derivatives are weighted sums of those of its parts."""
    slopes: dict[Statistic, Floats] = {}
    for part, weight in parts:
        for statistic, slope in part.slopes.items():
            slopes[statistic] = slopes.get(statistic, 0.0) + weight * slope
    return Noisy(value, slopes)


def covariance(one: Noisy, other: Noisy, noise: Mapping[Statistic, Floats]) -> Floats:
    """Return the covariance of two numbers to the first order; of a number with itself its variance.

    Args:
        one: a number.
        other: another one, or the same.
        noise: standard deviation of the noise of each statistic.

    """
    found = np.zeros_like(one.value)
    for statistic, slope in one.slopes.items():
        if statistic in other.slopes:
            found = found + slope * other.slopes[statistic] * noise[statistic] ** 2
    return found


def moments_of(
    moments: Moments,
    sums: Mapping[Linear, Floats],
    noise: Mapping[Statistic, Floats],
    quantile: float | Floats,
) -> tuple[Floats, ...]:
    """Return the number of each group with both ends of its interval; NaN in place of a number that is not known.

    *Guarantee*: value and interval are functions of noisy numbers. The interval is Fieller's for the quotient of two
    numbers under normal noise, with their variances to the first order. It is all of the bounds where the noisy number
    of rows, or a noisy variance that divides, is not clearly positive. *Source*: Fieller 1954; docs/proofs/moments.md.

    Args:
        moments: the number and its sums.
        sums: the noisy sums of each group.
        noise: standard deviation of the noise of each statistic.
        quantile: half width of an interval of one number over its standard deviation.

    """
    rows = _noisy(moments.rows, sums)
    known = rows.value > FEWEST_ROWS
    n = rows.where(known)
    means = [_noisy(one.distances, sums) / n for one in (moments.x, moments.y)]
    divisors = []
    for one, mean in zip((moments.x, moments.y), means, strict=True):
        if one.squares:
            squares = _noisy(one.squares, sums) + n.times(one.radius**2 / 2.0) - n * mean * mean
            known &= squares.value > 0.0
            divisors.append(squares)
    products = _noisy(moments.products, sums) - n * means[0] * means[1]
    top, bottom = _parts(moments, n, means, products, [one.where(known) for one in divisors])
    value, low, high = _quotient(top, bottom.where(known), noise, quantile)
    if moments.function == "regr_r2":
        value, low, high = _squared(value, *_moved(low, high, (-1.0, 1.0)))
    else:
        low, high = _moved(low, high, moments.bounds)
    ends = np.where(known, low, -np.inf), np.where(known, high, np.inf)
    return tuple(np.clip(one, *moments.bounds) for one in (np.where(known, value, np.nan), *ends))


def _moved(low: Floats, high: Floats, bounds: tuple[float, float]) -> tuple[Floats, Floats]:
    """Return intervals of which those beyond the bounds are moved to end at them; cut, they would be single points."""
    bottom, top = bounds
    if not (math.isfinite(bottom) and math.isfinite(top)):
        return low, high
    beyond = np.where(low > top, high - top, np.where(high < bottom, low - bottom, 0.0))
    return low - beyond, high - beyond


def _noisy(linear: Linear, sums: Mapping[Linear, Floats]) -> Noisy:
    """Return a noisy sum with its derivatives."""
    ones = np.ones_like(sums[linear])
    slopes = {linear.statistic: ones} if linear.statistic else {}
    return Noisy(sums[linear], slopes | ({PRESENCE: linear.centre * ones} if linear.centre else {}))


def _parts(
    moments: Moments, n: Noisy, means: Sequence[Noisy], products: Noisy, divisors: Sequence[Noisy]
) -> tuple[Noisy, Noisy]:
    """Return the two numbers whose quotient the function is; of regr_r2 those of corr, whose square it is.

    Args:
        moments: the function, with the bounds of both values.
        n: number of rows.
        means: means of the distances of x and of y to the middles of their bounds.
        products: n times the covariance.
        divisors: n times the variances that divide: those of x and of y, of x alone, or none.

    """
    match moments.function:
        case "covar_pop":
            return products, n
        case "covar_samp":
            return products, n.plus(-1.0)
        case "regr_slope":
            return products, divisors[0]
        case "regr_intercept":
            x, y = means[0].plus(moments.x.middle), means[1].plus(moments.y.middle)
            return divisors[0] * y - products * x, divisors[0]
        case "corr" | "regr_r2":
            return products, (divisors[0] * divisors[1]).root()


def _quotient(
    top: Noisy, bottom: Noisy, noise: Mapping[Statistic, Floats], quantile: float | Floats
) -> tuple[Floats, Floats, Floats]:
    """Return a quotient with Fieller's interval, which has no ends where the divisor is not clearly positive."""
    of_top, of_both, of_bottom = (covariance(*pair, noise) for pair in ((top, top), (top, bottom), (bottom, bottom)))
    quotient, squared = top.value / bottom.value, (quantile / bottom.value) ** 2
    clear = (bottom.value > 0.0) & (squared * of_bottom < 1.0)
    remaining = np.where(clear, 1.0 - squared * of_bottom, 1.0)
    variance = of_top - 2.0 * quotient * of_both + quotient**2 * of_bottom - squared * (of_top * of_bottom - of_both**2)
    half_width = np.sqrt(squared * np.maximum(variance, 0.0)) / remaining
    centre = (quotient - squared * of_both) / remaining
    low, high = (np.where(clear, centre + sign * half_width, sign * np.inf) for sign in (-1.0, 1.0))
    return quotient, low, high


def _squared(value: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the square of a number, with the interval of the squares of all numbers of its interval."""
    holds_zero = (low <= 0.0) & (high >= 0.0)
    least = np.where(holds_zero, 0.0, np.minimum(np.abs(low), np.abs(high)))
    return value**2, least**2, np.maximum(np.abs(low), np.abs(high)) ** 2
