"""DuckDB's catalog: identities of tables, what of their columns may be computed with, and marks of tables.

The mark of a table is what is cheap to see of it, and seldom stays the same where its rows do not. Of a table these are
its columns and its number of rows, which DuckDB keeps; of a view the same of the tables in it, and size and time of the
files that it reads. An update in place that leaves the number of rows is not seen. A mark tells of rows: it is for the
curator alone, and nothing but words to the curator may depend on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import duckdb

from dpsql.engine.connection import BYTEWISE, SETTINGS, Connection, Cursor
from dpsql.errors import EngineError
from dpsql.model.environment import Column, TableSchema, folded
from dpsql.operations.dialect import quote, text_literal
from dpsql.sql.view_sources import view_sources

_COLLATED = re.compile(r' COLLATE (?:"([^"]+)"|([^\s()"]+))')
"""A collation in a definition that DuckDB writes: quoted where its name is a keyword, from 2.0.1 on."""
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_ENUM = re.compile(r"\bENUM\(")
_MEMBER = re.compile(r"'((?:[^']|'')*)'")
_UNSAFE_TYPE = re.compile(r"\bBIGNUM\b|\bVARIANT\b|\bGEOMETRY\b|\bUNION\(")

CatalogRow = tuple[str, str, str, str, str, bool]
"""Database, schema, table, column, its type, and whether NULL may occur."""

HIDDEN_SCHEMA = "dpsql_hidden"
"""Schema of dpsql's own table (`engine/age_table.py`), which no listing and no name leads to."""
SHOWN = f"schema_name <> '{HIDDEN_SCHEMA}'"
"""Condition that leaves this schema out."""

TABLES = (
    "SELECT database_name, schema_name, table_name, NULL FROM duckdb_tables() "
    f"WHERE NOT (internal OR temporary) AND {SHOWN}"
)
"""Database, schema and name of every table of the curator."""

VIEWS = "SELECT database_name, schema_name, view_name, sql FROM duckdb_views() WHERE NOT (internal OR temporary)"
"""The same of every view, with its text."""

_COLUMNS = (
    "SELECT database_name, schema_name, table_name, column_name, data_type, is_nullable "
    # lower() folds all letters: more than DuckDB does for names
    "FROM duckdb_columns() WHERE lower(table_name) = lower(?) AND NOT internal "
    f"AND database_name <> 'temp' AND {SHOWN} ORDER BY database_name, schema_name, table_name, column_index"
)
PLACE = "(database_name, schema_name, table_name) = (?, ?, ?)"
"""Condition on the place of a table, for question marks."""


def named(name: str, rows: list[CatalogRow], place: int) -> list[CatalogRow]:
    """Rows that carry a name at a place as it is written; where there is none, as DuckDB compares it."""
    exact = [row for row in rows if row[place] == name]
    return exact or [row for row in rows if folded(str(row[place])) == folded(name)]


def canonical_name(place: tuple[str, str, str], prefixes: dict[str, str]) -> str:
    """Identity of a table of any database: the prefix of its database, and `identity`."""
    return prefixes[place[0]] + identity(place[1:])


def prefix_of(name: str, path: str | None, home: str) -> str:
    """Return the part of identities for a database: nothing for the curator's own, else its path."""
    return "" if name == home else f"{path or name}:"


def identity(place: Sequence[str]) -> str:
    """Identity of a table of the curator's own database: names that are not plain, with a dot in them, are quoted."""
    names = (folded(part) for part in place)
    return ".".join(name if _PLAIN_NAME.fullmatch(name) else quote(name) for name in names)


