"""A task or a machine of Spark that dies: the same answer, and one charge."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

import dpsql
from dpsql.engine.spark import carrier, cluster
from dpsql.engine.spark.request import TaskRequest
from dpsql.engine.spark.task import run_part
from tests.end_to_end.test_parts import QUESTIONS, SMALL, TABLES, answered, declare
from tests.spark.conftest import started, to_spark
from tests.spark.test_answers import ALL

ASKED = ("rows", "AUTO")
SECONDS = 120.0


def asked_twice(spark: Any, folder: Path, disturb: Any) -> None:
    """Compare answers of an undisturbed session with those of a disturbed one, and their charges."""
    with dpsql.connect() as whole:
        whole.connection.execute(TABLES.format(rows=SMALL[0], people=SMALL[1]))
        to_spark(whole.connection, spark, folder / "files", ALL)
    found: list[list[tuple[object, str]]] = []
    spent: list[int] = []
    for name in ("calm", "disturbed"):
        with dpsql.connect(spark=spark, state=folder / f"{name}.dpsql") as session:
            declare(session)
            if name == "disturbed":
                disturb(session)
            found.append([answered(session, QUESTIONS[asked]) for asked in ASKED])
            spent.append(session._access.read().ledger.spent("patient").rho_nano)
    assert found[1] == found[0]
    assert spent[1] == spent[0]


def mark_tasks(monkeypatch: pytest.MonkeyPatch, folder: Path, place: int, *, kills: bool) -> Path:
    """Let the first task of a stage leave a mark and end its process, or wait; return the mark."""
    mark, stages = folder / "mark", iter(range(1_000))

    def mapped(frame: Any, request: TaskRequest) -> Any:
        is_marked = next(stages) == place

        def part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            task: Any = TaskContext.get()
            if is_marked and not mark.exists():
                mark.touch()
                if kills:
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(5)
            yield from run_part(request, task.partitionId(), task.taskAttemptId(), batches)

        return frame.mapInArrow(part, cluster._OUTPUT)

    monkeypatch.setattr(cluster, "mapped", mapped)
    return mark


@pytest.mark.parametrize("place", [0, 1, 2, 4])
def test_a_task_that_dies_changes_nothing(
    place: int, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stages are the snapshot, tables that are made, and readings."""
    monkeypatch.setattr(carrier, "FEW_UNITS", -1)
    marks: list[Path] = []
    asked_twice(spark, tmp_path, lambda _: marks.append(mark_tasks(monkeypatch, tmp_path, place, kills=True)))
    assert marks[0].exists()


def executors() -> list[int]:
    """Return the processes of machines of this Spark."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            is_executor = b"CoarseGrainedExecutorBackend" in place.read_bytes()
        except OSError:
            continue
        if is_executor:
            found.append(int(place.parent.name))
    return found


def test_a_machine_that_dies_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = started("local-cluster[2,1,1024]", tmp_path)
    killed: list[int] = []

    def disturb(_: dpsql.Session) -> None:
        mark = mark_tasks(monkeypatch, tmp_path, 1, kills=False)

        def kill() -> None:
            began = time.monotonic()
            while not mark.exists() and time.monotonic() - began < SECONDS:
                time.sleep(0.05)
            killed.extend(executors()[:1])
            os.kill(killed[0], signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()

    try:
        asked_twice(spark, tmp_path, disturb)
    finally:
        spark.stop()
    assert killed
