"""An engine over tables of Spark: names and public rows in a DuckDB of the driver, rows of units in tasks.

The head, a DuckDB in memory, has an empty copy of each table of units and all rows of public tables. A statement is run
in each task on whole units, as `bound.partials` writes it, and its rows are merged in the head.

*Guarantee*: that of parts (docs/proofs/parts.md). A task that runs again runs the same text with the same salt on the
same snapshot, and its rows are counted once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Self

import duckdb
import pyarrow as pa

from dpsql.bound.formulations import Sizes
from dpsql.bound.statement import Bounded
from dpsql.engine.catalog import Mark, identity
from dpsql.engine.connection import Connection, OpenConnection
from dpsql.engine.database import DuckDBEngine
from dpsql.engine.definitions import Definitions, redefined
from dpsql.engine.listing import ListedTable
from dpsql.engine.parts.process import PROBE
from dpsql.engine.parts.remote_rows import RemoteRowsEngine
from dpsql.engine.spark.carrier import Cluster, SparkCarrier, other_duckdb
from dpsql.engine.spark.request import HOME, NO_NATIVE, TaskRequest, to_bytes
from dpsql.engine.spark.tables import (
    SCHEMA,
    DeclaredTables,
    DeclaredUnit,
    SparkTable,
    UnitTable,
    mentioned,
    own_name,
    read_columns,
    spark_unit_kind,
)
from dpsql.errors import PolicyError
from dpsql.model.environment import TableSchema, folded
from dpsql.operations.dialect import quote

MOST_PUBLIC_BYTES = 100 * 2**20
"""Most bytes of a public table, in Arrow's format: each task takes all of its rows along."""

MOST_ROWS = 4_000_000
"""Rows of one text that the driver takes of all parts; more are added up by their keys in Spark first."""
_SIZES = Sizes(10**9, 10**8, 10**5, 10**9)
"""Sizes of the rows of any frame: they decide how a statement is written, and Spark reads large tables."""


