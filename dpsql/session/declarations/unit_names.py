"""The warning of a new unit whose name looks like that of another unit: one slip gives people a second budget."""

from __future__ import annotations

from dpsql.model.look_alikes import difference, look_alike
from dpsql.operations.dialect import text_literal
from dpsql.state import Policy

LOOKS_LIKE = "the name of this unit looks like that of unit "
"""The beginning of the warning."""


def look_alike_unit(name: str, policy: Policy) -> str:
    """Return a warning if a unit is new and its name looks like that of another unit; else an empty text.

    Args:
        name: of the unit.
        policy: before the unit is declared.

    """
    other = None if policy.unit(name) else look_alike(name.strip(), (unit.name for unit in policy.units))
    if other is None:
        return ""
    return (
        f"{LOOKS_LIKE}{other!r}, and each has a budget of its own: {difference(name.strip(), other)}. For the same "
        f"people name unit := {text_literal(other)}"
    )
