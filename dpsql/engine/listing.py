"""Lists of tables and views with their columns, read from the catalog in one go; no row is read for them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection
from dataclasses import dataclass

from dpsql.engine.catalog import VIEWS, Catalog, canonical_name, readable
from dpsql.engine.connection import Connection
from dpsql.model.environment import Column, TableSchema
from dpsql.operations.dialect import quote

NOT_SHOWN = "of a type that is not shown"
"""Stands for a type whose text might hold members of an ENUM in a form that is not known."""

_ENUM = re.compile(r"\bENUM\(")
_MEMBERS = re.compile(r"\bENUM\((?:'(?:[^']|'')*'(?:, )?)*\)")
"""An ENUM type with its members, as DuckDB writes it."""
_COLUMNS = (
    "SELECT database_name, schema_name, table_name, column_name, data_type, is_nullable "
    "FROM duckdb_columns() WHERE NOT internal AND database_name <> 'temp' "
    "ORDER BY database_name, schema_name, table_name, column_index"
)


@dataclass(frozen=True, slots=True)
class ListedTable:
    """A table or view as the catalog lists it.

    Attributes:
        schema: its identity and the columns that a query can read.
        name: its shortest name, as ``[catalog.][schema.]table``.
        left_out: the columns that no query can read, because their types are not safe.
        is_view: whether it is a view.

    """

    schema: TableSchema
    name: tuple[str, ...]
    left_out: tuple[Column, ...]
    is_view: bool


def list_tables(connection: Connection, wanted: Collection[str]) -> dict[str, ListedTable]:
    """Return the tables and views of some identities, by identity; one that is not there has no entry."""
    own = connection.home()
    with connection.pinned() as cursor:
        prefixes = Catalog.prefixes_of(cursor, own[0])
        views = {row[:3] for row in cursor.rows(VIEWS)}
        rows = cursor.rows(_COLUMNS)
    found: dict[str, ListedTable] = {}
    for place, columns in itertools.groupby(rows, lambda row: row[:3]):
        canonical = canonical_name(place, prefixes)
        if canonical in wanted:
            every = [Column(*row[3:]) for row in columns]
            relation, seen = readable(".".join(map(quote, place)), every)
            names = {column.name for column in seen}
            # what `Catalog.resolve` reads as this place
            first = 2 if place[:2] == own else 1 if place[0] == own[0] else 0
            found[canonical] = ListedTable(
                TableSchema(canonical, relation, seen, catalog_name=place),
                place[first:],
                tuple(column for column in every if column.name not in names),
                is_view=place in views,
            )
    return found


def without_members(kind: str) -> str:
    """Return a type with VARCHAR in place of every ENUM, at any depth: members of an ENUM may be values of people.

    >>> without_members("STRUCT(ward ENUM('north', 'it''s'), days INTEGER[])")
    'STRUCT(ward VARCHAR, days INTEGER[])'
    """
    shown = _MEMBERS.sub("VARCHAR", kind)
    return NOT_SHOWN if _ENUM.search(shown) else shown
