"""Ranges and coarser groups of a public key are one release: all of them at one price, with honest intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy import stats

import dpsql
from dpsql.engine import DuckDBEngine
from dpsql.errors import SchemaError, UnsupportedQueryError
from dpsql.release import estimates
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise, silence

DAYS = 60
MONTHS = "date_trunc('month', day)"
RANGE = "day BETWEEN DATE '2026-01-11' AND DATE '2026-02-03'"
QUERIES = {
    "months": f"SELECT {MONTHS} AS m, count(*) AS n, sum(cost) AS s, avg(cost) AS a FROM visits GROUP BY m",
    "a range": f"SELECT count(*) AS n, sum(cost) AS s FROM visits WHERE {RANGE}",
    "days of a range": "SELECT day, count(*) AS n FROM visits WHERE day >= DATE '2026-02-20' GROUP BY day",
    "weekdays": "SELECT dayofweek(day) AS w, sum(cost) AS s FROM visits WHERE dayofweek(day) IN (1, 2) GROUP BY w",
    "with another key": f"SELECT city, {MONTHS} AS m, sum(cost) AS s, count(*) AS n FROM visits GROUP BY city, m",
    "another key first": f"SELECT kind, city, count(*) AS n FROM visits WHERE {RANGE} GROUP BY kind, city",
    "a filter of rows": f"SELECT {MONTHS} AS m, count(*) AS n FROM visits WHERE urgent AND {RANGE} GROUP BY m",
    "nothing left": "SELECT count(*) AS n FROM visits WHERE day > DATE '2030-01-01'",
    "no group left": f"SELECT {MONTHS} AS m, count(*) AS n FROM visits WHERE day > DATE '2030-01-01' GROUP BY m",
    "finished": f"SELECT {MONTHS} AS m, count(*) AS n FROM visits GROUP BY m HAVING n > 100 ORDER BY n DESC LIMIT 1",
}  # fmt: skip


def opened() -> dpsql.Session:
    """Open 1,500 visits of people who are there once, in one city."""
    session = dpsql.connect()
    session.connection.execute(
        "CREATE TABLE visits AS SELECT i AS visitor, DATE '2026-01-01' + (i * 7 % 60)::INTEGER AS day, "
        "i % 3 AS city, 'kind ' || i % 2 AS kind, (i % 11 - 4)::DOUBLE AS cost, i % 5 = 0 AS urgent "
        "FROM range(1500) t(i)"
    )
    session.connection.execute(
        f"CREATE TABLE days AS SELECT DATE '2026-01-01' + i::INTEGER AS day FROM range({DAYS}) t(i)"
    )
    session.sql("CALL dp_unit('visitor', rho_budget := 1e5, delta_threshold := 0.1, delta_conversion := 1e-6)")
    session.sql(
        "CALL dp_protect('visits', coverage := FALSE, "
        "unit := 'visitor', privacy_unit_column := 'visitor', max_rows_per_group := 2, "
        "max_groups_contributed := 1, default_delta := 1e-6)"
    )
    session.sql("CALL dp_public('days')")
    session.sql("CALL dp_domain('visits', 'day', keys_from := 'days.day')")
    session.sql("CALL dp_domain('visits', 'city', keys := [0, 1, 2])")
    session.sql("CALL dp_domain('visits', 'kind', keys := ['kind 0', 'kind 1'])")
    session.sql("CALL dp_domain('visits', 'cost', bounds := [-5, 7])")
    session._runner.noise_source = seeded_noise(4)
    return session


@pytest.fixture(scope="module")
def shared() -> Iterator[dpsql.Session]:
    with opened() as session:
        yield session


@pytest.fixture
def session(shared: dpsql.Session) -> dpsql.Session:
    """Return the visits under a version that nobody has asked about."""
    shared.sql("CALL dp_new_version('visits')")
    return shared


@pytest.fixture(scope="module")
def silent() -> Iterator[dpsql.Session]:
    with opened() as session:
        silence(session)
        yield session


def ask(session: dpsql.Session, text: str, rho: float = 0.5, **options: Any) -> dpsql.Result:
    return session.sql(text, rho=rho, buckets="day", **options)


@pytest.mark.parametrize("mechanism", [None, "GAUSSIAN"])
@pytest.mark.parametrize("text", QUERIES.values(), ids=QUERIES)
def test_without_noise_it_is_what_duckdb_says(silent: dpsql.Session, text: str, mechanism: str | None) -> None:
    ours = ask(silent, text, mechanism=mechanism).df().sort_index(axis=1)
    exact = silent.connection.execute(text).df().sort_index(axis=1)
    keys = [name for name in ours.columns if name in ("m", "day", "w", "city", "kind")]
    if keys:
        ours, exact = (table.sort_values(keys).reset_index(drop=True) for table in (ours, exact))
        # every listed key has its group, with or without a row
        ours = ours.merge(exact[keys], on=keys) if len(ours) > len(exact) else ours
    assert len(ours) == len(exact)
    for name in ours.columns:
        if name in keys:
            assert ours[name].astype(str).tolist() == exact[name].astype(str).tolist()
        else:
            assert ours[name].fillna(0).astype(float).tolist() == pytest.approx(
                exact[name].fillna(0).astype(float).tolist(), abs=1e-3
            )


def test_every_range_and_every_grouping_of_one_release_is_free(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = receipt_of(ask(session, "SELECT count(*) AS n FROM visits"))
    assert first.charged_rho == pytest.approx(0.5)

    def reading(*_: object, **__: object) -> None:
        raise AssertionError("raw data were read")

    monkeypatch.setattr(DuckDBEngine, "aggregate", reading)
    for text in (
        "SELECT day, count(*) AS n FROM visits GROUP BY day",
        f"SELECT {MONTHS} AS m, count(*) FROM visits GROUP BY m",
        f"SELECT count(*) FROM visits WHERE {RANGE}",
        "SELECT count(*) FROM visits WHERE day IN (DATE '2026-02-02', DATE '2026-02-09')",
    ):
        receipt = receipt_of(ask(session, text))
        assert (receipt.charged_rho, receipt.query_hash) == (0.0, first.query_hash)
    # running totals along the same key are the same release
    total = session.sql("SELECT day, sum(count(*)) OVER (ORDER BY day) AS t FROM visits GROUP BY day", rho=0.5)
    assert receipt_of(total).query_hash == first.query_hash


def test_all_of_them_are_consistent(session: dpsql.Session) -> None:
    days = ask(session, "SELECT day, sum(cost) AS s FROM visits GROUP BY day ORDER BY day").df()["s"]
    months = ask(session, f"SELECT {MONTHS} AS m, sum(cost) AS s FROM visits GROUP BY m ORDER BY m").df()["s"]
    whole = ask(session, "SELECT sum(cost) AS s FROM visits").df()["s"][0]
    assert months.sum() == pytest.approx(whole, abs=1e-6)
    assert days[:31].sum() == pytest.approx(months[0], abs=1e-6)


ENDS = "dp_interval_low(x) AS low, dp_interval_high(x) AS high"
MEASURED = {
    "month": f"SELECT city, {MONTHS} AS m, sum(cost) AS x, {{}} FROM visits GROUP BY ALL ORDER BY m, city LIMIT 3",
    "range": f"SELECT city, 0 AS m, count(*) AS x, {{}} FROM visits WHERE {RANGE} GROUP BY city ORDER BY city",
    "average": f"SELECT city, {MONTHS} AS m, avg(cost) AS x, {{}} FROM visits GROUP BY ALL ORDER BY m, city LIMIT 3",
}
CITIES = 3


def coverage(session: dpsql.Session, versions: int) -> dict[str, int]:
    """Count how often intervals at 95 % held the truth, by question; the noise of each city is its own."""
    exact = {name: session.connection.execute(text.format("0")).fetchall() for name, text in MEASURED.items()}
    held = dict.fromkeys(MEASURED, 0)
    for _ in range(versions):
        session.sql("CALL dp_new_version('visits')")
        for name, text in MEASURED.items():
            rows = ask(session, text.format(ENDS), rho=0.2).fetchall()
            assert len(rows) == CITIES
            for (*_, low, high), (_, _, truth, _) in zip(rows, exact[name], strict=True):
                held[name] += low <= truth <= high
    return held


@pytest.mark.statistical
@pytest.mark.parametrize("versions", [4, pytest.param(67, marks=pytest.mark.long)])
def test_intervals_hold_the_truth(session: dpsql.Session, versions: int) -> None:
    """The fewest that a right interval holds is below this bound with probability at most 1e-5."""
    session._runner.noise_source = seeded_noise(2026)
    for name, held in coverage(session, versions).items():
        assert stats.binom.cdf(held, CITIES * versions, 0.95) > 1e-5, name


@pytest.mark.statistical
def test_intervals_of_independent_noise_would_not(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: the noise of a group as if its days had noise of their own in what is stored."""
    session._runner.noise_source = seeded_noise(2026)
    monkeypatch.setattr(estimates, "norms_of", lambda *_: np.full(1, 0.2))
    assert any(stats.binom.cdf(held, CITIES * 4, 0.95) < 1e-7 for held in coverage(session, 4).values())


