"""The connections through which an engine reads a database: DuckDB in this process, or one behind a pipe."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from dpsql.engine.settings import SETTINGS

_AGGREGATE_ONLY = "DPSQL_AGGREGATE_ONLY"
"""Environment variable that the library looks at when it is loaded."""

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


class Connection(Protocol):
    """A database."""

    def home(self) -> tuple[str, str]:
        """Database and schema in which a name without either is looked for."""

    def pinned(self) -> contextlib.AbstractContextManager[Cursor]:
        """A cursor for some queries."""

    def load_native(self) -> None:
        """Load the native aggregate, if it can be."""


class LocalConnection:
    """DuckDB in this process, read through cursors of the curator's connection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, native_library: Path | None) -> None:
        self._connection = connection
        self._native_library = native_library

    def home(self) -> tuple[str, str]:
        """Where the curator's ``USE`` points."""
        with contextlib.closing(self._connection.cursor()) as cursor:
            ((database, schema),) = cursor.execute("SELECT current_database(), current_schema()").fetchall()
        return str(database), str(schema)

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

    def load_native(self) -> None:
        """Load the library, which DuckDB does where it was opened with ``allow_unsigned_extensions``.

        Only for its aggregate: for the shell it would hold connections, and with them the database open.
        """
        if self._native_library is not None:
            with (
                _set_while_loading(),
                contextlib.suppress(duckdb.Error),
                contextlib.closing(self._connection.cursor()) as cursor,
            ):
                cursor.load_extension(str(self._native_library))


_LOADING = threading.Lock()


@contextlib.contextmanager
def _set_while_loading() -> Iterator[None]:
    # the environment is one for all threads
    with _LOADING:
        os.environ[_AGGREGATE_ONLY] = "1"
        try:
            yield
        finally:
            del os.environ[_AGGREGATE_ONLY]


class _LocalCursor:
    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor

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
