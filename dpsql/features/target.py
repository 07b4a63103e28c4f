"""Questions by relative error: the level rises in steps until the released numbers are within it.

Each step is an ordinary release: an offer, a charge and points with their pins. A rise costs the difference of two
levels, so all steps together cost the last level. Which level comes next, and where the steps end, follow from released
numbers of shown groups. The ledger's theorem covers histories that choose and stop by what was shown
(docs/proofs/ledger.md, Theorem 2), and the cap is fixed beforehand, so no reservation is needed.
Rows are read once, after the first charge. Where a question stopped is stored for its reader, so that the same question
is answered alike again. docs/proofs/target.md has the rule and its intervals.
"""

from __future__ import annotations

import bisect
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from dpsql.cascade.left_out import chain_hash
from dpsql.cascade.reader import Reader
from dpsql.cascade.seen import seen_top
from dpsql.errors import BudgetError, CalibrationError
from dpsql.features.auto_price import OpenTerms, price_of_parts
from dpsql.features.cap_guarantee import guarantee_of_cap, receipt_of_cap, with_guarantee_of_cap
from dpsql.features.query_kind import QueryKind
from dpsql.features.target_levels import (
    at_step,
    cap_nano,
    capped,
    highest_nano,
    levels_at,
    most_nano,
    steps_up,
)
from dpsql.features.target_missing import missing_of
from dpsql.features.target_notes import (
    after_steps,
    open_target_rows,
    reason_of_target,
    target_notes,
    target_rows,
    why_unknown,
    within_target,
)
from dpsql.features.target_picked import picked_rows
from dpsql.features.target_rule import (
    MOST_STEPS,
    Step,
    factor_of,
    interval_quantile,
    is_met,
    measured,
    place_after,
    upper_quantile,
)
from dpsql.mechanism.calibrate import Calibration
from dpsql.mechanism.measure import Level
from dpsql.model.frame import NANO, PRESENCE, Statistic
from dpsql.model.identity import in_question, query_hash, rows_hash, statistic_hash
from dpsql.model.private_query import FrameQuery
from dpsql.model.query_kinds import WithinTarget
from dpsql.model.statistic_kinds import LEFT_OUT_KINDS
from dpsql.receipts import words
from dpsql.receipts.offer_receipt import asked_sigmas, column_receipts, with_price
from dpsql.receipts.plan_rows import Row, frame_plan_rows, price_rows
from dpsql.receipts.receipt import Receipt
from dpsql.receipts.remarks import with_remarks
from dpsql.release.estimates import noise_sigma
from dpsql.release.exact import Reading, prepare_reading
from dpsql.release.left_out import SHARE, SHARE_OF_TARGET
from dpsql.release.left_out_stage import hold_for_left_out, numbers_alone, require_left_out_runs
from dpsql.release.noisy_table import noisy_table
from dpsql.release.offer import Offer, with_caps
from dpsql.release.points import shown_frame
from dpsql.release.runtime import Claim, Inquiry, Runtime, bounding_salt
from dpsql.release.stage import (
    NO_VALUES,
    FrameValues,
    charge_offers,
    prepare,
    read_frame,
    release_frame,
    release_prepared,
)
from dpsql.release.stages import Stage
from dpsql.state import Charged, State, Stop


