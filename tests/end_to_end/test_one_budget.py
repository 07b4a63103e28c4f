"""One budget for the same people: a second one, or people in a public table, is said explicitly or refused."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.errors import (
    AccessError,
    BudgetError,
    CalibrationError,
    PolicyError,
    StateError,
    UnsupportedQueryError,
)
from dpsql.session.explain import explain_table
from dpsql.session.session import state_beside
from dpsql.sql.statements import SelectStatement, read_statement
from dpsql.state import DELTA_UNITS_PER_ONE, ChargeItem
from tests.end_to_end.prepared import with_own_state

BUDGET = "epsilon_budget := 3, delta_budget := 1e-6"
TABLES = """
CREATE SCHEMA other;
CREATE TABLE visits AS SELECT i AS pid, i % 3 AS city, i % 7 AS cost FROM range(3000) t(i);
CREATE TABLE bills AS SELECT i AS PID, i % 5 AS kind FROM range(3000) t(i);
CREATE TABLE other."my visits" AS SELECT i AS person, i % 3 AS city FROM range(30) t(i);
CREATE TABLE stays (stay INTEGER PRIMARY KEY, pid INTEGER);
CREATE TABLE meals (stay INTEGER, dish VARCHAR);
CREATE TABLE menu (stay INTEGER, price DOUBLE);
CREATE TABLE cities AS SELECT unnest([0, 1, 2])::BIGINT AS city;
CREATE TABLE register AS SELECT 1 AS pid;
CREATE MACRO rows_of() AS TABLE SELECT * FROM visits;
CREATE VIEW renamed AS SELECT pid AS person, city FROM visits;
CREATE VIEW deeper AS SELECT person + 1 AS somebody FROM (SELECT * FROM renamed);
CREATE VIEW by_macro AS SELECT pid AS member FROM rows_of();
CREATE VIEW empty AS SELECT pid AS nobody FROM visits WHERE 1 = 0;
CREATE VIEW inside AS SELECT city, (SELECT max(pid) FROM visits) AS largest FROM cities;
CREATE VIEW odd AS SELECT person AS guest FROM other."my visits";
CREATE VIEW odd_again AS SELECT person AS host FROM other."my visits";
CREATE VIEW other.elsewhere AS SELECT pid AS member FROM main.visits;
CREATE VIEW with_cities AS SELECT bills.PID AS payer FROM bills JOIN cities ON bills.kind = cities.city;
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dpsql.Session]:
    folder = tmp_path_factory.mktemp("files")
    with dpsql.connect(threads=1) as session:
        session.connection.execute(TABLES)
        (folder / "x.csv").write_text("p\n1\n")
        (folder / "y").symlink_to(folder)
        session.connection.execute(f"CREATE VIEW file_a AS SELECT p AS pa FROM '{folder}/x.csv'")
        session.connection.execute(f"CREATE VIEW file_b AS SELECT p AS pb FROM read_csv('{folder}/y/x.csv')")
        session.connection.execute(f"CREATE VIEW file_c AS SELECT p AS pc FROM read_csv('{folder}/?.c*')")
        session.connection.execute(f"CREATE VIEW file_d AS SELECT p AS pd FROM read_csv('file://{folder}/x.csv')")
        session.sql(f"CALL dp_unit('patient', {BUDGET})")
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        yield session


def protect(session: dpsql.Session, table: str, column: str, rest: str = BUDGET) -> None:
    session.sql(f"CALL dp_protect('{table}', coverage := FALSE, privacy_unit_column := '{column}', {rest})")


def logged(session: dpsql.Session) -> list[dict[str, Any]]:
    with session._access.read()._database.read() as connection:
        return [json.loads(row[0]) for row in connection.execute("SELECT declaration FROM policy_log ORDER BY id")]


SAME = [
    (("visits", "pid"), ("bills", "pid")),
    (("visits", "pid"), ("renamed", "person")),
    (("visits", "pid"), ("deeper", "somebody")),
    (("visits", "pid"), ("by_macro", "member")),
    (("visits", "pid"), ("empty", "nobody")),
    (("visits", "pid"), ("inside", "largest")),
    (("visits", "pid"), ("other.elsewhere", "member")),
    (("renamed", "city"), ("by_macro", "member")),
    (("odd", "guest"), ("odd_again", "host")),
    (("other.my visits", "person"), ("odd", "guest")),
    (("file_a", "pa"), ("file_b", "pb")),
    (("file_c", "pc"), ("file_a", "pa")),
    (("file_d", "pd"), ("file_a", "pa")),
    (("file_d", "pd"), ("file_c", "pc")),
]


