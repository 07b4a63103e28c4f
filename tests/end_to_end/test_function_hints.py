"""Each function without a private form has one refusal, with a hint that is accepted, and this for every name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from sqlglot import exp

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.errors import DpsqlError, Refusal, UnsupportedQueryError
from dpsql.operations.dialect import AGGREGATE_NODES, CALLED_BY_NAME, parse_statement
from dpsql.plan.aggregates.registry import BY_NAME
from dpsql.sql.clauses import OTHER_AGGREGATES
from dpsql.sql.function_hints import AGGREGATE_HINTS, ROW_HINTS, Hint
from dpsql.sql.row_rules import FUNCTION_EXAMPLES
from dpsql.sql.statements import SelectStatement, read_statement
from tests.cures import Question, cures_of, mended

MOST_LETTERS = 120
"""Most letters of message and hint together, for arguments that are short names."""
CLASSES = {name for name, one in vars(exp).items() if isinstance(one, type) and issubclass(one, exp.Expr)}
"""Names of classes of the parser: none is a word of a message."""
WORDS = {"All", "Any", "Case", "Column", "Join", "Null", "Table", "Values", "Add", "Use", "Filter", "Group", "List"}
"""Those that are words of English, too."""
ARGUMENTS = {
    "VARCHAR": "city",
    "DATE": "day",
    "TIMESTAMP": "ts",
    "INTERVAL": "INTERVAL 1 DAY",
    "BOOLEAN": "n > 3",
    "DOUBLE": "cost",
    "FLOAT": "cost",
    "T": "cost",
    "ANY": "cost",
}
"""Plausible arguments by types of parameters; whole numbers are ``n``."""


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(
            "CREATE TABLE visits (pid INTEGER, city VARCHAR, code VARCHAR, day DATE, ts TIMESTAMP, cost DOUBLE, n INTEGER)"
        )
        session.sql("CALL dp_unit('person', rho_budget := 100, delta_threshold := 0.1, delta_conversion := 1e-6)")
        bounds = "max_groups_contributed := 2, max_rows_per_group := 3"
        session.sql(f"CALL dp_protect('visits', unit := 'person', privacy_unit_column := 'pid', {bounds})")
        for column in ("cost", "n"):
            session.sql(f"CALL dp_domain('visits', '{column}', bounds := [0, 100])")
        yield session


def error_of(session: dpsql.Session, text: str) -> DpsqlError | None:
    """Return the error of a text that is planned. Return None if it has a plan."""
    try:
        statement = read_statement(text)
        assert isinstance(statement, SelectStatement)
        session._runner.plan(statement, {"rho": 0.1}, CURATOR)
    except DpsqlError as error:
        return error
    return None


def refusals_of(session: dpsql.Session, text: str) -> tuple[Refusal, ...]:
    error = error_of(session, text)
    assert error is None or isinstance(error, UnsupportedQueryError), f"{text}: {error}"
    return error.refusals if error else ()


def with_aggregate(call: str) -> str:
    return f"SELECT {call} FROM visits"


def with_rows(call: str) -> str:
    """Return a text with a call in a condition of rows, where a date takes an interval."""
    shown = (
        f"(day + {call})" if call.startswith(("to_days", "to_weeks", "to_months", "to_q", "to_y", "to_dec")) else call
    )
    shown = f"(ts + {call})" if call.startswith(("to_hours", "to_minutes", "to_seconds", "to_cent")) else shown
    return f"SELECT count(*) FROM visits WHERE {shown} IS NOT NULL"


def text_of(row: Hint) -> str:
    return with_aggregate(row.example) if row in AGGREGATE_HINTS else with_rows(row.example)


def rows_with_text() -> list[Hint]:
    return [row for row in (*AGGREGATE_HINTS, *ROW_HINTS) if row.hint.startswith("Write ")]


@pytest.mark.parametrize("row", rows_with_text(), ids=lambda row: row.names.split()[0])
def test_a_hint_is_accepted_in_place_of_its_example(session: dpsql.Session, row: Hint) -> None:
    text = text_of(row)
    (refusal,) = refusals_of(session, text)
    cures = list(cures_of(refusal.hint))
    assert cures, refusal.hint
    for cure in cures:
        question = mended(Question(text), cure, refusal.span)
        assert error_of(session, question.text) is None, question.text
