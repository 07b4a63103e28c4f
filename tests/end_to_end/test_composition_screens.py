"""Screens and receipts of texts with several private parts, as a reader sees them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from tests.end_to_end.composed import DECLARED, TABLES, TWO_UNITS, receipt_of
from tests.end_to_end.prepared import with_declarations
from tests.noise_sources import seeded_noise

MORE_TABLES = "CREATE TABLE calls AS SELECT (i % 400)::INT AS patient, 1 AS minutes FROM range(8000) t(i);"
MORE_DECLARED = (
    "CALL dp_protect('calls', unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 1, "
    "max_rows_per_group := 2)",
)
BY_CITY = "SELECT city, count(*) AS n FROM visits GROUP BY city"
BY_WARD = "SELECT ward, count(*) AS n FROM visits GROUP BY ward"
SHARE = "SELECT (SELECT count(*) FROM visits WHERE cost > 40) / (SELECT count(*) FROM visits) AS share"
CHANNELS = "SELECT 'visits' AS what, count(*) AS n FROM visits UNION ALL SELECT 'calls', count(*) FROM calls"
PAIR = "SELECT (SELECT count(*) FROM visits) AS visits, (SELECT count(*) FROM calls) AS calls"
INSIDE = "SELECT count(*) AS n FROM visits WHERE cost > (SELECT avg(cost) FROM visits)"


@pytest.fixture
def clinic() -> Iterator[dpsql.Session]:
    """A clinic whose noise is the same in each test. Of calls, bounds leave out nine of ten."""
    with with_declarations(TABLES + MORE_TABLES, (*DECLARED, *MORE_DECLARED)) as session:
        session._runner.noise_source = seeded_noise(7)
        yield session


def _lines(answer: dpsql.Result) -> list[str]:
    """Return the lines below a printed answer."""
    return [line for line in answer.printed().splitlines() if line[:1].isalpha()]


def _receipt(answer: dpsql.Result) -> list[str]:
    return [line[9:] for line in str(receipt_of(answer)).splitlines()]


def _cells(answer: dpsql.Result) -> list[list[str]]:
    """Return the cells of the rows of a printed answer."""
    rows = [line for line in answer.printed().splitlines() if line.startswith("│")][2:]
    return [[cell.strip() for cell in row.strip("│").split("│")] for row in rows]


def test_a_quotient_has_no_interval(clinic: dpsql.Session) -> None:
    answer = clinic.sql(SHARE, epsilon=1)
    assert _cells(answer) == [["0.5821018062397373"]]
    assert _lines(answer) == [
        "error   no interval for share",
        "price   epsilon 1 at delta 0.0001; spent so far: epsilon 1.36 of 1212",
        "notes   5, in answer.receipt",
    ]


def test_the_warning_about_one_part_names_it(clinic: dpsql.Session) -> None:
    answer = clinic.sql(CHANNELS, epsilon=1)
    assert _lines(answer)[:3] == [
        "too low  (part 2): at least 670, probably 770 or more rows of busy patients are left out",
        "whole    about 1.94 × the numbers of (part 2), or more: dp_unbounded(n)",
        "error    ± covers the noise with 95 % probability, not what is left out",
    ]
    assert "errors differ by part; the error of a column is the largest of them" in _receipt(answer)


def test_a_number_that_is_too_low_stands_beside_one_that_is_not(clinic: dpsql.Session) -> None:
    answer = clinic.sql(PAIR, epsilon=1)
    ((visits, calls),) = _cells(answer)
    assert calls.startswith("≥")
    assert not visits.startswith("≥")
    assert "calls of (part 2)" in _lines(answer)[1]


def test_rows_are_compared_with_the_number_that_the_receipt_shows(clinic: dpsql.Session) -> None:
    answer = clinic.sql(INSIDE, epsilon=1)
    (text,) = [line for line in _receipt(answer) if line.startswith("part 2 of the text")]
    value = text.rpartition(" > ")[2]
    float(value)
    assert text == f'part 2 of the text is SELECT count(*) AS "n" FROM "visits" WHERE "cost" > {value}'
    compared = f'rows of part 2 are compared with {value}, a noisy number: SELECT avg("cost") FROM "visits"'
    assert compared in _receipt(answer)


def test_amounts_of_two_units_are_the_largest(clinic: dpsql.Session) -> None:
    answer = clinic.sql(TWO_UNITS, epsilon=1)
    price = "price   epsilon 1 at delta 0.0001; at most this for each unit (patient and nurse)"
    assert price in _lines(answer)
    receipt = _receipt(answer)
    assert 'part 1: rows where "patient" is NULL are left out' in receipt
    assert 'part 2: rows where "nurse" is NULL are left out' in receipt
    assert "rows of one unit in one group beyond 2 rows are scaled down to 2 rows" in receipt


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT ward, n, rank() OVER (ORDER BY n DESC) AS place FROM ({BY_WARD}) JOIN wards USING (ward)",
        f"SELECT * FROM ({BY_WARD}) UNION ALL SELECT -1, count(*) FROM visits",
        f"SELECT n FROM ({BY_WARD}) WHERE n > (SELECT avg(cost) FROM visits)",
    ],
)
def test_a_source_without_an_alias_keeps_its_intervals(clinic: dpsql.Session, text: str) -> None:
    assert any("±" in cell for row in _cells(clinic.sql(text, rho=1)) for cell in row)


@pytest.mark.parametrize(
    "end", ["ORDER BY n DESC LIMIT 2", "WHERE n > 10", "QUALIFY rank() OVER (ORDER BY n) = 1"], ids=str.split
)
def test_rows_that_the_text_picks_have_less_probability(clinic: dpsql.Session, end: str) -> None:
    answer = clinic.sql(f"SELECT w.name, a.n FROM ({BY_WARD}) a JOIN wards w ON w.ward = a.ward {end}", rho=1)
    assert "less for rows that the outer query picks" in " ".join(_lines(answer))


def test_names_from_a_table_pick_nothing(clinic: dpsql.Session) -> None:
    text = f"SELECT w.name, a.n FROM ({BY_WARD}) a JOIN wards w ON w.ward = a.ward WHERE w.beds > 10 ORDER BY n"
    assert "less for" not in " ".join(_lines(clinic.sql(text, rho=1)))


def test_numbers_that_are_not_shown_have_no_width(clinic: dpsql.Session) -> None:
    lines = _lines(clinic.sql(f"SELECT name FROM wards WHERE name NOT IN (SELECT city FROM ({BY_CITY}))", rho=1))
    assert lines[0].startswith("null    NULL (or 0 for it), and rows of EXCEPT")
    assert not any(line.startswith("error") for line in lines)


def test_a_number_that_replaces_null_has_no_interval(clinic: dpsql.Session) -> None:
    text = f"SELECT w.name, coalesce(a.n, 0) AS n FROM wards w LEFT JOIN ({BY_CITY}) a ON a.city = w.name"
    assert "error   no interval for n" in _lines(clinic.sql(text, rho=1))


def test_a_number_that_is_shown_twice_has_two_errors(clinic: dpsql.Session) -> None:
    text = f"WITH a AS ({BY_WARD}) SELECT a.n, b.n AS after FROM a JOIN a b ON b.ward = a.ward + 1"
    receipt = receipt_of(clinic.sql(text, rho=1))
    assert [column.name for column in receipt.columns] == ["n", "after"]


def test_a_statistic_of_two_parts_counts_once(clinic: dpsql.Session) -> None:
    other = "SELECT ward, count(*) AS n, sum(cost) AS cost FROM visits GROUP BY ward"
    answer = clinic.sql(f"SELECT a.n, b.cost FROM ({BY_WARD}) a JOIN ({other}) b USING (ward)", rho=1)
    receipt = receipt_of(answer)
    assert receipt.rho == pytest.approx(receipt.charged_rho, abs=1e-8)
    assert receipt.rho < sum(one.receipt.rho for one in receipt.sets) - 0.1


def test_prices_of_grouping_sets_add_up_to_that_of_their_part(clinic: dpsql.Session) -> None:
    rolled = "SELECT ward, count(*) AS n FROM visits GROUP BY ROLLUP (ward)"
    text = f"SELECT r.n, s.nights FROM ({rolled}) r CROSS JOIN (SELECT count(*) AS nights FROM calls) s"
    whole, *sets, calls = receipt_of(clinic.sql(text, rho=1)).sets
    assert [one.keys for one in (whole, *sets, calls)] == [
        ("part 1",),
        ('part 1, "ward"',),
        ("part 1, all rows",),
        ("part 2",),
    ]
    assert all(one.receipt.charged_rho == pytest.approx(one.receipt.rho) for one in sets)
    assert sum(one.receipt.charged_rho for one in sets) == pytest.approx(whole.receipt.charged_rho) == 0.5


def test_a_plan_says_which_part_is_which(clinic: dpsql.Session) -> None:
    rows = clinic.sql(f"FROM dp_explain('{INSIDE}', epsilon := 1)").fetchall()
    assert [row for row in rows if row[1] == "query"] == [
        ("part 1", "query", 'SELECT avg("cost") FROM "visits"'),
        ("part 2", "query", 'SELECT count(*) AS "n" FROM "visits" WHERE "cost" > (SELECT avg("cost") FROM "visits")'),
    ]
