"""Trials of queries on empty copies of the tables that they read: whatever fails there fails whatever the rows are.

The optimizer computes some constants where no TRY catches what fails. That is a fact of the text, the catalog and the
settings alone, and is found here before anything is charged. The copies are temporary tables of the cursor itself, so
that the database that will run the query tries it: its version, its extensions, its settings.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dpsql.engine.connection import Cursor
from dpsql.operations.dialect import quote, text_literal

_MOST_TRIALS = 4096
"""Trials that are remembered; if there are more, all are forgotten."""

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


class Trials:
    """The trials that an engine made and that did not fail.

    None is made again while its text, its listed keys and the definitions of its tables stay as they are. Only the
    binder looks again at what reads a view: a macro or a file that the view reads may be another by now.
    """

    def __init__(self) -> None:
        self._passed: set[str] = set()

    def run(self, cursor: Cursor, queries: Sequence[str], listed_keys: pa.Table | None) -> None:
        """Run queries on empty copies of their tables, unless they ran already.

        Args:
            cursor: a cursor in a transaction, which ends without a commit.
            queries: the queries.
            listed_keys: the keys that the cursor offers.

        Raises:
            Exception: what the database says of the first that fails.

        """
        copied = _copied_tables(cursor, queries)
        if any(table.columns for table in copied.values()):
            # copies lack the collations of what is computed; the binder, which knows of no row, has them
            for sql in queries:
                cursor.rows(f"DESCRIBE {sql}")
        trial = _trial(queries, copied, listed_keys)
        if trial in self._passed:
            return
        run_empty(cursor, queries, copied)
        if len(self._passed) >= _MOST_TRIALS:
            self._passed.clear()
        self._passed.add(trial)


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
        cursor.rows(_TOKEN.sub(lambda token: copies.get(token[0], token[0]), sql))


def _copied_tables(cursor: Cursor, queries: Sequence[str]) -> dict[str, _Copied]:
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
