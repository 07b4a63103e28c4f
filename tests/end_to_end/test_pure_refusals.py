"""Refusals of units with composition 'pure', each before any charge, and their declarations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from dpsql.errors import BudgetError, DpsqlError, PolicyError, UnsupportedQueryError
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.pure_cities import COUNT, FROM, declared_cities, spent
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with declared_cities() as session:
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as own:
        own._runner.noise_source = seeded_noise(7)
        yield own


# --- refusals ---------------------------------------------------------------------------------------------------------

_E: dict[str, Any] = {"epsilon": 0.1}
_REFUSED: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    ("option", "Write OPTIONS (epsilon = ", {"rho": 0.1}, COUNT),
    ("option", "Leave rho_ceiling out", {**_E, "rho_ceiling": 0.1}, COUNT),
    ("option", "Leave rho_window out", {**_E, "rho_window": [0.1, 0.2]}, COUNT),
    ("mechanism", "GAUSSIAN draws other noise. Leave mechanism out", {**_E, "mechanism": "GAUSSIAN"}, COUNT),
    ("mechanism", "Leave mechanism out", {**_E, "mechanism": "CORRELATED_GAUSSIAN"}, COUNT),
    ("mechanism", "composition := 'pure'", {**_E, "mechanism": "LAPLACE"}, COUNT.replace("FROM v", "FROM g")),
    ("mechanism", "composition := 'pure'", {**_E, "mechanism": "LAPLACE"}, COUNT.replace("FROM v", "FROM z")),
    ("public_keys_missing", "'nights', keys := ", _E, "SELECT nights, count(*) FROM v GROUP BY nights"),
    ("public_keys_missing", "", _E, "SELECT nights FROM v GROUP BY nights"),
    ("option", "Look at the list itself", _E, "SELECT city FROM v GROUP BY city"),
    ("aggregate", "count, sum, avg and bool_or", _E, "SELECT city, stddev(nights) FROM v GROUP BY city"),
    ("aggregate", "count, sum, avg and bool_or", _E, "SELECT city, median(nights) FROM v GROUP BY city"),
    ("aggregate", "count, sum, avg and bool_or", _E, "SELECT city, count(DISTINCT nights) FROM v GROUP BY city"),
    ("aggregate", "count, sum, avg and bool_or", _E, "SELECT city, corr(nights, move) FROM v GROUP BY city"),
    ("option", "one GROUP BY", _E, "SELECT city, count(*) FROM v GROUP BY GROUPING SETS ((city), ())"),
    ("option", "one GROUP BY", _E, "SELECT city, count(*) FROM v GROUP BY ROLLUP (city)"),
    ("aggregate", "", _E, "SELECT day, sum(count(*)) OVER (ORDER BY day) FROM v GROUP BY day"),
    ("option", "Leave buckets out", {**_E, "buckets": "day"}, "SELECT day, count(*) FROM v GROUP BY day"),
    ("option", "Leave top_k out", {**_E, "top_k": 5}, COUNT),
    ("option", "Leave other_group out", {**_E, "other_group": "x"}, COUNT),
    ("option", "Leave bounding out", {**_E, "bounding": "L2"}, COUNT),
    ("option", "Leave bounding out", {**_E, "bounding": "NORM"}, COUNT),
    ("option", "Leave refresh out", {**_E, "refresh": True}, COUNT),
    (
        "option",
        "OPTIONS (epsilon = 0.5) in place of target_relative_error and max_epsilon",
        {"target_relative_error": 0.1, "max_epsilon": 0.5},
        COUNT,
    ),
    ("option", "most groups", {**_E, "max_groups_contributed": "AUTO"}, COUNT),
    (
        "bounds_invalid",
        "Name bounds",
        _E,
        "SELECT city, sum(nights, contribution_bounds_per_row => AUTO) FROM v GROUP BY city",
    ),
    (
        "bounds_invalid",
        "Name bounds",
        _E,
        "SELECT city, avg(nights, contribution_bounds_per_row => AUTO) FROM v GROUP BY city",
    ),
)


@pytest.mark.parametrize(("code", "cure", "options", "text"), _REFUSED)
def test_what_has_no_proof_is_refused_before_a_charge(
    session: dpsql.Session, code: str, cure: str, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(UnsupportedQueryError) as refused:
        session.sql(text, **options)
    assert code in {one.code for one in refused.value.refusals}
    assert cure in str(refused.value)
    assert session._access.read().ledger.spent("person").rho_nano == 0
    assert session._access.read().ledger.spent("pid").rho_nano == 0
    with session._access.read()._database.read() as connection:
        assert connection.execute("SELECT count(*) FROM point").fetchone() == (0,)


@pytest.mark.parametrize("epsilon", [1e-9, 1e-7])
def test_an_epsilon_that_is_too_small_is_refused(session: dpsql.Session, epsilon: float) -> None:
    with pytest.raises(DpsqlError):
        session.sql(f"SELECT city, sum(nights) FROM v WHERE often {FROM[7:]}", epsilon=epsilon)
    assert spent(session) == (0, 0)


# --- declarations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("delta_budget := 1e-6", "positive"),
        ("epsilon_budget := 1, delta_budget := 1", "between 0 and 1"),
        ("rho_budget := 1, delta_conversion := 1e-6", "write epsilon_budget in place of rho_budget"),
        ("epsilon_budget := 1, thresholds := true", "leave thresholds out"),
        ("epsilon_budget := 0", "positive"),
        ("epsilon_budget := -1", "positive"),
    ],
)
def test_a_pure_unit_has_an_epsilon_alone(session: dpsql.Session, arguments: str, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        session.sql(f"CALL dp_unit('other', {arguments}, composition := 'pure')")
    assert "other" not in {one.name for one in session._access.read().policy().units}


def test_a_wrong_composition_is_told_of_three(session: dpsql.Session) -> None:
    with pytest.raises(PolicyError, match=r"'gaussian'.*'zcdp'.*'pure'"):
        session.sql("CALL dp_unit('other', epsilon_budget := 1, composition := 'laplace')")


def test_a_composition_changes_before_a_charge_alone(session: dpsql.Session) -> None:
    gaussian = "CALL dp_unit('person', epsilon_budget := 1, delta_budget := 1e-6, composition := 'gaussian')"
    with pytest.raises(PolicyError, match="replace := true"):
        session.sql(gaussian)
    session.sql(gaussian.replace(")", ", replace := true)"))
    assert receipt_of(session.sql("SELECT count(*) FROM v", rho=0.001)).delta > 0.0
    with pytest.raises(PolicyError, match="fixes how its budget adds up"):
        session.sql("CALL dp_unit('person', composition := 'pure')")


def test_a_pure_unit_stays_pure_after_a_charge(session: dpsql.Session) -> None:
    session.sql(COUNT, epsilon=0.5)
    for composition in ("gaussian", "zcdp"):
        with pytest.raises(PolicyError, match="fixes how its budget adds up: composition is 'pure'"):
            session.sql(
                f"CALL dp_unit('person', epsilon_budget := 1, delta_budget := 1e-6, composition := '{composition}', "
                "replace := true)"
            )
    session.sql("CALL dp_unit('person', composition := 'pure')")
    session.sql("CALL dp_unit('person', epsilon_budget := 0.9)")
    with pytest.raises(BudgetError):
        session.sql("SELECT count(*) FROM v WHERE often", epsilon=0.5)
    session.sql("SELECT count(*) FROM v WHERE often", epsilon=0.4)


@pytest.mark.parametrize(("declared", "named", "said"), [(0, 1e-6, "0"), (1e-6, 0, "1e-06")])
def test_a_charge_fixes_if_a_pure_unit_has_a_delta(
    session: dpsql.Session, declared: float, named: float, said: str
) -> None:
    budget = "CALL dp_unit('person', epsilon_budget := 1, delta_budget := {}, replace := true)"
    session.sql(budget.format(declared))
    session.sql(COUNT, epsilon=0.5)
    with pytest.raises(PolicyError, match=rf"adds up: delta_budget is {said}; leave that out of the declaration"):
        session.sql(budget.format(named))
    session.sql(f"CALL dp_unit('person', delta_budget := {declared})")
    session.sql("CALL dp_unit('person', epsilon_budget := 0.9)")


def test_private_keys_are_answered_once_the_unit_has_a_delta(session: dpsql.Session) -> None:
    nights = "SELECT nights, count(*) FROM v GROUP BY nights"
    with pytest.raises(UnsupportedQueryError) as refused:
        session.sql(nights, epsilon=0.5)
    assert "no delta for thresholds (composition = 'pure' without delta_budget). Declare CALL dp_unit('person', " in (
        str(refused.value)
    )
    session.sql("CALL dp_unit('person', delta_budget := 1e-6, replace := true)")
    assert receipt_of(session.sql(nights, epsilon=0.5)).delta > 0.0


def test_a_unit_becomes_pure_with_the_epsilon_that_it_had(session: dpsql.Session) -> None:
    session.sql("CALL dp_unit('pid', composition := 'pure')")
    (unit,) = (one for one in session._access.read().policy().units if one.name == "pid")
    assert (unit.composition, unit.rho_budget) == ("pure", 3 * 10**9)
    assert 0.0 < unit.delta_budget <= 1e-6
    receipt = receipt_of(session.sql("SELECT city, count(*) FROM g GROUP BY city", epsilon=3))
    assert (receipt.epsilon, receipt.delta) == (3.0, 0.0)
