"""Small tables of which nothing is declared but the unit: whatever AUTO finds, what was charged is answered."""

from __future__ import annotations

import random
from typing import Any

import pytest

import dpsql
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

VALUES = (
    "hash(u, i) % 1000",
    "exp((hash(u, i) % 1000) / 100.0)",
    "(hash(u, i) % 100) / 10.0 - 5.0",
    "7.5",
    "0.0",
    "CASE WHEN hash(u) % 2 = 0 THEN 1e25 ELSE -1e30 END",
    "CASE WHEN hash(u, i) % 3 = 0 THEN NULL ELSE u END",
)
ROWS = ("1", "3", "1 + u % 7", "CASE WHEN u = 0 THEN 3000 ELSE 1 + u % 3 END")
NUMBERS = (
    "count(*) AS n",
    "count(v) AS m",
    "count(DISTINCT u) AS people",
    "sum(v) AS s",
    "sum(v) FILTER (WHERE i > 0) AS later",
    "avg(v) AS a",
    "sum(v) / count(*) AS r",
    "stddev_pop(v) AS d",
    "median(v) AS q",
    "count(DISTINCT v) AS c",
)
KEYS = ("", "shop", "day")


def declared(session: dpsql.Session, chance: random.Random, name: str) -> None:
    """Create a random table, and declare its unit, a public list of days and, of some values, a domain."""
    people, keys = round(50 * 40 ** chance.random()), chance.choice((2, 10, 60))
    session.connection.execute(
        f"CREATE TABLE {name} AS SELECT u, i, 's' || (hash(u, i) % {keys}) AS shop, (u + i) % 7 AS day, "
        f"CAST({chance.choice(VALUES)} AS DOUBLE) AS v FROM (SELECT u, unnest(range({chance.choice(ROWS)})) AS i "
        f"FROM range({people}) r(u))"
    )
    session.sql(f"CALL dp_protect('{name}', unit := 'person', privacy_unit_column := 'u')")
    session.sql(f"CALL dp_domain('{name}', 'day', keys := [0, 1, 2, 3, 4, 5, 6])")
    if chance.random() < 0.3:
        session.sql(f"CALL dp_domain('{name}', 'v', bounds := [-10, 500])")


def asked(chance: random.Random, name: str) -> str:
    """Return a random query for numbers of a table."""
    key, numbers = chance.choice(KEYS), chance.sample(NUMBERS, chance.randint(1, 4))
    selected = ", ".join([key, *numbers] if key else numbers)
    if not key:
        return f"SELECT {selected} FROM {name}"
    alias = numbers[0].split()[-1]
    clauses = ("", f" HAVING {alias} > 3", f" ORDER BY {alias}", f" ORDER BY {alias} DESC LIMIT 3")
    return f"SELECT {selected} FROM {name} GROUP BY {key}{chance.choice(clauses)}"


def spent(session: dpsql.Session) -> float:
    return float(session.sql("FROM dp_budget('person')").df().rho_spent[0])


def search(tables: int, seed: int) -> int:
    """Ask random queries of random tables at rising levels; returns how many columns were NULL for want of bounds."""
    chance, empty = random.Random(seed), 0
    with dpsql.connect(threads=1) as session:
        session.sql("CALL dp_unit('person', rho_budget := 900, delta_threshold := 0.1, delta_conversion := 1e-6)")
        session._runner.noise_source = seeded_noise(seed)
        for number in range(tables):
            declared(session, chance, f"t{number}")
            text, epsilon = asked(chance, f"t{number}"), 0.1 * 30.0 ** chance.random()
            for level in (epsilon, 2.0 * epsilon):
                options: dict[str, Any] = {"epsilon": level, "delta": 1e-6}
                before = spent(session)
                answer = session.sql(text, **options)
                receipt = receipt_of(answer)
                assert spent(session) - before == pytest.approx(receipt.charged_rho, abs=1e-9), text
                empty += sum(" is NULL, and not paid for" in note for note in receipt.notes)
                again = session.sql(text, **options)
                assert again.fetchall() == answer.fetchall(), text
                assert receipt_of(again).charged_rho == 0.0, text
    return empty


def test_what_was_charged_is_answered() -> None:
    assert search(3, seed=1) > 0


@pytest.mark.long
def test_what_was_charged_is_answered_on_two_hundred_tables() -> None:
    assert search(200, seed=2) > 20


def test_what_one_group_of_a_unit_costs_is_there_before_auto_is_charged() -> None:
    """A unit of the table has one group, so its keys pass one threshold, which costs more than rounds of selection."""
    with dpsql.connect(threads=1) as session:
        session.connection.execute("CREATE TABLE t AS SELECT u, u % 3 AS shop FROM range(2000) r(u)")
        session.sql("CALL dp_unit('person', rho_budget := 9, delta_threshold := 4e-7, delta_conversion := 1e-6)")
        session.sql("CALL dp_protect('t', unit := 'person', privacy_unit_column := 'u')")
        session._runner.noise_source = seeded_noise(5)
        text = "SELECT shop, count(*) FROM t GROUP BY shop"
        with pytest.raises(dpsql.BudgetError):
            session.sql(text, rho=0.5, delta=1e-6)
        assert spent(session) == 0.0
        session.sql("CALL dp_unit('person', delta_threshold := 1.1e-6, replace := TRUE)")
        answer = session.sql(text, rho=0.5, delta=1e-6)
        assert (receipt_of(answer).mechanism, len(answer)) == ("gshm", 3)


def test_noise_for_many_rows_of_a_unit_can_be_drawn_before_auto_is_charged() -> None:
    """At this level the noise of an average of up to 256 rows of a unit is too wide, and that of two rows is not."""
    with dpsql.connect(threads=1) as session:
        session.connection.execute("CREATE TABLE t AS SELECT u, u % 2 = 0 AS p, u::DOUBLE AS x FROM range(20) r(u)")
        session.sql("CALL dp_unit('person', rho_budget := 9, delta_threshold := 1e-3, delta_conversion := 1e-6)")
        session.sql("CALL dp_protect('t', unit := 'person', privacy_unit_column := 'u', coverage := FALSE)")
        session.sql("CALL dp_domain('t', 'p', keys := [true, false])")
        with pytest.raises(dpsql.CalibrationError):
            session.sql("SELECT p, avg(x) FROM t GROUP BY p", rho=5e-8, delta=1e-6)
        assert spent(session) == 0.0


def test_a_refresh_that_a_limit_forbids_is_refused_before_auto_is_charged() -> None:
    with dpsql.connect(threads=1) as session:
        session.connection.execute("CREATE TABLE t AS SELECT u, u % 3 AS shop FROM range(2000) r(u)")
        session.sql("CALL dp_unit('person', rho_budget := 9, delta_threshold := 1e-3, delta_conversion := 1e-6)")
        session.sql("CALL dp_protect('t', unit := 'person', privacy_unit_column := 'u')")
        session.sql("CALL dp_analyst('ana', rho_limit := 1)")
        with pytest.raises(dpsql.AccessError):
            session.as_analyst("ana").sql("SELECT count(*) FROM t", rho=0.5, delta=1e-6, refresh=True)
        assert spent(session) == 0.0
