"""The table of pairs that the readings of one question share: what it changes, and when it is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dpsql
from dpsql.bound.pairs import PAIRS
from dpsql.engine import DuckDBEngine, connection
from dpsql.errors import EngineError
from dpsql.release import runtime
from dpsql.release.held_pairs import HeldPairs
from dpsql.state import Ledger
from tests.end_to_end.asking import Asker, assert_paid, ledger
from tests.end_to_end.reading_rows import fix_salts, watch_statements
from tests.noise_sources import seeded_noise

ROWS = (
    "SELECT CASE WHEN i % 50 > 0 THEN hash(i) % 400 END AS person, 'city ' || hash(i, 1) % 23 AS city, "
    "CASE WHEN i % 7 > 0 THEN (hash(i, 2) % 900)::DOUBLE - 50 END AS cost, hash(i, 3) % 4 AS stage "
    "FROM range(6000) r(i)"
)
OPTIONS = "WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 4, delta = 1e-6{})"
NOTHING_NAMED = (
    "SELECT {} city, count(DISTINCT person) FROM visits GROUP BY city",
    "SELECT {} city, count(*), count(cost), sum(cost) FROM visits GROUP BY city",
    "SELECT {} city, avg(cost) FROM visits WHERE stage > 0 GROUP BY city",
    "SELECT {} stage, count(*) FILTER (WHERE cost > 100), sum(cost) FROM visits GROUP BY stage",
    "SELECT {} city, sum(cost, contribution_bounds_per_group => (0, 600)) FROM visits GROUP BY city",
    "SELECT {} city, sum(cost, contribution_bounds_per_group => AUTO), count(DISTINCT stage) FROM visits GROUP BY city",
)
KEYS = "SELECT {} DISTINCT city, stage FROM visits"


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[dpsql.Session]:
    fix_salts(monkeypatch)
    with dpsql.connect(threads=1) as opened:
        opened.connection.execute(f"CREATE TABLE visits AS {ROWS}")
        opened.sql("CALL dp_unit('person', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)")
        opened.sql("CALL dp_protect('visits', unit := 'person', privacy_unit_column := 'person')")
        opened.sql("CALL dp_domain('visits', 'cost', bounds := [0, 500])")
        opened.sql("CALL dp_domain('visits', 'stage', keys := [0, 1, 2, 3])")
        yield opened


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the statements that read rows, as they are run."""
    return watch_statements(monkeypatch, lambda sql: '"visits"' in sql or PAIRS in sql)


def asked(session: dpsql.Session, text: str, more: str = "") -> tuple[list[tuple[Any, ...]], tuple[object, ...]]:
    session._runner.noise_source = seeded_noise(11)
    answer = session.sql(text.format(OPTIONS.format(more)))
    assert answer.receipt is not None
    return answer.fetchall(), (answer.receipt.charged_rho, answer.receipt.charged_delta, answer.receipt.notes)


