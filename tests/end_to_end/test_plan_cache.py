"""Plans that were made before: used again while nothing changed, made anew by whatever could change them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.model.private_query import PrivateQuery
from dpsql.session import plan_cache
from dpsql.session.runner import StatementRunner
from dpsql.sql.statements import Scalar, SelectStatement, read_statement
from tests.end_to_end.prepared import with_own_state

TABLES = """
CREATE TABLE visits AS SELECT i AS patient, ['Lund', 'Malmö'][1 + i % 2] AS city, i % 9 AS cost, i AS day
FROM range(40) t(i);
CREATE TABLE cities (city VARCHAR PRIMARY KEY, country VARCHAR);
INSERT INTO cities VALUES ('Lund', 'SE'), ('Malmö', 'SE');
CREATE VIEW dear AS SELECT * FROM visits WHERE cost > 3;
"""
POLICY = (
    "CALL dp_unit('patient', rho_budget := 10, delta_threshold := 0.5, delta_conversion := 1e-6)",
    "CALL dp_protect('visits', coverage := FALSE, "
    "unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 1, "
    "max_rows_per_group := 2, default_rho := 0.1)",
    "CALL dp_public('cities')",
    "CALL dp_domain('visits', 'city', keys_from := 'cities.city')",
    "CALL dp_domain('visits', 'cost', bounds := [0, 9])",
)
COUNT = "SELECT city, count(*) FROM visits GROUP BY city"
SUM = "SELECT city, sum(cost) FROM visits GROUP BY city"
JOIN = "SELECT country, count(*) FROM visits JOIN cities USING (city) GROUP BY country"
VIEW = "SELECT city, count(*) FROM dear GROUP BY city"


@contextmanager
def opened() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute(TABLES)
        for declaration in POLICY:
            session.sql(declaration)
        yield session


@pytest.fixture
def changing() -> Iterator[dpsql.Session]:
    """A database whose tables the test changes."""
    with opened() as session:
        yield session


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with opened() as session:
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        yield session


def plan(
    session: dpsql.Session, text: str, reader: str = CURATOR, params: list[Scalar] | None = None, **options: object
) -> PrivateQuery:
    statement = read_statement(text, params)
    assert isinstance(statement, SelectStatement)
    return session._runner.plan(statement, options, reader)[0]


def kept(session: dpsql.Session, reader: str = CURATOR) -> list[object]:
    return list(session._runner._plans._readers[reader])


def plan_afresh(session: dpsql.Session, text: str) -> PrivateQuery:
    """By a runner that has planned nothing yet."""
    statement = read_statement(text)
    assert isinstance(statement, SelectStatement)
    return StatementRunner(session._access, session._runner.engine).plan(statement, {}, CURATOR)[0]


@pytest.mark.parametrize("text", [COUNT, SUM, JOIN, VIEW])
def test_a_text_is_planned_once(session: dpsql.Session, text: str) -> None:
    first = plan(session, text)
    with mock.patch.object(plan_cache, "plan_query", side_effect=AssertionError("planned again")):
        assert plan(session, text) is first
    assert plan_afresh(session, text) == first


def test_a_relative_error_is_planned_once_and_another_cap_anew(session: dpsql.Session) -> None:
    first = plan(session, COUNT, target_relative_error=0.1, max_rho=0.5)
    with mock.patch.object(plan_cache, "plan_query", side_effect=AssertionError("planned again")):
        assert plan(session, COUNT, target_relative_error=0.1, max_rho=0.5) == first
    assert plan(session, COUNT, target_relative_error=0.1, max_rho=1.0) != first
    assert len(kept(session)) == 2


CHANGES = {
    "a column's type": (SUM, "ALTER TABLE visits ALTER cost TYPE DOUBLE"),
    "a table's place": (COUNT, "DROP TABLE visits CASCADE; CREATE VIEW visits AS SELECT 1 AS patient"),
    "a view's text": (VIEW, "CREATE OR REPLACE VIEW dear AS SELECT * FROM visits WHERE cost > 5"),
    "a key of a public table": (
        JOIN,
        "CREATE OR REPLACE TABLE cities AS SELECT 'Lund' AS city, 'SE' AS country FROM range(20_000)",
    ),
    "public keys": (COUNT, "INSERT INTO cities VALUES ('Umeå', 'SE')"),
    "a bound": (SUM, "CALL dp_domain('visits', 'cost', bounds := [0, 5])"),
    "bounds of a unit": (
        COUNT,
        "CALL dp_protect('visits', coverage := FALSE, "
        "unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 2, "
        "max_rows_per_group := 2, default_rho := 0.1, replace := true)",
    ),
    "a default": (
        COUNT,
        "CALL dp_protect('visits', coverage := FALSE, "
        "unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 1, "
        "max_rows_per_group := 2, default_rho := 0.2, replace := true)",
    ),
    "a version": (COUNT, "CALL dp_new_version('visits')"),
}


def carry_out(session: dpsql.Session, change: str) -> None:
    for statement in change.split("; "):
        if statement.startswith("CALL"):
            session.sql(statement)
        else:
            session.connection.execute(statement)


def outcome(make: Callable[[dpsql.Session, str], PrivateQuery], session: dpsql.Session, text: str) -> object:
    try:
        return make(session, text)
    except dpsql.DpsqlError as error:
        return str(error)


TEXTS = [
    COUNT,
    SUM,
    JOIN,
    VIEW,
    "SELECT count(*) FROM visits",
    "SELECT city, median(cost) FROM visits GROUP BY city",
    "SELECT city, cost > 3, count(*) FROM visits GROUP BY GROUPING SETS ((city), (2))",
    "SELECT city, count(*) FROM visits WHERE city IN (SELECT city FROM cities) GROUP BY city",
    "SELECT max(n) FROM (SELECT city, count(*) AS n FROM visits GROUP BY city)",
    "SELECT patient % 3 AS third, count(*) FROM visits GROUP BY third",
]


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
def test_after_each_of_many_changes_every_plan_is_as_afresh(changing: dpsql.Session, step: int) -> None:
    """The text that a change is about, and every other text after every change, or each after every third one."""
    # what takes a table away comes last, whichever way
    changes = sorted(CHANGES, key=lambda name: name == "a table's place")
    for place, name in enumerate(changes):
        changed, statements = CHANGES[name]
        before = plan(changing, changed)
        carry_out(changing, statements)
        assert outcome(plan, changing, changed) != before, name
        # one that has planned nothing yet
        runner = StatementRunner(changing._access, changing._runner.engine)
        for text in dict.fromkeys([changed, *TEXTS[place % step :: step]]):
            with mock.patch.object(changing, "_runner", runner):
                expected = outcome(plan, changing, text)
            assert outcome(plan, changing, text) == expected, name


def test_a_cache_that_asks_nothing_again_would_not_see_it(changing: dpsql.Session) -> None:
    with mock.patch.object(plan_cache._KeptPlan, "holds", return_value=True):
        for change in ("a column's type", "a view's text", "a key of a public table", "public keys"):
            text, statements = CHANGES[change]
            before = plan(changing, text)
            carry_out(changing, statements)
            assert plan(changing, text) is before
            assert outcome(plan_afresh, changing, text) != before


def test_what_is_wrong_is_said_each_time(session: dpsql.Session) -> None:
    session.connection.execute("DROP TABLE IF EXISTS gone")
    for _ in range(2):
        with pytest.raises(dpsql.SchemaError, match="gone"):
            plan(session, COUNT.replace("visits", "gone"))
    session.connection.execute("CREATE TABLE gone AS FROM visits")
    session.sql(POLICY[1].replace("visits", "gone"))
    assert plan(session, COUNT.replace("visits", "gone"))


@pytest.mark.parametrize("condition", ["day < year(current_date)", "day < epoch(now())"])
def test_what_reads_the_clock_is_planned_each_time(session: dpsql.Session, condition: str) -> None:
    text = f"SELECT city, count(*) FROM visits WHERE {condition} GROUP BY city"
    assert plan(session, text) is not plan(session, text)
    assert not kept(session)


def test_places_of_public_keys_are_not_kept(session: dpsql.Session) -> None:
    session.sql("CALL dp_domain('visits', 'day', keys := [0, 1, 2, 3])")
    text = "SELECT day // 2 AS pair, count(*) FROM visits GROUP BY pair"
    first = plan(session, text, buckets="day")
    assert plan(session, text, buckets="day") == first
    assert not kept(session)


def test_what_can_no_longer_be_asked_is_refused_as_it_would_be_afresh(changing: dpsql.Session) -> None:
    plan(changing, COUNT)
    changing.connection.execute("DROP TABLE cities")
    refused = outcome(plan, changing, COUNT)
    assert refused == outcome(plan_afresh, changing, COUNT)
    assert "gone" in str(refused)


def test_what_is_asked_of_another_time_is_planned_each_time(session: dpsql.Session) -> None:
    text = COUNT.replace("SELECT ", "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (as_of = '2999-01-01') ", 1)
    assert plan(session, text) is not plan(session, text)


def test_values_of_parameters_are_told_apart_by_their_types(session: dpsql.Session) -> None:
    text = "SELECT city, count(*) FROM visits WHERE cost = ? GROUP BY city"
    values: list[Scalar] = [1, 1.0, True, "1", 2]
    plans = [plan(session, text, params=[value]) for value in values]
    assert [plan(session, text, params=[value]) for value in values] == plans
    for first, second in pairwise(plans):
        assert first is not second
    assert len(kept(session)) == len(values)


class Disguised(str):
    """A text that looks like any other of its kind."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'Lund'"


