"""The row of the groups that are not shown: what is in it, what it costs, and what a crash before it leaves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dpsql
from dpsql.accounting import zcdp
from dpsql.bound.aggregation import bounded_sql
from dpsql.cascade.reader import CURATOR
from dpsql.engine import DuckDBEngine
from dpsql.model.frame import PRESENCE
from dpsql.model.query_kinds import WithOtherGroup
from dpsql.sql.statements import SelectStatement, read_statement
from dpsql.state import SideTable
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise, silence

CITIES = (
    "SELECT city, count(*) AS n, count(DISTINCT person) AS u, "
    "sum(cost, contribution_bounds_per_group => (0, 20)) AS s FROM visits GROUP BY city"
)
ROW = "city = 'other'"


def fill(session: dpsql.Session) -> None:
    """People with visits in two cities that all share and in five that nobody shares, and one person with 500 more."""
    session.connection.execute(
        "CREATE OR REPLACE TABLE visits AS SELECT i // 7 AS person, (i % 20)::DOUBLE AS cost, i % 7 AS place, CASE "
        "WHEN i % 7 < 2 THEN 'city ' || i % 7 WHEN i % 7 = 2 THEN NULL ELSE 'home ' || i END AS city "
        "FROM range(1400) t(i) UNION ALL SELECT 0, 20, 9, 'hotel ' || i FROM range(500) t(i)"
    )
    session.connection.execute("ALTER TABLE visits ADD COLUMN span INTERVAL DEFAULT INTERVAL 40 DAY")
    session.connection.execute("ALTER TABLE visits ADD COLUMN pair INTEGER[] DEFAULT [1, 2]")


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        fill(session)
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, privacy_unit_column := 'person', "
            "max_groups_contributed := 7, max_rows_per_group := 1, default_rho := 0.5, "
            "rho_budget := 100.0, delta_threshold := 0.1, delta_conversion := 1e-6)"
        )
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        fill(session)
        session._runner.noise_source = seeded_noise(11)
        yield session


def spent(session: dpsql.Session) -> float:
    return float(session.sql("FROM dp_budget()").df()["rho_spent"][0])


def charged(session: dpsql.Session, text: str = CITIES, **options: object) -> float:
    return receipt_of(session.sql(text, **{"other_group": "other", **options})).charged_rho  # type: ignore[arg-type]


def test_the_row_holds_what_no_shown_group_holds(session: dpsql.Session) -> None:
    silence(session)
    rows = {row[0]: row[1:] for row in session.sql(f"{CITIES} ORDER BY n DESC", other_group="other").fetchall()}
    assert set(rows) >= {"city 0", "city 1", "other"}
    shown = ", ".join(f"'{city}'" for city in rows if city is not None)
    known = f"city IN ({shown})" + (" OR city IS NULL" if None in rows else "")
    exact = session.connection.execute(
        "SELECT sum(n), count(*), sum(s) FROM (SELECT least(count(*), 7) AS n, least(sum(cost), 140) AS s FROM visits "
        f"WHERE NOT coalesce({known}, false) GROUP BY person)"
    ).fetchone()
    assert rows["other"] == exact


def test_text_keys_read_the_name_and_the_row_is_part_of_the_result(session: dpsql.Session) -> None:
    silence(session)
    text = (
        "SELECT upper(city) AS c, place, count(*) AS n, dp_interval_high(n) > n AS wide, rank() OVER (ORDER BY n DESC) "
        "AS place_of FROM visits GROUP BY c, place HAVING n > 150 ORDER BY n DESC LIMIT 2"
    )
    rows = session.sql(text, other_group="rest of the world").fetchall()
    assert rows[0][:2] == ("rest of the world", None)
    assert rows[0][3:] == (True, 1)
    assert len(rows) == 2


@pytest.mark.parametrize(
    "key",
    [
        "CASE WHEN cost < 10 THEN -0.0 ELSE 0 END",
        "'nan'::FLOAT",
        "span",
        "pair",
        "1 / 0",
    ],
)
def test_shown_groups_of_any_type_are_not_in_the_row(session: dpsql.Session, key: str) -> None:
    """Every group is shown, so that nothing is left for the row."""
    silence(session)
    text = (
        f"SELECT 'all of ' || (city < 'd') AS t, {key} AS k, count(*) AS n FROM visits WHERE city < 'd' GROUP BY t, k"
    )
    rows = session.sql(text, other_group="other").fetchall()
    assert rows[-1] == ("other", None, 0)
    assert len(rows) > 1


def test_the_level_is_paid_on_top_and_again_nothing(session: dpsql.Session) -> None:
    first = session.sql(CITIES, other_group="other")
    receipt = receipt_of(first)
    assert receipt.charged_rho == pytest.approx(1.0) == spent(session)
    assert receipt.rho == pytest.approx(1.0)
    assert [one.receipt.charged_rho for one in receipt.sets] == pytest.approx([0.5, 0.5])
    assert receipt.epsilon > max(one.receipt.epsilon for one in receipt.sets)
    again = session.sql(CITIES, other_group="other")
    assert again.fetchall() == first.fetchall()
    assert receipt_of(again).reused
    assert charged(session, CITIES, other_group="by another name") == 0.0
    assert receipt_of(session.sql(CITIES)).charged_rho == 0.0
    assert session.sql("FROM dp_budget()").df()["rho_held"][0] == pytest.approx(1.0)


def test_what_is_asked_by_epsilon_has_the_row_on_top_and_the_receipt_says_so(session: dpsql.Session) -> None:
    receipt = receipt_of(session.sql(CITIES, other_group="other", epsilon=1.0, delta=1e-4))
    groups, row = (one.receipt for one in receipt.sets)
    assert groups.epsilon == pytest.approx(1.0, rel=1e-6)
    assert row.rho == groups.rho
    assert 1.0 < receipt.epsilon < 2.0
    assert receipt.delta <= 2e-4


def test_where_the_groups_are_there_the_row_alone_is_paid(session: dpsql.Session) -> None:
    session.sql(CITIES)
    assert charged(session) == pytest.approx(0.5)


def test_another_set_of_shown_groups_has_a_row_of_its_own(session: dpsql.Session) -> None:
    names = f"SELECT count(*) FROM ({CITIES}) WHERE {ROW}"
    assert charged(session) == pytest.approx(1.0)
    # nothing is shown: the groups are stored, and the row is about all rows
    assert charged(session, min_privacy_units_per_group=10**6) == pytest.approx(0.5)
    assert session.sql(names, other_group="other").fetchall() == [(1,)]
    assert session.sql(names, other_group="other", min_privacy_units_per_group=10**6).fetchall() == [(0,)]


def test_a_higher_level_pays_the_rise_of_both_where_the_same_groups_are_shown(session: dpsql.Session) -> None:
    before = session.sql(CITIES, other_group="other")
    after = session.sql(CITIES, other_group="other", rho=0.75)
    same = {row[0] for row in before.fetchall()} == {row[0] for row in after.fetchall()}
    assert receipt_of(after).charged_rho == pytest.approx(0.5 if same else 1.0)
    assert charged(session, rho=0.1) == 0.0


@pytest.mark.parametrize("stored", [0, 1])
def test_a_crash_after_either_charge_is_paid_for_once(
    session: dpsql.Session, stored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, calls = SideTable.store, []

    def dying(self: SideTable, *arguments: Any) -> None:
        calls.append(1)
        if len(calls) > stored:
            raise KeyboardInterrupt
        store(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(SideTable, "store", dying)
        with pytest.raises(KeyboardInterrupt):
            session.sql(CITIES, other_group="other")
    assert spent(session) == pytest.approx(0.5 * (1 + stored))
    assert charged(session) == pytest.approx(0.5 * (1 - stored))
    assert spent(session) == pytest.approx(1.0)


def test_what_the_budget_does_not_cover_together_charges_nothing(session: dpsql.Session) -> None:
    session.sql("CALL dp_unit('visits', rho_budget := 9, delta_threshold := 0.1, delta_conversion := 1e-6)")
    with pytest.raises(dpsql.BudgetError) as raised:
        charged(session, rho=5.0)
    assert raised.value.requested_rho == pytest.approx(10.0)
    assert spent(session) == 0.0
    session.sql(CITIES, rho=5.0)
    with pytest.raises(dpsql.BudgetError):
        charged(session, rho=5.0)
    assert spent(session) == pytest.approx(5.0)


def test_a_reader_with_a_limit_is_refused_and_one_without_is_not(session: dpsql.Session) -> None:
    session.sql("CALL dp_analyst('ana', rho_limit := 5)")
    with pytest.raises(dpsql.AccessError):
        session.as_analyst("ana").sql(CITIES, other_group="other")
    with pytest.raises(dpsql.AccessError):
        session.as_analyst("ana").sql("CALL dp_explain($$ " + CITIES + " $$, other_group := 'other')")
    assert spent(session) == 0.0
    session.sql("CALL dp_analyst('bob')")
    assert len(session.as_analyst("bob").sql(CITIES, other_group="other")) > 0


def test_the_plan_says_price_and_error_of_the_row(session: dpsql.Session) -> None:
    plan = session.sql("CALL dp_explain($$ " + CITIES + " $$, other_group := 'other')").fetchall()
    said: dict[tuple[str, str], str] = {(section, name): value for section, name, value in plan}
    receipt = receipt_of(session.sql(CITIES, other_group="other"))
    columns = {column.name: column for column in receipt.sets[1].receipt.columns}
    for name, column in columns.items():
        assert f"sigma = {column.sigma:.9g}" in said["other group", name]
    assert said["with other group", "rho"] == f"{receipt.rho:.9g}"
    assert f"epsilon = {receipt.epsilon:.6g}" in said["with other group", "this query alone"]
    assert said["with other group", "price"].startswith("rho = 0.5 more")


@pytest.mark.parametrize(
    "options", [{"rho_ceiling": 2.0}, {"rho_window": [0.25, 1.0]}, {"bounding": "L2"}, {"top_k": 5}]
)
def test_with_a_ceiling_a_window_weights_and_top_k(session: dpsql.Session, options: dict[str, Any]) -> None:
    first = session.sql(CITIES, other_group="other", **options)
    assert [row[0] for row in first.fetchall()].count("other") == 1
    assert receipt_of(first).charged_rho == pytest.approx(spent(session))
    assert charged(session, **options) == 0.0
    if "top_k" in options:
        # of shared noise no more is proved than approximate zCDP
        receipt = receipt_of(first)
        assert receipt.epsilon >= zcdp.epsilon(0.0005, receipt.rho)
    if "rho_ceiling" in options:
        session.connection.execute("DROP TABLE visits")
        assert session.sql(CITIES, other_group="other", **options).fetchall() == first.fetchall()


def test_versions_and_refreshes_have_rows_of_their_own(session: dpsql.Session) -> None:
    first = session.sql(CITIES, other_group="other")
    assert charged(session, refresh=True) == pytest.approx(1.0)
    assert session.sql(CITIES, other_group="other").fetchall() != first.fetchall()
    kept = session.sql(CITIES, other_group="other").fetchall()
    session.sql("CALL dp_new_version('visits', version := 'next')")
    before = spent(session)
    assert session.sql(CITIES, other_group="other", as_of="1").fetchall() == kept
    with pytest.raises(dpsql.ReleaseError):
        session.sql(CITIES, other_group="other", as_of="1", min_privacy_units_per_group=10**6)
    assert spent(session) == before
    assert charged(session) == pytest.approx(1.0)


# -- what one unit moves ----------------------------------------------------------------------------------------------

SHOWN = pa.table({"key_0": ["city 0", "city 1"]})
SIGNED = (
    "SELECT city, count(*) AS n, sum(cost - 10, contribution_bounds_per_group => (-10, 20)) AS s, "
    "count(DISTINCT place) AS d, count(DISTINCT person) FILTER (place > 4) AS late FROM visits GROUP BY city"
)


def planned(session: dpsql.Session, text: str) -> WithOtherGroup:
    statement = read_statement(text)
    assert isinstance(statement, SelectStatement)
    query, _, _ = session._runner.plan(statement, {"other_group": "other"}, CURATOR)
    assert isinstance(query, WithOtherGroup)
    return query


def moved(session: dpsql.Session, asked: WithOtherGroup) -> dict[Any, int]:
    """How far person 0 moves each exact value of the row, in lattice steps."""
    row = asked.row
    sql = bounded_sql(row.frame, row.statistics, bytes(16))
    names = ["units", *(f"stat_{i}" for i in range(1, len(row.statistics)))]

    def exact() -> dict[str, int]:
        table = DuckDBEngine(session.connection).aggregate(sql, listed_keys=SHOWN, timeout_seconds=None).reveal()
        return {name: int(table.column(name)[0].as_py()) for name in names}

    whole = exact()
    session.connection.execute("BEGIN; CREATE TABLE kept AS SELECT * FROM visits; COMMIT")
    session.connection.execute("DELETE FROM visits WHERE person = 0")
    less = exact()
    session.connection.execute("DELETE FROM visits; INSERT INTO visits FROM kept; DROP TABLE kept")
    return {one: abs(whole[name] - less[name]) for one, name in zip(row.statistics, names, strict=True)}


def test_a_unit_with_many_hidden_groups_moves_the_row_as_far_as_is_said_and_no_further(session: dpsql.Session) -> None:
    """Person 0 has over 500 hidden groups: every statistic but distinct places attains its bound."""
    asked = planned(session, CITIES)
    found = moved(session, asked)
    assert found == {one: one.radius_steps for one in found}
    assert found[PRESENCE] == 1
    # the twin: were the row's sums noised for what a unit adds to one group, it would move them further than is said
    narrow = {one.kind: one.radius_steps * one.lattice for one in asked.first.statistics}
    wide = {one.kind: found[one] * one.lattice for one in found}
    assert wide["sum"] == pytest.approx(7 * narrow["sum"])


def test_no_unit_moves_the_row_further_than_is_said(session: dpsql.Session) -> None:
    random = np.random.default_rng(3)
    query = planned(session, SIGNED)
    for _ in range(6):
        count, many = int(random.integers(1, 30)), int(random.integers(1, 9))
        session.connection.execute("DELETE FROM visits WHERE person = 0")
        session.connection.execute(
            "INSERT INTO visits (person, cost, place, city) "
            "SELECT 0, $1 * (i % 3 - 1), i % 7, CASE i % $2 WHEN 0 THEN 'city 0' WHEN 1 THEN NULL "
            "ELSE 'mine ' || i % $2 END FROM range($3) t(i)",
            [float(random.choice([1.0, 1e3, -1e6])), many, count],
        )
        found = moved(session, query)
        assert all(steps <= one.radius_steps for one, steps in found.items())


def test_the_row_has_the_noise_that_is_said(session: dpsql.Session) -> None:
    """Of 20 independent rows the mean square error over the stated one: chi-squared, outside with chance 1e-6.

    The twin's noise is that of the groups, as if the row had been forgotten in the plan of its own.
    """
    errors = []
    for _ in range(20):
        answer = session.sql(CITIES, other_group="other", refresh=True, group_selection_strategy="GAUSSIAN_THRESHOLD")
        (noisy,) = (row[1] for row in answer.fetchall() if row[0] == "other")
        shown = [row[0] for row in answer.fetchall() if row[0] != "other"]
        (exact,) = session.connection.execute(
            "SELECT sum(n) FROM (SELECT least(count(*), 7) AS n FROM visits "
            "WHERE NOT list_contains($1, coalesce(city, 'none')) GROUP BY person)",
            [["none" if city is None else city for city in shown]],
        ).fetchall()[0]
        errors.append(noisy - exact)
    of_groups, of_row = ({c.name: c.sigma for c in one.receipt.columns}["n"] for one in receipt_of(answer).sets)
    assert of_groups is not None
    assert of_row is not None
    # chi-squared with 20 degrees of freedom, over 20, is outside of [0.1181, 3.3648] with chance 1e-6
    assert 0.118 < float(np.mean(np.square(errors))) / of_row**2 < 3.365
    assert of_row > 2.6 * of_groups
    assert not 0.118 < float(np.mean(np.square(errors))) / of_groups**2 < 3.365


def test_more_rows_than_a_lattice_can_hold_are_refused(session: dpsql.Session) -> None:
    """In seven groups together a unit may have seven times the rows, of which one would be no step of the lattice."""
    session.sql(
        "CALL dp_protect('visits', coverage := FALSE, privacy_unit_column := 'person', max_groups_contributed := 7, "
        "max_rows_per_group := 1000000000, default_rho := 0.5)"
    )
    text = "SELECT city, sum(cost, contribution_bounds_per_row => (0, 1)) AS s FROM visits GROUP BY city"
    assert charged(session, text, other_group=None) > 0.0
    for aggregate in ("sum(cost", "median(cost"):
        with pytest.raises(dpsql.UnsupportedQueryError, match="more than 1,000,000,000 rows"):
            charged(session, text.replace("sum(cost", aggregate), max_groups_contributed=50)


def test_a_refusal_names_a_level_at_which_groups_and_row_can_be_paid(session: dpsql.Session) -> None:
    """The groups are lowered for nothing, and the row is known when they are; its price counts before, too."""
    session.sql(CITIES, rho=1.0)
    budget = "rho_budget := 1.3, delta_threshold := 0.1, delta_conversion := 1e-6"
    session.sql(f"CALL dp_unit('visits', {budget}, replace := TRUE)")
    with pytest.raises(dpsql.BudgetError) as refused:
        session.sql(CITIES, rho=0.5, other_group="other")
    granted = re.search(r"Ask with rho = ([0-9.]+[0-9])", str(refused.value))
    assert granted, refused.value
    assert float(granted[1]) == pytest.approx(0.3, abs=0.01)
    assert charged(session, rho=float(granted[1])) == pytest.approx(float(granted[1]), abs=1e-8)
