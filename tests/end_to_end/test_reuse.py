"""What was released is served again for nothing; of a higher level the rise alone is charged."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpsql
from dpsql.cascade.reader import CURATOR, Reader
from dpsql.cascade.serving import Draw
from dpsql.errors import DpsqlError
from dpsql.mechanism.gaussian_measure import GaussianMeasure
from dpsql.mechanism.measure import NoisyHistogram
from dpsql.model.frame import Frame
from dpsql.model.identity import query_hash
from dpsql.plan.environment.policy_view import environment
from dpsql.plan.planner import plan_query
from dpsql.release import points
from dpsql.release.points import PointSource
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.receipts import of_the_text
from tests.noise_sources import seeded_noise

PROTECT = (
    "CALL dp_protect('visits', coverage := FALSE, "
    "unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 4, "
    "max_rows_per_group := 3, default_rho := 0.1, default_delta := 1e-6)"
)


TABLE = (
    "CREATE OR REPLACE TABLE visits AS SELECT u % 400 AS patient, 'city ' || u % 4 AS city, u % 4 AS ward, "
    "(u % 90)::DOUBLE AS cost, DATE '2026-01-01' + (u % 3)::INTEGER AS day FROM range(1200) t(u)"
)
"""400 patients in four cities; no group is near its threshold."""
Opened = Callable[[], AbstractContextManager[dpsql.Session]]


def declare(session: dpsql.Session) -> None:
    session.sql("CALL dp_unit('patient', rho_budget := 12, delta_threshold := 0.5, delta_conversion := 1e-6)")
    session.sql(PROTECT)
    session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 100])")


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute(TABLE)
        declare(session)
        yield session


@pytest.fixture
def open_session(prepared: dpsql.Session) -> Opened:
    """Return what opens a session over new rows, with a ledger of its own, one after the other."""

    @contextmanager
    def opened() -> Iterator[dpsql.Session]:
        with with_own_state(prepared) as session:
            session.connection.execute(TABLE)
            # numbers are compared with exact ones and with one another
            session._runner.noise_source = seeded_noise(6)
            yield session

    return opened


@pytest.fixture
def session(open_session: Opened) -> Iterator[dpsql.Session]:
    with open_session() as session:
        yield session


def receipt(session: dpsql.Session, text: str, **options: Any) -> dpsql.Receipt:
    answer = session.sql(text, **options)
    assert answer.receipt is not None
    return answer.receipt


BASE = "SELECT city, count(*) AS n, sum(cost) AS s FROM visits WHERE ward < 3 AND cost >= 1 GROUP BY city"
SAME = (
    "select CITY, COUNT(*) as N, Sum(COST) as S\n\n  from VISITS where WARD < 3 and COST >= 1 group by CITY",
    'SELECT "city", count(*) AS "n", sum("cost") AS "s" FROM "visits" WHERE "ward" < 3 AND "cost" >= 1 GROUP BY "city"',
    "SELECT city, count(*) AS n, sum(cost) AS s FROM main.visits WHERE ward < 3 AND cost >= 1 GROUP BY city",
    "SELECT city, count(*) AS n, sum(cost) AS s FROM memory.main.visits WHERE ward < 3 AND cost >= 1 GROUP BY city",
    "SELECT v.city, count(*) AS n, sum(v.cost) AS s FROM visits AS v WHERE v.ward < 3 AND v.cost >= 1 GROUP BY v.city",
    "SELECT sum(cost) AS s, city AS place, count(*) AS how_many FROM visits WHERE ward < 3 AND cost >= 1 GROUP BY city",
    "SELECT city, count(*) AS n, sum(cost) AS s FROM visits WHERE cost >= 1 AND ward < 3 GROUP BY city",
    "SELECT city, count(*) AS n, sum(cost) AS s FROM visits WHERE cost >= 1 AND (ward < 3 AND cost >= 1) GROUP BY 1",
    "SELECT city, count(*) AS n, sum(cost) AS s FROM visits WHERE ward < 3 AND cost >= 1 GROUP BY 1",
    "SELECT city AS c, count(*) AS n, sum(cost) AS s FROM visits WHERE ward < 3 AND cost >= 1 GROUP BY c",
    "SELECT city, count(*) AS n, sum(cost) AS s FROM visits WHERE ward < 3 AND cost >= 1 GROUP BY ALL",
    "SELECT city, count(*), sum(cost) FROM visits WHERE ward < 3 AND cost >= 1 GROUP BY city ORDER BY 2, 1 LIMIT 2",
    "SELECT city, sum(cost) / 2, count(*) + 1 FROM visits WHERE ward < 3 AND cost >= 1 GROUP BY 1 HAVING count(*) > 0",
    "SELECT city, dp_count(*) AS n, sum(cost) AS s -- private\nFROM visits WHERE ward < 3 AND cost >= 1 GROUP BY city;",
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.1, max_groups_contributed = 4) city, count(*) AS n, "
    "sum(cost, contribution_bounds_per_row => (0, 100)) AS s FROM visits WHERE ward < 3 AND cost >= 1 GROUP BY city",
)
DIFFERENT = (
    "SELECT city, count(*) AS n, sum(cost) AS s FROM visits WHERE ward < 4 AND cost >= 1 GROUP BY city",
    "SELECT city, count(*) AS n, sum(cost) AS s FROM visits WHERE ward < 3 AND cost > 1 GROUP BY city",
    "SELECT city, count(*) AS n, sum(cost) AS s FROM visits WHERE ward < 3 GROUP BY city",
    "SELECT city, count(*) AS n, sum(cost) AS s FROM visits WHERE ward < 3 OR cost >= 1 GROUP BY city",
    "SELECT ward, count(*) AS n, sum(cost) AS s FROM visits WHERE ward < 3 AND cost >= 1 GROUP BY ward",
    "SELECT city, ward, count(*) AS n, sum(cost) AS s FROM visits WHERE ward < 3 AND cost >= 1 GROUP BY city, ward",
    "SELECT upper(city), count(*) AS n, sum(cost) AS s FROM visits WHERE ward < 3 AND cost >= 1 GROUP BY 1",
    "SELECT count(*) AS n, sum(cost) AS s FROM visits WHERE ward < 3 AND cost >= 1",
    "SELECT city, count(*) AS n, sum(ward, contribution_bounds_per_group => (0, 9)) AS s FROM visits "
    "WHERE ward < 3 AND cost >= 1 GROUP BY city",
    "SELECT city, count(*) AS n, sum(cost, contribution_bounds_per_row => (0, 99)) AS s FROM visits "
    "WHERE ward < 3 AND cost >= 1 GROUP BY city",
    "SELECT city, count(*) AS n, sum(cost, contribution_bounds_per_group => (0, 100)) AS s FROM visits "
    "WHERE ward < 3 AND cost >= 1 GROUP BY city",
    "SELECT city, count(*) FILTER (WHERE ward > 0) AS n, sum(cost) AS s FROM visits "
    "WHERE ward < 3 AND cost >= 1 GROUP BY city",
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (max_groups_contributed = 3) city, count(*) AS n, sum(cost) AS s "
    "FROM visits WHERE ward < 3 AND cost >= 1 GROUP BY city",
)


def test_spellings_of_one_query_are_one_release(session: dpsql.Session) -> None:
    first = session.sql(BASE)
    assert first.receipt is not None
    numbers = {(city, n, s) for city, n, s in first.fetchall()}
    for text in SAME:
        answer = session.sql(text)
        assert answer.receipt is not None
        assert (answer.receipt.query_hash, answer.receipt.charged_rho) == (first.receipt.query_hash, 0), text
        assert answer.receipt.reused, text
        if [name.lower() for name in answer.columns] == ["city", "n", "s"]:
            assert set(answer.fetchall()) == numbers, text
    assert session.sql("FROM dp_budget()").df()["rho_spent"][0] == pytest.approx(0.1)


def test_what_changes_the_answer_is_another_query(session: dpsql.Session) -> None:
    hashes = [receipt(session, text).query_hash for text in (BASE, *DIFFERENT)]
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize(
    "declaration",
    [
        PROTECT.replace("max_rows_per_group := 3", "max_rows_per_group := 2"),
        PROTECT.replace("max_groups_contributed := 4", "max_groups_contributed := 2"),
        "CALL dp_domain('visits', 'cost', bounds := [0, 99])",
        "CALL dp_domain('visits', 'city', keys := ['city 1', 'city 2'])",
        "CALL dp_new_version('visits')",
    ],
)
def test_a_change_of_policy_or_version_is_another_query(session: dpsql.Session, declaration: str) -> None:
    before = receipt(session, BASE)
    session.sql(declaration)
    after = receipt(session, BASE)
    assert after.query_hash != before.query_hash
    assert after.charged_rho > 0


def test_parameters_are_part_of_the_query(session: dpsql.Session) -> None:
    text = "SELECT city, count(*) FROM visits WHERE ward < ? GROUP BY city"
    by_value = [session.sql(text, [value]).receipt for value in (3, 3, 2)]
    hashes = [shown.query_hash for shown in by_value if shown is not None]
    assert hashes[0] == hashes[1] != hashes[2]
    literal = receipt(session, "SELECT city, count(*) FROM visits WHERE ward < 3 GROUP BY city")
    assert (literal.query_hash, literal.reused) == (hashes[0], True)


def test_the_clock_is_folded_to_a_constant(session: dpsql.Session) -> None:
    """The planner's own clock: a day later the same text is another query."""
    texts = [
        f"SELECT city, count(*) FROM visits WHERE day < {now} GROUP BY city" for now in ("current_date", "today()")
    ]
    statements = [statement for statement in map(read_statement, texts) if isinstance(statement, SelectStatement)]
    policy, runner = session._access.read().policy(), session._runner
    evening = dt.datetime(2026, 2, 1, 23, 59, tzinfo=dt.UTC)
    first_day = dataclasses.replace(
        environment(policy, runner.engine, runner.sandbox, Reader(CURATOR)),
        clock=lambda: evening,
    )
    next_day = dataclasses.replace(first_day, clock=lambda: evening + dt.timedelta(minutes=2))
    hashes = [query_hash(plan_query(statement, first_day)) for statement in statements]
    written = read_statement(texts[0].replace("current_date", "DATE '2026-02-01'"))
    assert isinstance(written, SelectStatement)
    assert [query_hash(plan_query(written, first_day))] * 2 == hashes
    assert query_hash(plan_query(statements[0], next_day)) != hashes[0]


