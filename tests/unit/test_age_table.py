"""The row of a state file in a database: written beside open transactions and other threads, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest

from dpsql.engine import DuckDBEngine
from dpsql.engine.age_table import AgeTable
from dpsql.engine.connection import LocalConnection

OURS, OTHERS, DATABASE = "a" * 32, "b" * 32, "d" * 32


@contextlib.contextmanager
def opened(path: Path | str, *, read_only: bool = False) -> Iterator[tuple[duckdb.DuckDBPyConnection, AgeTable]]:
    with contextlib.closing(duckdb.connect(str(path), read_only=read_only)) as connection:
        yield connection, AgeTable(LocalConnection(connection, None))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a database with a stamp and a table."""
    path = tmp_path / "it's a clinic.duckdb"
    with opened(path) as (connection, table):
        connection.execute("CREATE TABLE visits AS SELECT 1 AS patient")
        assert table.read(table.home()) is None
        assert table.replace(table.home(), DATABASE, OURS, 0, None)
    return path


def test_a_stamp_rises_and_never_falls(path: Path) -> None:
    with opened(path) as (_, table):
        home = table.home()
        assert [table.raise_to(home, OURS, charge, f"moment {charge}") for charge in (1, 3, 2)] == [True, True, False]
        assert table.read(home) == (DATABASE, OURS, 3, "moment 3")


def test_the_stamp_of_another_file_stays_and_is_told(path: Path) -> None:
    with opened(path) as (_, table):
        assert not table.raise_to(table.home(), OTHERS, 9, "moment")
        assert table.read(table.home()) == (DATABASE, OURS, 0, None)


def test_threads_that_stamp_together_leave_the_last_charge(path: Path) -> None:
    with opened(path) as (_, table):
        home = table.home()
        with ThreadPoolExecutor(4) as pool:
            written = list(pool.map(lambda n: table.raise_to(home, OURS, n, str(n)), range(1, 41)))
        # a charge below the stamp is not written
        assert written[-1]
        assert table.read(home) == (DATABASE, OURS, 40, "40")


def test_a_rollback_of_the_curator_takes_no_stamp_back(path: Path) -> None:
    with opened(path) as (connection, table):
        connection.execute("BEGIN")
        connection.execute("INSERT INTO visits VALUES (2)")
        assert table.raise_to(table.home(), OURS, 1, "moment")
        connection.execute("ROLLBACK")
        assert table.read(table.home()) == (DATABASE, OURS, 1, "moment")


def test_a_database_that_cannot_be_written_says_so(path: Path) -> None:
    with opened(path, read_only=True) as (_, table):
        home = table.home()
        assert not table.replace(home, DATABASE, OTHERS, 1, "moment")
        assert not table.raise_to(home, OURS, 1, "moment")
        assert table.read(home) == (DATABASE, OURS, 0, None)


def test_a_database_in_memory_has_no_stamp_and_no_fingerprint() -> None:
    with opened(":memory:") as (_, table):
        home = table.home()
        assert not table.replace(home, DATABASE, OURS, 1, "moment")
        assert table.read(home) is None
        assert table.fingerprint(home) is None


def test_a_fingerprint_stays_as_rows_change_and_differs_between_files(path: Path, tmp_path: Path) -> None:
    found = set()
    for name in (path, tmp_path / "other.duckdb"):
        for _ in range(2):
            with opened(name) as (connection, table):
                connection.execute("CREATE OR REPLACE TABLE numbers AS FROM range(100_000)")
                connection.execute("CHECKPOINT")
                found.add(table.fingerprint(table.home()))
    assert len(found) == 2
    assert None not in found


def test_the_catalog_does_not_find_the_table(path: Path) -> None:
    with opened(path) as (connection, _):
        engine = DuckDBEngine(connection)
        assert connection.execute("SELECT count(*) FROM dpsql_hidden.state_file").fetchall() == [(1,)]
        assert engine.resolve(["dpsql_hidden", "state_file"]) is None
        assert engine.find("dpsql_hidden.state_file", views=True) is None
