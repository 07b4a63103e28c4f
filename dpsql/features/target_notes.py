"""The answer of a question by relative error: notes, errors of columns, cells within the target, groups not shown.

All of it is written from the last step, which is stored. The rows of ``dp_explain`` are those of the cap, of where the
steps begin, and of the window.
"""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dpsql.cascade.reader import Reader
from dpsql.errors import DpsqlError
from dpsql.features.auto_price import answer_delta_units, open_price
from dpsql.features.cap_guarantee import affordable_row, cap_row, is_beyond
from dpsql.features.target_levels import (
    absolute_grid,
    at_step,
    cap_nano,
    highest_nano,
    level_of_text,
    most_nano,
    steps_up,
    window_of,
)
from dpsql.features.target_missing import Missing, may_cut
from dpsql.features.target_rule import (
    Step,
    best_level,
    interval_quantile,
    measured,
    number_asked,
    numbers_within,
    quantile_of,
)
from dpsql.mechanism.calibrate import calibrate
from dpsql.mechanism.registry import histogram_of
from dpsql.mechanism.window import charged_delta
from dpsql.model.estimates import Sum
from dpsql.model.frame import NANO, Frame
from dpsql.model.identity import query_hash
from dpsql.model.private_query import FrameQuery
from dpsql.model.query_kinds import RelativeError, WithinTarget
from dpsql.model.statistic_kinds import LEFT_OUT_KINDS
from dpsql.receipts import target_words, words
from dpsql.receipts.coverage_receipt import unit_name
from dpsql.receipts.left_out_words import lacks_people, may_cut_some, within_unknown
from dpsql.receipts.phrases import at_higher_level, none_passed
from dpsql.receipts.plan_rows import Row
from dpsql.receipts.receipt import ColumnReceipt, Receipt
from dpsql.receipts.remarks import asked_at, frame_reason
from dpsql.release.offer import Offer, offers_of, shown_threshold
from dpsql.release.top_rows import row_order
from dpsql.state import ChargeItem, State, Stop, to_arrow

_TIMES_CAP = 1_000
"""A forecast looks for a level up to so many times the highest one that the question allows."""


def after_steps(columns: Sequence[ColumnReceipt], target: RelativeError) -> tuple[ColumnReceipt, ...]:
    """Return the errors of columns with the half widths of numbers at which steps ended."""
    quantile = interval_quantile(target)
    return tuple(one if one.sigma is None else replace(one, half_width_95=quantile * one.sigma) for one in columns)


def alias_of(part: FrameQuery, number: int) -> str:
    """Return the first column of the answer that shows an estimate, by the number of the estimate."""
    return next(column.name for column in part.finish.columns if column.estimate == number)


def target_notes(step: Step, stop: Stop, query: WithinTarget, offer: Offer) -> Iterator[str]:
    """Yield what was asked, what the steps led to, and which level would have been enough."""
    target, part = query.target, query.first
    of_noise = any(may_cut(part, number) for number in measured(part))
    yield target_words.asked(target, of_rows=step.picked is not None)
    # levels are those of the answer, with what AUTO chose by
    beside = sum(level.rho_nano for level in part.auto_levels)
    rho, found = (offer.rho_nano + beside) / NANO, _outcome(step, query)
    if stop.ending == "met":
        yield target_words.outcome(found, stop.steps, rho, of_noise=of_noise)
    else:
        yield target_words.missed(found, target.error, stop, rho, of_noise=of_noise)
    levels = steps_up(part)
    higher = absolute_grid(_TIMES_CAP * levels[-1])
    best = best_level(step, (*levels, *higher[bisect.bisect(higher, levels[-1]) :]), target)
    if best is not None:
        yield target_words.enough(level_of_text(part, best) / NANO)
    if clause := part.finish.leaves_out if step.picked is None else "":
        yield words.COUNTS_ALL.format(clause=clause)
    if part.frame.has_private_keys and step.groups and step.picked is None:
        yield words.SHOWN_BY_OTHERS


