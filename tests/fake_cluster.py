"""A cluster of Spark in this process, with its tables in a DuckDB: tasks run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.engine.parts.unit_part import part_sql
from dpsql.engine.spark.carrier import Rows, has_large
from dpsql.engine.spark.request import DONE, FEW, LARGE, OUTPUT, SOURCE, TEXT, TaskRequest, column_name
from dpsql.engine.spark.tables import SparkTable, UnitTable
from dpsql.engine.spark.task import add_bucket, run_part
from dpsql.errors import EngineError
from dpsql.operations.dialect import quote

Disturb = Callable[[pa.Table], pa.Table]
"""Changes what tasks handed on."""


class FakeRows:
    """What tasks handed on, by part."""

    def __init__(self, cluster: FakeCluster, parts: list[list[pa.RecordBatch]]) -> None:
        self._cluster, self._parts, self.parts = cluster, parts, cluster.parts

    def texts(self, request: TaskRequest) -> pa.Table:
        """Return the rows of texts, large ones after those of equal keys were added up."""
        whole = pa.Table.from_batches([batch for part in self._parts for batch in part], OUTPUT)
        found = _named(whole, lambda name: name == DONE or name.startswith((TEXT, FEW)))
        if has_large(found):
            self._cluster.added += 1
            large = _named(whole, lambda name: name.startswith(LARGE))
            for place in range(self._cluster.parts):
                own = large.filter(pc.equal(large["bucket"], place))
                batches = add_bucket(request, place, self._cluster.next_attempt(), own.to_batches())
                found = pa.concat_tables([found, pa.Table.from_batches(list(batches))])
        return self._cluster.disturb(found)

    def read(self, request: TaskRequest, timeout_seconds: float | None) -> pa.Table:
        return FakeRows(self._cluster, self._run(request)).texts(request)

    def made(self, request: TaskRequest, timeout_seconds: float | None) -> tuple[Rows, pa.Table]:
        rows = FakeRows(self._cluster, self._run(request))
        return rows, rows.texts(request)

    def _run(self, request: TaskRequest) -> list[list[pa.RecordBatch]]:
        self._cluster.runs += 1
        wanted = (DONE, *request.needed)
        given = [
            [batch for batch in part if batch["name"][0].as_py() in wanted] if request.is_packed else part
            for part in self._parts
        ]
        return [list(run_part(request, place, self._cluster.next_attempt(), part)) for place, part in enumerate(given)]

    def drop(self) -> None:
        self._cluster.dropped += 1


class FakeCluster:
    """A cluster of Spark.

    Attributes:
        tables: the database with its tables.
        dropped: how many rows were dropped.
        runs: how often tasks ran on all parts.
        added: how often rows of equal keys were added up before the driver.
        disturb: changes what tasks handed on.

    """

    def __init__(self, tables: duckdb.DuckDBPyConnection, parts: int, place: str = "fake.default") -> None:
        self.place, self.parts, self.dropped, self.added = place, parts, 0, 0
        self.disturb: Disturb = lambda found: found
        self.tables = tables
        self._attempts = self.runs = 0

    def next_attempt(self) -> int:
        """Return the number of a run of a task."""
        self._attempts += 1
        return self._attempts

    def table(self, name: str) -> SparkTable | None:
        sql = "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? ORDER BY column_index"
        columns = self.tables.execute(sql, [name]).fetchall()
        return SparkTable(name, tuple(columns)) if columns else None

    def public_rows(self, table: SparkTable, most_bytes: int) -> pa.Table:
        return self.tables.sql(f"FROM {quote(table.name)}").to_arrow_table()

    def mark(self, table: SparkTable) -> str | None:
        ((rows,),) = self.tables.sql(f"SELECT count(*) FROM {quote(table.name)}").fetchall()
        return str(rows)

    def snapshot(
        self, tables: Sequence[UnitTable], request: TaskRequest, timeout_seconds: float | None
    ) -> tuple[Rows, pa.Table]:
        parts: list[list[pa.RecordBatch]] = [[] for _ in range(self.parts)]
        for place, one in enumerate(tables):
            for key in one.keys:
                names = ", ".join(map(quote, key))
                if self.tables.sql(f"SELECT 1 FROM {one.table.name} GROUP BY {names} HAVING count(*) > 1").fetchall():
                    raise EngineError("a key that a link leads to is there twice", withheld=False)
            for number in range(self.parts):
                rows = self.tables.sql(self._rows(place, one, number)).to_arrow_table()
                parts[number] += rows.to_batches()
        columns = [f"c{place}_{i}" for place, one in enumerate(tables) for i in range(len(one.columns))]
        given = [[_filled(batch, columns, self._types(tables)) for batch in part] for part in parts]
        if request.lone_unit:
            given = [[batch.drop_columns([SOURCE]) for batch in part] for part in given]
        rows = FakeRows(self, FakeRows(self, given)._run(replace(request, is_packed=False)))
        return rows, rows.texts(request)

    def _types(self, tables: Sequence[UnitTable]) -> dict[str, pa.DataType]:
        found: dict[str, pa.DataType] = {}
        for place, one in enumerate(tables):
            empty = self.tables.sql(f"SELECT {_listed(place, one)} FROM {one.table.name} AS own LIMIT 0")
            found |= {field.name: field.type for field in empty.to_arrow_table().schema}
        return found

    def _rows(self, place: int, one: UnitTable, number: int) -> str:
        joins, child = f"{one.table.name} AS own", "own"
        for step, (columns, parent, key) in enumerate(one.links):
            equal = " AND ".join(
                f"{child}.{quote(left)} = step_{step}.{quote(right)}" for left, right in zip(columns, key, strict=True)
            )
            joins, child = f"{joins} JOIN {parent} AS step_{step} ON {equal}", f"step_{step}"
        unit = part_sql(f"{child}.{quote(one.unit)}", "BIGINT", self.parts)
        return (
            f"SELECT CAST({place} AS INTEGER) AS {SOURCE}, {_listed(place, one)} FROM {joins} WHERE {unit} = {number}"
        )

    def probe(self, request: TaskRequest) -> pa.Table:
        found = [batch for place in range(self.parts) for batch in run_part(request, place, 0, [])]
        return pa.Table.from_batches(found, OUTPUT)

    def progress(self) -> float | None:
        return None

    def close(self) -> None:
        self.tables.close()


def _named(found: pa.Table, is_wanted: Callable[[str], bool]) -> pa.Table:
    return found.filter(pa.array(map(is_wanted, found["name"].to_pylist()), pa.bool_()))


def _listed(place: int, one: UnitTable) -> str:
    return ", ".join(f"own.{quote(name)} AS {column_name(place, i)}" for i, name in enumerate(one.columns)) or "NULL"


def _filled(batch: pa.RecordBatch, columns: Sequence[str], types: dict[str, pa.DataType]) -> pa.RecordBatch:
    """Return a batch with the columns of all tables."""
    arrays: list[Any] = [batch[SOURCE]]
    for name in columns:
        known = name in batch.schema.names
        arrays.append(batch[name] if known else pa.nulls(batch.num_rows, types[name]))
    return pa.RecordBatch.from_arrays(arrays, names=[SOURCE, *columns])
