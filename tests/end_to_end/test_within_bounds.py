"""dp_within_target speaks of the true numbers: facts that make sure that nothing is cut, and ends of what may be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import dpsql
from dpsql.assets import asset
from tests.end_to_end.prepared import with_declarations, with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

BUDGET = "rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6"
FREE, IN_GROUP, ONE = "free", "in_group", "one"
"""Tables whose rows of a unit no constraint keeps few; one in each group; and one at all."""
ROWS = "SELECT i // 3 AS unit, i % 3 AS key, 40 + i % 7 AS value FROM range(2_400) t(i)"
DISTINCT = "sum(count(DISTINCT unit)) OVER (ORDER BY key)"


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    made = {FREE: "", IN_GROUP: ", UNIQUE (unit, key)", ONE: ", UNIQUE (unit)"}
    tables = [
        f"CREATE TABLE {name} (unit INTEGER, key INTEGER, value INTEGER{constraint}); "
        f"INSERT INTO {name} {ROWS.replace('i // 3', 'i') if name == ONE else ROWS}"
        for name, constraint in made.items()
    ]
    declared = [
        statement
        for name in made
        for statement in (
            f"CALL dp_protect('{name}', privacy_unit_column := 'unit', coverage := FALSE, "
            f"max_groups_contributed := 3, max_rows_per_group := 2, {BUDGET}, separate_people := true)",
            f"CALL dp_domain('{name}', 'key', keys := [0, 1, 2])",
            f"CALL dp_domain('{name}', 'value', bounds := [0, 100])",
        )
    ]
    with with_declarations("; ".join(tables), declared) as session:
        yield session


def answered(session: dpsql.Session, table: str, column: str, options: str = "") -> dpsql.Result:
    """Answer a question by a relative error of 30 % about one column, at a level with little noise."""
    return session.sql(
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (target_relative_error = 0.3, max_rho = 8{options}) "
        f"key, {column} AS n, dp_within_target(n) AS close FROM {table} GROUP BY key"
    )


TWO = ", max_groups_contributed = 2"


@pytest.mark.parametrize(
    ("table", "column", "options", "close"),
    [
        (FREE, "count(DISTINCT unit)", "", True),
        (FREE, "count(DISTINCT unit) FILTER (value > 42)", "", True),
        (FREE, DISTINCT, "", True),
        (FREE, "count(DISTINCT unit)", TWO, None),
        (FREE, DISTINCT, TWO, None),
        (FREE, "count(*)", "", None),
        (FREE, "avg(value)", "", None),
        (IN_GROUP, "count(*)", "", True),
        (IN_GROUP, "sum(value)", "", True),
        (IN_GROUP, "sum(value + 10)", "", True),
        (IN_GROUP, "count(*, contribution_bounds_per_group => (2, 4))", "", None),
        (IN_GROUP, "count(DISTINCT value + 100 * (unit % 90))", "", True),
        (FREE, "count(DISTINCT value + 100 * (unit % 90))", "", None),
        (IN_GROUP, "avg(value)", "", True),
        (IN_GROUP, "sum(count(*)) OVER (ORDER BY key)", "", True),
        (IN_GROUP, "count(*)", TWO, None),
        (IN_GROUP, "avg(value)", TWO, None),
        (IN_GROUP, "sum(value, contribution_bounds_per_row => (0, 60))", "", None),
        (IN_GROUP, "sum(value, contribution_bounds_per_group => (0, 200))", "", None),
        (IN_GROUP, "avg(value, contribution_bounds_per_row => (0, 60))", "", None),
        (IN_GROUP, "sum(value, contribution_norm => 300)", ", bounding = NORM", None),
        (ONE, "count(DISTINCT unit)", ", max_groups_contributed = 1", True),
        (ONE, "count(*)", ", max_groups_contributed = 1", True),
        (ONE, "avg(value)", ", max_groups_contributed = 1", True),
        # all values lie between 90 and 100, so do their averages
        (FREE, "avg(90 + value % 10, contribution_bounds_per_row => (90, 100))", "", True),
    ],
)
def test_true_needs_a_fact_that_nothing_is_cut(
    prepared: dpsql.Session, table: str, column: str, options: str, close: bool | None
) -> None:
    with with_own_state(prepared) as session:
        session._runner.noise_source = seeded_noise(5)
        answer = answered(session, table, column, options)
        assert [row[-1] for row in answer.fetchall()] == [close] * 3
        notes = [note for note in receipt_of(answer).notes if note.startswith("NULL in truth values")]
        assert len(notes) == (close is None)
        assert not notes or re.search(r": bounds may cut (rows|values|rows or values) of n, and how much", notes[0])


def test_a_listed_null_may_repeat_in_spite_of_a_constraint(prepared: dpsql.Session) -> None:
    with with_own_state(prepared) as session:
        session._runner.noise_source = seeded_noise(5)
        session.sql(f"CALL dp_domain('{IN_GROUP}', 'key', keys := [0, 1, NULL])")
        assert [row[-1] for row in answered(session, IN_GROUP, "count(*)").fetchall()][:2] == [None, None]


def test_a_kept_plan_forgets_a_constraint_that_was_dropped() -> None:
    """A plan of the same text is made anew, once a unit may have several rows in a group."""
    with one_row_in_a_group("INTEGER", "i % 3", "[0, 1, 2]") as session:
        text = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (target_relative_error = 0.3, max_rho = 8) "
        text += "key, count(*) AS n, dp_within_target(n) AS close FROM t GROUP BY key"
        session.sql(f"FROM dp_explain($${text}$$)")
        session.connection.execute(
            "CREATE OR REPLACE TABLE t (unit INTEGER, key INTEGER); "
            "INSERT INTO t SELECT i // 3, i % 3 FROM range(2_400) t(i), range(4)"
        )
        assert [row[-1] for row in session.sql(text).fetchall()] == [None] * 3


@pytest.mark.parametrize(("collation", "close"), [("", True), ("COLLATE NOCASE", None)])
def test_a_constraint_tells_texts_apart_that_a_key_holds_equal(collation: str, close: bool | None) -> None:
    """Each unit has the rows 'a' and 'A', of which one counts."""
    with one_row_in_a_group(f"VARCHAR {collation}", "['a', 'A', 'b'][1 + i % 3]", "['a', 'b']") as session:
        found = answered(session, "t", "count(*)").fetchall()
        assert [row[-1] for row in found] == [close] * 2


@contextmanager
def one_row_in_a_group(kind: str, key: str, keys: str) -> Iterator[dpsql.Session]:
    """Open a table whose units have one row of each key by a constraint."""
    made = f"CREATE TABLE t (unit INTEGER, key {kind}, UNIQUE (unit, key)); INSERT INTO t SELECT i // 3, {key} "
    declared = (
        "CALL dp_protect('t', privacy_unit_column := 'unit', coverage := FALSE, max_groups_contributed := 3, "
        f"max_rows_per_group := 1, {BUDGET})",
        f"CALL dp_domain('t', 'key', keys := {keys})",
    )
    with with_declarations(f"{made} FROM range(2_400) t(i)", declared) as session:
        session._runner.noise_source = seeded_noise(5)
        yield session


def test_people_are_within_it_with_all_who_may_be_missing_in_one_group() -> None:
    """Nobody is in more than two of three groups. The large groups are within it with all who may be missing."""
    rows = (
        "SELECT i // 2 AS unit, CASE WHEN i % 2 = 0 THEN 0 ELSE 1 + (i % 40) // 39 END AS key FROM range(20_000) t(i)"
    )
    declared = (
        "CALL dp_protect('t', privacy_unit_column := 'unit', max_groups_contributed := 2, max_rows_per_group := 1, "
        f"{BUDGET})",
        "CALL dp_domain('t', 'key', keys := [0, 1, 2])",
    )
    with with_declarations(f"CREATE TABLE t AS {rows}", declared) as session:
        session._runner.noise_source = seeded_noise(7)
        answer = session.sql(
            "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (target_relative_error = 0.1, max_rho = 8) "
            "key, count(DISTINCT unit) AS n, dp_within_target(n) AS close FROM t GROUP BY key ORDER BY key"
        )
        found = answer.fetchall()
        assert [close for *_, close in found] == [True, True, None]
        true = dict(session.connection.sql("SELECT key, count(DISTINCT unit) FROM t GROUP BY key").fetchall())
        assert all(abs(n - true[key]) <= 0.1 * true[key] for key, n, close in found if close)
        (note,) = (note for note in receipt_of(answer).notes if note.startswith("NULL in truth values"))
        assert re.search(r": one group of n may lack up to [\d,]+ units, too many to be sure of 10 %$", note)
        assert f"within  {note.replace('NULL in truth values about the target', 'NULL')}" in str(answer)


def test_no_number_of_the_flights_is_called_within_it_by_a_narrow_policy() -> None:
    """An aircraft counts in 2 of 12 months, with 20 flights in each."""
    file = asset("sample_data", "flights.parquet")
    declared = (
        "CALL dp_protect('flights', privacy_unit_column := 'tailnum', max_groups_contributed := 2, "
        f"max_rows_per_group := 20, {BUDGET})",
        f"CALL dp_domain('flights', 'month', keys := {list(range(1, 13))})",
        "CALL dp_domain('flights', 'distance', bounds := [0, 5000])",
    )
    columns = ("count(DISTINCT tailnum)", "count(*)", "sum(distance)", "avg(distance)")
    asked = ", ".join(f"{one} AS n{i}, dp_within_target(n{i}) AS close{i}" for i, one in enumerate(columns))
    with with_declarations(f"CREATE TABLE flights AS FROM '{file}'", declared) as session:
        session._runner.noise_source = seeded_noise(9)
        answer = session.sql(
            f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (target_relative_error = 0.2, max_rho = 64) {asked} "
            "FROM flights GROUP BY month"
        )
        assert True not in [one for row in answer.fetchall() for one in row[1::2]]
        reasons = [note.partition(": ")[2] for note in receipt_of(answer).notes if note.startswith("NULL in truth")]
        assert reasons[:2] == [
            "numbers are too low, because rows are left out",
            "numbers are too low, because amounts are left out",
        ]
        assert re.match(r"one group of n0 may lack up to [\d,]+ units, too many", reasons[2])
        assert reasons[3:] == ["bounds may cut rows of n3, and how much of one group is not measured"]
