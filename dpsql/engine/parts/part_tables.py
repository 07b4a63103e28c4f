"""Tables and views of a part or a head: made from those of the sources, without rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import duckdb

from dpsql.engine.catalog import SHOWN, Catalog
from dpsql.engine.connection import Connection, Cursor, OpenConnection
from dpsql.engine.parts.sources import ForeignKey, SplitSource, SplitView
from dpsql.errors import EngineError
from dpsql.model.environment import TableSchema, folded
from dpsql.operations.dialect import quote, text_literal

_PLACE = tuple[str, str]


def name_in(database: str, place: _PLACE) -> str:
    """Return the quoted name of a table or view in a database."""
    return ".".join(map(quote, (database, *place)))


def kept_keys(sources: Sequence[SplitSource]) -> tuple[dict[_PLACE, tuple[ForeignKey, ...]], tuple[str, ...]]:
    """Return the FOREIGN KEYs that hold in each part, by the place of their table, and sentences about the others.

    One holds if it leads to a public table, or from a split table to rows of one and the same unit.
    """
    by_place = {(one.place[0], folded(one.place[1])): one for one in sources}
    kept: dict[_PLACE, tuple[ForeignKey, ...]] = {}
    dropped = []
    for source in sources:
        holding = []
        for key in source.foreign_keys:
            target = by_place.get((source.place[0], folded(key.table)))
            if target and _holds(source, key, target):
                holding.append(key)
            else:
                dropped.append(
                    f"the FOREIGN KEY ({', '.join(key.columns)}) of {source.table} is left out of the parts: it leads "
                    f"to {'rows of other parts' if target else 'a table outside the split'}"
                )
        kept[source.place] = tuple(holding)
    return kept, tuple(dropped)


def _holds(source: SplitSource, key: ForeignKey, target: SplitSource) -> bool:
    pairs = _pairs(key.columns, key.key)
    if not target.unit_column:
        return target is not source
    if not source.unit_column or target is source:
        return False
    if source.links:
        columns, parent, parent_key = source.links[0]
        return parent == target.table and pairs == _pairs(columns, parent_key)
    return not target.links and pairs == _pairs((source.unit_column,), (target.unit_column,))


def _pairs(columns: Iterable[str], key: Iterable[str]) -> frozenset[tuple[str, str]]:
    return frozenset(zip(map(folded, columns), map(folded, key), strict=True))


def in_order(places: Iterable[_PLACE], targets: Callable[[_PLACE], Iterable[_PLACE]]) -> tuple[_PLACE, ...]:
    """Return tables so that each comes after those that its FOREIGN KEYs lead to."""
    ordered: dict[_PLACE, None] = {}

    def add(place: _PLACE) -> None:
        for target in targets(place):
            if target != place and target not in ordered:
                add(target)
        ordered[place] = None

    for place in places:
        add(place)
    return tuple(ordered)


def create_tables(
    cursor: Cursor, database: str, sources: Sequence[SplitSource], kept: Mapping[_PLACE, Sequence[ForeignKey]]
) -> tuple[SplitSource, ...]:
    """Create the tables of the sources in a database, and return the sources in an order for their rows."""
    by_place = {one.place: one for one in sources}
    spelled = {(schema, folded(name)): (schema, name) for schema, name in by_place}

    def targets(place: _PLACE) -> list[_PLACE]:
        return [spelled[place[0], folded(key.table)] for key in kept[place]]

    ordered = tuple(by_place[place] for place in in_order(by_place, targets))
    for source in ordered:
        create_schema(cursor, database, source.place[0])
        parts = [f"{one.definition}{'' if one.nullable else ' NOT NULL'}" for one in source.columns]
        parts += [f"{'PRIMARY KEY' if primary else 'UNIQUE'} ({_names(key)})" for primary, key in source.keys]
        parts += [
            f"FOREIGN KEY ({_names(key.columns)}) REFERENCES {quote(source.place[0])}.{quote(key.table)} "
            f"({_names(key.key)})"
            for key in kept[source.place]
        ]
        cursor.rows(f"CREATE TABLE {name_in(database, source.place)} ({', '.join(parts)})")
    return ordered


def create_schema(cursor: Cursor, database: str, schema: str) -> None:
    """Create a schema of a database unless it is there."""
    cursor.rows(f"CREATE SCHEMA IF NOT EXISTS {quote(database)}.{quote(schema)}")


def create_view(cursor: Cursor, database: str, view: SplitView) -> None:
    """Create a view in a database: names in it that say no database are those of this one."""
    create_schema(cursor, database, view.place[0])
    schemas = dict.fromkeys((view.place[0], "main"))
    path = ",".join(f"{quote(database)}.{quote(schema)}" for schema in schemas)
    cursor.rows(f"SET search_path = {text_literal(path)}")
    try:
        cursor.rows(view.sql)
    finally:
        cursor.rows("SET search_path = 'system.main'")


def views_that_work(
    connection: Connection,
    cursor: Cursor,
    views: Sequence[SplitView],
    sources: Sequence[SplitSource],
    kept: Mapping[_PLACE, Sequence[ForeignKey]],
    trial: str,
) -> tuple[SplitView, ...]:
    """Return the views that read tables of the split alone, so that each comes after those that it reads.

    Args:
        connection: the connection of the cursor.
        cursor: no transaction is open on it.
        views: the views.
        sources: the tables of the split.
        kept: their FOREIGN KEYs.
        trial: name of a database in memory in which they are tried.

    """
    if not views:
        return ()
    working: list[SplitView] = []
    cursor.rows(f"ATTACH ':memory:' AS {quote(trial)}")
    try:
        create_tables(cursor, trial, sources, kept)
        waiting = list(views)
        while waiting:
            left = [view for view in waiting if not _works(connection, cursor, trial, view)]
            working += [view for view in waiting if view not in left]
            if len(left) == len(waiting):
                break
            waiting = left
    finally:
        cursor.rows(f"DETACH {quote(trial)}")
    return tuple(working)


def _works(connection: Connection, cursor: Cursor, trial: str, view: SplitView) -> bool:
    """Create a view and return whether it reads this database alone."""
    catalog = Catalog(OpenConnection(connection, cursor, (trial, "main")))
    with contextlib.suppress(duckdb.Error):
        create_view(cursor, trial, view)
        name = name_in(trial, view.place)
        with contextlib.suppress(EngineError):
            read = catalog.tables_read(TableSchema("", name, (), (trial, *view.place)))
            if all(table.startswith(f"{trial}.") for table in read):
                return True
        cursor.rows(f"DROP VIEW {name}")
    return False


def drop_all(cursor: Cursor, database: str) -> None:
    """Drop all tables and views of a database but the hidden ones."""
    views = cursor.rows(
        "SELECT schema_name, view_name FROM duckdb_views() WHERE NOT (internal OR temporary) AND database_name = ?",
        [database],
    )
    for place in views:
        cursor.rows(f"DROP VIEW {name_in(database, place)}")
    tables = cursor.rows(
        f"SELECT schema_name, table_name FROM duckdb_tables() WHERE NOT temporary AND {SHOWN} AND database_name = ?",
        [database],
    )
    keys = cursor.rows(
        "SELECT schema_name, table_name, referenced_table FROM duckdb_constraints() "
        "WHERE constraint_type = 'FOREIGN KEY' AND database_name = ?",
        [database],
    )
    ordered = in_order(tables, lambda place: [(schema, to) for schema, name, to in keys if (schema, name) == place])
    for place in reversed(ordered):
        cursor.rows(f"DROP TABLE {name_in(database, place)}")


def _names(columns: Iterable[str]) -> str:
    return ", ".join(map(quote, columns))
