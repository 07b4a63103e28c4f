"""The most that may be missing from numbers of one group, read from what was released beside them.

Rows left out have a number of their own, which holds for all groups that are cut alike. Of all other columns, all that
may be missing is put into the one group that is looked at. docs/proofs/target.md, section 5, has the guarantees.
A unit in more groups than it may count in is left out of some of them. Nobody knows of which, so all such units are
taken to be in that group, too (docs/proofs/coverage.md, Theorem 5). It is post-processing of the stored points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpsql.bound.coverage import BUCKETS, CORNERS, PLACES, first_end, most_left
from dpsql.features.target_rule import Column, Step, measured, upper_quantile
from dpsql.mechanism.measure import Measure
from dpsql.model.estimates import Estimate, LinearValue, NoValue, Quantile, Ratio, RunningSum, Sum
from dpsql.model.frame import PRESENCE, Frame, Norm, Statistic
from dpsql.model.private_query import EachKey, FrameQuery
from dpsql.model.query_kinds import RelativeError
from dpsql.model.statistic_kinds import SUM_KINDS
from dpsql.release.estimates import Floats
from dpsql.release.left_out import LeftOut
from dpsql.release.noisy_table import left_out_numbers
from dpsql.release.offer import Offer
from dpsql.release.points import served_point
from dpsql.state import SideTable


@dataclass(frozen=True)
class Missing:
    """Parts of the groups of an answer that bounds may leave out.

    Attributes:
        part: the question.
        left_out: measured numbers of rows, or amounts, that they leave out.
        people: upper end of the units that one group lacks; infinite if no histogram of groups is served.

    """

    part: FrameQuery
    left_out: Mapping[Statistic, LeftOut]
    people: float

    def half_widths(self, number: int, step: Step, target: RelativeError) -> Floats:
        """Return the distances from numbers to the ends of what the true numbers may be; infinite if that is not known.

        Args:
            number: of the estimate, which has a value.
            step: the last step.
            target: the rule.

        """
        estimate = self.part.estimates[number]
        column = step.columns(upper_quantile(target))[measured(self.part).index(number)]
        found = self.left_out.get(estimate.covered) if estimate.covered else None
        if found:
            ends = found.upper_ends(column.values + column.half_widths)
            # one unit may lack more than the cut if units lack rows at all
            return (
                np.nan_to_num(ends - column.values, nan=math.inf) if is_unseen(found) else np.full(len(ends), math.inf)
            )
        if isinstance(estimate.value, Ratio):
            return self._of_average(estimate.value, number, column, step, target)
        return column.half_widths + (self.people if self.counts_people(number) else math.inf)

    def counts_people(self, number: int) -> bool:
        """Return whether a number counts each unit of one group of the frame once at most, and their ends are known."""
        return (
            math.isfinite(self.people)
            and isinstance(self.part.groups, EachKey)
            and is_of_people(self.part.estimates[number])
        )

    def _of_average(self, average: Ratio, number: int, column: Column, step: Step, target: RelativeError) -> Floats:
        """Return the half widths of averages, with values of missing rows at either end of the bounds."""
        if "values" in may_cut(self.part, number):
            return np.full(len(column.values), math.inf)
        low, high = average.bounds
        # an average of any rows lies within the bounds of their values
        furthest: Floats = np.maximum(high - column.values, column.values - low)
        most, rows = self._rows(average, step.groups), step.rows(average)
        if math.isinf(most):
            return furthest
        fewest = np.maximum(rows.counted - upper_quantile(target) * rows.sigmas, 0.0)
        share = most / np.maximum(fewest + most, np.finfo(np.float64).tiny)
        ends: Floats = column.half_widths + share * (furthest + column.half_widths)
        return np.minimum(furthest, ends)

    def _rows(self, average: Ratio, groups: int) -> float:
        """Return the most rows of an average that one group lacks; infinite if that is not known."""
        ends, counted = [math.inf], average.denominator.statistic
        if self.part.has_one_row_in_group and isinstance(self.part.groups, EachKey):
            ends.append(self.people)
        for one, found in self.left_out.items():
            has_all = counted and _holds_rows_of(one, counted)
            if has_all and found.is_of_shown and found.groups == groups and is_unseen(found):
                ends.append(found.most)
        return min(ends)


def missing_of(part: FrameQuery, offer: Offer, step: Step, side_table: SideTable) -> Missing:
    """Return what bounds may leave out of the groups of a step.

    Args:
        part: the question.
        offer: how the step is served; all of it is stored.
        step: the step.
        side_table: where points are stored.

    """
    people = math.inf
    for serving in offer.coverage:
        if serving.level.statistic.covered == PRESENCE:
            point = served_point(serving, side_table)
            people = most_missing(point.noisy_values, point.sigma, offer.query.frame, offer.histogram.measure)
    return Missing(part, left_out_numbers(offer, step.found.shown, side_table), people)


def is_unseen(found: LeftOut) -> bool:
    """Check that there is no sign of rows that are left out."""
    return found.least <= 0.0


def _holds_rows_of(one: Statistic, counted: Statistic) -> bool:
    """Check that a number of rows left out is of all rows that an average counts, bounded alike."""
    is_alike = one.kind == "rows" and one.limit == counted.limit and counted.row_cap is not None
    return is_alike and one.value_sql in ("", counted.value_sql) and one.filter_sql in ("", counted.filter_sql)


def may_cut(part: FrameQuery, number: int) -> str:
    """Return the parts of a number that bounds may cut: ``rows``, ``values`` or both; empty if they cut none for sure.

    Groups of a unit are cut unless it may count in every public key, or has one row. Rows in a group are cut unless a
    constraint keeps them at one, or each unit is counted once. Values are cut unless they lie within their bounds by
    the policy or their type.

    Args:
        part: the question.
        number: of the estimate.

    """
    estimate = part.estimates[number]
    cuts = {"rows": _may_cut_rows(part, estimate), "values": _may_cut_values(estimate)}
    return " or ".join(name for name, is_cut in cuts.items() if is_cut)


def is_of_people(estimate: Estimate) -> bool:
    """Check that an estimate counts each unit of a group once at most."""
    if not isinstance(estimate.value, Sum):
        return False
    return _counts_units(estimate)


def _counts_units(estimate: Estimate) -> bool:
    """Check that a count or a running total adds 1 for each unit and group."""
    value = estimate.value
    if not isinstance(value, LinearValue) or estimate.counts_rows:
        return False
    statistic = value.linear.statistic
    return statistic is None or statistic.kind == "units"


def _may_cut_rows(part: FrameQuery, estimate: Estimate) -> bool:
    """Return whether rows, or people, may be missing from the counted part of a number."""
    bounding = part.frame.bounding
    # these drop rows before they are grouped, or groups by the rows of all units
    if bounding.finer or bounding.sparsity or bounding.max_rows or part.frame.rows_sql.cuts:
        return True
    if any(_is_scaled(one.statistic) for one in estimate.value.linears if one.statistic):
        return True
    if part.has_one_row:
        return False
    return part.frame.cuts_groups or not (part.has_one_row_in_group or _counts_units(estimate))


def _is_scaled(statistic: Statistic) -> bool:
    """Return whether bounds may change a single row of a unit: a norm scales it down, or bounds of a group raise it."""
    return isinstance(statistic.limit, Norm) or (statistic.is_raised and statistic.group_bounds_steps is not None)


def _may_cut_values(estimate: Estimate) -> bool:
    """Return whether values may lie outside of the bounds of a sum or an average."""
    if isinstance(estimate.value, Sum | RunningSum):
        statistic = estimate.value.linear.statistic
        if statistic is None or statistic.kind not in SUM_KINDS:
            return False
    elif isinstance(estimate.value, Quantile | NoValue):
        return True
    return estimate.value_bounds is None or not estimate.value_bounds.hold_all


ERROR = 0.0125
"""Probability with which the end may be too low."""
_MORE_UNITS = 4.0
"""Units more in each place when the spread of their places is computed: few units have a spread they do not show."""
_LEAST_PROBABILITY = 1e-9
"""A corner with a smaller probability is that of rounding."""


def most_missing(noisy: Floats, sigma: float, frame: Frame, measure: Measure) -> float:
    """Return an upper end of the units that bounds leave out of any one group.

    *Guarantee*: the number of units that are missing in a group exceeds the end with a probability of at most `ERROR`,
    over noise and secret, up to the normal approximation of where units stand. *Source*: docs/proofs/coverage.md,
    Theorem 5.

    Args:
        noisy: units in each place of the histogram of groups; shape (PLACES,).
        sigma: standard deviation of each.
        frame: what bounds the groups of a unit.
        measure: the law of the noise.

    Returns:
        A number from 0 on.

    """
    candidates = missing_weights(frame)
    z = measure.quantile(ERROR / len(candidates))
    return max(0.0, min(_end(weights, noisy, sigma, z) for weights in candidates))


def missing_weights(frame: Frame) -> list[Floats]:
    """Return weights of the places, whose sum over units is at least what one group lacks of them in the mean.

    The first ones have little noise. If a bucket holds both units that lack groups and units that lack none, there
    are second ones, of which the latter add nothing in the mean.

    Args:
        frame: what bounds the groups of a unit.

    Returns:
        One or two vectors of the shape (PLACES,).

    """
    least, unbiased = np.zeros(PLACES), np.zeros(PLACES)
    largest, most = frame.key_count or math.inf, most_left(PRESENCE, frame)
    for bucket in range(BUCKETS):
        end = first_end(PRESENCE) * 2.0**bucket
        sizes = np.arange(math.floor(end / 2.0) + 1, int(min(end, largest)) + 1, dtype=np.float64)
        lacking = 1.0 - _parts_left(sizes, frame)
        if not lacking.max(initial=0.0) > 0.0:
            continue
        forms = _forms(sizes, lacking, end, min(end, most))
        places = slice(CORNERS * bucket, CORNERS * (bucket + 1))
        least[places] = min(forms, key=np.linalg.norm)
        unbiased[places] = forms[-1] if lacking.min() <= 0.0 else least[places]
    if largest > first_end(PRESENCE) * 2.0 ** (BUCKETS - 1):
        least[-1] = unbiased[-1] = 1.0
    return [least] if np.array_equal(least, unbiased) else [least, unbiased]


def _parts_left(sizes: Floats, frame: Frame) -> Floats:
    """Return the part of a unit that counts in the mean in one of its groups, by its number of groups."""
    bounding = frame.bounding
    counted = np.minimum(sizes, bounding.most_counted or math.inf)
    weights = np.minimum(1.0, np.sqrt(frame.unit_groups / counted)) if bounding.counted_groups else 1.0
    parts: Floats = weights * counted / sizes
    return parts


def _forms(sizes: Floats, lacking: Floats, end: float, most: float) -> list[Floats]:
    """Return weights of the corners of one bucket; the last ones are those of which no unit that lacks nothing adds.

    Args:
        sizes: the numbers of groups in the bucket.
        lacking: part of a unit that one of its groups lacks in the mean.
        end: largest size in the bucket.
        most: most that may be left of a unit in the bucket.

    """
    by_size, by_left = sizes / end, sizes * (1.0 - lacking) / most
    odds = (1.0 - np.maximum(by_size, by_left), by_size - by_left, by_left - by_size)
    is_possible = np.array([*(bool((one > _LEAST_PROBABILITY).any()) for one in odds), True])
    is_large, is_left = np.array([0.0, 1.0, 0.0, 1.0]), np.array([0.0, 0.0, 1.0, 1.0])
    forms = (
        (lacking / by_size).max() * is_large,
        np.full(CORNERS, lacking.max()),
        (end * is_large - most * is_left) / sizes[lacking > 0.0].min(),
    )
    return [np.where(is_possible, one, 0.0) for one in forms]


def _end(weights: Floats, noisy: Floats, sigma: float, z: float) -> float:
    """Return the upper end of a weighted sum, with the spread of where units stand and of which groups are chosen."""
    total, units = float(weights @ noisy), np.maximum(noisy, 0.0)
    spread = float(weights**2 @ units)
    for places in np.split(np.arange(PLACES - 1), BUCKETS):
        number = float(units[places].sum())
        spread -= float(weights[places] @ units[places]) ** 2 / number if number > 0.0 else 0.0
    variance = (sigma**2 + _MORE_UNITS) * float(weights @ weights) + max(0.0, spread) + max(0.0, total)
    return total + z * math.sqrt(variance)
