"""Grouping sets through SQL: what they add up, what they cost together, and what a crash between two of them leaves."""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dpsql
from dpsql.accounting import gaussian
from dpsql.mechanism import joint as joint_module
from dpsql.state import SideTable
from tests.noise_sources import seeded_noise, silence

SETS = ("ROLLUP (ward, sex)", "CUBE (ward, sex)", "GROUPING SETS ((ward, sex), (sex), (sex))", "sex, ROLLUP (ward)")
SUMS = (
    "count(*) AS n, sum(cost, contribution_bounds_per_group => (-100, 100)) AS s, "
    "avg(cost, contribution_bounds_per_row => (-9, 9)) AS a"
)
ROLLUP = "SELECT ward, sex, count(*) AS n FROM visits GROUP BY ROLLUP (ward, sex)"
UNITS = "SELECT ward, kind, count(DISTINCT patient) AS n FROM visits GROUP BY ROLLUP (ward, kind)"


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        declare(session)
        session._runner.noise_source = seeded_noise(5)
        yield session


@pytest.fixture(scope="module")
def silent() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        declare(session)
        silence(session)
        yield session


def declare(session: dpsql.Session) -> None:
    """A unit has at most six rows, in at most four groups of any kind; some are in wards and sexes that no list has."""
    session.connection.execute(
        "CREATE TABLE visits AS SELECT i // 3 AS patient, i % 4 AS ward, i // 3 % 2 AS sex, i % 7 AS kind, "
        "(i % 10)::DOUBLE AS cost FROM range(1200) t(i)"
    )
    session.sql(
        "CALL dp_protect('visits', coverage := FALSE, privacy_unit_column := 'patient', max_groups_contributed := 4, "
        "max_rows_per_group := 6, default_rho := 0.3, rho_budget := 1e3, delta_threshold := 0.1, "
        "delta_conversion := 1e-6)"
    )
    session.sql("CALL dp_domain('visits', 'ward', keys := [0, 1, 2, 3])")
    session.sql("CALL dp_domain('visits', 'sex', keys := [0, 1])")


def receipt_of(result: dpsql.Result) -> dpsql.Receipt:
    assert result.receipt is not None
    return result.receipt


def spent(session: dpsql.Session) -> float:
    (row,) = session.sql("FROM dp_budget()").arrow().to_pylist()
    return float(row["rho_spent"])


def test_weights_do_not_reach_sums_of_finer_groups() -> None:
    """A unit in all listed groups counts fully in them, and so in their total, whatever weights a total alone has."""
    with dpsql.connect(threads=1) as session:
        session.connection.execute("CREATE TABLE visits AS SELECT p AS patient, p % 4 AS ward FROM range(200) t(p)")
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "privacy_unit_column := 'patient', max_rows_per_group := 3, default_rho := 1, "
            "rho_budget := 1e3, delta_threshold := 0.1, delta_conversion := 1e-6)"
        )
        session.sql("CALL dp_domain('visits', 'ward', keys := [0, 1, 2, 3])")
        silence(session)
        text = "SELECT ward, count(*) AS n FROM visits GROUP BY ROLLUP (ward) ORDER BY ward NULLS LAST"
        assert [n for _, n in session.sql(text, bounding="L2").fetchall()] == [50, 50, 50, 50, 200]


@pytest.mark.parametrize(
    ("sets", "aggregates"),
    [
        (SETS[2], SUMS),
        (SETS[1], "count(DISTINCT patient) AS n"),
        *(pytest.param(sets, SUMS, marks=pytest.mark.long) for sets in SETS),
    ],
)
def test_without_noise_the_answer_is_duckdbs(silent: dpsql.Session, sets: str, aggregates: str) -> None:
    """No bound bites here; with distinct units every set is a plain GROUP BY, without them a sum of the finest."""
    text = "SELECT ward, sex, {}, grouping(ward, sex) AS g FROM visits GROUP BY {} HAVING g < 3 ORDER BY ALL LIMIT 11"
    plain = "count(*) AS n, sum(cost) AS s, avg(cost) AS a" if aggregates == SUMS else aggregates
    expected = silent.connection.execute(text.format(plain, sets)).fetchall()
    found = silent.sql(text.format(aggregates, sets), rho=1.0).fetchall()
    assert Counter(_rounded(found)) == Counter(_rounded(expected))
    assert _rounded(found) == _rounded(expected)


