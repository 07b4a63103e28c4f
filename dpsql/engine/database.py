"""DuckDB behind a small protocol: names and types for planning, one bounded query for aggregation.

The only way from raw rows into this program is ``Engine.aggregate``; its result goes to the noise and nowhere else.
``Engine.sizes`` says how large the data are, by which nothing but the speed of the next query is decided.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import duckdb
import pyarrow as pa

from dpsql.engine.catalog import TABLES, VIEWS, CatalogRow, canonical_name, named, table_schema
from dpsql.engine.connection import Connection, Cursor, LocalConnection
from dpsql.engine.empty import run_empty
from dpsql.engine.interrupts import interrupt_after
from dpsql.engine.marks import Mark, read_marks
from dpsql.engine.settings import BYTEWISE, SETTINGS
from dpsql.errors import EngineError, SchemaError
from dpsql.query.bound import LISTED_KEYS
from dpsql.query.dialect import quote
from dpsql.query.environment import TableSchema, folded
from dpsql.query.kept import NATIVE_PROBE, Sizes

_T = TypeVar("_T")

_ROWS_OF_A_PIECE = 2**17

_COLLATED = re.compile(r" COLLATE ([^\s()]+)")


class ExactTable:
    """Exact values on their way to the noise: a wrapper whose text shows nothing."""

    __slots__ = ("_table",)

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __repr__(self) -> str:
        return "ExactTable(…)"

    def reveal(self) -> pa.Table:
        """The table itself; called by the release step only."""
        return self._table


class Engine(Protocol):
    """What the eight steps need of a database."""

    def settings(self) -> tuple[tuple[str, str], ...]:
        """Settings that the value of an expression depends on, as they are for the next query."""

    def resolve(self, parts: Sequence[str]) -> TableSchema | None:
        """Table or view that a name means on the curator's connection."""

    def find(self, canonical: str, *, views: bool = False) -> TableSchema | None:
        """Base table of this identity, or a view where views are asked for, too."""

    def is_base_table(self, schema: TableSchema) -> bool:
        """Whether a resolved name is a base table and not a view."""

    def view_text(self, schema: TableSchema) -> str | None:
        """The statement that made a view of the curator's own schema; None for what is none."""

    def unique_columns(self, schema: TableSchema) -> tuple[tuple[str, ...], ...]:
        """Sets of columns of a base table that a constraint keeps unique, each together, where none of them is NULL."""

    def tables_read(self, schema: TableSchema) -> tuple[str, ...]:
        """Names of the base tables that a view reads, through other views and macros too, as DuckDB writes names."""

    def is_unique(self, schema: TableSchema, columns: Sequence[str]) -> bool:
        """Whether a constraint keeps these columns of a base table unique together."""

    def collation(self, schema: TableSchema, column: str) -> str | None:
        """Collation that may hold different texts of a column equal; None where bytes decide."""

    def column_values(self, schema: TableSchema, column: str, key_type: str) -> pa.Array:
        """Distinct values of a column of a public table, sorted."""

    def most_matches(self, schema: TableSchema, columns: Sequence[str], version: str | None) -> int:
        """Most rows of a public table that agree on some columns, or of other public rows, which have no version."""

    def run_empty(self, queries: Sequence[str], *, listed_keys: pa.Table | None) -> None:
        """Raise SchemaError if one of some bounded queries cannot be run, whatever the rows are; reads none."""

    def aggregate(self, sql: str, *, listed_keys: pa.Table | None, timeout_seconds: float | None) -> ExactTable:
        """Run the bounded query."""

    def stream(self, sql: str, *, timeout_seconds: float | None) -> Generator[ExactTable, None, None]:
        """Run a bounded query and read its rows piece by piece."""

    def sizes(self, sql: str, *, listed_keys: pa.Table | None, timeout_seconds: float | None) -> Sizes:
        """Approximate sizes, which decide how the bounded query is written and not what it returns."""

    def marks(self, tables: Sequence[str]) -> dict[str, Mark]:
        """Marks of tables, by their canonical names: for the curator alone."""

    def has_native(self) -> bool:
        """Whether the native aggregate can be called."""

    def progress(self) -> float | None:
        """How much of the reading that began last is done, 0 to 1; None where nothing is read, or it is not known.

        It follows the rows: for the curator alone.
        """


