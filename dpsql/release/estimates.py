"""From noisy points to the numbers that a reader sees, each with its standard deviation and 95 % interval.

An estimate is ``lattice * s + centre * presence``; both terms are noisy and independent, so its variance is the sum of
theirs, and an average is the ratio of two such sums with a known covariance. All statistics of a frame are noised in
one way, so that where values are read from under the noise, one vector of norms is for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsql.mechanisms.running_totals import FractionalSum
from dpsql.query.frame import PRESENCE, Statistic
from dpsql.query.private_query import Buckets, Estimate, Linear, Spread
from dpsql.release.histogram import Histogram, count_sigma
from dpsql.release.quantiles import quantile_interval, quantile_value
from dpsql.release.sequences import FactorisedHistogram, Sequences
from dpsql.release.spreads import combined_noise, spread_interval, spread_value

Z_95 = 1.959963984540054
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NoisyValues:
    """A statistic on some keys: value and standard deviation in the aggregate's units.

    Attributes:
        sigma: of each value; one for all keys, or one for each.
        noise: of what was noised.

    """

    value: Floats
    sigma: Floats
    noise: float


@dataclass(frozen=True, slots=True)
class EstimatedColumn:
    """An estimate on the shown keys with its 95 % interval; NaN where an average has none."""

    value: Floats
    low: Floats
    high: Floats


def noise_sigma(statistic: Statistic, sigma: float, histogram: Histogram) -> float:
    """Standard deviation of what is stored: the noise's, and the uniform error of rounding it to the lattice."""
    if statistic == PRESENCE:
        return count_sigma(histogram, sigma)
    return float(np.hypot(sigma, 2.0**statistic.noise_exponent / np.sqrt(12.0)))


def read_values(statistic: Statistic, noisy: Floats, noise: float, histogram: Histogram) -> NoisyValues:
    """What is stored of a statistic, read as values of its keys; of a histogram as rows of cells.

    Args:
        statistic: what it is.
        noisy: over all keys, or over any where values are noised themselves; in the aggregate's units.
        noise: their `noise_sigma`.
        histogram: how they were noised.

    """
    if statistic.cells > 1:
        cells = FractionalSum(statistic.cells)
        return NoisyValues(cells.values(noisy.reshape(-1, statistic.cells)), noise * cells.value_norms(), noise)
    return NoisyValues(histogram.values(noisy), noise * histogram.value_norms(), noise)


def shown_sigma(estimate: Estimate, sigma: Floats, roundings: int) -> Floats:
    """Standard deviation of an estimate as it is shown: a BIGINT is rounded, or the difference of rounded sums."""
    return np.hypot(sigma, np.sqrt(roundings / 12.0)) if estimate.type == "BIGINT" else sigma


def linear_noise(linear: Linear, noise: Mapping[Statistic, float]) -> float:
    """Standard deviation of a linear estimate, over that of its values where these are not noised themselves."""
    own = noise[linear.statistic] if linear.statistic is not None else 0.0
    return float(np.hypot(own, linear.centre * noise[PRESENCE]))


def norms_of(estimate: Estimate, buckets: Buckets | None, histogram: Histogram) -> Floats:
    """Standard deviation of each value, running total or group of buckets over that of the noise."""
    power = histogram.sequences.sixteenths if isinstance(histogram, FactorisedHistogram) else 0
    if buckets is not None:
        return Sequences(buckets.ordering, power).group_norms(buckets.places)
    if estimate.total is not None:
        return Sequences(estimate.total.ordering, power).total_norms(estimate.total.span)
    return histogram.value_norms()


def _added_up(estimate: Estimate, buckets: Buckets | None, values: Floats) -> Floats:
    """Values as they are asked for: themselves, their running totals, or sums of buckets."""
    if buckets is not None:
        return Sequences(buckets.ordering, 0).group_sums(values, buckets.places)
    if estimate.total is not None:
        return Sequences(estimate.total.ordering, 0).totals(values, estimate.total.span)
    return values


def linear_value(linear: Linear, values: Mapping[Statistic, NoisyValues]) -> Floats:
    """A linear estimate on every key."""
    own = values[linear.statistic].value if linear.statistic is not None else 0.0
    return np.asarray(own + linear.centre * values[PRESENCE].value, dtype=np.float64)