@pytest.mark.parametrize(
    "sets",
    [
        "ROLLUP (cost > 3, ward)",
        "CUBE (cost > 3, ward IS NULL)",
        "GROUPING SETS ((cost > 3, ward), kind IN (1, 2), ())",
        *(
            pytest.param(sets, marks=pytest.mark.long)
            for sets in (
                "GROUPING SETS (cost > 3, ROLLUP (ward = 1, kind))",
                "ward, ROLLUP (kind BETWEEN 2 AND 4 OR kind = 6)",
                "CUBE ((cost > 3 AND kind < 5, ward), kind + 1)",
                "ROLLUP (big, ward)",
            )
        ),
    ],
)
def test_sets_of_comparisons_are_those_of_duckdb(silent: dpsql.Session, sets: str) -> None:
    big = ", cost > 3 AS big" if "big" in sets else ""
    text = f"SELECT count(*) AS n{big} FROM visits GROUP BY {sets} ORDER BY ALL"
    found = silent.sql(text, rho=5.0, max_groups_contributed=6).fetchall()
    assert found == silent.connection.execute(text).fetchall()


@pytest.mark.parametrize("sets", ["ALL ROLLUP (ward)", "ALL, ward", "ward WITH ROLLUP"])
def test_a_form_that_duckdb_does_not_have_is_refused(silent: dpsql.Session, sets: str) -> None:
    with pytest.raises(dpsql.UnsupportedQueryError) as refused:
        silent.sql(f"SELECT ward, count(*) FROM visits GROUP BY {sets}")
    assert {one.code for one in refused.value.refusals} == {"group_by_form"}


