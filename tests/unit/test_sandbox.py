"""The database for planning and finishing, which all readers share: none of them can keep another one waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from dpsql.engine import Sandbox, stopped_by
from dpsql.engine import sandbox as sandbox_module
from dpsql.errors import EngineError
from dpsql.model.environment import Column

NUMBERS_OF = ", ".join(f"range(100000) {name}" for name in "abc")
ENDLESS = f"SELECT count(*) FROM {NUMBERS_OF} WHERE (a.range + b.range + c.range) % 7 = 3"
NUMBERS = pa.table({"x": [1, 2, 3]})


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox()
    yield sandbox
    sandbox.close()


def test_what_one_reader_computes_keeps_nobody_waiting(sandbox: Sandbox) -> None:
    begun, stop = threading.Event(), threading.Event()

    def endless() -> None:
        begun.set()
        with stopped_by(stop), pytest.raises(EngineError):
            sandbox.run(ENDLESS, {"answer": NUMBERS})

    def plan_and_finish() -> tuple[list[str], list[object]]:
        kinds = sandbox.describe([Column("x", "INTEGER", True)], ["x + 1"])
        return kinds, sandbox.run("SELECT sum(x) AS s FROM answer", {"answer": NUMBERS}).column("s").to_pylist()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(endless)
        begun.wait()
        try:
            assert pool.submit(plan_and_finish).result(timeout=120) == (["INTEGER"], [6])
            assert not first.done()
        finally:
            stop.set()
        first.result()


def test_each_computation_sees_the_tables_that_it_is_given_alone(sandbox: Sandbox) -> None:
    assert sandbox.run("FROM answer", {"answer": NUMBERS}).num_rows == 3
    with pytest.raises(EngineError):
        sandbox.run("FROM answer", {})
    # nor a variable of this program by its name
    with pytest.raises(EngineError):
        sandbox.run("FROM NUMBERS", {})


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("SELECT (SELECT x FROM answer ORDER BY x LIMIT 2) AS v", 1),
        ("SELECT current_setting('TimeZone') AS v", "UTC"),
        ("SELECT 1.0::DOUBLE / 0 AS v", float("inf")),
    ],
)
def test_every_computation_has_the_pinned_settings(sandbox: Sandbox, sql: str, shown: object) -> None:
    assert sandbox.run(sql, {"answer": NUMBERS}).column("v").to_pylist() == [shown]


def test_only_short_texts_are_kept(sandbox: Sandbox) -> None:
    """A thousand texts of any length would take the memory of a server that refuses them all."""
    columns = (Column("x", "INTEGER", True),)
    enum = (Column("x", f"ENUM ('{'a' * 5_000}')", True),)
    for given, value, kept in ((columns, "'a'", 1), (columns, f"'{'a' * 5_000}'", 0), (enum, "'a'", 0)):
        sandbox._kept_failures.cache_clear()
        sandbox._kept_types.cache_clear()
        assert sandbox.failed_conversions(given, (f"CAST({value} AS INTEGER)", "x")) == (0,)
        assert sandbox.bind("t", given, f"SELECT {value} AS y FROM t") == (("y", "VARCHAR"),)
        assert sandbox._kept_failures.cache_info().currsize == kept
        assert sandbox._kept_types.cache_info().currsize == kept


def test_a_closed_sandbox_leaves_an_empty_database_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "_FREE", {})
    first = Sandbox()
    first.run("SELECT * FROM given", {"given": pa.table({"a": [1]})})
    database = first._connection
    first.close()
    first.close()
    with pytest.raises(EngineError):
        first.run("SELECT 1", {})
    second = Sandbox()
    assert second._connection is database
    assert second.run("SELECT count(*) AS n FROM duckdb_tables()", {}).to_pylist() == [{"n": 0}]
    database.close()
    second.close()
    third = Sandbox()
    assert third.run("SELECT 1 AS a", {}).num_rows == 1
    third.close()