def test_an_attached_database_is_the_same_under_any_alias(tmp_path: Path) -> None:
    clinic = tmp_path / "clinic.duckdb"
    with dpsql.connect(clinic) as session:
        session.connection.execute(TABLE)
    with dpsql.connect(state=tmp_path / "books.dpsql") as session:
        session.connection.execute(f"ATTACH '{clinic}' AS one")
        session.sql("CALL dp_unit('patient', rho_budget := 10, delta_threshold := 0.5, delta_conversion := 1e-6)")
        session.sql(PROTECT.replace("'visits'", "'one.visits'"))
        first = session.sql("SELECT city, count(*) FROM one.visits GROUP BY city")
        session.connection.execute(f"DETACH one; ATTACH '{clinic}' AS two")
        for name in ("two.visits", "two.main.visits", 'TWO."visits"'):
            again = session.sql(f"SELECT city, count(*) FROM {name} GROUP BY city")
            assert again.fetchall() == first.fetchall()
            assert again.receipt is not None
            assert first.receipt is not None
            assert (again.receipt.query_hash, again.receipt.reused) == (first.receipt.query_hash, True)


def test_a_lower_level_is_free_and_of_a_higher_one_the_rise_is_charged(session: dpsql.Session) -> None:
    text = "SELECT city, count(*), sum(cost) FROM visits GROUP BY city"
    at_half = session.sql(text, rho=0.5)
    assert at_half.receipt is not None
    for rho in (0.5, 0.05, 0.001):
        lower = session.sql(text, rho=rho)
        assert [row[0] for row in lower.fetchall()] == [row[0] for row in at_half.fetchall()]
        assert (lower.fetchall() == at_half.fetchall()) == (rho == 0.5)
        assert lower.receipt is not None
        assert (lower.receipt.charged_rho, lower.receipt.charged_delta, lower.receipt.reused) == (0, 0, True)
        # it says how precise the numbers are that it shows
        assert 0.799 * rho < lower.receipt.rho <= rho
        for column, at_most in zip(lower.receipt.columns, at_half.receipt.columns, strict=True):
            if column.sigma is not None:
                assert 0.99 <= column.sigma / (at_most.sigma * (0.5 / rho) ** 0.5) < 1.13
        assert session.sql(text, rho=rho).fetchall() == lower.fetchall()
    higher = session.sql(text, rho=0.6)
    assert higher.receipt is not None
    assert higher.receipt.charged_rho == pytest.approx(0.1)
    assert higher.receipt.charged_delta > 0
    assert higher.receipt.rho == pytest.approx(0.6)
    assert higher.fetchall() != at_half.fetchall()
    # the same question at the same level stays the same
    assert session.sql(text, rho=0.5).fetchall() == at_half.fetchall()
    # each of the three statistics is at a share of 0.6, which a query at 0.55 may have: nothing is made noisier for it
    again = session.sql(text, rho=0.55)
    assert again.receipt is not None
    unpaid = dataclasses.replace(higher.receipt, charged_rho=0.0, charged_delta=0.0, reused=True)
    assert again.receipt == dataclasses.replace(unpaid, asked_rho=again.receipt.asked_rho)
    assert again.fetchall() == higher.fetchall()
    assert session.sql("FROM dp_budget()").df()["rho_spent"][0] == pytest.approx(0.6)


