"""Expected errors of answers under bounds, from the exact rows of each unit in each group.

A unit in n groups counts in each with probability min(1, m / n). Its rows in a group are cut to a number c, and sums of
more values are scaled down to c values, as `dpsql/bound/formulations.py` has it. The noise is that of the plan. So
errors are expectations by formula, and nothing is drawn. Beside them are the errors of an answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dpsql.mechanism.measure import Measure

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

Bounds = tuple[float, float]

PEOPLE, ROWS = "count(DISTINCT unit)", "count(*)"
"""The numbers of a group beside the sums of columns, which are named by the columns."""
UNITS_LEFT_OUT = (10, 0.001)
"""Units with the largest numbers whose numbers no grid follows: so many, or this share of all if that is more."""
_FARTHEST = 60.0
"""Standard deviations beyond which there is no noise."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of one number of each group, and the rule by which groups are shown.

    Attributes:
        sigma: standard deviation of the noise of the number.
        measure: the law of all noise.
        threshold: number that the noisy count of units must exceed; None if all groups are shown.
        count_sigma: standard deviation of the noise of that count.

    """

    sigma: float
    measure: Measure
    threshold: float | None = None
    count_sigma: float = 0.0


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows of units in groups: one place per (unit, group) in each array.

    Attributes:
        key: number of the group.
        groups: number of groups of the unit.
        most_rows: most rows of the unit in any of its groups.
        rows: number of rows of the unit in the group.
        counts: number of values that are not NULL, by column.
        totals: sum of the values, by column.
        clamped: sum of the clamped values, by column and bounds.
        names: of the groups.
        empty: number of listed keys without a row.

    """

    key: Integers
    groups: Integers
    most_rows: Integers
    rows: Integers
    counts: Mapping[str, Integers]
    totals: Mapping[str, Floats]
    clamped: Mapping[tuple[str, Bounds], Floats]
    names: tuple[str, ...]
    empty: int = 0

    def added_up(self, values: npt.ArrayLike) -> Floats:
        """Return the sum of values in each group."""
        weights = np.broadcast_to(np.asarray(values, dtype=np.float64), self.key.shape)
        return np.bincount(self.key, weights, len(self.names)).astype(np.float64)

    def unit_quantile(self, values: Integers, share: float) -> int:
        """Return the least number that a share of the units does not exceed, of numbers that a unit has once."""
        order = np.argsort(values, kind="stable")
        weights = np.cumsum(1.0 / self.groups[order])
        # the last weights are sums of thirds and the like
        place = np.searchsorted(weights, share * weights[-1] * (1.0 - 1e-9))
        return int(values[order[min(int(place), len(order) - 1)]])

    def usual_number(self, values: Integers) -> int:
        """Return the largest number of a unit, without those of the units that are left out of the grid."""
        number, share = UNITS_LEFT_OUT
        units = float((1.0 / self.groups).sum())
        return self.unit_quantile(values, max(0.0, 1.0 - max(share, number / units)))


@dataclass(frozen=True, slots=True)
class Kept:
    """The part of the numbers of all groups that bounds keep: its mean and variance over the choice of groups."""

    mean: Floats
    variance: Floats


def kept_share(groups: Integers, max_groups: int | None) -> Floats:
    """Return the probability with which a unit counts in a group of its own."""
    return np.ones(len(groups)) if max_groups is None else np.minimum(1.0, max_groups / groups)


def bounded_sums(pairs: Pairs, column: str, bounds: Bounds, max_rows: int | None) -> Floats:
    """Return the sum of a unit in a group under bounds of a row and a cap on rows."""
    sums = pairs.clamped[column, bounds]
    if max_rows is None:
        return sums
    return sums * np.minimum(1.0, max_rows / np.maximum(pairs.counts[column], 1))


def kept(pairs: Pairs, values: npt.ArrayLike, share: Floats) -> Kept:
    """Return the part of the groups' numbers that is kept if a unit counts in each group with a probability."""
    each = np.broadcast_to(np.asarray(values, dtype=np.float64), share.shape)
    return Kept(pairs.added_up(each * share), pairs.added_up(each**2 * share * (1.0 - share)))


def mean_error(true: Floats, mean: Floats, sigma: Floats, measure: Measure, floor: float = -math.inf) -> Floats:
    """Return E|x - true| of a number x with noise of the measure, where a number up to the floor is shown as 0.

    Args:
        true: the true numbers.
        mean: of the numbers with noise.
        sigma: their standard deviation.
        measure: the law of the noise.
        floor: numbers up to it count as 0; then the error is that of 0.

    """
    # with G(a) = E[(x - true); x > a], the error above the floor h is 2 G(max(h, true)) - G(h)
    above = 2.0 * _tail_mean(np.maximum(floor, true), true, mean, sigma, measure)
    above -= _tail_mean(floor, true, mean, sigma, measure)
    return above + np.abs(true) * (1.0 - _tail(floor, mean, sigma, measure))