def estimate_column(
    estimate: Estimate,
    buckets: Buckets | None,
    values: Mapping[Statistic, NoisyValues],
    histogram: Histogram,
    roundings: int = 1,
) -> EstimatedColumn:
    """Value and interval of one estimate on every key of the answer; what is added up needs all keys of the frame."""
    if estimate.quantile is not None and estimate.clamp is not None and estimate.numerator.statistic is not None:
        noisy = values[estimate.numerator.statistic]
        value = quantile_value(noisy.value, estimate.quantile, estimate.clamp)
        ends = quantile_interval(noisy.value, estimate.quantile, estimate.clamp, noisy.noise, Z_95)
        return EstimatedColumn(value, *ends)
    noise = {statistic: noisy.noise for statistic, noisy in values.items()}
    top = _added_up(estimate, buckets, linear_value(estimate.numerator, values))
    norms = norms_of(estimate, buckets, histogram)
    top_sigma = linear_noise(estimate.numerator, noise) * norms
    if estimate.denominator is None:
        half_width = Z_95 * shown_sigma(estimate, top_sigma, roundings)
        return EstimatedColumn(top, top - half_width, top + half_width)
    bottom = _added_up(estimate, buckets, linear_value(estimate.denominator, values))
    bottom_sigma = linear_noise(estimate.denominator, noise) * norms
    if estimate.spread is not None:
        squares = _added_up(estimate, buckets, linear_value(estimate.spread.squares, values))
        return _spread_column(estimate, estimate.spread, (bottom, top, squares), noise, norms)
    covariance = estimate.numerator.centre * estimate.denominator.centre * (noise[PRESENCE] * norms) ** 2
    low, high = estimate.clamp or (-np.inf, np.inf)
    return _ratio(top, top_sigma, bottom, bottom_sigma, covariance, low, high)


def _spread_column(
    estimate: Estimate, spread: Spread, sums: tuple[Floats, Floats, Floats], noise: Mapping[Statistic, float],
    norms: Floats,
) -> EstimatedColumn:  # fmt: skip
    """A spread of rows, sum and squares; the sum is recentred, so that the interval has little doubt of it."""
    if estimate.denominator is None or estimate.clamp is None:
        raise AssertionError("a spread has rows and bounds")
    rows, total, squares = sums
    most = estimate.clamp[1]
    recentred = [(1.0, estimate.numerator), (-spread.middle, estimate.denominator)]
    low, high = spread_interval(
        spread,
        (rows, combined_noise([(1.0, estimate.denominator)], noise) * norms),
        (total - spread.middle * rows, combined_noise(recentred, noise) * norms),
        (squares, combined_noise([(1.0, spread.squares)], noise) * norms),
        most,
    )
    return EstimatedColumn(spread_value(spread, rows, total, squares, most), low, high)


def _ratio(
    top: Floats,
    top_sigma: Floats,
    bottom: Floats,
    bottom_sigma: Floats,
    covariance: Floats,
    low: float,
    high: float,
) -> EstimatedColumn:
    """Top / bottom, clamped to [low, high], with Fieller's interval (Fieller 1954).

    Where the denominator is not clearly positive the interval is all of [low, high]; where it is not positive the
    value is NaN, which is shown as NULL. Both depend on noisy numbers only.
    """
    positive = bottom > 0.0
    safe = np.where(positive, bottom, 1.0)
    ratio = top / safe
    doubt = (Z_95 * bottom_sigma / safe) ** 2
    clear = positive & (doubt < 1.0)
    remaining = np.where(clear, 1.0 - doubt, 1.0)
    slope = covariance / np.where(bottom_sigma > 0.0, bottom_sigma, 1.0) ** 2
    spread = (
        top_sigma**2
        - 2.0 * ratio * covariance
        + (ratio * bottom_sigma) ** 2
        - doubt * (top_sigma**2 - slope * covariance)
    )
    half_width = Z_95 / safe * np.sqrt(np.maximum(spread, 0.0)) / remaining
    centre = (ratio - doubt * slope) / remaining
    return EstimatedColumn(
        value=np.where(positive, np.clip(ratio, low, high), np.nan),
        low=np.where(clear, np.clip(centre - half_width, low, high), low),
        high=np.where(clear, np.clip(centre + half_width, low, high), high),
    )