def test_queries_share_the_statistics_they_have_in_common(session: dpsql.Session) -> None:
    units = session.sql("SELECT city, count(DISTINCT patient) AS p FROM visits GROUP BY city", rho=2)
    rows = session.sql("SELECT city, count(*) AS n FROM visits GROUP BY city", rho=2)
    assert rows.receipt is not None
    assert 0 < rows.receipt.charged_rho < 2, "the presence count was held"
    assert rows.receipt.charged_delta < 1e-20, "and its threshold was paid"
    both = session.sql(
        "SELECT city, count(DISTINCT patient) AS p, count(*) AS n, avg(cost) FROM visits GROUP BY city", rho=2
    )
    assert both.receipt is not None
    assert 0 < both.receipt.charged_rho < 2
    # each is served by the highest level that is stored, up to the level of the whole query
    assert [row[:2] for row in both.fetchall()] == units.fetchall()
    assert [(row[0], row[2]) for row in both.fetchall()] == rows.fetchall()
    average = session.sql("SELECT city, avg(cost) FROM visits GROUP BY city", rho=1)
    assert average.receipt is not None
    assert (average.receipt.charged_rho, average.receipt.charged_delta) == (0, 0)
    # the sums are stored at levels that it may have; of the presence count, held at 2, a noisier point is made
    assert [row[0] for row in average.fetchall()] == [row[0] for row in both.fetchall()]
    assert average.fetchall() != [(row[0], row[3]) for row in both.fetchall()]


