"""Rows of a question for the largest counts: their choice, estimates and intervals, all from released numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dpsql.accounting.weighted_gaussian import Variances
from dpsql.features.half_width import up
from dpsql.features.target_levels import cap_nano
from dpsql.features.target_missing import may_cut
from dpsql.features.target_notes import alias_of
from dpsql.mechanism.chosen_counts import (
    Choice,
    Floats,
    Goal,
    Places,
    choice_of,
    choose_keys,
    estimated,
    least_count,
    rows_within,
    smallest_level,
)
from dpsql.mechanism.measure import MISS, miss_of
from dpsql.mechanism.weighted_gaussian import UNCHOSEN
from dpsql.model.estimates import Linear, Sum
from dpsql.model.frame import NANO, Frame
from dpsql.model.private_query import FrameQuery
from dpsql.model.query_kinds import LargestWithin
from dpsql.receipts import coverage_words, phrases, target_words, words
from dpsql.receipts.coverage_lines import CoverageReceipt
from dpsql.receipts.coverage_receipt import why_unmeasured
from dpsql.receipts.largest_words import Rows, none_within, notes_of
from dpsql.receipts.left_out_words import may_cut_some
from dpsql.receipts.plan_rows import Row
from dpsql.receipts.receipt import ColumnReceipt, Receipt
from dpsql.release.offer import Offer
from dpsql.release.points import served_point, stored_keys
from dpsql.state import SideTable, to_arrow

_ROUNDING = math.sqrt(1.0 / 12.0)
"""Standard deviation of the rounding to a whole number."""
_FORECASTS = (1, 10, 100, 1_000, 10_000, 100_000)
"""Numbers of rows that a plan forecasts."""


def goal_of(query: LargestWithin, first: Offer) -> Goal:
    """Return what a question asks for: the noise of a count, the number of rows, and the most that a unit adds."""
    quantile = first.histogram.measure.quantile(miss_of(query.target.confidence) / 2.0)
    largest = query.first.frame.largest
    return Goal(quantile / query.target.error, query.limit, largest.most if largest else 1, _ROUNDING)


def variances_of(first: Offer) -> Variances:
    """Return the variances of the first release."""
    sigma, keys = first.presence.level.sigma, first.query.frame.key_count or 1
    return Variances(np.full(keys, sigma**2), first.histogram.shape.correlation * sigma**2)


def choice_to_draw(query: LargestWithin, first: Offer, second: Offer, side_table: SideTable) -> Choice | None:
    """Return the keys of the second release, by the counts of the first one, which are stored."""
    released = served_point(first.presence, side_table).noisy_values
    return choose_keys(released, variances_of(first), goal_of(query, first), second.asked_nano / NANO)


def answer_rows(
    query: LargestWithin, first: Offer, second: Offer, receipt: Receipt, side_table: SideTable
) -> tuple[pa.Table, Receipt]:
    """Return the rows that are within the error, as the finish reads them, and the receipt that says how many.

    Args:
        query: the question.
        first: how the first release is served; all of it is stored.
        second: how the second one is served, likewise.
        receipt: with its price.
        side_table: where points and keys are stored.

    """
    part, goal, measure = query.first, goal_of(query, first), first.histogram.measure
    released = served_point(first.presence, side_table).noisy_values
    keys, counts, sigmas = _estimates(query, first, second, released, side_table)
    shown, sigmas = np.rint(counts), np.hypot(sigmas, goal.rounding)
    allowed = query.target.error * shown / sigmas
    miss, least = miss_of(query.target.confidence), part.request.min_units
    hidden = rows_within(allowed, miss, measure.quantile) if least > 1 else 0
    allowed = np.where(shown > least, allowed, -math.inf)
    found = rows_within(allowed, miss, measure.quantile)
    rows = np.sort(np.argsort(-allowed, kind="stable")[:found])
    # as sure as if the rows were named before, though they are some of the chosen keys
    quantile = measure.quantile(MISS / 2.0 * found / len(keys)) if found else math.inf
    table = stored_keys(part.frame, side_table).take(to_arrow(keys[rows]))
    columns = {name: table.column(name) for name in table.column_names}
    columns["agg_0"] = to_arrow(shown[rows])
    columns["agg_0_low"] = to_arrow((counts - quantile * sigmas)[rows])
    columns["agg_0_high"] = to_arrow((counts + quantile * sigmas)[rows])
    cut = may_cut(_as_counted(part), 0)
    columns["agg_0_within"] = to_arrow(np.full(found, np.nan if cut else 1.0), nan_as_null=True)
    answer = pa.table(list(columns.values()), list(columns))
    if cut:
        receipt = replace(receipt, coverage=(_unknown_coverage(part),))
    if not found:
        why = _below_minimum(part) if hidden else _no_row(query, first, counts, sigmas)
        return answer, replace(receipt, nothing_shown=(why,))
    most = _most_not_shown(first, released, keys[rows])
    told = Rows(found, float(shown[rows].min()), most, of_rows=bool(cut), hidden=hidden > found)
    nulls = [may_cut_some(cut, [alias_of(part, number)]) for number in part.finish.within] if cut else []
    return answer, replace(
        receipt,
        columns=_columns(part, goal, float(sigmas[rows].max()), quantile),
        notes=(*nulls, *notes_of(query, told), *receipt.notes),
    )


def _most_not_shown(first: Offer, released: Floats, shown: Places) -> float | None:
    """Return the most that a group has that is not shown, by the first release; None if all groups are shown.

    The intervals of all groups hold together with 95 % probability, so that it does not matter which ones are shown.
    """
    sigmas, others = np.sqrt(variances_of(first).total), np.delete(released, shown)
    quantile = first.histogram.measure.quantile(MISS / len(released))
    return math.ceil(max(0.0, float(others.max()) + quantile * float(sigmas[0]))) if len(others) else None


def _below_minimum(part: FrameQuery) -> str:
    """Return that a smallest number of units hides all counts that are within the error."""
    return words.BELOW_MINIMUM.format(minimum=part.request.min_units, unit=part.frame.rows.unit)


def _estimates(
    query: LargestWithin, first: Offer, second: Offer, released: Floats, side_table: SideTable
) -> tuple[Places, Floats, Floats]:
    """Return the chosen keys, the best estimates of their counts by both releases, and the deviations of these."""
    goal, variances = goal_of(query, first), variances_of(first)
    point = served_point(second.presence, side_table)
    count = int(np.count_nonzero(point.values != UNCHOSEN))
    if not count:
        return np.arange(0), released[:0], released[:0]
    choice = choice_of(count, released, variances, goal, second.asked_nano / NANO)
    keys = choice.keys
    of_keys = Variances(variances.own[keys], variances.common)
    counts, sigmas = estimated(released[keys], of_keys, point.noisy_values[keys], choice)
    return keys, counts, sigmas


def _unknown_coverage(part: FrameQuery) -> CoverageReceipt:
    """Return the line that says why nobody knows how much bounds leave out of a count."""
    frame, unit = part.frame, part.frame.rows.unit
    why = coverage_words.COVERAGE_OF_METHOD.format(rows=_rows_of(frame), unit=unit)
    if frame.rows_sql.cuts or frame.bounding.max_rows:
        why = why_unmeasured(frame)
    return CoverageReceipt(part.estimates[0].name, unit, unknown=why)


def _columns(part: FrameQuery, goal: Goal, sigma: float, quantile: float) -> tuple[ColumnReceipt, ...]:
    """Return the errors of the columns that show the count, the largest of all rows."""
    return tuple(
        ColumnReceipt(
            one.name, part.estimates[0].name, (0.0, goal.most), goal.most, None, sigma, quantile * sigma, 2.0**-20
        )
        for one in part.finish.columns
        if one.estimate is not None
    )


def _no_row(query: LargestWithin, first: Offer, counts: Floats, sigmas: Floats) -> str:
    """Return why an answer has no row, with the level that returns one by a forecast, if the numbers tell it.

    The largest count is taken to be smaller than its estimate by a standard deviation.
    """
    goal, measure, (name, asked) = goal_of(query, first), first.histogram.measure, query.cap
    clear = [(count, sigma) for count, sigma in zip(counts.tolist(), sigmas.tolist(), strict=True) if count > 3 * sigma]
    count, sigma = max(clear, default=(0.0, 0.0))
    if not clear:
        return none_within(query, count, None)
    level = smallest_level(count - sigma, query.first.frame.key_count or 1, goal)
    if name == "max_epsilon":
        level = measure.joint_epsilon(query.first.request.delta, level)
    return none_within(query, count, up(level) if level > asked else None)


def counts_rows(frame: Frame) -> str:
    """Return how many rows of a unit count in a group, in words; empty if units are counted."""
    counted = frame.largest and frame.largest.counted
    return f"at most {_rows_of(frame)} of a unit in a group" if counted and counted.kind == "rows" else ""


def _rows_of(frame: Frame) -> str:
    return phrases.number_of(frame.largest.most if frame.largest else 1, "row")


def _as_counted(part: FrameQuery) -> FrameQuery:
    """Return a question whose estimate names the statistic that is counted in place of units."""
    counted = part.frame.largest.counted if part.frame.largest else None
    return replace(part, estimates=(replace(part.estimates[0], value=Sum(Linear(counted, 0.0 if counted else 1.0))),))


def target_row(query: LargestWithin) -> Row:
    """Return the row of a plan that says which relative error is asked for."""
    return ("target", "relative error", target_words.of_largest(query.target, query.limit))


def forecast(query: LargestWithin, first: Offer) -> Iterator[tuple[str, str]]:
    """Yield how large counts have to be for numbers of rows, if all others are small; it reads no released number."""
    goal, groups, level = goal_of(query, first), query.first.frame.key_count or 1, cap_nano(query.first) / NANO
    most = query.limit or groups
    for rows in sorted({*(one for one in _FORECASTS if one < most), most}):
        least = math.ceil(least_count(rows, groups, level, goal))
        yield (
            phrases.number_of(rows, "row"),
            f"needs {phrases.number_of(rows, 'count')} of {least:,} or more beside small ones",
        )