class WithinTargetKind(QueryKind[WithinTarget]):
    """Queries whose level rises until their numbers are within a relative error."""

    def stages(self, query: WithinTarget, state: State, reader: Reader) -> Iterator[Stage]:
        """Yield the last step: at the cap, or where the question stopped for the reader."""
        part, stop = query.first, state.history.stop(_question(query), reader.name)
        level_nano = stop.rho_nano if stop else _last_step(part, steps_up(part), state, reader)[0]
        yield _stage_at(part, level_nano, state, reader)

    def capped(self, query: WithinTarget) -> WithinTarget:
        """Return the query with its cap in rho, and with the window of its private keys."""
        return capped(query)

    def asked_cap(self, query: WithinTarget) -> tuple[str, float]:
        """Return the option that says the cap, and its value."""
        return query.cap

    def release(self, query: WithinTarget, runtime: Runtime, inquiry: Inquiry) -> tuple[pa.Table, Receipt]:
        """Release step after step on one reading, and return the groups of the last one."""
        question, history, charged = _question(query), runtime.state.history, inquiry.auto_charge
        share = min(SHARE, SHARE_OF_TARGET * query.target.error)
        inquiry = replace(inquiry, claim=inquiry.claim or Claim(), left_out_share=share)
        stop = history.stop(question, inquiry.reader.name)
        is_new = stop is None
        if stop is None:
            stop, paid = _walk(query, runtime, inquiry)
            charged += paid
            stop = history.keep_stop(question, inquiry.reader.name, stop)
            # what AUTO charged is recorded with the first step
            inquiry = replace(inquiry, auto_charge=Charged())
        charged += _release_last(query, stop, runtime, inquiry, is_new=is_new)
        return _answer(query, stop, charged, runtime, inquiry.reader)

    def rows(self, query: WithinTarget, state: State, reader: Reader) -> list[Row]:
        """Return the rows of the target, those of the last step, and the most that all steps cost."""
        (offer,) = self.offers(query, state, reader)
        levels, stop = steps_up(query.first), state.history.stop(_question(query), reader.name)
        first = levels[max(0, _free_place(query.first, levels, state, reader))]
        rows = target_rows(query, offer, first, stop, state, reader)
        columns = after_steps(column_receipts(offer.query, offer.histogram, offer.noise), query.target)
        price = price_rows(query, [offer], ", or less" if offer.items else "")
        return [*rows, *frame_plan_rows(offer, columns), *price]

    def open_rows(self, query: WithinTarget, least: FrameQuery, state: State, reader: Reader) -> list[Row]:
        """Return the rows of the target before AUTO has chosen."""
        return open_target_rows(query, least, state, reader)

    def open_terms(self, query: WithinTarget, first: Calibration, state: State, reader: Reader) -> OpenTerms:
        """Return the terms of the last step, whose price is that of the cap."""
        epsilon, delta = guarantee_of_cap(query.first, first.histogram, first.levels, cap_nano(query.first))
        return replace(super().open_terms(query, first, state, reader), epsilon=epsilon, delta=delta)

    def price_after_auto(self, query: WithinTarget, _state: State, reader: Reader) -> tuple[int, int]:
        """Return the price of the last step, which in a window may have any level up to the cap."""
        reader.require(cap_nano(query.first))
        return most_nano(query.first), price_of_parts(query.parts, reader)[1]


KIND = WithinTargetKind()