def test_analysts_share_releases(session: dpsql.Session) -> None:
    first = session.as_analyst("ana").sql(BASE)
    again = session.as_analyst("bob").sql(BASE)
    assert again.fetchall() == first.fetchall()
    assert again.receipt is not None
    assert again.receipt.charged_rho == 0
    assert session.as_analyst("bob").sql("FROM dp_releases()").df()["reused"].tolist() == [True]


def test_a_new_version_is_charged_again_and_named(session: dpsql.Session) -> None:
    text = "SELECT city, count(*) FROM visits GROUP BY city"
    first = session.sql(text)
    assert first.receipt is not None
    session.sql("CALL dp_new_version('visits', version := '2026-11')")
    second = session.sql(text)
    assert second.receipt is not None
    assert second.receipt.version == "2026-11"
    assert second.receipt.charged_rho == pytest.approx(0.1)
    assert second.receipt.query_hash != first.receipt.query_hash
    assert "2026-11" in str(second.receipt)
    assert session.sql("FROM dp_releases()").df()["versions"].tolist() == ["main.visits @ 1", "main.visits @ 2026-11"]
    assert session.sql(text).receipt == dataclasses.replace(
        second.receipt, charged_rho=0.0, charged_delta=0.0, reused=True
    )


CHANGES = {
    "an_excluded_row": "INSERT INTO visits VALUES (NULL, 'city 1', 1, 5, NULL)",
    "a_filtered_row": "INSERT INTO visits VALUES (7, 'city 1', 99, 5, NULL)",
    "an_included_row": "INSERT INTO visits VALUES (1000, 'city 1', 1, 5, NULL)",
    "a_new_key": "INSERT INTO visits SELECT 2000 + u, 'new', 1, 5, NULL FROM range(300) t(u)",
    "a_lost_key": "DELETE FROM visits WHERE city = 'city 2'",
    "everything": "DELETE FROM visits",
}


