"""Stored points whose level released numbers chose, and that serve another question at that level.

A question that is served at the level that it names has the plain law of this level, whatever is stored. If a stored
point serves it at another level, or shows it keys, then that level tells of numbers. So the guarantee covers the levels
up to the cap under which the point was stored, as far as the question shows them (docs/proofs/target.md, Theorem 4).
"""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.cascade.serving import Serving
from dpsql.mechanism.window import free_level, free_level_above
from dpsql.model.frame import PRESENCE, Frame
from dpsql.state import State


def chosen_levels(servings: Sequence[Serving], frame: Frame, state: State) -> dict[str, int]:
    """Return the level that a guarantee covers for each statistic, in nano-rho, by the hash of the statistic.

    These are the statistics that are served, and those that decided a level beside them.

    Args:
        servings: how the statistics of a frame are served.
        frame: their frame.
        state: the state file.

    """
    covered = {one.pin.statistic_hash: one.disclosed.rho_nano for one in servings}
    for one in servings:
        if is_level_of_text(one, frame):
            continue
        # a point that serves as it is stored is no higher than the question; keys may be of any level
        highest = max(one.pin.query_rho_nano, free_level_above(one.pin.asked_rho_nano))
        shows_more = one.disclosed.rho_nano > one.level.rho_nano
        for own, statistic, cap in state.ledger.caps_beside(frame.rows.unit, one.pin.statistic_hash):
            # statistics that decided together rose in proportion
            level = cap if shows_more else -(-cap * min(own, highest) // own)
            covered[statistic] = max(covered.get(statistic, 0), level)
    return covered


def nano_of_choices(servings: Sequence[Serving], frame: Frame, state: State) -> int:
    """Return how much more than the shown levels a guarantee covers because numbers chose them, in nano-rho."""
    shown = sum(one.disclosed.rho_nano for one in servings)
    return sum(chosen_levels(servings, frame, state).values()) - shown


def is_level_of_text(serving: Serving, frame: Frame) -> bool:
    """Return whether a statistic is served at the level that its question names, or at the next one of the grid."""
    asked, level = serving.pin.asked_rho_nano, serving.level.rho_nano
    window = frame.window if frame.has_private_keys and serving.level.statistic == PRESENCE else None
    by_text = {asked, free_level(asked, window)}
    if serving.pin.by_half_width:
        by_text.add(free_level_above(asked, window))
    return level in by_text and serving.disclosed.rho_nano == level