class Catalog:
    """What a database says of its tables and views: names, types, constraints, collations; no row is read for it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _look_up(self, sql: str, parameters: Sequence[str] = ()) -> list[tuple[Any, ...]]:
        with self._connection.pinned() as cursor:
            return cursor.rows(sql, parameters)

    def settings(self) -> tuple[tuple[str, str], ...]:
        """The pinned settings, and the instance's default collation."""
        ((collation,),) = self._look_up("SELECT current_setting('default_collation')")
        return (*SETTINGS, ("default_collation", str(collation)))

    def resolve(self, parts: Sequence[str]) -> TableSchema | None:
        """Table or view that ``[catalog.][schema.]table`` means, with its columns; None where there is none.

        DuckDB's catalog answers on a cursor of the curator's connection, so that ``USE`` and the search path of the
        instance's defaults apply; no row is read.
        """
        database, home = self._connection.home()
        *prefix, name = parts
        with self._connection.pinned() as cursor:
            prefixes = self.prefixes_of(cursor, database)
            rows = [row for row in cursor.rows(_COLUMNS, [name]) if folded(row[2]) == folded(name)]
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
        if not rows:
            return None
        place = rows[0][:3]
        columns = [Column(*row[3:]) for row in rows if row[:3] == place]
        relation, seen = readable(".".join(map(quote, place)), columns)
        return TableSchema(canonical_name(place, prefixes), relation, seen, catalog_name=place)

    def find(self, canonical: str, *, views: bool = False) -> TableSchema | None:
        """Base table of this identity, or a view, whatever its database is called now; None where there is none."""
        home, _ = self._connection.home()
        with self._connection.pinned() as cursor:
            prefixes = self.prefixes_of(cursor, home)
            rows = cursor.rows(TABLES + (f" UNION ALL {VIEWS}" if views else ""))
        place = next((row[:3] for row in rows if canonical_name(row[:3], prefixes) == canonical), None)
        return None if place is None else self.resolve(place)

    @staticmethod
    def prefixes_of(cursor: Cursor, home: str) -> dict[str, str]:
        """What stands for a database in identities: nothing for the curator's own, else its path."""
        rows = cursor.rows("SELECT database_name, path FROM duckdb_databases()")
        return {name: prefix_of(name, path, home) for name, path in rows}

    def is_base_table(self, schema: TableSchema) -> bool:
        """Whether a resolved name is a base table and not a view."""
        return len(self._look_up(f"SELECT table_name FROM duckdb_tables() WHERE {PLACE}", schema.catalog_name)) == 1

    def view_text(self, schema: TableSchema) -> str | None:
        """The statement that made a view of the curator's own schema; None for what is none.

        In another schema the names in it could mean other tables there than they do here.
        """
        if schema.catalog_name[:2] != self._connection.home():
            return None
        rows = self._look_up(
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
        rows = self._look_up(
            f"SELECT constraint_column_names FROM duckdb_constraints() WHERE {PLACE} "
            "AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')",
            schema.catalog_name,
        )
        return tuple(sorted({tuple(sorted(names)) for (names,) in rows}))

    def primary_key(self, schema: TableSchema) -> tuple[str, ...]:
        """Return the columns of the PRIMARY KEY, sorted, or nothing if there is none."""
        rows = self._look_up(
            "SELECT list_sort(constraint_column_names) FROM duckdb_constraints() "
            f"WHERE {PLACE} AND constraint_type = 'PRIMARY KEY'",
            schema.catalog_name,
        )
        return tuple(rows[0][0]) if rows else ()

    def references(self, schema: TableSchema, columns: Sequence[str], other: TableSchema) -> bool:
        """Return True if a FOREIGN KEY leads from just these columns of a table to another table of its schema."""
        rows = self._look_up(
            "SELECT constraint_column_names, referenced_table FROM duckdb_constraints() "
            f"WHERE {PLACE} AND constraint_type = 'FOREIGN KEY'",
            schema.catalog_name,
        )
        return schema.catalog_name[:2] == other.catalog_name[:2] and any(
            set(names) == set(columns) and folded(table) == folded(other.catalog_name[2]) for names, table in rows
        )

    def is_unique(self, schema: TableSchema, columns: Sequence[str]) -> bool:
        """Whether a PRIMARY KEY or UNIQUE constraint is over just these columns, or some of them."""
        return any(set(names) <= set(columns) for names in self.unique_columns(schema))

    def unit_constraint(self, stored_unit: Sequence[str]) -> str:
        """Return the constraint that keeps the unit column unique, as SQL; or nothing if there is none.

        Args:
            stored_unit: database, schema, table and column that hold the unit, if there is such a column.

        """
        if not stored_unit:
            return ""
        with self._connection.pinned() as cursor:
            return unique_by(cursor, stored_unit)

    def members(self, schema: TableSchema, column: str) -> tuple[str, ...]:
        """Return the members of a column's ENUM type in their order, or nothing if it has another type."""
        found = self._look_up(
            f"SELECT data_type FROM duckdb_columns() WHERE {PLACE} AND column_name = ?", (*schema.catalog_name, column)
        )
        return tuple(one for (kind,) in found if is_enum(kind) for one in members_of(kind))

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
        found = [quoted or plain for quoted, plain in _COLLATED.findall(definitions[0][0])]
        named = [*found, dict(self.settings())["default_collation"]]
        return next((name for name in named if folded(name) not in BYTEWISE), None)

    def marks(self, tables: Sequence[str]) -> dict[str, Mark]:
        """Marks of tables and views as they are now, by their canonical names: for the curator alone.

        Those that are not there, or cannot be read, have none.
        """
        with contextlib.suppress(duckdb.Error):
            home, _ = self._connection.home()
            with self._connection.pinned() as cursor:
                return _read_marks(cursor, tables, self.prefixes_of(cursor, home))
        return {}


def unique_by(cursor: Cursor, stored_unit: Sequence[str]) -> str:
    """Return the constraint that keeps the unit column unique, as SQL; or nothing if there is none."""
    *place, column = stored_unit
    # another database may hold values in types of its own, which a constraint tells apart otherwise
    found = cursor.rows(
        "SELECT constraint_column_names, constraint_text FROM duckdb_constraints() "
        "JOIN duckdb_databases() USING (database_name) "
        f"WHERE {PLACE} AND type = 'duckdb' AND constraint_type IN ('PRIMARY KEY', 'UNIQUE') ORDER BY constraint_text",
        place,
    )
    return next((str(text) for names, text in found if [folded(name) for name in names] == [folded(column)]), "")


def is_enum(kind: str) -> bool:
    """Return True if a type is an ENUM itself, and not one that nests an ENUM."""
    return kind.startswith("ENUM(") and kind.endswith(")")


def members_of(kind: str) -> tuple[str, ...]:
    """Return the members of an ENUM type in their order.

    >>> members_of("ENUM('low', 'so, so', 'it''s high')")
    ('low', 'so, so', "it's high")
    """
    return tuple(member.replace("''", "'") for member in _MEMBER.findall(kind))


def readable(name: str, columns: Sequence[Column]) -> tuple[str, tuple[Column, ...]]:
    """Text that reads a table without what must not be computed with, and the columns as they then are.

    An ENUM's type lists its members, which may be keys that nobody was shown: in error texts, in Arrow dictionaries,
    and by the error that a comparison with a word outside the list raises. An ENUM is read as text, and columns that
    nest one are not there. Neither are BIGNUM, whose casts can fail with an internal error in spite of TRY, after which
    DuckDB refuses the whole database, and VARIANT, GEOMETRY and UNION, whose casts depend on what a row holds.
    """
    plain = [c for c in columns if is_enum(c.type)]
    left_out = [c for c in columns if c not in plain and (_ENUM.search(c.type) or _UNSAFE_TYPE.search(c.type))]
    if not left_out and not plain:
        return name, tuple(columns)
    casts = ", ".join(f"CAST({quote(c.name)} AS VARCHAR) AS {quote(c.name)}" for c in plain)
    exclude = f" EXCLUDE ({', '.join(quote(c.name) for c in left_out)})" if left_out else ""
    replace = f" REPLACE ({casts})" if casts else ""
    seen = tuple(Column(c.name, "VARCHAR", c.nullable) if c in plain else c for c in columns if c not in left_out)
    return f"(SELECT *{exclude}{replace} FROM {name})", seen


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


Mark = Mapping[str, str]
"""The parts of a mark, each by its name; a part that could not be read is not there."""

_MOST_DEPTH = 8

_Place = tuple[str, str, str]


def _read_marks(cursor: Cursor, tables: Sequence[str], prefixes: dict[str, str]) -> dict[str, Mark]:
    """The marks of tables and views, by their canonical names, which have these prefixes for their databases."""
    places: dict[_Place, str | None] = {}
    by_name: dict[str, _Place] = {}
    # the list of views takes longer, and is seldom needed
    for listed in (TABLES, VIEWS):
        if not set(tables) <= set(by_name):
            places |= {row[:3]: row[3] for row in cursor.rows(listed)}
            by_name = {canonical_name(place, prefixes): place for place in places if place[0] in prefixes}
    marks: dict[str, Mark] = {}
    for table in (name for name in tables if name in by_name):
        parts = defaultdict[str, list[str]](list)
        for name, of, sql in _mark_queries(by_name[table], places, 0):
            # a part that DuckDB cannot tell is not there
            with contextlib.suppress(duckdb.Error):
                value = repr((of, sorted(map(repr, cursor.rows(sql)))))
                parts[name].append(value)
        # one part of each name; what stands in it is nobody's to read
        marks[table] = {
            name: hashlib.sha256("\n".join(sorted(values)).encode()).hexdigest() for name, values in parts.items()
        }
    return marks


def _mark_queries(place: _Place, places: Mapping[_Place, str | None], depth: int) -> Iterator[tuple[str, str, str]]:
    """Each part of the mark of a table or view, and of what a view reads: its name, of what it is, and a query."""
    view, name = places[place], ".".join(map(quote, place))
    yield "columns", "", f"SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM {name})"
    if view is None:
        yield "number of rows", place[2], f"SELECT count(*) FROM {name}"
    elif depth < _MOST_DEPTH:
        for source in view_sources(view):
            if inner := _named(source.names, place, places):
                yield from _mark_queries(inner, places, depth + 1)
                continue
            for pattern in source.texts:
                files = f"SELECT filename, size, last_modified FROM read_blob({text_literal(pattern)})"
                yield "files", "", files


def _named(names: tuple[str, ...], view: _Place, places: Mapping[_Place, str | None]) -> _Place | None:
    """The table or view that a name in a view means."""
    whole = [folded(name) for name in (*view[: 3 - len(names)], *names)]
    return next((place for place in places if names and place != view and list(map(folded, place)) == whole), None)
