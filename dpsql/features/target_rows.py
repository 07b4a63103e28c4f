"""Rows of ``dp_explain`` for a question by relative error: its cap, where its steps begin, and its window."""

from __future__ import annotations

from dpsql.answer import target_words
from dpsql.answer.offer import Offer
from dpsql.answer.plan_rows import Row
from dpsql.cascade.reader import Reader
from dpsql.errors import BudgetError
from dpsql.features.target_levels import cap_nano
from dpsql.mechanism.registry import histogram_of
from dpsql.mechanism.window import charged_delta
from dpsql.model.frame import NANO
from dpsql.model.query_kinds import WithinTarget
from dpsql.state import State, Stop


def target_rows(
    query: WithinTarget, last: Offer, first_nano: int, stop: Stop | None, state: State, reader: Reader
) -> list[Row]:
    """Return the rows of the target; they read and spend nothing.

    Args:
        query: on the current generation of its frame.
        last: how the last step is served.
        first_nano: level of the first step.
        stop: where the question stopped for the reader; None if it was not asked yet.
        state: the state file.
        reader: who asks.

    """
    part, window = query.first, query.first.frame.window
    rows = [
        ("target", "relative error", target_words.relative_error(query.target)),
        ("target", "max_rho", f"{cap_nano(part) / NANO:.9g}"),
        ("target", "affordable", _affordable(last, state, reader)),
    ]
    if stop is None:
        rows.append(("target", "first level", f"rho = {first_nano / NANO:.9g}"))
    else:
        rows.append(("target", "stopped", target_words.stopped(stop.rho_nano / NANO, stop.steps)))
    if part.frame.has_private_keys and window:
        delta = charged_delta(histogram_of(part.frame), window)
        rows.append(("target", "window", target_words.window(window.low / NANO, window.high / NANO, delta)))
    return rows


def _affordable(last: Offer, state: State, reader: Reader) -> str:
    """Say whether the most that all steps cost can be paid."""
    try:
        state.ledger.require(last.query.frame.rows.unit, last.items, reader.name)
    except BudgetError as error:
        return target_words.not_affordable(error.remaining_rho or 0.0, error.remaining_delta or 0.0)
    return "yes"
