"""Statements that nobody pays for: limits on their time, memory and rows, after which the process goes on."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import dpsql
from dpsql.engine import limits, public_rows
from dpsql.engine.limits import Failure, run_limited
from dpsql.errors import SchemaError

ROWS = {"a": pa.table({"i": range(100_000), "s": [f"text {i}" for i in range(100_000)]})}
DOUBLED = ", ".join(f"d{k} AS (SELECT s || s AS s FROM d{k - 1})" for k in range(1, 40))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a.i, b.i FROM a, a b ORDER BY a.i + b.i LIMIT 1 OFFSET 9000000000",
        "SELECT string_agg(a.s || b.s, ',') FROM a, a b",
        f"WITH d0 AS (SELECT 'xxxxxxxxxx' AS s), {DOUBLED} SELECT length(s) FROM d39",
    ],
)
def test_memory_is_limited_without_files(sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(limits, "MOST_MEMORY", 10**8)
    assert run_limited(sql, ROWS) is Failure.MEMORY
    assert not list(tmp_path.iterdir())
    assert run_limited("SELECT count(*) AS n FROM a", ROWS) == pa.table({"n": [100_000]})


def test_a_result_in_pieces_counts_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_MEMORY", 10**7)
    assert run_limited("SELECT s || repeat('x', 1000) AS s FROM a", ROWS) is Failure.MEMORY


def test_time_and_rows_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_limited("SELECT a.i FROM a, range(11)", ROWS) is Failure.ROWS
    monkeypatch.setattr(limits, "MOST_SECONDS", 0.2)
    assert run_limited("SELECT count(*) FROM a, a b, a c WHERE a.i + b.i + c.i = 3", ROWS) is Failure.SECONDS
    assert run_limited("SELECT CAST(s AS INTEGER) FROM a", ROWS) is Failure.VALUE


def test_a_statement_may_show_as_many_rows_as_it_reads() -> None:
    many = pa.table({"i": range(limits.MOST_ROWS + 5)})
    shown = run_limited("SELECT i, i AS i FROM many ORDER BY i DESC", {"many": many})
    assert isinstance(shown, pa.Table)
    assert shown.num_rows == many.num_rows
    assert shown.column(1)[0].as_py() == limits.MOST_ROWS + 4
    empty = run_limited("SELECT i FROM many WHERE i < 0", {"many": many})
    assert empty == many.slice(0, 0)


def test_a_database_is_used_again_and_keeps_nothing() -> None:
    assert isinstance(run_limited("SELECT 1 AS x", {"b": ROWS["a"]}), pa.Table)
    assert run_limited("SELECT 1 AS x FROM b", {}) is Failure.VALUE
    assert run_limited("SELECT * FROM ROWS", {}) is Failure.VALUE
    assert run_limited("FROM read_csv('/etc/hostname')", {}) is Failure.VALUE


def test_public_tables_are_copied_up_to_a_limit_of_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_rows, "_PIECE", 2048)
    with dpsql.connect() as session:
        session.connection.execute("CREATE TABLE p AS SELECT i FROM range(20_000) r(i)")
        session.connection.execute("CREATE TABLE q AS FROM p")
        for table in "pq":
            session.sql(f"CALL dp_public('{table}')")
        both = "SELECT count(*) AS n FROM p JOIN q ON p.i = q.i"
        assert session.sql(both).fetchall() == [(20_000,)]
        monkeypatch.setattr(public_rows, "MOST_BYTES", 200_000)
        assert session.sql("SELECT count(*) AS n FROM p").fetchall() == [(20_000,)]
        with pytest.raises(SchemaError, match="all of a text together"):
            session.sql(both)
        monkeypatch.setattr(public_rows, "MOST_COPIED", 19_999)
        with pytest.raises(SchemaError, match="at most 19,999 rows"):
            session.sql("SELECT count(*) AS n FROM p")
