"""Tables and files that a split reads: their columns, constraints and views, from the catalog alone."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb

from dpsql.engine.catalog import PLACE, Catalog, identity, is_enum
from dpsql.engine.connection import BYTEWISE, Connection, Cursor
from dpsql.engine.parts.manifest import Step
from dpsql.engine.parts.unit_part import SplitError
from dpsql.model.environment import folded
from dpsql.operations.dialect import quote, text_literal

POSITION = "dpsql position"
"""Column with the place of a row in its source."""
_DEFINED = re.compile(r"^[^(]*\((.*)\);$", re.DOTALL)
"""The statement that makes a table of one column, as DuckDB writes it."""
_PARQUET = ".parquet"
_SUFFIXES = (_PARQUET, ".csv", ".tsv", ".csv.gz", ".tsv.gz")
_MAGIC = {_PARQUET: b"PAR1"}


@dataclass(frozen=True, slots=True)
class SplitColumn:
    """A column of a source.

    Attributes:
        name: its name.
        type: its DuckDB type.
        definition: name, type and collation as SQL.
        nullable: whether NULL may occur.

    """

    name: str
    type: str
    definition: str
    nullable: bool = True

    def read(self, alias: str) -> tuple[str, str]:
        """Return SQL and type of the column as queries read it: an ENUM is text."""
        sql = f"{alias}.{quote(self.name)}"
        return (f"CAST({sql} AS VARCHAR)", "VARCHAR") if is_enum(self.type) else (sql, self.type)


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A FOREIGN KEY: columns, name of the table of the same schema that it leads to, and columns there."""

    columns: tuple[str, ...]
    table: str
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SplitSource:
    """A table of a split, and how its rows are read.

    Attributes:
        table: canonical name in the split.
        place: schema and name.
        relation: SQL of its rows, with `POSITION` as one more column.
        columns: its columns.
        unit_column: the column that names the unit, of the table or of its last parent; empty if the table is public.
        links: steps to the last parent; none if the table has the column itself.
        keys: columns of each PRIMARY KEY (marked true) or UNIQUE constraint.
        foreign_keys: its FOREIGN KEY constraints.

    """

    table: str
    place: tuple[str, str]
    relation: str
    columns: tuple[SplitColumn, ...]
    unit_column: str = ""
    links: tuple[Step, ...] = ()
    keys: tuple[tuple[bool, tuple[str, ...]], ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()

    def column(self, name: str) -> SplitColumn:
        """Return the column of a name.

        Raises:
            SplitError: there is none.

        """
        found = [one for one in self.columns if folded(one.name) == folded(name)]
        if not found:
            raise SplitError(
                f"{self.table} has no column {name!r}; it has {', '.join(one.name for one in self.columns)}"
            )
        return next((one for one in found if one.name == name), found[0])

    def by_unit(self, column: str) -> SplitSource:
        """Return the source with one of its columns as the unit.

        Raises:
            SplitError: there is no such column.

        """
        return replace(self, unit_column=self.column(column).name)

    def is_unique(self, columns: Sequence[str]) -> bool:
        """Return whether a PRIMARY KEY or UNIQUE constraint is over these columns, or some of them."""
        names = set(map(folded, columns))
        return any(set(map(folded, key)) <= names for _, key in self.keys)


@dataclass(frozen=True, slots=True)
class SplitView:
    """A view of a source: its schema and name, and the statement that makes it."""

    place: tuple[str, str]
    sql: str


def table_source(
    connection: Connection, name: Sequence[str], unit_column: str = "", links: Sequence[Step] = ()
) -> SplitSource:
    """Return a base table of the connection's own database as a source.

    Args:
        connection: its `home` says which database and schema are its own.
        name: parts of the name in SQL, as ``("visits",)``.
        unit_column: the column that names the unit; empty if the table is public.
        links: steps to the last parent, which has the column.

    Raises:
        SplitError: there is no such table, or it is a view or of another database.

    """
    catalog = Catalog(connection)
    schema, shown = catalog.resolve(name), ".".join(name)
    if schema is None:
        raise SplitError(f"there is no table {shown!r}")
    place = schema.catalog_name
    if place[0] != connection.home()[0]:
        raise SplitError(f"{shown!r} is in another database, {place[0]!r}: one database is split at a time")
    if not catalog.is_base_table(schema):
        raise SplitError(f"{shown!r} is a view: split the tables that it reads, and the view is copied into each part")
    relation = ".".join(map(quote, place))
    with connection.pinned() as cursor:
        nullable = dict(
            cursor.rows(f"SELECT column_name, is_nullable FROM duckdb_columns() WHERE {PLACE}", place),
        )
        columns = _columns(cursor, relation, nullable)
        constraints = cursor.rows(
            "SELECT constraint_type, constraint_column_names, referenced_table, referenced_column_names "
            f"FROM duckdb_constraints() WHERE {PLACE} ORDER BY constraint_index",
            place,
        )
    return SplitSource(
        schema.canonical,
        place[1:],
        f"(SELECT *, rowid AS {quote(POSITION)} FROM {relation})",
        columns,
        unit_column,
        tuple(links),
        tuple(
            (kind == "PRIMARY KEY", tuple(names))
            for kind, names, *_ in constraints
            if kind in ("PRIMARY KEY", "UNIQUE")
        ),
        tuple(
            ForeignKey(tuple(names), table, tuple(key))
            for kind, names, table, key in constraints
            if kind == "FOREIGN KEY"
        ),
    )


def file_source(connection: Connection, path: Path, unit_column: str = "") -> SplitSource:
    """Return a Parquet or CSV file as a source: the table ``main.<name of the file>``.

    Raises:
        SplitError: the file is not there, of another format, or cannot be read.

    """
    suffix = next((one for one in _SUFFIXES if path.name.lower().endswith(one)), "")
    if not suffix:
        raise SplitError(f"{path} is no source of a split: it takes Parquet files, CSV files and DuckDB databases")
    if not path.is_file():
        raise SplitError(f"the file {path} {'is not a file' if path.exists() else 'does not exist'}")
    unreadable = SplitError(f"{path} cannot be read as {suffix.split('.')[1]}")
    with path.open("rb") as content:
        if not content.read(4).startswith(_MAGIC.get(suffix, b"")):
            raise unreadable
    columns: tuple[tuple[str, str], ...] = ()
    rows = _file_rows(path, suffix)
    with contextlib.suppress(duckdb.Error), connection.pinned() as cursor:
        columns = tuple(cursor.rows(f"SELECT column_name, column_type FROM (DESCRIBE {rows})"))
    if not columns:
        # outside the handler, so that no text of DuckDB travels along
        raise unreadable
    place = ("main", path.name[: -len(suffix)])
    return SplitSource(
        identity(place),
        place,
        f"(SELECT *, row_number() OVER () AS {quote(POSITION)} FROM ({rows}))",
        tuple(SplitColumn(name, kind, f"{quote(name)} {kind}") for name, kind in columns),
        unit_column,
    )


def _file_rows(path: Path, suffix: str) -> str:
    # the path of one file, and no pattern
    file = text_literal(re.sub(r"([*?\[])", r"[\1]", str(path.resolve())))
    if suffix == _PARQUET:
        return f"SELECT * FROM read_parquet({file}, hive_partitioning = false)"
    # the types of a CSV file are those of all its rows, so that no row fails later
    return f"SELECT * FROM read_csv({file}, hive_partitioning = false, sample_size = -1)"


def views_of(connection: Connection) -> tuple[SplitView, ...]:
    """Return the views of the connection's own database."""
    database, _ = connection.home()
    with connection.pinned() as cursor:
        rows = cursor.rows(
            "SELECT schema_name, view_name, sql FROM duckdb_views() WHERE NOT (internal OR temporary) "
            "AND database_name = ? ORDER BY view_oid",
            [database],
        )
    return tuple(SplitView((schema, name), sql) for schema, name, sql in rows)


def require_no_collation(connection: Connection, source: SplitSource) -> None:
    """Refuse a unit column whose collation may hold different texts equal.

    Raises:
        SplitError: it has such a collation, or the database has for all columns.

    """
    column = source.column(source.unit_column)
    collated = re.search(r' COLLATE "?([^\s()"]+)', column.definition.removeprefix(quote(column.name)))
    named = [collated[1]] if collated else []
    named.append(dict(Catalog(connection).settings())["default_collation"])
    if column.read("")[1] == "VARCHAR" and (bad := [one for one in named if folded(one) not in BYTEWISE]):
        raise SplitError(
            f"column {column.name!r} of {source.table} has the collation {bad[0]}: texts that the collation holds "
            "equal would be in two parts. Split a table whose unit column has no collation"
        )


def _columns(cursor: Cursor, relation: str, nullable: dict[str, bool]) -> tuple[SplitColumn, ...]:
    """Return the columns of a table; a table made of one column has its type and collation, and nothing else."""
    found = []
    for name, kind in cursor.rows(f"SELECT column_name, column_type FROM (DESCRIBE {relation})"):
        cursor.rows(
            f"CREATE OR REPLACE TEMP TABLE temp.main.dpsql_column AS SELECT {quote(name)} FROM {relation} LIMIT 0"
        )
        ((sql,),) = cursor.rows("SELECT sql FROM duckdb_tables() WHERE table_name = 'dpsql_column' AND temporary")
        defined = _DEFINED.match(sql)
        definition = defined[1] if defined else f"{quote(name)} {kind}"
        found.append(SplitColumn(name, kind, definition, nullable.get(name, True)))
    cursor.rows("DROP TABLE IF EXISTS temp.main.dpsql_column")
    return tuple(found)