def _question(query: WithinTarget) -> str:
    """Return what the end of the steps is stored under: all that the rule and the levels depend on."""
    part, target = query.first, query.target
    hashes = {one: statistic_hash(in_question(one), part.frame) for one in part.statistics}
    columns = [part.estimates[one] for one in measured(part)]
    content = [
        query_hash(query),
        cap_nano(part),
        [target.error, target.at_least, target.confidence],
        # one name may stand for columns of other tables, and weights may be those of HAVING
        sorted([one.name, *(hashes[linear.statistic or PRESENCE] for linear in one.value.linears)] for one in columns),
        sorted([hashes[one], round(weight * NANO)] for one, weight in zip(part.statistics, part.weights, strict=True)),
        [key.sql for key in part.keys],
        part.request.min_units,
    ]
    if top := part.finish.top:
        # the rule counts these rows alone
        ordering = part.estimates[top.estimate]
        named = [ordering.name, *(hashes[linear.statistic or PRESENCE] for linear in ordering.value.linears)]
        content.append([*named, top.is_largest, top.nulls_first, top.limit, top.offset, *part.finish.order_by[1:]])
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _walk(query: WithinTarget, runtime: Runtime, inquiry: Inquiry) -> tuple[Stop, Charged]:
    """Release one step after the other, and return where they ended and what they cost together.

    Args:
        query: on the current generation of its frame.
        runtime: state, engine and source of noise.
        inquiry: who asks.

    Raises:
        AccessError, BudgetError, CalibrationError: the cap is refused; nothing was charged.

    """
    part, target, state, reader = query.first, query.target, runtime.state, inquiry.reader
    levels, total, stop = steps_up(part), Charged(), None
    inquiry = replace(inquiry, later=_left_out_at(part, levels[-1], reader))
    (_, last), free = _last_step(part, levels, state, reader), _free_place(part, levels, state, reader)
    place, is_granted = max(0, free), False
    reading: Reading | None = None
    values: FrameValues | None = None
    for taken in range(1, MOST_STEPS + 1):
        try:
            offer = _offer_at(part, levels[place], state, reader)
        except CalibrationError:
            if stop is None:
                raise
            return replace(stop, ending="rises"), total
        # rows left out are drawn after the last step
        whole, offer = offer, with_caps(numbers_alone(offer), levels_at(part, levels[-1]))
        if place > free and not is_granted:
            # what is charged step by step is refused as a whole; a first step may have used an open charge
            last, is_granted = _last_step(part, levels, state, reader)[1] if stop else last, True
            state.ledger.require(part.frame.rows.unit, last.items, reader.name)
        if offer.items and reading is None:
            if whole.left_out_drawn:
                require_left_out_runs(whole, runtime)
            reading = prepare_reading(part.frame, part.statistics, runtime)
        try:
            charged = charge_offers([offer], runtime, inquiry)
        except BudgetError:
            if stop is None:
                raise
            # others took the budget meanwhile
            return replace(stop, ending="budget"), total
        if offer.drawn and reading and values is None:
            if whole.left_out_drawn:
                hold_for_left_out(whole, reading, bounding_salt(part.frame, runtime), runtime)
            values = read_frame(reading, charged, runtime, inquiry.timeout_seconds)
        after = release_frame(offer, values if offer.drawn and values else NO_VALUES, charged, runtime, inquiry)
        values = after if offer.drawn else values
        # what AUTO charged is recorded with the first step
        inquiry, total = replace(inquiry, auto_charge=Charged()), total + charged
        step = _step(query, offer, levels[place], runtime)
        stop, following = Stop(levels[place], taken, "most"), place_after(step, levels, place, taken, target)
        if following is None:
            return replace(stop, ending="met") if is_met(step, target) else stop, total
        place = following
    raise AssertionError("the last step is at the highest level")


def _left_out_at(part: FrameQuery, level_nano: int, reader: Reader) -> tuple[tuple[str, Level], ...]:
    """Return the numbers of rows left out of a question by their identities, each at its part of a level."""
    found = (one for one in levels_at(part, level_nano) if one.statistic.kind in LEFT_OUT_KINDS)
    return tuple((chain_hash(one.statistic, part.frame, reader), one) for one in found)


def _release_last(query: WithinTarget, stop: Stop, runtime: Runtime, inquiry: Inquiry, *, is_new: bool) -> Charged:
    """Release a question at its last step, and return what it costs beside the steps.

    Args:
        query: on the current generation of its frame.
        stop: where the steps ended.
        runtime: state, engine and source of noise.
        inquiry: who asks.
        is_new: whether the steps were made just now; then rows left out alone are not drawn yet.

    Raises:
        BudgetError: others took the budget meanwhile; the steps are stored.

    """
    (offer,) = _stage_at(query.first, stop.rho_nano, runtime.state, inquiry.reader).offers(runtime.state)
    if is_new and not offer.left_out_drawn:
        return Charged()
    offer = with_caps(offer, levels_at(query.first, steps_up(query.first)[-1]))
    charged, _ = release_prepared(prepare([offer], runtime), runtime, inquiry)
    return charged


def _last_step(part: FrameQuery, levels: Sequence[int], state: State, reader: Reader) -> tuple[int, Offer]:
    """Return the level of the last step, and how it would be served: the highest, or a free one if no rise is left.

    Raises:
        AccessError, CalibrationError: the reader, or the number of points that are stored, allows neither.

    """
    # a cap between two levels of a window is no lower than it says
    reader.require(cap_nano(part))
    try:
        return levels[-1], _offer_at(part, levels[-1], state, reader)
    except CalibrationError:
        free = _free_place(part, levels, state, reader)
        if free < 0:
            raise
        return levels[free], _offer_at(part, levels[free], state, reader)


