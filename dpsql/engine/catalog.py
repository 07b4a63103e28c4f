"""Names in DuckDB's catalog: identities of tables, and what of their columns may be computed with."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dpsql.query.dialect import quote
from dpsql.query.environment import Column, TableSchema, folded

_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_ENUM = re.compile(r"\bENUM\(")
_UNSAFE_TYPE = re.compile(r"\bBIGNUM\b|\bVARIANT\b|\bGEOMETRY\b|\bUNION\(")

CatalogRow = tuple[str, str, str, str, str, bool]
"""Database, schema, table, column, its type, and whether NULL may occur."""

TABLES = "SELECT database_name, schema_name, table_name, NULL FROM duckdb_tables() WHERE NOT (internal OR temporary)"
"""Database, schema and name of every table of the curator."""

VIEWS = "SELECT database_name, schema_name, view_name, sql FROM duckdb_views() WHERE NOT (internal OR temporary)"
"""The same of every view, with its text."""


def named(name: str, rows: list[CatalogRow], place: int) -> list[CatalogRow]:
    """Rows that carry a name at a place as it is written; where there is none, as DuckDB compares it."""
    exact = [row for row in rows if row[place] == name]
    return exact or [row for row in rows if folded(str(row[place])) == folded(name)]


def canonical_name(place: tuple[str, str, str], prefixes: dict[str, str]) -> str:
    """Identity of a table of any database: the prefix of its database, and `identity`."""
    return prefixes[place[0]] + identity(place[1:])


def identity(place: Sequence[str]) -> str:
    """Identity of a table of the curator's own database: names that are not plain, with a dot in them, are quoted."""
    names = (folded(part) for part in place)
    return ".".join(name if _PLAIN_NAME.fullmatch(name) else quote(name) for name in names)


def table_schema(rows: list[CatalogRow], prefixes: dict[str, str]) -> TableSchema:
    """The table that catalog rows begin with, without columns that must not be computed with."""
    place = rows[0][:3]
    columns = [Column(row[3], row[4], row[5]) for row in rows if row[:3] == place]
    relation, readable = _readable(".".join(quote(part) for part in place), columns)
    return TableSchema(canonical_name(place, prefixes), relation, readable, catalog_name=place)


def _readable(name: str, columns: Sequence[Column]) -> tuple[str, tuple[Column, ...]]:
    """Text that reads a table without what must not be computed with, and the columns as they then are.

    An ENUM's type lists its members, which may be keys that nobody was shown: in error texts, in Arrow dictionaries,
    and by the error that a comparison with a word outside the list raises. An ENUM is read as text, and columns that
    nest one are not there. Neither are BIGNUM, whose casts can fail with an internal error in spite of TRY, after which
    DuckDB refuses the whole database, and VARIANT, GEOMETRY and UNION, whose casts depend on what a row holds.
    """
    plain = [c for c in columns if _is_enum(c)]
    left_out = [c for c in columns if c not in plain and (_ENUM.search(c.type) or _UNSAFE_TYPE.search(c.type))]
    if not left_out and not plain:
        return name, tuple(columns)
    casts = ", ".join(f"CAST({quote(c.name)} AS VARCHAR) AS {quote(c.name)}" for c in plain)
    exclude = f" EXCLUDE ({', '.join(quote(c.name) for c in left_out)})" if left_out else ""
    replace = f" REPLACE ({casts})" if casts else ""
    seen = tuple(Column(c.name, "VARCHAR", c.nullable) if c in plain else c for c in columns if c not in left_out)
    return f"(SELECT *{exclude}{replace} FROM {name})", seen


def _is_enum(column: Column) -> bool:
    return column.type.startswith("ENUM(") and column.type.endswith(")")