class Zone(dt.tzinfo):
    """A time zone that does not say how far it is from UTC."""

    def __init__(self, hours: int) -> None:
        self._hours = hours

    def utcoffset(self, _: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(hours=self._hours)

    def dst(self, _: dt.datetime | None) -> None:
        return None

    def tzname(self, _: dt.datetime | None) -> None:
        return None

    def __repr__(self) -> str:
        return "Zone()"


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        ("city < ?", [Disguised("Lund"), Disguised("Malmö")]),
        ("TIMESTAMPTZ '2020-01-01' < ?", [dt.datetime(2020, 1, 1, tzinfo=Zone(hours)) for hours in (1, 5)]),
    ],
)
def test_parameters_are_what_they_become_in_sql(session: dpsql.Session, condition: str, values: list[Scalar]) -> None:
    text = f"SELECT city, count(*) FROM visits WHERE {condition} GROUP BY city"
    first, second = (plan(session, text, params=[value]) for value in values)
    assert first != second


def test_options_are_told_apart_by_their_types(session: dpsql.Session) -> None:
    first = plan(session, COUNT, rho=1)
    assert plan(session, COUNT, rho=1.0) is not first
    assert plan(session, COUNT, rho=1) is first
    for refused in (True, "1", 10**5000, Disguised("Lund")):
        with pytest.raises(dpsql.DpsqlError):
            plan(session, COUNT, rho=refused)
    # of other types nothing is kept: what is equal to them need not be the same
    assert plan(session, COUNT, rho=np.float64(1.0)) == first
    by_list: dict[str, Any] = {"rho_window": [0.1, 1.0], "group_selection_strategy": "GAUSSIAN_THRESHOLD"}
    assert plan(session, COUNT, rho=0.1, **by_list) is not plan(session, COUNT, rho=0.1, **by_list)
    assert len(kept(session)) == 2