@pytest.mark.parametrize("text", [*NOTHING_NAMED, KEYS])
def test_an_answer_is_the_same_with_and_without_pairs(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number, charge and note, with the same salts and the same noise."""
    made: list[str] = []
    make = HeldPairs._begin

    def watched(*of: Any) -> Any:
        made.append(text)
        return make(*of)

    monkeypatch.setattr(HeldPairs, "_begin", watched)
    found = []
    for is_held in (True, False):
        if not is_held:
            monkeypatch.setattr("dpsql.features.auto.hold_pairs", lambda *_: None)
            monkeypatch.setattr(runtime, "hold_pairs", lambda *_: None)
            monkeypatch.setattr("dpsql.release.left_out_stage.hold_pairs", lambda *_: None)
        with pytest.MonkeyPatch.context() as patch:
            salted = session.__wrapped__(patch)  # type: ignore[attr-defined]
            found.append(asked(next(salted), text))
            salted.close()
    assert found[0] == found[1]
    assert found[0][0]
    assert len(made) == 1


def test_rows_are_read_once(session: dpsql.Session, seen: list[str]) -> None:
    """All histograms, both rounds of keys and the numbers on them are read from the pairs, which are made once."""
    asked(session, NOTHING_NAMED[0])
    (on_rows,) = (sql for sql in seen if '"person" AS unit' in sql)
    assert on_rows.startswith(f"CREATE TEMP TABLE {PAIRS} AS")
    assert sum(PAIRS in sql for sql in seen) >= 4


def test_no_pairs_are_made_before_a_charge_or_where_nothing_is_due(
    session: dpsql.Session, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_made() -> bool:
        return any(f"CREATE TEMP TABLE {PAIRS}" in sql for sql in seen)

    with monkeypatch.context() as broken:
        broken.setattr(Ledger, "charge", lambda *_, **__: pytest.fail("charged"))
        with pytest.raises(pytest.fail.Exception):
            asked(session, NOTHING_NAMED[1])
    assert not is_made()
    answer, _ = asked(session, NOTHING_NAMED[1])
    assert is_made()
    seen.clear()
    again, charged = asked(session, NOTHING_NAMED[1])
    assert again == answer
    assert charged[:2] == (0.0, 0.0)
    assert not is_made()


def test_the_table_and_its_transaction_end_with_the_question(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an answer and after a failure: nothing is held that a writer would wait for, or a reader find."""
    ended: list[HeldPairs] = []
    close = HeldPairs.close

    def watched(self: HeldPairs) -> None:
        close(self)
        ended.append(self)

    monkeypatch.setattr(HeldPairs, "close", watched)
    asked(session, NOTHING_NAMED[0])
    assert len(ended) == 1
    with monkeypatch.context() as broken:
        broken.setattr("dpsql.release.points.noisy_places", lambda *_: pytest.fail("drawn"))
        with pytest.raises(pytest.fail.Exception):
            asked(session, NOTHING_NAMED[1])
    assert len(ended) == 2
    assert all(one._transaction is None for one in ended)
    session.connection.execute("ALTER TABLE visits ADD COLUMN late INTEGER; CHECKPOINT")
    with pytest.raises(Exception, match="does not exist"):
        session.connection.execute(f"FROM temp.main.{PAIRS}")


def test_a_transaction_that_cannot_begin_fails_with_the_constant_message(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins after a charge: what DuckDB says, as of a database that an error has closed, is withheld."""
    run, is_charged = connection._LocalCursor.rows, []
    charge = Ledger.charge

    def charged(self: Ledger, *of: Any, **named: Any) -> Any:
        is_charged.append(True)
        return charge(self, *of, **named)

    def failing(self: Any, sql: str, *of: Any) -> Any:
        if is_charged and sql == "BEGIN TRANSACTION":
            raise duckdb.FatalException("invalidated by a row of Ana")
        return run(self, sql, *of)

    monkeypatch.setattr(Ledger, "charge", charged)
    monkeypatch.setattr(connection._LocalCursor, "rows", failing)
    with pytest.raises(EngineError, match="withheld"):
        asked(session, NOTHING_NAMED[0])


def test_all_that_a_reading_runs_has_its_limit_of_time(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit holds for what is asked of the catalog and for the table, too."""
    limits: list[float | None] = []
    run = DuckDBEngine._run

    def watched(self: DuckDBEngine, read: Any, listed: Any, seconds: float | None, *opened: Any) -> Any:
        limits.append(seconds)
        return run(self, read, listed, seconds, *opened)

    monkeypatch.setattr(DuckDBEngine, "_run", watched)
    session._runner.noise_source = seeded_noise(11)
    session.sql(NOTHING_NAMED[0].format(OPTIONS.format("")), timeout_seconds=600)
    assert len(limits) >= 5
    assert all(seconds and seconds <= 600 for seconds in limits)
    # the first reading shares one limit
    assert limits[:3] == sorted(limits[:3], key=lambda seconds: -(seconds or 0))
    assert limits[0] != limits[2]


def test_all_readings_see_the_rows_of_one_moment(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that come between two readings of a question are of neither; a new version is read from its own rows."""
    begin, versions = HeldPairs._begin, iter((None, "2"))

    def then_change(self: HeldPairs, *of: Any) -> Any:
        transaction = begin(self, *of)
        session.connection.execute("INSERT INTO visits SELECT 1000 + i, 'new', 10, 1 FROM range(900) r(i)")
        if version := next(versions, None):
            session.sql(f"CALL dp_new_version('visits', version := '{version}')")
        return transaction

    monkeypatch.setattr(HeldPairs, "_begin", then_change)
    # the sum is read from rows, beside pairs
    answer, _ = asked(session, NOTHING_NAMED[1])
    assert "new" not in {row[0] for row in answer}
    # the table is marked as it was then, so that the curator is told
    assert [text for text in session.warnings if "visits changed" in text]
    # AUTO asked of version 1; the numbers are those of version 2
    session.sql("CALL dp_new_version('visits', version := 'in between')")
    answer, _ = asked(session, NOTHING_NAMED[1])
    assert "new" in {row[0] for row in answer}


def test_a_constraint_on_the_unit_makes_pairs_needless(session: dpsql.Session, seen: list[str]) -> None:
    session.connection.execute(
        "CREATE TABLE people (person BIGINT PRIMARY KEY, city VARCHAR, cost DOUBLE); INSERT INTO people "
        "SELECT DISTINCT ON (person) person, city, cost FROM visits WHERE person IS NOT NULL ORDER BY ALL"
    )
    session.sql("CALL dp_protect('people', unit := 'person', privacy_unit_column := 'person')")
    session._runner.noise_source = seeded_noise(11)
    assert session.sql("SELECT city, count(*) FROM people GROUP BY city", rho=4, delta=1e-6).fetchall()
    assert not any(PAIRS in sql and "CREATE TEMP TABLE dpsql_pairs" in sql for sql in seen)


def test_a_kill_after_the_table_leaves_one_charge_and_no_file(tmp_path: Path) -> None:
    database = tmp_path / "clinic.duckdb"
    with dpsql.connect(database) as session:
        session.connection.execute(f"CREATE TABLE visits AS {ROWS}")
        session.sql("CALL dp_unit('person', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)")
        session.sql("CALL dp_protect('visits', unit := 'person', privacy_unit_column := 'person')")
    asker, text = Asker(database), "SELECT city, count(*) FROM visits GROUP BY city"
    before = sorted(path.name for path in tmp_path.iterdir())
    assert asker.ask(text, moment="pairs made")
    killed = ledger(database)
    assert killed[0] > 0
    assert sorted(path.name for path in tmp_path.iterdir() if "-" not in path.name) == [
        name for name in before if "-" not in name
    ]
    assert not asker.ask(text)
    asker.close()
    assert_paid(database)
    paid = ledger(database)
    with dpsql.connect(database, read_only=True) as session:
        # the charge of the killed question is part of what this one cost
        assert session.sql(text, rho=0.25).fetchall() is not None
    assert ledger(database) == paid
