"""A kind of query: runner, explain, refusals and AUTO ask it for all that differs between kinds.

The nouns of `dpsql/model/query_kinds.py` say what is asked. A kind says in which stages that is released, in one file
of its own; `dpsql/features/kinds.py` names the file. Price, release and explanation follow from the stages. Queries
come with their parts on current generations (`offer.current`), but for those that AUTO is yet to choose for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import pyarrow as pa

from dpsql.cascade.reader import Reader
from dpsql.features.auto_price import OpenTerms, may_come, open_terms_of, price_of_parts
from dpsql.features.joint_release import last_of_frame
from dpsql.mechanism.calibrate import Calibration, calibrate
from dpsql.mechanism.measure import MISS
from dpsql.mechanism.registry import histogram_of
from dpsql.model.private_query import FrameQuery, PrivateQuery
from dpsql.receipts.offer_receipt import asked_columns, make_receipt, with_price
from dpsql.receipts.plan_rows import Row, offer_rows, price_rows
from dpsql.receipts.receipt import ColumnReceipt, Receipt
from dpsql.receipts.remarks import frame_reason, with_remarks
from dpsql.release.noisy_table import noisy_table
from dpsql.release.offer import Offer, price_of
from dpsql.release.points import shown_frame
from dpsql.release.runtime import Inquiry, Runtime, hold_shared_pairs
from dpsql.release.stage import Prepared
from dpsql.release.stages import Released, Stage, offers_of_stages, offers_of_way, release_stages
from dpsql.state import State

if TYPE_CHECKING:
    from dpsql.features.key_rounds import KeyRounds

Asked = TypeVar("Asked", bound=PrivateQuery)


Way = list[tuple[Stage, Prepared]]
"""The stages of one way that a query may take, each with all of it that can fail before the charge."""


class QueryKind(ABC, Generic[Asked]):
    """A kind of query.

    A subclass has its stages. All other methods have a default for queries whose answer shows one frame.

    Attributes:
        shares_pairs: whether the rows are read for several frames on private keys, so that they share pairs of rows.

    """

    shares_pairs: ClassVar[bool] = False

    @abstractmethod
    def stages(self, query: Asked, state: State, reader: Reader, /) -> Iterator[Stage]:
        """Yield the stages of a query, one after the other.

        A caller that releases each stage before it asks for the next one gets all stages. For any other caller, a
        stage that is not stored has the outcome that makes the later stages the dearest.

        Raises:
            AccessError, CalibrationError: the reader, or the precision of the noise, does not allow the level.

        """

    def ways(self, query: Asked, state: State, reader: Reader, /) -> Sequence[Iterable[Stage]]:
        """Return the stages of each way that a query may take, the longest first; released numbers choose one."""
        return (self.stages(query, state, reader),)

    def receipt(self, _query: Asked, offers: Sequence[Offer], _state: State, /) -> Receipt:
        """Return the receipt without charges: that of the last stage, whose only frame the answer shows.

        Args:
            query: the plan.
            offers: how the frames of all stages are served.
            state: the state file.

        Raises:
            CalibrationError: no guarantee can be computed.

        """
        return make_receipt(offers[-1])

    def answer(
        self, _query: Asked, released: Sequence[Released], receipt: Receipt, runtime: Runtime, reader: Reader, /
    ) -> tuple[pa.Table, Receipt]:
        """Return the table that the finish reads, and the receipt with what bounds keep and why groups are missing.

        Args:
            query: the plan.
            released: the frames of all stages; all of them are stored.
            receipt: with its price.
            runtime: state, engine and sandbox.
            reader: who asks.

        """
        offer, state = released[-1].offer, runtime.state
        found, reason = shown_frame(offer, state.side_table), partial(frame_reason, offer, state, reader)
        receipt = with_remarks(offer, receipt, found, state.side_table, reason)
        return noisy_table(offer, found, state.side_table), receipt

    def rows(self, query: Asked, state: State, reader: Reader, /) -> list[Row]:
        """Return the rows of ``dp_explain``, with those of the price; reads and spends nothing.

        Raises:
            AccessError, CalibrationError: as `offers`.

        """
        offers = self.offers(query, state, reader)
        return [*offer_rows(last_of_frame(offers)), *price_rows(query, offers)]

    def offers(self, query: Asked, state: State, reader: Reader, /) -> tuple[Offer, ...]:
        """Return how the frames of all stages are served; `price_of` has the most that an answer charges now.

        Raises:
            AccessError, CalibrationError: nothing was charged or read.

        """
        return offers_of_stages(self.stages(query, state, reader), state)

    def require_runs(self, query: Asked, runtime: Runtime, reader: Reader, /) -> list[Way]:
        """Find out that all stages can be released, whichever way they take; charges, stores and reads nothing.

        Raises:
            AccessError, CalibrationError, ReleaseError, SchemaError: as `Stage.prepared`.

        """
        return [[(stage, stage.prepared(runtime)) for stage in way] for way in self.ways(query, runtime.state, reader)]

    def require_all(self, query: Asked, runtime: Runtime, inquiry: Inquiry, /) -> tuple[list[Way], Receipt]:
        """Find out that all stages can be released and paid for, whichever way they take.

        Returns:
            The stages of each way, and the receipt of the first one.

        Raises:
            DpsqlError: as `require_runs`, `receipt` and `Ledger.require`; nothing was charged or read.

        """
        ways, receipts = self.require_runs(query, runtime, inquiry.reader), []
        for way in ways:
            offers = offers_of_way(way)
            # what can fail of the receipt fails before the first charge
            receipts.append(self.receipt(query, offers, runtime.state))
            if len(way) > 1:
                unit = query.first.frame.rows.unit
                runtime.state.ledger.require(unit, price_of(offers), inquiry.reader.name)
        if self.shares_pairs:
            hold_shared_pairs(query.first.frame, offers_of_way(ways[0]), runtime)
        return ways, receipts[0]

    def release(self, query: Asked, runtime: Runtime, inquiry: Inquiry, /) -> tuple[pa.Table, Receipt]:
        """Charge, read, draw and store; return the table that the finish reads, and the receipt with the price.

        Raises:
            DpsqlError: as `require_all` and `release_stages`. What could keep a later stage from being released is
                found before the first charge, but for what somebody else takes of the budget meanwhile.

        """
        ways, receipt = self.require_all(query, runtime, inquiry)
        way, planned = ways[0], offers_of_way(ways[0])
        stages: Iterable[Stage] = self.stages(query, runtime.state, inquiry.reader)
        is_stored = len(ways) == 1 and not any(serving.steps for offer in planned for serving in offer.servings)
        if is_stored:
            # nothing is drawn, so that the stages stay those
            stages = [stage for stage, _ in way]
        ready = [prepared for _, prepared in way] if is_stored or len(ways) == len(way) == 1 else []
        released = release_stages(stages, runtime, inquiry, ready)
        if len(way) > 1 or len(released) > len(planned):
            receipt = self.receipt(query, [one.offer for one in released], runtime.state)
        return self.answer(query, released, _with_prices(receipt, released), runtime, inquiry.reader)

    def rounds(self, _query: Asked, _state: State, _reader: Reader, /) -> KeyRounds | None:
        """Return the rounds in which keys are selected before the numbers. Return None if they are not.

        Raises:
            AccessError, CalibrationError: the reader, or the precision of the noise, does not allow the level.

        """
        return None

    # --- levels that half widths choose

    def at(self, query: Asked, rho: float, /) -> Asked:
        """Return the query at a level of rho, all parts together."""
        return query.at(rho)

    def columns(self, query: Asked, miss: float = MISS, /) -> tuple[ColumnReceipt, ...]:
        """Return the noise of each column of a query by rho, as it is drawn at the level asked for.

        A column has the largest noise of all parts, and the half width that noise exceeds with a probability of
        ``miss``.

        Raises:
            CalibrationError: a level rounds to nothing, or its noise cannot be drawn.

        """
        return asked_columns(query.first, miss)

    def guarantee(self, query: Asked, /) -> tuple[float, float]:
        """Return (epsilon, delta) of a query by rho alone at the level asked for, both rounded up.

        Raises:
            CalibrationError: a level rounds to nothing, its noise cannot be drawn, or no threshold has its delta.

        """
        calibration = calibrate(query.first, histogram_of(query.first.frame))
        return calibration.epsilon, calibration.delta

    # --- levels up to a cap

    def capped(self, query: Asked, /) -> Asked:
        """Return a query as it was planned with its cap in rho, and with what follows from that; others as they are.

        Raises:
            CalibrationError: no level has so small an epsilon.

        """
        return query

    def asked_cap(self, _query: Asked, /) -> tuple[str, float] | None:
        """Return the option that says the cap of the level, and its value. Return None if there is no cap."""
        return None

    # --- queries that AUTO is yet to choose for

    def require_open_runs(self, _query: Asked, _runtime: Runtime, _reader: Reader, /) -> None:
        """Refuse what could not be read after AUTO has chosen, beside the histograms and the frames that may come.

        Raises:
            AccessError, CalibrationError, ReleaseError, SchemaError: nothing was charged or read.

        """

    def open_terms(self, query: Asked, first: Calibration, state: State, reader: Reader, /) -> OpenTerms:
        """Return the terms of a query before AUTO has chosen, with the price of all stages.

        Args:
            query: the plan.
            first: calibration of its first part with the least number of groups.
            state: the state file.
            reader: who asks.

        Raises:
            AccessError, CalibrationError: the reader, or the precision of the noise, does not allow the level.

        """
        least = replace(query, parts=(may_come(query.first)[0], *query.parts[1:]))
        return open_terms_of(query.first, first, self.price_after_auto(least, state, reader), reader)

    def price_after_auto(self, query: Asked, state: State, reader: Reader, /) -> tuple[int, int]:
        """Return the most nano-rho and delta units that an answer costs after AUTO.

        Args:
            query: a plan by bounds, and with a number of groups, that AUTO may choose.
            state: the state file.
            reader: who asks.

        Raises:
            AccessError, CalibrationError: it could not be answered for the reader.

        """
        return price_of_parts([part for stage in self.stages(query, state, reader) for part in stage.parts], reader)

    def open_rows(self, _query: Asked, _least: FrameQuery, _state: State, _reader: Reader, /) -> list[Row]:
        """Return the rows of a plan before AUTO has chosen that stand before those of its frame.

        Args:
            query: the plan.
            least: its first part with the least number of groups that AUTO may choose.
            state: the state file.
            reader: who asks.

        """
        return []

    def noised(self, query: Asked, _state: State, _reader: Reader, /) -> FrameQuery:
        """Return the part whose statistics are noised, at its level."""
        return query.first


def _with_prices(receipt: Receipt, released: Sequence[Released]) -> Receipt:
    """Return the receipt with the price of each frame that it names, and of all together."""
    charges = [one.charged for one in released]
    sets = receipt.sets and tuple(
        replace(one, receipt=with_price(one.receipt, charged))
        for one, charged in zip(receipt.sets, charges, strict=True)
    )
    return replace(with_price(receipt, sum(charges[1:], charges[0])), sets=sets)