def books_after(change: str, open_session: Opened) -> list[str]:
    """Receipts, prices, plans and errors of a series of questions, with a change of the data that nobody declared."""
    seen: list[str] = []
    with open_session() as session:

        def ask(text: str, **options: Any) -> None:
            try:
                answer = session.sql(text, **options)
            except DpsqlError as error:
                seen.append(f"{type(error).__name__} {error}")
            else:
                seen.append(repr(of_the_text(answer) if answer.receipt else answer.fetchall()))

        ask(BASE)
        session.connection.execute(change)
        ask(BASE)
        ask(f"FROM dp_explain($$ {BASE} $$, rho := 0.3)")
        ask(BASE, rho=0.3)
        ask(BASE.replace("sum(cost)", "avg(cost)"))
        ask("SELECT city, ward, count(*) FROM visits GROUP BY ALL")
        ask("SELECT city, max(cost) FROM visits GROUP BY city")
        ask(BASE, rho=15)
        ask("FROM dp_budget()")
    return seen


def test_undeclared_changes_of_the_data_change_no_receipt_price_or_error(open_session: Opened) -> None:
    expected = books_after("SELECT 1", open_session)
    assert any("BudgetError" in line for line in expected)
    for name, change in CHANGES.items():
        assert books_after(change, open_session) == expected, name


def by_city(answer: dpsql.Result) -> dict[Any, tuple[Any, ...]]:
    return {row[0]: row[1:] for row in answer.fetchall()}


TWO = (
    "SELECT city, count(DISTINCT patient) AS p, sum(cost) AS s, avg(cost) AS a, count(*) AS n FROM visits GROUP BY city"
)


