"""Plans, receipts, refusals and budgets tell a question by half widths in half widths."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.receipts import receipt_of

TABLE = "CREATE TABLE visits AS SELECT i AS patient, 1 + i % 3 AS city, i % 100 AS cost FROM range(300) t(i)"
DECLARED = (
    "CALL dp_unit('patient', epsilon_budget := 3, delta_budget := 1e-6)",
    "CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 1, "
    "max_rows_per_group := 1, coverage := FALSE)",
    "CALL dp_domain('visits', 'cost', bounds := [0, 100])",
    "CALL dp_analyst('ana', rho_limit := 0.05)",
    "CALL dp_analyst('bob', budget_part := 0.3)",
)
COUNTS = "city, count(*) AS n FROM visits WHERE cost <> {} GROUP BY city"
ROLLUP = COUNTS.replace("GROUP BY city", "GROUP BY ROLLUP (city)")
TWO = "count(*) AS n, sum(cost) AS c FROM visits WHERE cost <> {}"


@pytest.fixture(scope="module")
def declared() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(TABLE)
        for statement in DECLARED:
            session.sql(statement)
        yield session


@pytest.fixture
def clinic(declared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(declared) as session:
        yield session


Handle = dpsql.Session | dpsql.Analyst


def _ask(handle: Handle, target: str, question: str) -> dpsql.Receipt:
    options = f"target_half_width = {target}"
    return receipt_of(handle.sql(f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) {question}"))


def _target(handle: Handle, target: str, question: str) -> dict[str, str]:
    """Return the rows of a plan that are about its target."""
    rows = handle.sql(f"FROM dp_explain($$ SELECT {question} $$, target_half_width := {target})").fetchall()
    return {name: value for section, name, value in rows if section == "target"}


@pytest.mark.parametrize(
    ("name", "target", "question"),
    [("", "6", COUNTS), ("bob", "9", COUNTS), ("", "{'n': 12, 'c': 500}", TWO), ("", "8", ROLLUP)],
)
def test_a_plan_says_what_a_half_width_takes_and_how_many_such_questions_are_left(
    clinic: dpsql.Session, name: str, target: str, question: str
) -> None:
    handle = clinic.as_analyst(name) if name else clinic
    told = _target(handle, target, question.format(0))
    receipt = _ask(handle, target, question.format(0))
    assert told["rho"] == f"{receipt.rho:.9g}"
    assert (told["epsilon"], told["delta"]) == (f"{receipt.epsilon:.6g}", f"{receipt.delta:.6g}")
    price = f"rho = {receipt.charged_rho:.9g} and threshold delta = {receipt.charged_delta:.6g}"
    assert told["full price"].startswith(price)
    # what is stored is free, and the questions that are left are about other data
    again = _target(handle, target, question.format(0))
    left = int(told["questions left"])
    assert again == told | {"questions left": str(left - 1)}
    assert 2 <= left <= 8
    for cost in range(1, left):
        _ask(handle, target, question.format(cost))
    with pytest.raises(dpsql.BudgetError):
        _ask(handle, target, question.format(left))


def test_plan_and_receipt_say_which_half_widths_were_asked_for(clinic: dpsql.Session) -> None:
    assert (
        _target(clinic, "20, confidence := 0.99", COUNTS.format(1))["half width"]
        == "at most 20 for each count and sum (99 %)"
    )
    receipt = _ask(clinic, "{'n': 2e1, 'c': 1e3}", TWO.format(1))
    assert "asked for half widths of at most 20 for n and 1,000 for c (95 %)" in receipt.notes
    same = receipt_of(clinic.sql(f"SELECT {TWO.format(1)}", rho=receipt.rho))
    assert same.query_hash == receipt.query_hash
    assert not any("half width" in note for note in same.notes)
    assert not any(
        row[0] == "target"
        for row in clinic.sql("FROM dp_explain($$ SELECT count(*) FROM visits $$, rho := 0.1)").fetchall()
    )