def test_readers_do_not_share_plans(session: dpsql.Session) -> None:
    for name, limit in (("ana", "1"), ("bob", "0.05")):
        session.sql(f"CALL dp_analyst('{name}', rho_limit := {limit})")
    anas, bobs, own = (plan(session, COUNT, name) for name in ("ana", "bob", CURATOR))
    assert len({id(one) for one in (anas, bobs, own)}) == 3
    # a default is never above what a reader may be shown
    assert anas.first.request != bobs.first.request
    session.sql("CALL dp_analyst('ana', rho_limit := 0.05, replace := true)")
    assert plan(session, COUNT, "ana").first.request == bobs.first.request


def test_few_plans_of_short_texts_are_kept(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "_MOST_PLANS", 2)
    texts = [COUNT.replace("count(*)", f"count(*) AS n{number}") for number in range(3)]
    first, *others = [plan(session, text) for text in texts]
    assert [plan(session, text) for text in texts[1:]] == others
    assert len(kept(session)) == 2
    assert plan(session, texts[0]) is not first
    long = f"{COUNT} -- {'x' * 4_000}"
    assert plan(session, long) is not plan(session, long)


def test_threads_share_the_plans(session: dpsql.Session) -> None:
    texts = [COUNT.replace("count(*)", f"count(*) AS n{number}") for number in range(4)]
    expected = [plan_afresh(session, text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda text: plan(session, text), texts * 5)) == expected * 5
