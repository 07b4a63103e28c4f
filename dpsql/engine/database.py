"""The curator's DuckDB: names and types for planning, one bounded query for aggregation.

The only way from raw rows into this program is ``Engine.aggregate``; its result goes to the noise and nowhere else.
``Engine.sizes`` says how large the data are, by which nothing but the speed of the next query is decided.

``Engine.run_empty`` tries a query on empty copies of the tables that it reads: whatever fails there fails whatever the
rows are. The optimizer computes some constants where no TRY catches what fails. That is a fact of the text, the catalog
and the settings alone, and is found here before anything is charged. The copies are temporary tables of the cursor
itself, so that the database that will run the query tries it: its version, its extensions, its settings. An engine
remembers what ran, and does not try it again while the definitions of the tables stay as they are.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import duckdb
import pyarrow as pa

from dpsql.bound.aggregation import LISTED_KEYS
from dpsql.bound.formulations import NATIVE_PROBE
from dpsql.engine.catalog import PLACE, Catalog
from dpsql.engine.connection import Connection, Cursor, LocalConnection, interrupt_after
from dpsql.engine.listing import ListedTable, list_tables
from dpsql.engine.one_row import table_of_one_row
from dpsql.errors import EngineError, SchemaError
from dpsql.model.environment import TableSchema
from dpsql.operations.dialect import quote, text_literal

_T = TypeVar("_T")

_ROWS_OF_A_PIECE = 2**17
_MOST_TRIALS = 4096
"""Trials that an engine remembers, the oldest forgotten first."""
_LARGEST_BOUND = 2.0**53
_NARROWEST = 2.0**-20
"""Smallest width of bounds, as a part of the larger of them."""
_SMALLEST_WIDTH = 2.0**-60


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ExactTable:
    """Exact values on their way to the noise: a wrapper whose text shows nothing."""

    _table: pa.Table

    def __repr__(self) -> str:
        return "ExactTable(…)"

    def reveal(self) -> pa.Table:
        """The table itself; called by the release step only."""
        return self._table


class DuckDBEngine(Catalog):
    """The curator's own database, read through cursors with pinned settings."""

    def __init__(self, connection: Connection | duckdb.DuckDBPyConnection, native_library: Path | None = None) -> None:
        if isinstance(connection, duckdb.DuckDBPyConnection):
            connection = LocalConnection(connection, native_library)
        super().__init__(connection)
        self._reading_cursors: list[Cursor] = []
        self._matches: dict[tuple[object, ...], tuple[object, int]] = {}
        self._trials: dict[str, None] = {}
        self._remembering = threading.Lock()

    def session_zone(self) -> str:
        """Return the time zone of the curator's session."""
        return self._connection.time_zone()

    def listed(self, wanted: Collection[str]) -> dict[str, ListedTable]:
        """Return the tables and views of some identities, by identity; one that is not there has no entry."""
        return list_tables(self._connection, wanted)

    def column_values(self, schema: TableSchema, column: str, key_type: str) -> pa.Array:
        """Distinct non-NULL values of a public table's column as ``key_type``, sorted."""
        with self._connection.pinned() as cursor:
            name = quote(column)
            table = cursor.table(
                f"SELECT DISTINCT TRY(CAST({name} AS {key_type})) AS key FROM {schema.relation} "
                f"WHERE TRY(CAST({name} AS {key_type})) IS NOT NULL ORDER BY key"
            )
        return table.column("key").combine_chunks()

    def most_matches(self, schema: TableSchema, columns: Sequence[str], version: str | None) -> int:
        """Most rows of a public table that agree on some columns, none of them NULL.

        Counted once for a version of the table and its number of rows, as long as this engine lives: it takes a pass
        over the table, and every plan asks. Rows that change in place are counted again under a new version.
        """
        if version is None:
            return self._count_matches(schema, columns)
        sizes = self._look_up(
            f"SELECT table_oid, estimated_size FROM duckdb_tables() WHERE {PLACE}", schema.catalog_name
        )
        place = (schema.catalog_name, schema.relation, tuple(sorted(columns)))
        known = self._matches.get(place)
        if known is None or known[0] != (version, sizes):
            known = ((version, sizes), self._count_matches(schema, columns))
            self._matches[place] = known
        return known[1]

    def _count_matches(self, schema: TableSchema, columns: Sequence[str]) -> int:
        names = ", ".join(quote(column) for column in columns)
        known = " AND ".join(f"{quote(column)} IS NOT NULL" for column in columns)
        ((most,),) = self._look_up(
            f"SELECT max(n) FROM (SELECT count(*) AS n FROM {schema.relation} WHERE {known} GROUP BY {names})"
        )
        return int(most or 0)

    def value_bounds(self, schema: TableSchema, column: str) -> tuple[float, float] | None:
        """Return the least and the largest finite number of a public table's column.

        Return None if there is none, or if numbers are too large, or too far from 0 for their width, to bound a sum.
        """
        number = f"CAST({quote(column)} AS DOUBLE)"
        ((low, high),) = self._look_up(
            f"SELECT min({number}), max({number}) FROM {schema.relation} WHERE isfinite({number})"
        )
        if low is None:
            return None
        largest = max(abs(low), abs(high))
        width = (high - low) or largest
        is_usual = largest <= _LARGEST_BOUND and width >= max(largest * _NARROWEST, _SMALLEST_WIDTH)
        return (float(low), float(high)) if is_usual or largest == 0.0 else None

    def run_empty(self, queries: Sequence[str], *, listed_keys: pa.Table | None) -> None:
        """Run bounded queries on empty copies of their tables, unless they ran on copies of the same definitions.

        Raises:
            SchemaError: one fails; the message is constant.
            EngineError: the thread was told to stop.

        """
        failed = False
        with self._connection.pinned() as cursor, interrupt_after(None, cursor.interrupt) as expired:
            try:
                if listed_keys is not None:
                    cursor.offer(LISTED_KEYS, listed_keys)
                cursor.rows("BEGIN TRANSACTION")
                try:
                    self._try(cursor, queries, listed_keys)
                finally:
                    cursor.rows("ROLLBACK")
            except Exception:
                failed = True
        if expired.is_set():
            raise _failure(expired)
        # raised outside the handler, as in _run: keys of a frame may be listed
        if failed:
            raise SchemaError("the database cannot run this query, whatever the rows are.")

    def _try(self, cursor: Cursor, queries: Sequence[str], listed_keys: pa.Table | None) -> None:
        """Run queries on empty copies if this engine has not, and remember that they run."""
        copied = _copied(cursor, queries)
        trial = _trial(queries, copied, listed_keys)
        if trial in self._trials:
            return
        run_empty(cursor, queries, copied)
        with self._remembering:
            self._trials[trial] = None
            if len(self._trials) > _MOST_TRIALS:
                del self._trials[next(iter(self._trials))]

    def aggregate(self, sql: str, *, listed_keys: pa.Table | None, timeout_seconds: float | None) -> ExactTable:
        """Run the bounded query and return its exact groups.

        Raises:
            EngineError: it failed or ran out of time; the message is constant.

        """
        return ExactTable(self._run(lambda cursor: cursor.table(sql), listed_keys, timeout_seconds))

    def aggregate_units(
        self,
        stored_unit: Sequence[str],
        sql: Callable[[bool], str],
        *,
        listed_keys: pa.Table | None,
        timeout_seconds: float | None,
    ) -> ExactTable:
        """Run the bounded query that fits the constraints of its table, and return its exact groups.

        The transaction that reads the rows reads the constraint.

        Args:
            stored_unit: database, schema, table and column that hold the unit, if there is such a column.
            sql: writes the query; of units with one row each, if its argument is true.
            listed_keys: as for ``aggregate``.
            timeout_seconds: as for ``aggregate``.

        Raises:
            EngineError: as ``aggregate``.

        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        if stored_unit:
            found = self._run(lambda cursor: table_of_one_row(cursor, stored_unit, sql), listed_keys, timeout_seconds)
            if found is not None:
                return ExactTable(found)
        text = sql(False)
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        return self.aggregate(text, listed_keys=listed_keys, timeout_seconds=left)

    def sizes(self, sql: str, *, listed_keys: pa.Table | None, timeout_seconds: float | None) -> tuple[int, ...]:
        """Run a query of one row of approximate sizes.

        They decide how the bounded query is written, and not what it returns.

        Raises:
            EngineError: as ``aggregate``.

        """
        (row,) = self._run(lambda cursor: cursor.rows(sql), listed_keys, timeout_seconds)
        return row

    @functools.cached_property
    def has_native(self) -> bool:
        """Whether the native aggregate can be called; loads the library where this is the first time it is asked.

        A library that does not answer the probe, of another version say, is as good as none.
        """
        probe, expected = NATIVE_PROBE
        self._connection.load_native()
        with contextlib.suppress(duckdb.Error), self._connection.pinned() as cursor:
            return cursor.rows(probe) == [expected]
        return False

    def progress(self) -> float | None:
        """How much of the reading that began last is done, 0 to 1; from another thread.

        None where nothing is read, or it is not known. It follows the rows: for the curator alone.
        """
        # a copy, for others come and go
        last = self._reading_cursors[-1:]
        return last[0].progress() if last else None

    @contextlib.contextmanager
    def _reading(self, timeout_seconds: float | None) -> Iterator[tuple[Cursor, threading.Event]]:
        """A cursor whose progress can be asked for, and whether its time ran out."""
        with self._connection.pinned() as cursor:
            # before the clock runs: DuckDB's own error would pass here
            cursor.count_progress()
            with interrupt_after(timeout_seconds, cursor.interrupt) as expired:
                self._reading_cursors.append(cursor)
                try:
                    yield cursor, expired
                finally:
                    self._reading_cursors.remove(cursor)

    def _run(self, read: Callable[[Cursor], _T], listed_keys: pa.Table | None, timeout_seconds: float | None) -> _T:
        failed = False
        with self._reading(timeout_seconds) as (cursor, expired):
            try:
                if listed_keys is not None:
                    cursor.offer(LISTED_KEYS, listed_keys)
                found = read(cursor)
            except Exception:
                failed = True
        # raised outside the handler: a handled error travels along as __context__, with the row values that it quotes
        if failed or expired.is_set():
            raise _failure(expired)
        return found

    def stream(self, sql: str, *, timeout_seconds: float | None) -> Generator[ExactTable, None, None]:
        """Run a bounded query and read its rows piece by piece, in their order and as they are asked for.

        DuckDB keeps to its memory_limit, sorting on disk where it must, and Python holds one piece. Where pieces end
        means nothing and may depend on the data. There is at least one, so that the columns are known. A reader that
        stops before the end closes the iterator, which ends the query; the time runs until then.

        Raises:
            EngineError: it failed or ran out of time; the message is constant.

        """
        failed = False
        with self._reading(timeout_seconds) as (cursor, expired):
            pieces = cursor.pieces(sql, _ROWS_OF_A_PIECE)
            while True:
                try:
                    piece = next(pieces, None)
                except Exception:
                    failed = True
                    break
                if piece is None:
                    break
                yield ExactTable(piece)
        # raised outside the handler, as in aggregate
        if failed or expired.is_set():
            raise _failure(expired)


Engine = DuckDBEngine
"""What the steps of a query are handed; they ask of a database what its methods answer, and nothing else."""


def _failure(expired: threading.Event) -> EngineError:
    return EngineError.out_of_time() if expired.is_set() else EngineError("the engine could not run the query")


_NAME = r'"(?:[^"]|"")*"'
_PLACE = re.compile(rf"{_NAME}\.{_NAME}\.({_NAME})")
"""Database, schema and table."""
_ALL_DEFINITIONS = (
    "SELECT md5(string_agg(sql, ' ' ORDER BY sql)) FROM (SELECT sql, temporary FROM duckdb_tables() "
    "UNION ALL SELECT sql, temporary FROM duckdb_views() WHERE NOT internal) WHERE NOT temporary"
)
"""A digest of the definitions of all tables and views: a view may read any of them."""
_TOKEN = re.compile(rf"'(?:[^']|'')*'|{_NAME}(?:\.{_NAME})*")
"""A text, or a name of quoted parts: all that can hold a quotation mark in what is rendered."""


@dataclass(frozen=True, slots=True)
class _Copied:
    """A table or view of which an empty copy is made.

    Attributes:
        definition: the statement that made it; for a view with the definitions of all that it may read.
        columns: its columns with their types, if some are computed; else empty.

    """

    definition: str
    columns: str


def run_empty(cursor: Cursor, queries: Sequence[str], copied: Mapping[str, _Copied]) -> None:
    """Run queries on empty copies of their tables, one after another; no row of any table is read.

    Args:
        cursor: a cursor in a transaction, which ends without a commit.
        queries: the queries.
        copied: their tables and views, by name.

    Raises:
        Exception: what the database says of the first that fails.

    """
    copies = {place: f"temp.main.dpsql_empty_{i}" for i, place in enumerate(copied)}
    for place, table in copied.items():
        content = f"({table.columns})" if table.columns else f"AS SELECT * FROM {place} LIMIT 0"
        cursor.rows(f"CREATE TEMP TABLE {copies[place]} {content}")
    for sql in queries:
        if any(table.columns for table in copied.values()):
            # without the collations of what is computed; the binder, which knows of no row, has them
            cursor.rows(f"DESCRIBE {sql}")
        cursor.rows(_TOKEN.sub(lambda token: copies.get(token[0], token[0]), sql))


def _copied(cursor: Cursor, queries: Sequence[str]) -> dict[str, _Copied]:
    """Return the tables and views that queries read, by name.

    CREATE TABLE AS takes types and collations of a table over, and its LIMIT leaves nothing to compute. What a view
    computes may be folded by the rows below it before the LIMIT is seen: of that, only names and types are asked.
    """
    found = [place for sql in queries for place in map(_PLACE.fullmatch, _TOKEN.findall(sql)) if place]
    named = {place[0]: place[1][1:-1].replace('""', '"') for place in found}
    copied: dict[str, _Copied] = {}
    # views are listed only where a name is no table's
    for kind in ("table", "view"):
        if named:
            rows = cursor.rows(
                f"SELECT database_name, schema_name, {kind}_name, sql, sql ILIKE '%generated%' FROM duckdb_{kind}s() "
                f"WHERE {kind}_name IN ({', '.join(map(text_literal, sorted(set(named.values()))))})"
            )
            for *parts, sql, is_computed in rows:
                place = ".".join(map(quote, parts))
                if named.pop(place, None) is None:
                    continue
                columns, definition = "", sql
                if is_computed or kind == "view":
                    described = cursor.rows(f"SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM {place})")
                    columns = ", ".join(f"{quote(str(name))} {of}" for name, of in described)
                if kind == "view":
                    ((definition,),) = cursor.rows(_ALL_DEFINITIONS)
                copied[place] = _Copied(str(definition), columns)
    return dict(sorted(copied.items()))


def _trial(queries: Sequence[str], copied: Mapping[str, _Copied], listed_keys: pa.Table | None) -> str:
    """Return a digest of all that decides whether queries run on empty copies."""
    digest = hashlib.sha256(repr((tuple(queries), sorted(copied.items()))).encode())
    if listed_keys is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, listed_keys.schema) as stream:
            stream.write_table(listed_keys)
        digest.update(sink.getvalue())
    return digest.hexdigest()
