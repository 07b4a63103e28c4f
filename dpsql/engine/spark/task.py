"""One task of Spark: a DuckDB in memory that runs texts on the rows of one part.

The task makes tables of the rows that Spark hands to it, runs the texts, and hands their rows on in Arrow's own format.
A failure is a word in a row, because DuckDB quotes values of rows and Spark would write its error to a log. Nothing
here needs pyspark.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.assets import native_library
from dpsql.bound.aggregation import LISTED_KEYS
from dpsql.bound.formulations import NATIVE_PROBE
from dpsql.engine.connection import Cursor, LocalConnection
from dpsql.engine.parts.process import PROBE
from dpsql.operations.dialect import quote

SOURCE = "source"
"""Column of the rows of a part: the place of the table that a row is of."""

HOME = "memory.main"
"""Database and schema of the tables, in the head and in a task."""

OUTPUT = pa.schema(
    [
        ("part", pa.int32()),
        ("attempt", pa.int64()),
        ("name", pa.string()),
        ("failure", pa.string()),
        ("rows", pa.binary()),
    ]
)
"""What a task hands on: pieces of named tables. The last row of a part is called `DONE`, and counts them by name.

An attempt is the number that Spark gives to a run of a task. So rows of a second run of one task are told apart.
"""
DONE = "done"
TEXT = "text "
"""Begin of the names of the rows of texts."""

FAILED = "failed"
"""Word of a failure: the task could not run a text."""
OTHER = "other"
"""Word of a failure: the task has another DuckDB."""
NO_NATIVE = "no native"
"""Word of a failure: the task has not the aggregates in C that its texts call."""

_OFFERED = "dpsql_task_rows"
_ROWS_AT_ONCE = 2**17
_MOST_BYTES = 2**26
"""Bytes of a piece, about: Spark holds a piece as one value."""


@dataclass(frozen=True, slots=True)
class TaskTable:
    """A table of the rows of a part.

    Attributes:
        name: its name.
        columns: name and DuckDB type of each column. Spark calls them as `column_name` says.

    """

    name: str
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TaskMade:
    """A temporary table that a task makes before its texts run.

    Attributes:
        name: its name.
        sql: the SELECT that it is made of.
        listed_keys: the keys that the SELECT is about, as a stream of Arrow; None for none.

    """

    name: str
    sql: str
    listed_keys: bytes | None


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """What a task does with the rows of its part. It travels in the pickled task.

    Attributes:
        probe: row of `PROBE` in the process that asks.
        has_native: whether texts call the aggregates in C.
        memory_limit: of DuckDB, as in SET memory_limit.
        tables: tables of the rows of a part, in the order of their places.
        held: name of a temporary table that an earlier task made; or nothing.
        public: name and rows of each public table, as streams of Arrow.
        made: a temporary table that is made, and handed on.
        texts: SELECTs whose rows are handed on.
        listed_keys: the keys that the texts are about, as a stream of Arrow; None for none.
        is_packed: whether the task is given what an earlier task handed on, and not rows of Spark.
        keeps: whether the tables are handed on.

    """

    probe: tuple[str, ...]
    has_native: bool
    memory_limit: str
    tables: tuple[TaskTable, ...] = ()
    held: str = ""
    public: tuple[tuple[str, bytes], ...] = ()
    made: TaskMade | None = None
    texts: tuple[str, ...] = ()
    listed_keys: bytes | None = None
    is_packed: bool = False
    keeps: bool = False

    @property
    def needed(self) -> tuple[str, ...]:
        """Return the names of what the task takes of an earlier task."""
        return (self.held,) if self.held else tuple(packed_name(table.name) for table in self.tables)


class _OtherError(Exception):
    """The task has other libraries than the process that asks; the text is a word of a failure."""


class _FailedError(Exception):
    """A task before this one failed."""


def column_name(table: int, column: int) -> str:
    """Return the name by which Spark knows a column of a table, by their places."""
    return f"c{table}_{column}"


def to_bytes(table: pa.Table) -> bytes:
    """Return a table as a stream of Arrow."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_bytes(blob: bytes | pa.Buffer) -> pa.Table:
    """Return the table of a stream of Arrow."""
    return pa.ipc.open_stream(blob).read_all()


def packed_name(table: str) -> str:
    """Return the name by which rows of a table are handed on."""
    return f"table {table}"


