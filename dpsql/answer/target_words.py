"""Sentences of plans and receipts about questions by relative error; `cap_words.py` has their rows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dpsql.answer import cap_words
from dpsql.model.query_kinds import RelativeError


def relative_error(target: RelativeError) -> str:
    """Say which relative error a question asks for.

    >>> relative_error(RelativeError(0.1, 0.9, 0.95))
    'at most 10 % for each count, sum and average, in at least 90 % of the groups (95 %)'
    """
    return (
        f"at most {100.0 * target.error:.6g} % for each count, sum and average, in at least "
        f"{100.0 * target.at_least:.6g} % of the groups ({100.0 * target.confidence:.0f} %)"
    )


def asked(target: RelativeError) -> str:
    """Say in a receipt which relative error its question asked for.

    >>> asked(RelativeError(0.1, 1.0, 0.95))
    'asked for a relative error of at most 10 % for each count, sum and average, in at least 100 % of the groups (95 %)'
    """
    return cap_words.ASKED_RELATIVE.format(target=relative_error(target))


ENDINGS: Mapping[str, str] = {
    "most": "the question allows no higher level",
    "budget": "others used the budget meanwhile, so that no further step could be paid",
    "rises": "no higher level can be drawn of these numbers",
}
"""Why the last step was the last although the target is not reached, by the names of `Stop`."""


def _counted(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


def outcome(share: float, column: str, steps: int, rho: float, ending: str, *, of_noise: bool = False) -> str:
    """Say in a receipt what the steps of a question led to.

    Args:
        share: of the groups that are within the target, rounded down where it is said.
        column: which one has this share; an empty text if all have.
        steps: how many there were.
        rho: level of the answer.
        ending: why the last step was the last.
        of_noise: whether bounds may leave out more, so that noise alone is within the target.

    >>> outcome(0.9349, "", 7, 0.0123, "met")
    '93.4 % of the groups are within it after 7 steps, at rho = 0.0123'
    >>> outcome(0.9349, "", 7, 0.0123, "met", of_noise=True)
    'noise is within it in 93.4 % of the groups after 7 steps, at rho = 0.0123'
    >>> outcome(0.9, "cost", 7, 0.0123, "met")
    '90 % of the groups are within it for cost after 7 steps, at rho = 0.0123'
    >>> outcome(0.5, "", 2, 0.01, "most")
    'the target is not reached: 50 % of the groups are within it after 2 steps, at rho = 0.01; the question allows no \
higher level'
    """
    # 89.96 % must not be said as the 90 % that were asked for
    percent = math.floor(round(1000.0 * share, 6)) / 10.0
    of_column = f" for {column}" if column else ""
    sentence = cap_words.NOISE_WITHIN if of_noise else cap_words.WITHIN_TARGET
    shown = sentence.format(percent=percent, of_column=of_column, steps=_counted(steps), rho=rho)
    return shown if ending == "met" else cap_words.NOT_REACHED.format(shown=shown, why=ENDINGS[ending])


def enough(rho: float) -> str:
    """Say in a receipt which level would have been enough, had it been known.

    >>> enough(0.011)
    'by a forecast from these numbers, a question at rho = 0.011 would be within it'
    """
    return cap_words.FORECAST.format(rho=rho)


def stopped(rho: float, steps: int) -> str:
    """Say in a plan where a question stopped that was asked before.

    >>> stopped(0.0123, 7)
    'at rho = 0.0123, after 7 steps; asked again, it is answered there free of charge'
    """
    return f"at rho = {rho:.9g}, after {_counted(steps)}; asked again, it is answered there free of charge"


def window(low: float, high: float, delta: float) -> str:
    """Say in a plan which window the private keys of a question have.

    >>> window(2.0**-16, 1.0, 9.9e-7)
    'rho from 1.52587891e-05 to 1; its thresholds cost delta = 9.9e-07 once'
    """
    return f"rho from {low:.9g} to {high:.9g}; its thresholds cost delta = {delta:.6g} once"


def not_affordable(rho: float, delta: float) -> str:
    """Say in a plan that the most that all steps cost cannot be paid.

    >>> not_affordable(0.1, 1e-7)
    'no: rho = 0.1 and delta = 1e-07 are left'
    """
    return f"no: rho = {rho:.6g} and delta = {delta:.6g} are left"
