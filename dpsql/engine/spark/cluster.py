"""A cluster of Spark, asked through pyspark: tables, snapshots of their rows, and tasks on parts.

A snapshot is a reliable checkpoint: files of the cluster from which each task reads its rows. A frame that Spark keeps
in memory would be computed again from the source if a machine is lost, and the source may have changed by then.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import secrets
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyspark
from pyspark import SparkContext, TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as of

from dpsql.engine.connection import interrupt_after, seconds_left
from dpsql.engine.definitions import redefined
from dpsql.engine.spark.carrier import has_large
from dpsql.engine.spark.checkpoint_folder import enter_folder, leave_folder
from dpsql.engine.spark.request import DONE, LARGE, SOURCE, TEXT, TaskRequest, column_name
from dpsql.engine.spark.tables import SparkTable, UnitTable, duckdb_type, spark_unit_kind
from dpsql.engine.spark.task import add_bucket, run_part
from dpsql.errors import EngineError, MissingPackageError, PolicyError
from dpsql.model.environment import folded

_T = TypeVar("_T")

_OUTPUT = "part int, attempt bigint, name string, bucket int, failure string, rows binary"
_UNIT = "unit"
_LEAST_VERSION = 4
RunTask = Callable[[TaskRequest, int, int, Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_PARTS = "spark.dpsql.parts"
"""Setting of a Spark session: number of parts. By default it is the number of cores."""
_PROBED: weakref.WeakKeyDictionary[SparkContext, dict[TaskRequest, pa.Table]] = weakref.WeakKeyDictionary()
"""What machines said to a request without rows. A machine that comes later is compared by each of its tasks."""


class PySparkCluster:
    """The current database of a Spark session.

    Args:
        session: the session, of a driver in this process.
        folder: folder beside which a checkpoint folder is made, if Spark has none and runs on this machine alone.

    Raises:
        PolicyError: it is another object, a session of Spark Connect, or there is no checkpoint folder.
        MissingPackageError: pyspark is older than version 4.

    """

    def __init__(self, session: SparkSession, folder: Path | None) -> None:
        _require_session(session)
        self._spark = session
        self._context = session.sparkContext
        catalog, database = session.catalog.currentCatalog(), session.catalog.currentDatabase()
        self._names = (catalog, database)
        self.place = f"{catalog}.{database}"
        self.parts = int(str(session.conf.get(_PARTS, None) or self._context.defaultParallelism))
        self._own_folder = enter_folder(self._context, folder)
        self._groups: list[str] = []

    def close(self) -> None:
        """Remove the checkpoint folder with the last session that uses it."""
        leave_folder(self._own_folder)

    def _full_name(self, name: str) -> str:
        return ".".join(f"`{part.replace('`', '``')}`" for part in (*self._names, name))

    def table(self, name: str) -> SparkTable | None:
        """Return a table of the database, or None if there is none.

        Raises:
            PolicyError: it is a view.

        """
        full = self._full_name(name)
        if not self._spark.catalog.tableExists(full):
            if self._spark.catalog.tableExists(f"`{name.replace('`', '``')}`"):
                raise _of_view(name)
            return None
        if self._spark.catalog.getTable(full).tableType not in ("MANAGED", "EXTERNAL"):
            raise _of_view(name)
        return SparkTable(folded(name), tuple(_columns(self._spark.table(full))))

    def public_rows(self, table: SparkTable, most_bytes: int) -> pa.Table:
        """Return all rows of a public table.

        Raises:
            PolicyError: they are too many.

        """
        names = [name for name, _ in table.columns]
        frame = self._spark.table(self._full_name(table.name)).select(*map(_quoted, names))
        rows: pa.Table = self._run(frame.toArrow, None)
        if rows.nbytes > most_bytes:
            raise PolicyError(
                f"the public table {table.name!r} has {rows.nbytes // 2**20:,} MB, and each task takes all of it "
                f"along: at most {most_bytes // 2**20:,} MB"
            )
        return rows.rename_columns(names)

    def mark(self, table: SparkTable) -> str | None:
        """Return a text that changes if files of a table do, or None if it has none."""
        with contextlib.suppress(Exception):
            files = self._spark.table(self._full_name(table.name)).inputFiles()
            return hashlib.sha256("\n".join(sorted(files)).encode()).hexdigest()
        return None

    def snapshot(
        self, tables: Sequence[UnitTable], request: TaskRequest, timeout_seconds: float | None
    ) -> tuple[SparkRows, pa.Table]:
        """Return what a task hands on of the rows of tables as they are now, in parts of whole units.

        Raises:
            EngineError: Spark could not read them, a table has other columns, a key is there twice, or the time ran
                out; the message is constant.

        """
        for one in tables:
            found = self.table(one.table.name)
            if found is None or found.columns != one.table.columns:
                raise redefined()
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        frames = [self._read(place, one) for place, one in enumerate(tables)]
        if not any(one.links or one.keys for one in tables):
            handed_on = mapped(self._in_parts(frames), request)
            held = self._run(handed_on.checkpoint, seconds_left(deadline))
            rows = SparkRows(self, held, [held])
        else:
            checkpoints = [self._run(frame.checkpoint, seconds_left(deadline)) for frame in frames]
            for place, one in enumerate(tables):
                for key in one.keys:
                    names = [_place(tables, place, name) for name in key]
                    self._require_unique(checkpoints[place], names, seconds_left(deadline))
            with_units = [_with_unit(tables, place, checkpoints) for place in range(len(tables))]
            # computed again, it has the same rows: they come from the checkpoints
            rows = SparkRows(self, mapped(self._in_parts(with_units), request).persist(), checkpoints)
        return rows, self.texts(rows.frame, request, seconds_left(deadline))

    def texts(self, frame: DataFrame, request: TaskRequest, timeout_seconds: float | None) -> pa.Table:
        """Return the rows of texts that tasks handed on; those that are too many are added up in Spark first."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        small = of.col("name").startswith(TEXT) | (of.col("name") == DONE)
        found = self._run(frame.where(small).toArrow, timeout_seconds)
        if not has_large(found):
            return found
        large = frame.where(of.col("name").startswith(LARGE)).repartition(self.parts, "bucket")
        return pa.concat_tables([found, self._run(mapped(large, request, add_bucket).toArrow, seconds_left(deadline))])

    def _in_parts(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Return the rows of all frames, those of each unit in one part."""
        whole = functools.reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
        return whole.repartition(self.parts, _UNIT).drop(_UNIT)

    def _read(self, place: int, one: UnitTable) -> DataFrame:
        """Return the columns of a table that a question reads, and those that lead to its unit."""
        frame = self._spark.table(self._full_name(one.table.name))
        columns = [of.col(_quoted(name)).alias(alias) for name, alias in _aliases(place, one)]
        unit = [] if one.links else [_unit(one.table, one.unit, of.col(_quoted(one.unit))).alias(_UNIT)]
        return frame.select(of.lit(place).alias(SOURCE), *unit, *columns)

    def _require_unique(self, frame: DataFrame, key: Sequence[str], timeout_seconds: float | None) -> None:
        known = functools.reduce(lambda one, other: one & other, [of.col(name).isNotNull() for name in key])
        twice = frame.where(known).groupBy(*key).count().where(of.col("count") > 1).limit(1)
        if self._run(twice.count, timeout_seconds):
            raise EngineError("a key that a link leads to is there twice, so its row has no one unit", withheld=False)

    def probe(self, request: TaskRequest) -> pa.Table:
        """Return what a task hands on that is given no rows."""
        known = _PROBED.setdefault(self._context, {})
        if request not in known:
            frame = self._spark.range(0, self.parts, 1, self.parts)
            known[request] = self._run(mapped(frame, request).toArrow, None)
        return known[request]

    def progress(self) -> float | None:
        """Return how much of the tasks of running stages is done, or None if it is not known."""
        tracker, done, all_tasks = self._context.statusTracker(), 0, 0
        with contextlib.suppress(Exception):
            for group in self._groups[-1:]:
                for job in map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)):
                    for stage in map(tracker.getStageInfo, job.stageIds if job else ()):
                        done += stage.numCompletedTasks if stage else 0
                        all_tasks += stage.numTasks if stage else 0
        return done / all_tasks if all_tasks else None

    def _run(self, action: Callable[[], _T], timeout_seconds: float | None) -> _T:
        """Run an action of Spark in a job group of its own, which a limit of time and an interrupt cancel.

        Raises:
            EngineError: it failed, or the time ran out; the message is constant.

        """
        group, context = f"dpsql-{secrets.token_hex(8)}", self._context
        before = {name: context.getLocalProperty(name) for name in _GROUP_PROPERTIES}
        context.setJobGroup(group, "dpsql", interruptOnCancel=True)
        self._groups.append(group)
        failed = True
        found: list[_T] = []
        with interrupt_after(timeout_seconds, lambda: context.cancelJobGroup(group)) as expired:
            try:
                found.append(action())
                failed = False
            except Exception:
                # raised below, so that no text of Spark travels along
                failed = True
            except BaseException:
                context.cancelJobGroup(group)
                raise
            finally:
                self._groups.remove(group)
                for name, value in before.items():
                    context.setLocalProperty(name, value)
        if expired.is_set():
            raise EngineError.out_of_time()
        if failed:
            raise EngineError("Spark could not run the tasks of the query")
        return found[0]

    def remove_checkpoint(self, frame: DataFrame) -> None:
        """Remove the files of a checkpoint."""
        with contextlib.suppress(Exception):
            place = frame._jdf.queryExecution().analyzed().rdd().getCheckpointFile().get()
            path = self._context._jvm.org.apache.hadoop.fs.Path(place)
            path.getFileSystem(self._context._jsc.hadoopConfiguration()).delete(path, True)


_GROUP_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


class SparkRows:
    """What tasks handed on of each part.

    Args:
        cluster: the cluster.
        frame: a frame of `request.OUTPUT` that is kept, with one partition for each part.
        checkpoints: frames whose files end with these rows.

    """

    def __init__(self, cluster: PySparkCluster, frame: DataFrame, checkpoints: Sequence[DataFrame] = ()) -> None:
        self._cluster, self.frame, self._checkpoints = cluster, frame, checkpoints

    def read(self, request: TaskRequest, timeout_seconds: float | None) -> pa.Table:
        """Return what a task hands on of each part."""
        return self._cluster.texts(mapped(self._needed(request), request), request, timeout_seconds)

    def made(self, request: TaskRequest, timeout_seconds: float | None) -> tuple[SparkRows, pa.Table]:
        """Return what a task hands on of each part, which Spark keeps, and its rows of texts."""
        frame = mapped(self._needed(request), request).persist()
        return SparkRows(self._cluster, frame), self._cluster.texts(frame, request, timeout_seconds)

    def _needed(self, request: TaskRequest) -> DataFrame:
        return self.frame.where(of.col("name").isin(DONE, *request.needed))

    def drop(self) -> None:
        """Let Spark forget the rows, and remove their files."""
        with contextlib.suppress(Exception):
            self.frame.unpersist()
        for frame in self._checkpoints:
            self._cluster.remove_checkpoint(frame)


def mapped(frame: DataFrame, request: TaskRequest, run: RunTask = run_part) -> DataFrame:
    """Return what a task hands on of each partition of a frame."""

    def dpsql_part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task: Any = TaskContext.get()
        yield from run(request, task.partitionId(), task.taskAttemptId(), batches)

    return frame.mapInArrow(dpsql_part, _OUTPUT)


def _require_session(session: object) -> None:
    if int(pyspark.__version__.split(".")[0]) < _LEAST_VERSION:
        raise MissingPackageError(f"pyspark 4 or later in place of {pyspark.__version__}", "spark")
    if not isinstance(session, SparkSession) or session.__class__.__module__ != SparkSession.__module__:
        raise PolicyError(
            f"spark= takes a Spark session with its driver in this process, and was given a {type(session).__name__}"
        )


def _of_view(name: str) -> PolicyError:
    return PolicyError(
        f"{name!r} is a view of Spark, and dpsql reads tables: make a table of its files, as in CREATE TABLE {name} "
        "USING parquet LOCATION '/data/visits'"
    )


def _columns(frame: DataFrame) -> Iterator[tuple[str, str]]:
    for field in frame.schema.fields:
        kind = duckdb_type(field.dataType.simpleString())
        if kind is not None:
            yield field.name, kind


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _aliases(place: int, one: UnitTable) -> list[tuple[str, str]]:
    """Return the columns of a table that are read, each with the name that Spark gives it from here on.

    The columns of the texts come first, as `request.TaskTable` has them.
    """
    more = [name for columns, _, _ in one.links[:1] for name in columns]
    more += [name for key in one.keys for name in key]
    names = list(dict.fromkeys((*one.columns, *(_own(one.table, name) for name in more))))
    return [(name, column_name(place, number)) for number, name in enumerate(names)]


def _own(table: SparkTable, name: str) -> str:
    found = table.column(name)
    if found is None:
        raise redefined()
    return found[0]


def _place(tables: Sequence[UnitTable], place: int, name: str) -> str:
    """Return the name by which Spark knows a column of a table that is read."""
    one = tables[place]
    return dict(_aliases(place, one))[_own(one.table, name)]


def _unit(table: SparkTable, unit: str, column: Column) -> Column:
    """Return a unit as a value that is the same for each width of an integer."""
    found = table.column(unit)
    kind = found and spark_unit_kind(found[1])
    return column.cast("bigint") if kind == "whole number" else column


def _with_unit(tables: Sequence[UnitTable], place: int, frames: Sequence[DataFrame]) -> DataFrame:
    """Return a frame with the unit of each row, found by the joins of its links."""
    one = tables[place]
    if not one.links:
        return frames[place]
    names = [other.table.name for other in tables]
    frame, child = frames[place], place
    own = frame.columns
    for columns, parent, key in one.links:
        parent_place = names.index(parent.removeprefix("main."))
        met = frames[parent_place].drop(SOURCE)
        equal = [
            of.col(_place(tables, child, column)) == of.col(_place(tables, parent_place, other))
            for column, other in zip(columns, key, strict=True)
        ]
        frame = frame.join(met, functools.reduce(lambda left, right: left & right, equal))
        child = parent_place
    return frame.select(of.col(_UNIT), *own)
