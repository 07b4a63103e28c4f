"""Composition and thresholds of a unit in the state file: stored, logged, and fixed by the first charge."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dpsql.errors import PolicyError
from dpsql.state import ChargeItem, State, Unit

PATIENT = Unit("patient", rho_budget=1000, delta_threshold=50, delta_conversion=1e-6)
OTHERS = (
    replace(PATIENT, composition="zcdp"),
    replace(PATIENT, thresholds=False),
    replace(PATIENT, composition="zcdp", thresholds=False, rho_budget=2000),
)
CHARGE = [ChargeItem("s", 7, 3)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "clinic.dpsql"
    with State.open(path, create=True) as state:
        state.declare_unit(PATIENT)
    return path


@pytest.fixture
def curator(path: Path) -> Iterator[State]:
    with State.open(path, create=False) as state:
        yield state


@pytest.fixture
def asker(path: Path) -> Iterator[State]:
    """Another program on the same file."""
    with State.open(path, create=False) as state:
        yield state


def logged(state: State) -> list[Any]:
    with state._database.read() as connection:
        return [json.loads(row) for (row,) in connection.execute("SELECT declaration FROM policy_log ORDER BY id")]


def test_terms_are_stored_and_logged_and_may_change_before_a_charge(curator: State, asker: State) -> None:
    for other in (*OTHERS, PATIENT, PATIENT):
        curator.declare_unit(other)
        assert asker.policy().units == (other,)
    assert logged(curator) == [asdict(unit) for unit in (PATIENT, *OTHERS, PATIENT)]


def test_terms_stay_after_a_charge_that_another_program_made(curator: State, asker: State) -> None:
    other = curator.policy()
    curator.declare_unit(Unit("host", 1000, 50, 1e-6))
    asker.ledger.charge("patient", CHARGE, "ana")
    for unit in OTHERS:
        with pytest.raises(PolicyError, match="has paid for answers"):
            curator.declare_unit(unit)
    assert curator.policy().unit("patient") == other.unit("patient")
    assert len(logged(curator)) == 2
    # amounts may change, and other units are not concerned
    curator.declare_unit(replace(PATIENT, rho_budget=900))
    curator.declare_unit(Unit("host", 1000, 50, 1e-6, "zcdp"))


@pytest.mark.parametrize("thresholds", [True, False])
def test_no_amount_rises_while_another_falls_after_a_charge(curator: State, *, thresholds: bool) -> None:
    """Delta that moves between measures after a charge would be chosen by history."""
    unit = replace(PATIENT, name="guest", thresholds=thresholds, delta_threshold=2**80)
    exchanged = [
        replace(unit, rho_budget=1001, delta_conversion=9e-7),
        replace(unit, rho_budget=99, delta_conversion=1e-5),
    ]
    exchanged += [replace(unit, delta_threshold=2**79, delta_conversion=2e-6)] if thresholds else []
    for one in (*exchanged, unit):
        curator.declare_unit(one)
    curator.ledger.charge("guest", CHARGE, "ana")
    for one in exchanged:
        with pytest.raises(PolicyError, match="may rise while another"):
            curator.declare_unit(one)
    assert curator.policy().unit("guest") == unit
    for one in (replace(unit, rho_budget=1001, delta_conversion=2e-6), unit, replace(unit, rho_budget=999)):
        curator.declare_unit(one)


def test_a_charge_while_terms_are_declared_keeps_the_terms(curator: State, asker: State) -> None:
    """The declaration waits for the write of the charge, and looks at charges only then."""
    with ThreadPoolExecutor(1) as pool:
        with asker._database.write() as connection:
            declared = pool.submit(curator.declare_unit, OTHERS[0])
            time.sleep(0.1)
            connection.execute(
                "INSERT INTO charge (unit, statistic_hash, rho_nano, delta_units, analyst, at) "
                "VALUES ('patient', 's', 7, '3', 'ana', '2026-01-01T00:00:00+00:00')"
            )
            assert not declared.done()
        with pytest.raises(PolicyError, match="composition is 'gaussian'"):
            declared.result(timeout=60)
    assert asker.policy().units == (PATIENT,)


def test_a_charge_and_other_terms_at_the_same_moment_take_turns(curator: State, asker: State) -> None:
    """Whoever comes second finds what the first one wrote: terms are never those of a later declaration."""
    with ThreadPoolExecutor(2) as pool:
        for number in range(10):
            unit = Unit(f"unit {number}", 1000, 50, 1e-6)
            curator.declare_unit(unit)
            charged = pool.submit(asker.ledger.charge, unit.name, CHARGE, "ana")
            declared = pool.submit(curator.declare_unit, replace(unit, composition="zcdp"))
            assert charged.result(timeout=60).rho_nano == 7
            is_refused = declared.exception(timeout=60) is not None
            found = curator.policy().unit(unit.name)
            assert found is not None
            assert (found.composition == "gaussian") == is_refused
            with pytest.raises(PolicyError):
                curator.declare_unit(replace(unit, composition="zcdp" if is_refused else "gaussian"))
