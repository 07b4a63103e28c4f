"""Keys that a threshold on the numbers shows in place of rounds: where keys are equally large."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dpsql
from dpsql.model.frame import NANO
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

PEOPLE = "SELECT shop, count(DISTINCT u) AS n FROM sales GROUP BY shop"
ROWS = "SELECT shop, count(*) AS n FROM sales GROUP BY shop"
LEVEL: dict[str, Any] = {"rho": 0.05, "delta": 1e-6}
SHOWS_MORE = "more rounds do not pay"
FIRST_NANO = 2_906_250
"""A tenth of the six tenths of 31/32 of 0.05 for keys."""


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    """1,500 people with 6 of 90 shops, 100 people each; tests ask with a ledger of their own."""
    with dpsql.connect(threads=2) as session:
        session.connection.execute(
            "CREATE TABLE sales AS SELECT u, (7 * u + 13 * i * i) % 90 AS shop FROM range(1500) r(u), range(6) s(i)"
        )
        session.sql("CALL dp_unit('buyer', rho_budget := 30, delta_threshold := 1e-3, delta_conversion := 1e-6)")
        session.sql("CALL dp_protect('sales', coverage := FALSE, unit := 'buyer', privacy_unit_column := 'u')")
        session.sql("CALL dp_analyst('ana', rho_limit := 0.05)")
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as made:
        made._runner.noise_source = seeded_noise(5)
        yield made


def levels(answer: dpsql.Result) -> list[float]:
    """Of each round, and last of the numbers, with what AUTO was told."""
    return [one.receipt.rho for one in receipt_of(answer).sets]


def prices(session: dpsql.Session | dpsql.Analyst, text: str, rho: float) -> tuple[str, float]:
    plan = session.sql(f"FROM dp_explain($${text}$$, rho := {rho}, delta := 1e-6)").fetchall()
    of_plan = {name: value for section, name, value in plan if section == "price"}
    return of_plan["rho"], float(of_plan["threshold delta"])


def test_numbers_have_what_rounds_would_take_and_a_threshold(session: dpsql.Session) -> None:
    stated, stated_delta = prices(session, PEOPLE, 0.05)
    answer = session.sql(PEOPLE, **LEVEL)
    receipt = receipt_of(answer)
    assert stated == "0.05, or less where an answer is stored"
    # of units with one key the threshold of another mechanism takes nearly the whole delta
    assert stated_delta == pytest.approx(0.975e-6, rel=0.01)
    assert receipt.mechanism == "keys_first"
    assert levels(answer) == pytest.approx([FIRST_NANO / NANO, 0.05 - FIRST_NANO / NANO])
    assert receipt.charged_rho == pytest.approx(0.05, abs=1e-9)
    assert receipt.charged_delta == pytest.approx(0.5e-6, rel=0.02)
    # counts in 6 groups at 94 % of rho
    (column,) = receipt.columns
    assert column.sigma == pytest.approx(math.sqrt(6.0 / (2.0 * 0.94 * 0.05 * 31 / 32)), rel=0.01)
    (note,) = (one for one in receipt.notes if SHOWS_MORE in one)
    assert f"if its noisy count of units exceeds {receipt.threshold:.4g}" in note
    rows = answer.fetchall()
    assert len(rows) > 60
    assert all(n > receipt.threshold for _, n in rows)
    again = session.sql(PEOPLE, **LEVEL)
    assert (again.fetchall(), receipt_of(again).charged_rho) == (rows, 0.0)
    assert prices(session, PEOPLE, 0.05) == ("0", 0.0)


def test_a_count_of_rows_shows_keys_where_no_unit_is_counted(session: dpsql.Session) -> None:
    """Its threshold is that of a round of key selection, times the norm of what a person adds."""
    answer = session.sql(ROWS, **LEVEL)
    receipt = receipt_of(answer)
    (note,) = (one for one in receipt.notes if SHOWS_MORE in one)
    threshold = float(note.split("noisy count of rows exceeds ")[1].split(";")[0])
    (column,) = receipt.columns
    assert 5.0 < (threshold / (column.l2 or 0.0) - 1.0) / ((column.sigma or 0.0) / (column.l2 or 1.0)) < 7.0
    rows = answer.fetchall()
    assert len(rows) > 60
    assert all(n > threshold - 0.5 for _, n in rows)


def test_rounds_stay_where_they_are_named_and_for_readers_with_a_limit(session: dpsql.Session) -> None:
    named = session.sql(PEOPLE, mechanism="KEYS_FIRST", max_groups_contributed="AUTO", **LEVEL)
    limited = session.as_analyst("ana").sql(PEOPLE, **LEVEL)
    assert not any(SHOWS_MORE in note for one in (named, limited) for note in receipt_of(one).notes)


def test_the_policys_minimum_of_units_counts_in_the_threshold(session: dpsql.Session) -> None:
    """It is of the moment: what was shown before it was declared is hidden then."""
    before = receipt_of(session.sql(PEOPLE, **LEVEL)).threshold
    session.sql(
        "CALL dp_protect('sales', coverage := FALSE, unit := 'buyer', privacy_unit_column := 'u', "
        "min_privacy_units_per_group := 9, replace := TRUE)"
    )
    after = receipt_of(session.sql(PEOPLE, **LEVEL)).threshold
    assert before is not None
    assert after == pytest.approx(before + 8)


def complaints(prepared: dpsql.Session, seed: int, questions: int) -> Iterator[str]:
    """Yield what is wrong after each question of a random history: prices, repeats, or what a reader holds."""
    random, told = np.random.default_rng(seed), dict[tuple[Any, ...], Any]()
    with with_own_state(prepared) as session:
        session._runner.noise_source = seeded_noise(seed)
        for _ in range(questions):
            name = str(random.choice(["curator", "ana"]))
            rho = float(random.choice([0.01, 0.03, 0.05] if name == "ana" else [0.03, 0.05, 0.2, 1.0]))
            text = str(random.choice([PEOPLE, PEOPLE, ROWS]))
            asks = session.as_analyst("ana") if name == "ana" else session
            price, delta = prices(asks, text, rho)
            answer = asks.sql(text, rho=rho, delta=1e-6)
            receipt, rows = receipt_of(answer), answer.fetchall()
            charged, most = receipt.charged_rho, float(price.split(",")[0])
            is_exact = "," not in price
            if charged > most + 1e-9 or (is_exact and not math.isclose(charged, most, abs_tol=1e-9)):
                yield f"{name} was told {price} and charged {charged}"
            if receipt.charged_delta > delta * (1.0 + 1e-5):
                yield f"{name} was told {delta} and charged {receipt.charged_delta}"
            if told.setdefault((name, text, rho), rows) != rows:
                yield f"{name} asked {text} at {rho} again and saw other rows"
            if name == "ana" and any(SHOWS_MORE in note for note in receipt.notes):
                yield "a reader with a limit was shown keys by the numbers"
        held = session.sql("FROM dp_budget('buyer', analysts := ['ana'])").df()
        if len(held) and held.rho_held[0] > 2 * 0.05 + 1e-9:
            yield f"ana holds {held.rho_held[0]} of two questions"


@pytest.mark.parametrize(
    ("seed", "questions"), [(1, 10), *(pytest.param(seed, 20, marks=pytest.mark.long) for seed in range(2, 10))]
)
def test_in_a_history_prices_are_those_told(prepared: dpsql.Session, seed: int, questions: int) -> None:
    assert list(complaints(prepared, seed, questions)) == []


@pytest.fixture(scope="module")
def of_two_sizes() -> Iterator[dpsql.Session]:
    """1,500 people with 6 of 90 shops of 100 people, and with one of 40 shops of 37 people."""
    with dpsql.connect(threads=2) as session:
        session.connection.execute(
            "CREATE TABLE sales AS SELECT u, (7 * u + 13 * i * i) % 90 AS shop FROM range(1500) r(u), range(6) s(i) "
            "UNION ALL SELECT u, 200 + u % 40 FROM range(1500) r(u)"
        )
        session.sql("CALL dp_unit('buyer', rho_budget := 30, delta_threshold := 1e-3, delta_conversion := 1e-6)")
        session.sql("CALL dp_protect('sales', coverage := FALSE, unit := 'buyer', privacy_unit_column := 'u')")
        session.sql("CALL dp_analyst('cy', rho_limit := 1.0)")
        yield session


def test_a_later_threshold_changes_no_answer_at_a_lower_level(of_two_sizes: dpsql.Session) -> None:
    """The answer at 0.03 shows the keys of the threshold at 0.05 before and after there is one at 0.08."""
    with with_own_state(of_two_sizes) as session:
        session._runner.noise_source = seeded_noise(7)
        asked = [(rho, session.sql(PEOPLE, rho=rho, delta=1e-6).fetchall()) for rho in (0.05, 0.03, 0.08, 0.03)]
        assert len(asked[2][1]) > len(asked[1][1])
        assert asked[3] == asked[1]


def test_the_price_covers_a_threshold_that_follows_from_norms_to_come(of_two_sizes: dpsql.Session) -> None:
    """Rounds and the histogram of groups are stored; that of norms, which says whether a threshold pays, is not."""
    with with_own_state(of_two_sizes) as session:
        session._runner.noise_source = seeded_noise(3)
        session.as_analyst("cy").sql(PEOPLE, **{**LEVEL, "rho": 0.03})
        told, told_delta = prices(session, ROWS, 0.03)
        receipt = receipt_of(session.sql(ROWS, **{**LEVEL, "rho": 0.03}))
        assert any(SHOWS_MORE in note for note in receipt.notes)
        assert receipt.charged_rho <= float(told.split(",")[0]) + 1e-9
        assert receipt.charged_delta <= told_delta * (1.0 + 1e-5)


@pytest.mark.parametrize(
    "column", ["count(DISTINCT u) AS n, sum(x, contribution_bounds_per_group => (0, 2)) AS t", "count(*) AS n"]
)
def test_keys_of_changed_rows_pass_no_threshold_that_is_stored(column: str) -> None:
    """Every person has new keys of their own at a later draw of the same frame; the first question shows none."""
    with dpsql.connect(threads=2) as session:
        session.connection.execute(
            "CREATE TABLE sales AS SELECT u, (7 * u + 13 * i * i) % 90 AS shop, 1.0 AS x, 1.0 AS y "
            "FROM range(1500) r(u), range(6) s(i)"
        )
        session.sql("CALL dp_unit('buyer', rho_budget := 30, delta_threshold := 0.1, delta_conversion := 1e-6)")
        session.sql("CALL dp_protect('sales', coverage := FALSE, unit := 'buyer', privacy_unit_column := 'u')")
        session._runner.noise_source = seeded_noise(5)
        text = f"SELECT shop, {column} FROM sales GROUP BY shop"
        first = session.sql(text, rho=0.05, delta=1e-2)
        assert any(SHOWS_MORE in note for note in receipt_of(first).notes)
        session.connection.execute(
            "INSERT INTO sales SELECT u, 1000 + u * 12 + i, 1.0, 1.0 FROM range(1500) r(u), range(12) t(i)"
        )
        # one more sum, or a rise
        later = session.sql(text.replace("(x,", "(y,"), rho=0.05 if "(x," in text else 0.0595, delta=1e-2)
        assert receipt_of(later).charged_rho > 0.0
        assert session.sql(text, rho=0.05, delta=1e-2).fetchall() == first.fetchall()
