"""What a query is answered by where neither policy nor text bounds anything: norms and numbers of groups by AUTO.

Only what would be refused for want of a bound comes here, so that whatever is answered by named bounds stays what it
is. The choice is the one that predicts the least error for most tables (docs/accuracy.md): keys first where keys are
private, and all that a unit adds bounded by a norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dpsql.errors import Refusal
from dpsql.model.private_query import FoundBounds
from dpsql.model.refusals import Refusals
from dpsql.plan.features.auto import GROUPS
from dpsql.sql.source.sources import SelectText

_MISSING = {"max_groups_missing", "bounds_missing"}


def left_to_auto(text: SelectText, refused: Iterable[Refusal], found: FoundBounds) -> Iterator[SelectText]:
    """The text with what AUTO may choose for it, the better first; none where a bound is named, or none is missing.

    Args:
        text: what was refused.
        refused: why.
        found: what AUTO found before: a number of groups where rounds of key selection are not worth their share.

    """
    rules, options = text.owner.rules, text.options
    if rules.max_groups or rules.max_rows_per_group or rules.max_rows_per_unit:
        return
    if not any(refusal.code in _MISSING for refusal in refused):
        return
    free = replace(text, refusals=Refusals(text.refusals.text), finds_bounds=True)
    by_norm = replace(options, bounding=options.bounding or "NORM")
    if text.select.keys:
        groups = options.max_groups_contributed or "AUTO"
        mechanism = options.mechanism or (None if GROUPS in found else "KEYS_FIRST")
        yield replace(free, options=replace(by_norm, max_groups_contributed=groups, mechanism=mechanism))
    yield replace(free, options=by_norm, refusals=Refusals(text.refusals.text))


def is_for_bounds_alone(refused: Iterable[Refusal]) -> bool:
    """Whether a text was refused for nothing but that bounds are missing."""
    return all(refusal.code in _MISSING for refusal in refused)


def reasons_left(refused: Sequence[Refusal], attempts: Sequence[Sequence[Refusal]]) -> Sequence[Refusal]:
    """Why a text is refused for more than bounds, less those that AUTO would choose if all else were mended.

    Args:
        refused: why it is, with no bounds left to AUTO.
        attempts: why it is, with what `left_to_auto` gives, each.

    """
    # without a level no attempt goes far enough to tell
    if is_for_bounds_alone(refused) or any(one.code == "privacy_level_missing" for one in refused):
        return refused

    def is_chosen(reason: Refusal) -> bool:
        return reason.code in _MISSING and any(reason.span not in [one.span for one in found] for found in attempts)

    return [reason for reason in refused if not is_chosen(reason)]
