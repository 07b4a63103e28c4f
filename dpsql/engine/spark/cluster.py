"""A cluster of Spark, asked through pyspark: tables, snapshots of their rows, and tasks on parts.

A snapshot is a reliable checkpoint: files of the cluster from which each task reads its rows. A frame that Spark keeps
in memory would be computed again from the source if a machine is lost, and the source may have changed by then.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import secrets
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyspark
from pyspark import SparkContext, TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as of

from dpsql.engine.connection import interrupt_after, seconds_left
from dpsql.engine.definitions import redefined
from dpsql.engine.spark.carrier import has_large
from dpsql.engine.spark.checkpoint_folder import enter_folder, leave_folder
from dpsql.engine.spark.frames import (
    UNIT,
    alias_of,
    aliases,
    duckdb_columns,
    quoted_name,
    unit_of,
    valid_column,
    with_unit,
)
from dpsql.engine.spark.request import DONE, FEW, LARGE, NO_TABLE, SOURCE, TEXT, TaskRequest
from dpsql.engine.spark.tables import SparkTable, UnitTable
from dpsql.engine.spark.task import add_bucket, run_part
from dpsql.errors import DpsqlError, EngineError, MissingPackageError, PolicyError
from dpsql.model.environment import folded

_T = TypeVar("_T")

_OUTPUT = "part int, attempt bigint, name string, bucket int, failure string, rows binary"
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
        folder: folder in which a checkpoint folder is made, if Spark has none and runs on this machine alone.

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
        self.parts = _number_of_parts(session.conf.get(_PARTS, None) or self._context.defaultParallelism)
        self._own_folder = enter_folder(self._context, folder)
        self._groups: list[str] = []

    def close(self) -> None:
        """Remove the checkpoint folder with the last session that uses it."""
        leave_folder(self._own_folder)

    def _full_name(self, name: str) -> str:
        return ".".join(map(quoted_name, (*self._names, name)))

    def table(self, name: str) -> SparkTable | None:
        """Return a table of the database, or None if there is none.

        Raises:
            PolicyError: it is a view.
            EngineError: Spark could not be asked.

        """
        failure = EngineError("Spark could not be asked for its tables: was its session stopped?", charged=False)
        return _or_raise(lambda: self._table(name), failure)

    def _table(self, name: str) -> SparkTable | None:
        full = self._full_name(name)
        if not self._spark.catalog.tableExists(full):
            if self._spark.catalog.tableExists(quoted_name(name)):
                raise _of_view(name)
            return None
        if self._spark.catalog.getTable(full).tableType not in ("MANAGED", "EXTERNAL"):
            raise _of_view(name)
        return SparkTable(folded(name), tuple(duckdb_columns(self._spark.table(full))))

    def public_rows(self, table: SparkTable, most_bytes: int) -> pa.Table:
        """Return all rows of a public table.

        Raises:
            PolicyError: they are too many.

        """
        names = [name for name, _ in table.columns]
        self._refresh(table.name)
        columns = [valid_column(table, name).alias(name) for name in names]
        frame = self._spark.table(self._full_name(table.name)).select(*columns)
        rows: pa.Table = self._run(frame.toArrow, None)
        if rows.nbytes > most_bytes:
            raise PolicyError(
                f"the public table {table.name!r} has {rows.nbytes // 2**20:,} MB, and each task takes all of it "
                f"along: at most {most_bytes // 2**20:,} MB"
            )
        return rows.rename_columns(names)

    def mark(self, table: SparkTable) -> str | None:
        """Return a text that changes if files of a table do, or None if it has none."""
        self._refresh(table.name)
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
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        checkpoints: list[DataFrame] = []
        failure = EngineError("Spark could not read the tables of the query")
        with contextlib.ExitStack() as undone:
            undone.callback(self.remove, checkpoints)
            rows = _or_raise(lambda: self._snapshot(tables, request, checkpoints, deadline), failure)
            undone.callback(rows.drop)
            found = _or_raise(lambda: self.texts(rows.frame, request, seconds_left(deadline)), failure)
            undone.pop_all()
        return rows, found

    def _snapshot(
        self, tables: Sequence[UnitTable], request: TaskRequest, checkpoints: list[DataFrame], deadline: float | None
    ) -> SparkRows:
        """Return what a task hands on; checkpoints are added to the list as they are made."""
        for one in tables:
            self._refresh(one.table.name)
            found = self.table(one.table.name)
            if found is None or found.columns != one.table.columns:
                raise redefined()
        frames = [self._read(place, one, is_lone=bool(request.lone_unit)) for place, one in enumerate(tables)]
        if not any(one.links or one.keys for one in tables):
            handed_on = mapped(self._in_parts(frames), request)
            checkpoints.append(self._run(handed_on.checkpoint, seconds_left(deadline)))
            return SparkRows(self, checkpoints[0], checkpoints)
        for frame in frames:
            checkpoints.append(self._run(frame.checkpoint, seconds_left(deadline)))  # noqa: PERF401 — also if one fails
        for place, one in enumerate(tables):
            for key in one.keys:
                names = [alias_of(tables, place, name) for name in key]
                self._require_unique(checkpoints[place], names, seconds_left(deadline))
        with_units = [with_unit(tables, place, checkpoints) for place in range(len(tables))]
        # computed again, it has the same rows: they come from the checkpoints
        return SparkRows(self, mapped(self._in_parts(with_units), request).persist(), checkpoints)

    def _refresh(self, name: str) -> None:
        """Let Spark look again which files a table has: other programs may have written some."""
        with contextlib.suppress(Exception):
            self._spark.catalog.refreshTable(self._full_name(name))

    def remove(self, checkpoints: Sequence[DataFrame]) -> None:
        """Remove the files of checkpoints."""
        for frame in checkpoints:
            with contextlib.suppress(Exception):
                place = frame._jdf.queryExecution().analyzed().rdd().getCheckpointFile().get()
                path = self._context._jvm.org.apache.hadoop.fs.Path(place)
                path.getFileSystem(self._context._jsc.hadoopConfiguration()).delete(path, True)

    def texts(self, frame: DataFrame, request: TaskRequest, timeout_seconds: float | None) -> pa.Table:
        """Return the rows of texts that tasks handed on; those that are too many are added up in Spark first."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        small = of.col("name").startswith(TEXT) | of.col("name").startswith(FEW) | (of.col("name") == DONE)
        found = self._run(frame.where(small).toArrow, timeout_seconds)
        if not has_large(found):
            return found
        large = frame.where(of.col("name").startswith(LARGE)).repartition(self.parts, "bucket")
        return pa.concat_tables([found, self._run(mapped(large, request, add_bucket).toArrow, seconds_left(deadline))])

    def _in_parts(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Return the rows of all frames, those of each unit in one part."""
        # Spark would leave out the parts of what it knows to be empty
        marked = of.lit(NO_TABLE).alias(SOURCE) if SOURCE in frames[0].columns else of.lit(None).alias(UNIT)
        seed = self._spark.range(1).select(marked)
        whole = functools.reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), [*frames, seed])
        return whole.repartition(self.parts, UNIT).drop(UNIT)

    def _read(self, place: int, one: UnitTable, *, is_lone: bool) -> DataFrame:
        """Return the columns of a table that a question reads, and those that lead to its unit."""
        frame = self._spark.table(self._full_name(one.table.name))
        columns = [valid_column(one.table, name).alias(alias) for name, alias in aliases(place, one)]
        unit = [] if one.links else [unit_of(one.table, one.unit).alias(UNIT)]
        source = [] if is_lone else [of.lit(place).alias(SOURCE)]
        return frame.select(*source, *unit, *columns)

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
        found: list[_T] = []
        with interrupt_after(timeout_seconds, lambda: context.cancelJobGroup(group)) as expired:
            try:
                # an error is raised below, so that no text of Spark travels along
                with contextlib.suppress(Exception):
                    found.append(action())
            except BaseException:
                context.cancelJobGroup(group)
                raise
            finally:
                self._groups.remove(group)
                for name, value in before.items():
                    context.setLocalProperty(name, value)
        if expired.is_set():
            raise EngineError.out_of_time()
        if not found:
            raise EngineError("Spark could not run the tasks of the query")
        return found[0]


_GROUP_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


def _or_raise(action: Callable[[], _T], failure: EngineError) -> _T:
    """Return what an action of Spark returns; raise an error in place of one of Spark, whose text travels nowhere."""
    try:
        return action()
    except Exception as error:
        raised = error if isinstance(error, DpsqlError) else failure
    raise raised


class SparkRows:
    """Rows that tasks handed on of each part.

    Args:
        cluster: the cluster.
        frame: a frame of `request.OUTPUT` that is kept, with one partition for each part.
        checkpoints: frames whose files end with these rows.

    """

    def __init__(self, cluster: PySparkCluster, frame: DataFrame, checkpoints: Sequence[DataFrame] = ()) -> None:
        self._cluster, self.frame, self._checkpoints = cluster, frame, checkpoints
        self.parts = cluster.parts

    def read(self, request: TaskRequest, timeout_seconds: float | None) -> pa.Table:
        """Return what a task hands on of each part."""
        return self._cluster.texts(mapped(self._needed(request), request), request, timeout_seconds)

    def made(self, request: TaskRequest, timeout_seconds: float | None) -> tuple[SparkRows, pa.Table]:
        """Return what a task hands on of each part, which Spark keeps, and its rows of texts."""
        made = SparkRows(self._cluster, mapped(self._needed(request), request).persist())
        with contextlib.ExitStack() as undone:
            undone.callback(made.drop)
            found = self._cluster.texts(made.frame, request, timeout_seconds)
            undone.pop_all()
        return made, found

    def _needed(self, request: TaskRequest) -> DataFrame:
        return self.frame.where(of.col("name").isin(DONE, *request.needed))

    def drop(self) -> None:
        """Let Spark forget the rows, and remove their files."""
        with contextlib.suppress(Exception):
            self.frame.unpersist()
        self._cluster.remove(self._checkpoints)


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
    if session.sparkContext._jsc is None:
        raise PolicyError("the Spark session was stopped: name one that runs")


def _number_of_parts(said: object) -> int:
    if not re.fullmatch(r"[1-9]\d{0,4}", str(said)):
        raise PolicyError(f"{_PARTS} is the number of parts, 1 or more, and is {said!r}")
    return int(str(said))


def _of_view(name: str) -> PolicyError:
    return PolicyError(
        f"{name!r} is a view of Spark, and dpsql reads tables: make a table of its files, as in CREATE TABLE {name} "
        "USING parquet LOCATION '/data/visits'"
    )
