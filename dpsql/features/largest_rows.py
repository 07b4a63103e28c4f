"""Rows of a question for the largest counts: their choice, estimates and intervals, all from released numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dpsql.accounting.weighted_gaussian import Variances, equal_variance
from dpsql.features.half_width import up
from dpsql.features.target_missing import may_cut
from dpsql.features.target_notes import alias_of
from dpsql.mechanism.chosen_counts import (
    MARGIN,
    ROOM,
    Choice,
    Floats,
    Goal,
    Places,
    choice_of,
    choose_keys,
    estimated,
    rows_within,
    smallest_level,
)
from dpsql.mechanism.measure import MISS, miss_of
from dpsql.mechanism.weighted_gaussian import UNCHOSEN
from dpsql.model.estimates import Linear, Sum
from dpsql.model.frame import NANO, Frame
from dpsql.model.private_query import FrameQuery
from dpsql.model.query_kinds import LargestWithin
from dpsql.receipts import coverage_words, largest_words, phrases, target_words, words
from dpsql.receipts.coverage_lines import CoverageReceipt
from dpsql.receipts.coverage_receipt import why_unmeasured
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
    return Goal(quantile / query.target.error, query.limit, largest.most if largest else 1)


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
    keys, counts, sigmas = _estimates(query, first, second, side_table)
    shown, sigmas = np.rint(counts), np.hypot(sigmas, _ROUNDING)
    allowed = np.where(shown > part.request.min_units, query.target.error * shown / sigmas, -math.inf)
    found = rows_within(allowed, miss_of(query.target.confidence), measure.quantile)
    is_row = np.zeros(len(keys), dtype=np.bool_)
    is_row[np.argsort(-allowed, kind="stable")[:found]] = True
    # as sure as if the rows were named before, though they are some of the chosen keys
    quantile = measure.quantile(MISS / 2.0 * found / max(1, len(keys))) if found else math.inf
    half_widths = quantile * sigmas
    table = stored_keys(part.frame, side_table).take(to_arrow(keys[is_row]))
    columns = {name: table.column(name) for name in table.column_names}
    columns["agg_0"] = to_arrow(shown[is_row])
    columns["agg_0_low"] = to_arrow((counts - half_widths)[is_row])
    columns["agg_0_high"] = to_arrow((counts + half_widths)[is_row])
    cut = may_cut(_as_counted(part), 0)
    known = np.full(int(is_row.sum()), np.nan if cut else 1.0)
    columns["agg_0_within"] = to_arrow(known, nan_as_null=True)
    if is_row.any():
        receipt = replace(receipt, columns=_columns(part, goal, float(sigmas[is_row].max()), quantile))
    notes = [*_notes(query, int(is_row.sum()), of_rows=bool(cut)), *receipt.notes]
    if cut:
        receipt = replace(receipt, coverage=(_unknown_coverage(part),))
        notes += [may_cut_some(cut, [alias_of(part, number)]) for number in part.finish.within]
    if not is_row.any():
        receipt = replace(receipt, nothing_shown=(_no_row(query, first, counts, sigmas),))
    return pa.table(list(columns.values()), list(columns)), replace(receipt, notes=tuple(notes))


def _estimates(
    query: LargestWithin, first: Offer, second: Offer, side_table: SideTable
) -> tuple[Places, Floats, Floats]:
    """Return the chosen keys, the best estimates of their counts by both releases, and the deviations of these."""
    goal, variances = goal_of(query, first), variances_of(first)
    released = served_point(first.presence, side_table).noisy_values
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


def _notes(query: LargestWithin, count: int, *, of_rows: bool) -> Iterator[str]:
    """Yield how many rows are within the error, and how they were chosen."""
    part, target, groups = query.first, query.target, query.first.frame.key_count or 1
    asked = min(query.limit or groups, groups)
    if 0 < count < asked:
        yield largest_words.fewer(count, query.limit, groups, target, query.cap, of_rows=of_rows)
    elif count:
        yield largest_words.within(count, query.limit, groups, target, of_rows=of_rows)
    if query.limit and count and part.frame.key_count != count:
        yield words.LARGEST_CHOSEN.format(groups=groups)


def _no_row(query: LargestWithin, first: Offer, counts: Floats, sigmas: Floats) -> str:
    """Return why an answer has no row, with the level that would return one by a forecast.

    The largest count is taken to be smaller than its estimate by a standard deviation, and no smaller than that.
    """
    goal, measure = goal_of(query, first), first.histogram.measure
    noise = math.sqrt(float(variances_of(first).total[0]))
    largest = max(
        (float(max(count - sigma, sigma)) for count, sigma in zip(counts, sigmas, strict=True)), default=noise
    )
    name, level = query.cap[0], smallest_level(largest, query.first.frame.key_count or 1, goal)
    if name == "max_epsilon":
        level = measure.joint_epsilon(query.first.request.delta, level)
    return largest_words.none_within(query.target, (name, up(level)))


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


def forecast(query: LargestWithin, first: Offer, second: Offer) -> Iterator[tuple[str, str]]:
    """Yield how large counts have to be for numbers of rows, if these counts are equal; it reads no released number."""
    goal, groups = goal_of(query, first), query.first.frame.key_count or 1
    most = min(query.limit or groups, groups)
    margin = MARGIN * math.sqrt(float(variances_of(first).total[0]))
    for rows in sorted({*(one for one in _FORECASTS if one < most), most}):
        sigma = math.sqrt(equal_variance(rows, second.asked_nano / NANO, goal.most))
        least = math.ceil(ROOM * goal.sigmas_of_count * sigma + margin)
        yield phrases.number_of(rows, "row"), f"if there are so many counts of about {least:,} and more"