class DuckDBEngine:
    """The curator's own database, read through cursors with pinned settings."""

    def __init__(self, connection: Connection | duckdb.DuckDBPyConnection, native_library: Path | None = None) -> None:
        if isinstance(connection, duckdb.DuckDBPyConnection):
            connection = LocalConnection(connection, native_library)
        self._connection = connection
        self._has_native: bool | None = None
        self._reading_cursors: list[Cursor] = []
        self._matches: dict[tuple[object, ...], tuple[object, int]] = {}

    def settings(self) -> tuple[tuple[str, str], ...]:
        """The pinned settings, and the instance's default collation."""
        with self._connection.pinned() as cursor:
            ((collation,),) = cursor.rows("SELECT current_setting('default_collation')")
        return (*SETTINGS, ("default_collation", str(collation)))

    def resolve(self, parts: Sequence[str]) -> TableSchema | None:
        """Table or view that ``[catalog.][schema.]table`` means, with its columns; None where there is none.

        DuckDB's catalog answers on a cursor of the curator's connection, so that ``USE`` and the search path of the
        instance's defaults apply; no row is read.
        """
        database, home = self._connection.home()
        *prefix, name = parts
        with self._connection.pinned() as cursor:
            prefixes = self._prefixes_of(cursor, database)
            rows = [row for row in _catalog_rows(cursor, name) if folded(row[2]) == folded(name)]
        match prefix:
            case []:
                rows = [row for row in rows if row[:2] == (database, home)]
            case [first]:
                in_schema = named(first, [row for row in rows if row[0] == database], 1)
                rows = in_schema or named(first, [row for row in rows if row[1] == "main"], 0)
            case [catalog, schema]:
                rows = named(schema, named(catalog, rows, 0), 1)
            case _:
                return None
        rows = named(name, rows, 2)
        return table_schema(rows, prefixes) if rows else None

    def find(self, canonical: str, *, views: bool = False) -> TableSchema | None:
        """Base table of this identity, or a view, whatever its database is called now; None where there is none."""
        home, _ = self._connection.home()
        with self._connection.pinned() as cursor:
            prefixes = self._prefixes_of(cursor, home)
            rows = cursor.rows(TABLES + (f" UNION ALL {VIEWS}" if views else ""))
        place = next((row[:3] for row in rows if canonical_name(row[:3], prefixes) == canonical), None)
        return None if place is None else self.resolve(place)

    @staticmethod
    def _prefixes_of(cursor: Cursor, home: str) -> dict[str, str]:
        """What stands for a database in identities: nothing for the curator's own, else its path."""
        rows = cursor.rows("SELECT database_name, path FROM duckdb_databases()")
        return {name: "" if name == home else f"{path or name}:" for name, path in rows}

    def is_base_table(self, schema: TableSchema) -> bool:
        """Whether a resolved name is a base table and not a view."""
        with self._connection.pinned() as cursor:
            rows = cursor.rows(
                "SELECT table_name FROM duckdb_tables() WHERE (database_name, schema_name, table_name) = (?, ?, ?)",
                schema.catalog_name,
            )
        return len(rows) == 1

    def view_text(self, schema: TableSchema) -> str | None:
        """The statement that made a view of the curator's own schema; None for what is none.

        In another schema the names in it could mean other tables there than they do here.
        """
        if schema.catalog_name[:2] != self._connection.home():
            return None
        with self._connection.pinned() as cursor:
            rows = cursor.rows(
                "SELECT sql FROM duckdb_views() WHERE (database_name, schema_name, view_name) = (?, ?, ?)",
                schema.catalog_name,
            )
        return str(rows[0][0]) if rows else None

    def tables_read(self, schema: TableSchema) -> tuple[str, ...]:
        """Names of the base tables that a view reads, as DuckDB writes names.

        They stand in the plan as it is before the optimizer has left any out. No row is read for it.

        Raises:
            EngineError: the view cannot be read.

        """
        plans: list[tuple[str, str]] = []
        with contextlib.suppress(duckdb.Error), self._connection.pinned() as cursor:
            cursor.rows("SET explain_output = 'all'")
            try:
                plans = cursor.rows(f"EXPLAIN (FORMAT json) SELECT * FROM {schema.relation}")
            finally:
                cursor.rows("RESET explain_output")
        text = dict(plans).get("logical_plan")
        if text is None:
            raise EngineError(f"the engine could not read {schema.canonical!r}", charged=False)
        return tuple(dict.fromkeys(_scanned(json.loads(text))))

    def unique_columns(self, schema: TableSchema) -> tuple[tuple[str, ...], ...]:
        """The columns of each PRIMARY KEY or UNIQUE constraint, as they are now."""
        with self._connection.pinned() as cursor:
            rows = cursor.rows(
                "SELECT constraint_column_names FROM duckdb_constraints() WHERE "
                "(database_name, schema_name, table_name) = (?, ?, ?) AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')",
                schema.catalog_name,
            )
        return tuple(sorted({tuple(sorted(names)) for (names,) in rows}))

    def is_unique(self, schema: TableSchema, columns: Sequence[str]) -> bool:
        """Whether a PRIMARY KEY or UNIQUE constraint is over just these columns, or some of them."""
        return any(set(names) <= set(columns) for names in self.unique_columns(schema))

    def collation(self, schema: TableSchema, column: str) -> str | None:
        """Collation of a column, or the instance's own, that may hold different texts equal; None where bytes decide.

        A table made with LIMIT 0 takes a column's collation over, through views too, and reads no row for it.

        Raises:
            EngineError: the column cannot be read.

        """
        definitions: list[tuple[str]] = []
        with contextlib.suppress(duckdb.Error), self._connection.pinned() as cursor:
            cursor.rows(
                f"CREATE OR REPLACE TEMP TABLE temp.main.collated AS "
                f"SELECT {quote(column)} AS unit FROM {schema.relation} LIMIT 0"
            )
            definitions = cursor.rows("SELECT sql FROM duckdb_tables() WHERE table_name = 'collated' AND temporary")
        if not definitions:
            raise EngineError(f"the engine could not read column {column!r}", charged=False)
        named = [*_COLLATED.findall(definitions[0][0]), dict(self.settings())["default_collation"]]
        return next((name for name in named if folded(name) not in BYTEWISE), None)

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
        with self._connection.pinned() as cursor:
            sizes = cursor.rows(
                "SELECT table_oid, estimated_size FROM duckdb_tables() "
                "WHERE (database_name, schema_name, table_name) = (?, ?, ?)",
                schema.catalog_name,
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
        with self._connection.pinned() as cursor:
            ((most,),) = cursor.rows(
                f"SELECT max(n) FROM (SELECT count(*) AS n FROM {schema.relation} WHERE {known} GROUP BY {names})"
            )
        return int(most or 0)

    def run_empty(self, queries: Sequence[str], *, listed_keys: pa.Table | None) -> None:
        """Run bounded queries on empty copies of their tables.

        Raises:
            SchemaError: one fails; the message is constant.
            EngineError: the thread was told to stop.

        """
        failed = False
        with self._connection.pinned() as cursor, interrupt_after(None, cursor.interrupt) as expired:
            try:
                if listed_keys is not None:
                    cursor.offer(LISTED_KEYS, listed_keys)
                run_empty(cursor, queries)
            except Exception:
                failed = True
        if expired.is_set():
            raise _failure(expired)
        # raised outside the handler, as in _run: keys of a frame may be listed
        if failed:
            raise SchemaError("the database cannot run this query, whatever the rows are.")

    def aggregate(self, sql: str, *, listed_keys: pa.Table | None, timeout_seconds: float | None) -> ExactTable:
        """Run the bounded query and return its exact groups.

        Raises:
            EngineError: it failed or ran out of time; the message is constant.

        """
        return ExactTable(self._run(lambda cursor: cursor.table(sql), listed_keys, timeout_seconds))

    def sizes(self, sql: str, *, listed_keys: pa.Table | None, timeout_seconds: float | None) -> Sizes:
        """Run a query of four numbers.

        Raises:
            EngineError: as ``aggregate``.

        """
        (row,) = self._run(lambda cursor: cursor.rows(sql), listed_keys, timeout_seconds)
        return Sizes(*row)

    def marks(self, tables: Sequence[str]) -> dict[str, Mark]:
        """Marks of tables and views as they are now; those that are not there, or cannot be read, have none."""
        with contextlib.suppress(duckdb.Error):
            home, _ = self._connection.home()
            with self._connection.pinned() as cursor:
                return read_marks(cursor, tables, self._prefixes_of(cursor, home))
        return {}

    def has_native(self) -> bool:
        """Whether the native aggregate can be called; loads the library where this is the first time it is asked.

        A library that does not answer the probe, of another version say, is as good as none.
        """
        if self._has_native is None:
            probe, expected = NATIVE_PROBE
            found = None
            self._connection.load_native()
            with contextlib.suppress(duckdb.Error), self._connection.pinned() as cursor:
                found = cursor.rows(probe)
            self._has_native = found == [expected]
        return self._has_native

    def progress(self) -> float | None:
        """How much of the reading that began last is done; from another thread."""
        # a copy, for others come and go
        last = self._reading_cursors[-1:]
        return last[0].progress() if last else None

    @contextlib.contextmanager
    def _reading(self, timeout_seconds: float | None) -> Iterator[tuple[Cursor, threading.Event]]:
        """A cursor whose progress can be asked for, and whether its time ran out."""
        with self._connection.pinned() as cursor, interrupt_after(timeout_seconds, cursor.interrupt) as expired:
            cursor.count_progress()
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


def _catalog_rows(cursor: Cursor, name: str) -> list[CatalogRow]:
    return cursor.rows(
        "SELECT database_name, schema_name, table_name, column_name, data_type, is_nullable "
        # lower() folds all letters: more than DuckDB does for names
        "FROM duckdb_columns() WHERE lower(table_name) = lower(?) AND NOT internal "
        "AND database_name <> 'temp' ORDER BY database_name, schema_name, table_name, column_index",
        [name],
    )


def _failure(expired: threading.Event) -> EngineError:
    return EngineError.out_of_time() if expired.is_set() else EngineError("the engine could not run the query")


def _scanned(plan: object) -> Iterator[str]:
    """Tables that a plan scans, wherever they stand in it."""
    if isinstance(plan, list):
        for part in plan:
            yield from _scanned(part)
    elif isinstance(plan, dict):
        details = plan.get("extra_info")
        name = details.get("Table") if isinstance(details, dict) else None
        if isinstance(name, str):
            yield name
        yield from _scanned(plan.get("children"))
