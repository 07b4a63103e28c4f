"""Plans, receipts, refusals and budgets tell a question by half widths in half widths."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import dpsql
from tests.end_to_end.prepared import with_declarations, with_own_state
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
    with with_declarations(TABLE, DECLARED) as session:
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


CURE = re.compile(
    r"Write (target_half_width = (?:{.*?}|\S+?)(?:, delta = \S+?)?)(?:, the smallest that is granted)?\.(?: |$)"
)


def _cure(error: dpsql.DpsqlError) -> str:
    """Return the options that a refusal says to write."""
    found = CURE.search(str(error))
    assert found, str(error)
    return found[1].removeprefix("target_half_width = ")


@pytest.mark.parametrize(
    ("name", "spent", "target", "beside", "question"),
    [
        ("", "0.15", "3", "", COUNTS),
        ("bob", "0.01", "3", ", confidence = 0.99", COUNTS),
        ("ana", "0.01", "3", "", COUNTS),
        ("", "0.15", "{'N': 4, 'c': 160}", "", TWO),
        ("ana", "0.01", "{'c': 160}", "", TWO),
        ("", "0.15", "5", "", ROLLUP),
    ],
)
def test_a_refusal_names_the_smallest_half_width_that_is_granted(
    clinic: dpsql.Session, name: str, spent: str, target: str, beside: str, question: str
) -> None:
    handle = clinic.as_analyst(name) if name else clinic
    kind = dpsql.AccessError if name == "ana" else dpsql.BudgetError
    clinic.sql(f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = {spent}) count(*) FROM visits WHERE cost < 50")
    with pytest.raises(kind, match=re.escape(f"target_half_width = {target} takes rho = ")) as raised:
        _ask(handle, target + beside, question.format(1))
    told = _cure(raised.value)
    narrower = re.sub(r"\d[\d.]*", lambda width: f"{0.9 * float(width[0]):.9g}", told)
    with pytest.raises(kind):
        _ask(handle, narrower + beside, question.format(1))
    assert _ask(handle, told + beside, question.format(1)).charged_rho > 0


def test_keywords_and_plans_are_refused_in_half_widths(clinic: dpsql.Session) -> None:
    ana = clinic.as_analyst("ana")
    with pytest.raises(dpsql.AccessError) as planned:
        _target(ana, "{'n': 3}", TWO.format(1))
    with pytest.raises(dpsql.AccessError) as asked:
        ana.sql(f"SELECT {TWO.format(1)}", target_half_width={"n": 3})
    assert str(planned.value) == str(asked.value)
    assert _ask(ana, _cure(asked.value), TWO.format(1)).charged_rho > 0


def test_a_delta_that_is_spent_is_told_beside_the_half_width(clinic: dpsql.Session) -> None:
    clinic.sql(f"SELECT {COUNTS.format(1)}", rho=0.01, delta=4e-7)
    with pytest.raises(dpsql.BudgetError) as raised:
        _ask(clinic, "20, delta = 4e-7", COUNTS.format(2))
    assert _cure(raised.value) == "20, delta = 1e-07"
    assert _ask(clinic, _cure(raised.value), COUNTS.format(2)).charged_rho > 0


def test_of_nothing_left_no_half_width_is_told(clinic: dpsql.Session) -> None:
    left = clinic.sql("FROM dp_budget()").df()["rho_left"][0]
    clinic.sql("SELECT count(*) FROM visits", rho=round(left, 9))
    with pytest.raises(dpsql.BudgetError, match="No larger half width is granted either"):
        _ask(clinic, "20", COUNTS.format(2))
    assert _target(clinic, "20", COUNTS.format(2))["questions left"] == "0"


@pytest.mark.parametrize(
    ("name", "width", "question"), [("", 4.0, COUNTS), ("ana", 50.0, COUNTS), ("bob", 7.0, TWO), ("", 5.5, ROLLUP)]
)
def test_the_budget_tells_the_smallest_half_width_of_the_last_question(
    clinic: dpsql.Session, name: str, width: float, question: str
) -> None:
    if name == "ana":
        # what is left of the unit is not for a reader with a limit, only what is left of a part
        clinic.sql("CALL dp_analyst('ana', rho_limit := 0.05, budget_part := 1)")
    handle, target = clinic.as_analyst(name) if name else clinic, "{{'n': {:.9g}}}".format
    assert _factor(handle) is None
    _ask(handle, target(width), question.format(1))
    factor = _factor(handle)
    assert factor is not None
    with pytest.raises((dpsql.BudgetError, dpsql.AccessError)):
        _ask(handle, target(width * factor * 0.985), question.format(2))
    # counts are rounded to whole numbers, at every level alike, which adds to the small half widths of a high level
    _ask(handle, target(width * factor * (1.0 if factor > 1.0 else 1.01)), question.format(2))


def test_without_budget_and_at_a_ceiling_no_factor_is_told(clinic: dpsql.Session) -> None:
    left = clinic.sql("FROM dp_budget()").df()["rho_left"][0]
    clinic.sql("SELECT count(*) FROM visits", rho=0.01, rho_ceiling=0.02)
    assert _factor(clinic) is None
    clinic.sql("SELECT count(*) FROM visits WHERE cost < 3", rho=round(left - 0.02, 9))
    assert _factor(clinic) is None


def _factor(handle: Handle) -> float | None:
    (factor,) = handle.sql("FROM dp_budget()").arrow()["half_width_factor"].to_pylist()
    return None if factor is None else float(factor)