def run_part(
    request: TaskRequest, part: int, attempt: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield rows of `OUTPUT`: those of all tables that are handed on, or one row with a failure.

    Args:
        request: what to do.
        part: number of the part.
        attempt: number of this run of the task.
        batches: the rows of the part.

    """
    counts, failure = Counter[str](), ""
    try:
        for name, table in _found(request, batches):
            for piece in _pieces(table):
                counts[name] += 1
                yield _row(part, attempt, name, None, to_bytes(piece))
    except _OtherError as error:
        failure = str(error)
    except Exception:
        failure = FAILED
    yield _row(part, attempt, DONE, failure or None, json.dumps(counts).encode())


def _row(part: int, attempt: int, name: str, failure: str | None, rows: bytes) -> pa.RecordBatch:
    values = (part, attempt, name, failure, rows)
    return pa.RecordBatch.from_arrays(
        [pa.array([value], field.type) for value, field in zip(values, OUTPUT, strict=True)], schema=OUTPUT
    )


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    """Yield a table in pieces of limited size; one at least, so that its columns are known."""
    rows = max(1, table.num_rows * _MOST_BYTES // max(table.nbytes, 1))
    for start in range(0, max(table.num_rows, 1), rows):
        yield table.slice(start, rows)


def _found(request: TaskRequest, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the tables that are handed on, with their names."""
    with _opened(request) as cursor:
        for table in request.tables:
            columns = ", ".join(f"{quote(name)} {kind}" for name, kind in table.columns)
            cursor.rows(f"CREATE TABLE {HOME}.{quote(table.name)} ({columns or 'nothing INTEGER'})")
        if request.is_packed:
            _unpack(cursor, request, batches)
        else:
            yield from _fill(cursor, request, batches)
        for name, blob in request.public:
            cursor.offer(_OFFERED, from_bytes(blob))
            cursor.rows(f"CREATE TABLE {HOME}.{quote(name)} AS FROM {_OFFERED}")
        if request.made:
            _offer_listed(cursor, request.made.listed_keys)
            cursor.rows(f"CREATE TEMP TABLE {request.made.name} AS {request.made.sql}")
            yield request.made.name, cursor.table(f"FROM temp.main.{request.made.name}")
        _offer_listed(cursor, request.listed_keys)
        for place, text in enumerate(request.texts):
            yield f"{TEXT}{place}", cursor.table(text)


def _offer_listed(cursor: Cursor, keys: bytes | None) -> None:
    if keys is not None:
        cursor.offer(LISTED_KEYS, from_bytes(keys))


@contextlib.contextmanager
def _opened(request: TaskRequest) -> Iterator[Cursor]:
    """Yield a cursor of a new DuckDB, which writes what memory does not hold to a folder of its own."""
    folder = tempfile.mkdtemp(prefix="dpsql-", dir=os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None)
    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "memory_limit": request.memory_limit,
        "temp_directory": folder,
    }
    library: Path | None = native_library() if request.has_native else None
    if library:
        config["allow_unsigned_extensions"] = "true"
    try:
        with contextlib.closing(duckdb.connect(":memory:", config=config)) as database:
            # wide whole numbers and UUIDs stay what they are
            database.execute("SET arrow_lossless_conversion = true")
            # texts of more than 2 GB are handed on, too
            database.execute("SET arrow_large_buffer_size = true")
            connection = LocalConnection(database, library)
            if library:
                connection.load_native()
            with connection.pinned() as cursor:
                _require_same(cursor, request)
                yield cursor
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _require_same(cursor: Cursor, request: TaskRequest) -> None:
    if cursor.rows(PROBE) != [request.probe]:
        raise _OtherError(OTHER)
    if request.has_native:
        text, expected = NATIVE_PROBE
        with contextlib.suppress(duckdb.Error):
            if cursor.rows(text) == [expected]:
                return
        raise _OtherError(NO_NATIVE)


def _fill(cursor: Cursor, request: TaskRequest, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.Table]]:
    """Put rows of Spark into the tables; yield them, too, if they are handed on."""
    for rows in _gathered(batches):
        for place, table in enumerate(request.tables):
            own = rows.filter(pc.equal(rows[SOURCE], place)) if len(request.tables) > 1 else rows
            own = own.select([column_name(place, number) for number in range(len(table.columns))])
            _insert(cursor, table, own)
            if request.keeps:
                yield packed_name(table.name), own


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield batches in tables of many rows: a statement for each takes time."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(one.num_rows for one in waiting) >= _ROWS_AT_ONCE:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def _insert(cursor: Cursor, table: TaskTable, rows: pa.Table) -> None:
    if table.columns:
        cursor.offer(_OFFERED, rows)
        cursor.rows(f"INSERT INTO {HOME}.{quote(table.name)} FROM {_OFFERED}")
    else:
        cursor.rows(f"INSERT INTO {HOME}.{quote(table.name)} SELECT NULL FROM range({rows.num_rows})")


def _unpack(cursor: Cursor, request: TaskRequest, batches: Iterable[pa.RecordBatch]) -> None:
    """Put what an earlier task handed on into the tables.

    Raises:
        _FailedError: the earlier task failed, or some of its rows are missing.

    """
    tables = {packed_name(table.name): table for table in request.tables}
    held: list[pa.Table] = []
    counts, told = Counter[str](), {}
    for row in (row for batch in batches for row in batch.to_pylist()):
        if row["failure"]:
            raise _FailedError
        if row["name"] == DONE:
            told = json.loads(row["rows"])
            continue
        counts[row["name"]] += 1
        if row["name"] == request.held:
            held.append(from_bytes(row["rows"]))
        else:
            _insert(cursor, tables[row["name"]], from_bytes(row["rows"]))
    if any(counts[name] != told.get(name, 0) for name in request.needed):
        raise _FailedError
    if request.held:
        cursor.offer(_OFFERED, pa.concat_tables(held))
        cursor.rows(f"CREATE TEMP TABLE {request.held} AS FROM {_OFFERED}")