def test_keys_are_those_of_the_first_release_of_a_version(session: dpsql.Session) -> None:
    """A group that comes or goes in silence moves no frame: each reading would give a unit new keys to be shown."""
    session.sql(TWO, rho=1)
    session.connection.execute("INSERT INTO visits SELECT 2000 + u, 'new', 1, 50, NULL FROM range(300) t(u)")
    session.connection.execute("DELETE FROM visits WHERE city = 'city 2'")
    later = session.sql(TWO, rho=4)
    assert "new" not in by_city(later)
    assert by_city(later)["city 2"][0] == pytest.approx(100, abs=5)
    # a statistic that is new to the frame is drawn from the data as they are, on the keys that the frame has
    added = session.sql(TWO.replace("sum(cost)", "sum(ward, contribution_bounds_per_group => (0, 9))"), rho=4)
    assert None not in by_city(added)["city 2"]
    assert "new" not in by_city(added)
    session.sql("CALL dp_new_version('visits')")
    fresh = by_city(session.sql(TWO, rho=4))
    assert fresh["new"][0] == pytest.approx(300, abs=5)
    assert "city 2" not in fresh


def test_a_silent_change_gives_a_unit_no_further_keys(session: dpsql.Session) -> None:
    """The attack: one unit under another key at each reading, sums in between; the frame holds those of the first."""
    session.connection.execute("CREATE OR REPLACE TABLE lone AS SELECT 1 AS patient, 0 AS city, 1.0::DOUBLE AS cost")
    session.sql(
        "CALL dp_protect('lone', coverage := FALSE, privacy_unit_column := 'patient', max_groups_contributed := 1, "
        "separate_people := true, rho_budget := 100, delta_threshold := 0.5, delta_conversion := 1e-6)"
    )
    text = "SELECT city, {} FROM lone GROUP BY city"
    for step in range(6):
        session.sql(text.format(f"sum(cost + {step}, contribution_bounds_per_group => (0, 9))"), rho=0.001)
        session.sql(text.format("count(DISTINCT patient)"), rho=0.001 * (step + 1), delta=1e-3)
        session.connection.execute("UPDATE lone SET city = city + 1")
    state = session._access.read()
    with state._database.read() as connection:
        held = connection.execute(
            "SELECT sum(row_count) FROM key_chunk JOIN frame USING (frame_hash) WHERE tables LIKE '%lone%'"
        ).fetchone()
    assert held == (1,)


def told_by_points(open_session: Opened, *, public: bool) -> tuple[list[int], set[int]]:
    """What two levels of a count tell of groups that came and went in between.

    Returns the places of keys whose stored number is the same at both levels, and how many keys each level has.
    """
    with open_session() as session:
        if public:
            session.sql("CALL dp_domain('visits', 'city', keys := ['city 0', 'city 1', 'city 2', 'city 3', 'new'])")
        text = "SELECT city, count(DISTINCT patient) AS n FROM visits GROUP BY city"
        first = session.sql(text, rho=0.5).receipt
        session.connection.execute("DELETE FROM visits WHERE city = 'city 2'")
        session.connection.execute("INSERT INTO visits SELECT 2000 + u, 'new', 1, 50, NULL FROM range(300) t(u)")
        session.sql(text, rho=2)
        state = session._access.read()
        assert first is not None
        (release,) = [release for release in state.history.releases() if release.query_hash == first.query_hash][:1]
        (statistic,) = release.statistics
        high, low = (state.side_table.point(statistic, level.rho_nano) for level in state.side_table.levels(statistic))
        assert high is not None
        assert low is not None
        both = min(len(high.values), len(low.values))
        same = (high.values[:both] == low.values[:both]).nonzero()[0].tolist()
        return same, {len(high.values), len(low.values)}


@pytest.mark.parametrize("public", [False, True])
def test_a_rise_tells_of_no_group_that_came_or_went(open_session: Opened, *, public: bool) -> None:
    same, sizes = told_by_points(open_session, public=public)
    assert same == []
    assert len(sizes) == 1


