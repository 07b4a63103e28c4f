"""The most that may be missing from numbers of one group, read from what was released beside them.

Rows left out have a number of their own, which holds for all groups that are cut alike. Of all other columns, all that
may be missing is put into the one group that is looked at. docs/proofs/target.md, section 5, has the guarantees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpsql.features.target_rule import Column, Step, measured, upper_quantile
from dpsql.model.estimates import Estimate, LinearValue, NoValue, Quantile, Ratio, RunningSum, Sum
from dpsql.model.frame import PRESENCE, Norm, Statistic
from dpsql.model.private_query import EachKey, FrameQuery
from dpsql.model.query_kinds import RelativeError
from dpsql.release.estimates import Floats
from dpsql.release.left_out import LeftOut
from dpsql.release.missing_people import most_missing
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
            people = most_missing(point.noisy_values, point.sigma, offer.query.frame)
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
        if statistic is None or statistic.kind != "sum":
            return False
    elif isinstance(estimate.value, Quantile | NoValue):
        return True
    return estimate.value_bounds is None or not estimate.value_bounds.hold_all
