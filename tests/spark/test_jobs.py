"""Jobs of Spark: their progress, and an interrupt."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import dpsql
from dpsql.engine.spark import cluster
from tests.end_to_end.test_parts import QUESTIONS, SMALL, TABLES, declare
from tests.spark.conftest import to_spark
from tests.spark.test_answers import ALL
from tests.spark.test_kills import mark_tasks


def test_progress_follows_the_tasks_of_a_question(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dpsql.connect() as whole:
        whole.connection.execute(TABLES.format(rows=SMALL[0], people=SMALL[1]))
        to_spark(whole.connection, spark, tmp_path / "files", ALL)
    with dpsql.connect(spark=spark, state=tmp_path / "clinic.dpsql") as session:
        declare(session)
        session.sql(QUESTIONS["rows"], rho=0.5, delta=1e-6)
        assert session.progress() is None
        mark = mark_tasks(monkeypatch, tmp_path, 0, kills=False)
        asking = threading.Thread(target=lambda: session.sql(QUESTIONS["sums"], rho=0.5, delta=1e-6))
        asking.start()
        seen = []
        while asking.is_alive():
            seen.append(session.progress())
            time.sleep(0.1)
        assert mark.exists()
        assert session.progress() is None
    told = [one for one in seen if one is not None]
    assert told
    assert all(0 <= one <= 1 for one in told)


def test_an_interrupt_cancels_the_jobs_of_a_question(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C reaches this program while it waits for Spark."""
    opened = cluster.PySparkCluster(spark, tmp_path)
    cancelled: list[str] = []
    monkeypatch.setattr(spark.sparkContext, "cancelJobGroup", cancelled.append)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opened._run(interrupted, None)
    assert len(cancelled) == 1
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None
    opened.close()
