"""The ledger: exact at the boundary, all or nothing, never refunded, among many processes and threads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpsql.errors
from dpsql.errors import BudgetError, CalibrationError, PolicyError, ReleaseError, StateError
from dpsql.state import (
    DELTA_UNITS_PER_ONE,
    Additions,
    Charged,
    ChargeItem,
    ClearedAnalyst,
    Point,
    ProtectedTable,
    Spent,
    State,
    Unit,
    delta_units_up,
)
from tests.unit.state.stored_points import top_point

ROOT = Path(dpsql.errors.__file__).parents[1]


def new_state(path: Path | None, rho_budget: int = 1000, delta_threshold: int = 50) -> State:
    state = State.open(path, create=True)
    state.declare_unit(Unit("patient", rho_budget, delta_threshold, 1e-6))
    state.declare_protected(ProtectedTable("main.visits", "patient", "patient_id"))
    return state


def store_point(state: State, statistic: str, rho_nano: int, charge_ids: tuple[int, ...]) -> None:
    state.side_table.frame_salt("frame", "patient", ["main.visits"])
    point = Point(statistic, rho_nano, "frame", np.zeros(0, np.int64), 0, 1.0, None, 0)
    state.side_table.store("frame", Additions(None, [point], charge_ids))


def test_a_charge_stores_its_cap() -> None:
    with new_state(None) as state:
        state.ledger.charge("patient", [ChargeItem("a", 10, 0)], "ana")
        assert not state.ledger.caps_beside("patient", "a")
        for rho_nano, cap_nano in ((5, 60), (0, 900), (5, 50)):
            item = ChargeItem("a", state.ledger.unused("patient", "a").rho_nano + rho_nano, 0, cap_nano=cap_nano)
            state.ledger.charge("patient", [item], "ana")
        # what was charged before pays for the second one, so it has no row
        assert set(state.ledger.caps_beside("patient", "a")) == {(60, "a", 60), (50, "a", 50)}
        assert not state.ledger.caps_beside("patient", "b")
        assert state.ledger.spent("patient") == Spent(20, 0)


def test_a_budget_is_used_to_the_last_unit_and_not_beyond() -> None:
    with new_state(None) as state:
        assert state.ledger.spent("patient") == Spent(0, 0)
        first = state.ledger.charge("patient", [ChargeItem("a", 400, 20), ChargeItem("b", 599, 30)], "ana")
        assert first == Charged(999, 50, (1, 2))
        for item in (ChargeItem("c", 2, 0), ChargeItem("c", 0, 1), ChargeItem("c", 1, 1)):
            with pytest.raises(BudgetError):
                state.ledger.charge("patient", [item], "ana")
        assert state.ledger.charge("patient", [ChargeItem("c", 1, 0)], "ana").rho_nano == 1
        assert state.ledger.spent("patient") == Spent(1000, 50)
        assert state.ledger.charge("patient", [ChargeItem("d", 0, 0)], "ana") == Charged(0, 0, ())


def test_a_refused_charge_changes_nothing_and_says_what_is_left() -> None:
    with new_state(None, rho_budget=10**9, delta_threshold=delta_units_up(1e-6)) as state:
        state.ledger.charge("patient", [ChargeItem("a", 7 * 10**8, 0)], "ana")
        items = [ChargeItem("b", 10**8, 0), ChargeItem("c", 3 * 10**8, delta_units_up(1e-8))]
        with pytest.raises(BudgetError) as caught:
            state.ledger.charge("patient", items, "ana")
        assert caught.value.unit == "patient"
        assert caught.value.requested_rho == 0.4
        assert caught.value.remaining_rho == 0.3
        assert caught.value.requested_delta == pytest.approx(1e-8, rel=1e-12)
        assert caught.value.remaining_delta == pytest.approx(1e-6, rel=1e-12)
        assert state.ledger.spent("patient") == Spent(7 * 10**8, 0)
        assert state.ledger.charge("patient", [items[0]], "ana").rho_nano == 10**8


def test_amounts_beyond_64_bits_add_up_exactly() -> None:
    whole = DELTA_UNITS_PER_ONE - 1
    with new_state(None, rho_budget=2**63 - 1, delta_threshold=whole) as state:
        state.ledger.charge("patient", [ChargeItem("a", 2**62, whole // 2)], "ana")
        state.ledger.charge("patient", [ChargeItem("b", 2**62 - 1, whole - whole // 2)], "ana")
        assert state.ledger.spent("patient") == Spent(2**63 - 1, whole)
        with pytest.raises(BudgetError):
            state.ledger.charge("patient", [ChargeItem("c", 2**63 - 1, 0)], "ana")
        with pytest.raises(BudgetError):
            state.ledger.charge("patient", [ChargeItem("c", 0, 1)], "ana")


def test_each_unit_has_its_own_budget() -> None:
    with new_state(None) as state:
        state.declare_unit(Unit("doctor", 5, 0, 1e-6))
        state.ledger.charge("patient", [ChargeItem("a", 1000, 0)], "ana")
        state.ledger.charge("doctor", [ChargeItem("a", 5, 0)], "ana")
        assert state.ledger.spent("doctor") == Spent(5, 0)
        for unknown in (lambda: state.ledger.spent("nurse"), lambda: state.ledger.charge("nurse", [], "ana")):
            with pytest.raises(PolicyError):
                unknown()


@pytest.mark.parametrize("amount", [-1, 0.5, float("nan"), True, 2**63, np.int64(1), "1"])
def test_only_whole_amounts_reach_the_ledger(amount: int) -> None:
    with pytest.raises((StateError, CalibrationError)):
        ChargeItem("a", amount, 0)
    if amount != 2**63:
        with pytest.raises(StateError):
            ChargeItem("a", 0, amount)


def test_a_statistic_is_charged_once_a_time() -> None:
    with new_state(None) as state, pytest.raises(StateError):
        state.ledger.charge("patient", [ChargeItem("a", 1, 0), ChargeItem("a", 1, 0)], "ana")


def test_what_was_charged_but_never_stored_is_used_up_first() -> None:
    with new_state(None) as state:
        assert state.ledger.charge("patient", [ChargeItem("a", 100, 5)], "ana") == Charged(100, 5, (1,))
        assert state.ledger.charge("patient", [ChargeItem("a", 100, 5)], "bob") == Charged(0, 0, (1,))
        assert state.ledger.charge("patient", [ChargeItem("a", 60, 9)], "ana") == Charged(0, 4, (1, 2))
        more = state.ledger.charge("patient", [ChargeItem("b", 1, 0), ChargeItem("a", 130, 0)], "ana")
        assert more == Charged(31, 0, (1, 2, 3, 4))
        store_point(state, "a", 130, (1, 2, 4))
        assert state.ledger.charge("patient", [ChargeItem("a", 140, 5)], "ana") == Charged(140, 5, (5,))
        assert state.ledger.spent("patient") == Spent(271, 14)


def test_an_open_charge_pays_although_the_budget_is_gone() -> None:
    with new_state(None) as state:
        state.ledger.charge("patient", [ChargeItem("a", 1000, 50)], "ana")
        assert state.ledger.charge("patient", [ChargeItem("a", 1000, 50)], "ana") == Charged(0, 0, (1,))


def test_one_charge_never_pays_for_two_releases() -> None:
    # Two queries that ignore the frame's lock get the same open charge; only one of them can store.
    with new_state(None) as state:
        first = state.ledger.charge("patient", [ChargeItem("a", 100, 0)], "ana")
        second = state.ledger.charge("patient", [ChargeItem("a", 100, 0)], "bob")
        assert first.charge_ids == second.charge_ids
        store_point(state, "a", 100, first.charge_ids)
        with pytest.raises(ReleaseError):
            store_point(state, "a", 101, second.charge_ids)
        top = top_point(state.side_table, "a")
        assert top is not None
        assert top.rho_nano == 100


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE charge SET rho_nano = 0",
        "DELETE FROM charge",
        "INSERT OR REPLACE INTO charge VALUES (1, 'patient', 'a', 0, '0', 'ana', '', NULL, NULL, NULL)",
        "UPDATE closed_charge SET charge_id = 2",
        "DELETE FROM closed_charge",
    ],
)
def test_charges_and_their_closing_marks_cannot_be_changed(tmp_path: Path, statement: str) -> None:
    with new_state(tmp_path / "s.dpsql") as state:
        store_point(state, "a", 9, state.ledger.charge("patient", [ChargeItem("a", 9, 0)], "ana").charge_ids)
        with pytest.raises(StateError, match="never changed"), state._database.write() as connection:
            connection.execute(statement)
        assert state.ledger.spent("patient") == Spent(9, 0)


ASK = st.tuples(
    st.sampled_from("abc"),
    st.integers(0, 400),
    st.integers(0, 20),
    st.booleans(),
    st.sampled_from(("ana", " Ana", "bob", "cleo")),
)


@settings(max_examples=40)
@given(st.lists(ASK, max_size=12))
def test_the_ledger_follows_its_model(asks: list[tuple[str, int, int, bool, str]]) -> None:
    # ana may spend three tenths, and bob a half
    most = {"ana": Spent(300, 15), "bob": Spent(500, 25), "cleo": Spent(1000, 50)}
    paid = dict.fromkeys((*most, "all"), Spent(0, 0))
    held: dict[str, tuple[int, int]] = {}
    level: dict[str, int] = {}
    with new_state(None) as state:
        for name, part in (("ana", 0.3), ("BOB", 0.5)):
            state.declare_analyst(ClearedAnalyst(name, None, part))
        for statistic, rho, delta, crash, analyst in asks:
            name = analyst.strip().lower()
            open_rho, open_delta = held.get(statistic, (0, 0))
            new_rho, new_delta = max(0, rho - open_rho), max(0, delta - open_delta)
            items, left = [ChargeItem(statistic, rho, delta)], state.ledger.left("patient", analyst)
            assert left == Spent(
                min(1000 - paid["all"].rho_nano, most[name].rho_nano - paid[name].rho_nano),
                min(50 - paid["all"].delta_units, most[name].delta_units - paid[name].delta_units),
            )
            if new_rho > left.rho_nano or new_delta > left.delta_units:
                with pytest.raises(BudgetError):
                    state.ledger.charge("patient", items, analyst)
                with pytest.raises(BudgetError):
                    state.ledger.require("patient", items, analyst)
            else:
                state.ledger.require("patient", items, analyst)
                charged = state.ledger.charge("patient", items, analyst)
                assert (charged.rho_nano, charged.delta_units) == (new_rho, new_delta)
                for one in (name, "all"):
                    paid[one] = Spent(paid[one].rho_nano + new_rho, paid[one].delta_units + new_delta)
                held[statistic] = (open_rho + new_rho, open_delta + new_delta)
                if not crash and rho > level.get(statistic, 0):
                    store_point(state, statistic, rho, charged.charge_ids)
                    level[statistic] = rho
                    held[statistic] = (0, 0)
            assert state.ledger.spent("patient") == paid["all"]


def test_discrete_noise_is_charged_where_the_composition_holds_for_it() -> None:
    """The second look in the transaction: a plan may be older than the unit."""
    items = [ChargeItem("counts", 7, 0, "zcdp"), ChargeItem("sums", 3, 1)]
    with new_state(None) as state:
        for ask in (
            lambda: state.ledger.charge("patient", items, "ana"),
            lambda: state.ledger.require("patient", items, "ana"),
        ):
            with pytest.raises(ReleaseError, match="'patient' became 'gaussian', which does not hold"):
                ask()
        assert state.ledger.spent("patient") == Spent(0, 0)
        assert state.ledger.charge("patient", items[1:], "ana").rho_nano == 3
    with State.open(None, create=True) as state:
        state.declare_unit(Unit("patient", 10, 1, 1e-6, "zcdp"))
        assert state.ledger.charge("patient", items, "ana") == Charged(10, 1, (1, 2))


def test_an_analyst_spends_a_part_to_the_last_unit_and_not_beyond() -> None:
    with new_state(None, rho_budget=1009, delta_threshold=59) as state:
        ledger = state.ledger
        state.declare_analyst(ClearedAnalyst("Ana", None, 0.3))
        assert ledger.left("patient", "ana") == Spent(302, 17)
        ledger.charge("patient", [ChargeItem("open", 200, 10)], " aNA ")
        ledger.charge("patient", [ChargeItem("others", 5, 5)], "bob")
        assert ledger.left("patient", "ana") == Spent(102, 7)
        assert ledger.left("patient", "bob") == ledger.left("patient", None) == Spent(804, 44)
        for item in (ChargeItem("a", 103, 0), ChargeItem("a", 0, 8)):
            for ask in (ledger.charge, ledger.require):
                with pytest.raises(BudgetError) as caught:
                    ask("patient", [item], "ana")
            assert caught.value.analyst == "ana"
            assert (caught.value.remaining_rho, caught.value.requested_rho) == (102 / 1e9, item.rho_nano / 1e9)
            assert caught.value.remaining_delta == 7 / DELTA_UNITS_PER_ONE
            assert "the part of the budget of unit 'patient' that 'ana' may spend" in str(caught.value)
            ledger.require("patient", [item], "bob")
        assert ledger.charge("patient", [ChargeItem("a", 102, 7)], "ANA").rho_nano == 102
        # what nobody was shown yet, and what bob paid for, costs ana nothing more
        assert ledger.charge("patient", [ChargeItem("open", 200, 10)], "ana") == Charged(0, 0, (1,))
        assert ledger.charge("patient", [ChargeItem("others", 5, 5)], "ana") == Charged(0, 0, (2,))
        assert ledger.left("patient", "ana") == Spent(0, 0)


def test_the_budget_rules_over_parts_that_add_up_to_more() -> None:
    with new_state(None) as state:
        state.declare_unit(Unit("doctor", 10, 10, 1e-6))
        for name in ("ana", "bob"):
            state.declare_analyst(ClearedAnalyst(name, None, 0.7))
        state.ledger.charge("patient", [ChargeItem("a", 700, 20)], "ana")
        assert state.ledger.left("patient", "bob") == Spent(300, 30)
        with pytest.raises(BudgetError, match="the budget of privacy unit 'patient'") as caught:
            state.ledger.charge("patient", [ChargeItem("b", 301, 0)], "bob")
        assert caught.value.analyst is None
        with pytest.raises(BudgetError) as caught:
            state.ledger.charge("patient", [ChargeItem("b", 0, 1), ChargeItem("c", 1, 0)], "ana")
        assert caught.value.analyst == "ana"
        # a part holds in each unit by itself; a lower one than was spent leaves nothing, and never less
        assert state.ledger.left("doctor", "ana") == Spent(7, 7)
        state.declare_analyst(ClearedAnalyst("ana", None, 0.1))
        assert state.ledger.left("patient", "ana") == Spent(0, 0)
        state.declare_analyst(ClearedAnalyst("ana", None))
        assert state.ledger.left("patient", "ana") == Spent(300, 30)


@pytest.mark.parametrize(("part", "most"), [(0.3, 300), (1.0, 1000), (0.1 + 0.2, 300), (0.29999999, 299), (1e-9, 0)])
def test_a_part_is_the_decimal_that_names_it(part: float, most: int) -> None:
    assert ClearedAnalyst("ana", None, part).part_of(1000) == most
    assert ClearedAnalyst("ana", None, 0.3).part_of(10**30) == 3 * 10**29


CHARGE_UNTIL_REFUSED = """
import sys, time
from dpsql.errors import BudgetError
from dpsql.state import ChargeItem, State

