"""Keys alone: queries for the keys of their groups and no number. The keys are selected in rounds (`key_rounds`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa

from dpsql.cascade.reader import Reader
from dpsql.features.joint_release import joint_receipt, joint_rows, own_receipts
from dpsql.features.key_rounds import KeyRounds, round_names, round_rows, rounds_note
from dpsql.features.query_kind import QueryKind
from dpsql.model.private_query import Request
from dpsql.model.query_kinds import KeysAlone
from dpsql.receipts.plan_rows import Row, price_rows
from dpsql.receipts.receipt import Receipt
from dpsql.receipts.remarks import threshold_reason
from dpsql.release.offer import Offer
from dpsql.release.runtime import Runtime
from dpsql.release.stages import Released, Stage, shown_together
from dpsql.state import State


class KeysAloneKind(QueryKind[KeysAlone]):
    """Queries for the keys of their groups and no number."""

    shares_pairs: ClassVar[bool] = True

    def stages(self, query: KeysAlone, state: State, reader: Reader) -> Iterator[Stage]:
        """Yield round after round."""
        yield from KeyRounds.of(query.first, reader).stages(state)

    def receipt(self, query: KeysAlone, offers: Sequence[Offer], _state: State) -> Receipt:
        """Return the receipt of all rounds together."""
        own = own_receipts(query, offers)
        notes = tuple(dict.fromkeys((*(note for one in own for note in one.notes), rounds_note(offers))))
        base = replace(own[0], threshold=None, notes=notes)
        return joint_receipt(query, base, offers, own, round_names(own))

    def answer(
        self, query: KeysAlone, released: Sequence[Released], receipt: Receipt, runtime: Runtime, reader: Reader
    ) -> tuple[pa.Table, Receipt]:
        """Return the keys of all rounds."""
        offers = [one.offer for one in released]
        found = shown_together(offers, runtime)
        if not found.num_rows:

            def at(request: Request) -> tuple[Offer, ...]:
                return self.offers(query.mapped(lambda part: replace(part, request=request)), runtime.state, reader)

            reason = threshold_reason(offers, query.first.request, at, runtime.state)
            receipt = replace(receipt, nothing_shown=(reason,))
        return found, receipt

    def rows(self, query: KeysAlone, state: State, reader: Reader) -> list[Row]:
        """Return the rows of each round, and those of all together."""
        offers = self.offers(query, state, reader)
        together = joint_rows("all rounds", query, offers, rounds_note(offers))
        return [*round_rows(offers), *together, *price_rows(query, offers)]


KIND = KeysAloneKind()
