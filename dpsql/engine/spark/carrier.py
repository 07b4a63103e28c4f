"""What dpsql asks of Spark, and the carrier that brings the texts of a transaction to its tasks."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from dpsql.engine.parts.transaction import Made, Reading
from dpsql.engine.spark.tables import SparkTable, UnitTable
from dpsql.engine.spark.task import DONE, OTHER, TaskMade, TaskRequest, TaskTable, from_bytes, to_bytes
from dpsql.errors import EngineError


class Rows(Protocol):
    """Rows in Spark: each part of them has all rows of some units, or of a table that was made of these."""

    def read(self, request: TaskRequest, timeout_seconds: float | None) -> pa.Table:
        """Return what a task hands on of each part, as `task.OUTPUT`.

        Raises:
            EngineError: Spark could not run the tasks, or the time ran out; the message is constant.

        """

    def made(self, request: TaskRequest) -> Rows:
        """Return the rows that a task hands on of each part. Spark keeps them once they were read."""

    def drop(self) -> None:
        """Let Spark forget the rows."""


class Cluster(Protocol):
    """The tables of one database of Spark, and the machines that read them.

    Attributes:
        place: catalog and database, as ``spark_catalog.default``.
        parts: number of parts.

    """

    place: str
    parts: int

    def table(self, name: str) -> SparkTable | None:
        """Return a table of the database, or None if there is none.

        Raises:
            PolicyError: it is a view.

        """

    def public_rows(self, table: SparkTable, most_bytes: int) -> pa.Table:
        """Return all rows of a public table.

        Raises:
            PolicyError: they are too many.

        """

    def mark(self, table: SparkTable) -> str | None:
        """Return a text that changes if files of a table do, or None if it has none."""

    def snapshot(self, tables: Sequence[UnitTable], timeout_seconds: float | None) -> Rows:
        """Return the rows of tables as they are now; they stay so.

        Raises:
            EngineError: Spark could not read them, a table has other columns, a key is there twice, or the time ran
                out; the message is constant.

        """

    def nothing(self) -> Rows:
        """Return parts without rows."""

    def progress(self) -> float | None:
        """Return how much of the running jobs is done, 0 to 1, or None if it is not known."""

    def close(self) -> None:
        """Remove what was written."""


class SparkCarrier:
    """Brings texts to the tasks of Spark.

    Args:
        cluster: the cluster.
        request: what all requests have in common.
        tables: returns what texts that read some tables ask of them, and the public ones with their rows.

    """

    def __init__(
        self,
        cluster: Cluster,
        request: TaskRequest,
        tables: Callable[[Sequence[str], Sequence[str]], tuple[list[UnitTable], tuple[tuple[str, bytes], ...]]],
    ) -> None:
        self._cluster, self._request, self._tables = cluster, request, tables
        self._reads: tuple[str, ...] = ()
        self._of_rows: TaskRequest | None = None
        self._rows: Rows | None = None
        self._made: dict[str, Rows] = {}

    def read(self, made: Sequence[Made], reading: Reading, timeout_seconds: float | None) -> list[list[pa.Table]]:
        """Let tasks run the texts on all parts, once the tables are made that they read."""
        for one in made:
            if one.name not in self._made:
                rows, request = self._source(one.reads, [one.sql], timeout_seconds)
                table = TaskMade(one.name, one.sql, _blob(one.listed_keys))
                self._made[one.name] = rows.made(replace(request, made=table))
        rows, request = self._source(reading.reads, reading.texts, timeout_seconds)
        request = replace(request, texts=reading.texts, listed_keys=_blob(reading.listed_keys))
        found = rows.read(request, timeout_seconds)
        return read_pieces(found, self._cluster.parts, len(reading.texts))

    def _source(
        self, reads: tuple[str, ...], texts: Sequence[str], timeout_seconds: float | None
    ) -> tuple[Rows, TaskRequest]:
        """Return the rows that a text reads, and a request that makes tables of them."""
        if reads[0] in self._made:
            return self._made[reads[0]], replace(self._request, held=reads[0])
        if self._rows is None or self._of_rows is None:
            tables, public = self._tables(reads, texts)
            names = tuple(TaskTable(one.table.name, _typed(one)) for one in tables)
            self._rows = self._cluster.snapshot(tables, timeout_seconds)
            self._of_rows, self._reads = replace(self._request, tables=names, public=public), reads
        if self._reads != reads:
            raise AssertionError("a transaction reads the rows of one question")
        return self._rows, self._of_rows

    def end(self) -> None:
        """Let Spark forget the rows of the question."""
        for rows in (*self._made.values(), *([self._rows] if self._rows else [])):
            with contextlib.suppress(EngineError):
                rows.drop()


def read_pieces(found: pa.Table, parts: int, texts: int) -> list[list[pa.Table]]:
    """Return the rows of each text, of each part.

    Args:
        found: what tasks handed on.
        parts: number of parts.
        texts: number of texts.

    Raises:
        EngineError: a task failed, or a part is missing or there twice.

    """
    rows = found.to_pylist()
    failures = {row["failure"] for row in rows if row["failure"]}
    if OTHER in failures:
        raise other_duckdb()
    if failures:
        raise EngineError("a task of Spark could not read its rows")
    done = [row for row in rows if row["place"] == DONE]
    attempts = {row["part"]: row["attempt"] for row in done}
    pieces: dict[tuple[int, int], list[pa.Table]] = defaultdict(list)
    for row in rows:
        if row["place"] != DONE and attempts.get(row["part"]) == row["attempt"]:
            pieces[row["place"], row["part"]].append(from_bytes(row["rows"]))
    number = sum(len(one) for one in pieces.values())
    if sorted(attempts) != list(range(parts)) or len(done) != parts or number != sum(row["piece"] for row in done):
        raise EngineError("Spark did not hand on each part once", withheld=False)
    return [[pa.concat_tables(pieces[place, part]) for part in range(parts)] for place in range(texts)]


def other_duckdb(*, charged: bool = True) -> EngineError:
    """Return the error of a machine that has other libraries than this one."""
    return EngineError(
        "a machine of Spark has another version of DuckDB than this one, or not the library in C: install the same "
        "dpsql and duckdb on all of them",
        withheld=False,
        charged=charged,
    )


def _typed(one: UnitTable) -> tuple[tuple[str, str], ...]:
    return tuple(column for column in one.table.columns if column[0] in one.columns)


def _blob(keys: pa.Table | None) -> bytes | None:
    return None if keys is None else to_bytes(keys)