def total_error(true: Floats, number: Kept, noise: Noise, people: Kept | None, *, is_positive: bool) -> float:
    """Return the expected errors of all groups, added up. The choice of groups adds to the variance of the noise.

    Args:
        true: the true numbers.
        number: the part that bounds keep.
        noise: of the number.
        people: the count of units that decides if a group is shown; None if it is the number itself.
        is_positive: whether a number below 0 is shown as 0.

    """
    sigma, measure = np.sqrt(number.variance + noise.sigma**2), noise.measure
    floor = 0.0 if is_positive else -math.inf
    if noise.threshold is None:
        return float(mean_error(true, number.mean, sigma, measure, floor).sum())
    if people is None:
        return float(mean_error(true, number.mean, sigma, measure, noise.threshold).sum())
    shown = _tail(noise.threshold, people.mean, np.sqrt(people.variance + noise.count_sigma**2), measure)
    errors = mean_error(true, number.mean, sigma, measure, floor)
    return float((shown * errors + (1.0 - shown) * np.abs(true)).sum())


@dataclass(frozen=True, slots=True, eq=False)
class Grouping:
    """The rows of a table by one or more columns.

    Attributes:
        columns: their names.
        pairs: the rows of each unit in each group.
        lows: the least value of a column whose sums are compared.
        share: share of the units that was read.
        is_listed: whether the keys are a public list.

    """

    columns: tuple[str, ...]
    pairs: Pairs
    lows: Mapping[str, float]
    share: float
    is_listed: bool
    _people: dict[int, Kept] = field(default_factory=dict)
    _true: dict[str, Floats] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the columns as they are shown."""
        return ", ".join(self.columns)

    def true(self, number: str) -> Floats:
        """Return the true number of each group."""
        if number not in self._true:
            values = {PEOPLE: np.ones(1), ROWS: self.pairs.rows} | dict(self.pairs.totals)
            self._true[number] = self.pairs.added_up(values[number]) / self.share
        return self._true[number]

    def error(self, number: str, groups: int, rows: int, bounds: Bounds, noise: Noise) -> float:
        """Return the expected errors of all groups, added up, over the numbers of all groups.

        Args:
            number: people, rows, or a column for its sum.
            groups: most groups of a unit.
            rows: most rows of a unit in each.
            bounds: those of a value of the column.
            noise: that of the number.

        """
        pairs, counted = self.pairs, kept_share(self.pairs.groups, groups)
        if groups not in self._people:
            self._people[groups] = self._whole(kept(pairs, 1.0, counted))
        people = self._people[groups]
        true = self.true(number)
        if number == PEOPLE:
            errors = total_error(true, people, noise, None, is_positive=True)
            return self._relative(errors, noise, true, is_positive=True)
        if number == ROWS:
            part = kept(pairs, np.minimum(pairs.rows, rows), counted)
        else:
            part = kept(pairs, bounded_sums(pairs, number, bounds, rows), counted)
        is_positive = number == ROWS or bounds[0] >= 0.0
        errors = total_error(true, self._whole(part), noise, people, is_positive=is_positive)
        return self._relative(errors, noise, true, is_positive=is_positive)

    def answered_error(self, number: str, true: Mapping[str, float], exact: Mapping[str, float], noise: Noise) -> float:
        """Return the expected errors of all groups of an answer, added up, over the numbers of all groups.

        Args:
            number: people, rows, or a column for its sum.
            true: the true number of each group.
            exact: the bounded numbers of the shown groups without noise.
            noise: that of the number.

        """
        is_positive = number in (PEOPLE, ROWS) or self.lows[number] >= 0.0
        names = [name for name in true if name in exact]
        truth = np.array([true[name] for name in names])
        floor = 0.0 if is_positive else -np.inf
        means = np.array([exact[name] for name in names])
        errors = float(mean_error(truth, means, np.full(len(names), noise.sigma), noise.measure, floor).sum())
        errors += sum(abs(value) for name, value in true.items() if name not in exact)
        return self._relative(errors, noise, np.array(list(true.values())), is_positive=is_positive)

    def kept_rows(self, groups: int | None, rows: int | None) -> float:
        """Return the share of the rows that bounds keep."""
        each = self.pairs.rows if rows is None else np.minimum(self.pairs.rows, rows)
        return float((each * kept_share(self.pairs.groups, groups)).sum() / self.pairs.rows.sum())

    def _whole(self, part: Kept) -> Kept:
        """Return what is kept of all units, from what is kept of those that were read."""
        return part if self.share == 1.0 else Kept(part.mean / self.share, part.variance / self.share)

    def _relative(self, errors: float, noise: Noise, true: Floats, *, is_positive: bool) -> float:
        """Return errors with those of listed keys without rows, over the size of all numbers."""
        none = np.zeros(1)
        floor = 0.0 if is_positive else -np.inf
        errors += self.pairs.empty * float(mean_error(none, none, none + noise.sigma, noise.measure, floor)[0])
        size = float(np.abs(true).sum())
        return errors / size if size else float("inf")


def _tail(end: npt.ArrayLike, mean: Floats, sigma: Floats, measure: Measure) -> Floats:
    """Return the probability that a number with noise of the measure exceeds an end."""
    return measure.tail(_scores(end, mean, sigma))


def _tail_mean(end: npt.ArrayLike, true: Floats, mean: Floats, sigma: Floats, measure: Measure) -> Floats:
    """Return E[(x - true); x > end] of a number x with noise of the measure."""
    scores = _scores(end, mean, sigma)
    return (mean - true) * measure.tail(scores) + sigma * measure.mean_above(scores)


def _scores(end: npt.ArrayLike, mean: Floats, sigma: Floats) -> Floats:
    """Return the distances of an end, which may be infinite, from means, in standard deviations."""
    return np.clip((np.asarray(end) - mean) / np.maximum(sigma, 1e-12), -_FARTHEST, _FARTHEST)
