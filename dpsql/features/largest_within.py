"""Questions for the largest counts within a relative error: method = CORRELATED, in two releases.

The first release noises the counts of all public keys at a quarter of the level. Its numbers choose the largest keys
and a variance for each, and the second release noises these keys at the rest of the level. The text fixes the level, so
it fixes the price, too. Both releases are charged before the first row is read. The second one is a frame of its own.
Its identity names the point of the first release, the relative error and the number of rows, and no released value. So
the same question finds both again. docs/proofs/weighted-correlated.md has the guarantee.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from dpsql.cascade.reader import Reader
from dpsql.features.cap_guarantee import affordable_row
from dpsql.features.largest_rows import answer_rows, choice_to_draw, counts_rows, forecast, target_row
from dpsql.features.query_kind import QueryKind, Way
from dpsql.features.target_levels import cap_nano, require_room
from dpsql.mechanism.chosen_counts import FIRST_PART
from dpsql.mechanism.measure import FLOAT_SLACK
from dpsql.mechanism.too_little import too_low_for_two
from dpsql.mechanism.weighted_gaussian import WEIGHTED_CORRELATED_GAUSSIAN, with_choice
from dpsql.model.frame import NANO, PRESENCE, Frame, Largest, Statistic
from dpsql.model.identity import query_hash
from dpsql.model.private_query import FrameQuery
from dpsql.model.query_kinds import LargestWithin
from dpsql.model.top_rows import ChosenBy
from dpsql.receipts.offer_receipt import make_receipt, notes_of_rows, with_price
from dpsql.receipts.plan_rows import Row, frame_rows, price_rows
from dpsql.receipts.receipt import Receipt, SetReceipt
from dpsql.release.exact import Reading, prepare_reading
from dpsql.release.offer import Offer, price_of
from dpsql.release.runtime import Inquiry, Runtime, bounding_salt
from dpsql.release.stage import NO_VALUES, FrameValues, Prepared, charge_offers, read_frame, release_frame
from dpsql.release.stages import Stage
from dpsql.state import Charged, State

_ALL_COUNTS, _CHOSEN_COUNTS = ("all counts",), ("chosen counts",)
"""Names of both releases in a receipt."""


class LargestWithinKind(QueryKind[LargestWithin]):
    """Questions for the largest counts within a relative error."""

    def stages(self, query: LargestWithin, state: State, reader: Reader) -> Iterator[Stage]:
        """Yield the counts of all keys, and those of the chosen ones, which follow from the first."""
        first, second = _nano_of(query)
        reader.require(first + second)
        part = query.first
        of_all = Stage((_at(part, part.frame, first),), reader)
        (offer,) = of_all.offers(state)
        # stored counts of a higher level may serve the first release
        beyond = offer.presence.disclosed.rho_nano - offer.asked_nano + offer.chosen_nano
        covered = first + second + max(0, beyond)
        reader.require(covered)
        served = partial(_with_guarantee, covered)
        yield replace(of_all, served=served)
        yield Stage((_at(part, _chosen_frame(query, offer, second), second),), reader, served=served)

    def capped(self, query: LargestWithin) -> LargestWithin:
        """Return the query at its level of rho."""
        nano = cap_nano(query.first)
        require_room(query.first, nano, query.cap)
        if nano < FIRST_PART:
            raise too_low_for_two(*query.cap, FIRST_PART / NANO)
        return query.at(nano / NANO)

    def asked_cap(self, query: LargestWithin) -> tuple[str, float]:
        """Return the option that says the level, and its value."""
        return query.cap

    def receipt(self, query: LargestWithin, offers: Sequence[Offer], _state: State) -> Receipt:
        """Return the receipt of both releases together, without charges and without the rows of the answer."""
        own = [_receipt_of(offer, query) for offer in offers]
        sets = tuple(SetReceipt(*one) for one in zip((_ALL_COUNTS, _CHOSEN_COUNTS), own, strict=True))
        return replace(
            own[-1],
            rho=sum(offer.rho_nano for offer in offers) / NANO,
            asked_rho=sum(_nano_of(query)) / NANO,
            asked_by="epsilon" if query.cap[0] == "max_epsilon" else "rho",
            sets=sets,
        )

    def require_runs(self, query: LargestWithin, runtime: Runtime, reader: Reader) -> list[Way]:
        """Find out that both stages can be released. See `QueryKind`."""
        found = [(stage, stage.offers(runtime.state)) for stage in self.stages(query, runtime.state, reader)]
        # what is stored is shown without the rows
        is_drawn = any(one.drawn for _, offers in found for one in offers)

        def reading(frame: Frame) -> Reading | None:
            return prepare_reading(frame, _read(frame), runtime) if is_drawn else None

        way = [(stage, Prepared(offers, tuple(reading(one.query.frame) for one in offers))) for stage, offers in found]
        return [way]

    def release(self, query: LargestWithin, runtime: Runtime, inquiry: Inquiry) -> tuple[pa.Table, Receipt]:
        """Charge both releases, read the rows once, draw both, and return the rows that are within the error."""
        ((of_all, of_chosen),), receipt = self.require_all(query, runtime, inquiry)
        (first, second), state = (stage.offers[0] for _, stage in (of_all, of_chosen)), runtime.state
        readings = [prepared.readings[0] for _, prepared in (of_all, of_chosen)]
        charged, values = charge_offers([first, second], runtime, inquiry), NO_VALUES
        if first.drawn or second.drawn:
            # units are bounded by one salt, that of the first frame
            values = _read_counts(_some(readings[0]), charged, runtime, inquiry.timeout_seconds)
            bounding_salt(second.query.frame, runtime)
        release_frame(first, _for(readings[0], first, values), charged, runtime, inquiry)
        if second.drawn:
            choice = choice_to_draw(query, first, second, state.side_table)
            second = replace(second, histogram=with_choice(second.histogram, choice))
        release_frame(second, _for(readings[1], second, values), charged, runtime, inquiry)
        paid = [charged.part(one.items) for one in (first, second)]
        sets = tuple(
            replace(one, receipt=with_price(one.receipt, own)) for one, own in zip(receipt.sets, paid, strict=True)
        )
        receipt = replace(with_price(receipt, charged), sets=sets)
        return answer_rows(query, first, second, receipt, state.side_table)

    def rows(self, query: LargestWithin, state: State, reader: Reader) -> list[Row]:
        """Return the rows of the method, of the largest counts by a forecast, and of the price."""
        first, second = offers = self.offers(query, state, reader)
        frame, measure = query.first.frame, first.histogram.measure
        levels = f"{first.rho_nano / NANO:.9g} on all counts, then {second.rho_nano / NANO:.9g} on the chosen ones"
        return [
            target_row(query),
            ("target", "method", "CORRELATED: spends the whole level, and returns as many rows as it pays for"),
            affordable_row(query.first, price_of(offers), state, reader),
            *frame_rows(frame),
            ("frame", "max_groups", "any number"),
            ("frame", "counted", counts_rows(frame) or "each unit once in a group"),
            ("mechanism", measure.amount, levels),
            ("mechanism", "this query alone", f"epsilon = {second.epsilon:.6g}, delta = {second.delta:.6g}"),
            *(("forecast", *row) for row in forecast(query, first)),
            *price_rows(query, offers),
        ]


KIND = LargestWithinKind()


def _receipt_of(offer: Offer, query: LargestWithin) -> Receipt:
    """Return the receipt of one release, whose intervals are those of the answer."""
    receipt, widened = make_receipt(offer), notes_of_rows(offer.query)
    notes = tuple(one for one in receipt.notes if one not in widened)
    return replace(receipt, query_hash=query_hash(query), columns=(), notes=notes)


def _nano_of(query: LargestWithin) -> tuple[int, int]:
    """Return the levels of both releases in nano-rho; together they are the level of the question."""
    whole = cap_nano(query.first)
    return whole // FIRST_PART, whole - whole // FIRST_PART


def _at(part: FrameQuery, frame: Frame, level_nano: int) -> FrameQuery:
    """Return the question by a frame at a level."""
    return replace(part, frame=frame, request=part.request.at(level_nano / NANO))


def _chosen_frame(query: LargestWithin, first: Offer, level_nano: int) -> Frame:
    """Return the frame of the chosen keys."""
    frame, pin, target = query.first.frame, first.presence.pin, query.target
    point = (pin.statistic_hash, pin.rho_nano, pin.release_rho_nano)
    chosen_by = ChosenBy(point, level_nano, target.error, target.confidence, query.limit)
    largest = replace(frame.largest or Largest(), chosen_by=chosen_by)
    return replace(frame, mechanism=WEIGHTED_CORRELATED_GAUSSIAN.name, largest=largest)


def _with_guarantee(covered_nano: int, offer: Offer) -> Offer:
    """Return an offer of one release with the guarantee of both, at the level that covers what they tell.

    *Guarantee*: docs/proofs/weighted-correlated.md, Theorem 3.
    """
    delta, measure = offer.query.request.delta, offer.histogram.measure
    epsilon = measure.joint_epsilon(delta, covered_nano / NANO * FLOAT_SLACK)
    # each release has as many draws as the other
    levels = (offer.presence.level, offer.presence.level)
    return replace(
        offer, epsilon=epsilon, delta=offer.histogram.with_imprecision(levels, epsilon, delta, with_auto=False)
    )


def _read(frame: Frame) -> tuple[Statistic, ...]:
    """Return the statistics that are read for the counts of a frame."""
    counted = frame.largest and frame.largest.counted
    return (PRESENCE, counted) if counted else (PRESENCE,)


def _some(reading: Reading | None) -> Reading:
    """Return a reading, which each of both releases has."""
    if reading is None:
        raise AssertionError("both releases have a reading")
    return reading


def _read_counts(reading: Reading, charged: Charged, runtime: Runtime, timeout_seconds: float | None) -> FrameValues:
    """Read the counts of all keys, in place of the numbers of units.

    Raises:
        EngineError: the charge stays and pays for asking again.

    """
    values = read_frame(reading, charged, runtime, timeout_seconds)
    frame, exact = reading.bounded.frame, values.exact
    counts = exact.values[PRESENCE]
    if frame.largest and frame.largest.counted:
        statistic = frame.largest.counted
        counts = exact.values[statistic] >> -statistic.lattice_exponent
    return replace(values, exact=replace(exact, values={PRESENCE: counts}))


def _for(reading: Reading | None, offer: Offer, values: FrameValues) -> FrameValues:
    """Return the counts as the values of one of both frames, with its keys if it holds none yet."""
    if not offer.drawn:
        return NO_VALUES
    keys = _some(reading).known if _some(reading).is_first else None
    return replace(values, exact=replace(values.exact, new_keys=keys))
