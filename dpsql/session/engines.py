"""The engines that sessions read rows with: the curator's DuckDB, a data frame, a folder of parts, or Spark."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from dpsql.assets import native_library
from dpsql.engine import DuckDBEngine, Engine, Mark
from dpsql.engine.connection import Connection
from dpsql.engine.parts.database import PartsEngine
from dpsql.engine.parts.manifest import HEAD, Split, SplitTable, Step, is_parts_folder, read_manifest
from dpsql.engine.parts.pool import Pool
from dpsql.engine.spark.carrier import Cluster
from dpsql.engine.spark.database import SparkEngine
from dpsql.engine.spark.tables import DeclaredTables, DeclaredUnit
from dpsql.errors import PolicyError
from dpsql.model.environment import TableSchema, folded
from dpsql.plan.environment.links import link_steps, unit_column
from dpsql.state import Policy

_LIMIT = re.compile(r"([\d.]+) ([KMGT]?i?B|bytes)")


def database_engine(connection: Connection | duckdb.DuckDBPyConnection) -> DuckDBEngine:
    """Return the engine of a database."""
    return DuckDBEngine(connection)


class FrameEngine(DuckDBEngine):
    """A database whose one source is a view over a frame; of a view, DuckDB knows no NOT NULL."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, table: str, never_null: frozenset[str], rows: int
    ) -> None:
        super().__init__(connection)
        self._table = table
        self._never_null = never_null
        self._rows = rows

    def marks(self, tables: Sequence[str]) -> dict[str, Mark]:
        """The number of rows of the frame; its columns are as many as a question reads."""
        return {self._table: {"number of rows of the frame": str(self._rows)}} if self._table in tables else {}

    def resolve(self, parts: Sequence[str]) -> TableSchema | None:
        """As of a table with the constraints that the view keeps by leaving rows out."""
        found = super().resolve(parts)
        if not found or found.canonical != self._table:
            return found
        columns = tuple(
            dataclasses.replace(column, nullable=column.name not in self._never_null) for column in found.columns
        )
        return dataclasses.replace(found, columns=columns)


def parts_folder(
    path: str | os.PathLike[str], parts: str | os.PathLike[str] | None, processes: int | None
) -> Path | None:
    """Return the folder of parts that is opened. Return None if it is a database.

    Raises:
        PolicyError: a path and a folder are named, the folder has no manifest, or there are processes and no parts.

    """
    if parts is None and is_parts_folder(Path(path)):
        return Path(path)
    if parts is None and is_head(path):
        return Path(path).parent
    if parts is None:
        if processes is not None:
            raise PolicyError("processes are those that read parts: name the folder, as in parts='folder'")
        return None
    if os.fspath(path) != ":memory:":
        raise PolicyError("name a database or parts='folder', and not both")
    read_manifest(Path(parts))
    return Path(parts)


