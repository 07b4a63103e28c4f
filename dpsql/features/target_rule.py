"""The rule of a question by relative error: which released numbers are within it, and which level comes next.

The rule and the forecast read released numbers of shown groups alone, so they are post-processing. The intervals allow
for stopping by what was released: docs/proofs/target.md has their quantiles.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np
import numpy.typing as npt

from dpsql.features.target_picked import PickedRows
from dpsql.mechanism.gaussian_walks import INTERVALS, QUANTILES, entry
from dpsql.mechanism.measure import MISS, miss_of
from dpsql.model.estimates import WHOLE, BoundedValue, Estimate, Linear, NoValue, Ratio, Sum
from dpsql.model.frame import PRESENCE, Statistic
from dpsql.model.private_query import FrameQuery
from dpsql.model.query_kinds import RelativeError
from dpsql.release.estimates import (
    COLUMNS,
    Floats,
    NoisyFrame,
    NoisyValues,
    added_up,
    linear_noises,
    linear_value,
    norms_of,
)
from dpsql.release.points import ShownFrame
from dpsql.release.top_rows import Integers

AHEAD = 2.0
"""A number is taken to grow by so many standard deviations of its change, so that a step seldom goes too far."""
AHEAD_OF_PICKED = 1.0
"""Deviations likewise for rows that LIMIT picks: the largest of many noisy numbers seldom grow."""


def quantile_of(target: RelativeError) -> float:
    """Return the half width of an interval over its standard deviation, at the target's confidence."""
    return entry(QUANTILES[target.confidence], target.error)


def interval_quantile(target: RelativeError) -> float:
    """Return the half width of a 95 % interval over its standard deviation, after the target's rule ended the steps."""
    return entry(INTERVALS[target.confidence], target.error)


def upper_quantile(target: RelativeError) -> float:
    """Return the half width of the interval whose upper end is that of whole numbers, over its standard deviation.

    That of 99 % holds for the 97.5 % that are needed.
    """
    return entry(QUANTILES[0.99], target.error)


def factor_of(quantile: float, frame: NoisyFrame) -> float:
    """Return the factor of a frame's intervals at a half width over its standard deviation."""
    return quantile / frame.histogram.measure.quantile(MISS / 2.0)


@dataclass(frozen=True)
class Column:
    """Numbers of one column on the shown groups.

    Attributes:
        values: as they are shown: rounded, and 0 in place of a number below 0 that cannot be.
        half_widths: the distance of each from the further end of its interval, which may be cut at bounds.
        sigmas: standard deviations, by these distances.
        known: whether an interval says anything of a number, which that of an average need not.

    """

    values: Floats
    half_widths: Floats
    sigmas: Floats
    known: npt.NDArray[np.bool_]

    def at(self, places: slice | Integers) -> Column:
        """Return the numbers of some of the groups."""
        return Column(self.values[places], self.half_widths[places], self.sigmas[places], self.known[places])

    def within(self, error: float) -> npt.NDArray[np.bool_]:
        """Return which numbers are within a relative error; one of which an interval says nothing is not."""
        return self.known & (self.half_widths <= error * np.abs(self.values))


@dataclass(frozen=True)
class Rows:
    """Numbers of rows that averages are taken of, on the shown groups.

    Attributes:
        counted: noisy numbers of rows.
        sigmas: their standard deviations.
        least: standard deviations of the noisy sums, given the numbers of rows.

    """

    counted: Floats
    sigmas: Floats
    least: Floats


