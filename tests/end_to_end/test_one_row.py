"""Nothing is bounded that needs no bound: units of which a constraint says that none has two rows.

What is read is the same to the bit, whatever else is asked, and the constraint is that of the moment of reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

import dpsql
from dpsql.bound.aggregation import bounded_sql
from dpsql.bound.coverage import coverage_sql
from dpsql.bound.formulations import Formulation
from dpsql.bound.statement import LeftOut
from dpsql.bound.unit_histograms import unit_histogram_sql
from dpsql.cascade.reader import CURATOR
from dpsql.engine import DuckDBEngine, catalog, database
from dpsql.engine.connection import Cursor
from dpsql.features.auto_histograms import Question
from dpsql.model.statistic_kinds import BESIDE_KINDS, COVERAGE_KINDS, LEFT_OUT_KINDS
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end.reading_rows import watch_statements
from tests.noise_sources import silence

ROWS = (
    "SELECT CASE WHEN i % 9 > 0 THEN i END AS person, 'city ' || i % 7 AS city, "
    "CASE WHEN i % 5 > 0 THEN (hash(i) % 900)::DOUBLE - 50 END AS cost, i % 3 AS stage FROM range(600) r(i)"
)
POLICY = (
    "CALL dp_unit('person', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)",
    "CALL dp_protect('kept', unit := 'person', privacy_unit_column := 'person', max_groups_contributed := 3, "
    "max_rows_per_group := 2)",
    "CALL dp_domain('kept', 'cost', bounds := [0, 500])",
    "CALL dp_domain('kept', 'stage', keys := [0, 1, 2])",
)
QUESTIONS = (
    "SELECT city, count(*), count(cost), sum(cost) FROM kept GROUP BY city",
    "SELECT city, count(*) FILTER (WHERE cost > 90), sum(cost) FILTER (WHERE stage > 0), avg(cost) FROM kept "
    "GROUP BY city",
    "SELECT city, count(DISTINCT person) FILTER (WHERE stage = 1), count(DISTINCT stage) FROM kept GROUP BY city",
    "SELECT stage, sum(cost, contribution_bounds_per_group => (5, 60)), stddev(cost) FROM kept GROUP BY stage",
    "SELECT sum(cost), median(cost) FROM kept WHERE stage < 2",
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (bounding = L2) city, count(*), sum(cost) FROM kept GROUP BY city",
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (bounding = NORM) stage, count(*), sum(cost), avg(cost) FROM kept "
    "GROUP BY stage",
)
FORMULATIONS: tuple[Formulation, ...] = ("groups_first", "one_row")


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as opened:
        opened.connection.execute(
            "CREATE TABLE kept (person INTEGER UNIQUE, city VARCHAR, cost DOUBLE, stage INTEGER); "
            f"INSERT INTO kept {ROWS}"
        )
        for declaration in POLICY:
            opened.sql(declaration)
        yield opened


def test_values_and_what_bounds_leave_out_are_the_same_to_the_bit(session: dpsql.Session) -> None:
    engine, salt = DuckDBEngine(session.connection), bytes(range(16))
    left_out: list[str] = []
    lost = 0
    for text in QUESTIONS:
        statement = read_statement(text)
        assert isinstance(statement, SelectStatement)
        query, _, _ = session._runner.plan(statement, {"rho": 0.1, "delta": 1e-9}, CURATOR)
        frame, statistics = query.first.frame, query.first.statistics
        assert frame.rows_sql.stored_unit[1:] == ("main", "kept", "person")
        numbers = tuple(one for one in statistics if one.kind not in BESIDE_KINDS)
        listed = session.connection.sql("SELECT 'city ' || i AS key_0 FROM range(5) c(i)").to_arrow_table()
        if frame.public_keys:
            listed = session.connection.sql("SELECT i::INTEGER AS key_0 FROM range(3) r(i)").to_arrow_table()
        texts = [[bounded_sql(frame, numbers, salt, formulation=of) for of in FORMULATIONS]]
        if covered := tuple(one for one in statistics if one.kind in COVERAGE_KINDS):
            texts.append([coverage_sql(frame, covered, salt, has_one_row=one) for one in (False, True)])
        if cuts := [(one.covered, 4) for one in statistics if one.covered and one.kind in LEFT_OUT_KINDS]:
            texts.append([LeftOut(frame, tuple(cuts)).sql(salt, of) for of in FORMULATIONS])
            left_out.append(texts[-1][0])
        for pair in texts:
            found = [
                engine.aggregate(sql, listed_keys=listed, timeout_seconds=None).reveal().to_pylist() for sql in pair
            ]
            assert sorted(map(repr, found[0])) == sorted(map(repr, found[1]))
            assert found[0]
            assert "BY unit" not in pair[1]
            if pair[0] in left_out:
                lost += sum(found[0][0].values())
    assert len(left_out) == 5
    # of values outside of their bounds, not of rows
    assert lost > 0


@pytest.mark.parametrize("bounding", ["", "bounding = NORM, "])
def test_histograms_of_auto_are_the_same_to_the_bit(session: dpsql.Session, bounding: str) -> None:
    text = (
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({bounding}max_groups_contributed = AUTO) city, count(*), "
        "sum(cost, contribution_bounds_per_group => AUTO), sum(stage, contribution_bounds_per_row => AUTO) "
        "FROM kept GROUP BY city"
    )
    if bounding:
        text = (
            "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (bounding = NORM) city, count(*), "
            "sum(cost, contribution_norm => AUTO) FROM kept GROUP BY city"
        )
    statement = read_statement(text)
    assert isinstance(statement, SelectStatement)
    query, _, _ = session._runner.plan(statement, {"rho": 0.1, "delta": 1e-9}, CURATOR)
    kinds = set()
    for asked in query.first.auto:
        question = Question(asked)
        write = partial(unit_histogram_sql, question.frame, question.statistic, bytes(16))
        texts = (write(), write("one_row"))
        found = [session.connection.sql(sql).fetchall() for sql in texts]
        assert sorted(found[0]) == sorted(found[1])
        assert sum(row[-1] for row in found[0]) >= 400
        kinds.add(question.statistic.kind)
    assert kinds == ({"rows_norm", "sum_norm"} if bounding else {"groups", "group_extremes", "row_extremes"})


def _is_bounded(sql: str) -> bool:
    """Return whether a statement reads rows of units that it bounds."""
    return '"kept"' in sql and "BY unit" in sql and "dpsql_empty" not in sql


def test_a_constraint_leaves_bounding_out_of_an_answer(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch_statements(monkeypatch, _is_bounded)
    silence(session)
    expected = "SELECT city, count(*), sum(least(greatest(cost, 0), 500)) FROM kept WHERE person IS NOT NULL GROUP BY 1"
    text = "SELECT city, count(*) AS n, sum(cost) AS total FROM kept GROUP BY city ORDER BY city"
    found = session.sql(text, rho=5.0, delta=1e-3).arrow().to_pylist()
    exact = session.connection.sql(f"{expected} ORDER BY 1").fetchall()
    assert [tuple(row.values()) for row in found] == [(city, n, pytest.approx(total)) for city, n, total in exact]
    assert seen == []
    for question in (text, text.replace("SELECT", "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (bounding = L2)")):
        plan = session.sql(f"FROM dp_explain($${question}$$, rho := 0.1, delta := 1e-3)").arrow().to_pylist()
        assert [row["value"] for row in plan if row["name"] == "rows of a unit"] == [
            "at most 1, by UNIQUE(person): no bound leaves a row out"
        ]


@pytest.mark.parametrize(
    ("made", "source"),
    [
        ("CREATE OR REPLACE TABLE kept AS FROM kept", "kept"),
        ("SET threads = 1", "(SELECT * FROM kept)"),
        # the name of a unique column is no constraint on the unit
        ("CREATE OR REPLACE TABLE kept (person INTEGER, city VARCHAR, cost DOUBLE, stage INTEGER UNIQUE)", "kept"),
        (
            "CREATE OR REPLACE TABLE kept (stage INTEGER, city VARCHAR, cost DOUBLE, person INTEGER, "
            "UNIQUE (person, city))",
            "kept",
        ),
        (
            "CREATE OR REPLACE TABLE kept (stage INTEGER UNIQUE, city VARCHAR, cost DOUBLE, person INTEGER)",
            "kept AS k(person, city, cost, stage)",
        ),
    ],
)
def test_rows_without_the_constraint_are_bounded(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch, made: str, source: str
) -> None:
    seen = watch_statements(monkeypatch, _is_bounded)
    session.connection.execute(made)
    text = f"SELECT city, count(*) FROM {source} GROUP BY city"
    session.sql(text, rho=1.0, delta=1e-3)
    plan = session.sql(f"FROM dp_explain($${text}$$, rho := 0.1, delta := 1e-3)").arrow().to_pylist()
    assert "rows of a unit" not in {row["name"] for row in plan}
    assert seen


def test_rows_are_those_of_the_constraint(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is replaced between the look at its constraint and the reading is read as it was."""
    whole = catalog.unique_by

    def replaced(cursor: Cursor, stored_unit: tuple[str, ...]) -> str:
        found = whole(cursor, stored_unit)
        session.connection.execute(
            "CREATE OR REPLACE TABLE kept AS SELECT 1 AS person, 'city 1' AS city, 1.0::DOUBLE AS cost, 1 AS stage "
            "FROM range(5000)"
        )
        return found

    monkeypatch.setattr(database, "unique_by", replaced)
    silence(session)
    text = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (coverage = FALSE) count(*) AS n FROM kept"
    (row,) = session.sql(text, rho=5.0, delta=1e-3).arrow().to_pylist()
    assert row == {"n": 533}
