"""The protocol of a kind of query: what runner, explain and AUTO ask of it.

The nouns of `dpsql/model/query_kinds.py` say what is asked. A kind says how that is priced, released and explained, in
one file of its own; `dpsql/features/kinds.py` names the file. Queries come with their parts on current generations
(`offer.current`), but for those that AUTO is yet to choose for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from dpsql.cascade.reader import Reader
from dpsql.mechanism.calibrate import Calibration
from dpsql.model.private_query import FrameQuery, PrivateQuery
from dpsql.receipts.plan_rows import Row
from dpsql.receipts.receipt import ColumnReceipt, Receipt
from dpsql.release.exact import Runtime
from dpsql.release.inquiry import Inquiry
from dpsql.release.offer import Offer
from dpsql.state import State

if TYPE_CHECKING:
    from dpsql.features.key_rounds import KeyRounds

Asked_contra = TypeVar("Asked_contra", bound=PrivateQuery, contravariant=True)


class QueryKind(Protocol[Asked_contra]):
    """A kind of query: its prices, releases and explanations."""

    def offers(self, query: Asked_contra, state: State, reader: Reader, /) -> tuple[Offer, ...]:
        """Return how the frames are served; their items are the most that an answer charges now.

        Raises:
            AccessError, CalibrationError: nothing was charged or read.

        """

    def require_runs(self, query: Asked_contra, runtime: Runtime, reader: Reader, /) -> None:
        """Refuse what `release` would refuse because the database cannot run it, or its rows are gone.

        Raises:
            AccessError, CalibrationError, ReleaseError, SchemaError: nothing was charged or read.

        """

    def release(self, query: Asked_contra, runtime: Runtime, inquiry: Inquiry, /) -> tuple[pa.Table, Receipt]:
        """Charge, read, draw and store; return the table that the finish reads, and the receipt with the price.

        Raises:
            DpsqlError: as `prepare_stage` and `release_stage`.

        """

    def rows(self, query: Asked_contra, state: State, reader: Reader, /) -> list[Row]:
        """Return the rows of ``dp_explain``, with those of the price; reads and spends nothing.

        Raises:
            AccessError, CalibrationError: as `offers`.

        """


@dataclass(frozen=True, slots=True)
class OpenTerms:
    """The terms of a query before AUTO has chosen.

    Attributes:
        epsilon, delta: guarantee of the answer with the histograms of AUTO.
        total_nano: levels of answer and histograms together.
        rho_nano, delta_units: the most that the answer costs, without the histograms.

    """

    epsilon: float
    delta: float
    total_nano: int
    rho_nano: int
    delta_units: int


@runtime_checkable
class OpenQueryKind(QueryKind[Asked_contra], Protocol[Asked_contra]):
    """A kind whose queries may leave something to AUTO."""

    def require_open_runs(self, query: Asked_contra, runtime: Runtime, reader: Reader, /) -> None:
        """Refuse what could not be read after AUTO has chosen, beside the histograms.

        Raises:
            AccessError, CalibrationError, ReleaseError, SchemaError: nothing was charged or read.

        """

    def open_terms(self, query: Asked_contra, first: Calibration, state: State, reader: Reader, /) -> OpenTerms:
        """Return the terms of a query before AUTO has chosen.

        Args:
            query: the plan.
            first: calibration of its first part with the least number of groups.
            state: the state file.
            reader: who asks.

        Raises:
            AccessError, CalibrationError: the reader, or the precision of the noise, does not allow the level.

        """

    def open_prices(
        self, query: Asked_contra, options: Sequence[FrameQuery], state: State, reader: Reader, /
    ) -> Iterator[tuple[int, int]]:
        """Yield nano-rho and delta units that an answer may cost after AUTO.

        Args:
            query: a plan by bounds that AUTO may find.
            options: its first part with the least number of groups, and then others that AUTO may choose.
            state: the state file.
            reader: who asks.

        Raises:
            AccessError, CalibrationError: some option could not be answered for the reader.

        """

    def noised(self, query: Asked_contra, state: State, reader: Reader, /) -> tuple[FrameQuery, ...]:
        """Return the parts whose statistics are noised, at their levels."""


@runtime_checkable
class RoundsFirstKind(OpenQueryKind[Asked_contra], Protocol[Asked_contra]):
    """A kind whose keys are selected in rounds before its numbers are released."""

    def rounds(self, query: Asked_contra, state: State, reader: Reader, /) -> KeyRounds:
        """Return the rounds of a query.

        Raises:
            AccessError, CalibrationError: the reader, or the precision of the noise, does not allow the level.

        """

    def require_all_run(self, query: Asked_contra, runtime: Runtime, inquiry: Inquiry, /) -> tuple[Offer, ...]:
        """Find out that rounds and numbers can be released and paid for; return how they are served, numbers last.

        Raises:
            DpsqlError: as `prepare_stage` and `Ledger.require`; nothing was charged or read.

        """


@runtime_checkable
class CappedKind(QueryKind[Asked_contra], Protocol[Asked_contra]):
    """A kind whose level rises up to a cap, which its text says by rho or by epsilon."""

    def capped(self, query: Asked_contra, /) -> PrivateQuery:
        """Return a query as it was planned with its cap in rho, and with what follows from that.

        Raises:
            CalibrationError: no level has so small an epsilon.

        """

    def asked_cap(self, query: Asked_contra, /) -> tuple[str, float]:
        """Return the option that says the cap, and its value."""

    def open_rows(self, query: Asked_contra, least: FrameQuery, state: State, reader: Reader, /) -> list[Row]:
        """Return the rows of the cap in a plan before AUTO has chosen.

        Args:
            query: the plan.
            least: its first part with the least number of groups that AUTO may choose.
            state: the state file.
            reader: who asks.

        """


@runtime_checkable
class FixedNoiseKind(QueryKind[Asked_contra], Protocol[Asked_contra]):
    """A kind whose counts and sums have a noise that text, policy and level fix, whatever the data are."""

    def at(self, query: Asked_contra, rho: float, /) -> PrivateQuery:
        """Return the query at a level of rho, all parts together."""

    def columns(self, query: Asked_contra, /) -> tuple[ColumnReceipt, ...]:
        """Return the noise of each column of a query by rho, as it is drawn at the level asked for.

        A column has the largest noise of all parts.

        Raises:
            CalibrationError: a level rounds to nothing, or its noise cannot be drawn.

        """

    def guarantee(self, query: Asked_contra, /) -> tuple[float, float]:
        """Return (epsilon, delta) of a query by rho alone at the level asked for, both rounded up.

        Raises:
            CalibrationError: a level rounds to nothing, its noise cannot be drawn, or no threshold has its delta.

        """