@dataclass(frozen=True)
class Step:
    """What was released at one step, and the noise that was asked for.

    Attributes:
        level_nano: level of the statistics together.
        estimates: the columns that the target is for.
        found: values and shown groups.
        sigmas: standard deviation of what was noised of each statistic, as the level gives it.
        picked: the rows that the rule counts; None if it counts all shown groups.

    """

    level_nano: int
    estimates: tuple[Estimate, ...]
    found: ShownFrame
    sigmas: Mapping[Statistic, float]
    picked: PickedRows | None = None

    @property
    def ahead(self) -> float:
        """Number of standard deviations of its change by which a number is taken to grow."""
        return AHEAD if self.picked is None else AHEAD_OF_PICKED

    @property
    def groups(self) -> int:
        """Number of shown groups."""
        return len(self.found.shown)

    @cached_property
    def places(self) -> slice | Integers:
        """Places of the groups that the rule counts among the shown ones."""
        return slice(None) if self.picked is None else self.picked.places(self.found)

    @property
    def counted(self) -> int:
        """Number of shown groups that the rule counts."""
        return self.groups if isinstance(self.places, slice) else len(self.places)

    @property
    def counts_enough(self) -> bool:
        """Tell if as many groups are shown as have to be."""
        return self.groups > 0 if self.picked is None else self.counted >= self.picked.needed

    def judged(self, quantile: float, level_nano: int | None = None, *, held: bool = True) -> tuple[Column, ...]:
        """Return the columns on the groups that the rule counts; arguments as those of `columns`."""
        return tuple(one.at(self.places) for one in self.columns(quantile, level_nano, held=held))

    def columns(self, quantile: float, level_nano: int | None = None, *, held: bool = True) -> tuple[Column, ...]:
        """Return the columns as they are, or with the noise of another level.

        Args:
            quantile: half width of an interval over its standard deviation.
            level_nano: the other level; the numbers stay what they are.
            held: whether noise that is less already stays so.

        """
        frame, found = self._frame(level_nano, held=held), []
        asked = factor_of(quantile, frame)
        factors = self.picked.factors(frame, self.found, self.estimates) if self.picked else [1.0] * len(self.estimates)
        for estimate, wider in zip(self.estimates, factors, strict=True):
            own, among = replace(frame, wider=asked * wider), self.found.among
            column = COLUMNS[type(estimate.value)](estimate, estimate.value, own)
            shown = np.rint(column.value[among]) if estimate.type in WHOLE else column.value[among]
            shown = np.maximum(shown, 0.0) if estimate.is_never_negative else shown
            value, low, high = column.value[among], column.low[among], column.high[among]
            half_widths = np.maximum(high - value, value - low)
            domain = estimate.value.bounds if isinstance(estimate.value, BoundedValue) else (-math.inf, math.inf)
            width = domain[1] - domain[0]
            # bounds without a width say all of a number
            known = np.isfinite(shown) & ((high - low < _WHOLE * width) | (width == 0.0))
            widths = quantile * (wider if isinstance(wider, float) else wider[among])
            found.append(Column(shown, half_widths, half_widths / widths, known))
        return tuple(found)

    def rows(self, average: Ratio, level_nano: int | None = None) -> Rows:
        """Return the numbers of rows of an average, as they are or with the noise of another level."""
        frame, among = self._frame(level_nano, held=True), self.found.among
        counted = added_up(average, frame.groups, linear_value(average.denominator, frame.values))
        norms = np.broadcast_to(norms_of(average, frame.groups, frame.histogram), counted.shape)[among]
        of_sum, of_rows = (_deviation(one, frame.noise) * norms for one in average.linears)
        common = average.numerator.centre * average.denominator.centre * (frame.noise[PRESENCE] * norms) ** 2
        least = np.sqrt(np.maximum(of_sum**2 - (common / of_rows) ** 2, 0.0))
        return Rows(counted[among], of_rows, least)

    def noise(self, level_nano: int) -> dict[Statistic, float]:
        """Return the standard deviations of what was noised at another level."""
        return self._frame(level_nano, held=True).noise

    def _frame(self, level_nano: int | None, *, held: bool) -> NoisyFrame:
        frame = self.found.values
        if level_nano is None:
            return frame
        scale = math.sqrt(self.level_nano / level_nano)
        values = {
            one: NoisyValues(noisy.value, self._noise(one, noisy.noise, scale, held=held))
            for one, noisy in frame.values.items()
        }
        return replace(frame, values=values)

    def _noise(self, statistic: Statistic, noise: float, scale: float, *, held: bool) -> float:
        asked = self.sigmas[statistic] * scale
        return min(noise, asked) if held else asked


def measured(query: FrameQuery) -> tuple[int, ...]:
    """Return the numbers of the estimates that the target is for: those that are columns, and have a value."""
    shown = (column.estimate for column in query.finish.columns if column.estimate is not None)
    return tuple(dict.fromkeys(one for one in shown if not isinstance(query.estimates[one].value, NoValue)))


def numbers_within(step: Step, target: RelativeError) -> tuple[int, ...]:
    """Return how many groups are within the target in each column, of those that the rule counts."""
    columns = step.judged(quantile_of(target))
    return tuple(int(np.count_nonzero(column.within(target.error))) for column in columns)


def number_asked(step: Step, target: RelativeError) -> int:
    """Return how many groups have to be within the target."""
    return _needed(max(step.counted, step.picked.needed if step.picked else 0), target)


def is_met(step: Step, target: RelativeError) -> bool:
    """Return whether enough groups of each column are within the target, of those that are shown."""
    columns = step.judged(quantile_of(target))
    return step.counts_enough and all(_holds(one.within(target.error), target) for one in columns)


def place_after(step: Step, levels: Sequence[int], place: int, taken: int, target: RelativeError) -> int | None:
    """Return the place of the next step on a grid. Return None if the steps end with this one.

    Args:
        step: the last step.
        levels: the grid in nano-rho, lowest first.
        place: of the last step.
        taken: how many steps there were.
        target: the rule.

    """
    if is_met(step, target) or place == len(levels) - 1:
        return None
    return next_place(step, levels, place, taken, target) if taken < MOST_STEPS - 1 else len(levels) - 1


