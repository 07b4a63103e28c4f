"""The changes of a unit that are refused once it has paid for an answer (docs/proofs/ledger.md, section 4)."""

from __future__ import annotations

import sqlite3

from dpsql.errors import PolicyError
from dpsql.state.policy import Unit


def require_fixed_terms(connection: sqlite3.Connection, before: Unit, after: Unit) -> None:
    """Refuse what would choose a budget by its history: after the first charge, some changes of a unit.

    These are another composition, other thresholds, and an amount that rises while another one falls.
    """
    changes = [
        f"{name} is {told(getattr(before, name))}"
        for name, told in (("composition", repr), ("thresholds", lambda value: str(value).lower()))
        if getattr(before, name) != getattr(after, name)
    ]
    rises = [old < new for old, new in zip(_amounts(before), _amounts(after), strict=False) if old != new]
    if not changes and len(set(rises)) < 2:
        return
    if not connection.execute("SELECT 1 FROM charge WHERE unit = ? LIMIT 1", (before.name,)).fetchone():
        return
    if changes:
        raise PolicyError(
            f"unit {before.name!r} has paid for answers, which fixes how its budget adds up: {', '.join(changes)}; "
            "leave that out of the declaration"
        )
    raise PolicyError(
        f"unit {before.name!r} has paid for answers, so no amount of its budget (rho and delta) may rise while another "
        "one falls; name a budget in which none falls, or none rises"
    )


def _amounts(unit: Unit) -> tuple[float, ...]:
    """Return rho and the parts of delta of a unit; without thresholds, the parts follow from the whole delta."""
    if not unit.thresholds:
        return unit.rho_budget, unit.delta_budget
    return unit.rho_budget, unit.delta_threshold, unit.delta_conversion