def is_head(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is that of the head of a folder of parts."""
    return Path(path).name == HEAD and is_parts_folder(Path(path).parent)


def _is_part(path: Path) -> bool:
    """Return whether a path is that of a part in a folder of parts."""
    if not is_parts_folder(path.parent):
        return False
    return any(part.name == path.name for part in read_manifest(path.parent).parts)


def require_no_head(connection: Connection) -> None:
    """Require that the main database is no head, whose tables of people are empty, and no part.

    Raises:
        PolicyError: it is one of these.

    """
    _, path, _ = connection.main_database()
    if path is not None and _is_part(Path(path)):
        raise PolicyError(
            "this database is one part of a folder of parts, and has a part of the people alone: open the folder, as "
            "in dpsql.connect(parts='folder') or dpsql query folder \"SELECT …\""
        )
    if path is not None and is_head(path):
        raise PolicyError(
            "this database is the head of a folder of parts, and its tables of people are empty: open the folder, as "
            "in dpsql.connect(parts='folder') or dpsql query folder \"SELECT …\""
        )


@dataclass(frozen=True, slots=True)
class FolderOfParts:
    """Rows in a folder of parts.

    Attributes:
        folder: the folder.
        processes: number of processes that read parts; None for that of processors.

    """

    folder: Path
    processes: int | None = None


@dataclass(frozen=True, slots=True)
class TablesOfSpark:
    """Rows in the tables of Spark.

    Attributes:
        cluster: the tables, and the machines that read them.
        memory_limit: of DuckDB in each task.

    """

    cluster: Cluster
    memory_limit: str


def session_engine(
    connection: Connection, rows: FolderOfParts | TablesOfSpark | None, policy: Callable[[], Policy]
) -> tuple[Engine, Callable[[], None]]:
    """Return the engine of a session, and a function that ends what it began.

    Args:
        connection: the curator's database, or the head of rows that are elsewhere.
        rows: where the rows are, if they are not in the database.
        policy: returns what is declared now.

    Raises:
        PolicyError: as `parts_engine`, or the database is a head and no folder is named.

    """
    match rows:
        case None:
            require_no_head(connection)
            return database_engine(connection), lambda: None
        case FolderOfParts(folder, processes):
            of_parts = parts_engine(connection, folder, processes, policy)
            return of_parts, of_parts.close
        case TablesOfSpark(cluster, memory_limit):
            of_spark = SparkEngine(connection, cluster, lambda: declared_tables(policy()), memory_limit)
            return of_spark, of_spark.close


def steps_to_unit(policy: Policy, table: str) -> tuple[Step, ...]:
    """Return the declared links from a table to the parent that has its unit."""
    return tuple((step.columns, step.parent, step.parent_columns) for step in link_steps(policy, table))


def declared_tables(policy: Policy) -> DeclaredTables:
    """Return what is declared of tables, as an engine over Spark asks for it."""
    units = {
        one.table: DeclaredUnit(
            one.unit,
            unit_column(policy, one.table),
            steps_to_unit(policy, one.table),
        )
        for one in policy.tables
        if not one.archived
    }
    keys: dict[str, tuple[tuple[str, ...], ...]] = {}
    for link in policy.links:
        if link.table in units:
            keys[link.parent] = tuple(dict.fromkeys((*keys.get(link.parent, ()), link.parent_columns)))
    return DeclaredTables(units, {one.table: one.version for one in policy.public}, keys)


def parts_engine(
    connection: Connection, folder: Path, processes: int | None, policy: Callable[[], Policy]
) -> PartsEngine:
    """Return the engine of a folder of parts.

    Args:
        connection: its head.
        folder: the folder.
        processes: number of processes that read parts; by default as many as processors, or parts if they are fewer.
        policy: returns what is declared now.

    Raises:
        PolicyError: the folder has no manifest, or the number is no positive one.

    """
    split = read_manifest(folder)
    if processes is not None and (not isinstance(processes, int) or processes < 1):
        raise PolicyError("processes is the number of processes that read parts, as in processes=2")
    count = min(processes or os.cpu_count() or 1, len(split.parts))
    with connection.plain() as cursor:
        ((limit, spill, unsigned),) = cursor.rows(
            "SELECT current_setting('memory_limit'), current_setting('temp_directory'), "
            "current_setting('allow_unsigned_extensions')"
        )
    home, *_ = connection.main_database()
    library = native_library() if unsigned else None
    start = {
        "home": home,
        "folder": str(folder),
        "parts": [dataclasses.asdict(part) for part in split.parts],
        "memory_limit": _divided(limit, count),
        "native_library": "" if library is None else str(library),
    }
    pool = Pool(count, start, Path(spill) if spill else None)
    return PartsEngine(connection, folder, split, pool, lambda found: require_split(found, policy()))


def _divided(limit: str, count: int) -> str:
    """Return a limit of memory for each of several processes.

    >>> _divided("18.6 GiB", 2), _divided("900 bytes", 4)
    ('9.300 GiB', '225.000 bytes')
    """
    found = _LIMIT.fullmatch(limit)
    return f"{float(found[1]) / count:.3f} {found[2]}" if found else limit


def require_split(split: Split, policy: Policy) -> None:
    """Require that each declared table is in a split, by the unit that the policy says.

    A unit whose rows are in two parts would be bounded twice, and a public table that is split would lack rows.

    Raises:
        PolicyError: a table is not, or by another unit.

    """
    for one in policy.tables:
        if not one.archived:
            _require_unit(_table(split, one.table), policy)
    for public in policy.public:
        if _table(split, public.table).unit_column:
            raise PolicyError(
                f"table {public.table!r} is declared public, and was split by a unit: split again with --public"
            )


def _table(split: Split, name: str) -> SplitTable:
    found = split.table(name)
    if found is None:
        raise PolicyError(
            f"table {name!r} is declared, and is no table of the split: split it together with the others, or take its "
            "declaration back"
        )
    return found


def _require_unit(table: SplitTable, policy: Policy) -> None:
    unit = unit_column(policy, table.table)
    links = steps_to_unit(policy, table.table)
    if not table.unit_column:
        raise PolicyError(
            f"table {table.table!r} is protected, and every part has all of its rows: split it by {unit!r}"
        )
    if folded(table.unit_column) != folded(unit) or _folded(table.links) != _folded(links):
        raise PolicyError(
            f"table {table.table!r} was split by {_path_to_unit(table.unit_column, table.links)}, and is declared by "
            f"{_path_to_unit(unit, links)}: declare what was split, or split the tables again by what is declared"
        )


def _path_to_unit(unit: str, links: Sequence[Step]) -> str:
    """Return a unit column with the tables that links go through.

    >>> _path_to_unit("customer_id", [(("order_no",), "main.orders", ("no",))])
    "'customer_id' through main.orders"
    """
    through = ", ".join(parent for _, parent, _ in links)
    return f"{unit!r} through {through}" if links else repr(unit)


def _folded(links: Sequence[Step]) -> list[tuple[object, ...]]:
    return [(tuple(map(folded, columns)), parent, tuple(map(folded, key))) for columns, parent, key in links]
