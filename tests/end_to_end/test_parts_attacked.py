"""Processes and manifests of parts under attack: forks, closed sessions, ends in the middle, values by hand."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pytest

import dpsql
from dpsql.engine.parts.manifest import MANIFEST
from dpsql.engine.parts.pool import Task
from dpsql.engine.parts.process import send
from tests.end_to_end.test_parts import ASKED, PROTECTED, SECONDS, pool_of, price_of_failure
from tests.parts import small_split

RUN: dict[str, Any] = {
    "ask": "run",
    "transaction": "",
    "made": [],
    "listed_of_made": [],
    "listed_of_texts": None,
    "part": 0,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return small_split(tmp_path / "folder")


def test_an_order_that_the_curator_sets_is_no_other_split(folder: Path) -> None:
    with dpsql.connect(parts=folder) as session:
        session.sql(PROTECTED)
        session.connection.execute("SET GLOBAL default_order = 'DESC'")
        assert len(session.sql(ASKED, rho=0.1, delta=1e-6).fetchall()) == 3


@pytest.mark.parametrize(
    ("old", "new"), [("-1.duckdb", "-0.duckdb"), ("part-", "../part-"), ('"visits"', "7"), ('"patient"', "7")]
)
def test_a_manifest_with_other_values_is_damaged(old: str, new: str, folder: Path) -> None:
    """Units of a part that is there twice would count twice."""
    manifest = folder / MANIFEST
    manifest.write_text(manifest.read_text().replace("main.visits", "visits").replace(old, new))
    with pytest.raises(dpsql.PolicyError, match="is damaged"):
        dpsql.connect(parts=folder)


def test_other_public_rows_in_the_head_are_refused(folder: Path) -> None:
    """Joins would read the rows of the parts, and the rest those of the head."""
    with dpsql.connect(parts=folder) as session:
        session.sql(PROTECTED)
        session.connection.execute("UPDATE cities SET city = 'other' WHERE city = 'city 1'")
        assert price_of_failure(session, dpsql.PolicyError, "main.cities of head.duckdb has other rows") == 0


def test_a_closed_session_begins_no_process(folder: Path) -> None:
    with dpsql.connect(parts=folder) as session:
        pool = pool_of(session)
        pool.facts()
    with pytest.raises(dpsql.EngineError, match="was closed"):
        pool.facts()
    with pytest.raises(dpsql.EngineError, match="was closed"):
        session.sql(ASKED)
    assert not any(process._running for process in pool._processes)


def test_the_end_of_a_transaction_begins_no_process(folder: Path) -> None:
    with dpsql.connect(parts=folder) as session:
        pool = pool_of(session)
        pool.run([Task(0, {"ask": "end", "transaction": "none", "part": 0})], None)
        assert not any(process._running for process in pool._processes)


def test_a_fork_reads_no_replies_of_its_parent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dpsql.connect(parts=folder, processes=1) as session:
        pool = pool_of(session)
        pool.facts()
        (running,) = pool._processes[0]._running
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: -1)
            with pytest.raises(dpsql.EngineError, match="after a fork"):
                pool.facts()
            pool._processes[0].kill()
        assert running.poll() is None


def test_a_process_does_not_outlive_its_program(folder: Path) -> None:
    """It is in the middle of a query when its input ends."""
    endless = "SELECT count(*) AS n FROM range(10_000_000_000_000) t(i) WHERE hash(i) = 0"
    with dpsql.connect(parts=folder, processes=1) as session:
        pool = pool_of(session)
        pool.facts()
        (running,) = pool._processes[0]._running
        assert running.stdin is not None
        send(cast("BinaryIO", running.stdin), {**RUN, "texts": [endless]})
        time.sleep(0.2)
        running.stdin.close()
        assert running.wait(SECONDS) == 0


def test_parts_hand_on_texts_of_any_size(folder: Path) -> None:
    """One person with 2 GiB of texts would make a question fail."""
    with dpsql.connect(parts=folder, processes=1) as session:
        ((_, (table,)),) = pool_of(session).run([Task(0, {**RUN, "texts": ["SELECT 'a' AS x"]})], None)
        assert table.schema.types == [pa.large_string()]
