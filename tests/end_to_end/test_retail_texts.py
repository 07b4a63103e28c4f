"""Reports of several parts: answers without noise are the rows of DuckDB, and refusals charge nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from dpsql.errors import UnsupportedQueryError
from tests.end_to_end.retail_schema import LEVEL, assert_equal_rows, create_tables
from tests.end_to_end.retail_texts import TEXTS, RetailText

ANSWERED = tuple(text for text in TEXTS if text.right != "refused")
REFUSED = tuple(text for text in TEXTS if text.right == "refused")


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        create_tables(session)
        yield session


def test_there_are_thirty_texts() -> None:
    assert [text.name.split()[0] for text in TEXTS] == [f"R{number:02}" for number in range(1, 31)]
    assert len(ANSWERED) >= 28


@pytest.mark.parametrize("text", ANSWERED, ids=lambda text: text.name)
def test_an_answer_has_the_rows_of_duckdb(session: dpsql.Session, text: RetailText) -> None:
    right = session.connection.execute(text.sql).fetchall()
    assert right
    assert_equal_rows(session.sql(text.sql, **LEVEL).fetchall(), right, ordered=text.right == "order")


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text.name)
def test_a_refusal_is_free(session: dpsql.Session, text: RetailText) -> None:
    assert session.connection.execute(text.sql).fetchall()
    before = session.sql("FROM dp_budget()").fetchall()
    with pytest.raises(UnsupportedQueryError):
        session.sql(text.sql, **LEVEL)
    assert session.sql("FROM dp_budget()").fetchall() == before
