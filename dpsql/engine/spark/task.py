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
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from dpsql.assets import native_library
from dpsql.bound.aggregation import LISTED_KEYS
from dpsql.bound.partials import PartialRows
from dpsql.engine.arrow_stream import from_stream
from dpsql.engine.connection import Cursor, answers_native
from dpsql.engine.parts.part_database import open_part_database
from dpsql.engine.parts.process import PROBE
from dpsql.engine.spark.request import (
    ADDED,
    DONE,
    FAILED,
    HOME,
    LARGE,
    NO_NATIVE,
    OTHER,
    OUTPUT,
    SOURCE,
    TEXT,
    TaskRequest,
    TaskTable,
    column_name,
    few,
    packed_name,
    to_bytes,
)
from dpsql.operations.dialect import quote

_OFFERED = "dpsql_task_rows"
_BUCKET = "dpsql_bucket"
_ROWS_AT_ONCE = 2**17
_MOST_BYTES = 2**26
"""Bytes of a piece, about: Spark holds a piece as one value."""


class _OtherError(Exception):
    """The task has other libraries than the process that asks; the text is a word of a failure."""


class _FailedError(Exception):
    """A task before this one failed."""


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
        for name, bucket, table in _found(request, batches):
            for piece in _pieces(table):
                counts[name] += 1
                yield _row(part, attempt, name, bucket, None, to_bytes(piece))
    except _OtherError as error:
        failure = str(error)
    except Exception:
        failure = FAILED
    yield _row(part, attempt, DONE, None, failure or None, json.dumps(counts).encode())


