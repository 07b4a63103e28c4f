"""From noisy points to the numbers that a reader sees, each with its standard deviation and 95 % interval.

A linear value is ``lattice * s + centre * presence``; both terms are noisy and independent, so its variance is the sum
of theirs. All statistics of a frame are noised in one way, so that where values are read from under the noise, one
vector of norms is for all of them. Each kind of estimate has one function here, and its row in `COLUMNS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsql.mechanism.histogram import Histogram, Sequences, count_sigma
from dpsql.mechanism.measure import MISS, RatioTerm, Term
from dpsql.model.estimates import (
    UNITS,
    WHOLE,
    AnyUnit,
    Estimate,
    GeometricMean,
    Linear,
    LinearValue,
    Moments,
    NoValue,
    Quantile,
    Ratio,
    RunningSum,
    Spread,
    Sum,
    Value,
)
from dpsql.model.frame import PRESENCE, Statistic
from dpsql.model.private_query import Buckets, EachKey
from dpsql.noise.running_totals import FractionalSum
from dpsql.release.spreads import MISS_JOINTLY, spread_interval, spread_value

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NoisyValues:
    """A statistic on some keys, in the aggregate's units; ``noise`` is the standard deviation of what was noised."""

    value: Floats
    noise: float


@dataclass(frozen=True, slots=True)
class EstimatedColumn:
    """An estimate on the shown keys with its 95 % interval; NaN where it has no value."""

    value: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class NoisyFrame:
    """What the estimates of a query are computed from.

    Attributes:
        values: of every statistic, on all keys of the answer; what is added up needs all keys of the frame.
        histogram: how they were noised.
        groups: which values make one group.
        roundings: how many roundings are in a value that is shown as a whole number.
        lost: how much more a count of units may be than its value says.
        wider: times that intervals are wider than those of 95 %; one number, or one for each value.

    """

    values: Mapping[Statistic, NoisyValues]
    histogram: Histogram
    groups: EachKey | Buckets
    roundings: int = 1
    lost: float = 0.0
    wider: float | Floats = 1.0

    @property
    def noise(self) -> dict[Statistic, float]:
        """Standard deviation of what was noised of each statistic."""
        return {statistic: noisy.noise for statistic, noisy in self.values.items()}


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
        return NoisyValues(FractionalSum(statistic.cells).values(noisy.reshape(-1, statistic.cells)), noise)
    return NoisyValues(histogram.values(noisy), noise)


def linear_noises(linear: Linear, noise: Mapping[Statistic, float]) -> list[Term]:
    """Draws in a linear value, with deviations over those of its values where these are not noised themselves.

    Draws of 0 are left out, unless there is no other.
    """
    own = [Term(noise[linear.statistic], linear.statistic.lattice)] if linear.statistic else []
    return [*own, Term(abs(linear.centre) * noise[PRESENCE], abs(linear.centre))] if linear.centre or not own else own


def added_up(value: Value, groups: EachKey | Buckets, of_keys: Floats) -> Floats:
    """Values of keys as the groups of an answer show them: by themselves, in running totals, or in sums of buckets."""
    if isinstance(groups, Buckets):
        return Sequences(groups.ordering, 0).group_sums(of_keys, groups.places)
    if isinstance(value, RunningSum):
        return Sequences(value.total.ordering, 0).totals(of_keys, value.total.span)
    return of_keys


def norms_of(value: Value, groups: EachKey | Buckets, histogram: Histogram) -> Floats:
    """Standard deviation of what `added_up` gives over that of the noise."""
    if isinstance(groups, Buckets):
        return histogram.along(groups.ordering).group_norms(groups.places)
    if isinstance(value, RunningSum):
        return histogram.along(value.total.ordering).total_norms(value.total.span)
    return histogram.value_norms()


def linear_value(linear: Linear, values: Mapping[Statistic, NoisyValues]) -> Floats:
    """A linear value on every key."""
    own = values[linear.statistic].value if linear.statistic else 0.0
    return np.asarray(own + linear.centre * values[PRESENCE].value, dtype=np.float64)


def sum_column(estimate: Estimate, value: LinearValue, frame: NoisyFrame) -> EstimatedColumn:
    """A count, a sum or a running total, with the interval of its noise."""
    sums = added_up(value, frame.groups, linear_value(value.linear, frame.values))
    norms, rounded = norms_of(value, frame.groups, frame.histogram), frame.roundings * (estimate.type in WHOLE)
    noises = [Term(one.sigma * norms, one.step) for one in linear_noises(value.linear, frame.noise)]
    half_width = frame.histogram.measure.half_width(noises, rounded, wider=frame.wider)
    return EstimatedColumn(sums, sums - half_width, sums + half_width + frame.lost * value.linear.centre)


