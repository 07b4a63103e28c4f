"""Splits that a curator asks for: which tables of a database or of files become a folder of parts, by which columns.

The declarations of the database's state file say it, or the curator says it for each table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from dpsql.engine.catalog import Catalog
from dpsql.engine.connection import Connection, Cursor, LocalConnection, OpenConnection
from dpsql.engine.parts.manifest import Split, read_manifest
from dpsql.engine.parts.proof import check_parts
from dpsql.engine.parts.sources import SplitSource, SplitView, file_source, table_source, views_of
from dpsql.engine.parts.split import WrittenSplit, split_tables
from dpsql.engine.parts.unit_part import SplitError
from dpsql.model.environment import TableSchema, folded
from dpsql.operations.dialect import text_literal
from dpsql.plan.environment.links import unit_column
from dpsql.session.declare import split_name
from dpsql.session.engines import steps_to_unit
from dpsql.session.session import state_beside
from dpsql.session.spilling import open_database
from dpsql.state import Policy, ProtectedTable, PublicTable, State

_SOURCE = "dpsql_source"
"""Name of a database whose tables are split, while they are."""
_DATABASE_MARK = b"DUCK"


@dataclass(frozen=True, slots=True)
class SplitOrder:
    """A split as the curator asks for it.

    Attributes:
        sources: files of rows, or one DuckDB database.
        folder: of the parts.
        parts: their number.
        by: the unit column of all tables, or ``table=column`` for one or several.
        tables: tables of the database; none for all that its state file declares.
        public: public files, or public tables of the database.
        state: the state file; None for the one beside the database.
        unit: the unit whose declared tables are split; None if there is one alone.

    """

    sources: tuple[Path, ...]
    folder: Path
    parts: int
    by: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    public: tuple[str, ...] = ()
    state: Path | None = None
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class SplitReport:
    """A split that was made.

    Attributes:
        written: the split.
        left_out: canonical names of declared tables that are not in it.
        state: the state file whose declarations were followed; None if there was none.
        unused_state: the state file beside the database, if its declarations were not followed.

    """

    written: WrittenSplit
    left_out: tuple[str, ...] = ()
    state: Path | None = None
    unused_state: Path | None = None


def make_split(order: SplitOrder) -> SplitReport:
    """Split tables as ordered.

    Raises:
        SplitError: the order makes no sense, or the tables cannot be split or read.
        StateError: the state file cannot be read.

    """
    if not order.folder.absolute().parent.is_dir():
        raise SplitError(f"there is no folder {order.folder.absolute().parent} for {order.folder}")
    databases = [path for path in order.sources if _is_database(path)]
    if databases and len(order.sources) > 1:
        raise SplitError("one DuckDB database is split at a time, and no files beside it")
    if not order.sources:
        raise SplitError("a split needs files or a DuckDB database: dpsql split visits.parquet --by patient_id …")
    with _opened(order.folder, databases) as connection:
        if not databases:
            return _split_files(connection, order)
        if order.tables:
            return _split_named(connection, order)
        return _split_declared(connection, order)


def check_split(folder: Path) -> Split:
    """Prove that no unit is in two parts of a folder, and return its manifest.

    Raises:
        PolicyError: the folder is something else.

    """
    read_manifest(folder)
    with _opened(folder, ()) as connection:
        return check_parts(connection, folder)


@contextlib.contextmanager
def _opened(folder: Path, databases: Sequence[Path]) -> Iterator[Connection]:
    """Open an empty database that has the source attached; rows beyond memory are put beside the folder."""
    local, close = open_database(":memory:", folder)
    try:
        connection = LocalConnection(local, None)
        if not databases:
            yield connection
            return
        with connection.pinned() as cursor:
            if not _attach(cursor, databases[0]):
                raise SplitError(
                    f"{databases[0]} cannot be opened: it is open for writing in another program, is damaged, or has a "
                    "format that this version of DuckDB does not read"
                )
            yield OpenConnection(connection, cursor, (_SOURCE, "main"))
    finally:
        close()


def _attach(cursor: Cursor, database: Path) -> bool:
    with contextlib.suppress(duckdb.Error):
        cursor.rows(f"ATTACH {text_literal(str(database))} AS {_SOURCE} (READ_ONLY)")
        return True
    return False


def _is_database(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as content:
        return content.read(12)[8:] == _DATABASE_MARK


def _split_files(connection: Connection, order: SplitOrder) -> SplitReport:
    if order.tables or order.state or order.unit:
        raise SplitError("--table, --state and --unit are for a DuckDB database: a file is one table")
    sources = [file_source(connection, path) for path in order.sources]
    tables = _with_units(sources, order.by)
    public = [file_source(connection, Path(path)) for path in order.public]
    return _written(connection, order, tables, public)


def _split_named(connection: Connection, order: SplitOrder) -> SplitReport:
    if order.state or order.unit:
        raise SplitError("--state and --unit are for a split by declarations, which names no --table")
    sources = [table_source(connection, split_name(name)) for name in order.tables]
    public = [table_source(connection, split_name(name)) for name in order.public]
    report = _written(connection, order, _with_units(sources, order.by), public, views_of(connection))
    beside = state_beside(order.sources[0])
    return SplitReport(report.written, unused_state=beside if beside is not None and beside.is_file() else None)


def _split_declared(connection: Connection, order: SplitOrder) -> SplitReport:
    if order.by or order.public:
        raise SplitError("--by and --public need --table: without it, the declared tables are split by their units")
    path = order.state or state_beside(order.sources[0])
    if path is None or not path.is_file():
        raise SplitError(f"there is no state file {path}: name tables with --table and their unit column with --by")
    with State.open(path, create=False) as state:
        policy = state.policy()
    catalog = Catalog(connection)
    unit = _chosen_unit(policy, order.unit)
    tables, public, left_out = [], [], []
    declarations: tuple[ProtectedTable | PublicTable, ...] = (*policy.tables, *policy.public)
    for declared in declarations:
        schema = catalog.find(declared.table)
        if schema is None:
            left_out.append(declared.table)
        elif not isinstance(declared, ProtectedTable):
            public.append(table_source(connection, schema.catalog_name))
        elif declared.unit == unit:
            tables.append(_declared_source(connection, policy, schema))
        else:
            left_out.append(declared.table)
    report = _written(connection, order, tables, public, views_of(connection))
    return SplitReport(report.written, tuple(left_out), path)


def _chosen_unit(policy: Policy, named: str | None) -> str:
    """Return the name of the unit whose tables are split.

    Raises:
        SplitError: there is none of this name, or several and no name.

    """
    units = list(dict.fromkeys(table.unit for table in policy.tables))
    shown = ", ".join(units)
    if not units:
        raise SplitError("the state file protects no table: name tables with --table and their unit column with --by")
    if named is None:
        if len(units) > 1:
            raise SplitError(f"a split is by one privacy unit, and there are tables of {shown}: name one with --unit")
        return units[0]
    chosen = policy.unit(named)
    if chosen is None or chosen.name not in units:
        raise SplitError(f"no table is protected for the privacy unit {named!r}; there are tables of {shown}")
    return chosen.name


def _declared_source(connection: Connection, policy: Policy, schema: TableSchema) -> SplitSource:
    table = schema.canonical
    return table_source(connection, schema.catalog_name, unit_column(policy, table), steps_to_unit(policy, table))


def _with_units(sources: Sequence[SplitSource], by: Sequence[str]) -> list[SplitSource]:
    """Return the sources with their unit columns, as ``--by`` names them.

    Raises:
        SplitError: a table has no unit column, or a name is of no table.

    """
    named: dict[str, str] = {}
    for one in (part for text in by for part in text.split(",")):
        table, sign, column = one.rpartition("=")
        if (table if sign else "") in named:
            raise SplitError(f"--by names two unit columns of {table or 'all tables'}")
        named[table if sign else ""] = column
    with_units = []
    used = {""}
    for source in sources:
        names = [name for name in named if folded(name) in (folded(source.place[1]), folded(source.table))]
        column = named.get(names[0] if names else "", "")
        if not column:
            raise SplitError(f"{source.table} has no unit column: write --by {source.place[1]}=COLUMN")
        used.update(names)
        with_units.append(source.by_unit(column))
    unused = [name for name in named if name not in used]
    if unused:
        raise SplitError(f"--by names {unused[0]!r}, which is no table of this split")
    return with_units


def _written(
    connection: Connection,
    order: SplitOrder,
    tables: Sequence[SplitSource],
    public: Sequence[SplitSource],
    views: Sequence[SplitView] = (),
) -> SplitReport:
    written = split_tables(connection, tables, public, parts=order.parts, folder=order.folder, views=views)
    return SplitReport(written)