def test_a_key_that_is_left_out_of_a_rise_tells_that_its_rows_are_gone(
    open_session: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack on the naive rule: its number stays what it was, to the last digit."""
    whole = points._drawn

    def only_what_has_rows(source: PointSource, draw: Draw) -> NoisyHistogram:
        made = whole(source, draw)
        top_nano = draw.level.rho_nano - draw.fresh.rho_nano
        if not top_nano:
            return made
        gone = source.exact.values[source.statistic] == 0
        held = source.placed(top_nano).noisy
        return dataclasses.replace(made, values=np.where(gone, held.values, made.values))

    monkeypatch.setattr(points, "_drawn", only_what_has_rows)
    assert told_by_points(open_session, public=True)[0] == [2]


def test_a_new_key_without_lower_points_tells_when_it_came(
    open_session: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack on the naive rule: a rise that reads the data anew, and gives a new key no lower points."""
    monkeypatch.setattr(Frame, "is_frozen", property(lambda _: False))
    monkeypatch.setattr(GaussianMeasure, "risen", lambda _, __, fresh: fresh.noisy)
    assert told_by_points(open_session, public=False)[1] == {4, 5}


def test_without_private_keys_lost_groups_are_shown_as_noise(session: dpsql.Session) -> None:
    session.sql("CALL dp_domain('visits', 'city', keys := ['city 1', 'city 2', 'nowhere'])")
    session.connection.execute("DELETE FROM visits")
    answer = session.sql("SELECT city, count(*) AS n, sum(cost) AS s FROM visits GROUP BY city", rho=1)
    assert [row[0] for row in answer.fetchall()] == ["city 1", "city 2", "nowhere"]
    assert all(None not in row for row in answer.fetchall())
    total = session.sql("SELECT count(*) AS n, sum(cost) AS s FROM visits", rho=1)
    assert None not in total.fetchall()[0]


def test_public_keys_that_change_after_the_plan_are_noticed_before_the_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    with dpsql.connect() as session:
        session.connection.execute("CREATE TABLE visits AS SELECT i AS patient, 'Lund' AS city FROM range(20) t(i)")
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "privacy_unit_column := 'patient', max_groups_contributed := 1, "
            "epsilon_budget := 3, delta_budget := 1e-6)"
        )
        session.sql("CALL dp_domain('visits', 'city', keys := ['Lund', 'Visby'])")
        question = "SELECT city, count(DISTINCT patient) AS n FROM visits GROUP BY city"
        plan = plan_query

        def plan_then_change(*arguments: Any, **keywords: Any) -> Any:
            planned = plan(*arguments, **keywords)
            monkeypatch.setattr("dpsql.session.plan_cache.plan_query", plan)
            session.sql("CALL dp_domain('visits', 'city', keys := ['Lund', 'Visby', 'Malmö'])")
            return planned

        monkeypatch.setattr("dpsql.session.plan_cache.plan_query", plan_then_change)
        with pytest.raises(dpsql.ReleaseError):
            session.sql(question, rho=0.01)
        assert len(session.sql("FROM dp_releases()")) == 0
        assert session._access.read().ledger.spent("visits").rho_nano == 0
        assert [row[0] for row in session.sql(question, rho=0.01).fetchall()] == ["Lund", "Malmö", "Visby"]


def test_a_receipt_says_if_stored_numbers_have_more_rho_than_was_asked(open_session: Opened) -> None:
    sets = "SELECT city, ward, count(*) FROM visits GROUP BY GROUPING SETS ((city), (ward))"
    with open_session() as session:
        for text in (sets, "SELECT city, count(*), sum(cost) FROM visits GROUP BY city"):
            paid, stored, lower = (receipt(session, text, rho=rho) for rho in (0.3, 0.3, 0.23))
            for as_asked in (paid, stored):
                assert as_asked.asked_rho == pytest.approx(0.3)
                assert as_asked.sections["privacy"][1] == "rho 0.3"
            assert lower.asked_rho == pytest.approx(0.23)
            assert lower.charged_rho == 0.0
            assert lower.rho > 0.23
            assert lower.sections["privacy"][1] == f"rho {lower.rho:.6g}; the question asked for rho 0.23"
            assert str(lower).startswith("price    nothing: all numbers were stored before\n")