path, process, analyst, seconds = sys.argv[1:]
state = State.open(path, create=False)
print("ready", flush=True)
sys.stdin.readline()
end, number, taken, refused = time.monotonic() + float(seconds), 0, {"patient": 0, "doctor": 0}, set()
while len(refused) < 2 or time.monotonic() < end:
    for unit in taken:
        number += 1
        try:
            taken[unit] += state.ledger.charge(unit, [ChargeItem(f"{process}-{number}", 7, 1)], analyst).rho_nano
        except BudgetError:
            refused.add(unit)
print(*taken.values())
"""


def run_chargers(path: Path, analysts: Sequence[str], seconds: float) -> list[tuple[int, int]]:
    """Return the nano-rho of patient and of doctor that one process of each analyst took, until all was refused."""
    chargers = [
        subprocess.Popen(
            [sys.executable, "-c", CHARGE_UNTIL_REFUSED, path, str(number), analyst, str(seconds)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, analyst in enumerate(analysts)
    ]
    for charger in chargers:
        assert charger.stdout is not None
        assert charger.stdout.readline() == "ready\n"
    taken = []
    for charger in chargers:
        assert charger.stdin is not None
        charger.stdin.write("\n")
        charger.stdin.flush()
    for charger in chargers:
        output, _ = charger.communicate(timeout=600)
        assert charger.returncode == 0
        patient, doctor = map(int, output.split())
        taken.append((patient, doctor))
    return taken


@pytest.mark.parametrize(
    ("analysts", "charges", "seconds"),
    [(["ana", "ANA", "bob"], 20, 0), pytest.param(["ana", "bob", "ANA", " bob"] * 2, 1000, 5, marks=pytest.mark.long)],
)
def test_processes_share_budgets_and_parts_to_the_last_unit(
    tmp_path: Path, analysts: list[str], charges: int, seconds: float
) -> None:
    path = tmp_path / "s.dpsql"
    with new_state(path, rho_budget=7 * charges + 6, delta_threshold=2 * charges) as state:
        # delta is what a doctor lacks
        state.declare_unit(Unit("doctor", 9 * charges, charges, 1e-6))
        # together more than the budget, which rules
        for name, part in (("ana", 0.3), ("bob", 0.9)):
            state.declare_analyst(ClearedAnalyst(name, None, part))
        taken = run_chargers(path, analysts, seconds)
        for unit, of_unit in zip(("patient", "doctor"), zip(*taken, strict=True), strict=True):
            by_ana = sum(rho for name, rho in zip(analysts, of_unit, strict=True) if name.lower() == "ana")
            assert sum(of_unit) == 7 * charges
            assert by_ana <= 7 * charges * 3 // 10
            assert sum(of_unit) - by_ana <= 7 * charges * 9 // 10
            assert state.ledger.spent(unit) == Spent(7 * charges, charges)
        assert state.ledger.charge("patient", [ChargeItem("the rest", 6, 0)], "cleo").rho_nano == 6
        with pytest.raises(BudgetError):
            state.ledger.charge("patient", [ChargeItem("one more", 1, 0)], "cleo")


@pytest.mark.parametrize("in_memory", [True, False])
def test_threads_share_one_state(tmp_path: Path, in_memory: bool) -> None:
    def charge(number: int) -> int:
        try:
            return state.ledger.charge("patient", [ChargeItem(f"s{number}", 7, 0)], "ana").rho_nano
        except BudgetError:
            return 0

    with (
        new_state(None if in_memory else tmp_path / "s.dpsql", rho_budget=7 * 50 + 6) as state,
        ThreadPoolExecutor(8) as threads,
    ):
        assert sorted(threads.map(charge, range(80))) == [0] * 30 + [7] * 50
        assert state.ledger.spent("patient") == Spent(350, 0)


CHARGE_AND_DIE = """
import os, signal, sys
from dpsql.state import ChargeItem, State

state = State.open(sys.argv[1], create=False)
with state.locks.exclusive("frame"):
    state.ledger.charge("patient", [ChargeItem("a", 100, 5), ChargeItem("b", 50, 0)], "ana")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_crash_between_charge_and_store_is_paid_for_once(tmp_path: Path) -> None:
    path = tmp_path / "s.dpsql"
    with new_state(path) as state:
        died = subprocess.run([sys.executable, "-c", CHARGE_AND_DIE, path], cwd=ROOT, check=False, timeout=600)
        assert died.returncode == -9
        assert state.ledger.spent("patient") == Spent(150, 5)
        with state.locks.exclusive("frame"):
            again = [ChargeItem("b", 50, 0), ChargeItem("a", 100, 5)]
            assert state.ledger.charge("patient", again, "ana") == Charged(0, 0, (1, 2))
        assert state.ledger.spent("patient") == Spent(150, 5)
