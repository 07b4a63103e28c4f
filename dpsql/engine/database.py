"""The curator's DuckDB: names and types for planning, one bounded query for aggregation.

The only way from raw rows into this program is `DuckDBEngine`, whose exact rows go to the noise and nowhere else.
``DuckDBEngine.sizes`` says how large the data are, by which nothing but the speed of the next query is decided.

``DuckDBEngine.run_empty`` tries a query before anything is charged (`engine/trials.py`). What the rooms above ask of an
engine is listed in `engine/protocol.py`.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from pathlib import Path
from typing import Self, TypeVar

import duckdb
import pyarrow as pa

from dpsql.bound.aggregation import LISTED_KEYS
from dpsql.bound.formulations import Formulation, Sizes
from dpsql.bound.statement import Bounded, Statement
from dpsql.engine.catalog import unique_by
from dpsql.engine.connection import (
    Connection,
    Cursor,
    LocalConnection,
    OpenConnection,
    answers_native,
    interrupt_after,
    seconds_left,
)
from dpsql.engine.definitions import Definitions, read_definitions, redefined
from dpsql.engine.listing import ListedTable, list_tables
from dpsql.engine.public_rows import PublicRows
from dpsql.engine.transaction import DuckDBTransaction, ExactTable
from dpsql.engine.trials import Trials
from dpsql.errors import EngineError, SchemaError

_T = TypeVar("_T")

_ROWS_OF_A_PIECE = 2**17
MOST_SIZES = 4096
"""Sizes that an engine remembers; if there are more, all are forgotten."""


class _RedefinedError(Exception):
    """A definition that a plan rests on has changed before the rows were read."""


class DuckDBEngine(PublicRows):
    """The curator's own database, read through cursors with pinned settings."""

    def __init__(self, connection: Connection | duckdb.DuckDBPyConnection, native_library: Path | None = None) -> None:
        if isinstance(connection, duckdb.DuckDBPyConnection):
            connection = LocalConnection(connection, native_library)
        super().__init__(connection)
        self._reading_cursors: list[Cursor] = []
        self._trials = Trials()
        self._sizes: dict[bytes, Sizes] = {}
        self._native: list[bool] = []
        self._planned: Definitions | None = None

    def session_zone(self) -> str:
        """Return the time zone of the curator's session."""
        return self._connection.time_zone()

    def listed(self, wanted: Collection[str]) -> dict[str, ListedTable]:
        """Return the tables and views of some identities, by identity; one that is not there has no entry."""
        return list_tables(self._connection, wanted)

    def run_empty(self, queries: Sequence[str], *, listed_keys: pa.Table | None) -> None:
        """Run bounded queries on empty copies of their tables, unless they ran on copies of the same definitions.

        The native library is loaded before. Each reading of rows follows a trial and then a charge. So no question
        finds out after its charge whether functions are there, and each transaction sees those that it calls: it would
        not see what another connection loads after its begin.

        Raises:
            SchemaError: one fails; the message is constant.
            EngineError: the thread was told to stop.

        """
        _ = self.has_native
        failed = False
        with self._connection.pinned() as cursor, interrupt_after(None, cursor.interrupt) as expired:
            try:
                if listed_keys is not None:
                    cursor.offer(LISTED_KEYS, listed_keys)
                cursor.rows("BEGIN TRANSACTION")
                try:
                    self._trials.run(cursor, queries, listed_keys)
                finally:
                    cursor.rows("ROLLBACK")
            except Exception:
                failed = True
        if expired.is_set():
            raise _failure(expired)
        # raised outside the handler, as in _run: keys of a frame may be listed
        if failed:
            raise SchemaError("the database cannot run this query, on any rows.")

    def aggregate(self, sql: str, *, listed_keys: pa.Table | None, timeout_seconds: float | None) -> ExactTable:
        """Run the bounded query and return its exact groups.

        Raises:
            EngineError: it failed or ran out of time; the message is constant.

        """
        return ExactTable(self._run(lambda cursor: cursor.table(sql), listed_keys, timeout_seconds))

    def exact(
        self,
        statement: Statement,
        salt: bytes,
        choose: Callable[[], Formulation],
        *,
        listed_keys: pa.Table | None,
        timeout_seconds: float | None,
    ) -> ExactTable:
        """Run the text of a statement that fits the constraints of its table, and return its exact rows.

        The transaction that reads the rows reads the constraint. So the rows are those that it holds of, whatever
        becomes of the table meanwhile. It is a fact of the catalog, like the columns of a table, and none of the rows.

        Args:
            statement: what is asked of the rows.
            salt: 128 secret bits of the frame.
            choose: returns the formulation, if units may have several rows.
            listed_keys: as for ``aggregate``.
            timeout_seconds: as for ``aggregate``.

        Raises:
            EngineError: as ``aggregate``.

        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        if stored_unit := statement.frame.rows_sql.stored_unit:

            def read(cursor: Cursor) -> pa.Table | None:
                if not unique_by(cursor, stored_unit):
                    return None
                self._require_definitions(cursor)
                return cursor.table(statement.sql(salt, "one_row"))

            found = self._run(read, listed_keys, timeout_seconds, checks=False)
            if found is not None:
                return ExactTable(found)
        text = statement.sql(salt, choose())
        return self.aggregate(text, listed_keys=listed_keys, timeout_seconds=seconds_left(deadline))

    def sizes(
        self, bounded: Bounded, salt: bytes, *, listed_keys: pa.Table | None, timeout_seconds: float | None
    ) -> Sizes:
        """Run a query of approximate sizes of the rows of a frame, unless they are remembered.

        They decide how the bounded query is written, and not what it returns. They are taken once for a version of the
        tables: if a new number of rows led to new sizes, the time would show that the rows changed.

        The number of rows of the largest table that is read bounds them. DuckDB keeps it. It is unknown for a view, a
        file and a name with a quotation mark in it.

        Args:
            bounded: what is asked of the rows.
            salt: the salt of the frame, which has a version.
            listed_keys: as for ``aggregate``.
            timeout_seconds: as for ``aggregate``.

        Raises:
            EngineError: as ``aggregate``.

        """
        if known := self._sizes.get(salt):
            return known
        ((most,),) = self._look_up(
            "SELECT max(estimated_size) FROM duckdb_tables() WHERE "
            """contains(?, format('"{}"."{}"."{}"', database_name, schema_name, table_name))""",
            [(bounded.frame.bounding.finer or bounded.frame).rows_sql.relation],
        )
        sql = bounded.sizes_sql(salt, most)
        (row,) = self._run(lambda cursor: cursor.rows(sql), listed_keys, timeout_seconds, checks=False)
        if len(self._sizes) >= MOST_SIZES:
            self._sizes.clear()
        self._sizes[salt] = Sizes(*row)
        return self._sizes[salt]

    @property
    def has_native(self) -> bool:
        """Return whether the native aggregate can be called; load the library at the first call.

        The answer is no if DuckDB loads no library without a signature, or if the library does not answer the probe. A
        library of another version does not.
        """
        if not self._native:
            self._native.append(self._load_native())
        return self._native[0]

    def _load_native(self) -> bool:
        with contextlib.suppress(duckdb.Error), self._connection.pinned() as cursor:
            # a probe that fails takes 10 ms, because DuckDB looks for functions with similar names
            if cursor.rows("SELECT current_setting('allow_unsigned_extensions')") == [(True,)]:
                self._connection.load_native()
                return answers_native(cursor)
        return False

    def progress(self) -> float | None:
        """How much of the reading that began last is done, 0 to 1; from another thread.

        None where nothing is read, or it is not known. It follows the rows: for the curator alone.
        """
        # a copy, for others come and go
        last = self._reading_cursors[-1:]
        return last[0].progress() if last else None

    @contextlib.contextmanager
    def _reading(
        self, timeout_seconds: float | None, opened: Cursor | None = None
    ) -> Iterator[tuple[Cursor, threading.Event]]:
        """A cursor whose progress can be asked for, a new one or an open one, and whether its time ran out."""
        with self._connection.pinned() if opened is None else contextlib.nullcontext(opened) as cursor:
            # before the clock runs: DuckDB's own error would pass here
            cursor.count_progress()
            with interrupt_after(timeout_seconds, cursor.interrupt) as expired:
                self._reading_cursors.append(cursor)
                try:
                    yield cursor, expired
                finally:
                    self._reading_cursors.remove(cursor)

    @property
    def has_own_cursors(self) -> bool:
        """Return whether a transaction may stay open while other cursors read."""
        return self._connection.has_own_cursors

    @contextlib.contextmanager
    def transaction(self, timeout_seconds: float | None = None) -> Iterator[DuckDBTransaction]:
        """Open a transaction in which several statements read rows; it begins within a limit of time.

        It ends without a commit, and its temporary tables end with it.

        Raises:
            EngineError: it could not begin, or not in time; the message is constant.

        """
        with self._connection.pinned() as cursor, contextlib.ExitStack() as held:
            self._run(lambda opened: held.enter_context(self._begun(opened)), None, timeout_seconds, cursor)
            yield DuckDBTransaction(cursor, self._run)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[DuckDBEngine]:
        """Yield an engine for one plan: all that it asks of the catalog is answered in one transaction."""
        planning = copy.copy(self)
        home = self._connection.home()
        with self._connection.pinned() as cursor, self._begun(cursor, checks=False):
            planning._connection = OpenConnection(self._connection, cursor, home)
            yield planning

    def definitions(self, tables: Collection[str], sized: Collection[str]) -> Definitions:
        """Return the definitions of tables and views, with the number of rows of some."""
        database, _ = self._connection.home()
        with self._connection.pinned() as cursor:
            return read_definitions(cursor, database, tables, sized)

    def while_defined(self, planned: Definitions) -> Self:
        """Return an engine that reads rows only as long as definitions stay as they were.

        Each transaction that reads rows reads the definitions first, so they are those of its rows. Otherwise the
        reading fails.
        """
        reading = copy.copy(self)
        reading._planned = planned
        return reading

    @contextlib.contextmanager
    def _begun(self, cursor: Cursor, *, checks: bool = True) -> Iterator[None]:
        """Hold a transaction; it ends without a commit.

        Args:
            cursor: the cursor.
            checks: whether it reads rows for an answer, so that definitions are required.

        Raises:
            _RedefinedError: a definition that the plan rests on has changed.

        """
        cursor.rows("BEGIN TRANSACTION")
        try:
            if checks:
                self._require_definitions(cursor)
            yield
        finally:
            # a cursor that is closed ends its transaction, too
            with contextlib.suppress(duckdb.Error):
                cursor.rows("ROLLBACK")
                if self._planned and not self.has_own_cursors:
                    cursor.rows("RESET SESSION default_collation")

    def _require_definitions(self, cursor: Cursor) -> None:
        if self._planned:
            if not self._planned.are_seen_by(cursor):
                raise _RedefinedError
            # SET GLOBAL changes this for open transactions, too; plans are made under the collation by bytes alone
            cursor.rows("SET SESSION default_collation = ''")

    def _run(
        self,
        read: Callable[[Cursor], _T],
        listed_keys: pa.Table | None,
        timeout_seconds: float | None,
        opened: Cursor | None = None,
        *,
        checks: bool = True,
    ) -> _T:
        failed: type[Exception] | None = None
        with self._reading(timeout_seconds, opened) as (cursor, expired):
            try:
                if listed_keys is not None:
                    cursor.offer(LISTED_KEYS, listed_keys)
                with contextlib.nullcontext() if opened else self._begun(cursor, checks=checks):
                    found = read(cursor)
            except Exception as error:
                failed = type(error)
        # raised outside the handler: a handled error travels along as __context__, with the row values that it quotes
        if failed or expired.is_set():
            raise _failure(expired, failed)
        return found

    @property
    def has_streams(self) -> bool:
        """Return that rows can be read piece by piece in their order."""
        return True

    def stream(
        self, bounded: Bounded, salt: bytes, *, timeout_seconds: float | None
    ) -> Generator[ExactTable, None, None]:
        """Run a statement and read its rows piece by piece, in their order and as they are asked for.

        DuckDB keeps to its memory_limit, sorting on disk where it must, and Python holds one piece. Where pieces end
        means nothing and may depend on the data. There is at least one, so that the columns are known. A reader that
        stops before the end closes the iterator, which ends the query; the time runs until then.

        Raises:
            EngineError: it failed or ran out of time; the message is constant.

        """
        yield from self.pieces(bounded.sql(salt), timeout_seconds=timeout_seconds)

    def pieces(self, sql: str, *, timeout_seconds: float | None) -> Generator[ExactTable, None, None]:
        """Run a query and read its rows as ``stream`` does."""
        failed: type[Exception] | None = None
        with self._reading(timeout_seconds) as (cursor, expired), contextlib.ExitStack() as transaction:
            try:
                transaction.enter_context(self._begun(cursor))
                pieces = cursor.pieces(sql, _ROWS_OF_A_PIECE)
                while (piece := next(pieces, None)) is not None:
                    yield ExactTable(piece)
            except Exception as error:
                failed = type(error)
        # raised outside the handler, as in aggregate
        if failed or expired.is_set():
            raise _failure(expired, failed)


def _failure(expired: threading.Event, kind: type[Exception] | None = None) -> EngineError:
    """Return the error of a reading that failed by an error of some kind, or ran out of time."""
    if expired.is_set():
        return EngineError.out_of_time()
    return redefined() if kind is _RedefinedError else EngineError("the engine could not run the query")
