"""A query ends when its time is over or another thread says so, and not before."""

from __future__ import annotations

import threading
import time

import duckdb
import pytest

from dpsql.engine import DuckDBEngine, stopped_by
from dpsql.errors import EngineError

_ENDLESS = "SELECT sum(sqrt(i)) AS s FROM range(100_000_000_000) t(i)"


def run(sql: str, timeout_seconds: float | None) -> int:
    with duckdb.connect() as connection:
        engine = DuckDBEngine(connection)
        return int(engine.aggregate(sql, listed_keys=None, timeout_seconds=timeout_seconds).reveal().num_rows)


@pytest.mark.parametrize("timeout_seconds", [None, 600.0])
def test_another_thread_stops_a_query(timeout_seconds: float | None) -> None:
    stop = threading.Event()
    timer = threading.Timer(0.1, stop.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(EngineError, match="ran out of time"), stopped_by(stop):
        run(_ENDLESS, timeout_seconds)
    assert time.monotonic() - began < 300
    timer.join()


def test_what_is_stopped_before_it_begins_does_not_run_on() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(EngineError), stopped_by(stop):
        run(_ENDLESS, None)


def test_a_stop_that_is_not_given_changes_nothing() -> None:
    with stopped_by(threading.Event()):
        assert run("SELECT 1 AS one", None) == 1
        with pytest.raises(EngineError, match="ran out of time"):
            run(_ENDLESS, 0.05)


def test_a_stop_is_for_its_thread_and_its_block() -> None:
    stop = threading.Event()
    stop.set()
    rows: list[int] = []
    with stopped_by(stop):
        other = threading.Thread(target=lambda: rows.append(run("SELECT 1 AS one", None)))
        other.start()
        other.join()
    assert rows == [1]
    assert run("SELECT 1 AS one", None) == 1
