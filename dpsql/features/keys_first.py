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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pyarrow as pa

from dpsql.cascade.reader import Reader
from dpsql.features.auto_price import OpenTerms
from dpsql.features.first_round import Step, after_first
from dpsql.features.joint_release import joint_guarantee_of, joint_receipt, joint_rows, own_receipts
from dpsql.features.key_rounds import (
    THRESHOLD_PART,
    KeyRounds,
    round_names,
    round_rows,
    rounds_note,
)
from dpsql.features.query_kind import QueryKind
from dpsql.mechanism.calibrate import Calibration, whole_nano
from dpsql.mechanism.joint import shared_requests
from dpsql.mechanism.registry import histogram_of
from dpsql.model.frame import NANO, PRESENCE, Statistic
from dpsql.model.private_query import AutoGroups, FrameQuery, Request
from dpsql.model.query_kinds import KeysFirst
from dpsql.receipts import words
from dpsql.receipts.coverage_receipt import with_coverage
from dpsql.receipts.plan_rows import Row, amount_rows, offer_rows
from dpsql.receipts.receipt import Receipt
from dpsql.receipts.remarks import asked_at, frame_reason, threshold_reason, with_picked_rows
from dpsql.release.noisy_table import noisy_table
from dpsql.release.number_threshold import hiding_statistic, shown_beside, threshold_of, with_threshold
from dpsql.release.offer import Offer, amounts_of
from dpsql.release.points import shown_frame
from dpsql.release.round_keys import selected_ids
from dpsql.release.runtime import Runtime
from dpsql.release.stages import Released, Stage, offers_of_stages
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

    def stages(self, state: State) -> Iterator[Stage]:
        """Yield the rounds, and last the numbers on the keys that these have shown.

        Raises:
            AccessError, CalibrationError: as `KeyRounds.stages`.

        """
        yield from self.rounds.stages(state)
        settled = self.settled(state)
        served = partial(settled.shows_more, state=state)
        yield Stage((settled.numbers,), self.reader, on_shown_keys=True, served=served)

    def shows_more(self, offer: Offer, state: State) -> Offer:
        """Return an offer of the numbers with the threshold that shows more keys, if they have one."""
        if not self.hiding:
            return offer
        delta = self.asked.first.request.delta * THRESHOLD_PART
        minimum = max(self.asked.parts[1].frame.bounding.minimum_units, self.numbers.request.min_units)
        return with_threshold(offer, self.hiding, delta, minimum, state.side_table)


class KeysFirstKind(QueryKind[KeysFirst]):
    """Queries for numbers on keys that are selected first."""

    shares_pairs: ClassVar[bool] = True

    def stages(self, query: KeysFirst, state: State, reader: Reader) -> Iterator[Stage]:
        """Yield the rounds of the keys, and last the numbers."""
        yield from KeysAndNumbers.of(query, state, reader).stages(state)

    def ways(self, query: KeysFirst, state: State, reader: Reader) -> Sequence[Iterable[Stage]]:
        """Return the stages for each step that may follow the first round."""
        return [path.stages(state) for path in KeysAndNumbers.of(query, state, reader).paths(state)]

    def receipt(self, query: KeysFirst, offers: Sequence[Offer], _state: State) -> Receipt:
        """Return the receipt of keys and numbers together."""
        own = own_receipts(query, offers)
        base = replace(own[-1], notes=(*own[-1].notes, keys_first_note(offers)))
        return joint_receipt(query, base, offers, own, [*round_names(own[:-1]), ("numbers",)])

    def answer(
        self, query: KeysFirst, released: Sequence[Released], receipt: Receipt, runtime: Runtime, reader: Reader
    ) -> tuple[pa.Table, Receipt]:
        """Return the numbers of the keys that are shown."""
        offer, keys, state = released[-1].offer, released[-1].keys, runtime.state
        if keys is None:
            raise AssertionError("numbers are released on keys that were selected")
        selected = selected_ids(offer.query.frame, shown_beside(offer, keys, runtime), runtime)
        found = shown_frame(offer, state.side_table, selected=selected)
        receipt = with_coverage(receipt, offer, found, state.side_table)
        receipt = with_picked_rows(receipt, offer, found)
        if not len(found.shown):
            offers = [one.offer for one in released]
            receipt = replace(receipt, nothing_shown=(_reason(query, offers, keys.num_rows, state, reader),))
        return noisy_table(offer, found, state.side_table), receipt

    def rows(self, query: KeysFirst, state: State, reader: Reader) -> list[Row]:
        """Return the rows of each round, of the numbers on the selected keys, and of all together."""
        offers, prices = self.offers(query, state, reader), self._prices(query, state, reader)
        rho_nano, delta_units = map(max, zip(*prices, strict=True))
        or_less = ", or less, as the first round decides" if min(prices)[0] < rho_nano else ""
        return [
            *round_rows(offers[:-1]),
            *offer_rows(offers[-1]),
            *joint_rows("keys and numbers", query, offers, keys_first_note(offers)),
            *amount_rows(query, rho_nano, delta_units, or_less),
        ]

    def rounds(self, query: KeysFirst, state: State, reader: Reader) -> KeyRounds:
        """Return the rounds of the keys."""
        return KeysAndNumbers.of(query, state, reader).rounds

    def require_open_runs(self, query: KeysFirst, runtime: Runtime, reader: Reader) -> None:
        """Find out that keys and numbers can be read, whatever AUTO chooses."""
        self.require_runs(query, runtime, reader)

    def open_terms(self, query: KeysFirst, first: Calibration, state: State, reader: Reader) -> OpenTerms:
        """Return the terms of keys and numbers; whatever AUTO chooses, these are their levels."""
        ways = [offers_of_stages(way, state) for way in self.ways(query, state, reader)]
        epsilon, delta = map(max, zip(*(joint_guarantee_of(query.first.request, one) for one in ways), strict=True))
        total_nano = max(sum(part.rho_nano for part in offers) for offers in ways) + first.auto_nano
        return OpenTerms(epsilon, delta, total_nano, *map(max, zip(*map(amounts_of, ways), strict=True)))

    def price_after_auto(self, query: KeysFirst, state: State, reader: Reader) -> tuple[int, int]:
        """Return the price of the dearest way, by what is stored of the rounds."""
        rho_nano, delta_units = map(max, zip(*self._prices(query, state, reader), strict=True))
        return rho_nano, delta_units

    def noised(self, query: KeysFirst, state: State, reader: Reader) -> FrameQuery:
        """Return the query of the numbers."""
        return KeysAndNumbers.of(query, state, reader).numbers

    def _prices(self, query: KeysFirst, state: State, reader: Reader) -> list[tuple[int, int]]:
        """Return nano-rho and delta units of each way that keys and numbers may take."""
        return [amounts_of(offers_of_stages(way, state)) for way in self.ways(query, state, reader)]


KIND = KeysFirstKind()


def _split(rho_nano: int) -> tuple[int, int]:
    """What of a level is for keys, and for numbers; neither falls where the level rises."""
    part, whole = _PART_OF_KEYS
    keys = rho_nano * part // whole
    return keys, rho_nano - keys


def _reason(asked: KeysFirst, offers: Sequence[Offer], selected: int, state: State, reader: Reader) -> str:
    """Return why none of the selected keys is shown, or why none was selected."""
    *rounds, numbers = offers
    if selected:
        return frame_reason(numbers, state, reader)

    def at(request: Request) -> tuple[Offer, ...]:
        return KIND.offers(asked.mapped(lambda part: asked_at(part, request)), state, reader)

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
