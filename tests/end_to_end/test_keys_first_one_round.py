"""Keys first where the first round finds nearly all: no second round, and its level is the numbers'."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.features import first_round
from dpsql.features.keys_first import KIND
from dpsql.model.query_kinds import KeysFirst
from dpsql.release import stages
from dpsql.release.offer import current
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

PEOPLE = "SELECT shop, count(DISTINCT u) AS n FROM sales GROUP BY shop"
ROWS = "SELECT shop, count(*) AS n FROM sales GROUP BY shop"
LEVEL: dict[str, Any] = {"rho": 0.05, "delta": 1e-6}
FIRST_NANO = 2_906_250
"""A tenth of the six tenths of 31/32 of 0.05 for keys."""


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    """4,000 people with 8 of 12 shops; tests ask with a ledger of their own."""
    with dpsql.connect(threads=2) as session:
        session.connection.execute(
            "CREATE TABLE sales AS SELECT u, (u + i) % 12 AS shop, 1 + i AS cost FROM range(4000) r(u), range(8) s(i)"
        )
        session.sql("CALL dp_unit('buyer', rho_budget := 3, delta_threshold := 1e-3, delta_conversion := 1e-6)")
        session.sql("CALL dp_protect('sales', coverage := FALSE, unit := 'buyer', privacy_unit_column := 'u')")
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as made:
        made._runner.noise_source = seeded_noise(5)
        yield made


@pytest.fixture
def with_rare(session: dpsql.Session) -> Iterator[dpsql.Session]:
    """Give every second person one of 40 rare shops, too."""
    session.connection.execute("INSERT INTO sales SELECT u, 100 + hash(u) % 40, 1 FROM range(0, 4000, 2) r(u)")
    yield session
    session.connection.execute("DELETE FROM sales WHERE shop >= 100")


def levels(answer: dpsql.Result) -> list[float]:
    """Of each round, and last of the numbers, with what AUTO was told."""
    return [one.receipt.rho for one in receipt_of(answer).sets]


def spent(session: dpsql.Session) -> float:
    return float(session.sql("FROM dp_budget('buyer')").df().rho_spent[0])


def price(session: dpsql.Session, rho: float = 0.05, text: str = PEOPLE) -> str:
    plan = session.sql(f"FROM dp_explain($${text}$$, rho := {rho}, delta := 1e-6)").fetchall()
    return str(next(value for section, name, value in plan if (section, name) == ("price", "rho")))


@pytest.mark.parametrize("text", [PEOPLE, ROWS], ids=["people", "rows"])
def test_the_level_of_the_round_that_is_left_out_is_the_numbers(session: dpsql.Session, text: str) -> None:
    """The plan states what is charged at most, and then exactly."""
    assert price(session, text=text) == "0.05, or less where an answer is stored"
    assert spent(session) == 0.0
    answer = session.sql(text, **LEVEL)
    assert len(answer) == 12
    first, numbers = levels(answer)
    assert first == FIRST_NANO / 1e9
    assert first + numbers == pytest.approx(0.05, abs=1e-9)
    assert receipt_of(answer).rho == receipt_of(answer).charged_rho == pytest.approx(0.05, abs=1e-9) == spent(session)
    again = session.sql(text, **LEVEL)
    assert (again.fetchall(), receipt_of(again).charged_rho) == (answer.fetchall(), 0.0)
    assert price(session, text=text) == "0"
    # a plan that the first round may make cheaper says so
    stated, before = price(session, 0.11, text), spent(session)
    assert stated.endswith(", or less, as the first round decides")
    session.sql(text, rho=0.11, delta=1e-6)
    assert spent(session) - before < float(stated.split(",")[0])


def test_where_keys_are_left_there_is_a_second_round(with_rare: dpsql.Session) -> None:
    answer = with_rare.sql(PEOPLE, **LEVEL)
    assert len(levels(answer)) == 3
    assert len(answer) == 52
    assert spent(with_rare) == pytest.approx(0.05, abs=1e-9)


def test_the_check_catches_a_round_that_is_left_out_too_soon(
    with_rare: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_round, "_MISSED", 1e9)
    assert len(with_rare.sql(PEOPLE, **LEVEL)) < 52


@pytest.mark.parametrize("of_keys", [0.02, 0.05])
def test_rounds_of_keys_that_are_stored_are_in_the_price_where_numbers_may_have_their_level(
    session: dpsql.Session, of_keys: float
) -> None:
    session._runner.noise_source = seeded_noise(6)
    session.sql("SELECT DISTINCT shop FROM sales", rho=of_keys, delta=1e-6)
    stated, before = price(session), spent(session)
    # what AUTO is told is not charged before the rest can be paid
    session.sql(f"CALL dp_unit('buyer', rho_budget := {before + 0.04}, replace := TRUE)")
    with pytest.raises(dpsql.BudgetError):
        session.sql(PEOPLE, **LEVEL)
    assert spent(session) == before
    session.sql("CALL dp_unit('buyer', rho_budget := 3, replace := TRUE)")
    assert len(levels(session.sql(PEOPLE, **LEVEL))) == 2
    assert spent(session) - before == pytest.approx(0.05 - of_keys / 10, abs=1e-9)
    # units with one key would be answered by another mechanism, to which stored rounds are of no use
    assert stated == "0.05, or less where an answer is stored"


@pytest.mark.parametrize(
    ("others", "readers"), [(0.11, [None, "ana"]), (0.2, ["ana", None]), (0.6, [None, "ana"])], ids=str
)
def test_the_same_question_has_the_same_answer_whatever_others_ask(
    session: dpsql.Session, others: float, readers: list[str | None]
) -> None:
    session.sql("CALL dp_analyst('ana', rho_limit := 0.05)")
    asking = [session.as_analyst(reader) if reader else session for reader in readers]
    first = [one.sql(PEOPLE, **LEVEL) for one in asking]
    session.sql(PEOPLE, rho=others, delta=1e-6)
    session.sql("SELECT DISTINCT shop FROM sales", rho=others, delta=1e-6)
    for one, before in zip(asking, first, strict=True):
        again = one.sql(PEOPLE, **LEVEL)
        assert (again.fetchall(), levels(again)) == (before.fetchall(), levels(before))
        assert receipt_of(again).charged_rho == 0.0


def test_levels_rise_for_the_difference(session: dpsql.Session) -> None:
    for rho in (0.05, 0.08, 0.02, 0.08, 0.64):
        answer = session.sql(PEOPLE, rho=rho, delta=1e-6)
        assert len(levels(answer)) == 2
    # AUTO's histogram was sure at first, and is not drawn again
    first, numbers = levels(answer)
    assert first == pytest.approx(0.06 * 0.64 * 31 / 32, rel=0.02)
    assert first + numbers <= 0.64 + 1e-9
    assert spent(session) <= 0.64 + 1e-9


def test_a_reader_with_a_limit_has_numbers_at_their_part(session: dpsql.Session) -> None:
    session.sql("CALL dp_analyst('ana', rho_limit := 0.05)")
    answer = session.as_analyst("ana").sql(PEOPLE, **LEVEL)
    first, numbers = levels(answer)
    assert first == FIRST_NANO / 1e9
    assert numbers == pytest.approx(0.4 * 0.05 * 31 / 32 + 0.05 / 32, abs=1e-8)
    held = session.sql("FROM dp_budget('buyer', analysts := ['ana'])").df().rho_held[0]
    assert held == pytest.approx(receipt_of(answer).rho, abs=1e-9)
    assert held < 0.05


def test_a_budget_that_two_rounds_would_pass_is_not_begun_and_a_crash_pays_nothing_twice(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise RuntimeError

    session.sql("CALL dp_unit('buyer', rho_budget := 0.049, replace := TRUE)")
    with pytest.raises(dpsql.BudgetError):
        session.sql(PEOPLE, **LEVEL)
    assert spent(session) == 0.0
    session.sql("CALL dp_unit('buyer', rho_budget := 0.05, replace := TRUE)")
    # after the first round
    with monkeypatch.context() as broken:
        broken.setattr(stages, "add_keys", crash)
        with pytest.raises(RuntimeError):
            session.sql(PEOPLE, **LEVEL)
    assert spent(session) == pytest.approx(FIRST_NANO / 1e9 + 0.05 / 32, abs=1e-9)
    answer = session.sql(PEOPLE, **LEVEL)
    assert len(answer) == 12
    assert len(levels(answer)) == 2
    assert spent(session) == pytest.approx(0.05, abs=1e-9)


def test_the_step_that_is_known_holds_for_another_level_of_a_question(session: dpsql.Session) -> None:
    """A receipt without groups tells of higher levels, where AUTO would draw a histogram again."""
    session.sql(ROWS, **LEVEL)
    statement = read_statement(ROWS)
    assert isinstance(statement, SelectStatement)
    query, state, reader = session._runner.plan(statement, LEVEL, CURATOR)
    query = query.mapped(lambda part: current(part, state, reader))
    groups, norm = query.first.auto_levels
    levels = (groups, replace(norm, is_stored=False))
    unsure = query.mapped(lambda part: replace(part, auto_levels=levels) if part.auto else part)
    assert isinstance(unsure, KeysFirst)
    assert unsure.first.is_open
    assert len(KIND.offers(unsure, state, reader)) == 1 + 1
