"""Runs the golden records, and checks that records and the pages of SQL leave nothing of the surface out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpsql.mechanism.registry import MECHANISMS
from dpsql.model.private_query import OPTION_NAMES
from dpsql.model.refusals import CODES
from dpsql.session.declare import ARGUMENTS
from dpsql.sql.clauses import INTERVAL_FUNCTIONS, NAMED_ARGUMENTS, PRIVATE_AGGREGATES
from dpsql.sql.options import GROUP_SELECTION
from dpsql.sql.row_rules import FUNCTION_EXAMPLES
from dpsql.sql.statements import DECLARATIONS, TABLE_FUNCTIONS
from dpsql.sql.windows import RESULT_FUNCTIONS
from tests.golden import files
from tests.golden.fresh_session import FreshSession
from tests.golden.records import PLANNED, fresh_session, key_of, outcome
from tests.sql.golden_records import DIRECTIVES, Clinic, Record, records

RECORDS = records()
DOCS = Path(__file__).parents[2] / "docs"
PAGES = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference.md", *DOCS.glob("sql*.md")))
DECLARATION_ARGUMENTS = sorted({"analysts"}.union(*ARGUMENTS.values()))
CLAUSES = (
    "FROM", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN", "NATURAL JOIN", "ON", "USING",
    "WITH", "UNION", "UNION ALL", "DISTINCT", "EXISTS", "NOT EXISTS", "IN (SELECT", "NOT IN (SELECT", "EXCLUDE",
    "WHERE", "GROUP BY", "GROUP BY ALL", "ROLLUP", "CUBE", "GROUPING SETS", "FILTER", "HAVING", "OVER",
    "PARTITION BY", "QUALIFY", "ORDER BY", "NULLS FIRST", "LIMIT", "OFFSET",
)  # fmt: skip
REFUSED_CLAUSES = (
    "LATERAL", "DISTINCT ON", "WINDOW", "USING SAMPLE", "PIVOT", "ASOF JOIN", "POSITIONAL JOIN", "CROSS JOIN",
    "WITH RECURSIVE", "EXCEPT", "INTERSECT", "VALUES", "ANY (SELECT", "> (SELECT", "IGNORE NULLS",
)  # fmt: skip
FUNCTIONS = tuple(dict.fromkeys(re.match(r"\w+", example)[0] for example in FUNCTION_EXAMPLES))  # type: ignore[index]


@pytest.fixture(scope="module")
def clinic() -> Iterator[Clinic]:
    clinic = Clinic()
    yield clinic
    clinic.close()


@pytest.fixture(scope="module")
def answers() -> Iterator[FreshSession]:
    answers = fresh_session()
    yield answers
    answers.close()


@pytest.mark.parametrize("record", RECORDS, ids=str)
def test_record(record: Record, clinic: Clinic, answers: FreshSession) -> None:
    found, seen = outcome(record, clinic, answers)
    assert found == record.expected
    files.check(record.file, key_of(record), seen)


# of each file the second query that is planned: the first ones are the simplest
SAMPLE = [
    next(itertools.islice((one for one in RECORDS if one.file == file and one.directive in PLANNED), 1, None), None)
    for file in sorted({record.file for record in RECORDS})
]


@pytest.mark.parametrize("record", list(filter(None, SAMPLE)), ids=str)
def test_a_session_answers_as_a_record_was_planned(record: Record, clinic: Clinic, answers: FreshSession) -> None:
    _, planned = outcome(record, clinic, answers)
    assert planned
    assert planned == answers.answer(record.sql, record.params, record.options)


@pytest.mark.parametrize("record", list(filter(None, SAMPLE)), ids=str)
def test_a_record_is_planned_a_second_time_as_the_first(record: Record, clinic: Clinic) -> None:
    assert clinic.plan(record) == clinic.plan(record)


@pytest.mark.parametrize("file", sorted({record.file for record in RECORDS}))
def test_a_golden_file_holds_no_record_that_is_gone(file: str) -> None:
    assert set(files.read(file).parts) <= {key_of(record) for record in RECORDS if record.file == file}


def _stands_in(word: str, text: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) is not None


@pytest.mark.parametrize("directive", DIRECTIVES)
def test_every_directive_is_used(directive: str) -> None:
    assert any(record.directive == directive for record in RECORDS)


@pytest.mark.parametrize(
    "word",
    [*DECLARATIONS, *TABLE_FUNCTIONS, *DECLARATION_ARGUMENTS, *OPTION_NAMES, *GROUP_SELECTION,
     # no unit of the records has composition = 'pure'
     *(one.word for one in MECHANISMS if one.word != "LAPLACE"),
     *NAMED_ARGUMENTS, *PRIVATE_AGGREGATES, *INTERVAL_FUNCTIONS, *FUNCTIONS, *RESULT_FUNCTIONS.values()],
)  # fmt: skip
def test_every_word_of_the_surface_is_documented_and_answered(word: str) -> None:
    answered = [record.sql for record in RECORDS if record.directive != "refuse"]
    options = [name for record in RECORDS if record.directive != "refuse" for name in record.options]
    assert _stands_in(word, PAGES)
    assert any(_stands_in(word, sql) for sql in [*answered, *options])


@pytest.mark.parametrize("clause", CLAUSES)
def test_every_clause_is_answered(clause: str) -> None:
    assert any(clause in record.sql.upper() for record in RECORDS if record.directive in ("exact", "plan"))


@pytest.mark.parametrize("clause", REFUSED_CLAUSES)
def test_every_clause_without_a_private_form_is_refused(clause: str) -> None:
    assert any(clause in record.sql.upper() for record in RECORDS if record.directive == "refuse")


def test_there_are_records_enough() -> None:
    assert len(RECORDS) >= 250
    assert sum(record.directive == "refuse" for record in RECORDS) >= 80


@pytest.mark.parametrize("code", CODES)
def test_every_refusal_is_documented_and_met(code: str) -> None:
    assert f"`{code}`" in PAGES
    assert any(f"{code}@" in part for record in RECORDS if record.directive == "refuse" for part in record.expected)


def test_refusals_of_a_record_are_known() -> None:
    for record in RECORDS:
        if record.directive == "refuse":
            codes = {word.partition("@")[0] for word in record.expected[0].split()[1:]}
            assert codes <= {*CODES, ""}, record