def add_bucket(
    request: TaskRequest, bucket: int, attempt: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield rows of `OUTPUT`: the large rows of texts, those of equal keys added up, or one row with a failure.

    The last row counts the pieces that were given, by name.

    Args:
        request: what the tasks on parts did.
        bucket: number of the task.
        attempt: number of this run of the task.
        batches: what these tasks handed on into some buckets, all of each bucket.

    """
    given, failure = Counter[str](), ""
    try:
        found: dict[str, list[pa.Table]] = defaultdict(list)
        for row in (row for batch in batches for row in batch.to_pylist()):
            given[row["name"]] += 1
            found[row["name"]].append(from_stream(row["rows"]))
        with _opened(request) as cursor:
            for place, text in enumerate(request.texts):
                if pieces := found.get(f"{LARGE}{place}"):
                    for piece in _pieces(_added(cursor, text, pa.concat_tables(pieces))):
                        yield _row(bucket, attempt, f"{ADDED}{place}", None, None, to_bytes(piece))
    except Exception:
        failure = FAILED
    yield _row(bucket, attempt, ADDED, None, failure or None, json.dumps(given).encode())


def _added(cursor: Cursor, text: PartialRows, rows: pa.Table) -> pa.Table:
    """Return rows with the totals of equal keys added up, in their types."""
    cursor.offer(_OFFERED, rows)
    types = {str(name): str(kind) for name, kind, *_ in cursor.rows(f"DESCRIBE FROM {_OFFERED}")}
    sums = [f"CAST(sum({name}) AS {types[name]}) AS {name}" for name in text.totals]
    listed = ", ".join([*text.keys, *sums])
    return cursor.table(f"SELECT {listed} FROM {_OFFERED} GROUP BY {', '.join(text.keys)}")


def _row(part: int, attempt: int, name: str, bucket: int | None, failure: str | None, rows: bytes) -> pa.RecordBatch:
    values = (part, attempt, name, bucket, failure, rows)
    return pa.RecordBatch.from_arrays(
        [pa.array([value], field.type) for value, field in zip(values, OUTPUT, strict=True)], schema=OUTPUT
    )


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    """Yield a table in pieces of limited size; one at least, so that its columns are known."""
    rows = max(1, table.num_rows * _MOST_BYTES // max(table.nbytes, 1))
    for start in range(0, max(table.num_rows, 1), rows):
        yield table.slice(start, rows)


def _found(request: TaskRequest, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, int | None, pa.Table]]:
    """Yield the tables that are handed on, with their names and buckets."""
    with _opened(request) as cursor:
        for table in request.tables:
            columns = ", ".join(f"{quote(name)} {kind}" for name, kind in table.columns)
            cursor.rows(f"CREATE TABLE {HOME}.{quote(table.name)} ({columns or 'nothing INTEGER'})")
        if request.is_packed:
            _unpack(cursor, request, batches)
        else:
            yield from _fill(cursor, request, batches)
        for name, blob in request.public:
            cursor.offer(_OFFERED, from_stream(blob))
            cursor.rows(f"CREATE TABLE {HOME}.{quote(name)} AS FROM {_OFFERED}")
        for made in request.made:
            _offer_listed(cursor, made.listed_keys)
            cursor.rows(f"CREATE TEMP TABLE {made.name} AS {made.sql}")
            if made.is_handed_on:
                rows = cursor.table(f"FROM temp.main.{made.name}")
                ((units,),) = cursor.rows(f"SELECT count(DISTINCT unit) FROM temp.main.{made.name}")
                is_few = units <= request.few_units and rows.nbytes <= _MOST_BYTES
                yield few(made.name) if is_few else made.name, None, rows
        _offer_listed(cursor, request.listed_keys)
        for place, text in enumerate(request.texts):
            rows = cursor.table(text.sql)
            if text.keys and rows.num_rows > request.most_rows:
                for bucket, own in _buckets(cursor, text, rows, request.buckets):
                    yield f"{LARGE}{place}", bucket, own
            else:
                yield f"{TEXT}{place}", None, rows


def _buckets(cursor: Cursor, text: PartialRows, rows: pa.Table, number: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield rows by bucket; those of equal keys are in one bucket in all tasks."""
    cursor.offer(_OFFERED, rows)
    place = f"CAST(hash({', '.join(text.keys)}) % {number:d} AS INTEGER)"
    ordered = cursor.table(f"SELECT *, {place} AS {_BUCKET} FROM {_OFFERED} ORDER BY {_BUCKET}")
    columns, start = ordered.drop_columns([_BUCKET]), 0
    for counted in pc.value_counts(ordered[_BUCKET]).to_pylist():
        yield counted["values"], columns.slice(start, counted["counts"])
        start += counted["counts"]


def _offer_listed(cursor: Cursor, keys: bytes | None) -> None:
    if keys is not None:
        cursor.offer(LISTED_KEYS, from_stream(keys))


@contextlib.contextmanager
def _opened(request: TaskRequest) -> Iterator[Cursor]:
    """Yield a cursor of a new DuckDB, which writes what memory does not hold to a folder of its own."""
    folder = tempfile.mkdtemp(prefix="dpsql-", dir=os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None)
    library = native_library() if request.has_native else None
    try:
        database, connection = open_part_database(request.memory_limit, folder, library)
        with contextlib.closing(database), connection.pinned() as cursor:
            _require_same(cursor, request)
            yield cursor
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _require_same(cursor: Cursor, request: TaskRequest) -> None:
    if cursor.rows(PROBE) != [request.probe]:
        raise _OtherError(OTHER)
    if request.has_native and not answers_native(cursor):
        raise _OtherError(NO_NATIVE)


def _fill(
    cursor: Cursor, request: TaskRequest, batches: Iterable[pa.RecordBatch]
) -> Iterator[tuple[str, int | None, pa.Table]]:
    """Put rows of Spark into the tables; yield them, too, if they are handed on."""
    for rows in _gathered(batches) if request.tables else ():
        for place, table in enumerate(request.tables):
            own = _rows_of(rows, place, request.lone_unit)
            own = own.select([column_name(place, number) for number in range(len(table.columns))])
            _insert(cursor, table, own)
            if request.keeps:
                yield packed_name(table.name), None, own


def _rows_of(rows: pa.Table, place: int, lone_unit: str) -> pa.Table:
    """Return the rows of the table at a place."""
    if not lone_unit:
        return rows.filter(pc.equal(rows[SOURCE], place))
    return rows.filter(pc.is_valid(rows[lone_unit])) if rows[lone_unit].null_count else rows


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield batches in tables of many rows: a statement for each takes time."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS_AT_ONCE:
            yield pa.Table.from_batches(waiting)
            waiting, rows = [], 0
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
        if request.held and row["name"] in request.needed:
            held.append(from_stream(row["rows"]))
        else:
            _insert(cursor, tables[row["name"]], from_stream(row["rows"]))
    if any(counts[name] != told.get(name, 0) for name in request.needed):
        raise _FailedError
    if request.held:
        cursor.offer(_OFFERED, pa.concat_tables(held))
        cursor.rows(f"CREATE TEMP TABLE {request.held} AS FROM {_OFFERED}")