@pytest.mark.parametrize(("one", "other"), [*SAME, *(both[::-1] for both in SAME[::3])])
def test_a_second_budget_is_refused_in_any_order_unless_it_is_said(
    session: dpsql.Session, one: tuple[str, str], other: tuple[str, str]
) -> None:
    protect(session, *one)
    (first,) = (table for table in session._access.read().policy().tables)
    before = logged(session)
    with pytest.raises(PolicyError, match=rf"unit := '{first.unit}' in place of.*separate_people := true"):
        protect(session, *other)
    with pytest.raises(PolicyError, match="separate_people"):
        protect(session, *other, rest="unit := 'patient'")
    assert logged(session) == before
    protect(session, *other, rest=f"{BUDGET}, separate_people := true")
    assert logged(session)[-1]["separate_people"] is True


@pytest.mark.parametrize(("one", "other"), [SAME[0], SAME[0][::-1], SAME[-1]])
def test_a_second_budget_that_was_said_is_kept(
    session: dpsql.Session, one: tuple[str, str], other: tuple[str, str]
) -> None:
    protect(session, *one)
    protect(session, *other, rest=f"{BUDGET}, separate_people := true")
    said = [row for row in session.sql("FROM dp_policy()").fetchall() if row[2] == "separate_people"]
    assert len(said) == 1
    assert said[0][3] == "True"
    # nothing is asked again
    protect(session, *other, rest="max_groups_contributed := 2")
    assert [row for row in session.sql("FROM dp_policy()").fetchall() if row[2] == "separate_people"] == said
    with pytest.raises(PolicyError, match="separate_people"):
        protect(session, *other, rest="separate_people := false")


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_unit_is_the_other_way_to_say_it(
    session: dpsql.Session, one: tuple[str, str], other: tuple[str, str]
) -> None:
    protect(session, *one, rest="unit := 'patient'")
    protect(session, *other, rest="unit := ' PATIENT'")
    assert [unit.name for unit in session._access.read().policy().units] == ["patient"]


def test_other_people_need_no_word(session: dpsql.Session) -> None:
    session.sql("CALL dp_public('cities')")
    protect(session, "visits", "pid", "unit := 'patient'")
    protect(session, "odd", "guest")
    protect(session, "with_cities", "payer")
    session.connection.execute("CREATE OR REPLACE VIEW also_with_cities AS SELECT city AS spot FROM cities")
    protect(session, "also_with_cities", "spot")


def test_a_unit_that_tables_share_is_known_by_its_name(session: dpsql.Session) -> None:
    session.sql(f"CALL dp_unit('payer', {BUDGET})")
    protect(session, "visits", "pid", "unit := 'patient'")
    protect(session, "bills", "pid", "unit := 'payer', separate_people := true")
    protect(session, "register", "pid", "unit := 'payer'")
    # but not the rows of a table that another unit pays for
    with pytest.raises(PolicyError, match="separate_people"):
        protect(session, "renamed", "person", "unit := 'payer'")


def test_a_link_leads_to_no_second_budget(session: dpsql.Session) -> None:
    session.connection.execute("CREATE OR REPLACE VIEW eaten AS SELECT stay AS eater FROM meals")
    protect(session, "stays", "pid", "unit := 'patient'")
    protect(session, "eaten", "eater")
    link = "CALL dp_link('meals', 'stay', coverage := FALSE, parent := 'stays.stay'"
    with pytest.raises(PolicyError, match=r"main\.eaten.*separate_people"):
        session.sql(f"{link})")
    session.sql(f"{link}, separate_people := true)")
    session.sql(f"{link})")
    assert session._access.read().policy().protected_table("main.meals").separate_people  # type: ignore[union-attr]


