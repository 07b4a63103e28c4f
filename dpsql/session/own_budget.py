"""The budget as a reader with a limit sees it: their own charges, and their own part.

A charge may follow from released numbers that the reader may not see: where the steps of a question by relative error
stopped tells about its counts. So amounts of the unit are not for such a reader.
"""

from __future__ import annotations

from dpsql.receipts import words
from dpsql.receipts.screen import Standing
from dpsql.session.rests import Rest, epsilon_of
from dpsql.state import DELTA_UNITS_PER_ONE, NANO_PER_RHO, ClearedAnalyst, State, Unit


def own_amounts(state: State, unit: Unit, reader: ClearedAnalyst) -> dict[str, object]:
    """Return the columns of ``dp_budget`` that differ for a reader with a limit.

    Args:
        state: the state file.
        unit: the privacy unit.
        reader: who asks, as declared.

    """
    spent, part = state.ledger.own(unit.name, reader.name)
    last = state.history.last_paid(unit.name, reader.name)
    rest = None if part is None else Rest(unit, part, reader.rho_limit)
    return {
        "epsilon_spent": epsilon_of(unit, spent.rho_nano),
        "epsilon_next": rest and rest.epsilon_next,
        "questions_left": rest.times(last) if rest and last else None,
        "half_width_factor": rest.half_width_factor(last) if rest and last else None,
        "rho_spent": spent.rho_nano / NANO_PER_RHO,
        "rho_left": part and part.rho_nano / NANO_PER_RHO,
        "threshold_delta_spent": spent.delta_units / DELTA_UNITS_PER_ONE,
        "threshold_delta_left": part and part.delta_units / DELTA_UNITS_PER_ONE,
        "delta_spent": spent.delta_units / DELTA_UNITS_PER_ONE + (unit.delta_conversion if spent.rho_nano else 0.0),
        "note": words.OWN_AMOUNTS_NO_PART if part is None else words.OWN_AMOUNTS,
    }


def own_standing(state: State, unit: Unit, reader: ClearedAnalyst, query_hash: str) -> Standing | None:
    """Return the part of a unit's budget that a reader with a limit may spend; None if they have no part.

    Args:
        state: the state file.
        unit: the privacy unit.
        reader: who asked, as declared.
        query_hash: the question that was answered.

    """
    spent, part = state.ledger.own(unit.name, reader.name)
    if part is None:
        return None
    last = state.history.last_paid(unit.name, reader.name)
    of_part = reader.part_of(unit.rho_budget)
    return Standing(
        epsilon_spent=epsilon_of(unit, spent.rho_nano),
        epsilon_budget=epsilon_of(unit, of_part),
        rho_spent=spent.rho_nano / NANO_PER_RHO,
        rho_budget=of_part / NANO_PER_RHO,
        questions_left=Rest(unit, part, reader.rho_limit).times(last)
        if last and last.query_hash == query_hash
        else None,
    )
