"""Refusals speak the words of the question, and name what whoever asks can write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from dpsql.session.asked_level import most_granted
from dpsql.session.runner import StatementRunner
from tests.end_to_end.prepared import with_declarations, with_own_state

TABLES = """
CREATE TABLE visits AS SELECT i AS patient, ['Lund', 'Oslo', 'Umeå'][1 + i % 3] AS city, i % 100 AS cost,
    'SE' AS "Home Country" FROM range(300) t(i);
CREATE TABLE visitors (patient INTEGER);
"""
DECLARED = (
    "CALL dp_unit('patient', epsilon_budget := 3, delta_budget := 1e-6)",
    "CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 1, "
    "max_rows_per_group := 1, coverage := FALSE)",
    "CALL dp_domain('visits', 'cost', bounds := [0, 100])",
    "CALL dp_analyst('ana', rho_limit := 0.05)",
    "CALL dp_analyst('bob')",
)
QUESTIONS = (
    ("bob", "city, count(*), avg(cost) FROM visits GROUP BY city"),
    ("ana", "city, count(*) FROM visits GROUP BY ROLLUP (city)"),
    ("bob", "count(*), sum(cost, contribution_bounds_per_group => AUTO) FROM visits"),
    ("ana", "count(*) FROM (SELECT patient, city, cost FROM visits WHERE cost < 40)"),
)
"""Questions that ask for too much: of the budget, or of the clearance of ana."""
CURE = re.compile(r"Ask with (\w+ = [^,\s]+(?:, \w+ = [^,\s]+)*)\.(?: |$)")


@pytest.fixture(scope="module")
def declared() -> Iterator[dpsql.Session]:
    with with_declarations(TABLES, DECLARED) as session:
        yield session


@pytest.fixture
def clinic(declared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(declared) as session:
        yield session


def _cure(error: dpsql.DpsqlError) -> str:
    """What a refusal says can be asked for, as options."""
    found = CURE.search(str(error))
    assert found, str(error)
    return found[1]


def _ask(handle: dpsql.Session | dpsql.Analyst, options: str, question: str) -> dpsql.Receipt:
    receipt = handle.sql(f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) {question}").receipt
    assert receipt is not None
    return receipt


@pytest.mark.parametrize(("name", "question"), QUESTIONS)
def test_who_asks_by_epsilon_is_told_the_most_epsilon_that_is_granted(
    clinic: dpsql.Session, name: str, question: str
) -> None:
    kind = dpsql.AccessError if name == "ana" else dpsql.BudgetError
    analyst = clinic.as_analyst(name)
    _ask(clinic, "epsilon = 2", "count(*) FROM visits WHERE cost < 7")
    with pytest.raises(kind) as raised:
        _ask(analyst, "epsilon = 10, delta = 1e-7", question)
    error = raised.value
    assert "epsilon = 10 " in str(error)
    assert error.requested_epsilon == 10
    assert error.remaining_epsilon is not None
    assert _cure(error) == f"epsilon = {error.remaining_epsilon:.9g}"
    with pytest.raises(kind):
        _ask(analyst, f"epsilon = {error.remaining_epsilon * 1.101}, delta = 1e-7", question)
    assert _ask(analyst, f"{_cure(error)}, delta = 1e-7", question).charged_rho > 0


def test_who_asks_by_rho_is_told_in_rho(clinic: dpsql.Session) -> None:
    question = "city, count(*), avg(cost) FROM visits GROUP BY city"
    with pytest.raises(dpsql.BudgetError) as raised:
        _ask(clinic, "rho = 0.5", question)
    assert "epsilon" not in str(raised.value)
    assert raised.value.remaining_epsilon is None
    assert _cure(raised.value) == "rho = 0.19"
    assert raised.value.requested_rho == 0.5
    assert _ask(clinic, "rho = 0.19", question).rho == pytest.approx(0.19)


def test_a_level_of_the_policy_and_one_beside_the_text_are_told_alike(clinic: dpsql.Session) -> None:
    clinic.sql("CALL dp_protect('visits', default_epsilon := 20)")
    told = []
    beside: tuple[dict[str, Any], ...] = ({}, {"epsilon": 20})
    for options in beside:
        with pytest.raises(dpsql.BudgetError) as raised:
            clinic.sql("SELECT city, count(*) FROM visits GROUP BY city", **options)
        told.append((raised.value.requested_epsilon, raised.value.remaining_epsilon))
    assert told[0] == told[1]
    assert clinic.sql("SELECT city, count(*) FROM visits GROUP BY city", epsilon=told[0][1]).receipt is not None


def test_a_ceiling_and_a_plan_are_told_in_epsilon(clinic: dpsql.Session) -> None:
    clinic.sql("CALL dp_protect('visits', rho_ceiling := 0.01)")
    question = "count(*) FROM visits"
    with pytest.raises(dpsql.CalibrationError) as raised:
        _ask(clinic, "epsilon = 2", question)
    assert raised.value.limit_rho == 0.01
    assert _ask(clinic, _cure(raised.value), question).charged_rho == 0.01
    with pytest.raises(dpsql.AccessError) as planned:
        clinic.as_analyst("ana").sql(f"FROM dp_explain($$ SELECT {question} WHERE cost > 1 $$, epsilon := 5)")
    assert planned.value.requested_epsilon == 5


@pytest.mark.parametrize(
    ("question", "delta"),
    [
        # half of it pays for thresholds if a question asks by epsilon for sets or for bounds by AUTO
        ("city, count(*) FROM visits WHERE cost < 51 GROUP BY city", 1e-7),
        ("city, count(*) FROM visits WHERE cost < 51 GROUP BY ROLLUP (city)", 2e-7),
        ("city, sum(cost, contribution_bounds_per_group => AUTO) FROM visits WHERE cost < 51 GROUP BY city", 1.9e-7),
    ],
)
def test_a_delta_that_is_spent_is_told_with_the_largest_that_is_left(
    clinic: dpsql.Session, question: str, delta: float
) -> None:
    _ask(clinic, "epsilon = 0.5, delta = 4e-7", "city, count(*) FROM visits WHERE cost < 50 GROUP BY city")
    with pytest.raises(dpsql.BudgetError) as raised:
        _ask(clinic, "epsilon = 0.5, delta = 4e-7", question)
    assert raised.value.requested_delta > raised.value.remaining_delta > 0
    assert _cure(raised.value) == f"epsilon = 0.5, delta = {delta:.9g}"
    with pytest.raises(dpsql.BudgetError):
        _ask(clinic, f"epsilon = 0.5, delta = {delta + 2e-8}", question)
    _ask(clinic, _cure(raised.value), question)


def test_a_part_of_the_budget_is_told_as_the_budget_is(clinic: dpsql.Session) -> None:
    clinic.sql("CALL dp_analyst('bob', budget_part := 0.3)")
    bob, question = clinic.as_analyst("bob"), "city, count(*) FROM visits GROUP BY city"
    for options, told in (
        ("epsilon = 4, delta = 1e-7", "epsilon = 1.6"),
        ("epsilon = 0.5, delta = 4e-7", "epsilon = 0.5, delta = 1.5e-07"),
        ("rho = 9, delta = 4e-7", "rho = 0.059, delta = 1.5e-07"),
    ):
        with pytest.raises(dpsql.BudgetError, match="that 'bob' may spend does not cover") as raised:
            _ask(bob, options, question)
        assert _cure(raised.value) == told
    _ask(bob, "rho = 0.059, delta = 1.5e-07", question)
    # of a used up part hardly any delta is left, and what is told is still granted
    other = question.replace("visits", "visits WHERE cost < 9")
    with pytest.raises(dpsql.BudgetError) as last:
        _ask(bob, "epsilon = 0.5, delta = 1e-7", other)
    assert _ask(bob, _cure(last.value), other).charged_rho > 0


def test_a_clearance_is_told_with_the_delta_that_is_left(clinic: dpsql.Session) -> None:
    _ask(clinic, "epsilon = 0.5, delta = 4.5e-7", "city, count(*) FROM visits WHERE cost < 50 GROUP BY city")
    ana, question = clinic.as_analyst("ana"), "city, count(*) FROM visits WHERE cost < 51 GROUP BY city"
    with pytest.raises(dpsql.AccessError, match="may not be shown") as raised:
        _ask(ana, "epsilon = 4, delta = 1e-7", question)
    assert _cure(raised.value) == "epsilon = 1.5, delta = 5e-08"
    for higher in ("epsilon = 1.6, delta = 5e-08", "epsilon = 1.5, delta = 5.2e-08"):
        with pytest.raises(dpsql.DpsqlError):
            _ask(ana, higher, question)
    assert _ask(ana, _cure(raised.value), question).charged_rho > 0


def test_a_tiny_part_is_told_as_any_other(clinic: dpsql.Session) -> None:
    clinic.sql("CALL dp_analyst('bob', budget_part := 1e-7)")
    bob, question = clinic.as_analyst("bob"), "count(*) FROM visits"
    with pytest.raises(dpsql.BudgetError) as raised:
        _ask(bob, "rho = 3", question)
    assert _cure(raised.value) == "rho = 1.9e-08"
    assert _ask(bob, _cure(raised.value), question).charged_rho == 1.9e-8


def test_a_unit_without_thresholds_is_told_no_delta(declared: dpsql.Session) -> None:
    with with_own_state(declared) as clinic:
        clinic.sql("CALL dp_unit('patient', thresholds := false)")
        question = "count(*), sum(cost) FROM visits"
        for options in ("epsilon = 9, delta = 1e-6", "epsilon = 9, delta = 0.01"):
            with pytest.raises(dpsql.BudgetError) as raised:
                _ask(clinic, options, question)
            assert "delta" not in _cure(raised.value)
        assert _ask(clinic, f"{_cure(raised.value)}, delta = 0.01", question).charged_rho > 0.18


@pytest.mark.parametrize("level", ["epsilon = 5, delta = 1e-7", "epsilon = 50, delta = 1e-3", "rho = 9"])
def test_a_refusal_takes_few_plans(clinic: dpsql.Session, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plans, plan = [], StatementRunner.plan

    def counted(*given: Any, **named: Any) -> Any:
        plans.append(given)
        return plan(*given, **named)

    monkeypatch.setattr(StatementRunner, "plan", counted)
    with pytest.raises(dpsql.BudgetError) as raised:
        _ask(clinic, level, "city, count(*), avg(cost) FROM visits WHERE cost < 8 GROUP BY city")
    assert _cure(raised.value)
    assert len(plans) <= 6


def test_no_more_than_eight_levels_are_tried() -> None:
    """One level in a million is granted, or none is, and no guess is right."""
    for most in (1e-3, 1.0, 0.37, 7.0):
        tried: list[float] = []

        def try_level(value: float, tried: list[float] = tried, most: float = most) -> float | None:
            tried.append(value)
            return None if value <= most else value

        told = most_granted(1000.0, 1000.0, try_level)
        assert len(tried) <= 8
        assert told is None or told in tried
        assert told is not None
        assert told <= most


def test_what_nothing_can_pay_has_no_level(clinic: dpsql.Session) -> None:
    _ask(clinic, _cure_of_all(clinic), "count(*) FROM visits")
    with pytest.raises(dpsql.BudgetError, match="No lower level is granted"):
        _ask(clinic, "rho = 0.1", "count(*) FROM visits WHERE cost < 3")


def _cure_of_all(clinic: dpsql.Session) -> str:
    left = clinic.sql("FROM dp_budget('patient')").arrow().to_pylist()[0]["rho_left"]
    return f"rho = {left:.9f}"


@pytest.mark.parametrize(
    ("sql", "meant"),
    [
        ("SELECT city, count(*) FROM vists GROUP BY city", "visits"),
        ("SELECT ctiy, count(*) FROM visits GROUP BY ctiy", "city"),
        ('SELECT "Home Contry", count(*) FROM visits GROUP BY 1', '"Home Country"'),
        ("SELECT visit.city, count(*) FROM visits GROUP BY 1", "visits"),
        ("SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilo = 1) count(*) FROM visits", "epsilon"),
        ("SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.1) lowr(city), count(*) FROM visits GROUP BY 1", "lower"),
        ("SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.1) medain(cost) FROM visits", "median"),
        (
            "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.1) sum(cost, contribution_bound_per_row => (0, 1)) "
            "FROM visits",
            "contribution_bounds_per_row",
        ),
        ("FROM dp_budgt()", "dp_budget"),
    ],
)
def test_an_analyst_is_asked_what_was_meant(clinic: dpsql.Session, sql: str, meant: str) -> None:
    with pytest.raises(dpsql.QueryError, match=rf"Did you mean {re.escape(meant)}(\?| or )"):
        clinic.as_analyst("bob").sql(sql)


@pytest.mark.parametrize(
    ("sql", "cure"),
    [
        ("CALL dp_unit('patient', epsilon_budget = 2)", "Write CALL dp_unit('patient', epsilon_budget := 2)."),
        ("CALL dp_unit('patient', epsilon_bugdet := 2)", "Did you mean epsilon_budget"),
        ("CALL dp_domain('visits', 'csot', bounds := [0, 1])", "Did you mean cost?"),
        ("CALL dp_protct('visits')", "Did you mean dp_protect or dp_unprotect?"),
        ("SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon := 1) count(*) FROM visits", "Write epsilon = 1"),
        ("SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon => 1) count(*) FROM visits", "Write epsilon = 1"),
    ],
)
def test_a_curator_is_told_what_to_write(clinic: dpsql.Session, sql: str, cure: str) -> None:
    with pytest.raises(dpsql.DpsqlError, match=re.escape(cure)):
        clinic.sql(sql)
    clinic.sql("CALL dp_unit('patient', delta_budget => 1e-6, epsilon_budget => 2, replace => true)")


def test_a_table_that_nobody_declared_is_answered_as_one_that_is_not_there(clinic: dpsql.Session) -> None:
    told = []
    # one exists, and both look like the declared one
    for table in ("visitors", "visitort"):
        for handle in (clinic, clinic.as_analyst("bob")):
            with pytest.raises(dpsql.SchemaError) as raised:
                handle.sql(f"SELECT count(*) FROM {table} AS v JOIN visits USING (patient)")
            told.append(
                (str(raised.value).replace(table, "…"), raised.value.span, raised.value.hint.replace(table, "…"))
            )
    assert told[:2] == told[2:]
    assert "Did you mean visits?" in told[1][0]


def test_statements_of_curators_are_not_named_to_analysts(clinic: dpsql.Session) -> None:
    for sql in ("UPDATE visits SET cost = 1", "CALL dp_unt('patient')", "SELECT count(*) FROM visitors"):
        with pytest.raises(dpsql.QueryError, match=r"Session\.connection|dp_protect"):
            clinic.sql(sql)
        with pytest.raises(dpsql.QueryError) as raised:
            clinic.as_analyst("bob").sql(sql)
        assert not re.search("connection|dp_protect|dp_unit|dp_policy", str(raised.value))


def test_who_is_no_analyst_is_told_to_ask_the_curator(clinic: dpsql.Session) -> None:
    with pytest.raises(dpsql.AccessError, match="Ask the curator") as raised:
        clinic.as_analyst("eve").sql("SELECT count(*) FROM visits", rho=0.01)
    assert "dp_analyst" not in str(raised.value)
