"""The connections through which an engine reads a database: DuckDB in this process, or one behind a pipe.

Settings that every cursor pins, and a limit on the time that a query takes, are here too.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from dpsql.bound.formulations import NATIVE_PROBE

SETTINGS: tuple[tuple[str, str], ...] = (
    ("TimeZone", "UTC"),
    ("Calendar", "gregorian"),
    ("integer_division", "false"),
    ("ieee_floating_point_ops", "true"),
)
"""Settings that the value of an expression depends on: pinned for every internal query and part of every hash.

All of them are a cursor's own. default_collation belongs to the whole instance, hence to the curator. So its value is
part of every hash, and under one that is not bytewise nothing is answered. A cursor that reads rows for a plan sets its
own to the comparison by bytes (`DuckDBEngine.while_defined`).
"""

BYTEWISE = frozenset({"", "binary", "c", "posix"})
"""Names, in lower case, of the collation that holds no two texts equal."""


_AGGREGATE_ONLY = "DPSQL_AGGREGATE_ONLY"
"""Environment variable that the library looks at when it is loaded."""
_LOADING = threading.Lock()

PINNED = (
    *(f"SET {name} = '{value}'" for name, value in SETTINGS),
    # functions resolve to the system's own, whatever macros the database holds
    "SET search_path = 'system.main'",
    "SET enable_progress_bar = false",
)
"""What every cursor of an engine sets before it reads."""


_COUNTED = (
    # counted, for `Cursor.progress`, and never printed
    "SET enable_progress_bar = true",
    "SET enable_progress_bar_print = false",
)


class Cursor(Protocol):
    """One connection with pinned settings."""

    def rows(self, sql: str, parameters: Sequence[str] = ()) -> list[tuple[Any, ...]]:
        """Rows of a small query, with texts for its question marks."""

    def table(self, sql: str) -> pa.Table:
        """Rows of a query as one table."""

    def pieces(self, sql: str, rows: int) -> Iterator[pa.Table]:
        """Rows of a query piece by piece; at least one, so that the columns are known."""

    def offer(self, name: str, table: pa.Table) -> None:
        """Make a table readable as ``temp.main.name`` for as long as the cursor is open."""

    def count_progress(self) -> None:
        """Count from now on how much of each query is done, where that can be known."""

    def interrupt(self) -> None:
        """End the query that runs, from another thread."""

    def progress(self) -> float | None:
        """How much of the query that runs is done, 0 to 1, from another thread; None where that is not known."""


MainDatabase = tuple[str, str | None, bool]
"""Name of a database, path of its file if it is one of DuckDB, and whether it is read-only."""

MAIN_DATABASE = (
    "SELECT database_name, CASE WHEN type = 'duckdb' THEN path END, readonly FROM duckdb_databases() "
    "WHERE database_name = current_database()"
)


def main_database(rows: Sequence[tuple[Any, ...]]) -> MainDatabase:
    """Return the main database from the row of `MAIN_DATABASE`."""
    ((name, path, is_read_only),) = rows
    return str(name), None if path is None else str(path), bool(is_read_only)


class Connection(Protocol):
    """A database."""

    @property
    def has_own_cursors(self) -> bool:
        """Return whether a cursor may stay open in a transaction while others are opened and used."""

    def home(self) -> tuple[str, str]:
        """Database and schema in which a name without either is looked for."""

    def main_database(self) -> MainDatabase:
        """Return the database in which a name without one is looked for."""

    def time_zone(self) -> str:
        """Return the time zone of the curator's session."""

    def pinned(self) -> contextlib.AbstractContextManager[Cursor]:
        """A cursor for some queries."""

    def plain(self) -> contextlib.AbstractContextManager[Cursor]:
        """Return a cursor for small statements that no setting changes."""

    def load_native(self) -> None:
        """Load the native aggregate, if it can be."""


@dataclass(frozen=True, eq=False, repr=False)
class LocalConnection:
    """DuckDB in this process, read through cursors of the curator's connection."""

    _connection: duckdb.DuckDBPyConnection
    _native_library: Path | None

    @property
    def has_own_cursors(self) -> bool:
        """Return that each cursor is a connection of its own."""
        return True

    def home(self) -> tuple[str, str]:
        """Where the curator's ``USE`` points."""
        with contextlib.closing(self._connection.cursor()) as cursor:
            ((database, schema),) = cursor.execute("SELECT current_database(), current_schema()").fetchall()
        return str(database), str(schema)

    def main_database(self) -> MainDatabase:
        """Return the database with which the curator's connection began."""
        with self.plain() as cursor:
            return main_database(cursor.rows(MAIN_DATABASE))

    def time_zone(self) -> str:
        """Return the time zone of the curator's connection: a cursor would not have what SET says."""
        ((zone,),) = self._connection.sql("SELECT current_setting('TimeZone')").fetchall()
        return str(zone)

    @contextlib.contextmanager
    def pinned(self) -> Iterator[Cursor]:
        """A cursor for some queries."""
        cursor = self._connection.cursor()
        try:
            for statement in (*PINNED, "SET python_enable_replacements = false"):
                cursor.execute(statement)
            yield _LocalCursor(cursor)
        finally:
            cursor.close()

    @contextlib.contextmanager
    def plain(self) -> Iterator[Cursor]:
        """Return a cursor whose settings are those of the curator's connection."""
        with contextlib.closing(self._connection.cursor()) as cursor:
            yield _LocalCursor(cursor)

    def load_native(self) -> None:
        """Load the library, which DuckDB does where it was opened with ``allow_unsigned_extensions``.

        Only for its aggregate: for the shell it would hold connections, and with them the database open.
        """
        if self._native_library is not None:
            with (
                # the environment is one for all threads
                _LOADING,
                contextlib.suppress(duckdb.Error),
                contextlib.closing(self._connection.cursor()) as cursor,
            ):
                os.environ[_AGGREGATE_ONLY] = "1"
                try:
                    cursor.load_extension(str(self._native_library))
                finally:
                    del os.environ[_AGGREGATE_ONLY]


