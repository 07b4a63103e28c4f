"""A ceiling: every statistic is drawn once, at one level; all lower ones are served without the data."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpsql
from dpsql.errors import AccessError, CalibrationError, PolicyError, ReleaseError, UnsupportedQueryError
from tests.noise_sources import seeded_noise

PRIVATE = "SELECT shop, count(DISTINCT visitor) AS n FROM visits GROUP BY shop"
PUBLIC = "SELECT day, count(DISTINCT visitor) AS n FROM visits GROUP BY day"
SUMS = "SELECT shop, count(DISTINCT visitor) AS n, sum(cost) AS s FROM visits GROUP BY shop"
TOP_K = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (top_k = 6) {PRIVATE.removeprefix('SELECT ')}"
WINDOW = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho_window = [0.01, 1]) {PRIVATE.removeprefix('SELECT ')}"
FREE = {"private": PRIVATE, "public": PUBLIC, "top_k": TOP_K, "window": WINDOW}


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with opened() as session:
        yield session


@pytest.fixture(scope="module")
def unasked() -> Iterator[dpsql.Session]:
    """For what is refused: nothing is ever spent there."""
    with opened() as session:
        yield session


@contextlib.contextmanager
def opened() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute("CREATE TABLE visits (visitor INTEGER, shop VARCHAR, day INTEGER, cost DOUBLE)")
        for i, visitors in enumerate((900, 600, 300, 60, 40, 30, 20, 10, 3, 1)):
            session.connection.execute(f"INSERT INTO visits SELECT i, 'shop {i}', i % 7, 5 FROM range({visitors}) t(i)")
        session.sql("CALL dp_unit('visitor', rho_budget := 100, delta_threshold := 0.1, delta_conversion := 1e-6)")
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "unit := 'visitor', privacy_unit_column := 'visitor', max_rows_per_group := 2, "
            "max_groups_contributed := 4, default_delta := 1e-6, rho_ceiling := 1)"
        )
        session.sql("CALL dp_domain('visits', 'day', keys := [0, 1, 2, 3, 4, 5, 6])")
        session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 10])")
        session._runner.noise_source = seeded_noise(8)
        yield session


def receipt_of(answer: dpsql.Result) -> dpsql.Receipt:
    assert answer.receipt is not None
    return answer.receipt


def spent(session: dpsql.Session) -> tuple[int, int]:
    total = session._access.read().ledger.spent("visitor")
    return total.rho_nano, total.delta_units


def free_answers(session: dpsql.Session, text: str, count: int) -> None:
    """The table is dropped after the first answer; so many more at other levels cost nothing."""
    first = receipt_of(session.sql(text, rho=0.1))
    assert first.rho == pytest.approx(0.1, rel=0.2)
    assert first.charged_rho == 1.0
    paid = spent(session)
    session.connection.execute("DROP TABLE visits")
    for rho in np.random.default_rng(3).uniform(0.01, 1.0, count):
        receipt = receipt_of(session.sql(text, rho=round(float(rho), 6)))
        assert receipt.charged_rho == receipt.charged_delta == 0
        assert receipt.rho <= round(float(rho), 6)
    assert spent(session) == paid


@pytest.mark.parametrize("text", FREE.values(), ids=FREE)
def test_below_the_ceiling_everything_is_free_and_needs_no_table(session: dpsql.Session, text: str) -> None:
    free_answers(session, text, 12)


@pytest.mark.long
@pytest.mark.parametrize("text", FREE.values(), ids=FREE)
def test_a_thousand_answers_below_the_ceiling_are_free_and_need_no_table(session: dpsql.Session, text: str) -> None:
    free_answers(session, text, 1000)


def test_numbers_follow_the_level_that_is_asked_for(session: dpsql.Session) -> None:
    wide, narrow = (receipt_of(session.sql(PUBLIC, rho=rho)).columns[0].sigma for rho in (0.01, 1.0))
    assert wide is not None
    assert narrow is not None
    # beside the noise both have the error of rounding to whole counts
    assert (wide**2 - 1 / 12) / (narrow**2 - 1 / 12) == pytest.approx(100.0, rel=1e-3)
    values = session.sql(PUBLIC, rho=1.0).df()["n"]
    assert values.sum() == pytest.approx(900, abs=60)


def test_above_the_ceiling_nothing_is_answered(unasked: dpsql.Session) -> None:
    # the only statistic of the query gets all of its rho
    for text in (PRIVATE, PUBLIC):
        with pytest.raises(CalibrationError, match="ceiling"):
            unasked.sql(text, rho=1.1)
    assert spent(unasked) == (0, 0)


def test_every_statistic_is_drawn_at_the_ceiling_once(session: dpsql.Session) -> None:
    assert receipt_of(session.sql(PRIVATE, rho=0.2)).charged_rho == 1.0
    # the sum is a second statistic; the count is there
    assert receipt_of(session.sql(SUMS, rho=0.3)).charged_rho == 1.0
    assert receipt_of(session.sql(SUMS, rho=1.0)).charged_rho == 0.0
    assert spent(session)[0] == 2 * 10**9


def test_the_exact_histogram_is_forgotten(session: dpsql.Session) -> None:
    session.sql(PRIVATE, rho=0.2)
    session.sql(TOP_K, rho=0.2)
    with session._access.read()._database.read() as connection:
        assert connection.execute("SELECT count(*) FROM snapshot").fetchone() == (0,)


def test_what_needs_the_dropped_table_is_refused_and_costs_nothing(session: dpsql.Session) -> None:
    session.sql(PRIVATE, rho=0.2)
    session.connection.execute("DROP TABLE visits")
    paid = spent(session)
    for text in (SUMS, PUBLIC):
        with pytest.raises(ReleaseError, match="gone"):
            session.sql(text, rho=0.2)
    with pytest.raises(ReleaseError, match="gone"):
        session.sql(PRIVATE, rho=0.2, refresh=True)
    assert spent(session) == paid
    # what the columns were is remembered, and nothing else is
    with pytest.raises(dpsql.errors.SchemaError):
        session.sql("SELECT city, count(*) FROM visits GROUP BY city", rho=0.1)
    with pytest.raises(dpsql.errors.SchemaError):
        session.sql("SELECT shop, count(*) FROM other.visits GROUP BY shop", rho=0.1)


def test_the_receipt_names_the_ceiling_that_the_keys_stem_from(session: dpsql.Session) -> None:
    receipt = receipt_of(session.sql(PRIVATE, rho=0.1))
    assert any("rho = 1," in note for note in receipt.notes)
    assert receipt.charged_rho == 1.0
    explained = session.sql(f"FROM dp_explain($$ {PRIVATE} $$, rho := 0.1)").fetchall()
    assert ("price", "rho", "0") in explained


def test_explain_names_the_price_of_the_ceiling(session: dpsql.Session) -> None:
    explained = session.sql(f"FROM dp_explain($$ {PRIVATE} $$, rho := 0.1)").fetchall()
    assert ("price", "rho", "1") in explained
    (delta,) = [float(row[2]) for row in explained if row[1] == "threshold delta"]
    assert receipt_of(session.sql(PRIVATE, rho=0.1)).charged_delta == pytest.approx(delta)


def test_a_reader_below_the_ceiling_pays_for_a_threshold(session: dpsql.Session) -> None:
    session.sql("CALL dp_analyst('ana', rho_limit := 0.1)")
    ana = session.as_analyst("ana")
    receipt = receipt_of(ana.sql(PRIVATE, rho=0.1))
    # hers, and that of the ceiling for those who may see it
    assert receipt.charged_rho == 1.0
    assert receipt.charged_delta == pytest.approx(2e-6, rel=1e-2)
    assert receipt_of(session.sql(PRIVATE, rho=0.3)).charged_delta == 0
    assert receipt_of(ana.sql(WINDOW, rho=0.1)).charged_delta == pytest.approx(1e-6, rel=2e-2)
    with pytest.raises(AccessError, match="rho_window"):
        ana.sql(TOP_K, rho=0.1)


@pytest.fixture(scope="module")
def nine() -> Iterator[tuple[dpsql.Session, Iterator[int]]]:
    """Nine people, and numbers for their readers."""
    with dpsql.connect() as session:
        session.connection.execute("CREATE TABLE visits AS SELECT i AS visitor, i % 2 AS shop FROM range(9) t(i)")
        session.sql("CALL dp_unit('visitor', rho_budget := 1e5, delta_threshold := 0.9, delta_conversion := 1e-6)")
        yield session, itertools.count()


@settings(max_examples=8)
@given(delta=st.floats(1e-9, 1e-3), limit=st.floats(1e-3, 0.9))
def test_every_threshold_of_its_own_below_a_ceiling_is_paid_to_the_last_unit(
    nine: tuple[dpsql.Session, Iterator[int]], delta: float, limit: float
) -> None:
    """Two thresholds and a draw are charged at once; each is rounded up by itself, as it is where it is stored."""
    session, numbers = nine
    session.sql(
        "CALL dp_protect('visits', coverage := FALSE, "
        "unit := 'visitor', privacy_unit_column := 'visitor', rho_ceiling := 1, "
        f"max_groups_contributed := 1, default_delta := {delta!r}, replace := TRUE)"
    )
    session.sql("CALL dp_new_version('visits')")
    reader = f"reader {next(numbers)}"
    session.sql(f"CALL dp_analyst('{reader}', rho_limit := {limit!r})")
    receipt = receipt_of(session.as_analyst(reader).sql(PRIVATE, rho=round(limit * 0.9, 9)))
    assert receipt.charged_rho == 1.0
    assert delta < receipt.charged_delta <= 2 * delta


def test_a_ceiling_is_not_for_analysts_to_raise(session: dpsql.Session) -> None:
    session.sql("CALL dp_analyst('ana', rho_limit := 0.1)")
    ana = session.as_analyst("ana")
    for asked in (1.5, 50.0):
        with pytest.raises(UnsupportedQueryError, match=r"OPTIONS \(rho_ceiling = 1\)"):
            ana.sql(PUBLIC, rho=0.05, rho_ceiling=asked)
    session.sql("CALL dp_protect('visits', coverage := FALSE, rho_ceiling := NULL, replace := true)")
    with pytest.raises(UnsupportedQueryError, match=r"OPTIONS \(rho_ceiling = 0\.1\)"):
        ana.sql(PUBLIC, rho=0.05, rho_ceiling=0.2)
    assert spent(session) == (0, 0)
    assert receipt_of(ana.sql(PUBLIC, rho=0.05, rho_ceiling=0.1)).charged_rho == pytest.approx(0.1)


@pytest.mark.parametrize(
    "options",
    [
        {"rho_ceiling": 0.0, "rho": 0.1},
        {"rho_ceiling": -1.0, "rho": 0.1},
        {"rho_ceiling": True, "rho": 0.1},
        {"rho_window": [0.01, 0.5], "rho": 0.1},
        {"own_threshold": 1, "rho": 0.1},
    ],
)
def test_wrong_options_are_refused(unasked: dpsql.Session, options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedQueryError):
        unasked.sql(PRIVATE, **options)
    assert spent(unasked) == (0, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        "rho_ceiling := 0",
        "rho_window := [1, 0.5]",
        "rho_window := [0.1, 0.5], rho_ceiling := 1",
        "rho_window := [0.1, 0.5], default_epsilon := 1",
        "rho_window := 1",
    ],
)
def test_wrong_policies_are_refused(unasked: dpsql.Session, arguments: str) -> None:
    with pytest.raises(PolicyError):
        unasked.sql(f"CALL dp_protect('visits', {arguments})")


def test_public_keys_pass_no_threshold_of_their_own(unasked: dpsql.Session) -> None:
    with pytest.raises(UnsupportedQueryError, match="public keys"):
        unasked.sql(PUBLIC, rho=0.1, own_threshold=True)


AUTO = "SELECT shop, sum(cost, contribution_bounds_per_row => AUTO) AS s FROM visits GROUP BY shop"
AUTO_GROUPS = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (max_groups_contributed = AUTO) {PUBLIC[7:]}"


@pytest.mark.parametrize("text", [AUTO, AUTO_GROUPS])
def test_auto_is_not_charged_for_a_question_that_its_ceiling_refuses(session: dpsql.Session, text: str) -> None:
    """It costs the ceiling for each statistic, whatever its level is: more than the part of the budget, or refused."""
    session.sql("CALL dp_analyst('ana', budget_part := 0.005)")
    ana = session.as_analyst("ana")
    with pytest.raises(CalibrationError, match=r"rho = 0\.1 is above the ceiling"):
        ana.sql(text, rho=0.1, rho_ceiling=0.01)
    with pytest.raises(dpsql.BudgetError):
        ana.sql(text, rho=0.1)
    assert session._access.read().ledger.spent("visitor").rho_nano == 0
    # the dearest outcome is what it costs, and the plan says it
    plan = session.sql(f"FROM dp_explain($$ {text} $$, rho := 0.1)").fetchall()
    (said,) = [float(value.split(",")[0]) for section, name, value in plan if (section, name) == ("price", "rho")]
    answer = session.sql(text, rho=0.1)
    assert 1 < receipt_of(answer).charged_rho <= said < 4