def test_sharper_ranges_cost_the_rise(session: dpsql.Session) -> None:
    text = QUERIES["a range"]
    assert receipt_of(ask(session, text, rho=0.1)).charged_rho == pytest.approx(0.1)
    assert receipt_of(ask(session, text, rho=0.4)).charged_rho == pytest.approx(0.3)
    assert receipt_of(ask(session, text, rho=0.2)).charged_rho == 0


def test_the_receipt_states_the_largest_error_and_explain_agrees(session: dpsql.Session) -> None:
    counted = f"{MONTHS} AS m, count(*) AS n"
    answer = ask(session, f"SELECT {counted}, dp_interval_low(n) AS l, dp_interval_high(n) AS h FROM visits GROUP BY m")
    widths = (answer.df()["h"] - answer.df()["l"]) / 2
    (column,) = receipt_of(answer).columns
    assert column.half_width_95 == pytest.approx(widths.max())
    assert widths.min() < widths.max()
    question = f"SELECT {counted} FROM visits GROUP BY m"
    rows = session.sql(f"FROM dp_explain($$ {question} $$, rho := 0.5, buckets := 'day')")
    (expected,) = [row[2] for row in rows.fetchall() if row[:2] == ("expected error", "n")]
    assert f"{column.half_width_95:.9g}" in expected
    assert any("added up" in note for note in receipt_of(answer).notes)


