"""Definitions of the tables that a query reads: the facts of the catalog that its plan rests on.

A plan reads keys, types, collations and texts of views, and rows are read later. Meanwhile another connection can
replace a table. So the definitions are read twice: with the plan, in one snapshot of the catalog, and in each
transaction that reads rows (docs/proofs/relations.md, *Facts of the catalog*).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpsql.engine.catalog import SHOWN, canonical_name, prefix_of
from dpsql.engine.connection import Cursor
from dpsql.errors import EngineError
from dpsql.model.environment import folded
from dpsql.operations.dialect import quote

_DATABASES = "SELECT database_name, path, type, current_setting('default_collation') FROM duckdb_databases()"
_TABLES = (
    "SELECT database_name, schema_name, table_name, coalesce(sql, ''), table_oid FROM duckdb_tables() "
    # the first charge creates dpsql's own table, between plan and reading
    f"WHERE NOT (internal OR temporary) AND {SHOWN}"
)
_TYPES = (
    "SELECT database_name, schema_name, type_name, concat(logical_type, ' ', labels::VARCHAR), type_oid "
    "FROM duckdb_types() WHERE NOT internal"
)
_LAST_NAME = re.compile(r'(?:"((?:[^"]|"")*)"|([^".:]*))$')
"""The name of a table at the end of its identity."""
_VIEWS = (
    "SELECT database_name, schema_name, view_name, coalesce(sql, ''), view_oid FROM duckdb_views() "
    "WHERE NOT (internal OR temporary)"
)
_MACROS = (
    "SELECT database_name, schema_name, function_name, concat(parameters::VARCHAR, ' ', macro_definition), "
    "function_oid FROM duckdb_functions() WHERE NOT internal"
)
_TOKEN = re.compile(r"""\"(?:[^"]|"")*\"|'(?:[^']|'')*'|[\w$]+""")
"""A name in quotation marks, a literal, or a word."""
_CALL = re.compile(r'(?<!CAST)(?<=[\w"])\(')
_NAMES_IN_VALUES = re.compile(r"\bquery(?:_table)?\b")
"""Functions that read a table whose name may be computed."""

_Entry = tuple[str, str, str, str, int]
"""An entry of the catalog: its database, schema, name and definition, and its number."""
Fact = tuple[object, ...]
"""An entry, or a table with its number of rows and the database that holds it."""


@dataclass(frozen=True, slots=True, repr=False)
class Definitions:
    """Facts of the catalog on some tables, in one snapshot. Its text shows nothing: it may hold members of an ENUM.

    Attributes:
        home: name of the curator's own database.
        tables: identities of the tables.
        sized: those of public tables. Their number of rows is a fact too: it decides how many rows match one row.
        facts: for each table its own entry with its database, and the entries that a view names, of any depth. A
            table that is not there has none.

    """

    home: str
    tables: frozenset[str]
    sized: frozenset[str]
    facts: Mapping[str, frozenset[Fact]]

    def are_seen_by(self, cursor: Cursor) -> bool:
        """Return whether a cursor sees the same facts."""
        return read_definitions(cursor, self.home, self.tables, self.sized) == self


def read_definitions(cursor: Cursor, home: str, tables: Collection[str], sized: Collection[str]) -> Definitions:
    """Return the definitions of tables and views as a cursor sees them. The arguments are those of `Definitions`."""
    databases = {name: tuple(facts) for name, *facts in cursor.rows(_DATABASES)}
    prefixes = {name: prefix_of(name, facts[0], home) for name, facts in databases.items()}
    names = sorted({_name_of(identity) for identity in tables})
    # lower() folds more letters than identities do, and the identities of all tables would take longer
    likely = f"{_TABLES} AND lower(table_name) IN ({', '.join('lower(?)' for _ in names)})"
    found = _by_identity(cursor.rows(likely, names), tables, prefixes)
    # most queries read no view
    every_view: list[_Entry] = cursor.rows(_VIEWS) if len(found) < len(tables) else []
    views = _by_identity(every_view, tables, prefixes)
    named = _named_by(views.values(), every_view, cursor) if views else set()
    facts = {
        name: frozenset({(*entry, _rows_of(entry, cursor) if name in sized else None, *databases[entry[0]])})
        for name, entry in found.items()
    }
    facts |= {name: frozenset({(*entry, *databases[entry[0]]), *named}) for name, entry in views.items()}
    return Definitions(home, frozenset(tables), frozenset(sized), facts)


def _rows_of(entry: _Entry, cursor: Cursor) -> int:
    """Return the number of rows of a public table. DuckDB's own estimate is not that of the transaction."""
    ((rows,),) = cursor.rows(f"SELECT count(*) FROM {'.'.join(map(quote, entry[:3]))}")
    return int(rows)


def redefined() -> EngineError:
    """Return the error of a question whose tables were defined anew between its plan and its reading."""
    return EngineError(
        "a table or view that the query reads was created anew or altered before its rows were read", withheld=False
    )


def _name_of(identity: str) -> str:
    """Return the name of a table of an identity, as identities fold it.

    >>> _name_of("main.visits"), _name_of('/a/b.duckdb:main."the ""old"" visits"')
    ('visits', 'the "old" visits')
    """
    found = _LAST_NAME.search(identity)
    quoted, plain = found.groups() if found else (None, identity)
    return plain if quoted is None else quoted.replace('""', '"')


def _by_identity(listed: Iterable[_Entry], wanted: Collection[str], prefixes: dict[str, str]) -> dict[str, _Entry]:
    """Return the entries of some identities."""
    identified = ((canonical_name(entry[:3], prefixes), entry) for entry in listed if entry[0] in prefixes)
    return {name: entry for name, entry in identified if name in wanted}


def _named_by(views: Iterable[_Entry], every_view: Sequence[_Entry], cursor: Cursor) -> set[Fact]:
    """Return the entries that views name, or that a view or a macro names to which they lead.

    A table names nothing: its types stand in its definition, and it cannot call a macro under the settings that a
    cursor pins.
    """
    tables: list[_Entry] = cursor.rows(_TABLES)
    others: list[_Entry] = [*every_view, *cursor.rows(_TYPES)]
    texts, found, has_macros = [entry[3] for entry in views], set[_Entry](), False
    while texts:
        words, literals = _words_of(text := texts.pop())
        if not has_macros and _CALL.search(text):
            # these take longest to list
            others += cursor.rows(_MACROS)
            has_macros = True
        if any(map(_NAMES_IN_VALUES.match, words)):
            return {*tables, *others}
        found |= {entry for entry in tables if _is_named(entry[2], words, literals)}
        more = {entry for entry in others if _is_named(entry[2], words, literals)} - found
        found |= more
        texts += [entry[3] for entry in more]
    return set(found)


def _words_of(definition: str) -> tuple[set[str], str]:
    """Return the names and words of a definition, and its literals in one text; all are folded.

    >>> words, literals = _words_of('FROM Visits WHERE "my ward" = ' + "'it''s'")
    >>> sorted(words), literals
    (['from', 'my ward', 'visits', 'where'], "it's")
    """
    tokens = _TOKEN.findall(folded(definition))
    names = {token[1:-1].replace('""', '"') if token[0] == '"' else token for token in tokens if token[0] != "'"}
    return names, "\n".join(token[1:-1].replace("''", "'") for token in tokens if token[0] == "'")


def _is_named(name: str, words: Collection[str], literals: str) -> bool:
    """Return whether a name is one of the words, or a part of a literal, which may be the name of a table."""
    return folded(name) in words or folded(name) in literals
