"""The table of ``dp_budget``: what each unit may spend and has spent, and what is left for one reader."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pyarrow as pa

from dpsql.cascade.reader import CURATOR
from dpsql.errors import AccessError, DpsqlError, PolicyError
from dpsql.model.environment import folded
from dpsql.receipts import words
from dpsql.receipts.result import Result
from dpsql.receipts.screen import Standing
from dpsql.session.call_arguments import misused, wanted
from dpsql.session.declarations.budgets import epsilon_budget
from dpsql.session.rests import Rest, epsilon_of
from dpsql.sql.statements import FunctionCall
from dpsql.state import (
    DELTA_UNITS_PER_ONE,
    NANO_PER_RHO,
    ClearedAnalyst,
    Policy,
    State,
    Unit,
    amount_of,
)


def budget_table(
    state: State, wanted: tuple[str, ...], analysts: tuple[str, ...] | None, *, is_own: bool = False
) -> Result:
    """Return the answer of ``FROM dp_budget('patient', analysts := ['ana', 'bob'])``, one row a unit.

    Of one statistic a coalition holds the highest level that any member was shown, of several statistics the sum.
    For one analyst alone, the rest is what this analyst can spend, and the last question is their own. An analyst with
    a limit who asks is shown no amount of the unit (`own_budget.py`).

    Args:
        state: the state file.
        wanted: units, none for all.
        analysts: the coalition, None for everybody.
        is_own: whether the only analyst asks, and not the curator.

    Raises:
        PolicyError: there is no such unit.

    """
    policy = state.policy()
    units = [unit for unit in policy.units if not wanted or unit.name in wanted]
    if wanted and not units:
        raise PolicyError(f"there is no privacy unit {wanted[0]!r}")
    rows = [_row(state, policy, unit, analysts) for unit in units]
    if is_own and analysts and _declared(policy, analysts[0]).rho_limit is not None:
        from dpsql.session.own_budget import own_amounts  # noqa: PLC0415 — few readers have a limit

        declared = _declared(policy, analysts[0])
        own = ({**own_amounts(state, unit, declared), **of_epsilon(unit)} for unit in units)
        rows = [row | amounts for row, amounts in zip(rows, own, strict=True)]
    return Result(pa.Table.from_pylist(rows, schema=_SCHEMA))


def standing_of(state: State, unit_name: str, query_hash: str, reader: str | None) -> Standing | None:
    """Return the budget of a unit as one reader may see it after an answer; None if it cannot be read any more.

    Args:
        state: the state file.
        unit_name: the privacy unit.
        query_hash: the question that was answered.
        reader: who asked; None for the curator.

    """
    with contextlib.suppress(DpsqlError):
        policy = state.policy()
        unit = policy.unit(unit_name)
        if unit is not None:
            declared = _declared(policy, reader)
            if declared.rho_limit is not None:
                from dpsql.session.own_budget import own_standing  # noqa: PLC0415 — few readers have a limit

                return own_standing(state, unit, declared, query_hash)
            spent = state.ledger.spent(unit.name)
            rest = Rest(unit, state.ledger.left(unit.name, reader), declared.rho_limit)
            last = state.history.last_paid(unit.name, reader)
            return Standing(
                epsilon_spent=epsilon_of(unit, spent.rho_nano),
                epsilon_budget=epsilon_budget(unit),
                rho_spent=spent.rho_nano / NANO_PER_RHO,
                rho_budget=unit.rho_budget / NANO_PER_RHO,
                questions_left=rest.times(last) if last and last.query_hash == query_hash else None,
            )
    return None


def asked_budget(call: FunctionCall, reader: str, read: Callable[[], State]) -> Result:
    """Return the table of dp_budget for a reader: of the units and analysts that its arguments name.

    Raises:
        AccessError: an analyst asks what others hold.
        PolicyError: an argument is wrong.

    """
    asked = wanted(call, {name: value for name, value in call.named.items() if name != "analysts"})
    analysts = call.named.get("analysts")
    listed = analysts if isinstance(analysts, tuple) else ()
    coalition = tuple(name.strip() for name in listed if isinstance(name, str))
    if not isinstance(analysts, tuple | None) or len(coalition) < len(listed):
        raise misused(call)
    if reader == CURATOR:
        return budget_table(read(), asked, None if analysts is None else coalition)
    if isinstance(analysts, tuple) and {folded(name) for name in coalition} != {folded(reader)}:
        raise AccessError("what others hold is for the curator; leave analysts out")
    return budget_table(read(), asked, (reader,), is_own=True)


def _row(state: State, policy: Policy, unit: Unit, analysts: tuple[str, ...] | None) -> dict[str, object]:
    """Return the row of one unit, by the names of its columns."""
    reader = analysts[0] if analysts and len(analysts) == 1 else None
    declared = _declared(policy, reader)
    spent = state.ledger.spent(unit.name)
    rest = Rest(unit, state.ledger.left(unit.name, reader), declared.rho_limit)
    last = state.history.last_paid(unit.name, reader)
    held = state.history.held(unit.name, analysts)
    row = {
        "unit": unit.name,
        "epsilon_budget": epsilon_budget(unit),
        "epsilon_spent": epsilon_of(unit, spent.rho_nano),
        "epsilon_next": rest.epsilon_next,
        "delta_next": unit.default_delta,
        "questions_left": None if last is None else rest.times(last),
        "half_width_factor": None if last is None else rest.half_width_factor(last),
        "rho_budget": unit.rho_budget / NANO_PER_RHO,
        "rho_spent": spent.rho_nano / NANO_PER_RHO,
        "rho_left": rest.left.rho_nano / NANO_PER_RHO,
        "threshold_delta_budget": unit.delta_threshold / DELTA_UNITS_PER_ONE,
        "threshold_delta_spent": spent.delta_units / DELTA_UNITS_PER_ONE,
        "threshold_delta_left": rest.left.delta_units / DELTA_UNITS_PER_ONE,
        "delta_budget": unit.delta_budget,
        "delta_spent": spent.delta_units / DELTA_UNITS_PER_ONE + (unit.delta_conversion if spent.rho_nano else 0.0),
        "budget_part": declared.budget_part,
        "held_by": "everybody" if analysts is None else ", ".join(analysts),
        "rho_held": held / NANO_PER_RHO,
        "epsilon_held": epsilon_of(unit, held),
        "last_query_hash": None if last is None else last.query_hash,
        "note": words.EPSILONS_DO_NOT_ADD_UP,
    }
    return row | of_epsilon(unit)


def of_epsilon(unit: Unit) -> dict[str, object]:
    """Return the columns that differ for a unit that counts epsilon: it has no amounts of rho."""
    if amount_of(unit.composition) == "rho":
        return {}
    return {**dict.fromkeys(_OF_RHO), "note": words.EPSILONS_ADD_UP}


_OF_RHO = ("rho_budget", "rho_spent", "rho_left", "rho_held")


def _declared(policy: Policy, reader: str | None) -> ClearedAnalyst:
    """Return what is declared of a reader; without a reader or a declaration, an analyst without limits."""
    return (reader is not None and policy.analyst(reader)) or ClearedAnalyst("", None)


_SCHEMA = pa.schema(
    [("unit", pa.string())]
    + [(name, pa.float64()) for name in ("epsilon_budget", "epsilon_spent", "epsilon_next", "delta_next")]
    + [("questions_left", pa.int64())]
    + [
        (name, pa.float64())
        for name in (
            "half_width_factor",
            "rho_budget",
            "rho_spent",
            "rho_left",
            "threshold_delta_budget",
            "threshold_delta_spent",
            "threshold_delta_left",
            "delta_budget",
            "delta_spent",
            "budget_part",
        )
    ]
    + [("held_by", pa.string()), ("rho_held", pa.float64()), ("epsilon_held", pa.float64())]
    + [("last_query_hash", pa.string()), ("note", pa.string())]
)
