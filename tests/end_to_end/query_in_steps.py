"""A sixth kind of query, in one file: numbers that are released at a tenth of their level, at half, and at all of it.

The rows are read once, after the first charge. Each step is an offer, a charge and a release of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from dpsql.cascade.reader import Reader
from dpsql.features.query_kind import QueryKind
from dpsql.model.private_query import FrameQuery, PrivateQuery
from dpsql.receipts.offer_receipt import make_receipt, with_price
from dpsql.receipts.plan_rows import Row, offer_rows, price_rows
from dpsql.receipts.receipt import Receipt
from dpsql.release.exact import Runtime, prepare_reading
from dpsql.release.inquiry import Inquiry
from dpsql.release.noisy_table import noisy_table
from dpsql.release.offer import Offer, offers_of
from dpsql.release.stage import NO_VALUES, FrameValues, charge_offers, read_frame, reading_of, release_frame
from dpsql.state import Charged, State

PARTS_OF_RHO = (0.1, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class InSteps(PrivateQuery):
    """A query by one set of keys whose level rises while it is answered."""


@dataclass(frozen=True, slots=True)
class InStepsKind:
    """Queries whose level rises while they are answered."""

    def offers(self, query: InSteps, state: State, reader: Reader) -> tuple[Offer, ...]:
        """Return how the last step is served: the levels of all cost together what it costs alone."""
        return offers_of(query.parts, state, reader)

    def require_runs(self, query: InSteps, runtime: Runtime, reader: Reader) -> None:
        """Find out that the frame can be read."""
        (offer,) = self.offers(query, runtime.state, reader)
        reading_of(offer, runtime)

    def release(self, query: InSteps, runtime: Runtime, inquiry: Inquiry) -> tuple[pa.Table, Receipt]:
        """Release step after step on one reading, and return the groups of the last one."""
        (last,) = self.offers(query, runtime.state, inquiry.reader)
        runtime.state.ledger.require(query.first.frame.rows.unit, last.items, inquiry.reader.name)
        reading = prepare_reading(query.first.frame, query.first.statistics, runtime)
        values: FrameValues | None = None
        total = Charged()
        for part in PARTS_OF_RHO:
            (offer,) = offers_of([_at(query.first, part)], runtime.state, inquiry.reader)
            charged = charge_offers([offer], runtime, inquiry)
            if offer.drawn:
                values = values or read_frame(reading, charged, runtime, inquiry.timeout_seconds)
                values = release_frame(offer, values, charged, runtime, inquiry)
            else:
                release_frame(offer, NO_VALUES, charged, runtime, inquiry)
            total += charged
        return noisy_table(offer, runtime.state.side_table), with_price(make_receipt(offer), total)

    def rows(self, query: InSteps, state: State, reader: Reader) -> list[Row]:
        """Return the number of steps, the rows of the last one, and the price of all."""
        (offer,) = self.offers(query, state, reader)
        return [("steps", "number", f"{len(PARTS_OF_RHO)}"), *offer_rows(offer), *price_rows(query, [offer])]


KIND: QueryKind[InSteps] = InStepsKind()


def _at(query: FrameQuery, part: float) -> FrameQuery:
    assert query.request.rho is not None
    return replace(query, request=query.request.at(part * query.request.rho))
