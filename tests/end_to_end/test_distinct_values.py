"""count(DISTINCT x) and sum(DISTINCT x) through SQL: private and public keys, frozen keys, levels, after top-k."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise, silence

COUNT = "SELECT city, count(DISTINCT drug) AS drugs FROM visits GROUP BY city ORDER BY city"


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    """600 patients in three cities: every patient of a city has three drugs, city 2 has 60 of them in all."""
    with dpsql.connect() as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT p AS patient, p % 3 AS city, "
            "'drug ' || ((p // 3 + v * 7) % (20 * (p % 3 + 1))) AS drug FROM range(600) u(p), range(3) w(v)"
        )
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "privacy_unit_column := 'patient', max_groups_contributed := 1, "
            "max_rows_per_group := 3, rho_budget := 1000, delta_threshold := 0.5, delta_conversion := 1e-6)"
        )
        yield session


@pytest.mark.parametrize("keys", ["", "CALL dp_domain('visits', 'city', keys := [0, 1, 2, 3])"])
def test_the_count_is_exact_without_noise(session: dpsql.Session, keys: str) -> None:
    silence(session)
    if keys:
        session.sql(keys)
    found = [(0, 20), (1, 40), (2, 60), *([(3, 0)] if keys else [])]
    assert session.sql(COUNT, rho=1, delta=1e-3).fetchall() == found


def test_frozen_keys_get_the_count_later(session: dpsql.Session) -> None:
    silence(session)
    session.sql("SELECT city, count(DISTINCT patient) AS n FROM visits GROUP BY city", rho=1, delta=1e-3)
    answer = session.sql(COUNT, rho=1, delta=1e-3)
    assert answer.fetchall() == [(0, 20), (1, 40), (2, 60)]
    assert receipt_of(answer).charged_rho < 1


def test_after_top_k(session: dpsql.Session) -> None:
    session.connection.execute("DELETE FROM visits WHERE city = 0 AND patient > 30")
    session._runner.noise_source = seeded_noise(1)
    drugs = dict(session.sql(COUNT, rho=8, delta=1e-2, top_k=2).fetchall())
    assert drugs == {1: pytest.approx(40, abs=8), 2: pytest.approx(60, abs=8)}


def test_a_unit_with_many_values_counts_few(session: dpsql.Session) -> None:
    silence(session)
    session.connection.execute("INSERT INTO visits SELECT 2, 2, 'new drug ' || i FROM range(1000) n(i)")
    count = "SELECT count(DISTINCT drug, contribution_bounds_per_group => (0, 2)) AS drugs FROM visits"
    ((drugs,),) = session.sql(count, rho=1).fetchall()
    assert drugs <= 62
    receipt = receipt_of(session.sql(count, rho=1))
    assert receipt.columns[0].bounds == (0.0, 2.0)
    assert receipt.columns[0].linf == 1.0
    assert any("at most 2 distinct values" in note for note in receipt.notes)


def test_another_level_costs_the_rise_and_lower_ones_nothing(session: dpsql.Session) -> None:
    prices = [
        receipt_of(session.sql("SELECT count(DISTINCT drug) FROM visits", rho=rho)).charged_rho
        for rho in (0.5, 2, 1, 2)
    ]
    assert prices == pytest.approx([0.5, 1.5, 0, 0], abs=1e-8)


@pytest.mark.statistical
def test_errors_are_as_wide_as_intervals_say(session: dpsql.Session) -> None:
    """Of 500 intervals at 95 %, fewer than 455 or more than 493 cover with probability below 2e-4 (binomial)."""
    session._runner.noise_source = seeded_noise(5)
    session.connection.execute("CREATE TABLE many AS SELECT patient, patient % 500 AS city, drug FROM visits")
    session.sql(
        "CALL dp_protect('many', coverage := FALSE, "
        "unit := 'visits', privacy_unit_column := 'patient', max_rows_per_group := 3)"
    )
    session.sql(f"CALL dp_domain('many', 'city', keys := {list(range(500))})")
    query = "SELECT city, count(DISTINCT drug) AS n, dp_interval_low(n), dp_interval_high(n) FROM many GROUP BY city"
    exact = dict(session.connection.execute("SELECT city, count(DISTINCT drug) FROM many GROUP BY city").fetchall())
    rows = session.sql(query, rho=0.05, max_groups_contributed=1, mechanism="GAUSSIAN").fetchall()
    assert 455 <= sum(low <= exact[city] <= high for city, _, low, high in rows) <= 493
    assert sum(abs(n - exact[city]) <= (high - low) / 4 for city, n, low, high in rows) < 455, "half the width"


def test_a_sum_of_values_is_that_of_duckdb_without_noise(session: dpsql.Session) -> None:
    silence(session)
    session.connection.execute("ALTER TABLE visits ADD COLUMN paid INTEGER")
    session.connection.execute("UPDATE visits SET paid = (patient * 7 + city) % 90 - 20")
    session.sql("CALL dp_domain('visits', 'paid', bounds := [-100, 100])")
    text = "SELECT city, sum(DISTINCT paid) AS paid FROM visits GROUP BY city ORDER BY city"
    answer = session.sql(text, rho=1, delta=1e-3)
    assert answer.fetchall() == session.connection.execute(text).fetchall()
    (column,) = receipt_of(answer).columns
    assert (column.bounds, column.linf) == ((-300.0, 300.0), 300.0)
    assert any("at most 3 distinct values" in note for note in receipt_of(answer).notes)


def test_auto_finds_the_bounds_of_a_sum_of_values(session: dpsql.Session) -> None:
    silence(session)
    session.connection.execute("CREATE TABLE bills AS SELECT patient, patient % 50 AS paid FROM visits")
    session.sql("CALL dp_protect('bills', unit := 'visits', privacy_unit_column := 'patient')")
    answer = session.sql("SELECT sum(DISTINCT paid) AS paid FROM bills", rho=8)
    ((paid,),) = answer.fetchall()
    assert paid == pytest.approx(sum(range(50)), abs=10)
    assert any("AUTO found bounds" in note for note in receipt_of(answer).notes)


@pytest.mark.statistical
def test_errors_of_a_sum_of_values_are_as_wide_as_intervals_say(session: dpsql.Session) -> None:
    """Of 500 intervals at 95 %, fewer than 455 or more than 493 cover with probability below 2e-4 (binomial)."""
    session._runner.noise_source = seeded_noise(6)
    session.connection.execute(
        "CREATE TABLE many AS SELECT patient, patient % 500 AS city, patient % 41 + city AS paid FROM visits"
    )
    session.sql(
        "CALL dp_protect('many', coverage := FALSE, "
        "unit := 'visits', privacy_unit_column := 'patient', max_rows_per_group := 3)"
    )
    session.sql(f"CALL dp_domain('many', 'city', keys := {list(range(500))})")
    session.sql("CALL dp_domain('many', 'paid', bounds := [-5, 50])")
    query = "SELECT city, sum(DISTINCT paid) AS s, dp_interval_low(s), dp_interval_high(s) FROM many GROUP BY city"
    exact = dict(session.connection.execute("SELECT city, sum(DISTINCT paid) FROM many GROUP BY city").fetchall())
    rows = session.sql(query, rho=0.05, max_groups_contributed=1, mechanism="GAUSSIAN").fetchall()
    assert 455 <= sum(low <= exact[city] <= high for city, _, low, high in rows) <= 493
    assert sum(abs(s - exact[city]) <= (high - low) / 4 for city, s, low, high in rows) < 455, "half the width"
