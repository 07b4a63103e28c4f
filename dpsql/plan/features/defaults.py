"""Bounds that neither policy nor text names, each of them left to AUTO by itself.

Only a text that would be refused for want of a bound comes here. A text that named bounds answer keeps its plan. The
order of the attempts follows the error that is predicted for most tables (docs/measured.md). Private keys are selected
first. A norm bounds all that a unit adds, unless the policy says how many rows of a unit count in a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from dpsql.errors import Refusal, SchemaError, Span, UnsupportedQueryError
from dpsql.model.combinations import COMBINATIONS
from dpsql.model.private_query import FoundBounds, PrivateQuery
from dpsql.model.refusals import Refusals
from dpsql.plan.features.auto import GROUPS
from dpsql.plan.features.half_width_caps import refusal_without_cap
from dpsql.sql.source.sources import SelectText

MISSING = {"max_groups_missing", "bounds_missing"}
"""Reasons for which a bound is left to AUTO."""
_SEEN_LATER = {"literal", "row_type", "row_syntax", "size"}
"""Reasons that no choice of bounds brings. They are looked for once all bounds are there."""
_OF_TEXT = {one.message for one in COMBINATIONS if "AUTO" not in " ".join((one.thing, *one.beside))}
"""Messages of the reasons that come from a text's own options and aggregates, once these have bounds."""
_STAND_IN_RHO = 1.0
"""Level by which reasons are looked for if a query names none. Nothing is answered at it."""

Reason = tuple[str, Span | None, str]
"""Code, span and message of a refusal. The message is empty for missing bounds, which have several."""
Plan = Callable[[SelectText], PrivateQuery]
"""Plans a text."""


def plan_with_auto(
    text: SelectText, read: Sequence[Refusal], refused: Sequence[Refusal], found: FoundBounds, plan: Plan
) -> PrivateQuery:
    """Return the plan of a refused text, its missing bounds left to AUTO.

    Args:
        text: what was refused.
        read: reasons that were noted while the text was read, before it was planned.
        refused: all reasons.
        found: bounds that AUTO found before.
        plan: plans a text.

    Raises:
        UnsupportedQueryError: more than bounds is wrong. The reasons are those that stay once a level is given and
            AUTO finds the bounds. Reasons about the level and the options come first.

    """
    of_level = [one for one in refused if one.code == "privacy_level_missing"]
    if of_level:
        text = replace(text, options=replace(text.options, rho=_STAND_IN_RHO))
    without_cap = refusal_without_cap(text)
    others = planned = refused
    if of_level or read:
        planned = _reasons_apart(text, plan, refused)
        if all(one.code == "option" for one in read):
            of_level = [*(one for one in refused if one in read), *of_level]
            others = planned
    attempts: list[Sequence[Refusal]] = []
    own: set[Reason] = set()
    for free in left_to_auto(text, planned, found):
        try:
            query = plan(free)
        except UnsupportedQueryError as error:
            attempts.append(error.refusals)
            own |= _own_reasons(text, free, error.refusals)
        else:
            if not of_level and not without_cap and is_for_bounds_alone(others):
                return query
            attempts.append(())
            break
    stay = reasons_left(planned, attempts, own)
    left = [one for one in others if one.code not in MISSING or _reason(one) in stay]
    later = stay.difference(map(_reason, planned))
    left += {_reason(one): one for attempt in attempts for one in attempt if _reason(one) in later}.values()
    if any(one.code == "mechanism" for one in left) and not text.has_sets:
        # AUTO finds the bounds of the text without the mechanism
        left = [one for one in left if one.code not in MISSING]
    if without_cap and not has_all_bounds(refused) and has_all_bounds(left):
        of_level.append(without_cap)
    raise UnsupportedQueryError([*of_level, *(one for one in left if one not in of_level)])


def _reason(refusal: Refusal) -> Reason:
    return refusal.code, refusal.span, "" if refusal.code in MISSING else refusal.message


def _own_reasons(text: SelectText, free: SelectText, refused: Iterable[Refusal]) -> set[Reason]:
    """Return the reasons of an attempt that come from the text; none if the attempt chose KEYS_FIRST or NORM itself."""
    asked, chosen = text.options, free.options
    if (asked.mechanism, asked.bounding) != (chosen.mechanism, chosen.bounding):
        return set()
    return {_reason(one) for one in refused if one.code not in MISSING and one.message in _OF_TEXT}


def _reasons_apart(text: SelectText, plan: Plan, refused: Sequence[Refusal]) -> Sequence[Refusal]:
    """Return why a text is refused apart from what was noted while it was read; ``refused`` if that cannot be told."""
    try:
        plan(replace(text, refusals=Refusals(text.refusals.text)))
    except UnsupportedQueryError as error:
        return error.refusals
    except SchemaError:
        return refused
    return ()


def left_to_auto(text: SelectText, refused: Iterable[Refusal], found: FoundBounds) -> Iterator[SelectText]:
    """Return the text with its missing bounds left to AUTO, once for each form of bounding, the better one first.

    A bound that policy or text names is used in each of them.

    Args:
        text: what was refused.
        refused: why. Nothing is returned if no bound is missing.
        found: bounds that AUTO found before. One group of a unit needs no rounds of key selection.

    """
    if has_all_bounds(refused):
        return
    rules, options = text.owner.rules, text.options
    named = options.max_groups_contributed or rules.max_groups
    has_one = named == 1 and not options.max_groups_contributed
    # private keys of a question by a target have one threshold
    has_target = options.target_relative_error is not None or options.target_half_width is not None
    in_one = has_one or GROUPS in found or has_target
    first = options.mechanism or (None if in_one else "KEYS_FIRST")
    forms = (None, "NORM") if rules.max_rows_per_group else ("NORM", None)
    for form in (options.bounding,) if options.bounding else forms:
        wanted = replace(options, bounding=form)
        by_auto = replace(wanted, max_groups_contributed=options.max_groups_contributed or (None if named else "AUTO"))
        choices = [replace(by_auto, mechanism=first), wanted, by_auto] if text.select.keys else [wanted]
        for choice in dict.fromkeys(choices):
            finds_mechanism = choice.mechanism != options.mechanism
            refusals = Refusals(text.refusals.text)
            yield replace(text, options=choice, refusals=refusals, finds_bounds=True, finds_mechanism=finds_mechanism)


def has_all_bounds(refused: Iterable[Refusal]) -> bool:
    """Return whether no bound of a text is missing."""
    return not any(refusal.code in MISSING for refusal in refused)


def is_for_bounds_alone(refused: Iterable[Refusal]) -> bool:
    """Return whether a text was refused for nothing but missing bounds."""
    return all(refusal.code in MISSING for refusal in refused)


def reasons_left(
    planned: Sequence[Refusal], attempts: Iterable[Sequence[Refusal]], own: AbstractSet[Reason]
) -> set[Reason]:
    """Return the reasons that stay if AUTO finds the bounds that it can find.

    Args:
        planned: why a text is refused with no bounds left to AUTO.
        attempts: why each text is refused that `left_to_auto` returns. One counts if it has no other reasons than
            these, those that are looked for later, and those of the text.
        own: reasons of the text that only show once its aggregates have bounds.

    """
    every = set(map(_reason, planned)) | own
    reasons = (set(map(_reason, attempt)) for attempt in attempts)
    counted = [one for one in reasons if all(code in _SEEN_LATER for code, _, _ in one - every)]
    return min(counted, key=lambda one: (sum(code in MISSING for code, _, _ in one), len(one)), default=every)
