"""Everyday questions: answers without noise are the rows of DuckDB, and refusals charge nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from dpsql.errors import DpsqlError
from tests.end_to_end.everyday_form import EverydayText
from tests.end_to_end.everyday_schema import LEVEL, assert_equal_rows, create_tables
from tests.end_to_end.everyday_texts import TEXTS

REFUSED_FOR_GOOD = {"S15": "min", "C27": "lag", "C30": "string_agg", "W45": "star"}
"""Texts that ask for rows of one person, with a word of the refusal."""
REFUSED_TODAY = {
    "W34": "regexp_replace of every match",
    "W39": "regexp_extract where two parts of a pattern may begin alike",
}
"""Texts that are not answered yet, each with the thing that is missing."""
ANSWERED = tuple(text for text in TEXTS if text.number not in REFUSED_FOR_GOOD | REFUSED_TODAY)


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        create_tables(session)
        yield session


def test_there_are_fifteen_texts_of_each_subject() -> None:
    assert [text.number for text in TEXTS] == [f"{'SCWM'[nr // 15]}{nr + 1:02}" for nr in range(60)]
    assert len(REFUSED_FOR_GOOD) + len(REFUSED_TODAY) <= 7


@pytest.mark.parametrize("text", ANSWERED, ids=lambda text: text.name)
def test_an_answer_has_the_rows_of_duckdb(session: dpsql.Session, text: EverydayText) -> None:
    right = session.connection.execute(text.plain)
    names, rows = [column[0] for column in right.description], right.fetchall()
    assert rows
    assert_equal_rows(session.sql(text.sql, **LEVEL).fetchall(), rows, names, text.within, ordered=text.ordered)


@pytest.mark.parametrize("text", [text for text in TEXTS if text not in ANSWERED], ids=lambda text: text.name)
def test_a_refusal_is_free(session: dpsql.Session, text: EverydayText) -> None:
    assert session.connection.execute(text.plain).fetchall()
    before = session.sql("FROM dp_budget()").fetchall()
    with pytest.raises(DpsqlError, match=REFUSED_FOR_GOOD.get(text.number)):
        session.sql(text.sql, **LEVEL)
    assert session.sql("FROM dp_budget()").fetchall() == before
