"""A proof that a folder of parts is what its manifest says: no unit is in two parts, and all parts have public rows.

A unit's part is a function of the unit alone (`engine/parts/unit_part.py`). So each row that is in the part that the
function names shows that its unit is in no other part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import duckdb

from dpsql.engine.catalog import Catalog
from dpsql.engine.connection import Connection, Cursor, OpenConnection
from dpsql.engine.parts.manifest import DEFINITIONS, HEAD, PUBLIC_ROWS, Split, file_digest, read_manifest
from dpsql.engine.parts.part_rows import joined, parents_of, row_part
from dpsql.engine.parts.part_tables import name_in
from dpsql.engine.parts.sources import SplitSource, table_source
from dpsql.engine.parts.unit_part import SplitError
from dpsql.operations.dialect import quote, text_literal

_OPENED = "dpsql_checked"
"""Name of the file that is checked, while it is."""
_AGAIN = "split the tables again"

_PublicRows = dict[str, str]
"""The digest of the rows of each public table."""


def check_parts(connection: Connection, folder: Path) -> Split:
    """Return the manifest of a folder of parts that is what the manifest says.

    Args:
        connection: an empty database in memory, which reads the files.
        folder: the folder.

    Raises:
        SplitError: the folder is something else; the message names file and table, and no value.
        PolicyError: the folder has no manifest of this version.

    """
    split = read_manifest(folder)
    reading = ""
    try:
        with connection.pinned() as cursor:
            opened = OpenConnection(connection, cursor, (_OPENED, "main"))
            reading = HEAD
            with _attached(cursor, folder / HEAD):
                sources = _sources(opened, split, HEAD)
                _require_empty(sources, cursor)
                head = _public_rows(sources, cursor)
            for number, part in enumerate(split.parts):
                reading = part.name
                path = folder / part.name
                if not path.is_file():
                    raise SplitError(f"the part {part.name} is missing: {_AGAIN}")
                if file_digest(path) != part.digest:
                    raise SplitError(f"the part {part.name} was changed after the split: {_AGAIN}")
                with _attached(cursor, path):
                    sources = _sources(opened, split, part.name)
                    for table, rows in _public_rows(sources, cursor).items():
                        if rows != head[table]:
                            raise SplitError(
                                f"the part {part.name} has other rows of the public table {table} than the head: "
                                f"{_AGAIN}"
                            )
                    _require_units(cursor, sources, part.name, number, len(split.parts))
        return split
    except duckdb.Error:
        pass
    # outside the handler, so that no text of DuckDB travels along
    raise SplitError(f"{folder / reading} cannot be read: another program has it open, or it is damaged")


@contextlib.contextmanager
def _attached(cursor: Cursor, path: Path) -> Iterator[None]:
    cursor.rows(f"ATTACH {text_literal(str(path))} AS {_OPENED} (READ_ONLY)")
    try:
        yield
    finally:
        cursor.rows(f"DETACH {_OPENED}")


def _sources(opened: OpenConnection, split: Split, file: str) -> dict[str, SplitSource]:
    """Return the tables of the attached file, by canonical name.

    Raises:
        SplitError: they are not those of the split.

    """
    catalog = Catalog(opened)
    found = {table.table: catalog.find(table.table) for table in split.tables}
    sources = {
        table.table: table_source(opened, schema.catalog_name, table.unit_column, table.links)
        for table in split.tables
        if (schema := found[table.table])
    }
    missing = [table for table, schema in found.items() if schema is None]
    if missing:
        raise SplitError(f"{file} has no table {missing[0]}: {_AGAIN}")
    if opened.cursor.rows(DEFINITIONS, [_OPENED, _OPENED]) != [(split.definitions,)]:
        raise SplitError(f"{file} has other definitions of {', '.join(sources)} than the split: {_AGAIN}")
    return sources


def _public_rows(sources: dict[str, SplitSource], cursor: Cursor) -> _PublicRows:
    found: _PublicRows = {}
    for table, source in sources.items():
        if not source.unit_column:
            ((found[table],),) = cursor.rows(PUBLIC_ROWS.format(name_in(_OPENED, source.place)))
    return found


def _require_empty(sources: dict[str, SplitSource], cursor: Cursor) -> None:
    """Refuse a head that has rows of units.

    Raises:
        SplitError: it has.

    """
    for table, source in sources.items():
        if source.unit_column and cursor.rows(f"SELECT 1 FROM {name_in(_OPENED, source.place)} LIMIT 1"):
            raise SplitError(f"{HEAD} has rows of {table}, whose rows are in the parts: {_AGAIN}")


def _require_units(cursor: Cursor, sources: dict[str, SplitSource], file: str, number: int, parts: int) -> None:
    """Refuse a part with rows of units of other parts, and rows without a parent whose parent is in another part.

    Raises:
        SplitError: the part has such rows.

    """
    split = [source for source in sources.values() if source.unit_column]
    for place, source in enumerate(split):
        parents = parents_of(source, sources)
        relations = [name_in(_OPENED, one.place) for one in (source, *parents)]
        rows = joined(source, parents, relations)
        if cursor.rows(f"SELECT 1 FROM {rows} WHERE {row_part(source, parents, parts)} <> {number} LIMIT 1"):
            raise SplitError(f"the part {file} has rows of {source.table} whose units belong to other parts: {_AGAIN}")
        if not source.links:
            continue
        orphans = f"temp.main.orphans_{place}"
        if number == 0:
            columns, _, key = source.links[0]
            copied = ", ".join(f"step_0.{quote(source.column(one).name)}" for one in columns)
            lost = f"step_1.{quote(parents[0].column(key[0]).name)} IS NULL"
            cursor.rows(f"CREATE OR REPLACE TEMP TABLE {orphans} AS SELECT DISTINCT {copied} FROM {rows} WHERE {lost}")
            continue
        if cursor.rows(f"SELECT 1 FROM {joined(source, parents[:1], [orphans, relations[1]], 'JOIN')} LIMIT 1"):
            raise SplitError(
                f"the first part has rows of {source.table} whose rows of {parents[0].table} are in {file}: {_AGAIN}"
            )
