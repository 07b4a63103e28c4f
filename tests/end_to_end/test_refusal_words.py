"""Refusals name what was asked: options, tables of joins, declared names, and epsilon where epsilon was given."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from dpsql.errors import CalibrationError, ParseError, SchemaError, UnsupportedQueryError

PRIVATE = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS"


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(
            "CREATE SCHEMA ops; CREATE TABLE visits (pid INTEGER, city VARCHAR, cost DOUBLE);"
            'CREATE TABLE stays (pid VARCHAR); CREATE TABLE ops."Odd name" (pid INTEGER)'
        )
        session.sql("CALL dp_unit('person', rho_budget := 100, delta_threshold := 0.1, delta_conversion := 1e-6)")
        for table in ("visits", "stays", 'ops."Odd name"'):
            session.sql(f"CALL dp_protect('{table}', unit := 'person', privacy_unit_column := 'pid')")
        yield session


def codes(session: dpsql.Session, text: str, **options: Any) -> list[str]:
    """Return the codes of the reasons for which a text is refused."""
    with pytest.raises(UnsupportedQueryError) as caught:
        session.sql(text, **options)
    return [one.code for one in caught.value.refusals]


@pytest.mark.parametrize("aggregate", ["median(cost)", "count(DISTINCT cost)", "sum(cost), median(cost)"])
def test_no_bounds_are_asked_for_where_bounds_answer_nothing(session: dpsql.Session, aggregate: str) -> None:
    text = f"{PRIVATE} (bounding = L2, rho = 1) city, {aggregate} FROM visits GROUP BY city"
    assert codes(session, text) == ["mechanism"]
    session.sql(f"FROM dp_explain($${text.replace('bounding = L2, ', '')}$$)")


def test_bounds_are_asked_for_beside_a_reason_that_auto_does_not_mend(session: dpsql.Session) -> None:
    text = f"{PRIVATE} (other_group = 'rest', bounding = L2, max_groups_contributed = 2, rho = 1) city, median(cost)"
    assert "mechanism" in codes(session, f"{text} FROM visits GROUP BY city")
    assert codes(session, f"{PRIVATE} (top_k = 3, rho = 1) city, sum(cost) FROM visits GROUP BY city") == [
        "bounds_missing"
    ]


@pytest.mark.parametrize("level", [0, -1, math.nan, math.inf])
@pytest.mark.parametrize("name", ["epsilon", "rho"])
def test_a_wrong_level_is_one_reason(session: dpsql.Session, name: str, level: float) -> None:
    assert codes(session, "SELECT count(*) FROM visits", **{name: level}) == ["option"]


def test_a_wrong_level_in_the_text_is_one_reason(session: dpsql.Session) -> None:
    for level in ("0", "-1", "1 + 1"):
        assert codes(session, f"{PRIVATE} (epsilon = {level}) count(*) FROM visits") == ["option"]


@pytest.mark.parametrize(
    ("asked", "error", "told"),
    [
        ("FROM dp_query($$ SHOW TABLES $$)", ParseError, r"dp_query.* take a SELECT\. SHOW TABLES is a statement of"),
        ("FROM dp_describe($$ FROM dp_budget() $$)", ParseError, r"dp_query.* take a SELECT\. dp_budget\(\) is a"),
        (
            "SELECT count(*) FROM visits AS v JOIN stays USING (pid)",
            UnsupportedQueryError,
            "v.pid is of type I.*d stays.pid of type V",
        ),
        ('SELECT count(*) FROM ops."odd nam"', SchemaError, r'Did you mean ops\."Odd name"\?'),
        (
            f"{PRIVATE} (epsilon = 1e-9, delta = 1e-9) count(*) FROM visits",
            CalibrationError,
            "^epsilon = 1e-09 is too s",
        ),
        (f"{PRIVATE} (rho = 1e-12) count(*) FROM visits", CalibrationError, "^rho = 1e-12 is too small"),
    ],
)
def test_a_refusal_names_what_was_asked(
    session: dpsql.Session, asked: str, error: type[dpsql.DpsqlError], told: str
) -> None:
    with pytest.raises(error, match=told):
        session.sql(asked)
