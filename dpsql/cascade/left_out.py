"""How a number of rows left out is served: a stored one as it is, or a new one at the level that is not paid yet.

A number belongs to the groups that were shown when it was drawn, and to its cut, so no other one is derived from it.
The stored numbers of a statistic are a chain. The place of a number is the level up to which the chain is paid. Its own
level, that of its noise, is its place less the place before it. So all numbers of a chain together cost the highest
level, as the points of a cascade do. A new number is drawn if it has at least half of the level that is asked for.

A reader with a limit has a chain of their own. What they hold of it adds up to no more than their limit, and nothing
that they pay follows from others (docs/proofs/left-out.md, "One chain").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dpsql.cascade.reader import Reader
from dpsql.cascade.serving import Draw, Serving
from dpsql.mechanism.calibrate import Calibration, Level, level_of
from dpsql.model.frame import Frame, Statistic
from dpsql.model.identity import in_question, reader_hash, statistic_hash
from dpsql.model.private_query import FrameQuery
from dpsql.model.statistic_kinds import LEFT_OUT_KINDS
from dpsql.state import Pin, State


def chain_hash(statistic: Statistic, frame: Frame, reader: Reader) -> str:
    """Return the identity of the chain that serves a reader, or of the cascade of any other statistic."""
    name = statistic_hash(statistic, frame)
    is_own = reader.has_limit and statistic.kind in LEFT_OUT_KINDS
    return reader_hash(name, reader.name.lower()) if is_own else name


def each_served(
    query: FrameQuery,
    calibration: Calibration,
    state: State,
    reader: Reader,
    asked_nano: int,
    from_cascade: Callable[[Level], Serving],
) -> tuple[Serving, ...]:
    """Return how each statistic of a query is served, presence first: from its chain, or from its cascade.

    A reader who was shown coverage for this question, before there were numbers of rows left out, is shown it again.

    Args:
        query: on one frame.
        calibration: its levels.
        state: the state file.
        reader: who asks.
        asked_nano: level of all that is asked for at once.
        from_cascade: serves a statistic that has a cascade.

    Raises:
        AccessError, CalibrationError: as `servings_of`.

    """
    found = []
    for level in calibration.levels:
        if level.statistic.kind not in LEFT_OUT_KINDS:
            found.append(from_cascade(level))
            continue
        served = _from_chain(query, calibration, level, state, reader, asked_nano)
        found.append(served or from_cascade(replace(level, statistic=in_question(level.statistic))))
    return tuple(found)


def _from_chain(
    query: FrameQuery, calibration: Calibration, level: Level, state: State, reader: Reader, asked_nano: int
) -> Serving | None:
    """Return how a number of rows left out is served. Return None if the reader was shown coverage in its place."""
    frame, history = query.frame, state.history
    asked = (level.rho_nano, asked_nano, False, query.request.target is not None)

    def shown(name: str) -> list[int]:
        pins = history.pins(name, reader.name)
        alike = (one for one in pins if (one.asked_rho_nano, one.query_rho_nano, False, one.by_half_width) == asked)
        return [one.rho_nano for one in alike]

    if shown(statistic_hash(in_question(level.statistic), frame)):
        return None
    name = chain_hash(level.statistic, frame, reader)
    places = sorted(one.rho_nano for one in state.side_table.levels(name))
    place = _place(places, level.rho_nano, shown(name))
    before = max((one for one in places if one < place), default=0)
    own = (
        level if place - before == level.rho_nano else level_of(level.statistic, place - before, calibration.histogram)
    )
    steps = () if place in places else (Draw(own, None, 0.0, own),)
    pin = Pin(reader.name, name, *asked, place, 0, has_threshold=False)
    return Serving(own, own, None, steps, (), 0, is_single_draw=True, pin=pin)


def _place(places: list[int], asked: int, shown: list[int]) -> int:
    """Return the place of the number that serves: the one that was shown, a stored one, or a new one as asked.

    >>> [_place([100, 300], asked, []) for asked in (50, 100, 101, 400, 600)], _place([100], 50, [40])
    ([100, 100, 300, 300, 600], 100)
    """
    if found := [one for one in shown if one in places]:
        return found[0]
    above = [one for one in places if one >= asked]
    if above:
        return above[0]
    top = max(places, default=0)
    return top if asked < 2 * top else asked