@dataclass(frozen=True, eq=False, repr=False)
class _LocalCursor:
    _cursor: duckdb.DuckDBPyConnection

    def rows(self, sql: str, parameters: Sequence[str] = ()) -> list[tuple[Any, ...]]:
        return self._cursor.execute(sql, list(parameters)).fetchall()

    def table(self, sql: str) -> pa.Table:
        return self._cursor.sql(sql).to_arrow_table()

    def pieces(self, sql: str, rows: int) -> Iterator[pa.Table]:
        reader = self._cursor.sql(sql).to_arrow_reader(rows)
        yield reader.schema.empty_table()
        for batch in reader:
            yield pa.Table.from_batches([batch])

    def offer(self, name: str, table: pa.Table) -> None:
        self._cursor.register(name, table)

    def count_progress(self) -> None:
        for statement in _COUNTED:
            self._cursor.execute(statement)

    def interrupt(self) -> None:
        self._cursor.interrupt()

    def progress(self) -> float | None:
        done = -1.0
        # the cursor may be closed by now
        with contextlib.suppress(duckdb.Error):
            done = self._cursor.query_progress()
        return done / 100 if 0 <= done <= 100 else None


@dataclass(frozen=True, eq=False, repr=False)
class OpenConnection:
    """A database as one cursor sees it, for a plan: every query runs on that cursor.

    Attributes:
        inner: the connection that opened the cursor.
        cursor: is open, in a transaction.
        place: database and schema of names without either.

    """

    inner: Connection
    cursor: Cursor
    place: tuple[str, str]

    @property
    def has_own_cursors(self) -> bool:
        """Return that all queries share one cursor."""
        return False

    def home(self) -> tuple[str, str]:
        """Return the database and the schema of names without either."""
        return self.place

    def main_database(self) -> MainDatabase:
        """Return the database in which a name without one is looked for."""
        return self.inner.main_database()

    def time_zone(self) -> str:
        """Return the time zone of the curator's session."""
        return self.inner.time_zone()

    @contextlib.contextmanager
    def pinned(self) -> Iterator[Cursor]:
        """Yield the cursor."""
        yield self.cursor

    def plain(self) -> contextlib.AbstractContextManager[Cursor]:
        """Return a cursor of its own."""
        return self.inner.plain()

    def load_native(self) -> None:
        """Load the native aggregate, if it can be."""
        self.inner.load_native()


def answers_native(cursor: Cursor) -> bool:
    """Return whether the native aggregate can be called: a library of another version does not answer the probe."""
    probe, expected = NATIVE_PROBE
    with contextlib.suppress(duckdb.Error):
        return cursor.rows(probe) == [expected]
    return False


def seconds_left(deadline: float | None) -> float | None:
    """Return the seconds until a deadline on the clock ``time.monotonic``. Return None if there is no deadline."""
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


_REPEAT_SECONDS = 0.02
_STOP: ContextVar[threading.Event | None] = ContextVar("stop", default=None)


@contextlib.contextmanager
def stopped_by(event: threading.Event) -> Iterator[None]:
    """Whatever this thread asks of DuckDB inside the block is interrupted once the event is set."""
    token = _STOP.set(event)
    try:
        yield
    finally:
        _STOP.reset(token)


@contextlib.contextmanager
def interrupt_after(seconds: float | None, interrupt: Callable[[], None]) -> Iterator[threading.Event]:
    """Interrupt a query that takes longer than this, again and again until it ends; the event says that it was.

    A query inside `stopped_by` is interrupted likewise when that event is set.
    """
    expired = threading.Event()
    stop = _STOP.get()
    if seconds is None and stop is None:
        yield expired
        return

    done = threading.Event()
    deadline = math.inf if seconds is None else time.monotonic() + seconds

    def watch() -> None:
        while (left := deadline - time.monotonic()) > 0 and not (stop and stop.is_set()):
            if done.wait(min(left, threading.TIMEOUT_MAX if stop is None else _REPEAT_SECONDS)):
                return
        expired.set()
        # DuckDB forgets an interrupt that comes before its query starts, so it is repeated
        while True:
            interrupt()
            if done.wait(_REPEAT_SECONDS):
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield expired
    finally:
        done.set()
        watcher.join()
