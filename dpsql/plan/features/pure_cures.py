"""Refusals of questions to a unit that counts epsilon: no reason about an option that is refused, and no cure by rho.

Options and calls are read before the unit is known. So their refusals advise what a unit takes that counts rho.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from dpsql.errors import Refusal
from dpsql.model.combinations import COMBINATIONS, Combination
from dpsql.plan.aggregates.registry import BY_NAME
from dpsql.plan.features.pure import LEFT_OUT, OF_RHO, answered
from dpsql.sql.source.sources import SelectText

_REFUSED = {*OF_RHO, *LEFT_OUT}
_BY_RHO = re.compile(r"OPTIONS \(rho = [^,()]*\)")
_CALLS = re.compile(r"\b(\w+)\(")
_UNANSWERED = BY_NAME.keys() - {"count", "count_if", "sum", "avg", "bool_or", "bool_and"}
_EXTREMES = "extremes = "


def _row(thing: str, beside: str) -> Combination:
    """Return the row of the table that says why two things do not go together."""
    return next(one for one in COMBINATIONS if one.thing == thing and beside in one.beside)


_BESIDE_HALF_WIDTHS = _row("target_half_width", "rho").message
_HINTS = {
    _row("at_least", "no target_relative_error").message: "Leave at_least out.",
    _row("confidence", "no target").message: "Leave confidence out. It goes with target_half_width.",
}
"""Hints that name no option by which a pure unit has no answers, by messages."""


def in_epsilon(text: SelectText, refused: Iterable[Refusal]) -> list[Refusal]:
    """Return the refusals of a question to a unit that counts epsilon, with cures that it accepts.

    Args:
        text: the question.
        refused: why it has no answer.

    """
    return list(_in_epsilon(text, refused))


def _in_epsilon(text: SelectText, refused: Iterable[Refusal]) -> Iterator[Refusal]:
    given = text.options.given & _REFUSED
    things = given | ({"a ceiling"} if "rho_ceiling" in given else set())
    # an option that is refused by itself is refused beside no other one
    moot = {one.message for one in COMBINATIONS if one.thing in things}
    for refusal in refused:
        if refusal.message in moot:
            continue
        if refusal.message == _BESIDE_HALF_WIDTHS:
            if "epsilon" in text.options.given:
                hint = "Leave epsilon out; max_epsilon refuses what costs more."
                yield replace(refusal, message=refusal.message.replace("rho", "epsilon"), hint=hint)
            continue
        hint = _HINTS.get(refusal.message, _BY_RHO.sub("OPTIONS (epsilon = 0.5)", refusal.hint))
        if refusal.code == "aggregate" and (_EXTREMES in hint or _UNANSWERED & {*_CALLS.findall(hint)}):
            hint = f"Ask for {answered(text)}."
        yield replace(refusal, hint=hint)
