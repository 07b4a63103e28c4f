"""Reading a query piece by piece: in order, lazily, within its time, and with errors that say nothing of a row."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest

from dpsql.engine import DuckDBEngine, ExactTable
from dpsql.errors import EngineError

_ENDLESS = "SELECT i FROM range(100_000_000_000) t(i)"
_FAILS_LATE = "SELECT CASE WHEN i = 900000 THEN error('canary ' || i) ELSE 'x' END AS x FROM range(1000000) t(i)"


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


@pytest.fixture
def engine(connection: duckdb.DuckDBPyConnection) -> DuckDBEngine:
    return DuckDBEngine(connection)


def test_the_pieces_are_the_rows_in_their_order(engine: DuckDBEngine) -> None:
    sql = "SELECT hash(i) AS h, i FROM range(500000) t(i) ORDER BY h"
    pieces = [piece.reveal() for piece in engine.pieces(sql, timeout_seconds=60)]
    assert len(pieces) > 3
    whole = engine.aggregate(sql, listed_keys=None, timeout_seconds=None).reveal()
    assert pa.concat_tables(pieces).equals(whole)


def test_a_result_without_rows_has_its_columns(engine: DuckDBEngine) -> None:
    pieces = list(engine.pieces("SELECT 1::BIGINT AS units, 'a' AS key_0 WHERE false", timeout_seconds=None))
    assert [piece.reveal().num_rows for piece in pieces] == [0]
    assert pieces[0].reveal().schema == pa.schema({"units": pa.int64(), "key_0": pa.string()})


def test_no_piece_shows_a_row(engine: DuckDBEngine) -> None:
    for piece in engine.pieces("SELECT 'canary' AS key_0", timeout_seconds=None):
        assert "canary" not in repr(piece) + str(piece)


def test_a_reader_may_stop_before_the_end(engine: DuckDBEngine, connection: duckdb.DuckDBPyConnection) -> None:
    """Nothing is computed that nobody reads, and what was begun ends with the reader."""
    pieces = engine.pieces(_ENDLESS, timeout_seconds=None)
    assert [next(pieces).reveal().num_rows > 0 for _ in range(3)] == [False, True, True]
    pieces.close()
    connection.execute("CREATE TABLE afterwards AS SELECT 1 AS x")
    assert connection.execute("SELECT x FROM afterwards").fetchall() == [(1,)]


@pytest.mark.parametrize("sql", [_FAILS_LATE, "SELECT error('canary')", "SELECT 'canary' + missing"])
def test_an_error_says_nothing_of_a_row(engine: DuckDBEngine, sql: str) -> None:
    with pytest.raises(EngineError) as failed:
        for _ in engine.pieces(sql, timeout_seconds=60):
            pass
    assert str(failed.value).startswith("the engine could not run the query; its message is withheld")
    assert failed.value.__context__ is None
    assert failed.value.__cause__ is None
    assert "canary" not in str(failed.value)
    assert "canary 9" not in "".join(traceback.format_exception(failed.value))


def test_the_time_ends_a_query_that_is_running(engine: DuckDBEngine) -> None:
    began = time.perf_counter()
    with pytest.raises(EngineError, match="the query ran out of time") as expired:
        list(engine.pieces("SELECT max(hash(i)) FROM range(10_000_000_000_000) t(i)", timeout_seconds=0.1))
    assert time.perf_counter() - began < 120
    assert expired.value.__context__ is None


def test_the_time_runs_while_a_piece_is_worked_on(engine: DuckDBEngine) -> None:
    pieces, seconds = _begun_in_time(engine)
    time.sleep(seconds + 0.2)
    with pytest.raises(EngineError, match="the query ran out of time"):
        for _ in pieces:
            pass


def _begun_in_time(engine: DuckDBEngine) -> tuple[Iterator[ExactTable], float]:
    """A query of which a piece is there before its time is over, and that time: long on a busy machine alone."""
    for seconds in (0.1, 1.0, 10.0):
        pieces = engine.pieces(_ENDLESS, timeout_seconds=seconds)
        with contextlib.suppress(EngineError):
            next(pieces)
            return pieces, seconds
    raise AssertionError("no piece was there in time")


def test_the_settings_are_pinned(engine: DuckDBEngine, connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("SET GLOBAL TimeZone = 'America/Lima'")
    connection.execute("CREATE MACRO main.hash(x) AS error('canary')")
    sql = "SELECT CAST(CAST(TIMESTAMPTZ '2026-01-01 00:00:00+00' AS TIMESTAMP) AS VARCHAR) AS t, hash(1) AS h"
    (row,) = pa.concat_tables(p.reveal() for p in engine.pieces(sql, timeout_seconds=None)).to_pylist()
    assert row["t"] == "2026-01-01 00:00:00"
