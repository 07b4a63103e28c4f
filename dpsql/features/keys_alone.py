"""Keys alone: how queries for the keys of their groups and no number are priced, released and explained.

The keys are selected in rounds (`key_rounds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from dpsql.cascade.reader import Reader
from dpsql.features.joint_release import joint_guarantee_of
from dpsql.features.key_rounds import (
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
from dpsql.features.query_kind import QueryKind
from dpsql.model.frame import NANO
from dpsql.model.private_query import FrameQuery, Request
from dpsql.model.query_kinds import KeysAlone
from dpsql.receipts.nothing_shown import threshold_reason
from dpsql.receipts.offer_receipt import asked_together, make_receipt
from dpsql.receipts.plan_rows import Row, price_rows
from dpsql.receipts.receipt import Receipt
from dpsql.release.exact import Runtime
from dpsql.release.held_pairs import hold_shared_pairs
from dpsql.release.inquiry import Inquiry
from dpsql.release.offer import Offer
from dpsql.state import State


@dataclass(frozen=True, slots=True)
class KeysAloneKind:
    """Queries for the keys of their groups and no number."""

    def offers(self, query: KeysAlone, state: State, reader: Reader) -> tuple[Offer, ...]:
        """Return how the rounds are served."""
        return round_offers(KeyRounds.of(query.first, reader).planned(state), state)

    def require_runs(self, query: KeysAlone, runtime: Runtime, reader: Reader) -> None:
        """Find out that all rounds can be read where they are yet to be drawn."""
        require_rounds_run(KeyRounds.of(query.first, reader), runtime)

    def release(self, query: KeysAlone, runtime: Runtime, inquiry: Inquiry) -> tuple[pa.Table, Receipt]:
        """Release round after round, and return the keys of all with one receipt."""
        return release_keys(query.first, runtime, inquiry)

    def rows(self, query: KeysAlone, state: State, reader: Reader) -> list[Row]:
        """Return the rows of each round, and those of all together."""
        offers = self.offers(query, state, reader)
        together = joint_rows("all rounds", query.first, offers, rounds_note(offers))
        return [*round_rows(offers), *together, *price_rows(query, offers)]


KIND: QueryKind[KeysAlone] = KeysAloneKind()


def release_keys(query: FrameQuery, runtime: Runtime, inquiry: Inquiry) -> tuple[pa.Table, Receipt]:
    """Release round after round, and return the keys of all with one receipt.

    Raises:
        DpsqlError: as `prepare_stage` and `release_stage`; what could keep a later round from being released is found
            before the first is charged, but for what somebody else takes of the budget meanwhile.

    """
    state, rounds = runtime.state, KeyRounds.of(query, inquiry.reader)
    planned = require_rounds_run(rounds, runtime)
    # what can fail of the receipt fails before the first charge
    _joint_receipt(query, planned, [make_receipt(offer) for offer in planned], inquiry.query_hash)
    items = [item for offer in planned for item in offer.items]
    state.ledger.require(query.frame.rows.unit, items, inquiry.reader.name)
    hold_shared_pairs(query.frame, planned, runtime)
    found, released = release_rounds(rounds, runtime, inquiry)
    offers = [stage.offers[0] for stage, _ in released]
    receipts = [make_receipt(offer) for offer in offers]
    receipt = with_prices(_joint_receipt(query, offers, receipts, inquiry.query_hash), [paid for _, paid in released])
    if not found.num_rows:

        def at(request: Request) -> tuple[Offer, ...]:
            rounds = KeyRounds.of(replace(query, request=request), inquiry.reader)
            return round_offers(rounds.planned(state), state)

        receipt = replace(receipt, nothing_shown=(threshold_reason(offers, query.request, at, state),))
    return found, receipt


def _joint_receipt(query: FrameQuery, offers: Sequence[Offer], receipts: Sequence[Receipt], name: str) -> Receipt:
    """Build the receipt of all rounds together, without charges."""
    epsilon, delta = joint_guarantee_of(query.request, offers)
    own = [replace(receipt, query_hash=name) for receipt in receipts]
    notes = dict.fromkeys((*(note for receipt in own for note in receipt.notes), rounds_note(offers)))
    return replace(
        own[0],
        rho=sum(offer.rho_nano for offer in offers) / NANO,
        asked_rho=asked_together(own),
        epsilon=epsilon,
        delta=delta,
        threshold=None,
        notes=tuple(notes),
        sets=round_receipts(own),
    )
