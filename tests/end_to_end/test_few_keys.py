"""Norms of few keys: the first round says how many keys there are, before AUTO chooses by them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from dpsql.cascade.reader import CURATOR, Reader
from dpsql.features import auto, auto_few_keys, known_keys
from dpsql.features.auto_norms import NormUse
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

ROWS = "SELECT shop, count(*) AS n FROM sales GROUP BY shop"
LEVEL: dict[str, Any] = {"rho": 0.05, "delta": 1e-6}


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    """6,000 people in four shops, with rows by a Pareto law."""
    with dpsql.connect(threads=2) as session:
        session.connection.execute(
            "CREATE TABLE sales AS SELECT u, (u + i) % 4 AS shop FROM (SELECT u, "
            "unnest(range(1 + floor(4 * ((6000 / (u + 0.5)) ** 0.8 - 1))::BIGINT)) AS i FROM range(6000) r(u))"
        )
        session.sql("CALL dp_unit('buyer', rho_budget := 30, delta_threshold := 1e-3, delta_conversion := 1e-6)")
        session.sql("CALL dp_protect('sales', coverage := FALSE, unit := 'buyer', privacy_unit_column := 'u')")
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as made:
        made._runner.noise_source = seeded_noise(5)
        yield made


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Return the numbers of keys that norms are chosen by, as they are chosen."""
    seen: list[int | None] = []
    choose = auto_few_keys.norm_of_few_keys

    def chosen(noisy: Any, sigma: float, use: NormUse) -> float | None:
        seen.append(use.key_count)
        return choose(noisy, sigma, use)

    monkeypatch.setattr(auto_few_keys, "norm_of_few_keys", chosen)
    return seen


def norm(answer: dpsql.Result) -> float:
    """Return the norm that a receipt states."""
    (found,) = re.findall(r"AUTO chose a norm of ([0-9.]+)", " ".join(receipt_of(answer).notes))
    return float(found)


def spent(session: dpsql.Session) -> float:
    return float(session.sql("FROM dp_budget('buyer')").df().rho_spent[0])


def test_few_keys_have_a_norm_of_the_tail(session: dpsql.Session, counts: list[int | None]) -> None:
    """The norm goes far into the tail; the price is that of the question, and the round is charged and stated once."""
    answer = session.sql(ROWS, **LEVEL)
    assert counts == [4]
    assert norm(answer) > 60.0
    receipt = receipt_of(answer)
    assert [one.receipt.charged_rho > 0.0 for one in receipt.sets] == [True, True]
    assert receipt.charged_rho == pytest.approx(spent(session), abs=1e-12) == pytest.approx(0.05, abs=1e-8)
    assert sum(one.receipt.charged_rho for one in receipt.sets) == pytest.approx(receipt.charged_rho, abs=1e-12)
    shown = session.sql("FROM dp_releases()").df()
    assert shown.charged_rho.sum() == pytest.approx(0.05, abs=1e-8)
    assert set(shown["query_hash"]) == {receipt.query_hash}


def test_without_the_number_of_keys_the_norm_is_small(
    session: dpsql.Session, counts: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault."""
    monkeypatch.setattr(auto, "FEW_KEYS", 3)
    assert norm(session.sql(ROWS, **LEVEL)) < 50.0
    assert not counts


def test_the_same_question_has_the_same_answer(session: dpsql.Session) -> None:
    first = session.sql(ROWS, **LEVEL)
    # who asks for less than a tenth is served the same norm, from the stored points
    less = session.sql(ROWS, rho=0.004, delta=1e-6)
    again = session.sql(ROWS, **LEVEL)
    assert again.fetchall() == first.fetchall()
    assert receipt_of(again).query_hash == receipt_of(first).query_hash == receipt_of(less).query_hash
    assert spent(session) == pytest.approx(0.05, abs=1e-8)


def test_a_refresh_draws_one_more_round(session: dpsql.Session) -> None:
    session.sql(ROWS, **LEVEL)
    anew = session.sql(ROWS, **LEVEL, refresh=True)
    # AUTO is not asked again
    assert spent(session) == pytest.approx(0.05 + 0.05 * 31 / 32, abs=1e-6)
    again = session.sql(ROWS, **LEVEL)
    assert (again.fetchall(), receipt_of(again).charged_rho) == (anew.fetchall(), 0.0)


def test_a_crash_after_the_first_round_pays_nothing_twice(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = known_keys.draw_first_round

    def crash(*arguments: Any) -> None:
        draw(*arguments)
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr("dpsql.session.auto_plans.draw_first_round", crash)
        with pytest.raises(RuntimeError):
            session.sql(ROWS, **LEVEL)
    before = spent(session)
    assert 0.003 < before < 0.006
    assert len(session.sql("FROM dp_releases()")) == 0
    assert norm(session.sql(ROWS, **LEVEL)) > 60.0
    assert spent(session) == pytest.approx(0.05, abs=1e-8)


def chosen_for(session: dpsql.Session, reader: str, rho: float) -> None:
    """Plan the question for a reader."""
    statement = read_statement(ROWS, None)
    assert isinstance(statement, SelectStatement)
    session._runner.plan(statement, {"rho": rho, "delta": 1e-6}, reader)


def test_a_reader_who_may_not_see_the_first_round_is_not_told_of_it(
    session: dpsql.Session, counts: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round at 0.06 of rho = 5 is above six tenths of a limit of 0.4."""
    session.sql(ROWS, rho=5.0, delta=1e-6)
    session.sql("CALL dp_analyst('ana', rho_limit := 0.4)")
    session.as_analyst("ana").sql(ROWS, rho=0.3, delta=1e-6)
    counts.clear()
    chosen_for(session, "ana", 0.3)
    assert not counts
    chosen_for(session, CURATOR, 0.3)
    assert counts == [4]
    # the planted fault
    counts.clear()
    monkeypatch.setattr(Reader, "may_see", lambda *_: True)
    chosen_for(session, "ana", 0.3)
    assert counts == [4]
