"""The mark of a table: what is cheap to see of it, and seldom stays the same where its rows do not.

Of a table these are its columns and its number of rows, which DuckDB keeps; of a view the same of the tables in it, and
size and time of the files that it reads. An update in place that leaves the number of rows is not seen. A mark tells of
rows: it is for the curator alone, and nothing but words to the curator may depend on it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence

import duckdb

from dpsql.engine.catalog import TABLES, VIEWS, canonical_name
from dpsql.engine.connection import Cursor
from dpsql.query.dialect import quote, text_literal
from dpsql.query.environment import folded
from dpsql.query.view_sources import view_sources

Mark = Mapping[str, str]
"""The parts of a mark, each by its name; a part that could not be read is not there."""

_MOST_DEPTH = 8

_Place = tuple[str, str, str]


def read_marks(cursor: Cursor, tables: Sequence[str], prefixes: dict[str, str]) -> dict[str, Mark]:
    """The marks of tables and views, by their canonical names; those that are not there have none.

    Args:
        cursor: with pinned settings.
        tables: canonical names.
        prefixes: what stands for each database in them.

    """
    places: dict[_Place, str | None] = {}
    by_name: dict[str, _Place] = {}
    # the list of views takes longer, and is seldom needed
    for listed in (TABLES, VIEWS):
        if not set(tables) <= set(by_name):
            places |= {(str(row[0]), str(row[1]), str(row[2])): row[3] for row in cursor.rows(listed)}
            by_name = {canonical_name(place, prefixes): place for place in places if place[0] in prefixes}
    return {table: _mark(cursor, by_name[table], places) for table in tables if table in by_name}


def _mark(cursor: Cursor, place: _Place, places: Mapping[_Place, str | None]) -> Mark:
    parts: dict[str, list[str]] = {}
    for name, value in _parts(cursor, place, places, 0):
        parts.setdefault(name, []).append(value)
    # one part of each name; what stands in it is nobody's to read
    return {name: hashlib.sha256("\n".join(sorted(values)).encode()).hexdigest() for name, values in parts.items()}


def _parts(cursor: Cursor, place: _Place, places: Mapping[_Place, str | None], depth: int) -> Iterator[tuple[str, str]]:
    """Name and text of each part of the mark of a table or view, and of what a view reads."""
    view, name = places[place], ".".join(map(quote, place))
    yield from _read(cursor, "columns", f"SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM {name})")
    if view is None:
        yield from _read(cursor, "number of rows", f"SELECT count(*) FROM {name}", of=place[2])
    elif depth < _MOST_DEPTH:
        for source in view_sources(view):
            inner = _named(source.names, place, places)
            if inner is not None:
                yield from _parts(cursor, inner, places, depth + 1)
            else:
                for pattern in source.texts:
                    files = f"SELECT filename, size, last_modified FROM read_blob({text_literal(pattern)})"
                    yield from _read(cursor, "files", files)


def _read(cursor: Cursor, name: str, sql: str, of: str = "") -> Iterator[tuple[str, str]]:
    """One part, if DuckDB can tell it."""
    with contextlib.suppress(duckdb.Error):
        yield name, repr((of, sorted(map(repr, cursor.rows(sql)))))


def _named(names: tuple[str, ...], view: _Place, places: Mapping[_Place, str | None]) -> _Place | None:
    """The table or view that a name in a view means."""
    whole = [folded(name) for name in (*view[: 3 - len(names)], *names)]
    return next((place for place in places if names and place != view and list(map(folded, place)) == whole), None)