def _outcome(step: Step, query: WithinTarget) -> target_words.Outcome:
    """Return how many groups are within the target: of the column in which most are not, if columns differ."""
    within = numbers_within(step, query.target)
    names = [alias_of(query.first, number) for number in measured(query.first)] if len(set(within)) > 1 else []
    count, name = min(zip(within, names or [""] * len(within), strict=True), default=(step.counted, ""))
    needed = step.picked.needed if step.picked else None
    return target_words.Outcome(count, step.counted, number_asked(step, query.target), needed, name)


def within_target(part: FrameQuery, step: Step, target: RelativeError, missing: Missing) -> Mapping[int, pa.Array]:
    """Return for each number that is asked for whether it is within the target, by the number of its estimate.

    If bounds cut nothing of a number for sure, that is 1 or 0, by the interval of the noise. Else it is 1 if noise and
    all that may be missing are within the target together, and NULL if that is not known. It is 0 if the noise alone is
    too large, except for counts and sums whose rows left out are measured.

    Args:
        part: the question.
        step: the last step.
        target: the rule.
        missing: what bounds may leave out of its groups.

    """
    numbers = measured(part)
    columns = step.columns(quantile_of(target))
    counted_out = {one.covered for one in part.statistics if one.kind in LEFT_OUT_KINDS}
    found: dict[int, pa.Array] = {}
    for number in part.finish.within:
        if number not in numbers:
            found[number] = to_arrow(np.zeros(step.groups, dtype=np.int64))
            continue
        column = columns[numbers.index(number)]
        by_noise = column.within(target.error)
        if not may_cut(part, number):
            found[number] = to_arrow(by_noise.astype(np.int64))
            continue
        is_within = by_noise & (missing.half_widths(number, step, target) <= target.error * np.abs(column.values))
        # too much noise says as little of a number that lacks rows as the rows do
        otherwise = np.nan if part.estimates[number].covered in counted_out else np.where(by_noise, np.nan, 0.0)
        found[number] = to_arrow(np.where(is_within, 1.0, otherwise), nan_as_null=True)
    return found


def why_unknown(
    part: FrameQuery, receipt: Receipt, within: Mapping[int, pa.Array], error: float, missing: Missing
) -> Iterator[str]:
    """Yield a sentence for each reason why truth values about the target are NULL.

    Args:
        part: the question.
        receipt: has the measured numbers of rows left out.
        within: the truth values, by the numbers of their estimates.
        error: the relative error that the question asks for.
        missing: what bounds may leave out of the groups.

    """
    unknown = {number: alias_of(part, number) for number, cells in within.items() if cells.null_count}
    counted_out = [one for one in receipt.left_out if set(one.columns) & set(unknown.values())]
    yield from (within_unknown(one, error) for one in counted_out)
    told = {name for one in counted_out for name in one.columns}
    others: dict[str, list[str]] = {}
    for number, name in unknown.items():
        if name in told:
            continue
        if missing.counts_people(number):
            yield lacks_people(name, missing.people, unit_name(part.frame), error)
        else:
            others.setdefault(may_cut(part, number), []).append(name)
    yield from (may_cut_some(cut, columns) for cut, columns in others.items())


_TIMES = (16, 4, 256)
"""Caps that are tried, as multiples of the one asked for."""


def reason_of_target(part: FrameQuery, last: Offer, state: State, reader: Reader) -> str:
    """Return why no group is shown; reads no point.

    Args:
        part: the question's only part, with its cap.
        last: how the last step was served.
        state: the state file.
        reader: who asks.

    """
    threshold = _threshold(last)
    if threshold is None:
        return frame_reason(last, state, reader)
    unit = state.policy().unit(part.frame.rows.unit)
    passed = none_passed(part.frame.rows.unit, [threshold], is_relative=False)
    for times in _TIMES:
        nano = times * cap_nano(part)
        if unit is None or nano > unit.rho_budget:
            continue
        # what cannot be asked is no cure
        with contextlib.suppress(DpsqlError):
            found = _last_step(part, nano, state, reader)
            lower = _threshold(found)
            if lower is not None and lower < threshold:
                is_open = not all(level.is_sure for level in found.query.auto_levels)
                level = f"max_rho = {nano / NANO:.9g}"
                return f"{passed}; {at_higher_level(level, lower, is_open=is_open, of_several=False)}"
    return f"{passed}; {words.OTHER_KEYS}"


