"""Rows of ``dp_explain`` for a question by relative error: its cap, where its steps begin, and its window."""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.cascade.reader import Reader
from dpsql.features.auto_price import answer_delta_units, open_price
from dpsql.features.cap_guarantee import affordable_row, cap_row, is_beyond
from dpsql.features.target_levels import cap_nano, highest_nano, most_nano
from dpsql.mechanism.calibrate import calibrate
from dpsql.mechanism.registry import histogram_of
from dpsql.mechanism.window import charged_delta
from dpsql.model.frame import NANO, Frame
from dpsql.model.identity import query_hash
from dpsql.model.private_query import FrameQuery
from dpsql.model.query_kinds import WithinTarget
from dpsql.receipts import target_words, words
from dpsql.receipts.plan_rows import Row
from dpsql.release.offer import Offer
from dpsql.release.top_rows import row_order
from dpsql.state import ChargeItem, State, Stop


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
    beyond = is_beyond(last, highest_nano(query.first), state)
    rows = [
        *_asked_rows(query, last.items, state, reader),
        cap_row(query.cap, words.RELEASED_NUMBERS, beyond=beyond),
    ]
    if stop is None:
        rows.append(("target", "first level", f"rho = {first_nano / NANO:.9g}"))
    else:
        rows.append(("target", "stopped", target_words.stopped(stop.rho_nano / NANO, stop.steps)))
    return [*rows, *_window_rows(query.first.frame)]


def open_target_rows(query: WithinTarget, least: FrameQuery, state: State, reader: Reader) -> list[Row]:
    """Return the rows of the target before AUTO has chosen; they read and spend nothing.

    Args:
        query: the plan, with something left open.
        least: its part with the least number of groups that AUTO may choose.
        state: the state file.
        reader: who asks.

    """
    delta_units = answer_delta_units(calibrate(least, histogram_of(least.frame)))
    last = ChargeItem(query_hash(query), most_nano(query.first), delta_units)
    return [
        *_asked_rows(query, (*open_price(query.first), last), state, reader),
        cap_row(query.cap, words.RELEASED_NUMBERS),
        *_window_rows(least.frame),
    ]


def _asked_rows(query: WithinTarget, items: Sequence[ChargeItem], state: State, reader: Reader) -> list[Row]:
    """Return the rows of the target itself, and whether the most that all steps cost can be paid."""
    name, value = query.cap
    return [
        (
            "target",
            "relative error",
            target_words.relative_error(query.target, of_rows=row_order(query.first) is not None),
        ),
        *([("target", name, f"{value:.9g}")] if name == "max_epsilon" else []),
        ("target", "max_rho", f"{cap_nano(query.first) / NANO:.9g}"),
        affordable_row(query.first, items, state, reader),
    ]


def _window_rows(frame: Frame) -> list[Row]:
    if not frame.has_private_keys or frame.window is None:
        return []
    delta = charged_delta(histogram_of(frame), frame.window)
    window = target_words.window(frame.window.low / NANO, frame.window.high / NANO, delta)
    return [("target", "window", window)]
