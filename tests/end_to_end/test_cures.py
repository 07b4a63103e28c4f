"""What receipts tell people to write is accepted for the query that they are about."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.errors import Span
from dpsql.sql.statements import SelectStatement, read_statement
from tests.cures import Question, cures_of, mended
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

# forms of the SQL that a receipt must give, if it is to give some
BY_QUESTION = {
    "SELECT word, count(*), count(DISTINCT person) FROM visits GROUP BY word": {"options"},
    "SELECT word, avg(v.cost), stddev_pop(v.cost), median(v.cost) FROM visits v GROUP BY word": set(),
    "SELECT count(*), sum(v.cost), avg(v.cost), stddev_pop(v.cost) FROM visits v JOIN names n USING (person)": set(),
    "SELECT sum(cost, contribution_bounds_per_row => (1, 4)) FROM visits": {"argument"},
    "SELECT avg(cost), stddev_pop(cost) FROM visits": set(),
}


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    """Return 600 people with 24 rows of 12 words, of which bounds leave 2 in each of 2."""
    with dpsql.connect(threads=1) as session:
        session.connection.execute(
            "CREATE TABLE names AS SELECT i AS person FROM range(600) t(i);"
            "ALTER TABLE names ADD PRIMARY KEY (person);"
            "CREATE TABLE visits AS SELECT i % 600 AS person, i // 600 % 12 AS word, i % 5 AS cost "
            "FROM range(14400) t(i)"
        )
        session.sql("CALL dp_unit('person', rho_budget := 1000, delta_threshold := 1e-3, delta_conversion := 1e-6)")
        bounds = "max_groups_contributed := 2, max_rows_per_group := 2"
        for table in ("visits", "names"):
            session.sql(f"CALL dp_protect('{table}', unit := 'person', privacy_unit_column := 'person', {bounds})")
        session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 5])")
        yield session


@pytest.mark.parametrize("text", BY_QUESTION)
def test_what_a_receipt_says_to_write_is_accepted(session: dpsql.Session, text: str) -> None:
    session.sql("CALL dp_new_version('visits')")
    session._runner.noise_source = seeded_noise(3)
    receipt = receipt_of(session.sql(text, rho=5))
    sentences = [*receipt.notes, *(one.advice for one in receipt.coverage), *map(str, receipt.coverage)]
    found = {(cure.form, cure.sql): cure for sentence in sentences for cure in cures_of(sentence)}
    assert {form for form, _ in found} >= BY_QUESTION[text]
    for cure in found.values():
        start = text.index(cure.sql[0].partition("(")[0]) if cure.form in ("call", "argument") else 0
        question = mended(Question(text, {"rho": 5}), cure, Span(1, start + 1, start, text.index("(", start) + 1))
        statement = read_statement(question.text)
        assert isinstance(statement, SelectStatement)
        assert session._runner.plan(statement, question.options, CURATOR)


@pytest.mark.parametrize(
    "call",
    [
        "count(*)",
        "count(*, contribution_bounds_per_group => (0, 1))",
        "count(cost)",
        "count(*) FILTER (WHERE cost > 2)",
        "sum(cost)",
        "sum(cost, contribution_bounds_per_row => (0, 4))",
        "count(*) AS n",
        'sum(cost) AS "a sum"',
    ],
)
def test_the_estimate_that_a_line_offers_can_be_pasted(session: dpsql.Session, call: str) -> None:
    """The end of the line "whole" is a column for a number with a name, and comes after a number without one."""
    session.sql("CALL dp_new_version('visits')")
    answer = session.sql(f"SELECT {call} FROM visits", rho=5)
    (line,) = (one for one in str(answer).splitlines() if one.startswith("whole "))
    offered = line.partition(": ")[2]
    pasted = f"{call} {offered.removeprefix('add ')}" if offered.startswith("add AS ") else f"{call}, {offered}"
    ((number, whole),) = session.sql(f"SELECT {pasted} FROM visits", rho=5).fetchall()
    # the numbers are those of the first answer, and so is the factor
    assert number == answer.fetchall()[0][0]
    (lost,) = receipt_of(answer).left_out
    assert whole == pytest.approx(number * lost.found.factor, rel=1e-3)