def _stage_at(part: FrameQuery, level_nano: int, state: State, reader: Reader) -> Stage:
    """Return a step as a stage, with the guarantee of the cap, as released numbers choose the step."""
    served = partial(with_guarantee_of_cap, most_nano=highest_nano(part), state=state)
    return Stage((at_step(part, level_nano),), reader, served=served)


def _offer_at(part: FrameQuery, level_nano: int, state: State, reader: Reader) -> Offer:
    """Return how a step is served.

    Raises:
        AccessError, CalibrationError: as `Stage.offers`.

    """
    (offer,) = _stage_at(part, level_nano, state, reader).offers(state)
    return offer


def _free_place(part: FrameQuery, levels: Sequence[int], state: State, reader: Reader) -> int:
    """Return the place of the highest level at which no statistic costs anything; -1 if none is free.

    A statistic is free up to its highest stored point, and what a killed process was charged for it without a point.
    """
    unit = part.frame.rows.unit
    is_hidden = reader.has_limit and state.history.has_claim(rows_hash(part.frame), reader.name)
    tops: dict[Statistic, int] = {}
    for statistic in part.statistics:
        if statistic.kind in LEFT_OUT_KINDS:
            # they are drawn at the last step alone
            continue
        name = statistic_hash(statistic, part.frame)
        if is_hidden:
            tops[statistic] = seen_top(name, state, reader)
            continue
        stored = state.side_table.levels(name)
        tops[statistic] = (stored[0].rho_nano if stored else 0) + state.ledger.unused(unit, name).rho_nano

    def is_beyond(level_nano: int) -> bool:
        return any(one.rho_nano > tops.get(one.statistic, level_nano) for one in levels_at(part, level_nano))

    return bisect.bisect_left(levels, True, key=is_beyond) - 1


def _step(query: WithinTarget, offer: Offer, level_nano: int, runtime: Runtime) -> Step:
    """Return what was released at a level, all of it stored."""
    part, side_table = query.first, runtime.state.side_table
    found, sigmas = shown_frame(offer, side_table), asked_sigmas(at_step(part, level_nano))
    return Step(
        level_nano,
        tuple(part.estimates[one] for one in measured(part)),
        found,
        {statistic: noise_sigma(statistic, sigma, offer.histogram) for statistic, sigma in sigmas.items()},
        picked_rows(part, query.target, offer, found, side_table, runtime.sandbox),
    )


def _answer(
    query: WithinTarget, stop: Stop, charged: Charged, runtime: Runtime, reader: Reader
) -> tuple[pa.Table, Receipt]:
    """Return the groups of the last step with their receipt; all of it is stored."""
    part, target, state = query.first, query.target, runtime.state
    offer = _offer_at(part, stop.rho_nano, state, reader)
    step = _step(query, offer, stop.rho_nano, runtime)
    values = step.found.values
    found = replace(step.found, values=replace(values, wider=factor_of(interval_quantile(target), values)))
    table = noisy_table(offer, found, state.side_table, upper_quantile(target))
    missing = missing_of(part, offer, step, state.side_table)
    within = within_target(part, step, target, missing)
    for number, cells in within.items():
        table = table.append_column(f"agg_{number}_within", cells)
    receipt = receipt_of_cap(offer, highest_nano(part), query.cap, words.RELEASED_NUMBERS, state)
    receipt = replace(with_price(receipt, charged), columns=after_steps(receipt.columns, target))
    reason = partial(reason_of_target, part, offer, state, reader)
    receipt = with_remarks(offer, receipt, found, state.side_table, reason)
    reasons = why_unknown(part, receipt, within, target.error, missing)
    notes = (*target_notes(step, stop, query, offer), *reasons, *receipt.notes)
    return table, replace(receipt, notes=notes)
