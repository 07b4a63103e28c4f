"""What dp_budget says is left: the epsilon of one more question, and how often the last one can still be asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from tests.end_to_end.prepared import with_own_state

VISITS = """
CREATE TABLE visits AS SELECT i AS patient, ['Lund', 'Oslo'][1 + i % 2] AS city, i % 100 AS cost FROM range(400) t(i)
"""
UNIT = "CALL dp_unit('patient', epsilon_budget := 3, delta_budget := 1e-6{})"
DECLARED = (
    "CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 1, "
    "max_rows_per_group := 1, coverage := FALSE)",
    "CALL dp_domain('visits', 'cost', bounds := [0, 100])",
    "CALL dp_analyst('ana', rho_limit := 0.05, budget_part := 0.4)",
    "CALL dp_analyst('bob')",
)
PUBLIC = "count(*), sum(cost) FROM visits WHERE cost <> {}"


@pytest.fixture(scope="module")
def empty() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(VISITS)
        yield session


@pytest.fixture(scope="module")
def declared(empty: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(empty) as session:
        for statement in (UNIT.format(""), *DECLARED):
            session.sql(statement)
        yield session


@pytest.fixture
def clinic(declared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(declared) as session:
        yield session


def _budget(handle: dpsql.Session | dpsql.Analyst, arguments: str = "") -> dict[str, Any]:
    (row,) = handle.sql(f"FROM dp_budget({arguments})").arrow().to_pylist()
    return dict(row)


def _ask(handle: dpsql.Session | dpsql.Analyst, options: str, question: str) -> dpsql.Receipt:
    receipt = handle.sql(f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) {question}").receipt
    assert receipt is not None
    return receipt


@pytest.mark.parametrize("terms", ["", ", thresholds := false", ", composition := 'zcdp'"])
def test_a_question_at_epsilon_next_is_granted_and_none_above_it(empty: dpsql.Session, terms: str) -> None:
    with with_own_state(empty) as session:
        for statement in (UNIT.format(terms), *DECLARED):
            session.sql(statement)
        for cost, part in enumerate((0.4, 1.0)):
            books = _budget(session)
            options = "epsilon = {!r}" if part < 1.0 else f"epsilon = {{!r}}, delta = {books['delta_next']!r}"
            with pytest.raises(dpsql.BudgetError):
                _ask(session, options.format(books["epsilon_next"] * 1.01), PUBLIC.format(cost))
            receipt = _ask(session, options.format(part * books["epsilon_next"]), PUBLIC.format(cost))
            assert receipt.delta == books["delta_next"]
        books = _budget(session)
        # epsilon grows like the square root of rho, so less than a hundredth is left of it, but some of rho
        assert 0.0 < books["epsilon_next"] < 0.1 * books["epsilon_budget"]
        assert books["questions_left"] == 0


def test_epsilon_next_counts_the_delta_of_imprecise_draws(clinic: dpsql.Session) -> None:
    clinic.sql(
        "CALL dp_unit('patient', epsilon_budget := 26, delta_budget := 1e-12, thresholds := false, replace := true)"
    )
    told = _budget(clinic)["epsilon_next"]
    with pytest.raises(dpsql.BudgetError):
        _ask(clinic, f"epsilon = {told * 1.01}", PUBLIC.format(1))
    assert _ask(clinic, f"epsilon = {told}", PUBLIC.format(1)).charged_rho > 4


@pytest.mark.parametrize(
    ("options", "question"),
    [
        ("rho = 0.06", PUBLIC),
        ("epsilon = 0.5, delta = 2e-7", "city, count(*) FROM visits WHERE cost <> {} GROUP BY city"),
        ("rho = 0.01, rho_ceiling = 0.03", PUBLIC),
        ("rho = 0.06", "count(*), sum(cost, contribution_bounds_per_group => AUTO) FROM visits WHERE cost <> {}"),
        ("rho = 0.03, other_group = 'rest'", "city, count(*) FROM visits WHERE cost <> {} GROUP BY city"),
        ("epsilon = 1, delta = 3e-7", "city, count(*) FROM visits WHERE cost <> {} GROUP BY ROLLUP (city)"),
        ("rho = 0.06, mechanism = KEYS_FIRST", "city, sum(cost) FROM visits WHERE cost <> {} GROUP BY city"),
    ],
)
def test_the_last_question_can_be_asked_as_often_as_is_told(clinic: dpsql.Session, options: str, question: str) -> None:
    first = _ask(clinic, options, question.format(99))
    books = _budget(clinic)
    assert books["last_query_hash"] == first.query_hash
    assert books["questions_left"] in (1, 2)
    for i in range(books["questions_left"]):
        _ask(clinic, options, question.format(i))
        assert _budget(clinic)["questions_left"] == books["questions_left"] - i - 1
    with pytest.raises(dpsql.BudgetError):
        _ask(clinic, options, question.format(98))


def test_a_clearance_limits_what_is_asked_and_not_its_price(clinic: dpsql.Session) -> None:
    clinic.sql("CALL dp_analyst('carl', rho_limit := 0.05, budget_part := 1)")
    carl = clinic.as_analyst("carl")
    assert _ask(carl, "rho = 0.01, rho_ceiling = 0.03", PUBLIC.format(1)).charged_rho == 0.06
    assert _budget(carl)["questions_left"] == 2
    _ask(carl, "rho = 0.01, rho_ceiling = 0.03", PUBLIC.format(2))
    assert _budget(carl)["questions_left"] == 1
    clinic.sql("CALL dp_analyst('carl', rho_limit := 0.005)")
    assert _budget(carl)["questions_left"] == 0


def test_a_question_of_which_a_part_was_stored_has_the_price_of_a_first_asking(clinic: dpsql.Session) -> None:
    question = "city, {} FROM visits GROUP BY city"
    _ask(clinic, "rho = 0.02, delta = 1e-8", question.format("count(*)"))
    raised = _ask(clinic, "rho = 0.05, delta = 1e-8", question.format("count(*)"))
    assert raised.charged_rho == pytest.approx(0.03)
    rest = clinic.sql("FROM dp_budget()").arrow()["rho_left"][0].as_py()
    assert _budget(clinic)["questions_left"] == int(rest / 0.05)
    wider = _ask(clinic, "rho = 0.05, delta = 1e-8", question.format("count(*), avg(cost)"))
    assert 0.0 < wider.charged_rho < 0.05
    books = _budget(clinic)
    assert (books["last_query_hash"], books["questions_left"]) == (wider.query_hash, int(books["rho_left"] / 0.05))
    assert _ask(clinic, "rho = 0.02, delta = 1e-8", question.format("count(*)")).reused
    assert _budget(clinic) == books


def test_an_analyst_is_told_what_is_left_for_them_alone(clinic: dpsql.Session) -> None:
    ana, bob = clinic.as_analyst("ana"), clinic.as_analyst("bob")
    whole = _budget(clinic)
    assert (whole["budget_part"], whole["questions_left"], whole["last_query_hash"]) == (None, None, None)
    assert whole["epsilon_next"] == _budget(bob)["epsilon_next"]
    of_ana = _ask(ana, "rho = 0.03", PUBLIC.format(1))
    books = _budget(ana)
    assert books["budget_part"] == 0.4
    assert books["rho_left"] == pytest.approx(0.4 * whole["rho_budget"] - 0.03, abs=1e-9)
    assert books["questions_left"] == int(books["rho_left"] / 0.03) == 1
    assert (books["last_query_hash"], _budget(bob)["questions_left"]) == (of_ana.query_hash, None)
    of_bob = _ask(bob, "rho = 0.01", PUBLIC.format(2))
    # she has a limit, so what others spend is not for her; the curator sees it beside what is left for her
    assert _budget(ana) == books
    of_both = _budget(clinic, "analysts := ['ANA ']")
    assert of_both["rho_spent"] == pytest.approx(0.04)
    assert of_both | {"held_by": "ana", "note": books["note"]} | _spent(books) == books
    assert _budget(clinic)["last_query_hash"] == _budget(bob)["last_query_hash"] == of_bob.query_hash
    # the limit of one answer is below what is left
    told = books["epsilon_next"]
    with pytest.raises(dpsql.DpsqlError):
        _ask(ana, f"epsilon = {1.01 * told}", PUBLIC.format(3))
    assert _ask(ana, f"epsilon = {told}", PUBLIC.format(3)).charged_rho == pytest.approx(books["rho_left"], rel=0.02)
    assert _budget(ana)["questions_left"] == 0


@pytest.mark.parametrize("where", ["", " WHERE cost <> 5"])
def test_what_others_pay_for_the_same_question_changes_no_price(clinic: dpsql.Session, where: str) -> None:
    question = "city, count(*) FROM visits{} GROUP BY city"
    _ask(clinic.as_analyst("ana"), "rho = 0.01, delta = 1e-8", question.format(""))
    _ask(clinic.as_analyst("bob"), "rho = 0.02, delta = 1e-7", question.format(where))
    # 0.4 of the budget pays for seven
    assert _budget(clinic.as_analyst("ana"))["questions_left"] == 6


def _spent(books: dict[str, Any]) -> dict[str, Any]:
    """What the unit has spent in all, which changes with what others ask."""
    return {name: value for name, value in books.items() if name.endswith("_spent")}


def test_of_nothing_left_no_epsilon_is_told(clinic: dpsql.Session) -> None:
    _ask(clinic, f"rho = {_budget(clinic)['rho_left']:.9f}", "count(*) FROM visits")
    books = _budget(clinic)
    assert (books["rho_left"], books["epsilon_next"], books["questions_left"]) == (0.0, 0.0, 0)
