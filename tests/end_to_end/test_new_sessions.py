"""The first questions of a session are answered: nothing that they need is made only after they are charged."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import dpsql
from dpsql.engine import Transaction
from dpsql.engine.connection import LocalConnection
from dpsql.release.held_pairs import HeldPairs
from tests.end_to_end.reading_rows import watch_transactions
from tests.unit.bound.exact_runs import needs_native

TABLES = (
    "CREATE TABLE visits AS SELECT i % 200 AS person, 'city ' || (hash(i) % 5) AS city, hash(i, 1) % 500 AS cost, "
    "i // 200 % 4 AS stage FROM range(2000) r(i);"
    "CREATE TABLE regions AS SELECT 'city ' || i AS city, 'region ' || i % 3 AS region FROM range(5) r(i)"
)
DECLARATIONS = (
    "CALL dp_unit('person', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)",
    "CALL dp_protect('visits', unit := 'person', privacy_unit_column := 'person')",
    "CALL dp_domain('visits', 'cost', bounds := [0, 500])",
    "CALL dp_public('regions')",
)
COUNTED = "SELECT city, count(*) FROM visits GROUP BY city"
NAMED = "WITH v AS (SELECT city, cost FROM visits) SELECT city, sum(cost) FROM v GROUP BY city"
STAGES = "SELECT stage, count(*), sum(cost) FROM visits GROUP BY stage"
QUESTIONS = (
    COUNTED,
    "SELECT city, count(DISTINCT person) FROM visits GROUP BY city",
    "SELECT city, sum(cost) FROM visits GROUP BY city",
    "SELECT city, avg(cost), count(*) FROM visits WHERE stage > 0 GROUP BY city",
    STAGES,
    "SELECT city, stage, count(*) FROM visits GROUP BY city, stage",
    "SELECT city, count(*) FILTER (WHERE cost > 100) FROM visits GROUP BY city",
    "SELECT city, count(DISTINCT stage) FROM visits GROUP BY city",
    "SELECT DISTINCT city FROM visits",
    "SELECT sum(cost) FROM visits",
    "SELECT c, count(*) FROM (SELECT city AS c FROM visits WHERE cost > 3) GROUP BY c",
    NAMED,
    "SELECT region, count(*) FROM visits JOIN regions USING (city) GROUP BY region",
)
LEVELS = (0.001, 0.003, 0.01, 0.1)
"""At low levels AUTO lets most people have fewer groups than they have, so that these are chosen by the library."""


def opened(path: str | Path = ":memory:", *, native: bool = True, **settings: Any) -> dpsql.Session:
    """A session that may load the native library, or may not."""
    return dpsql.connect(path, allow_unsigned_extensions=native, **settings)


def prepare(session: dpsql.Session) -> None:
    session.connection.execute(TABLES)
    for declaration in DECLARATIONS:
        session.sql(declaration)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("native", [pytest.param(True, marks=needs_native), False])
@pytest.mark.parametrize(
    ("sessions", "questions"), [(3, 3), pytest.param(50, 10, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_the_first_questions_of_a_session_are_answered(
    sessions: int, questions: int, native: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is named, and the budget lasts, so every error would follow a charge."""
    made = watch_transactions(monkeypatch)
    for number in range(sessions):
        drawn = random.Random(f"{number} {native} {threads}")
        with opened(native=native, threads=threads) as session:
            prepare(session)
            charged = 0.0
            for text in drawn.sample(QUESTIONS, questions):
                answer = session.sql(text, rho=drawn.choice(LEVELS), delta=1e-6)
                assert answer.receipt is not None
                charged += answer.receipt.charged_rho
            assert charged > 0
    assert made == []


@needs_native
@pytest.mark.parametrize("text", [COUNTED, NAMED], ids=["table", "subquery"])
def test_a_session_whose_neighbour_loads_the_library_meanwhile_is_answered(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sessions of one process have one database; a transaction sees the functions that were there before it."""
    named: dict[str, Any] = {"rho": 0.01, "delta": 1e-6, "max_groups_contributed": 1}
    begin, seen = HeldPairs._begin, list[str]()

    def begun(self: HeldPairs, *of: Any) -> Transaction:
        transaction = begin(self, *of)
        if not seen:
            seen.append(text)
            assert second.sql(STAGES, **named).receipt
        return transaction

    with opened(tmp_path / "visits.duckdb") as first, opened(tmp_path / "visits.duckdb") as second:
        prepare(first)
        monkeypatch.setattr(HeldPairs, "_begin", begun)
        assert first.sql(text, **named).receipt
    assert seen


@pytest.mark.parametrize("native", [pytest.param(True, marks=needs_native), False])
def test_the_library_is_loaded_for_the_first_private_question_alone(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that opens, declares and looks at its budget loads nothing, and neither does one without the right."""
    loaded: list[LocalConnection] = []
    load = LocalConnection.load_native

    def loading(self: LocalConnection) -> None:
        loaded.append(self)
        load(self)

    monkeypatch.setattr(LocalConnection, "load_native", loading)
    with opened(native=native) as session:
        prepare(session)
        for text in ("SHOW TABLES", "FROM dp_budget()", "FROM dp_policy()", "FROM dp_releases()"):
            session.sql(text)
        assert not loaded
        for level in LEVELS[1:3]:
            session.sql(COUNTED, rho=level, delta=1e-6)
        assert len(loaded) == native
