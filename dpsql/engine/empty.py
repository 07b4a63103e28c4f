"""A query tried on empty copies of the tables that it reads: whatever fails there fails whatever the rows are.

The optimizer computes some constants where no TRY catches what fails. That is a fact of the text, the catalog and the
settings alone, and is found here before anything is charged. The copies are temporary tables of the cursor itself, so
that the database that will run the query tries it: its version, its extensions, its settings.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

from dpsql.engine.connection import Cursor
from dpsql.query.dialect import quote, text_literal

_NAME = r'"(?:[^"]|"")*"'
_PART = re.compile(_NAME)
_PARTS_OF_A_PLACE = 3
"""Database, schema and table."""
_TOKEN = re.compile(rf"'(?:[^']|'')*'|{_NAME}(?:\.{_NAME})*")
"""A text, or a name of quoted parts: all that can hold a quotation mark in what is rendered."""


def run_empty(cursor: Cursor, queries: Sequence[str]) -> None:
    """Run queries on empty copies of their tables, one after another; no row of any table is read.

    Raises:
        Exception: what the database says of the first that fails.

    """
    with _rolled_back(cursor):
        plain, computed = _places(cursor, queries)
        copies = {place: f"temp.main.dpsql_empty_{i}" for i, place in enumerate((*plain, *computed))}
        for place in plain:
            cursor.rows(f"CREATE TEMP TABLE {copies[place]} AS SELECT * FROM {place} LIMIT 0")
        for place in computed:
            _declare(cursor, place, copies[place])
        for sql in queries:
            if computed:
                # without the collations of what is computed; the binder, which knows of no row, has them
                cursor.rows(f"DESCRIBE {sql}")
            cursor.rows(_on_copies(sql, copies))


@contextlib.contextmanager
def _rolled_back(cursor: Cursor) -> Iterator[None]:
    cursor.rows("BEGIN TRANSACTION")
    try:
        yield
    finally:
        cursor.rows("ROLLBACK")


def _places(cursor: Cursor, queries: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names of the tables that queries read, and of the views and of tables with columns that are computed.

    CREATE TABLE AS takes types and collations of a table over, and its LIMIT leaves nothing to compute. What a view
    computes may be folded by the rows below it before the LIMIT is seen: of that, only names and types are asked.
    """
    named = {place for sql in queries for place in map(_parts, _TOKEN.findall(sql)) if len(place) == _PARTS_OF_A_PLACE}
    plain: list[str] = []
    computed: list[str] = []
    # views are listed only where a name is no table's
    for kind in ("table", "view"):
        left = {place[-1] for place in named}
        if left:
            found = cursor.rows(
                f"SELECT database_name, schema_name, {kind}_name, sql ILIKE '%generated%' FROM duckdb_{kind}s() "
                f"WHERE {kind}_name IN ({', '.join(map(text_literal, sorted(left)))})"
            )
            for *place, is_computed in found:
                if tuple(place) in named:
                    named.remove(tuple(place))
                    (computed if is_computed or kind == "view" else plain).append(".".join(map(quote, place)))
    return sorted(plain), sorted(computed)


def _parts(token: str) -> tuple[str, ...]:
    """The parts of a name; none of a text."""
    return () if token.startswith("'") else tuple(part[1:-1].replace('""', '"') for part in _PART.findall(token))


def _declare(cursor: Cursor, place: str, copy: str) -> None:
    described = cursor.rows(f"SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM {place})")
    columns = ", ".join(f"{quote(str(name))} {kind}" for name, kind in described)
    cursor.rows(f"CREATE TEMP TABLE {copy} ({columns})")


def _on_copies(sql: str, copies: dict[str, str]) -> str:
    return _TOKEN.sub(lambda token: copies.get(token[0], token[0]), sql)