@pytest.mark.parametrize("table", ["register", "menu"])
def test_people_in_a_public_table_are_refused_unless_it_is_decided(session: dpsql.Session, table: str) -> None:
    """A column called like a unit column, and one called like the key that leads to a unit."""
    protect(session, "visits", "pid", "unit := 'patient'")
    protect(session, "stays", "pid", "unit := 'patient'")
    session.sql("CALL dp_link('meals', 'stay', coverage := FALSE, parent := 'stays.stay')")
    with pytest.raises(PolicyError, match="public_by_decision := '"):
        session.sql(f"CALL dp_public('{table}')")
    session.sql(f"CALL dp_public('{table}', public_by_decision := 'printed every year')")
    assert logged(session)[-1]["decision"] == "printed every year"
    rows = session.sql("FROM dp_policy()").fetchall()
    assert ("public table", f"main.{table}", "public_by_decision", "printed every year") in rows
    session.sql(f"CALL dp_public('{table}')")
    assert session.sql("FROM dp_policy()").fetchall() == rows
    with pytest.raises(PolicyError, match="public_by_decision"):
        session.sql(f"CALL dp_public('{table}', public_by_decision := NULL)")


def test_what_a_protected_view_reads_is_not_public(session: dpsql.Session) -> None:
    protect(session, "odd", "guest")
    with pytest.raises(PolicyError, match=r"is what the protected 'main\.odd' reads"):
        session.sql("""CALL dp_public('other."my visits"')""")
    protect(session, "with_cities", "payer")
    # one of several tables that a view reads may be
    session.sql("CALL dp_public('cities')")


def test_a_column_that_was_public_first_is_spoken_of_too(session: dpsql.Session) -> None:
    session.sql("CALL dp_public('register')")
    with pytest.raises(PolicyError, match=r"CALL dp_public\('main.register', public := false\)"):
        protect(session, "visits", "pid")
    session.sql("CALL dp_public('main.register', public_by_decision := 'printed')")
    protect(session, "visits", "pid")


def test_public_is_taken_back_until_an_answer_was_made_of_it(session: dpsql.Session) -> None:
    protect(session, "visits", "pid", "unit := 'patient', max_groups_contributed := 1, max_rows_per_group := 1")
    session.sql("CALL dp_public('cities', version := 'a')")
    session.sql("CALL dp_domain('visits', 'city', keys_from := 'cities.city')")
    with pytest.raises(PolicyError, match=r"keys_from := NULL"):
        session.sql("CALL dp_public('cities', public := false)")
    session.sql("CALL dp_domain('visits', 'city', keys_from := NULL)")
    for _ in range(2):
        session.sql("CALL dp_public('cities', public := false)")
    domain = {"column": "city", "bounds": None, "keys": None, "keys_from": ["main.cities", "city"], "ordered": None}
    assert [one for one in logged(session) if one.get("withdrawn")] == [
        {"table": "main.visits", **domain, "withdrawn": True},
        {"table": "main.cities", "version": "a", "decision": None, "readable": False, "withdrawn": True},
    ]
    session.sql("CALL dp_public('cities')")
    assert session._access.read().policy().public_table("main.cities").version == "a"  # type: ignore[union-attr]
    session.sql("CALL dp_domain('visits', 'city', keys_from := 'cities.city')")
    session.sql("SELECT city, count(*) FROM visits GROUP BY city", rho=0.01)
    session.sql("CALL dp_domain('visits', 'city', keys_from := NULL)")
    with pytest.raises(PolicyError, match=r"answers that used table 'main\.cities'"):
        session.sql("CALL dp_public('cities', public := false)")


def test_public_is_not_taken_back_once_it_was_joined(session: dpsql.Session) -> None:
    protect(session, "visits", "pid", "unit := 'patient', max_groups_contributed := 1, max_rows_per_group := 1")
    session.sql("CALL dp_public('cities')")
    session.sql("SELECT count(DISTINCT pid) FROM visits JOIN cities ON visits.city = cities.city", rho=0.01)
    with pytest.raises(PolicyError, match="answers that used"):
        session.sql("CALL dp_public('cities', public := false)")


