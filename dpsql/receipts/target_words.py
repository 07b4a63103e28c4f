"""Sentences of plans and receipts about questions by relative error; `words.py` has their rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dpsql.errors import BudgetError
from dpsql.model.query_kinds import RelativeError
from dpsql.receipts import phrases, words
from dpsql.state import Stop


def relative_error(target: RelativeError, *, of_rows: bool = False) -> str:
    """Say which relative error a question asks for.

    Args:
        target: the rule.
        of_rows: whether it counts the rows that LIMIT picks, in place of all groups.

    >>> relative_error(RelativeError(0.1, 0.9, 0.95))
    'at most 10 % for each count, sum and average, in at least 90 % of the groups (95 %)'
    >>> relative_error(RelativeError(0.1, 1.0, 0.95), of_rows=True)
    'at most 10 % for each count, sum and average, in at least 100 % of the rows of LIMIT (95 %)'
    """
    return (
        f"at most {100.0 * target.error:.6g} % for each count, sum and average, in at least "
        f"{100.0 * target.at_least:.6g} % of the {'rows of LIMIT' if of_rows else 'groups'} "
        f"({100.0 * target.confidence:.0f} %)"
    )


def of_largest(target: RelativeError, limit: int | None) -> str:
    """Say which relative error a question for the largest counts asks for.

    >>> of_largest(RelativeError(0.1, 0.9, 0.95), 100)
    'at most 10 % for each count that is shown, of the 100 largest (95 %)'
    >>> of_largest(RelativeError(0.1, 0.9, 0.95), None)
    'at most 10 % for each count that is shown (95 %)'
    """
    largest = f", of the {limit:,} largest" if limit else ""
    confidence = f"({100.0 * target.confidence:.0f} %)"
    return f"at most {100.0 * target.error:.6g} % for each count that is shown{largest} {confidence}"


def asked(target: RelativeError, *, of_rows: bool = False) -> str:
    """Say in a receipt which relative error its question asked for.

    >>> asked(RelativeError(0.1, 1.0, 0.95))
    'asked for a relative error of at most 10 % for each count, sum and average, in at least 100 % of the groups (95 %)'
    """
    return words.ASKED_RELATIVE.format(target=relative_error(target, of_rows=of_rows))


OTHER_METHOD = (
    "method = CORRELATED, if nothing else in the text speaks against it, spends all of the level and shows each count "
    "within the error"
)
"""Says in a plan that another method answers the same question."""

ENDINGS: Mapping[str, str] = {
    "most": "the question allows no higher level",
    "budget": "others used the budget meanwhile, so that no further step could be paid",
    "rises": "no higher level can be drawn of these numbers",
}
"""Why the last step was the last although the target is not reached, by the names of `Stop`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Groups of the last step that are within the target.

    Attributes:
        within: how many are.
        counted: of how many shown groups.
        asked: how many have to be.
        needed: how many rows LIMIT asks for; None if all shown groups are counted.
        column: the column of which this is so; an empty text if it is so of all.

    """

    within: int
    counted: int
    asked: int
    needed: int | None = None
    column: str = ""

    @property
    def whole(self) -> str:
        """Say of how many groups how many are within the target."""
        if self.needed is None:
            return f"{self.within:,} of {self.counted:,} groups"
        if self.counted < self.needed:
            shown = "row that is shown" if self.counted == 1 else f"{self.counted:,} rows that are shown"
            return f"{self.within:,} of the {shown}"
        return f"{self.within:,} of {phrases.number_of(self.counted, 'row')}"

    @property
    def share(self) -> str:
        """Say which part of the groups is within the target, rounded down."""
        if self.needed is not None:
            return self.whole
        # 89.96 % must not be said as the 90 % that were asked for
        percent = math.floor(round(1000.0 * self.within / max(self.counted, 1), 6)) / 10.0
        return f"{percent:g} % of the groups"

    @property
    def of_column(self) -> str:
        """Say of which column this is so."""
        return f" for {self.column}" if self.column else ""


def outcome(found: Outcome, steps: int, rho: float, *, of_noise: bool = False) -> str:
    """Say in a receipt that the steps of a question have led to its target.

    Args:
        found: the groups within the target.
        steps: how many there were.
        rho: level of the answer.
        of_noise: whether bounds may leave out more, so that noise alone is within the target.

    >>> outcome(Outcome(9_349, 10_000, 9_000), 7, 0.0123)
    '93.4 % of the groups are within it after 7 steps, at rho = 0.0123'
    >>> outcome(Outcome(9_349, 10_000, 9_000), 7, 0.0123, of_noise=True)
    'noise is within it in 93.4 % of the groups after 7 steps, at rho = 0.0123'
    >>> outcome(Outcome(5, 5, 5, needed=5, column="cost"), 7, 0.0123)
    '5 of 5 rows are within it for cost after 7 steps, at rho = 0.0123'
    """
    sentence = words.NOISE_WITHIN if of_noise else words.WITHIN_TARGET
    return sentence.format(
        share=found.share, of_column=found.of_column, steps=phrases.number_of(steps, "step"), rho=rho
    )


def missed(found: Outcome, error: float, stop: Stop, rho: float, *, of_noise: bool = False) -> str:
    """Say in a receipt by how many groups the target is missed, and why.

    Args:
        found: the groups within the target.
        error: the relative error that was asked for.
        stop: where the steps ended, and why.
        rho: level of the answer.
        of_noise: as in `outcome`.

    >>> missed(Outcome(246, 300, 270), 0.1, Stop(10, 2, "most"), 0.01)
    'the target is not reached: 246 of 300 groups are within 10 %, and 270 are asked for; the question allows no \
higher level; this is after 2 steps, at rho = 0.01'
    >>> missed(Outcome(2, 3, 5, needed=5), 0.1, Stop(10, 1, "budget"), 0.01).split(";")[0]
    'the target is not reached: 2 of the 3 rows that are shown are within 10 %, and 5 are asked for'
    >>> missed(Outcome(0, 1, 1, needed=1), 0.1, Stop(10, 1, "most"), 0.01, of_noise=True).split(";")[0]
    'the target is not reached: noise is within 10 % in 0 of 1 row, and 1 is asked for'
    >>> missed(Outcome(0, 0, 5, needed=5), 0.1, Stop(10, 1, "most"), 0.01).split(";")[0]
    'the target is not reached: no row is shown'
    """
    asked_for = f"{found.asked:,} {'is' if found.asked == 1 else 'are'}"
    told = {"share": found.whole, "percent": 100.0 * error, "of_column": found.of_column, "asked": asked_for}
    shown = (words.NOISE_MISSES if of_noise else words.MISSED_BY).format(**told)
    if not found.counted:
        shown = words.NONE_SHOWN.format(what="group" if found.needed is None else "row")
    why = words.ENDED.format(why=ENDINGS[stop.ending], steps=phrases.number_of(stop.steps, "step"), rho=rho)
    return words.NOT_REACHED.format(shown=shown, why=why)


def enough(rho: float) -> str:
    """Say in a receipt which level would have been enough, had it been known.

    >>> enough(0.011)
    'by a forecast from these numbers, a question at rho = 0.011 would be within it'
    """
    return words.FORECAST.format(rho=rho)


def stopped(rho: float, steps: int) -> str:
    """Say in a plan where a question stopped that was asked before.

    >>> stopped(0.0123, 7)
    'at rho = 0.0123, after 7 steps; asked again, it is answered there free of charge'
    """
    after = phrases.number_of(steps, "step")
    return f"at rho = {rho:.9g}, after {after}; asked again, it is answered there free of charge"


def window(low: float, high: float, delta: float) -> str:
    """Say in a plan which window the private keys of a question have.

    >>> window(2.0**-16, 1.0, 9.9e-7)
    'rho from 1.52587891e-05 to 1; its thresholds cost delta = 9.9e-07 once'
    """
    return f"rho from {low:.9g} to {high:.9g}; its thresholds cost delta = {delta:.6g} once"


def not_affordable(error: BudgetError) -> str:
    """Say in a plan that the most that all steps cost cannot be paid."""
    if error.remaining_rho is None:
        return "no: what is left is not shown to a reader with a rho_limit"
    return f"no: {error.told(error.remaining_rho, error.remaining_delta)} are left"
