"""Declarations: what is refused, what is merged, what is remembered; and the integers they are counted in."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.errors import CalibrationError, PolicyError
from dpsql.state import (
    DELTA_UNITS_PER_ONE,
    NANO_PER_RHO,
    ChargeItem,
    ClearedAnalyst,
    Domain,
    Link,
    Policy,
    ProtectedTable,
    PublicTable,
    State,
    Unit,
    checked,
    delta_from_units,
    delta_units_down,
    delta_units_up,
    rho_from_nano,
    rho_nano_down,
)
from dpsql.state.policy_rows import NOUNS
from dpsql.state.rules import MAX_MIN_UNITS, Declaration

PATIENT = Unit("patient", rho_budget=1000, delta_threshold=50, delta_conversion=1e-6)
VISITS = ProtectedTable("main.visits", "patient", "patient_id", max_groups=4, max_rows_per_group=5)


@pytest.fixture
def state() -> Iterator[State]:
    with State.open(None, create=True) as opened:
        opened.declare_unit(PATIENT)
        opened.declare_protected(VISITS)
        opened.declare_public(PublicTable("main.cities"))
        yield opened


@given(st.decimals(0, 10**6, allow_nan=False, places=12))
def test_rho_is_rounded_to_the_safe_side_and_by_less_than_one_unit(rho: Decimal) -> None:
    exact = Fraction(rho) * NANO_PER_RHO
    assert 0 <= exact - rho_nano_down(rho) < 1


@given(st.decimals(0, 1, allow_nan=False, places=35))
def test_delta_is_rounded_to_the_safe_side_and_by_less_than_one_unit(delta: Decimal) -> None:
    exact = Fraction(delta) * DELTA_UNITS_PER_ONE
    assert 0 <= delta_units_up(delta) - exact < 1
    assert 0 <= exact - delta_units_down(delta) < 1


@given(st.integers(0, 10**15))
def test_a_float_of_whole_nanos_is_a_budget_of_as_many(nanos: int) -> None:
    # The float beside 0.3 lies below it, the one beside 0.1 above: neither may lose a unit.
    rho = nanos / NANO_PER_RHO
    assert rho_nano_down(rho) == nanos


@given(st.integers(0, 2**63 - 1))
def test_noise_is_never_calibrated_from_more_rho_than_was_charged(nanos: int) -> None:
    rho = rho_from_nano(nanos)
    assert Fraction(rho) <= Fraction(nanos, NANO_PER_RHO) < Fraction(math.nextafter(rho, math.inf))


@given(st.integers(0, DELTA_UNITS_PER_ONE))
def test_a_threshold_is_never_set_for_more_delta_than_was_charged(units: int) -> None:
    delta = delta_from_units(units)
    assert Fraction(delta) <= Fraction(units, DELTA_UNITS_PER_ONE) < Fraction(math.nextafter(delta, math.inf))


@pytest.mark.parametrize("amount", [math.nan, math.inf, -math.inf, -1e-300, Decimal("NaN"), Decimal("sNaN"), 1e10])
def test_amounts_that_are_not_amounts_are_refused(amount: float | Decimal) -> None:
    with pytest.raises(CalibrationError):
        delta_units_up(amount)
    for down in (rho_nano_down, delta_units_down):
        with pytest.raises(PolicyError):
            down(amount)


@pytest.mark.parametrize(
    "declaration",
    [
        Unit("", 1, 0, 1e-6),
        Unit("u", 0, 0, 1e-6),
        Unit("u", 2**63, 0, 1e-6),
        Unit("u", True, 0, 1e-6),
        Unit("u", 1, -1, 1e-6),
        Unit("u", 1, 2**100, 1e-6),
        Unit("u", 1, 0, 0.0),
        Unit("u", 1, 0, 1.0),
        Unit("u", 1, 0, math.nan),
        Unit("u", 1, 0, 1e-6, "pld"),  # type: ignore[arg-type]
        ProtectedTable("t", "", "c"),
        ProtectedTable("t", "u", "c", max_groups=0),
        ProtectedTable("t", "u", "c", max_rows_per_group=-1),
        ProtectedTable("t", "u", "c", default_rho=0),
        ProtectedTable("t", "u", "c", default_epsilon=math.inf),
        ProtectedTable("t", "u", "c", default_epsilon=math.nan),
        ProtectedTable("t", "u", "c", default_rho=1, default_epsilon=1.0),
        ProtectedTable("t", "u", "c", default_delta=0.0),
        ProtectedTable("t", "u", "c", min_units=0),
        ProtectedTable("t", "u", "c", min_units=-20),
        ProtectedTable("t", "u", "c", min_units=True),
        ProtectedTable("t", "u", "c", min_units=20.0),  # type: ignore[arg-type]
        ProtectedTable("t", "u", "c", min_units=MAX_MIN_UNITS + 1),
        PublicTable(""),
        Domain("t", "c"),
        Domain("t", "c", bounds=(1.0, 1.0)),
        Domain("t", "c", bounds=(2.0, 1.0)),
        Domain("t", "c", bounds=(0.0, math.inf)),
        Domain("t", "c", bounds=(math.nan, 1.0)),
        Domain("t", "c", bounds=(-1.7e308, 1.7e308)),
        Domain("t", "c", keys=()),
        Domain("t", "c", keys=("'a'", "'a'")),
        Domain("t", "c", keys=("'a'",), keys_from=("p", "c")),
        Domain("t", "c", keys_from=("p", "")),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(declaration: Declaration) -> None:
    with pytest.raises(PolicyError):
        checked(declaration)


def test_what_breaks_a_rule_is_never_stored(state: State) -> None:
    before = state.policy()
    table = "main.visits"
    declarations: tuple[Callable[[], None], ...] = (
        lambda: state.declare_unit(Unit("patient", 1000, 50, 1.0)),
        lambda: state.declare_protected(ProtectedTable(table, "patient", "patient_id", max_groups=0)),
        lambda: state.declare_protected(VISITS, Link(table, (), table, ())),
        lambda: state.declare_public(PublicTable("")),
        lambda: state.declare_domain(Domain(table, "cost", bounds=(1.0, 1.0))),
        lambda: state.declare_analyst(ClearedAnalyst("ana", 0)),
    )
    for declare in declarations:
        with pytest.raises(PolicyError):
            declare()
    assert state.policy() == before


def test_the_policy_reads_back_what_was_declared(state: State) -> None:
    bounds = Domain("main.visits", "cost", bounds=(0.0, 500.5))
    keys = Domain("main.visits", "ward", keys=("'a'", "NULL"))
    borrowed = Domain("main.visits", "city", keys_from=("main.cities", "name"))
    for domain in (keys, bounds, borrowed):
        state.declare_domain(domain)
    visits = ProtectedTable("main.visits", "patient", "patient_id", 4, 5, None, 0.5, 1e-9)
    state.declare_protected(visits)
    policy = state.policy()
    assert policy == Policy(
        units=(PATIENT,),
        tables=(ProtectedTable("main.visits", "patient", "patient_id", 4, 5, None, 0.5, 1e-9, version="1"),),
        versions=state.policy().versions,
        public=(PublicTable("main.cities", "1"),),
        domains=(borrowed, bounds, keys),
    )
    assert policy.unit("patient") == PATIENT
    assert policy.unit(" Patient") == PATIENT
    assert policy.unit("patients") is None
    assert policy.protected_table("main.visits") == policy.tables[0]
    assert policy.protected_table("main.cities") is None
    assert policy.public_table("main.cities") == policy.public[0]
    assert policy.public_table("main.visits") is None
    assert policy.domain("main.visits", "cost") == bounds
    assert policy.domain("main.cities", "cost") is None


@pytest.mark.parametrize("min_units", [1, 20, MAX_MIN_UNITS])
def test_the_least_number_of_units_reads_back_and_is_recorded(state: State, min_units: int) -> None:
    assert VISITS.min_units is None
    assert state.policy().tables[0].min_units is None
    state.declare_protected(dataclasses.replace(VISITS, min_units=min_units))
    assert state.policy().tables == (dataclasses.replace(VISITS, min_units=min_units, version="1"),)
    with state._database.read() as connection:
        (logged,) = connection.execute("SELECT declaration FROM policy_log ORDER BY id DESC LIMIT 1").fetchone()
    assert json.loads(logged)["min_units"] == min_units
    # as every other setting, what a declaration leaves out is not declared any more
    state.declare_protected(VISITS)
    assert state.policy().tables[0].min_units is None


def test_a_budget_changes_but_not_below_what_is_spent(state: State) -> None:
    state.ledger.charge("patient", [ChargeItem("s", 600, 30)], "ana")
    for too_low in (Unit("patient", 599, 50, 1e-6), Unit("patient", 1000, 29, 1e-6)):
        with pytest.raises(PolicyError):
            state.declare_unit(too_low)
    assert state.policy().units == (PATIENT,)
    exact = Unit("patient", 600, 30, 1e-7)
    state.declare_unit(exact)
    assert state.policy().units == (exact,)


def test_changes_are_recorded_and_repetitions_are_not(state: State) -> None:
    def recorded() -> int:
        with state._database.read() as connection:
            return int(connection.execute("SELECT count(*) FROM policy_log").fetchone()[0])

    domain = Domain("main.visits", "cost", bounds=(0.0, 1.0))
    state.declare_domain(domain)
    before = recorded()
    state.declare_unit(PATIENT)
    state.declare_protected(VISITS)
    state.declare_public(PublicTable("main.cities", "1"))
    state.declare_domain(domain)
    assert recorded() == before
    state.declare_unit(Unit("patient", 2000, 50, 1e-6))
    assert recorded() == before + 1


def test_a_unit_in_another_spelling_is_that_unit(state: State) -> None:
    """A process that looked before the first declaration writes its own spelling after it: no second budget begins."""
    state.declare_unit(dataclasses.replace(PATIENT, name=" Patient"))
    state.ledger.charge("patient", [ChargeItem("s", 10, 0)], "ana")
    with pytest.raises(PolicyError, match="composition is 'gaussian'"):
        state.declare_unit(dataclasses.replace(PATIENT, name="PATIENT", composition="zcdp"))
    with pytest.raises(PolicyError, match="less than what it has paid"):
        state.declare_unit(dataclasses.replace(PATIENT, name="PATIENT", rho_budget=9))
    assert state.policy().units == (PATIENT,)


def test_every_declaration_has_its_word_in_state_files() -> None:
    # files of earlier programs hold these words
    assert {kind: NOUNS[kind] for kind in get_args(Declaration)} == {
        Unit: "Unit",
        ProtectedTable: "ProtectedTable",
        PublicTable: "PublicTable",
        Domain: "Domain",
        ClearedAnalyst: "ClearedAnalyst",
        Link: "Link",
    }


def test_a_class_with_another_name_is_recorded_by_its_word(state: State) -> None:
    def recorded() -> list[str]:
        with state._database.read() as connection:
            return [str(noun) for (noun,) in connection.execute("SELECT noun FROM policy_log ORDER BY id")]

    before = recorded()
    Unit.__name__ = "PrivacyUnit"
    try:
        state.declare_unit(Unit("patient", 2000, 50, 1e-6))
    finally:
        Unit.__name__ = "Unit"
    assert recorded() == [*before, "Unit"]
    assert set(before) == {"Unit", "ProtectedTable", "PublicTable"}


def test_a_table_never_changes_its_unit(state: State) -> None:
    state.declare_unit(Unit("doctor", 1, 0, 1e-6))
    with pytest.raises(PolicyError):
        state.declare_protected(ProtectedTable("main.visits", "doctor", "doctor_id"))
    with pytest.raises(PolicyError):
        state.declare_protected(ProtectedTable("main.bills", "nobody", "id"))
    assert [table.unit for table in state.policy().tables] == ["patient"]


def test_a_table_is_protected_or_public_but_not_both(state: State) -> None:
    with pytest.raises(PolicyError):
        state.declare_public(PublicTable("main.visits"))
    with pytest.raises(PolicyError):
        state.declare_protected(ProtectedTable("main.cities", "patient", "id"))
    assert len(state.policy().tables) == len(state.policy().public) == 1


def test_a_domain_is_stored_whole_and_can_be_withdrawn(state: State) -> None:
    both = Domain("main.visits", "x", (0.0, 1.0), ("1", "2"))
    state.declare_domain(both)
    assert state.policy().domains == (both,)
    listed = Domain("main.visits", "x", keys_from=("main.cities", "x"))
    state.declare_domain(listed)
    assert state.policy().domains == (listed,)
    state.withdraw_domain(listed)
    assert state.policy().domains == ()
    with state._database.read() as connection:
        logged = [json.loads(row[0]) for row in connection.execute("SELECT declaration FROM policy_log ORDER BY id")]
    assert logged[-1] == {**json.loads(json.dumps(dataclasses.asdict(listed))), "withdrawn": True}


def test_of_several_spellings_of_an_analyst_the_lowest_limit_counts_until_one_is_declared(state: State) -> None:
    with state._database.write() as connection:
        rows = "(' Ana ', 7), ('ana', NULL), ('ANA', 5), ('bob', NULL)"
        connection.execute(f"INSERT INTO analyst (name, rho_limit) VALUES {rows}")
    assert state.policy().analyst("aNa") == ClearedAnalyst("ANA", 5)
    state.declare_analyst(ClearedAnalyst("ana", 9))
    assert state.policy().analysts == (ClearedAnalyst("ANA", 9), ClearedAnalyst("bob", None))


def test_domains_need_declared_tables_and_keys_a_public_one(state: State) -> None:
    for domain in (
        Domain("main.unknown", "x", bounds=(0.0, 1.0)),
        Domain("main.visits", "x", keys_from=("main.visits", "x")),
        Domain("main.visits", "x", keys_from=("main.unknown", "x")),
    ):
        with pytest.raises(PolicyError):
            state.declare_domain(domain)
    assert state.policy().domains == ()


def test_versions_run_and_are_never_used_twice(state: State) -> None:
    assert state.new_version("main.visits") == "2"
    assert state.new_version("main.visits", "2026-11") == "2026-11"
    assert state.new_version("main.visits", "5") == "5"
    assert state.new_version("main.visits") == "6"
    assert state.new_version("main.cities", "2026-11") == "2026-11"
    for used in ("1", "2", "2026-11", "5", "6", ""):
        with pytest.raises(PolicyError):
            state.new_version("main.visits", used)
    with pytest.raises(PolicyError):
        state.new_version("main.unknown")
    assert state.policy().tables[0].version == "6"


def test_declaring_again_keeps_the_version_and_cannot_move_it(state: State) -> None:
    state.new_version("main.visits", "b")
    state.declare_protected(VISITS)
    state.declare_protected(ProtectedTable("main.visits", "patient", "patient_id", version="b"))
    assert state.policy().tables[0].version == "b"
    assert state.policy().tables[0].max_groups is None
    for moved in ("1", "c"):
        with pytest.raises(PolicyError):
            state.declare_protected(ProtectedTable("main.visits", "patient", "patient_id", version=moved))
    with pytest.raises(PolicyError):
        state.declare_public(PublicTable("main.cities", "2"))
