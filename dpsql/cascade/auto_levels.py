"""The point of a histogram that serves a choice of AUTO, for a reader and a level, and the step that makes it.

The points of a histogram are a cascade, and which of them serves follows from text, policy, past releases and stored
points alone. Its top is drawn at what a query leaves for AUTO. If the top is not sure of what it says, a query that
leaves at least a step of the grid more rises it, and pays the difference. Once it is sure it stays the top. A reader
with a limit is served by points up to what a query at their limit leaves for each question, so that what a query shows
them adds up to no more than the limit. If the top is above that, they have a point of their own, at the step of the
grid below it, derived from stored points. The point that served an answer is kept for its reader and level.
docs/proofs/auto.md has the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dpsql.cascade.reader import Reader
from dpsql.cascade.serving import Draw, Lowering
from dpsql.mechanism.histogram import MOST_DRAWN
from dpsql.mechanism.measure import Level
from dpsql.mechanism.window import free_level
from dpsql.model.auto_level import AutoLevel
from dpsql.state import SideTable, State


def served_level(
    name: str, share_nano: int, state: State, reader: Reader, is_sure: Callable[[int], bool], *, has_rows: bool
) -> AutoLevel:
    """Return the level that serves a choice of AUTO, at a query that leaves this share for it.

    Args:
        name: identity of the histogram.
        share_nano: what the query leaves for it.
        state: the state file.
        reader: who asks, limited to what a query at their limit leaves for it.
        is_sure: checks that the stored point of a level says enough for a choice that later queries keep.
        has_rows: whether the rows are still there. Without rows nothing is drawn any more.

    """
    stored, at_level = state.side_table.levels(name), partial(AutoLevel, name, share_nano, limit_nano=reader.rho_limit)
    if not stored:
        return at_level(share_nano, due_nano=share_nano, is_stored=False)
    kept = state.history.auto_level(name, reader.name, share_nano, reader.rho_limit)
    if kept is not None:
        return at_level(kept, is_sure=is_sure(kept))
    top = stored[0].rho_nano
    if not reader.may_see(top):
        own = free_level(int(reader.most_nano))
        is_stored = any(one.rho_nano == own for one in stored)
        return at_level(own, is_stored=is_stored, is_sure=is_stored and is_sure(own))
    top_is_sure = is_sure(top)
    may_draw = has_rows and sum(one.source_rho_nano is None for one in stored) < MOST_DRAWN
    if top_is_sure or not may_draw or free_level(share_nano) <= free_level(top):
        return at_level(top, is_sure=top_is_sure)
    return at_level(share_nano, due_nano=share_nano - top, is_stored=False)


def missing_step(level: AutoLevel, at_level: Callable[[int], Level], side_table: SideTable) -> Draw | Lowering:
    """Return the step that makes the point of a level that is not stored: a draw, or a derivation from its neighbours.

    Args:
        level: the level that is to serve.
        at_level: gives a level in nano-rho its noise.
        side_table: where the points are stored.

    """
    made = at_level(level.rho_nano)
    if level.due_nano:
        return Draw(made, None, 0.0, at_level(level.due_nano))
    return Lowering.among(side_table.levels(level.statistic_hash), made)
