"""Why a question by relative error shows no group: the threshold of its last step, and that of a higher cap."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from dpsql.cascade.reader import Reader
from dpsql.errors import DpsqlError
from dpsql.features.target_levels import at_step, cap_nano, steps_up, window_of
from dpsql.model.frame import NANO
from dpsql.model.private_query import FrameQuery
from dpsql.receipts import words
from dpsql.receipts.nothing_shown import asked_at, frame_reason
from dpsql.receipts.phrases import at_higher_level, none_passed
from dpsql.release.offer import Offer, offers_of, shown_threshold
from dpsql.state import State

_TIMES = (16, 4, 256)
"""Caps that are tried, as multiples of the one asked for."""


def reason_of_target(part: FrameQuery, last: Offer, state: State, reader: Reader) -> str:
    """Return why no group is shown; reads no point.

    Args:
        part: the question's only part, with its cap.
        last: how the last step was served.
        state: the state file.
        reader: who asks.

    """
    threshold = _threshold(last)
    if threshold is None:
        return frame_reason(last, state, reader)
    unit = state.policy().unit(part.frame.rows.unit)
    passed = none_passed(part.frame.rows.unit, [threshold], is_relative=False)
    for times in _TIMES:
        nano = times * cap_nano(part)
        if unit is None or nano > unit.rho_budget:
            continue
        # what cannot be asked is no cure
        with contextlib.suppress(DpsqlError):
            found = _last_step(part, nano, state, reader)
            lower = _threshold(found)
            if lower is not None and lower < threshold:
                is_open = not all(level.is_sure for level in found.query.auto_levels)
                level = f"max_rho = {nano / NANO:.9g}"
                return f"{passed}; {at_higher_level(level, lower, is_open=is_open, of_several=False)}"
    return f"{passed}; {words.OTHER_KEYS}"


def _last_step(part: FrameQuery, nano: int, state: State, reader: Reader) -> Offer:
    """Return how the last step would be served with another cap."""
    window = window_of(part.frame.window, nano, part.request.delta)
    asked = asked_at(replace(part, frame=replace(part.frame, window=window)), part.request.at(nano / NANO))
    (offer,) = offers_of([at_step(asked, steps_up(asked)[-1])], state, reader)
    return offer


def _threshold(offer: Offer) -> float | None:
    """Return the threshold of a step; None for public keys."""
    tau = offer.presence.tau
    return None if tau is None else shown_threshold(offer.query.frame, tau, offer.query.request.min_units)