def test_a_minimum_of_units_is_of_the_group_that_is_shown(session: dpsql.Session) -> None:
    text = f"SELECT {MONTHS} AS m, count(DISTINCT visitor) AS n FROM visits GROUP BY m"
    assert len(ask(session, text, min_privacy_units_per_group=200)) == 2
    assert len(ask(session, text, min_privacy_units_per_group=5000)) == 0


def test_less_error_than_a_sum_of_noisy_days(session: dpsql.Session) -> None:
    answer = ask(session, "SELECT count(DISTINCT visitor) AS n FROM visits", rho=0.5)
    (column,) = receipt_of(answer).columns
    assert column.sigma is not None
    assert column.sigma < 0.5 * math.sqrt(DAYS)


NAMES = ("place", "place_", "Places", "place__s", "coarse_0", "key_0", "bucket", "value", "listed")


def test_a_column_of_any_name_can_be_the_buckets() -> None:
    with dpsql.connect() as session:
        session.sql("CALL dp_unit('pid', rho_budget := 1000, delta_threshold := 0.1, delta_conversion := 1e-6)")
        for i, name in enumerate(NAMES):
            session.connection.execute(
                f'CREATE TABLE t{i} AS SELECT i AS pid, [1, 2, 3, 40][i % 4 + 1] AS "{name}" FROM range(800) t(i)'
            )
            session.sql(
                f"CALL dp_protect('t{i}', coverage := FALSE, unit := 'pid', privacy_unit_column := 'pid', "
                "max_groups_contributed := 1)"
            )
            session.sql(f"CALL dp_domain('t{i}', '{name}', keys := [1, 2, 3, 40])")
            for condition, exact in ((f'"{name}" = 40', 200), (f'"{name}" < 3', 400)):
                answer = session.sql(f"SELECT count(DISTINCT pid) FROM t{i} WHERE {condition}", rho=5, buckets=name)
                assert answer.fetchall()[0][0] == pytest.approx(exact, abs=5)
            rows = session.sql(
                f'SELECT "{name}" // 20 AS g, count(DISTINCT pid) AS n FROM t{i} WHERE "{name}" > 2 GROUP BY g '
                "ORDER BY g",
                rho=5,
                buckets=name,
            ).fetchall()
            # 3 and 40: neighbours in the list, far apart as numbers
            assert [row[0] for row in rows] == [0, 2]
            assert [row[1] for row in rows] == pytest.approx([200, 200], abs=5)


def test_a_condition_that_does_not_bind_is_said_of_the_text(session: dpsql.Session) -> None:
    before = len(session.sql("FROM dp_releases()"))
    with pytest.raises(SchemaError, match="line 1, column 35"):
        ask(session, "SELECT count(*) FROM visits WHERE day % 2 = 1")
    assert len(session.sql("FROM dp_releases()")) == before


def test_an_empty_list_has_no_buckets_and_no_totals() -> None:
    with opened() as session:
        session.connection.execute("DELETE FROM days")
        with pytest.raises(UnsupportedQueryError, match="1 to 4,096"):
            ask(session, "SELECT count(*) FROM visits")
        with pytest.raises(UnsupportedQueryError, match="1 to 4,096"):
            session.sql("SELECT day, sum(count(*)) OVER (ORDER BY day) AS t FROM visits GROUP BY day", rho=0.5)


def test_an_average_over_no_bucket_is_null_and_warns_of_nothing(session: dpsql.Session) -> None:
    answer = ask(session, "SELECT avg(cost) AS a, dp_interval_low(a) AS l FROM visits WHERE day > DATE '2030-01-01'")
    assert answer.fetchall() == [(None, -5.0)]
