"""Random texts of several private parts: right answers, prices told before and charged once, and loss of one person."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pytest

import dpsql
from dpsql.engine import DuckDBEngine
from dpsql.errors import BudgetError, EngineError, UnsupportedQueryError
from dpsql.session import compositions
from tests.end_to_end.asking import Asker, assert_paid, ledger
from tests.end_to_end.composed import (
    DECLARED,
    TABLES,
    TWO_COUNTS,
    TWO_UNITS,
    composed_plan_of,
    receipt_of,
    rows_from_parts,
    spent,
)
from tests.end_to_end.composition_cases import random_composition
from tests.end_to_end.prepared import with_declarations, with_own_state
from tests.end_to_end.retail_schema import (
    LEVEL,
    ROWS_PER_CUSTOMER,
    assert_equal_rows,
    create_tables,
    leave_out_a_customer,
    tables_without_a_customer,
)
from tests.end_to_end.two_worlds import watched
from tests.noise_sources import seeded_noise

_MANY = 300
_INSIDE = "private rows are compared with a private answer"
_ABOVE = 1.0 + 1e-9


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    """Tables of a shop, without noise."""
    with dpsql.connect(threads=1) as session:
        create_tables(session)
        yield session


@pytest.fixture(scope="module")
def clinic() -> Iterator[dpsql.Session]:
    with with_declarations(TABLES, DECLARED) as session:
        yield session


def _check_refused(session: dpsql.Session, text: str) -> None:
    """Check that a text is refused because private rows read a private answer, at no price."""
    before = spent(session, "shopper")
    with pytest.raises(UnsupportedQueryError, match=_INSIDE):
        session.sql(text, **LEVEL)
    assert spent(session, "shopper") == before


@pytest.mark.parametrize("texts", [60, pytest.param(_MANY, marks=pytest.mark.long)])
def test_without_noise_an_answer_has_the_rows_of_duckdb(prepared: dpsql.Session, texts: int) -> None:
    rng, answered = Random(texts), 0
    with with_own_state(prepared) as session:
        for _ in range(texts):
            text = random_composition(rng)
            try:
                shown = session.sql(text, **LEVEL).fetchall()
            except UnsupportedQueryError:
                _check_refused(session, text)
                continue
            assert_equal_rows(shown, session.connection.execute(text).fetchall(), ordered=False)
            answered += 1
    assert answered > 0.9 * texts


def _check_answer_and_price(session: dpsql.Session, text: str) -> bool:
    """Ask for a text with noise; return whether it has several parts."""
    plan = composed_plan_of(session, text, **LEVEL)
    given = ", ".join(f"{name} := {value}" for name, value in LEVEL.items())
    told = session.sql(f"FROM dp_explain($$ {text} $$, {given})").fetchall()
    before, shown_before = spent(session, "shopper"), session.sql("FROM dp_budget()").arrow().to_pylist()[0]
    answer = session.sql(text, **LEVEL)
    receipt, rows = receipt_of(answer), answer.fetchall()
    after, shown_after = spent(session, "shopper"), session.sql("FROM dp_budget()").arrow().to_pylist()[0]
    rise = after.rho_nano - before.rho_nano
    assert round(receipt.charged_rho * 1e9) == rise <= LEVEL["rho"] * 1e9
    assert round((shown_after["rho_spent"] - shown_before["rho_spent"]) * 1e9) == rise
    assert rise > 0 or receipt.reused
    if plan is None:
        return False
    said = {name: value for section, name, value in told if section == "all parts of unit shopper"}
    assert float(said["rho"]) == pytest.approx(rise / 1e9, rel=1e-8)
    # what two parts show of one frame is paid for once
    assert float(said["threshold delta"]) >= receipt.charged_delta * (1.0 - 1e-5)
    assert_equal_rows(rows, rows_from_parts(session, plan), ordered=False)
    again = session.sql(text, **LEVEL)
    assert_equal_rows(again.fetchall(), rows, ordered=False)
    assert (receipt_of(again).charged_rho, receipt_of(again).charged_delta) == (0.0, 0.0)
    assert spent(session, "shopper") == after
    return len(plan.parts) > 1


@pytest.mark.parametrize("texts", [6, pytest.param(_MANY, marks=pytest.mark.long)])
def test_a_text_costs_what_was_told_and_is_computed_of_its_parts(prepared: dpsql.Session, texts: int) -> None:
    rng, composed = Random(1000 + texts), 0
    with with_own_state(prepared) as session:
        session._runner.noise_source = seeded_noise(texts)
        for _ in range(texts):
            text = random_composition(rng)
            try:
                composed += _check_answer_and_price(session, text)
            except UnsupportedQueryError:
                _check_refused(session, text)
    assert composed > 0.5 * texts


# --- one person


@pytest.fixture(scope="module")
def beside() -> Iterator[duckdb.DuckDBPyConnection]:
    with tables_without_a_customer() as connection:
        yield connection


@pytest.mark.parametrize("texts", [8, pytest.param(100, marks=pytest.mark.long)])
def test_one_person_moves_all_parts_by_no_more_than_the_charge(
    prepared: dpsql.Session, beside: duckdb.DuckDBPyConnection, texts: int
) -> None:
    rng, largest = Random(2000 + texts), 0.0
    for _ in range(texts):
        text = random_composition(rng)
        with with_own_state(prepared) as session, watched(beside) as worlds:
            before = spent(session, "shopper")
            session.sql(text, rho=0.5, delta=1e-4)
            charged = (spent(session, "shopper").rho_nano - before.rho_nano) / 1e9
            assert worlds.loss <= charged * _ABOVE, text
            for offer in worlds.offers:
                # what one frame draws moves within what was asked for its statistics
                asked = sum(item.rho_nano for item in offer.items) / 1e9
                assert worlds.loss_of(offer) <= asked * _ABOVE, text
            largest = max(largest, worlds.loss / charged)
    assert largest > 0.5


def test_two_persons_move_more_than_the_charge(prepared: dpsql.Session, beside: duckdb.DuckDBPyConnection) -> None:
    """The planted fault: one charge for two persons."""
    text = (
        "SELECT (SELECT count(*) FROM store_sales) AS a, (SELECT count(*) FROM store_sales WHERE day IS NOT NULL) AS b"
    )
    with duckdb.connect(config={"threads": "1"}) as without:
        for table in (*ROWS_PER_CUSTOMER, "customer"):
            rows = beside.sql(f"FROM {table}").to_arrow_table()
            without.register("made", rows)
            without.execute(f"CREATE TABLE {table} AS FROM made")
        leave_out_a_customer(without)
        for connection, is_right in ((beside, True), (without, False)):
            with with_own_state(prepared) as session, watched(connection) as worlds:
                session.sql(text, rho=0.5)
                assert (worlds.loss <= spent(session, "shopper").rho_nano / 1e9 * _ABOVE) is is_right


# --- killed between two parts


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    database = tmp_path_factory.mktemp("compositions") / "clinic.duckdb"
    with dpsql.connect(database) as session:
        session.connection.execute(TABLES)
        for text in DECLARED:
            session.sql(text)
    asker = Asker(database)
    yield asker
    asker.close()


@pytest.mark.parametrize("moment", ["planned", "charged", "stored"])
def test_a_crash_between_two_parts_is_paid_for_once(asker: Asker, moment: str) -> None:
    number = sum(map(ord, moment)) % 30
    text = (
        f"SELECT city, n, n * 100.0 / (SELECT sum(cost) FROM visits WHERE cost <> {number}) AS share "
        f"FROM (SELECT city, count(*) AS n FROM visits WHERE cost <> {number} GROUP BY city) AS a"
    )
    database, rho = asker.database, 0.25
    before = ledger(database)
    assert asker.ask(text, rho=rho, moment=moment) == signal.SIGKILL
    killed = ledger(database)
    assert_paid(database)
    if moment == "planned":
        assert killed == before
    else:
        # all parts are charged before the first is read, and the part that was not drawn has open charges
        assert killed[0] - before[0] == rho * 1e9
        assert killed[2] > before[2]
    with dpsql.connect(database, read_only=True) as session:
        answer, again = session.sql(text, rho=rho), session.sql(text, rho=rho)
        assert sorted(answer.fetchall()) == sorted(again.fetchall())
        assert len(answer) == 3
    after = ledger(database)
    assert after[0] - before[0] == rho * 1e9
    assert after[2] == before[2]
    if moment != "planned":
        assert after[:2] == killed[:2]
    assert_paid(database)


def test_a_part_that_fails_is_paid_for_once(clinic: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, whole = list[str](), DuckDBEngine.aggregate

    def failing(engine: DuckDBEngine, *of: Any, **named: Any) -> Any:
        reads.append("read")
        if len(reads) == 2:
            raise EngineError
        return whole(engine, *of, **named)

    with with_own_state(clinic) as session:
        with monkeypatch.context() as patch:
            patch.setattr(DuckDBEngine, "aggregate", failing)
            with pytest.raises(EngineError):
                session.sql(TWO_COUNTS, rho=0.2)
        charged = spent(session, "patient")
        assert charged.rho_nano == 2 * 10**8
        answer = session.sql(TWO_COUNTS, rho=0.2)
        assert receipt_of(answer).charged_rho == 0.0
        assert session.sql(TWO_COUNTS, rho=0.2).fetchall() == answer.fetchall()
        assert spent(session, "patient") == charged


def test_an_outer_text_that_fails_leaves_parts_that_cost_nothing(clinic: dpsql.Session) -> None:
    text = "SELECT CAST('many ' || (SELECT count(*) FROM visits) AS INTEGER) AS n, (SELECT count(*) FROM visits) AS b"
    with with_own_state(clinic) as session:
        with pytest.raises(dpsql.errors.ReleaseError, match="costs nothing asked for alone"):
            session.sql(text, rho=0.2)
        assert spent(session, "patient").rho_nano == 2 * 10**8
        assert receipt_of(session.sql("SELECT count(*) FROM visits", rho=0.2)).charged_rho == 0.0


def test_a_public_table_that_became_a_view_meanwhile_is_not_read(
    clinic: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = compositions.Composed._public_rows

    def replaced(composed: compositions.Composed) -> Any:
        clinic.connection.execute("ALTER TABLE wards RENAME TO old_wards")
        clinic.connection.execute("CREATE VIEW wards AS SELECT ward, city AS name, cost AS beds FROM visits")
        try:
            return whole(composed)
        finally:
            clinic.connection.execute("DROP VIEW wards")
            clinic.connection.execute("ALTER TABLE old_wards RENAME TO wards")

    text = "SELECT w.name, (SELECT count(*) FROM visits) AS n FROM wards w"
    with with_own_state(clinic) as session:
        monkeypatch.setattr(compositions.Composed, "_public_rows", replaced)
        with pytest.raises(EngineError, match="created anew"):
            session.sql(text, rho=0.2)
        assert spent(session, "patient").rho_nano == 0


# --- two units


def test_two_units_are_charged_together(clinic: dpsql.Session) -> None:
    with with_own_state(clinic) as session:
        answer = session.sql(TWO_UNITS, rho=0.3)
        rows = answer.fetchall()
        assert {unit: spent(session, unit).rho_nano for unit in ("patient", "nurse")} == {
            "patient": 3 * 10**8,
            "nurse": 3 * 10**8,
        }
        assert session.sql(TWO_UNITS, rho=0.3).fetchall() == rows
        assert spent(session, "nurse").rho_nano == 3 * 10**8


@pytest.mark.parametrize("sides", [1, -1])
def test_nothing_is_charged_if_one_of_two_units_cannot_pay(clinic: dpsql.Session, sides: int) -> None:
    text = " UNION ALL ".join(TWO_UNITS.split(" UNION ALL ")[::sides])
    with with_own_state(clinic) as session:
        with pytest.raises(BudgetError) as raised:
            session.sql(text, rho=0.5)
        assert raised.value.unit == "nurse"
        # the price is told all the same
        told = session.sql(f"FROM dp_explain($$ {text} $$, rho := 0.5)").fetchall()
        assert [row[2] for row in told if row[0].startswith("all parts") and row[1] == "rho"] == ["0.5", "0.5"]
        assert [spent(session, unit).rho_nano for unit in ("patient", "nurse")] == [0, 0]


def test_the_transaction_of_the_charge_refuses_both_units(
    clinic: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one unit has is spent between the look at its budget and the charge."""
    with with_own_state(clinic) as session:
        session.sql("SELECT count(*) FROM shifts WHERE night = 0", rho=0.2)
        ledger_type = type(session._access.read().ledger)
        before = spent(session, "nurse")
        monkeypatch.setattr(ledger_type, "require", lambda *_, **__: None)
        with pytest.raises(BudgetError):
            session.sql(TWO_UNITS, rho=0.3)
        assert spent(session, "patient").rho_nano == 0
        assert spent(session, "nurse") == before


def test_a_database_file_holds_what_two_units_paid(tmp_path: Path) -> None:
    database = tmp_path / "clinic.duckdb"
    with dpsql.connect(database) as session:
        session.connection.execute(TABLES)
        for text in DECLARED:
            session.sql(text)
        rows = session.sql(TWO_UNITS, rho=0.3).fetchall()
    with dpsql.connect(database, read_only=True) as session:
        again = session.sql(TWO_UNITS, rho=0.3)
        assert again.fetchall() == rows
        assert receipt_of(again).charged_rho == 0.0