def test_a_domain_is_of_its_columns_type(session: dpsql.Session) -> None:
    session.connection.execute(
        "CREATE OR REPLACE TABLE kinds (t VARCHAR, i BIGINT, f FLOAT, d DATE, s TIMESTAMP, b BOOLEAN, n DECIMAL(4, 1), "
        "l INTEGER[], y TINYINT, pid INTEGER)"
    )
    protect(session, "kinds", "pid")
    for column in "ifbny":
        session.sql(f"CALL dp_domain('kinds', '{column}', bounds := [0, 1])")
    for column, kind in (("t", "VARCHAR"), ("d", "DATE"), ("s", "TIMESTAMP"), ("l", "INTEGER")):
        with pytest.raises(PolicyError, match=f"is {kind}.*bounds are of numbers"):
            session.sql(f"CALL dp_domain('kinds', '{column}', bounds := [0, 1])")
    with pytest.raises(PolicyError, match="lower one below"):
        session.sql("CALL dp_domain('kinds', 'i', bounds := [1, 0])")
    fitting = {
        "t": ["'a'", "DATE '2026-01-01'", "NULL"],
        "i": ["1", "-3", "NULL"],
        "f": ["0.1", "1e-6", "2"],
        "d": ["'2026-01-01'", "DATE '2026-01-02'"],
        "s": ["'2026-01-01 10:00:00'"],
        "b": ["true", "'false'"],
        "n": ["1.5", "3"],
        "y": ["127"],
        "l": ["[1, 2]"],
    }
    for column, keys in fitting.items():
        session.sql(f"CALL dp_domain('kinds', '{column}', keys := [{', '.join(keys)}])")
    misfits = {
        "i": ["'a'", "1.5", "'2026-01-01'", "1e300"],
        "d": ["'today or so'", "7"],
        "s": ["'noon'"],
        "b": ["2", "'perhaps'"],
        "n": ["0.05", "12345"],
        "y": ["128", "-129"],
        "f": ["'much'"],
    }
    for column, keys in misfits.items():
        for key in keys:
            with pytest.raises(PolicyError, match=r"is no value of that type|are texts and numbers") as caught:
                session.sql(f"CALL dp_domain('kinds', '{column}', keys := [NULL, {fitting[column][0]}, {key}])")
            assert key.strip() in str(caught.value).replace("CAST", "")


def test_a_listed_column_has_values_of_the_type(session: dpsql.Session) -> None:
    session.connection.execute(
        "CREATE OR REPLACE TABLE numbers (n VARCHAR); INSERT INTO numbers VALUES ('1'), ('2'), (NULL);"
        "CREATE OR REPLACE TABLE words (n VARCHAR); INSERT INTO words VALUES ('1'), ('two')"
    )
    protect(session, "visits", "pid")
    session.sql("CALL dp_public('numbers')")
    session.sql("CALL dp_public('words')")
    session.sql("CALL dp_domain('visits', 'city', keys_from := 'numbers.n')")
    with pytest.raises(PolicyError, match=r"'city' is BIGINT, and not every value of main.words.n"):
        session.sql("CALL dp_domain('visits', 'city', keys_from := 'words.n')")


def test_who_is_not_declared_asks_nothing_once_anybody_is(session: dpsql.Session) -> None:
    protect(session, "visits", "pid", "unit := 'patient', max_groups_contributed := 1")
    text = "SELECT count(DISTINCT pid) FROM visits"
    eve, ana = session.as_analyst(" Eve "), session.as_analyst("ANA")
    assert eve.name == "Eve"
    eve.sql(text, rho=0.001)
    session.sql("CALL dp_analyst(' Ana ', rho_limit := 0.02)")
    functions = [f"FROM {name}($${text}$$)" for name in ("dp_query", "dp_explain", "dp_describe")]
    asked = (text, *functions, "FROM dp_budget()", "FROM dp_releases()")
    for one in asked:
        with pytest.raises(AccessError, match="'Eve' is not among the analysts"):
            eve.sql(one)
    ana.sql(text, rho=0.001)
    # one name, however it is written: her releases, what she holds, and what is written of her
    assert session.sql("FROM dp_releases()").arrow()["analyst"].to_pylist() == ["Eve", "Ana"]
    for spelling in ("ana", "ANA ", "Ana"):
        handle = session.as_analyst(spelling)
        assert len(handle.sql("FROM dp_releases()")) == 1
        (held,) = {row["rho_held"] for row in handle.sql("FROM dp_budget(analysts := [' aNA'])").arrow().to_pylist()}
        assert held == pytest.approx(0.001)
    assert session.sql("FROM dp_budget('patient', analysts := [' EVE '])").arrow()["rho_held"][0].as_py() > 0
    session.sql("CALL dp_analyst('eve')")
    eve.sql(text, rho=0.001)