class SparkEngine(RemoteRowsEngine):
    """The protocol of an engine over tables of Spark.

    Args:
        connection: the head.
        cluster: the tables and the machines.
        declared: returns what is declared now.
        memory_limit: of DuckDB in each task.

    """

    raw_rows = "raw rows of tables in Spark are not read"

    def __init__(
        self, connection: Connection, cluster: Cluster, declared: Callable[[], DeclaredTables], memory_limit: str
    ) -> None:
        super().__init__(connection)
        self._cluster, self._declared, self._memory_limit = cluster, declared, memory_limit
        self._known: dict[str, tuple[SparkTable, str | None]] = {}
        self._public: dict[str, bytes] = {}
        self._mentioned: set[str] = set()
        self._turn = threading.RLock()

    def close(self) -> None:
        """Remove what was written."""
        self._cluster.close()

    # names and types: those of Spark are brought to the head

    @property
    def _is_planning(self) -> bool:
        return isinstance(self._connection, OpenConnection)

    def _bring(self, tables: Collection[str]) -> None:
        """Bring tables of Spark to the head as they are now: their names and types, and rows of the public ones.

        Args:
            tables: canonical names.

        Raises:
            PolicyError: one is a view, or a public one that is too large.
            EngineError: Spark could not read a public table.

        """
        declared = self._declared()
        with self._turn:
            for table in tables:
                if self._is_planning and table in self._known:
                    # a plan sees the tables of its begin
                    continue
                name = own_name(table)
                found = None if name is None else self._cluster.table(name)
                version = declared.public.get(table)
                if found is None:
                    self._forget(table)
                elif self._known.get(table) != (found, version):
                    self._make(table, found, is_public=version is not None)
                    # a plan takes back what it makes
                    if not self._is_planning:
                        self._known[table] = found, version

    def _forget(self, table: str) -> None:
        known = self._known.pop(table, None)
        if known is not None:
            self._look_up(f"DROP TABLE IF EXISTS {HOME}.{quote(known[0].name)}")

    def _make(self, table: str, found: SparkTable, *, is_public: bool) -> None:
        columns = ", ".join(f"{quote(name)} {kind}" for name, kind in found.columns)
        if not columns:
            raise PolicyError(f"no column of {found.name!r} has a type that DuckDB reads")
        rows = self._cluster.public_rows(found, MOST_PUBLIC_BYTES) if is_public else None
        place = f"{HOME}.{quote(found.name)}"
        failed = False
        with self._connection.pinned() as cursor:
            try:
                cursor.rows(f"CREATE OR REPLACE TABLE {place} ({columns})")
                self._public.pop(table, None)
                if rows is not None:
                    cursor.offer("dpsql_public_rows", rows)
                    cursor.rows(f"INSERT INTO {place} BY NAME FROM dpsql_public_rows")
                    self._public[table] = to_bytes(cursor.table(f"FROM {place}"))
            except duckdb.Error:
                failed = True
            if failed:
                # outside the handler, so that no text of DuckDB travels along
                raise PolicyError(
                    f"DuckDB cannot have a table like {found.name!r}: two columns may differ in case alone"
                )

    def resolve(self, parts: Sequence[str]) -> TableSchema | None:
        """Return the table or view that a name means: of Spark, or of the head."""
        if len(parts) == 1 or folded(parts[-2]) == SCHEMA:
            self._bring([identity((SCHEMA, parts[-1]))])
        return super().resolve(parts)

    def find(self, canonical: str, *, views: bool = False) -> TableSchema | None:
        """Return the base table of an identity, or a view if ``views`` is true. Return None if there is none."""
        self._bring([canonical])
        return super().find(canonical, views=views)

    def listed(self, wanted: Collection[str]) -> dict[str, ListedTable]:
        """Return the tables and views of some identities, by identity; one that is not there has no entry."""
        self._bring(wanted)
        return super().listed(wanted)

    def unique_columns(self, schema: TableSchema) -> tuple[tuple[str, ...], ...]:
        """Return the keys of a table that links lead to.

        Spark has no unique keys. Each snapshot looks whether two rows of the table have one such key, and the question
        fails if they do.
        """
        found = set()
        for key in self._declared().keys.get(schema.canonical, ()):
            columns = [column for column in map(schema.column, key) if column]
            if len(columns) == len(key):
                found.add(tuple(sorted(column.name for column in columns)))
        return tuple(sorted(found))

    def is_unique(self, schema: TableSchema, columns: Sequence[str]) -> bool:
        """Return whether a link leads to some columns; or whether one may, if no question is planned."""
        names = {folded(name) for name in columns}
        if any({folded(name) for name in key} <= names for key in self.unique_columns(schema)):
            return True
        return not self._is_planning and schema.canonical in self._known

    def while_defined(self, planned: Definitions) -> Self:
        """Return an engine for one question, with what is declared now and the names that its own texts have."""
        reading, declared = super().while_defined(planned), self._declared()
        reading._mentioned, reading._declared = set(), lambda: declared
        return reading

    def marks(self, tables: Sequence[str]) -> dict[str, Mark]:
        """Return the marks of tables: their files."""
        of_files = {one: self._cluster.mark(self._known[one][0]) for one in tables if one in self._known}
        return {table: {"files": mark} for table, mark in of_files.items() if mark is not None}

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[DuckDBEngine]:
        """Yield an engine for one plan, once the declared tables are as Spark has them now.

        Raises:
            PolicyError: a declared table is none of Spark's, or units of its type may go to two parts.

        """
        declared = self._declared()
        self._bring([*declared.units, *declared.public])
        for table in (*declared.units, *declared.public):
            if table not in self._known:
                raise PolicyError(
                    f"table {table!r} is declared, and is no table of {self._cluster.place} in Spark: make it again, "
                    "or take its declaration back"
                )
        self._require_units(declared)
        with super().snapshot() as planning:
            yield planning

    def _require_units(self, declared: DeclaredTables) -> None:
        kinds: dict[str, tuple[str, str, str]] = {}
        for table, unit in declared.units.items():
            owner = unit.links[-1][1] if unit.links else table
            column = self._known[owner][0].column(unit.column) if owner in self._known else None
            if column is None:
                continue
            kind = spark_unit_kind(column[1])
            if kind is None:
                raise PolicyError(
                    f"the privacy unit column {unit.column!r} of {owner!r} has the type {column[1]}, of which equal "
                    "values may differ in Spark: cast it to a whole number or a text in the table"
                )
            first = kinds.setdefault(unit.name, (kind, owner, column[1]))
            if first[0] != kind:
                raise PolicyError(
                    f"the privacy unit columns of {first[1]!r} and {owner!r} have the types {first[2]} and "
                    f"{column[1]}, so one unit would be in two parts: give both one type"
                )
            self._require_links(table, unit)

    def _require_links(self, table: str, unit: DeclaredUnit) -> None:
        child = table
        for columns, parent, key in unit.links:
            if child in self._known and parent in self._known:
                for name, other in zip(columns, key, strict=True):
                    pair = self._known[child][0].column(name), self._known[parent][0].column(other)
                    kinds = [spark_unit_kind(one[1]) for one in pair if one]
                    if len(kinds) == 2 and (kinds[0] is None or kinds[0] != kinds[1]):
                        raise PolicyError(
                            f"the link from {child!r} to {parent!r} compares columns {name!r} and {other!r} of types "
                            "that Spark may compare otherwise: give both one whole number or text type"
                        )
            child = parent

    # rows

    def run_empty(self, queries: Sequence[str], *, listed_keys: pa.Table | None) -> None:
        """Run queries on empty tables, once the machines of Spark were compared with this one.

        Raises:
            SchemaError: a query fails.
            EngineError: a machine has another DuckDB; nothing was charged.

        """
        self._mentioned |= mentioned(queries)
        super().run_empty(queries, listed_keys=listed_keys)

    def _load_native(self) -> bool:
        """Load the library here; return whether all machines have it, once their DuckDB was compared with this one."""
        has_native = super()._load_native()
        found = self._cluster.probe(self._request(has_native=has_native)).to_pylist()
        failures = {row["failure"] for row in found} - {None}
        if failures - {NO_NATIVE}:
            raise other_duckdb(charged=False)
        return has_native and not failures

    def _request(self, *, has_native: bool) -> TaskRequest:
        (probe,) = self._look_up(PROBE)
        parts = self._cluster.parts
        return TaskRequest(tuple(probe), has_native, self._memory_limit, most_rows=MOST_ROWS // parts, buckets=parts)

    def sizes(
        self,
        bounded: Bounded,  # noqa: ARG002 — the protocol names it
        salt: bytes,  # noqa: ARG002
        *,
        listed_keys: pa.Table | None,  # noqa: ARG002
        timeout_seconds: float | None,  # noqa: ARG002
    ) -> Sizes:
        """Return the sizes of a large table: to count them would be one more reading of the source."""
        return _SIZES

    def _carrier(self) -> SparkCarrier:
        return SparkCarrier(self._cluster, self._request(has_native=self.has_native), self._asked)

    def _asked(
        self, reads: Sequence[str], texts: Sequence[str]
    ) -> tuple[list[UnitTable], tuple[tuple[str, bytes], ...]]:
        """Return what a question reads of tables of units and their parents, and its public tables with their rows."""
        declared = self._declared()
        if any(table not in declared.units and table not in self._public for table in reads):
            raise redefined()
        units = [table for table in reads if table in declared.units]
        parents = [parent for table in units for _, parent, _ in declared.units[table].links]
        names = self._mentioned | mentioned(texts)
        tables = []
        for table in dict.fromkeys((*units, *parents)):
            unit, found = declared.units[table], self._known[table][0]
            columns = read_columns(found, names)
            tables.append(UnitTable(found, columns, unit.column, unit.links, declared.keys.get(table, ())))
        public = tuple((self._known[one][0].name, self._public[one]) for one in reads if one in self._public)
        return tables, public

    def progress(self) -> float | None:
        """Return how much of the running tasks is done, 0 to 1. Return None if it is not known."""
        return self._cluster.progress()
