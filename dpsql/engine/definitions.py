"""Definitions of the tables that a query reads: the facts of the catalog that its plan rests on.

A plan reads keys, types, collations and texts of views, and rows are read later. Meanwhile another connection can
replace a table. So the definitions are read twice: with the plan, in one snapshot of the catalog, and in each
transaction that reads rows (docs/proofs/relations.md, *Facts of the catalog*).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from dpsql.engine.catalog import canonical_name
from dpsql.engine.connection import Cursor
from dpsql.errors import EngineError
from dpsql.model.environment import folded

_DATABASES = "SELECT database_name, path, type, current_setting('default_collation') FROM duckdb_databases()"
_TABLES = (
    "SELECT database_name, schema_name, table_name, coalesce(sql, ''), table_oid, estimated_size FROM duckdb_tables() "
    "WHERE NOT (internal OR temporary)"
)
_TYPES = (
    "SELECT database_name, schema_name, type_name, concat(logical_type, ' ', labels::VARCHAR), type_oid, NULL "
    "FROM duckdb_types() WHERE NOT internal"
)
_LAST_NAME = re.compile(r'(?:"((?:[^"]|"")*)"|([^".:]*))$')
"""The name of a table at the end of its identity."""
_VIEWS = (
    "SELECT database_name, schema_name, view_name, coalesce(sql, ''), view_oid, NULL FROM duckdb_views() "
    "WHERE NOT (internal OR temporary)"
)
_MACROS = (
    "SELECT database_name, schema_name, function_name, concat(parameters::VARCHAR, ' ', macro_definition), "
    "function_oid, NULL FROM duckdb_functions() WHERE NOT internal"
)
_Entry = tuple[str, str, str, str, int, int | None]
"""An entry of the catalog: its database, schema, name and definition, its number, and about how many rows it has."""
Fact = tuple[object, ...]
"""An entry without its rows, or a table with the database that holds it."""


@dataclass(frozen=True, slots=True, repr=False)
class Definitions:
    """Facts of the catalog on some tables, in one snapshot. Its text shows nothing: it may hold members of an ENUM.

    Attributes:
        home: name of the curator's own database.
        tables: identities of the tables.
        sized: those of public tables. Their number of rows is a fact too: it decides how many rows match one row.
        facts: for each table its own entry with its database, and the entries that its view names, of any depth. A
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
    prefixes = {name: "" if name == home else f"{facts[0] or name}:" for name, facts in databases.items()}
    names = sorted({_name_of(identity) for identity in tables})
    # lower() folds more letters than identities do, and the identities of all tables would take longer
    likely = f"{_TABLES} AND lower(table_name) IN ({', '.join('lower(?)' for _ in names)})"
    found = _by_identity(cursor.rows(likely, names), tables, prefixes)
    listed: list[_Entry] = []
    views: dict[str, _Entry] = {}
    if len(found) < len(tables):
        # these take longer to list; a table names neither views nor macros, and its types stand in its definition
        views = _by_identity(cursor.rows(_VIEWS), tables, prefixes)
        listed = [row for query in (_TABLES, _VIEWS, _MACROS, _TYPES) for row in cursor.rows(query)] if views else []
    facts = {
        name: frozenset(
            {
                (*entry[:5], entry[5] if name in sized else None, *databases[entry[0]]),
                *(_named_in(entry[3], listed) if name in views else ()),
            }
        )
        for name, entry in (found | views).items()
    }
    return Definitions(home, frozenset(tables), frozenset(sized), facts)


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


def _named_in(definition: str, listed: Iterable[_Entry]) -> set[Fact]:
    """Return the entries whose names are part of a definition, or of a definition that they lead to.

    A name that is part of another word counts: one entry too many only lets a reading fail that could succeed.
    """
    left, texts, found = list(listed), [definition], set[Fact]()
    while texts:
        text = folded(texts.pop())
        named = [entry for entry in left if folded(entry[2]) in text]
        left = [entry for entry in left if entry not in named]
        found.update(entry[:5] for entry in named)
        texts += [entry[3] for entry in named]
    return found