def ratio_column(_: Estimate, ratio: Ratio, frame: NoisyFrame) -> EstimatedColumn:
    """A mean within its bounds, top / bottom, with Fieller's interval (Fieller 1954).

    Its two sums share the presence count. Where the denominator is not clearly positive the interval is all of
    [low, high]; where it is not positive the value is NaN, which is shown as NULL. Both depend on noisy numbers only.
    """
    bounds = ratio.bounds[0] - ratio.offset, ratio.bounds[1] - ratio.offset
    norms, noise = norms_of(ratio, frame.groups, frame.histogram), frame.noise
    top, bottom = (added_up(ratio, frame.groups, linear_value(linear, frame.values)) for linear in ratio.linears)
    weights = {linear.statistic or PRESENCE: [0.0, 0.0] for linear in ratio.linears} | {PRESENCE: [0.0, 0.0]}
    for side, linear in enumerate(ratio.linears):
        weights[PRESENCE][side] += linear.centre
        if linear.statistic:
            weights[linear.statistic][side] += 1.0
    noises = [
        RatioTerm(above * norms * noise[one], below * norms * noise[one], one.lattice / noise[one])
        for one, (above, below) in weights.items()
    ]
    low, high = frame.histogram.measure.ratio_interval((top, bottom), noises, bounds, frame.wider)
    positive = bottom > 0.0
    value = np.where(positive, np.clip(top / np.where(positive, bottom, 1.0), *bounds), np.nan)
    return EstimatedColumn(value + ratio.offset, low + ratio.offset, high + ratio.offset)


def spread_column(_: Estimate, spread: Spread, frame: NoisyFrame) -> EstimatedColumn:
    """A spread of rows, sum and squares; the sum is recentred, so that the interval has little doubt of it."""
    norms, noise, most = norms_of(spread, frame.groups, frame.histogram), frame.noise, spread.bounds[1]
    total, rows, squares = (
        added_up(spread, frame.groups, linear_value(linear, frame.values)) for linear in spread.linears
    )
    average, measure = spread.average, frame.histogram.measure
    recentred = [(1.0, average.numerator), (-spread.middle, average.denominator)]
    of_rows, of_total, of_squares = (
        measure.half_width([Term(one * norms) for one in combined_noises(parts, noise)], 0, MISS_JOINTLY) * frame.wider
        for parts in ([(1.0, average.denominator)], recentred, [(1.0, spread.squares)])
    )
    low, high = spread_interval(
        spread, (rows, of_rows), (total - spread.middle * rows, of_total), (squares, of_squares), most
    )
    return EstimatedColumn(spread_value(spread, rows, total, squares, most), low, high)


def combined_noises(parts: Sequence[tuple[float, Linear]], noise: Mapping[Statistic, float]) -> list[float]:
    """Standard deviation of each draw in a weighted sum of linear estimates, whose centres share the presence count."""
    weights = {PRESENCE: sum(weight * linear.centre for weight, linear in parts)}
    for weight, linear in parts:
        if linear.statistic:
            weights[linear.statistic] = weights.get(linear.statistic, 0.0) + weight
    return [abs(weight) * noise[statistic] for statistic, weight in weights.items()]


def geometric_column(estimate: Estimate, mean: GeometricMean, frame: NoisyFrame) -> EstimatedColumn:
    """A geometric mean: that of the logarithms, with its interval, on the scale of the values."""
    found = ratio_column(estimate, mean.logarithm, frame)
    return EstimatedColumn(*(np.clip(np.exp(one), *mean.bounds) for one in (found.value, found.low, found.high)))


def moments_column(_: Estimate, moments: Moments, frame: NoisyFrame) -> EstimatedColumn:
    """A number of pairs of values, from their sums."""
    from dpsql.release.moments import moments_of  # noqa: PLC0415 — few queries need it

    norms = norms_of(moments, frame.groups, frame.histogram)
    sums = {one: added_up(moments, frame.groups, linear_value(one, frame.values)) for one in moments.linears}
    noise = {statistic: sigma * norms for statistic, sigma in frame.noise.items()}
    quantile = frame.histogram.measure.quantile(MISS / 2.0) * frame.wider
    return EstimatedColumn(*moments_of(moments, sums, noise, quantile))


def quantile_column(_: Estimate, quantile: Quantile, frame: NoisyFrame) -> EstimatedColumn:
    """A quantile of every key, read from its cells."""
    noisy = frame.values[quantile.histogram]
    value = quantile_value(noisy.value, quantile.share, quantile.edges)
    # cells are not noised by the count of units, whose threshold alone makes widths of groups differ
    wider = float(np.max(frame.wider, initial=1.0))
    z = frame.histogram.measure.quantile(MISS / 2.0) * wider
    ends = quantile_interval(noisy.value, quantile.share, quantile.edges, noisy.noise, z)
    return EstimatedColumn(value, *ends)