def _last_step(part: FrameQuery, nano: int, state: State, reader: Reader) -> Offer:
    """Return how the last step would be served with another cap."""
    window = window_of(part.frame.window, nano, part.request.delta)
    asked = asked_at(replace(part, frame=replace(part.frame, window=window)), part.request.at(nano / NANO))
    (offer,) = offers_of([at_step(asked, steps_up(asked)[-1])], state, reader)
    return offer


def _threshold(offer: Offer) -> float | None:
    """Return the threshold of a step; None for public keys."""
    tau = offer.presence.tau
    return None if tau is None else shown_threshold(offer.query.frame, tau, offer.query.request.min_units)


def target_rows(
    query: WithinTarget, last: Offer, first_nano: int, stop: Stop | None, state: State, reader: Reader
) -> list[Row]:
    """Return the rows of the target; they read and spend nothing.

    Args:
        query: on the current generation of its frame.
        last: how the last step is served.
        first_nano: level of the first step.
        stop: where the question stopped for the reader; None if it was not asked yet.
        state: the state file.
        reader: who asks.

    """
    beyond = is_beyond(last, highest_nano(query.first), state)
    rows = [
        *_asked_rows(query, last.items, state, reader),
        cap_row(query.cap, words.RELEASED_NUMBERS, beyond=beyond),
    ]
    if stop is None:
        rows.append(("target", "first level", f"rho = {first_nano / NANO:.9g}"))
    else:
        rows.append(("target", "stopped", target_words.stopped(stop.rho_nano / NANO, stop.steps)))
    if _has_other_method(query.first):
        rows.append(("target", "other method", target_words.OTHER_METHOD))
    return [*rows, *_window_rows(query.first.frame)]


def _has_other_method(part: FrameQuery) -> bool:
    """Check that method = CORRELATED answers a question, too: one count of public keys, all of them for a unit."""
    frame, (estimate, *others) = part.frame, part.estimates
    if others or part.auto or not isinstance(estimate.value, Sum) or not (frame.keys and frame.public_keys):
        return False
    statistic, bounding, finish = estimate.value.linear.statistic, frame.bounding, part.finish
    is_count = statistic is None or statistic.kind in ("rows", "units")
    is_whole = bounding.max_groups == frame.key_count and not (bounding.counted_groups or bounding.by_norm)
    picks = finish.having or finish.qualify or finish.offset or (finish.limit is not None and not finish.top)
    return is_count and is_whole and not picks and not (finish.top and not finish.top.is_largest)


def open_target_rows(query: WithinTarget, least: FrameQuery, state: State, reader: Reader) -> list[Row]:
    """Return the rows of the target before AUTO has chosen; they read and spend nothing.

    Args:
        query: the plan, with something left open.
        least: its part with the least number of groups that AUTO may choose.
        state: the state file.
        reader: who asks.

    """
    delta_units = answer_delta_units(calibrate(least, histogram_of(least.frame)))
    last = ChargeItem(query_hash(query), most_nano(query.first), delta_units)
    return [
        *_asked_rows(query, (*open_price(query.first), last), state, reader),
        cap_row(query.cap, words.RELEASED_NUMBERS),
        *_window_rows(least.frame),
    ]


def _asked_rows(query: WithinTarget, items: Sequence[ChargeItem], state: State, reader: Reader) -> list[Row]:
    """Return the rows of the target itself, and whether the most that all steps cost can be paid."""
    name, value = query.cap
    return [
        (
            "target",
            "relative error",
            target_words.relative_error(query.target, of_rows=row_order(query.first) is not None),
        ),
        *([("target", name, f"{value:.9g}")] if name == "max_epsilon" else []),
        ("target", "max_rho", f"{cap_nano(query.first) / NANO:.9g}"),
        affordable_row(query.first, items, state, reader),
    ]


def _window_rows(frame: Frame) -> list[Row]:
    if not frame.has_private_keys or frame.window is None:
        return []
    delta = charged_delta(histogram_of(frame), frame.window)
    window = target_words.window(frame.window.low / NANO, frame.window.high / NANO, delta)
    return [("target", "window", window)]
