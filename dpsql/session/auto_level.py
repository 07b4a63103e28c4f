"""Which histogram AUTO chooses by, for a reader and a level: by text, policy, past releases and stored points alone.

The points of a histogram are a cascade. Its top is drawn at what a query leaves for AUTO; where the top is not sure of
what it says, a query that leaves at least a step of the grid more rises it, and pays the difference. Once it is sure
it stays the top. A reader whose limit is below the top has a point of their own, at the step of the grid below the
limit, made of stored points. What an answer was chosen by is kept for its reader and level. docs/proofs/auto.md has the
rule.
"""

from __future__ import annotations

from dpsql.query.frame import NANO
from dpsql.query.private_query import AutoLevel
from dpsql.release.calibrate import MOST_DRAWN
from dpsql.release.free_levels import free_level
from dpsql.session.auto_question import Question
from dpsql.session.reader import Reader
from dpsql.state import State


def auto_level(question: Question, share_nano: int, state: State, reader: Reader) -> AutoLevel:
    """Where a reader stands with a question, at a query that leaves this level for it."""
    table, name = state.side_table, question.statistic_hash
    stored = table.levels(name)
    if not stored:
        return AutoLevel(name, share_nano, share_nano, due_nano=share_nano, is_stored=False)

    def sure(rho_nano: int) -> bool:
        return question.is_sure(question.point(table, rho_nano))

    kept = table.auto_level(name, reader.name, share_nano, reader.rho_limit)
    if kept is not None:
        return AutoLevel(name, share_nano, kept, is_sure=sure(kept))
    top = stored[0].rho_nano
    if reader.rho_limit is not None and not reader.may_see(top):
        own = free_level(reader.rho_limit)
        if not any(one.rho_nano == own for one in stored):
            return AutoLevel(name, share_nano, own, is_stored=False)
        return AutoLevel(name, share_nano, own, is_sure=sure(own))
    is_sure = sure(top)
    draws = sum(one.source_rho_nano is None for one in stored)
    # without rows nothing is drawn any more
    if is_sure or free_level(share_nano) <= free_level(top) or draws >= MOST_DRAWN or not question.frame.relation:
        return AutoLevel(name, share_nano, top, is_sure=is_sure)
    return AutoLevel(name, share_nano, share_nano, due_nano=share_nano - top, is_stored=False)


def origin_sentence(level: AutoLevel | None) -> str:
    """Where a histogram comes from, and at which level."""
    if level is None:
        raise AssertionError("what AUTO asks is looked up before it is explained")
    rho = f"at rho = {level.rho_nano / NANO:.9g}"
    if level.is_stored:
        return f"drawn {rho}"
    if not level.due_nano:
        return f"to be made of a stored one, {rho}, for nothing"
    if level.due_nano == level.rho_nano:
        return f"to be drawn {rho}"
    return f"to be drawn again {rho}, of which {level.due_nano / NANO:.9g} is not paid yet"