def quantile_value(cells: Floats, share: float, edges: Sequence[float]) -> Floats:
    """Where the noisy number of rows below reaches its share; NaN without rows.

    Within a cell rows are as dense as a straight line says, of the smaller slope towards its two neighbours, and level
    where these are both below it, or both above.

    *Shapes*: ``cells`` (keys, cells), ``edges`` (cells + 1,), the result (keys,).
    """
    # rows below a value cannot become fewer as it rises, and are not below 0
    below = np.maximum(np.maximum.accumulate(np.cumsum(cells, axis=1), axis=1), 0.0)
    rows = np.cumsum(cells, axis=1)[:, -1]
    wanted = share * rows
    place = np.argmax(below >= wanted[:, None], axis=1)
    keys = np.arange(len(cells))
    before = np.where(place > 0, below[keys, place - 1], 0.0)
    starts, widths = np.asarray(edges)[:-1], np.diff(edges)
    density = np.diff(below, axis=1, prepend=0.0) / widths
    slopes = np.zeros_like(density)
    steps = np.diff(density, axis=1) / np.diff(starts + widths / 2.0)
    left, right = steps[:, :-1], steps[:, 1:]
    slopes[:, 1:-1] = np.where(left * right > 0.0, np.sign(left) * np.minimum(np.abs(left), np.abs(right)), 0.0)
    here, width = density[keys, place], widths[place]
    # nowhere in the cell below 0
    slope = np.clip(slopes[keys, place], -2.0 * here / width, 2.0 * here / width)
    first, passed = here - slope * width / 2.0, np.clip(wanted - before, 0.0, here * width)
    root = first + np.sqrt(np.maximum(first**2 + 2.0 * slope * passed, 0.0))
    within = np.divide(2.0 * passed, root, out=np.zeros_like(passed), where=root > 0.0)
    return np.where(rows > 0.0, starts[place] + np.minimum(within, width), np.nan)


def quantile_interval(
    cells: Floats, share: float, edges: Sequence[float], noise: float, z: float
) -> tuple[Floats, Floats]:
    """An interval that covers the cell of the exact quantile as often as noise is within z standard deviations.

    *Guarantee*: let D_j be the rows up to cell j less the share of all, and the quantile's cell be the first with
    D_j >= 0. It is left out only if the noisy D_j is more than z standard deviations below 0, though D_j >= 0, or the
    noisy D_(j-1) more than z above 0, though D_(j-1) < 0: each with half the probability that z leaves. What is shown
    is the least interval that holds all cells that are not left out, and the bounds where there are none.
    *Args*: ``noise``, standard deviation of what was noised. *Shapes*: (keys, cells) and (cells + 1,) to (keys,) twice.
    """
    count = cells.shape[1]
    weights = np.tril(np.ones((count, count))) - share
    doubt = z * noise * FractionalSum(count).subset_norms(weights)
    ahead = np.cumsum(cells, axis=1) - share * cells.sum(axis=1, keepdims=True)
    possible = ahead + doubt >= 0.0
    possible[:, 1:] &= (ahead - doubt)[:, :-1] <= 0.0
    some = possible.any(axis=1)
    first = np.where(some, np.argmax(possible, axis=1), 0)
    last = np.where(some, count - 1 - np.argmax(possible[:, ::-1], axis=1), count - 1)
    return np.asarray(edges)[first], np.asarray(edges)[last + 1]


def any_unit_column(estimate: Estimate, value: AnyUnit, frame: NoisyFrame) -> EstimatedColumn:
    """Truth values, each with the 95 % interval of the number of units that decides it.

    *Guarantee*: where no unit is counted, a value is told with probability at most 0.025. Of a
    group behind a threshold that is the probability that it is shown and told of: whether it is shown depends on the
    same noise, so that of groups that are shown near the threshold a larger share is told of wrongly.
    *Source*: the number of units is a whole number, so an interval above 0 leaves out none but 0; its lower end is
    above a true 0 only if the noise is above its 97.5 % quantile.
    *Returns*: ``truth`` as 1 or 0, or NaN. That there is no such unit is never told: privacy hides whether there is
        one.
    """
    units = sum_column(estimate, value, frame)
    return replace(units, value=np.where(units.low > 0.0, float(value.truth), np.nan))


def no_column(_: Estimate, __: NoValue, frame: NoisyFrame) -> EstimatedColumn:
    """Return a column without a number in any group of the answer."""
    groups = len(added_up(UNITS, frame.groups, frame.values[PRESENCE].value))
    nothing = np.full(groups, np.nan)
    return EstimatedColumn(nothing, nothing, nothing)


COLUMNS: Mapping[type[Value], Callable[[Estimate, Any, NoisyFrame], EstimatedColumn]] = {
    Sum: sum_column,
    RunningSum: sum_column,
    AnyUnit: any_unit_column,
    Ratio: ratio_column,
    Spread: spread_column,
    GeometricMean: geometric_column,
    Moments: moments_column,
    Quantile: quantile_column,
    NoValue: no_column,
}
