"""The protocol of Spark as dpsql uses it, and the carrier that brings the texts of a transaction to its tasks."""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from dpsql.bound.formulations import drawn_factor
from dpsql.engine.arrow_stream import from_stream
from dpsql.engine.parts.transaction import Made, Reading
from dpsql.engine.spark.request import (
    ADDED,
    DONE,
    LARGE,
    NO_NATIVE,
    OTHER,
    OUTPUT,
    TEXT,
    TaskMade,
    TaskRequest,
    TaskTable,
    column_name,
    few,
    to_bytes,
)
from dpsql.engine.spark.tables import SparkTable, UnitTable
from dpsql.engine.spark.task import run_part
from dpsql.errors import EngineError
from dpsql.model.environment import folded

FEW_UNITS = 200_000
"""Units of a table, about, up to which the driver reads its rows itself. Each part may have its share of them."""
_ROWS = ""
"""Stands for the rows of the question among the names of tables that are held."""


class Rows(Protocol):
    """Rows that tasks handed on of each part. They stay in Spark.

    Attributes:
        parts: number of parts.

    """

    parts: int

    def read(self, request: TaskRequest, timeout_seconds: float | None) -> pa.Table:
        """Return what a task hands on of each part, as `request.OUTPUT`.

        Raises:
            EngineError: Spark could not run the tasks, or the time ran out; the message is constant.

        """

    def made(self, request: TaskRequest, timeout_seconds: float | None) -> tuple[Rows, pa.Table]:
        """Return what a task hands on of each part, which stays in Spark, and its rows of texts.

        Raises:
            EngineError: as ``read``.

        """

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

    def snapshot(
        self, tables: Sequence[UnitTable], request: TaskRequest, timeout_seconds: float | None
    ) -> tuple[Rows, pa.Table]:
        """Return what a task hands on of the rows of tables as they are now, which stays so, and its rows of texts.

        Raises:
            EngineError: Spark could not read them, a table has other columns, a key is there twice, or the time ran
                out; the message is constant.

        """

    def probe(self, request: TaskRequest) -> pa.Table:
        """Return what a task hands on that is given no rows.

        Raises:
            EngineError: Spark could not run it; the message is constant.

        """

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
        # no number of rows decides which somebody could know
        few_units = int(FEW_UNITS * drawn_factor(secrets.token_bytes(16), "")) // cluster.parts
        self._cluster, self._request, self._tables = cluster, replace(request, few_units=few_units), tables
        self._reads: tuple[str, ...] = ()
        self._of_rows: TaskRequest | None = None
        self._held: dict[str, Rows] = {}
        self._until_end: list[Rows] = []

    def read(self, made: Sequence[Made], reading: Reading, timeout_seconds: float | None) -> list[list[pa.Table]]:
        """Let tasks run the texts on all parts, and make the table that they read if it is not there yet.

        Without texts nothing is done: the table is made together with the first text that reads it.
        """
        if not reading.texts:
            return []
        request = replace(self._request, texts=reading.texts, listed_keys=_blob(reading.listed_keys))
        return self._found(made, reading.reads, request, timeout_seconds)

    def _found(
        self, made: Sequence[Made], reads: tuple[str, ...], request: TaskRequest, timeout_seconds: float | None
    ) -> list[list[pa.Table]]:
        """Return the rows of the texts of a request that reads the rows of the question, or one table that is made."""
        by_name = {one.name: one for one in made}
        new: set[str] = set()
        while reads[0] in by_name and reads[0] not in self._held:
            new.add(reads[0])
            reads = by_name[reads[0]].reads
        for one in made:
            # what is made of these tables is made with them: its first reading needs no task then
            if one.reads[0] in new and one.name not in self._held:
                new.add(one.name)
        tables = [TaskMade(one.name, one.sql, _blob(one.listed_keys), one.is_kept) for one in made if one.name in new]
        request = replace(request, made=tuple(tables))
        if reads[0] not in self._held:
            return self._of_the_rows(reads, request, timeout_seconds)
        return self._of_held(self._held[reads[0]], replace(request, held=reads[0], is_packed=True), timeout_seconds)

    def _of_the_rows(
        self, reads: tuple[str, ...], request: TaskRequest, timeout_seconds: float | None
    ) -> list[list[pa.Table]]:
        """Return the rows of the texts of a request that reads the rows of the question."""
        if self._of_rows is None:
            asked = [*(text.sql for text in request.texts), *(one.sql for one in request.made)]
            tables, public = self._tables(reads, asked)
            of_rows = tuple(TaskTable(one.table.name, _typed(one)) for one in tables)
            self._of_rows, self._reads = replace(self._request, tables=of_rows, public=public), reads
            lone_unit = _lone_unit(tables)
            first = replace(request, tables=of_rows, public=public, lone_unit=lone_unit, keeps=True)
            rows, found = self._cluster.snapshot(tables, first, timeout_seconds)
            self._held[_ROWS] = rows
            return self._kept(request, rows, found)
        if self._reads != reads:
            raise AssertionError("a transaction reads the rows of one question")
        request = replace(request, tables=self._of_rows.tables, public=self._of_rows.public, is_packed=True)
        return self._of_held(self._held[_ROWS], request, timeout_seconds)

    def _of_held(self, rows: Rows, request: TaskRequest, timeout_seconds: float | None) -> list[list[pa.Table]]:
        """Return the rows of the texts of a request that reads what tasks handed on."""
        if not any(one.is_handed_on for one in request.made):
            return read_pieces(rows.read(request, timeout_seconds), rows.parts, len(request.texts))
        return self._kept(request, *rows.made(request, timeout_seconds))

    def _kept(self, request: TaskRequest, rows: Rows, found: pa.Table) -> list[list[pa.Table]]:
        """Return the rows of the texts of a request; keep what it hands on."""
        self._until_end.append(rows)
        pieces = read_pieces(found, rows.parts, len(request.texts))
        for one in request.made:
            if one.is_handed_on:
                in_driver = few_rows(found, one.name)
                self._held[one.name] = rows if in_driver is None else DriverRows(in_driver)
        return pieces

    def end(self) -> None:
        """Let Spark forget the rows of the question."""
        for rows in reversed(self._until_end):
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
    if failures & {OTHER, NO_NATIVE}:
        raise other_duckdb()
    if failures:
        raise EngineError("a task of Spark could not read its rows")
    done = _told(_named(rows, DONE))
    pieces: dict[str, dict[tuple[int, int], list[pa.Table]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["name"] != ADDED and row["name"].startswith((TEXT, ADDED)):
            pieces[row["name"]][row["part"], row["attempt"]].append(from_stream(row["rows"]))
    told = sum(done.values(), Counter[str]())
    given = sum((Counter[str](json.loads(row["rows"])) for row in _named(rows, ADDED)), Counter[str]())
    is_whole = sorted(part for part, _ in done) == list(range(parts))
    of_texts: list[list[pa.Table]] = []
    for place in range(texts):
        small, large = f"{TEXT}{place}", f"{LARGE}{place}"
        counts = {key: one[small] for key, one in done.items() if one[small]}
        is_whole &= {key: len(one) for key, one in pieces[small].items()} == counts and given[large] == told[large]
        tables = [pieces[small][key] for key in sorted(counts)] + list(pieces[f"{ADDED}{place}"].values())
        of_texts.append([pa.concat_tables(one) for one in tables])
    if not is_whole:
        raise _not_once()
    return of_texts


def _not_once() -> EngineError:
    return EngineError("Spark did not hand on each part once", withheld=False)


def few_rows(found: pa.Table, table: str) -> pa.Table | None:
    """Return the rows of a table that was made, all as of one part, or None if those of some part are not few.

    Args:
        found: what tasks handed on, each part once.
        table: name of the table.

    Raises:
        EngineError: a piece is missing, or there twice.

    """
    name = few(table)
    told = _told(found.filter(pc.equal(found["name"], DONE)).to_pylist())
    if any(one[table] for one in told.values()):
        return None
    own = found.filter(pc.equal(found["name"], name))
    if Counter(zip(own["part"].to_pylist(), own["attempt"].to_pylist(), strict=True)) != {
        key: one[name] for key, one in told.items()
    }:
        raise _not_once()
    last = {"part": 0, "attempt": 0, "name": DONE, "rows": json.dumps({name: len(own)}).encode()}
    return pa.concat_tables([own, pa.Table.from_pylist([last], OUTPUT)])


class DriverRows:
    """Few rows of a table, which the driver has: it reads them itself, as one part."""

    parts = 1

    def __init__(self, found: pa.Table) -> None:
        self._found = found

    def read(self, request: TaskRequest, timeout_seconds: float | None) -> pa.Table:  # noqa: ARG002 — few take no time
        """Return what a task hands on of them."""
        request = replace(request, most_rows=sys.maxsize, few_units=sys.maxsize)
        needed = self._found.filter(pc.is_in(self._found["name"], pa.array([DONE, *request.needed])))
        return pa.Table.from_batches(list(run_part(request, 0, 0, needed.to_batches())), OUTPUT)

    def made(self, request: TaskRequest, timeout_seconds: float | None) -> tuple[Rows, pa.Table]:
        """Return what a task hands on of them, twice: it is few rows, too."""
        found = self.read(request, timeout_seconds)
        return DriverRows(found), found

    def drop(self) -> None:
        """Do nothing."""


def has_large(found: pa.Table) -> bool:
    """Return whether tasks have rows of texts that are too many for the driver."""
    told = map(json.loads, found.filter(pc.equal(found["name"], DONE))["rows"].to_pylist())
    return any(name.startswith(LARGE) for one in told for name in one)


def _told(done: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], Counter[str]]:
    """Return how many pieces each run of a task says that it handed on, by name."""
    return {(row["part"], row["attempt"]): Counter[str](json.loads(row["rows"])) for row in done}


def _named(rows: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["name"] == name]


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


def _lone_unit(tables: Sequence[UnitTable]) -> str:
    """Return Spark's name of the unit, if all rows are of one table whose texts read it; else nothing."""
    if len(tables) != 1:
        return ""
    names = [folded(name) for name, _ in _typed(tables[0])]
    unit = folded(tables[0].unit)
    return column_name(0, names.index(unit)) if unit in names else ""


def _blob(keys: pa.Table | None) -> bytes | None:
    return None if keys is None else to_bytes(keys)
