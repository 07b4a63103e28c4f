"""The facts of DuckDB on which privacy rests hold here, and each probe fails where its fact does not hold."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pytest

import dpsql
from dpsql.engine import probes
from dpsql.engine.database import DuckDBEngine
from dpsql.engine.sandbox import Sandbox
from dpsql.errors import SchemaError
from tests.documents.pages import ROOT

Plant = Callable[[pytest.MonkeyPatch], None]


def _fact(sentence: str) -> probes.Fact:
    (found,) = [fact for fact in probes.FACTS if sentence in fact.sentence]
    return found


def test_a_probe_that_ends_in_an_error_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def another_shape(connection: duckdb.DuckDBPyConnection) -> bool:
        (_,) = connection.execute("SELECT 1, 2").fetchall()[0]
        return True

    assert not probes.holds(probes.Fact("plans", "plans have one column", another_shape))
    monkeypatch.setattr(probes, "_TABLES", ("CREATE TABLE t (a VARCHAR COLLATE gone)",))
    assert not probes.holds(probes.Fact("TRY", "nothing is tried", lambda connection: True))


@pytest.mark.parametrize("fact", probes.FACTS, ids=lambda fact: fact.sentence)
def test_the_installed_duckdb_has_every_fact(fact: probes.Fact) -> None:
    assert probes.holds(fact)


class _Rewriting:
    """A connection to a DuckDB that is another: every text changes before it runs."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, rewrite: Callable[[str], str]) -> None:
        self._connection = connection
        self._rewrite = rewrite

    def execute(self, sql: str) -> duckdb.DuckDBPyConnection:
        return self._connection.execute(self._rewrite(sql))

    def cursor(self) -> _Rewriting:
        return _Rewriting(self._connection.cursor(), self._rewrite)

    def close(self) -> None:
        self._connection.close()


@pytest.mark.parametrize(
    ("sentence", "pattern", "becomes"),
    [
        ("a value that fails, and of no other", r"TRY\((-n)\)", r"nullif(\1, -1)"),
        ("a value that fails, and of no other", r"TRY\(", "("),
        ("a date that is out of range", r"TRY\(", "("),
        ("two expressions share", r"TRY\(", "("),
        ("TRY_CAST makes NULL", "TRY_CAST", "CAST"),
        ("a sum of BIGINT", r"sum\(n\)", "sum(n)::DOUBLE"),
        ("hash returns the numbers", r"hash\(1\)", "hash(2)"),
        ("a hash of a hash", r"hash\(hash\((.*?)\)\)", r"hash(\1)"),
        ("columns under two collations", "folded = accents", "folded = plain"),
        ("the collation binary", ' COLLATE "binary"', ""),
        ("statistics of a column", r"TRY\(", "("),
        ("whole numbers have the types", r"CAST\(\"t\" AS BIGINT\)", '"t"'),
        ("whole numbers have the types", r"AS TINYINT\)", "AS SMALLINT)"),
        ("a unique column", " UNIQUE", ""),
        ("a unique column", "BEGIN TRANSACTION|ROLLBACK", "SELECT 1"),
        ("the settings that a cursor pins", "SET TimeZone = 'UTC'", "SELECT 1"),
    ],
)
def test_a_probe_fails_in_an_engine_without_its_fact(
    sentence: str, pattern: str, becomes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fact = _fact(sentence)

    def elsewhere(connection: duckdb.DuckDBPyConnection) -> bool:
        other: Any = _Rewriting(connection, lambda sql: re.sub(pattern, becomes, sql))
        return fact.holds(other)

    assert not probes.holds(probes.Fact(fact.subject, fact.sentence, elsewhere))


def _rows_are_read(patch: pytest.MonkeyPatch) -> None:
    def run(engine: DuckDBEngine, queries: list[str], *, listed_keys: object) -> None:
        with engine._connection.pinned() as cursor:
            try:
                for sql in queries:
                    cursor.rows(sql)
            except duckdb.Error:
                raise SchemaError("it failed") from None

    patch.setattr(DuckDBEngine, "run_empty", run)


def _nothing_is_tried(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DuckDBEngine, "run_empty", lambda engine, queries, *, listed_keys: None)


def _every_cast_exists(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sandbox, "_has_cast", lambda sandbox, before, after: True)


def _no_conversion_fails(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sandbox, "_failed_conversions", lambda sandbox, columns, expressions: ())


def _no_collation_is_found(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DuckDBEngine, "collation", lambda engine, schema, column: None)


@pytest.mark.parametrize(
    ("sentence", "plant"),
    [
        ("has its types and no row", _rows_are_read),
        ("has its types and no row", _nothing_is_tried),
        ("fails on empty copies", _nothing_is_tried),
        ("a missing cast", _every_cast_exists),
        ("a literal that cannot be cast", _no_conversion_fails),
        ("is found, through a view", _no_collation_is_found),
    ],
)
def test_a_probe_fails_if_dpsql_does_not_use_the_fact(
    sentence: str, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert not probes.holds(_fact(sentence))


def test_the_tested_range_is_the_declared_one() -> None:
    with (ROOT / "pyproject.toml").open("rb") as text:
        declared = tomllib.load(text)["project"]["dependencies"]
    assert f"duckdb{probes.TESTED_RANGE}" in declared


@pytest.fixture
def unwarned() -> Iterator[None]:
    """Nobody was warned yet, and nobody is afterwards."""
    probes.warn_if_untested.cache_clear()
    yield
    probes.warn_if_untested.cache_clear()


def test_another_version_is_warned_of_once(
    unwarned: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(duckdb, "__version__", "2.1.0")
    with caplog.at_level(logging.WARNING, "dpsql"):
        for _ in range(2):
            dpsql.connect().close()
    (said,) = [record.getMessage() for record in caplog.records if "2.1.0" in record.getMessage()]
    assert "all facts of DuckDB on which privacy rests were tried and hold" in said
    assert "python -m dpsql.engine.check" in said


def test_the_warning_names_facts_that_do_not_hold(
    unwarned: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(duckdb, "__version__", "2.1.0")
    _every_cast_exists(monkeypatch)
    with caplog.at_level(logging.WARNING, "dpsql"):
        probes.warn_if_untested()
    (record,) = caplog.records
    assert _fact("a missing cast").sentence in record.getMessage()
    assert "privacy is at risk" in record.getMessage()


def test_the_tested_versions_are_not_warned_of(unwarned: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "dpsql"):
        probes.warn_if_untested()
    assert caplog.records == []


def test_the_command_prints_every_fact() -> None:
    done = subprocess.run([sys.executable, "-m", "dpsql.engine.check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    assert [line.partition(": ")[2] for line in done.stdout.splitlines()[1:]] == [
        fact.sentence for fact in probes.FACTS
    ]
