"""Queries by one set of keys: how they are priced, released and explained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from dpsql.cascade.reader import Reader
from dpsql.features.auto_price import open_prices_of, open_terms_of
from dpsql.features.query_kind import OpenQueryKind, OpenTerms
from dpsql.mechanism.calibrate import Calibration, calibrate
from dpsql.mechanism.registry import histogram_of
from dpsql.model.private_query import FrameQuery
from dpsql.model.query_kinds import OneSet
from dpsql.receipts.asked_columns import asked_columns
from dpsql.receipts.nothing_shown import frame_reason, with_remarks
from dpsql.receipts.offer_receipt import make_receipt, with_price
from dpsql.receipts.plan_rows import Row, offer_rows, price_rows
from dpsql.receipts.receipt import ColumnReceipt, Receipt
from dpsql.release.exact import Runtime
from dpsql.release.inquiry import Inquiry
from dpsql.release.noisy_table import noisy_table
from dpsql.release.offer import Offer, offers_of
from dpsql.release.stage import prepare_stage, reading_of, release_stage
from dpsql.state import State


@dataclass(frozen=True, slots=True)
class OneSetKind:
    """Queries by one set of keys."""

    def at(self, query: OneSet, rho: float) -> OneSet:
        """Return the query at a level of rho."""
        return query.at(rho)

    def columns(self, query: OneSet) -> tuple[ColumnReceipt, ...]:
        """Return the noise of each column at the level asked for."""
        return asked_columns(query.first)

    def guarantee(self, query: OneSet) -> tuple[float, float]:
        """Return the guarantee of the only frame."""
        calibration = calibrate(query.first, histogram_of(query.first.frame))
        return calibration.epsilon, calibration.delta

    def offers(self, query: OneSet, state: State, reader: Reader) -> tuple[Offer, ...]:
        """Return how the only frame is served."""
        return offers_of(query.parts, state, reader)

    def require_runs(self, query: OneSet, runtime: Runtime, reader: Reader) -> None:
        """Find out that the frame can be read where it is yet to be drawn."""
        (offer,) = self.offers(query, runtime.state, reader)
        reading_of(offer, runtime)

    def release(self, query: OneSet, runtime: Runtime, inquiry: Inquiry) -> tuple[pa.Table, Receipt]:
        """Release the frame, and return its groups with their receipt."""
        stage = prepare_stage(query.parts, runtime, inquiry.reader)
        unpriced = make_receipt(stage.offers[0])
        charged = inquiry.auto_charge + release_stage(stage, runtime, inquiry)
        (offer,), state = stage.offers, runtime.state
        table = noisy_table(offer, state.side_table)
        receipt, reason = with_price(unpriced, charged), partial(frame_reason, offer, state, inquiry.reader)
        return table, with_remarks(offer, receipt, table, state.side_table, reason)

    def rows(self, query: OneSet, state: State, reader: Reader) -> list[Row]:
        """Return the rows of the frame, and its price."""
        (offer,) = self.offers(query, state, reader)
        return [*offer_rows(offer), *price_rows(query, [offer])]

    def require_open_runs(self, query: OneSet, runtime: Runtime, reader: Reader) -> None:
        """Do nothing: the frames that AUTO may choose are tried with its histograms."""

    def open_terms(self, query: OneSet, first: Calibration, _state: State, reader: Reader) -> OpenTerms:
        """Return the terms of the least number of groups, which are those of all."""
        return open_terms_of(query.first, first, reader)

    def open_prices(
        self, _query: OneSet, options: Sequence[FrameQuery], _state: State, reader: Reader
    ) -> Iterator[tuple[int, int]]:
        """Yield the price of each option."""
        yield from open_prices_of(options, reader)

    def noised(self, query: OneSet, _state: State, _reader: Reader) -> tuple[FrameQuery, ...]:
        """Return the only part."""
        return query.parts


KIND: OpenQueryKind[OneSet] = OneSetKind()