def test_two_names_of_one_file_have_one_budget(tmp_path: Path) -> None:
    one, two = tmp_path / "one.duckdb", tmp_path / "two.duckdb"
    with dpsql.connect(one) as session:
        session.connection.execute("CREATE TABLE visits AS SELECT i AS pid FROM range(9) t(i)")
    os.link(one, two)
    # no state file yet: from here on it would be another one for each name
    for path in (one, two):
        with pytest.raises(StateError, match=r"2 names \(hard links\).*name the state file"):
            dpsql.connect(path)
    with dpsql.connect(one, state=tmp_path / "one.duckdb.dpsql") as session:
        session.sql(f"CALL dp_unit('patient', {BUDGET})")
    with dpsql.connect(one) as session:
        assert session._access.read().policy().units
    with pytest.raises(StateError, match="hard links"):
        dpsql.connect(two)
    # a link to the name is the name; a copy is a file of its own
    (tmp_path / "three.duckdb").symlink_to(one)
    assert state_beside(tmp_path / "three.duckdb") == state_beside(one) == tmp_path / "one.duckdb.dpsql"
    two.unlink()
    assert state_beside(two) == tmp_path / "two.duckdb.dpsql"
    with duckdb.connect(str(one)) as connection:
        assert connection.execute("SELECT count(*) FROM visits").fetchall() == [(9,)]


NUMBERS: list[object] = [0, -1, 1e-300, 1e-9, 0.5, 1 - 1e-16, True, 50, 1e6, 2**63, 1.7e308]
NUMBERS += [float("nan"), float("inf"), float("-inf")]
NUMERIC = ["epsilon", "delta", "rho", "rho_ceiling", "top_k", "sketch_size"]
NUMERIC += ["max_groups_contributed", "min_privacy_units_per_group"]
BEFORE_ANYTHING = (PolicyError, CalibrationError, BudgetError, UnsupportedQueryError)


@pytest.mark.parametrize("numbers", [NUMBERS[1::3], pytest.param(NUMBERS, marks=pytest.mark.long)], ids=len)
def test_no_number_is_too_odd_for_an_option(session: dpsql.Session, numbers: list[object]) -> None:
    """Priced or refused in a way that says what to do: never a fault of the state or the engine."""
    session.sql(
        "CALL dp_unit('patient', rho_budget := 1e9, delta_threshold := 0.9, delta_conversion := 1e-6, replace := true)"
    )
    rest = "max_groups_contributed := 2, max_rows_per_group := 3, default_rho := 0.1, default_delta := 1e-9"
    protect(session, "visits", "pid", f"unit := 'patient', {rest}")
    text = "SELECT city, count(*) FROM visits GROUP BY city"
    cases = [{name: number} for name in NUMERIC for number in numbers]
    cases += [
        {level: amount, "delta": delta}
        for level, amount, delta in itertools.product(("epsilon", "rho"), (1e-6, 50, 1e6), (1e-30, 0.5))
    ]
    cases += [{"rho_window": [low, 1e6]} for low in numbers]
    outcomes: Counter[str] = Counter()
    for options in cases:
        statement = read_statement(text)
        assert isinstance(statement, SelectStatement)
        try:
            explain_table(*session._runner.plan(statement, options, CURATOR))
            outcomes["priced"] += 1
        except BEFORE_ANYTHING as error:
            outcomes[type(error).__name__] += 1
    assert min(outcomes[one] for one in ("priced", "CalibrationError", "UnsupportedQueryError")) > 3
    # the imprecision of noise at such levels has a price, which a budget may not cover
    with pytest.raises(BudgetError):
        session.sql(text, rho=0.1, rho_ceiling=75, delta=0.5)
    with pytest.raises(CalibrationError, match="a delta above 1 together"):
        ChargeItem("a statistic", 1, DELTA_UNITS_PER_ONE + 1)
    assert session._access.read().ledger.spent("patient").rho_nano == 0
