"""A question on joined rows reads them once; its answer does not depend on it."""

from __future__ import annotations

from typing import Any

import pytest

import dpsql
from dpsql.bound.aggregation import HELD_ROWS
from dpsql.bound.statement import Bounded
from tests.end_to_end.reading_rows import fix_salts, watch_statements
from tests.noise_sources import seeded_noise

TABLES = """
CREATE TABLE visits AS SELECT i % 60 AS pid, i % 7 AS code, i % 5 + 0.25 AS cost FROM range(2000) t(i);
CREATE TABLE codes AS SELECT i AS code, 'kind ' || i % 3 AS kind FROM range(7) t(i);
"""
POLICY = (
    "CALL dp_unit('patient', rho_budget := 100, delta_threshold := 0.1, delta_conversion := 1e-6)",
    "CALL dp_protect('visits', coverage := FALSE, unit := 'patient', privacy_unit_column := 'pid', "
    "max_groups_contributed := 2, max_rows_per_group := 5)",
    "CALL dp_public('codes')",
    "CALL dp_domain('visits', 'cost', bounds := [0, 5])",
    "CALL dp_domain('codes', 'kind', keys := ['kind 0', 'kind 2', 'kind 9'])",
)
JOINED = "visits JOIN codes USING (code) WHERE cost < 4"
QUESTIONS = {
    "private keys": f"SELECT code, count(DISTINCT pid), count(*), sum(cost) FILTER (WHERE pid > 3) FROM {JOINED} "
    "GROUP BY code",
    "public keys": f"SELECT kind, count(*), count(DISTINCT cost) FROM {JOINED} GROUP BY kind",
    "subquery": "SELECT code, sum(cost) FROM (SELECT code, cost, pid FROM visits WHERE cost > 1) GROUP BY code",
}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the statements that read rows, as they are run. Salts follow from frames alone."""
    fix_salts(monkeypatch)
    # other statements make empty copies
    return watch_statements(monkeypatch, lambda sql: '"visits"' in sql and "unit IS NOT NULL" in sql)


def ask(question: str) -> tuple[list[tuple[Any, ...]], float]:
    """Return the answer of a new session, and the rho that it cost."""
    with dpsql.connect(threads=1) as session:
        session.connection.execute(TABLES)
        for declaration in POLICY:
            session.sql(declaration)
        session._runner.noise_source = seeded_noise(5)
        rows = session.sql(question, rho=1.0, delta=1e-6).fetchall()
        assert not session.connection.execute(f"FROM duckdb_tables() WHERE table_name = '{HELD_ROWS}'").fetchall()
        return rows, session.sql("FROM dp_budget()").to_df()["rho_spent"][0]


@pytest.mark.parametrize("question", QUESTIONS)
def test_rows_are_read_once(question: str, read: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    held = ask(QUESTIONS[question])
    assert [HELD_ROWS in sql for sql in read] == [True]
    assert len(held[0]) > 1
    monkeypatch.setattr(Bounded, "rows_sql", lambda *_: "SELECT no_column FROM no_table")
    assert ask(QUESTIONS[question]) == held


@pytest.mark.usefixtures("read")
def test_an_answer_that_fails_over_held_rows_is_read_from_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The held rows take memory that the statement may need."""
    sql = Bounded.sql

    def failing(self: Bounded, *of: Any) -> str:
        return "SELECT error('out of memory')" if self.held_rows else sql(self, *of)

    few = ask(QUESTIONS["private keys"])
    monkeypatch.setattr(Bounded, "sql", failing)
    assert ask(QUESTIONS["private keys"]) == few


def test_a_table_alone_is_not_held(read: list[str]) -> None:
    ask("SELECT code, count(*) FROM visits GROUP BY code")
    assert read
    assert not any(HELD_ROWS in sql for sql in read)
