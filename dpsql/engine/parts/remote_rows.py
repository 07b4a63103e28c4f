"""Engines whose rows are in parts: a head has names and public rows, and a carrier brings texts to the parts."""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Callable, Generator, Iterator

import pyarrow as pa

from dpsql.bound.formulations import Formulation
from dpsql.bound.statement import Bounded, Statement
from dpsql.engine.connection import seconds_left
from dpsql.engine.database import DuckDBEngine
from dpsql.engine.parts.transaction import Carrier, PartsTransaction
from dpsql.engine.transaction import ExactTable
from dpsql.errors import EngineError


class RemoteRowsEngine(DuckDBEngine, abc.ABC):
    """The protocol of an engine whose statements are merged in the head, from what all parts hand on.

    Attributes:
        raw_rows: why rows without a bound are not read.

    """

    raw_rows = "raw rows are not read over parts: ask the table before it was split"

    @abc.abstractmethod
    def _carrier(self) -> Carrier:
        """Return the carrier of a new transaction."""

    @property
    def has_streams(self) -> bool:
        """Return that parts have no common order."""
        return False

    def stream(
        self,
        bounded: Bounded,  # noqa: ARG002 — the protocol names it
        salt: bytes,  # noqa: ARG002
        *,
        timeout_seconds: float | None,  # noqa: ARG002
    ) -> Generator[ExactTable, None, None]:
        """Refuse: parts have no common order.

        Raises:
            EngineError: always.

        """
        raise EngineError("parts of a table are not read in an order", withheld=False)

    def aggregate(
        self,
        sql: str,  # noqa: ARG002 — the protocol names it
        *,
        listed_keys: pa.Table | None,  # noqa: ARG002
        timeout_seconds: float | None,  # noqa: ARG002
    ) -> ExactTable:
        """Refuse: rows without a bound are read of one table alone.

        Raises:
            EngineError: always; nothing was charged.

        """
        raise EngineError(self.raw_rows, withheld=False, charged=False)

    def exact(
        self,
        statement: Statement,
        salt: bytes,
        choose: Callable[[], Formulation],
        *,
        listed_keys: pa.Table | None,
        timeout_seconds: float | None,
    ) -> ExactTable:
        """Return the exact rows of a statement, of all parts."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self.transaction(timeout_seconds) as transaction:
            stored_unit = statement.frame.rows_sql.stored_unit
            has_one_row = transaction.has_one_row(stored_unit, seconds_left(deadline))
            formulation: Formulation = "one_row" if has_one_row else choose()
            return transaction.exact(
                statement, salt, formulation, listed_keys=listed_keys, timeout_seconds=seconds_left(deadline)
            )

    @contextlib.contextmanager
    def transaction(self, timeout_seconds: float | None = None) -> Iterator[PartsTransaction]:
        """Open a transaction on the head, and one on each part once a table is made there."""
        with super().transaction(timeout_seconds) as head:
            carrier = self._carrier()
            try:
                yield PartsTransaction(head, carrier)
            finally:
                carrier.end()
