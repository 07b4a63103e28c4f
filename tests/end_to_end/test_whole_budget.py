"""A budget is used to the last nano-rho: one question may ask for all of it, and small ones stop just below it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from dpsql.errors import BudgetError
from tests.end_to_end.prepared import with_own_state

COUNTS = "SELECT city, count(*) AS n FROM visits GROUP BY city"
SUMS = "SELECT city, count(DISTINCT pid) AS n, sum(cost) AS s, avg(cost) AS m FROM visits GROUP BY city"
TOTALS = "SELECT day, sum(count(*)) OVER (ORDER BY day) AS n FROM visits GROUP BY day"
BY_AUTO = "SELECT city, sum(cost, contribution_bounds_per_group => AUTO) AS s FROM visits GROUP BY city"
# Questions over public keys, each with its options; all of their noise is Gaussian.
QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "counts": (COUNTS, {}),
    "sums": (SUMS, {}),
    "coverage": (SUMS, {"coverage": True}),
    "no groups": ("SELECT count(*) AS n FROM visits", {}),
    "correlated": (SUMS, {"mechanism": "CORRELATED_GAUSSIAN", "max_groups_contributed": 4}),
    "L2": (SUMS, {"bounding": "L2", "max_groups_contributed": 4, "coverage": True}),
    "norm": (SUMS, {"bounding": "NORM"}),
    "running totals": (TOTALS, {"mechanism": "FACTORISED_GAUSSIAN"}),
    "medians": ("SELECT city, median(cost) AS m FROM visits GROUP BY city", {}),
    "rollup": ("SELECT city, day, count(*) AS n FROM visits GROUP BY ROLLUP (city, day)", {}),
    "AUTO bounds": (BY_AUTO, {}),
    "AUTO groups": (COUNTS, {"max_groups_contributed": "AUTO"}),
}


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT i % 200 AS pid, i % 4 AS city, i % 5 AS day, (i * 7 % 11)::DOUBLE AS cost "
            "FROM range(800) t(i)"
        )
        for call in (
            "dp_unit('patient', epsilon_budget := 1, delta_budget := 1e-6)",
            "dp_protect('visits', coverage := FALSE, unit := 'patient', privacy_unit_column := 'pid', "
            "max_groups_contributed := 2, max_rows_per_group := 3)",
            "dp_domain('visits', 'city', keys := [0, 1, 2, 3])",
            "dp_domain('visits', 'day', keys := [0, 1, 2, 3, 4])",
            "dp_domain('visits', 'cost', bounds := [0, 10])",
        ):
            session.sql(f"CALL {call}")
        yield session


def rho_left(session: dpsql.Session) -> float:
    """Return what the budget has left, in rho."""
    (row,) = session.sql("FROM dp_budget('patient')").arrow().to_pylist()
    return float(row["rho_left"])


def ask_for_all(prepared: dpsql.Session, name: str, epsilon: float, delta: float) -> float:
    """Return the rho that one question at the whole budget of a unit without thresholds leaves."""
    text, options = QUESTIONS[name]
    budget = f"epsilon_budget := {epsilon!r}, delta_budget := {delta!r}, thresholds := false, replace := true"
    with with_own_state(prepared) as session:
        session.sql(f"CALL dp_unit('patient', {budget})")
        assert rho_left(session) > 0
        session.sql(text, epsilon=epsilon, delta=delta, **options)
        return rho_left(session)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (3.0, 1e-6), (0.1, 1e-8)])
@pytest.mark.parametrize("name", ["counts", "coverage", "no groups", "correlated"])
def test_one_question_may_ask_for_the_whole_budget(
    prepared: dpsql.Session, name: str, epsilon: float, delta: float
) -> None:
    assert ask_for_all(prepared, name, epsilon, delta) == 0


# beyond 10 the imprecision of draws takes a part of a small delta that moves rho
@pytest.mark.parametrize("name", ["sums", "L2", "running totals", "rollup", "AUTO bounds"])
def test_every_gaussian_question_may_ask_for_a_whole_budget(prepared: dpsql.Session, name: str) -> None:
    assert ask_for_all(prepared, name, 19.0, 1e-12) == 0


@pytest.mark.long
def test_no_question_at_a_random_whole_budget_is_refused(prepared: dpsql.Session) -> None:
    chosen = random.Random(33)
    for _ in range(5):
        for name in QUESTIONS:
            epsilon, delta = 10.0 ** chosen.uniform(-2, 1.3), 10.0 ** chosen.uniform(-12, -3)
            assert ask_for_all(prepared, name, epsilon, delta) == 0, (name, epsilon, delta)


def test_more_than_the_whole_budget_is_refused(prepared: dpsql.Session) -> None:
    with with_own_state(prepared) as session:
        session.sql("CALL dp_unit('patient', thresholds := false)")
        for epsilon, delta in ((1.000001, 1e-6), (1.0, 1.00001e-6)):
            with pytest.raises(BudgetError):
                session.sql(COUNTS, epsilon=epsilon, delta=delta)
        session.sql(COUNTS, epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize(
    ("thresholds", "least", "most"), [("true", 0.195, 0.1984), ("false", 0.207, 0.2098)], ids=["thresholds", "without"]
)
def test_small_questions_are_refused_close_to_the_budget(
    prepared: dpsql.Session, thresholds: str, least: float, most: float
) -> None:
    budget = f"epsilon_budget := 3, delta_budget := 1e-6, thresholds := {thresholds}, replace := true"
    with with_own_state(prepared) as session:
        session.sql(f"CALL dp_unit('patient', {budget})")
        spent = least - 0.001
        session.sql(COUNTS, rho=spent)
        for number in range(20):
            # another filter each time, which is another statistic
            text = f"SELECT city, count(*) AS n FROM visits WHERE cost > {number} GROUP BY city"
            try:
                answer = session.sql(text, rho=0.002)
            except BudgetError:
                break
            assert answer.receipt is not None
            assert answer.receipt.charged_rho == 0.002
            spent += 0.002
        assert least <= spent <= most
