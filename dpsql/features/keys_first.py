"""Keys first, numbers second: how both are priced, released and explained.

The keys are selected in rounds, as where they are asked for alone, at six tenths of the level; the numbers are released
on a frame of their own at the rest. A rise is one more round and the difference of the numbers' levels. The frame of
the numbers does not hang on what was found: units are bounded over all of their keys, and every key of the rows has a
stored value, shown or hidden (docs/proofs/key-rounds.md, Theorem 4).

Where AUTO's histogram of units by their number of groups and the first round say that a second one does not pay, there
is none, and the numbers have its level (`first_round`; Theorem 5). A threshold on one of them may then show more keys
(`number_threshold`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from dpsql.cascade.reader import Reader
from dpsql.features.after_first import after_first
from dpsql.features.first_round import Step
from dpsql.features.joint_release import joint_guarantee_of
from dpsql.features.key_rounds import (
    THRESHOLD_PART,
    KeyRounds,
    joint_rows,
    release_rounds,
    require_rounds_run,
    round_offers,
    round_receipts,
    round_rows,
    rounds_note,
    with_prices,
)
from dpsql.features.query_kind import OpenQueryKind, OpenTerms
from dpsql.mechanism.calibrate import Calibration, calibrate, whole_nano
from dpsql.mechanism.joint import shared_requests
from dpsql.mechanism.registry import histogram_of
from dpsql.model.frame import NANO, PRESENCE, Statistic
from dpsql.model.private_query import AutoGroups, FrameQuery, Request
from dpsql.model.query_kinds import KeysFirst
from dpsql.receipts import words
from dpsql.receipts.coverage_receipt import with_coverage
from dpsql.receipts.nothing_shown import asked_at, frame_reason, threshold_reason
from dpsql.receipts.offer_receipt import make_receipt
from dpsql.receipts.picked_rows import with_picked_rows
from dpsql.receipts.plan_rows import Row, amount_rows, offer_rows
from dpsql.receipts.receipt import Receipt, SetReceipt
from dpsql.release.exact import Runtime, no_keys
from dpsql.release.held_pairs import hold_shared_pairs
from dpsql.release.inquiry import Inquiry
from dpsql.release.later_keys import add_keys
from dpsql.release.noisy_table import noisy_table
from dpsql.release.number_threshold import hiding_statistic, shown_beside, threshold_of, with_threshold
from dpsql.release.offer import Offer, offers_of
from dpsql.release.round_keys import selected_ids
from dpsql.release.stage import prepare_stage, reading_of, release_stage
from dpsql.state import State

_PART_OF_KEYS = (3, 5)
"""Of rho: six tenths. More finds more keys and tells less of each: 451, 496 and 537 keys at a root mean squared error
of 25, 26 and 29 with five, six and seven tenths of it (docs/proofs/key-rounds.md)."""


@dataclass(frozen=True, slots=True)
class KeysAndNumbers:
    """A query for numbers on selected keys as it is to be released for one reader.

    Attributes:
        asked: the query, on current generations.
        rounds: those of its keys.
        numbers: the query of its numbers, at its level, and at what is left for AUTO; where rounds turn out to be
            left out, `settled` has the level and the frame.
        reader: who asks, with what of their clearance is for numbers.
        hiding: the statistic of the numbers by whose threshold more keys are shown; None where none is.

    """

    asked: KeysFirst
    rounds: KeyRounds
    numbers: FrameQuery
    reader: Reader
    hiding: Statistic | None = None

    @classmethod
    def of(cls, asked: KeysFirst, state: State, reader: Reader) -> KeysAndNumbers:
        """The parts of a query.

        A limit of the reader is shared as every level is, so that what queries of this kind show them of keys and of
        one number adds up to no more; keys alone are another question.

        Raises:
            AccessError, CalibrationError: the reader, or the precision of the noise, does not allow the level.

        """
        (numbers, selection), request = asked.parts, asked.first.request
        histograms = [histogram_of(selection.frame)] * 2 + [histogram_of(numbers.frame)]
        auto_nano = sum(level.share_nano for level in numbers.auto_levels)
        statistics = (*numbers.statistics, *(one for one, _ in numbers.unasked))
        shares = shared_requests(request, histograms, (1.0, 9.0, 10.0), statistics, auto_nano)
        total = sum(whole_nano(share.rho or 0.0) for share in shares)
        reader.require(total + auto_nano)
        limit = reader.rho_limit
        of_rounds, of_numbers = (replace(reader, rho_limit=limit and part) for part in _split(limit or 0))
        keys_nano, numbers_nano = _split(total)
        selection = replace(selection, request=request.at(keys_nano / NANO))
        rounds = KeyRounds.of(selection, of_rounds)
        first, second = rounds.first_nano / NANO, (keys_nano - rounds.first_nano) / NANO
        return cls(
            asked,
            replace(rounds, after_first=after_first(asked, state, first, second, numbers_nano / NANO, reader)),
            replace(numbers, request=request.at((numbers_nano + auto_nano) / NANO)),
            of_numbers,
        )

    def settled(self, state: State) -> KeysAndNumbers:
        """The same, its numbers with the level of rounds that are left out, as far as that is known.

        While the first round is not released none is left out. A reader with a limit has their numbers at the level
        that they have beside rounds, so that what they hold adds up to it.
        """
        (step, spare), request = self.rounds.following(state), self.numbers.request
        if not spare or self.reader.has_limit:
            return self
        numbers = replace(self.numbers, request=request.at((whole_nano(request.rho or 0.0) + spare) / NANO))
        if step != Step.THRESHOLD:
            return replace(self, numbers=numbers)
        return replace(self, numbers=numbers, hiding=hiding_statistic(numbers))

    def paths(self, state: State) -> tuple[KeysAndNumbers, ...]:
        """The ways that keys and numbers may take, one for each step that may follow the first round.

        Where AUTO's histograms and the first round are stored the step is known, and there is one way. That of norms
        counts, too: it says whether a threshold on a count of rows pays.
        """
        numbers = self.asked.first
        groups, is_known = next(iter(numbers.auto), None), self.rounds.after_first and self.rounds.has_first(state)
        if not isinstance(groups, AutoGroups) or (is_known and not numbers.is_open):
            return (self,)
        may_hide = self.asked.may_hide and not self.reader.has_limit and hiding_statistic(self.numbers)
        steps = (Step.ROUNDS, Step.NUMBERS, *([Step.THRESHOLD] if may_hide else []))
        # with more of AUTO to come no step is known, not even after rounds that are stored
        rule = None if numbers.is_open else self.rounds.after_first
        return tuple(replace(self, rounds=replace(self.rounds, after_first=rule, assumed=step)) for step in steps)

    def ways(self, state: State) -> list[tuple[Offer, ...]]:
        """Return the offers of each way that keys and numbers may take.

        Raises:
            AccessError, CalibrationError: as `offers_of`.

        """
        return [path.offers(state) for path in self.paths(state)]

    def offers(self, state: State) -> tuple[Offer, ...]:
        """How its rounds are served, and last its numbers.

        Raises:
            AccessError, CalibrationError: as `offers_of`.

        """
        return (*round_offers(self.rounds.planned(state), state), self.settled(state)._numbers_offer(state))

    def require_runs(self, runtime: Runtime) -> tuple[Offer, ...]:
        """Find out that keys and numbers can be read where they are yet to be drawn; how they are served.

        Raises:
            AccessError, CalibrationError, ReleaseError, SchemaError: as `prepare_stage`.

        """
        settled = self.settled(runtime.state)
        numbers = settled._numbers_offer(runtime.state)
        reading_of(numbers, runtime, no_keys(self.numbers.frame))
        return (*require_rounds_run(self.rounds, runtime), numbers)

    def _numbers_offer(self, state: State) -> Offer:
        (offer,) = offers_of([self.numbers], state, self.reader)
        return self.shows_more(offer, state)

    def shows_more(self, offer: Offer, state: State) -> Offer:
        """Return an offer of the numbers with the threshold that shows more keys, if they have one."""
        if not self.hiding:
            return offer
        delta = self.asked.first.request.delta * THRESHOLD_PART
        minimum = max(self.asked.parts[1].frame.bounding.minimum_units, self.numbers.request.min_units)
        return with_threshold(offer, self.hiding, delta, minimum, state.side_table)


@dataclass(frozen=True, slots=True)
class KeysFirstKind:
    """Queries for numbers on keys that are selected first."""

    def offers(self, query: KeysFirst, state: State, reader: Reader) -> tuple[Offer, ...]:
        """Return how the rounds are served, and last the numbers."""
        return KeysAndNumbers.of(query, state, reader).offers(state)

    def require_runs(self, query: KeysFirst, runtime: Runtime, reader: Reader) -> None:
        """Find out that keys and numbers can be read where they are yet to be drawn."""
        for path in KeysAndNumbers.of(query, runtime.state, reader).paths(runtime.state):
            path.require_runs(runtime)

    def release(self, query: KeysFirst, runtime: Runtime, inquiry: Inquiry) -> tuple[pa.Table, Receipt]:
        """Release the keys and then the numbers, and return these with one receipt."""
        return release_keys_first(query, runtime, inquiry)

    def rows(self, query: KeysFirst, state: State, reader: Reader) -> list[Row]:
        """Return the rows of each round, of the numbers on the selected keys, and of all together."""
        parts = KeysAndNumbers.of(query, state, reader)
        offers = parts.offers(state)
        *rounds, numbers = offers
        ways = parts.ways(state)
        rho_nano, delta_units = _price_at_most(ways)
        least = min(_price(way)[0] for way in ways)
        or_less = ", or less, as the first round decides" if least < rho_nano else ""
        return [
            *round_rows(rounds),
            *offer_rows(numbers),
            *joint_rows("keys and numbers", query.first, offers, keys_first_note(offers)),
            *amount_rows(query, rho_nano, delta_units, or_less),
        ]

    def require_open_runs(self, query: KeysFirst, runtime: Runtime, reader: Reader) -> None:
        """Find out that keys and numbers can be read, whatever AUTO chooses."""
        self.require_runs(query, runtime, reader)

    def open_terms(self, query: KeysFirst, first: Calibration, state: State, reader: Reader) -> OpenTerms:
        """Return the terms of keys and numbers; whatever AUTO chooses, these are their levels."""
        ways = KeysAndNumbers.of(query, state, reader).ways(state)
        guarantees = zip(*(joint_guarantee_of(query.first.request, offers) for offers in ways), strict=True)
        epsilon, delta = map(max, guarantees)
        total_nano = max(sum(part.rho_nano for part in offers) for offers in ways) + first.auto_nano
        return OpenTerms(epsilon, delta, total_nano, *_price_at_most(ways))

    def open_prices(
        self, query: KeysFirst, options: Sequence[FrameQuery], state: State, reader: Reader
    ) -> Iterator[tuple[int, int]]:
        """Yield the price of the first option, whose levels all have; the noise of the others can be drawn."""
        for number, option in enumerate(options):
            parts = KeysAndNumbers.of(replace(query, parts=(option, *query.parts[1:])), state, reader)
            if not number:
                yield _price_at_most(parts.ways(state))
            for path in parts.paths(state) if number else ():
                numbers = path.settled(state).numbers
                calibrate(numbers, histogram_of(numbers.frame))

    def noised(self, query: KeysFirst, state: State, reader: Reader) -> tuple[FrameQuery, ...]:
        """Return the query of the numbers."""
        return (KeysAndNumbers.of(query, state, reader).numbers,)

    def rounds(self, query: KeysFirst, state: State, reader: Reader) -> KeyRounds:
        """Return the rounds of the keys."""
        return KeysAndNumbers.of(query, state, reader).rounds

    def require_all_run(self, query: KeysFirst, runtime: Runtime, inquiry: Inquiry) -> tuple[Offer, ...]:
        """Find out that keys and numbers can be released and paid for, whichever way they take."""
        return _require_all_run(query, KeysAndNumbers.of(query, runtime.state, inquiry.reader), runtime, inquiry)


KIND: OpenQueryKind[KeysFirst] = KeysFirstKind()


def _price(offers: Sequence[Offer]) -> tuple[int, int]:
    """Nano-rho and delta units that offers cost together."""
    items = [item for offer in offers for item in offer.items]
    return sum(item.rho_nano for item in items), sum(item.delta_units for item in items)


def _price_at_most(ways: Sequence[Sequence[Offer]]) -> tuple[int, int]:
    """Return the most nano-rho, and the most delta units, that keys and numbers cost, whichever way they take."""
    rho_nano, delta_units = zip(*map(_price, ways), strict=True)
    return max(rho_nano), max(delta_units)


def _split(rho_nano: int) -> tuple[int, int]:
    """What of a level is for keys, and for numbers; neither falls where the level rises."""
    part, whole = _PART_OF_KEYS
    keys = rho_nano * part // whole
    return keys, rho_nano - keys


def release_keys_first(asked: KeysFirst, runtime: Runtime, inquiry: Inquiry) -> tuple[pa.Table, Receipt]:
    """The answer of a query for numbers on selected keys, and its receipt.

    Raises:
        DpsqlError: as `prepare_stage` and `release_stage`; what could keep a later release from being made is found
            before the first is charged, but for what somebody else takes of the budget meanwhile.

    """
    parts, side_table = KeysAndNumbers.of(asked, runtime.state, inquiry.reader), runtime.state.side_table
    planned, name, frame = _require_all_run(asked, parts, runtime, inquiry), inquiry.query_hash, parts.numbers.frame
    hold_shared_pairs(frame, planned, runtime)
    keys, released = release_rounds(parts.rounds, runtime, inquiry)
    settled = parts.settled(runtime.state)
    add_keys(frame, keys, runtime)
    numbers = prepare_stage([settled.numbers], runtime, parts.reader, keys)
    (offer,) = numbers.offers
    offer = settled.shows_more(offer, runtime.state)
    numbers = replace(numbers, offers=(offer,))
    paid = inquiry.auto_charge + release_stage(numbers, runtime, replace(inquiry, reader=parts.reader))
    stages = [*(stage for stage, _ in released), numbers]
    offers = [stage.offers[0] for stage in stages]
    receipt = _joint_receipt(asked, offers, [make_receipt(offer) for offer in offers], name)
    selected = selected_ids(frame, shown_beside(offer, keys, runtime), runtime)
    table = noisy_table(offers[-1], side_table, selected=selected)
    priced = with_prices(receipt, [*(price for _, price in released), paid])
    priced = with_coverage(priced, offers[-1], side_table, selected=selected)
    priced = with_picked_rows(priced, offers[-1], side_table, selected)
    if not table.num_rows:
        priced = replace(priced, nothing_shown=(_reason(asked, offers, keys.num_rows, runtime.state, inquiry.reader),))
    return table, priced


def _require_all_run(asked: KeysFirst, parts: KeysAndNumbers, runtime: Runtime, inquiry: Inquiry) -> tuple[Offer, ...]:
    """Find out that keys and numbers can be released and paid for, whichever way they take; return the longest way.

    Raises:
        DpsqlError: as `prepare_stage` and `Ledger.require`; nothing was charged or read.

    """
    planned = []
    for path in parts.paths(runtime.state):
        offers = path.require_runs(runtime)
        # what can fail of the receipt fails before the first charge
        _joint_receipt(asked, offers, [make_receipt(offer) for offer in offers], inquiry.query_hash)
        items = [item for offer in offers for item in offer.items]
        runtime.state.ledger.require(parts.numbers.frame.rows.unit, items, inquiry.reader.name)
        planned.append(offers)
    return planned[0]


def _reason(asked: KeysFirst, offers: Sequence[Offer], selected: int, state: State, reader: Reader) -> str:
    """Return why none of the selected keys is shown, or why none was selected."""
    *rounds, numbers = offers
    if selected:
        return frame_reason(numbers, state, reader)

    def at(request: Request) -> tuple[Offer, ...]:
        parts = tuple(asked_at(part, request) for part in asked.parts)
        return KeysAndNumbers.of(replace(asked, parts=parts), state, reader).offers(state)

    return threshold_reason(rounds, asked.first.request, at, state)


def keys_first_note(offers: Sequence[Offer]) -> str:
    """Return the note on how the keys of the numbers, which come last, were found."""
    *rounds, numbers = offers
    if not (found := threshold_of(numbers)):
        return words.NUMBERS_APART.format(rounds=rounds_note(rounds))
    statistic, threshold = found
    counted = "units" if statistic == PRESENCE else "rows"
    level = f"{rounds[0].rho_nano / NANO:.9g}"
    return words.ONE_THRESHOLD.format(level=level, counted=counted, threshold=f"{threshold:.4g}")


def _joint_receipt(asked: KeysFirst, offers: Sequence[Offer], receipts: Sequence[Receipt], name: str) -> Receipt:
    """The receipt of keys and numbers together, before a price is known."""
    epsilon, delta = joint_guarantee_of(asked.first.request, offers)
    *rounds, numbers = (replace(receipt, query_hash=name) for receipt in receipts)
    auto_nano = sum(level.rho_nano for level in asked.first.auto_levels)
    rho = (sum(offer.rho_nano for offer in offers) + auto_nano) / NANO
    share_nano = sum(level.share_nano for level in asked.first.auto_levels)
    return replace(
        numbers,
        rho=rho,
        asked_rho=(sum(offer.asked_nano for offer in offers) + share_nano) / NANO,
        epsilon=epsilon,
        delta=delta,
        notes=(*numbers.notes, keys_first_note(offers)),
        sets=(*round_receipts(rounds), SetReceipt(("numbers",), numbers)),
    )
