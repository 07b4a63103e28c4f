"""The cap that half widths need if AUTO finds the bounds that their level follows from."""

from __future__ import annotations

from dataclasses import replace

from dpsql.errors import Refusal
from dpsql.model.refusals import Refusals, refuse_combinations
from dpsql.operations import blanks
from dpsql.sql.source.sources import SelectText

_CAPS = frozenset(("max_rho", "max_epsilon"))
_WITH_CAP = f"Write OPTIONS (max_rho = {blanks.RHO})"


def has_ceiling(text: SelectText) -> bool:
    """Check whether text or policy says a ceiling, with which no cap goes."""
    return bool(text.options.rho_ceiling or text.owner.rules.levels.ceiling)


def needs_named_bounds(text: SelectText) -> bool:
    """Check whether a text cannot leave missing bounds to AUTO: half widths then need a cap, and it has a ceiling."""
    return text.options.target_half_width is not None and has_ceiling(text)


def check_cap(text: SelectText) -> None:
    """Note a refusal if no option says how much the half widths of a text may take, whose bounds AUTO finds."""
    if text.options.given & _CAPS or text.owner.rules.counts_epsilon:
        # AUTO is refused where levels are epsilons
        return
    cure = "Name bounds in place of AUTO" if has_ceiling(text) else _WITH_CAP
    things = {"target_half_width", "AUTO without max_rho"}
    place = text.hint or text.clauses.select[0]
    refuse_combinations(things, things, place, text.refusals, cure=cure)


def refusal_without_cap(text: SelectText) -> Refusal | None:
    """Return the refusal of a text that leaves its bounds to AUTO, if it asks by half widths without a cap.

    Return None for any other text.
    """
    if text.options.target_half_width is None:
        return None
    apart = replace(text, refusals=Refusals(text.refusals.text))
    check_cap(apart)
    return next(iter(apart.refusals.found), None)
