"""Questions on tables of Spark: the answers of one DuckDB to the bit, at the same price."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from dpsql.engine.spark import database
from tests.end_to_end.test_parts import LARGE, QUESTIONS, TABLES, WITH, answered, declare
from tests.spark.conftest import to_spark

ALL = ["visits", "stays", "meals", "people", "cities"]
KEY = "ALTER TABLE people ADD PRIMARY KEY (patient);"
"""A constraint that Spark does not have. Without it a unit may have several rows, and their coverage is measured."""


@pytest.fixture(scope="module")
def both(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dpsql.Session]]:
    """One database, and the same tables in Spark."""
    folder = tmp_path_factory.mktemp("tables")
    rows, people = LARGE
    with dpsql.connect() as whole:
        whole.connection.execute(TABLES.replace(KEY, "").format(rows=rows, people=people))
        to_spark(whole.connection, spark, folder / "files", ALL)
        with dpsql.connect(spark=spark, state=folder / "clinic.dpsql") as session:
            yield [declare(whole), declare(session)]


@pytest.mark.parametrize("name", QUESTIONS)
def test_spark_answers_as_one_database(name: str, both: list[dpsql.Session]) -> None:
    whole, of_spark = (answered(session, QUESTIONS[name]) for session in both)
    assert of_spark == whole
    spent = [session.sql("FROM dp_budget()").fetchall() for session in both]
    assert spent[0] == spent[1]


def test_rows_that_are_many_are_added_up_in_spark(both: list[dpsql.Session], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MOST_ROWS", 20)
    for session in both:
        session.sql("CALL dp_new_version('visits')")
    for name in ("sums", "distinct values"):
        whole, of_spark = (answered(session, QUESTIONS[name]) for session in both)
        assert of_spark == whole


def test_what_reads_raw_rows_is_refused_by_name(both: list[dpsql.Session]) -> None:
    session = both[1]
    before = session.sql("FROM dp_budget()").fetchall()
    sketched = WITH.format("mechanism = MISRA_GRIES, sketch_size = 50")
    with pytest.raises(dpsql.SchemaError, match="MISRA_GRIES"):
        session.sql(f"{sketched} code, count(DISTINCT patient) FROM visits GROUP BY code", rho=0.5, delta=1e-6)
    with pytest.raises(dpsql.EngineError, match="raw rows of tables in Spark"):
        session.sql("FROM dp_check('visits')")
    assert session.sql("FROM dp_budget()").fetchall() == before


def test_an_answer_is_free_when_it_is_asked_again(both: list[dpsql.Session]) -> None:
    session = both[1]
    text = "SELECT city, count(*) AS n FROM visits WHERE code < 7 GROUP BY city"
    first = session.sql(text, rho=0.1, delta=1e-6)
    again = session.as_analyst("ana").sql(text, rho=0.1, delta=1e-6)
    assert again.receipt is not None
    assert (again.fetchall(), again.receipt.charged_rho) == (first.fetchall(), 0.0)