def next_place(step: Step, levels: Sequence[int], place: int, taken: int, target: RelativeError) -> int:
    """Return the place of the next level on a grid, at most the last one.

    Args:
        step: the last step, at which the rule does not hold.
        levels: the grid in nano-rho, lowest first.
        place: of the last step.
        taken: how many steps there were.
        target: the rule.

    """
    free = FREE_STEPS if step.picked is None else FREE_STEPS + math.log2(levels[place] / levels[0])
    least = place + 1 if taken < free else bisect.bisect_left(levels, 2 * levels[place])
    doubled = min(max(least, bisect.bisect_left(levels, 2 * levels[place])), len(levels) - 1)
    if not step.counts_enough:
        return max(doubled, _hidden_place(step, levels, place, target))
    quantile = quantile_of(target)
    now = step.judged(quantile)
    says = [np.count_nonzero(one.known) >= _needed(step.counted, target) for one in now]
    if not all(says):
        least = doubled

    def holds(level_nano: int) -> bool:
        then = step.judged(quantile, level_nano)
        return all(
            _holds(
                later.half_widths <= target.error * (np.abs(one.values) + _growth(one.sigmas, later.sigmas, step.ahead))
                if is_known
                else _may_be_within(step, estimate, level_nano, target),
                target,
            )
            for estimate, one, later, is_known in zip(step.estimates, now, then, says, strict=True)
        )

    found = bisect.bisect_left(range(place + 1, len(levels)), True, key=lambda one: holds(levels[one])) + place + 1
    return min(max(least, found - 1), len(levels) - 1)


def _hidden_place(step: Step, levels: Sequence[int], place: int, target: RelativeError) -> int:
    """Return the place below the first level at which numbers of groups that are not shown may be within the target.

    That is the place itself if nothing bounds them, or if no such group has to be within the target.
    """
    picked = step.picked
    if picked is None or picked.threshold is None:
        return place
    bounds = [_most_of_a_unit(one) for one in step.estimates]
    if step.counted >= _needed(picked.needed, target) or math.inf in bounds:
        return place
    now, threshold = step.found.values.noise[PRESENCE], picked.threshold

    def may_be(level_nano: int) -> bool:
        later = step.noise(level_nano)
        units = threshold + step.ahead * math.sqrt(max(now**2 - later[PRESENCE] ** 2, 0.0))
        sigmas = [max(_deviation(linear, later) for linear in one.value.linears) for one in step.estimates]
        return all(
            quantile_of(target) * sigma <= target.error * most * units
            for sigma, most in zip(sigmas, bounds, strict=True)
        )

    return bisect.bisect_left(range(place + 1, len(levels)), True, key=lambda one: may_be(levels[one])) + place


def _deviation(linear: Linear, noise: Mapping[Statistic, float]) -> float:
    """Return the standard deviation of a linear value."""
    return float(reduce(np.hypot, [one.sigma for one in linear_noises(linear, noise)]))


def _most_of_a_unit(estimate: Estimate) -> float:
    """Return the most that one unit may add to a number of a group; infinite if it is none that units add to."""
    if not isinstance(estimate.value, Sum):
        return math.inf
    linear = estimate.value.linear
    return max(map(abs, linear.statistic.interval)) if linear.statistic else abs(linear.centre)


def _may_be_within(step: Step, estimate: Estimate, level_nano: int, target: RelativeError) -> npt.NDArray[np.bool_]:
    """Return which averages may be within the target at a higher level, if they were as large as their bounds allow."""
    average = estimate.value
    if not isinstance(average, Ratio):
        raise AssertionError("numbers that are not averages always say something")
    now, later = step.rows(average), step.rows(average, level_nano)
    most = now.counted + _growth(now.sigmas, later.sigmas, step.ahead)
    may_be = quantile_of(target) * later.least <= target.error * max(map(abs, average.bounds)) * most
    return np.asarray(may_be[step.places])


def _growth(sigmas: Floats, later: Floats, ahead: float) -> Floats:
    """Return how much numbers may grow up to a level with less noise: their change has the difference of variances."""
    return ahead * np.sqrt(np.maximum(sigmas**2 - later**2, 0.0))


def best_level(step: Step, levels: Sequence[int], target: RelativeError) -> int | None:
    """Return the lowest level at which the rule would hold, by a forecast: with these numbers, at a level fixed before.

    None if the last one is too low.
    """
    quantile = step.found.values.histogram.measure.quantile(miss_of(target.confidence) / 2.0)

    def holds(level_nano: int) -> bool:
        columns = step.judged(quantile, level_nano, held=False)
        return all(_holds(one.within(target.error), target) for one in columns)

    found = bisect.bisect_left(range(len(levels)), True, key=lambda one: holds(levels[one]))
    return levels[found] if step.counts_enough and found < len(levels) else None


_WHOLE = 1.0 - 1e-9
"""An interval that covers so much of all possible averages says nothing."""
FREE_STEPS = 16
"""After so many steps the level doubles at least. With picked rows, steps that doubled it do not count."""
MOST_STEPS = 40
"""After 16 steps each one doubles the level at least, so that this is enough for 24 doublings."""


def _needed(groups: int, target: RelativeError) -> int:
    """Return the number of groups that have to be within the target."""
    return math.ceil(round(target.at_least * groups, 9))


def _holds(within: npt.NDArray[np.bool_], target: RelativeError) -> bool:
    return int(np.count_nonzero(within)) >= _needed(len(within), target)