def _rounded(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [tuple(round(value, 6) if isinstance(value, float) else value for value in row) for row in rows]


@pytest.mark.parametrize("sets", [SETS[1], *(pytest.param(sets, marks=pytest.mark.long) for sets in SETS)])
def test_totals_agree_with_what_they_are_totals_of(session: dpsql.Session, sets: str) -> None:
    answer = session.sql(f"SELECT ward, sex, {SUMS}, grouping(ward, sex) AS g FROM visits GROUP BY {sets}").df()
    finest = answer[answer.g == 0]
    for g, keys in ((1, ["ward"]), (2, ["sex"])):
        totals = answer[answer.g == g].drop_duplicates()
        for _, total in totals.iterrows():
            parts = finest[(finest[keys] == total[keys]).all(axis=1)]
            assert parts.n.sum() == total.n
            assert parts.s.sum() == pytest.approx(total.s, abs=1e-6)
    for _, total in answer[answer.g == 3].iterrows():
        assert finest.n.sum() == total.n


@pytest.mark.parametrize("text", [ROLLUP, UNITS])
def test_all_sets_are_charged_once_and_served_again_for_nothing(session: dpsql.Session, text: str) -> None:
    first = session.sql(text)
    receipt = receipt_of(first)
    assert receipt.charged_rho == pytest.approx(0.3, abs=1e-12)
    assert sum(one.receipt.charged_rho for one in receipt.sets) == pytest.approx(0.3, abs=1e-12)
    assert math.fsum(one.receipt.charged_delta for one in receipt.sets) == pytest.approx(receipt.charged_delta)
    assert spent(session) == pytest.approx(0.3, abs=1e-9)
    again = session.sql(text)
    assert receipt_of(again).reused
    assert again.fetchall() == first.fetchall()
    assert spent(session) == pytest.approx(0.3, abs=1e-9)
    releases = session.sql("FROM dp_releases()").arrow().to_pylist()
    assert {release["query_hash"] for release in releases} == {receipt.query_hash}
    assert math.fsum(release["charged_rho"] for release in releases) == pytest.approx(0.3)
    assert len(session.sql(f"FROM dp_cascade('{receipt.query_hash}')")) == sum(
        2 if "count(*)" in text else 1 for _ in receipt.sets
    )


def test_the_plain_queries_of_the_sets_are_served_at_the_level_that_they_had(session: dpsql.Session) -> None:
    for one in receipt_of(session.sql(UNITS)).sets:
        keys = ", ".join(one.keys)
        text = f"SELECT {keys + ', ' if keys else ''}count(DISTINCT patient) FROM visits GROUP BY ({keys})"
        assert receipt_of(session.sql(text, rho=one.receipt.rho)).reused
        assert receipt_of(session.sql(text, rho=one.receipt.rho / 2)).reused
    finest = receipt_of(session.sql(ROLLUP)).sets[0].receipt
    assert receipt_of(session.sql("SELECT sex, ward, count(*) FROM visits GROUP BY ALL", rho=finest.rho)).reused
    assert spent(session) == pytest.approx(0.6, abs=1e-9)


def test_a_plain_query_that_was_asked_before_makes_its_set_free(session: dpsql.Session) -> None:
    session.sql("SELECT ward, sex, count(*) FROM visits GROUP BY ward, sex", rho=0.3)
    receipt = receipt_of(session.sql(ROLLUP))
    assert receipt.sets[0].receipt.reused
    # it is served as it is, at all of its level, and makes the totals better
    assert receipt.sets[0].receipt.rho == pytest.approx(0.3)
    assert receipt.charged_rho == pytest.approx(math.fsum(one.receipt.rho for one in receipt.sets[1:]))


def test_a_higher_level_costs_the_rise_and_totals_still_agree(session: dpsql.Session) -> None:
    session.sql(ROLLUP)
    receipt = receipt_of(session.sql(ROLLUP, rho=0.5))
    assert receipt.charged_rho == pytest.approx(0.2, abs=1e-9)
    test_totals_agree_with_what_they_are_totals_of(session, SETS[0])


def test_a_refresh_of_the_finest_groups_is_one_of_their_sums(session: dpsql.Session) -> None:
    """What is bounded by another salt, and read at another time, is no total of what is shown."""
    first = session.sql(ROLLUP, rho=5.0).fetchall()
    session.connection.execute("DELETE FROM visits WHERE ward = 0")
    session.sql("SELECT ward, sex, count(*) FROM visits GROUP BY ward, sex", rho=5.0, refresh=True)
    later = session.sql(ROLLUP, rho=5.0)
    sums = receipt_of(later).sets[1:]
    assert all(one.receipt.charged_rho == pytest.approx(one.receipt.rho) for one in sums)
    assert later.fetchall()[-1][2] < first[-1][2] - 100
    refreshed = receipt_of(session.sql(ROLLUP, rho=5.0, refresh=True))
    assert refreshed.charged_rho == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        (ROLLUP, 1),
        (UNITS, 2),
        *(pytest.param(text, n, marks=pytest.mark.long) for text in (ROLLUP, UNITS) for n in (0, 1, 2)),
    ],
)
def test_a_crash_after_the_charge_is_paid_for_once(
    session: dpsql.Session, text: str, stored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The charge of all sets stands from the first on; a crash after some are stored leaves the others to be drawn."""
    whole, calls = SideTable.store, iter(range(10))

    def dying(self: SideTable, *arguments: Any) -> None:
        if next(calls) == stored:
            raise KeyboardInterrupt
        whole(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(SideTable, "store", dying)
        with pytest.raises(KeyboardInterrupt):
            session.sql(text)
    assert spent(session) == pytest.approx(0.3, abs=1e-9)
    assert len(session.sql("FROM dp_releases()")) == stored
    receipt = receipt_of(session.sql(text))
    assert receipt.charged_rho == 0.0
    assert receipt.rho == pytest.approx(0.3, abs=1e-9)
    assert spent(session) == pytest.approx(0.3, abs=1e-9)


def test_what_the_budget_does_not_cover_charges_no_set(session: dpsql.Session) -> None:
    with pytest.raises(dpsql.BudgetError) as raised:
        session.sql(ROLLUP, rho=1001.0)
    assert raised.value.requested_rho == pytest.approx(1001.0)
    assert spent(session) == 0.0
    assert not len(session.sql("FROM dp_releases()"))


def test_an_analyst_may_ask_for_all_sets_together_up_to_their_limit(session: dpsql.Session) -> None:
    session.sql("CALL dp_analyst('ana', rho_limit := 0.25)")
    ana = session.as_analyst("ana")
    session.sql(UNITS)
    with pytest.raises(dpsql.AccessError):
        ana.sql(UNITS, rho=0.3)
    shown = receipt_of(ana.sql(UNITS, rho=0.25))
    assert all(one.receipt.rho <= 0.25 for one in shown.sets)
    (held,) = session.sql("FROM dp_budget(analysts := ['ana'])").arrow().to_pylist()
    assert held["rho_held"] == pytest.approx(shown.rho)


@pytest.mark.parametrize("text", [ROLLUP, UNITS, UNITS.replace("ROLLUP", "CUBE")])
def test_what_is_asked_by_epsilon_keeps_it(session: dpsql.Session, text: str) -> None:
    receipt = receipt_of(session.sql(text, epsilon=1.0, delta=1e-6))
    assert 0.999 < receipt.epsilon <= 1.0 + 1e-9
    assert receipt.delta <= 1e-6
    assert receipt.charged_delta <= 1e-6
    hidden = any(one.receipt.threshold is not None for one in receipt.sets)
    assert receipt.epsilon == pytest.approx(
        gaussian.epsilon(5e-7 if hidden else 1e-6, math.sqrt(2.0 * receipt.rho), 1.0), rel=1e-6
    )


def test_a_set_that_is_forgotten_in_the_guarantee_is_caught(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: the guarantee of all sets but one."""
    whole = joint_module.joint_guarantee
    monkeypatch.setattr(
        "dpsql.features.joint_release.joint_guarantee", lambda parts, request: whole(parts[1:], request)
    )
    receipt = receipt_of(session.sql(ROLLUP, epsilon=1.0, delta=1e-6))
    assert receipt.epsilon < 0.999


@pytest.mark.parametrize("text", [ROLLUP, UNITS])
def test_the_plan_says_price_and_error_of_every_set(session: dpsql.Session, text: str) -> None:
    rows = session.sql(f"FROM dp_explain($${text}$$)").fetchall()
    receipt = receipt_of(session.sql(text))
    assert [value for section, _, value in rows if section == "grouping set"] == [
        ", ".join(one.keys) or "()" for one in receipt.sets
    ]
    assert ("price", "rho", f"{receipt.charged_rho:.9g}") in rows
    assert ("price", "query hash", receipt.query_hash) in rows
    assert ("all sets", "this query alone", f"epsilon = {receipt.epsilon:.6g}, delta = {receipt.delta:.6g}") in rows
    errors = [value for section, _, value in rows if section == "expected error"]
    columns = [one.receipt.columns[0] for one in receipt.sets]
    assert errors == [f"sigma = {c.sigma:.9g}, 95 % half width = {c.half_width_95:.9g}" for c in columns]
    assert receipt.columns[0].sigma == max(column.sigma or 0.0 for column in columns)


def test_sets_with_a_ceiling_and_a_window(session: dpsql.Session) -> None:
    below = receipt_of(session.sql(ROLLUP, rho=0.1, rho_ceiling=0.4))
    # two statistics of three sets, each drawn at the ceiling
    assert below.charged_rho == pytest.approx(6 * 0.4)
    assert receipt_of(session.sql(ROLLUP, rho=0.3, rho_ceiling=0.4)).reused
    low = receipt_of(session.sql(UNITS, rho=0.1, rho_window=[0.01, 1], delta=1e-7))
    high = receipt_of(session.sql(UNITS, rho=0.4, rho_window=[0.01, 1], delta=1e-7))
    assert low.charged_delta > 0.9e-7
    assert high.charged_delta < 1e-12


def test_no_key_of_a_list_and_no_row_leave_no_group_but_the_total(session: dpsql.Session) -> None:
    session.connection.execute("CREATE TABLE none (sex INTEGER)")
    session.sql("CALL dp_public('none')")
    session.sql("CALL dp_domain('visits', 'sex', keys_from := 'none.sex')")
    session.connection.execute("DELETE FROM visits")
    answer = session.sql("SELECT count(*), grouping(ward, sex) FROM visits GROUP BY CUBE (ward, sex)", rho=9.0)
    assert Counter(row[1] for row in answer.fetchall()) == {1: 4, 3: 1}


def test_grouping_names_a_key_by_the_alias_of_an_expression(session: dpsql.Session) -> None:
    text = "SELECT sex = 1 AS female, count(*), grouping(female) AS g FROM visits GROUP BY CUBE (female)"
    assert {(row[0] is None, row[2]) for row in session.sql(text, rho=9.0).fetchall()} >= {(False, 0), (True, 1)}


def test_two_queries_that_share_sets_do_not_wait_for_each_other_for_good(tmp_path: Path) -> None:
    with dpsql.connect(tmp_path / "clinic.duckdb", threads=1) as session:
        declare(session)
        texts = [
            UNITS,
            "SELECT kind, ward, count(DISTINCT patient) FROM visits GROUP BY GROUPING SETS ((2), (), (1, 2), (1))",
        ]
        found: list[dpsql.Receipt] = []

        def ask(text: str) -> None:
            with contextlib.suppress(dpsql.BudgetError):
                found.extend(receipt_of(session.sql(text)) for _ in range(3))

        threads = [threading.Thread(target=ask, args=(text,)) for text in texts * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=600)
        assert len(found) == 12
        assert sum(receipt.charged_rho for receipt in found) == pytest.approx(spent(session))
