"""bool_or and bool_and from text to frames: what is told, filtered, priced, drawn and read again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import silence

QUERY = """
    SELECT city, bool_or(urgent) AS some, bool_and(urgent) AS every, dp_interval_low(some) AS low
    FROM visits GROUP BY city
"""


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    """100 patients in each of four cities: urgent are none, half of them, all, and in city 3 it is not known."""
    with dpsql.connect() as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT p AS patient, p % 4 AS city, "
            "CASE p % 4 WHEN 0 THEN false WHEN 1 THEN p % 8 = 1 WHEN 2 THEN true END AS urgent, "
            "CASE p % 4 WHEN 0 THEN 'no' WHEN 2 THEN 'yes' ELSE 'perhaps' END AS said FROM range(400) u(p)"
        )
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "privacy_unit_column := 'patient', max_groups_contributed := 1, "
            "max_rows_per_group := 1, rho_budget := 1000, delta_threshold := 0.5, delta_conversion := 1e-6)"
        )
        session.sql("CALL dp_domain('visits', 'city', keys := [0, 1, 2, 3])")
        silence(session)
        yield session


def test_what_is_there_is_told_and_nothing_else(session: dpsql.Session) -> None:
    rows = [row[:3] for row in session.sql(QUERY, rho=1)]
    assert rows == [(0, None, False), (1, True, False), (2, True, None), (3, None, None)]


def test_a_group_without_values_is_null_as_in_duckdb(session: dpsql.Session) -> None:
    exact = session.connection.execute("SELECT bool_or(urgent) FROM visits WHERE city = 3").fetchall()
    assert session.sql("SELECT bool_or(urgent) FROM visits WHERE city = 3", rho=1).fetchall() == exact == [(None,)]


def test_it_is_told_where_the_interval_of_the_number_of_units_is_above_0(session: dpsql.Session) -> None:
    for _, some, _, low in session.sql(QUERY, rho=0.001):
        assert (some is True) == (low > 0)


def test_it_filters_and_orders_the_answer(session: dpsql.Session) -> None:
    filtered = "SELECT city FROM visits GROUP BY city HAVING bool_or(urgent)"
    assert session.sql(filtered, rho=1).fetchall() == [(1,), (2,)]
    ordered = "SELECT city FROM visits GROUP BY city ORDER BY bool_and(urgent) NULLS FIRST, city DESC"
    assert session.sql(ordered, rho=1).fetchall() == [(3,), (2,), (1,), (0,)]


def test_it_costs_what_the_number_of_units_costs(session: dpsql.Session) -> None:
    count = "SELECT city, count(DISTINCT patient) FILTER (WHERE urgent) AS n FROM visits GROUP BY city"
    assert receipt_of(session.sql(count, rho=1)).charged_rho == 1
    assert receipt_of(session.sql("SELECT city, bool_or(urgent) AS b FROM visits GROUP BY city", rho=1)).reused
    filtered = "SELECT city, bool_or(TRUE) FILTER (WHERE urgent AND TRUE) AS b FROM visits GROUP BY city"
    assert not receipt_of(session.sql(filtered, rho=1)).reused


def test_a_value_that_fails_is_none(session: dpsql.Session) -> None:
    text = "SELECT city, bool_and(CAST(said AS BOOLEAN)) AS b FROM visits GROUP BY city"
    assert [b for _, b in session.sql(text, rho=1)] == [False, None, None, None]


def test_of_what_groups_leave_out_it_knows_nothing(session: dpsql.Session) -> None:
    """A unit in many groups counts in some of them: what it has elsewhere is not told."""
    session.connection.execute("DELETE FROM visits; INSERT INTO visits SELECT 1, c, true, '' FROM range(4) v(c)")
    assert [some for _, some, *_ in session.sql(QUERY, rho=20)].count(True) == 1


def test_tables_pictures_and_frames_hold_it(session: dpsql.Session) -> None:
    result = session.sql(QUERY, rho=1)
    assert result.df()["some"].tolist() == [None, True, True, None]
    assert result.pl()["some"].to_list() == [None, True, True, None]
    assert "True" in result._repr_html_()
    with pytest.raises(dpsql.SchemaError):
        result.plot("some")
    (column, *_) = receipt_of(result).columns
    assert (column.name, column.bounds, column.linf) == ("some", (0.0, 1.0), 0.5)
    assert any("truth value" in note for note in receipt_of(result).notes)


def test_grouping_sets_and_a_row_for_other_groups(session: dpsql.Session) -> None:
    rolled = "SELECT city, bool_or(urgent) AS b FROM visits GROUP BY ROLLUP (city)"
    assert session.sql(rolled, rho=1).fetchall()[-1] == (None, True)
    grouped = "SELECT said, bool_or(urgent) AS b FROM visits GROUP BY said"
    assert ("others", None) in session.sql(grouped, rho=1, delta=1e-3, other_group="others").fetchall()


@pytest.mark.parametrize("call", ["bool_or(1)", "bool_and(said)", "bool_or(*)", "bool_or(urgent, weight => 0)"])
def test_what_it_does_not_take_is_refused(session: dpsql.Session, call: str) -> None:
    with pytest.raises(dpsql.UnsupportedQueryError):
        session.sql(f"SELECT {call} FROM visits", rho=1)
