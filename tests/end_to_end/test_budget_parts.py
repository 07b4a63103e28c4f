"""Parts of budgets: an analyst spends at most their part of each unit's budget, and others go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from dpsql.errors import BudgetError, PolicyError
from tests.end_to_end.prepared import with_declarations, with_own_state

TABLES = """
CREATE TABLE visits AS SELECT i AS patient, ['Lund', 'Oslo', 'Umeå'][1 + i % 3] AS city, i % 100 AS cost
    FROM range(300) t(i);
CREATE TABLE shifts AS SELECT i AS nurse, i % 2 AS night FROM range(200) t(i);
"""
RULES = "max_groups_contributed := 1, max_rows_per_group := 1, coverage := FALSE"
DECLARED = (
    "CALL dp_unit('patient', rho_budget := 1, delta_threshold := 1e-6, delta_conversion := 1e-6)",
    "CALL dp_unit('nurse', rho_budget := 0.1, delta_threshold := 1e-6, delta_conversion := 1e-6)",
    f"CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient', {RULES})",
    f"CALL dp_protect('shifts', unit := 'nurse', privacy_unit_column := 'nurse', {RULES})",
    "CALL dp_domain('visits', 'cost', bounds := [0, 100])",
    "CALL dp_domain('shifts', 'night', keys := [0, 1])",
    "CALL dp_analyst('ana', rho_limit := 0.5, budget_part := 0.3)",
    "CALL dp_analyst('bob')",
    "CALL dp_analyst('cleo', budget_part := 0.3)",
)
COUNT = "SELECT count(*) FROM visits"
OPTIONS = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS"


@pytest.fixture(scope="module")
def declared() -> Iterator[dpsql.Session]:
    with with_declarations(TABLES, DECLARED) as session:
        yield session


@pytest.fixture
def clinic(declared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(declared) as session:
        yield session


def _policy(session: dpsql.Session) -> list[tuple[str, ...]]:
    return [row[1:] for row in session.sql("FROM dp_policy()").fetchall() if row[0] == "analyst"]


def _asked(analyst: dpsql.Analyst, text: str, **options: Any) -> dpsql.Receipt:
    receipt = analyst.sql(text, **options).receipt
    assert receipt is not None
    return receipt


def _spent(session: dpsql.Session) -> int:
    return session._access.read().ledger.spent("patient").rho_nano


def test_an_analyst_uses_up_a_part_and_others_go_on(clinic: dpsql.Session) -> None:
    ana, bob = clinic.as_analyst(" Ana"), clinic.as_analyst("bob")
    first = ana.sql(COUNT, rho=0.2).fetchall()
    with pytest.raises(BudgetError, match="the part of the budget of unit 'patient' that 'ana' may spend") as raised:
        ana.sql(f"{COUNT} WHERE cost < 9", rho=0.101)
    assert (raised.value.unit, raised.value.analyst) == ("patient", "ana")
    assert (raised.value.requested_rho, raised.value.remaining_rho) == (0.101, 0.1)
    # by epsilon, the most that is left of the part is told, and granted
    with pytest.raises(BudgetError, match="that 'ana' may spend does not cover this query at epsilon = 4") as raised:
        ana.sql(f"{COUNT} WHERE cost < 6", epsilon=4)
    most = raised.value.remaining_epsilon
    assert most is not None
    assert 1.0 < most < 4.0
    with with_own_state(clinic) as beside:
        assert _asked(beside.as_analyst("ana"), f"{COUNT} WHERE cost < 6", epsilon=most).charged_rho > 0.09
    ana.sql(f"{COUNT} WHERE cost < 9", rho=0.1)
    assert _spent(clinic) == 3 * 10**8
    # what costs nothing is answered: asked again, or paid for by somebody else
    bob.sql(f"{COUNT} WHERE cost < 8", rho=0.7)
    for text in (COUNT, f"{COUNT} WHERE cost < 8"):
        assert _asked(ana, text, rho=0.2).charged_rho == 0
    assert ana.sql(COUNT, rho=0.2).fetchall() == first
    with pytest.raises(BudgetError, match="the budget of privacy unit 'patient'") as raised:
        bob.sql(f"{COUNT} WHERE cost < 7", rho=0.001)
    assert raised.value.analyst is None
    # each unit by itself
    nights = "SELECT night, count(*) FROM shifts GROUP BY night"
    with pytest.raises(BudgetError, match="unit 'nurse' that 'ana'"):
        ana.sql(nights, rho=0.031)
    assert _asked(ana, nights, rho=0.03).charged_rho == 0.03


@pytest.mark.parametrize(
    "text",
    [
        f"{OPTIONS} (rho = 0.4, mechanism = KEYS_FIRST) city, count(*) FROM visits GROUP BY city",
        f"{OPTIONS} (rho = 0.4) count(*), sum(cost, contribution_bounds_per_group => AUTO) FROM visits",
        f"{OPTIONS} (rho = 0.4) city, count(*) FROM visits GROUP BY ROLLUP (city)",
        f"{OPTIONS} (rho = 0.2, other_group = 'rest') city, count(*) FROM visits GROUP BY city",
        f"{OPTIONS} (rho = 0.4) DISTINCT city FROM visits",
    ],
)
def test_the_whole_price_is_checked_before_the_first_charge(clinic: dpsql.Session, text: str) -> None:
    with pytest.raises(BudgetError) as raised:
        clinic.as_analyst("cleo").sql(text)
    assert raised.value.analyst == "cleo"
    assert _spent(clinic) == 0
    assert _asked(clinic.as_analyst("bob"), text).charged_rho > 0.3


def test_delta_has_a_part(clinic: dpsql.Session) -> None:
    text = "SELECT city, count(*) FROM visits GROUP BY city"
    with pytest.raises(BudgetError) as raised:
        clinic.as_analyst("ana").sql(text, rho=0.01, delta=3.1e-7)
    assert raised.value.remaining_delta == pytest.approx(3e-7)
    assert _asked(clinic.as_analyst("ana"), text, rho=0.01, delta=2.9e-7).charged_delta > 2.8e-7


def test_a_part_is_declared_kept_raised_and_removed(clinic: dpsql.Session) -> None:
    said = clinic.sql("CALL dp_analyst(' ANA ')").fetchall()
    assert said == [
        ("analyst ana may be shown levels up to rho = 0.5, and may spend at most 0.3 of the budget of each unit",)
    ]
    # each of the two stays by itself
    clinic.sql("CALL dp_analyst('ana', rho_limit := 0.4)")
    clinic.sql("CALL dp_analyst('ana', budget_part := 0.2)")
    assert _policy(clinic) == [
        ("ana", "rho_limit", "0.4"),
        ("ana", "budget_part", "0.2"),
        ("bob", "rho_limit", "any level"),
        ("cleo", "rho_limit", "any level"),
        ("cleo", "budget_part", "0.3"),
    ]
    # bob had all of the budget
    clinic.sql("CALL dp_analyst('bob', budget_part := 1)")
    for part, told in (("0.21", "0.21"), ("NULL", "none")):
        with pytest.raises(PolicyError, match=rf"budget_part from 0\.2 to {told}; add replace := true"):
            clinic.sql(f"CALL dp_analyst('ana', budget_part := {part})")
        clinic.sql(f"CALL dp_analyst('ana', budget_part := {part}, replace := true)")
        clinic.sql("CALL dp_analyst('ana', budget_part := 0.2)")
    clinic.as_analyst("ana").sql(COUNT, rho=0.2)
    clinic.sql("CALL dp_analyst('ana', budget_part := NULL, replace := true)")
    assert _asked(clinic.as_analyst("ana"), f"{COUNT} WHERE cost < 9", rho=0.4).charged_rho == 0.4


@pytest.mark.parametrize("part", ["0", "-0.1", "1.000001", "'0.3'", "true", "'nan'", "[0.3]", "1e999", "9" * 400])
def test_a_wrong_part_changes_nothing(clinic: dpsql.Session, part: str) -> None:
    before = clinic.sql("FROM dp_policy()").fetchall()
    for name in ("ana", "eve"):
        with pytest.raises(PolicyError, match="budget_part"):
            clinic.sql(f"CALL dp_analyst('{name}', budget_part := {part}, rho_limit := 0.1, replace := true)")
    with pytest.raises(PolicyError, match="budget_part takes a number; leave it out"):
        clinic.sql("CALL dp_analyst('eve', budget_part := NULL)")
    assert clinic.sql("FROM dp_policy()").fetchall() == before
