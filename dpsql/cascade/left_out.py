"""Servings of numbers of rows left out: a stored number as it is, or a new one.

A number belongs to the released numbers that chose its groups and its cut. So it serves questions that show numbers of
these levels, or of higher ones; no other number is derived from it. The stored numbers of a statistic are a chain. The
place of one is the level that the question gave it that drew it. A question that shows the same released numbers again,
and gives it a lower level, is served it, too: else two answers would say different things of one number.

The chain is paid up to its highest place, as a cascade is. A number above all others takes seven eighths of what the
chain rises by. One eighth is a reserve for numbers below the highest place, which cost nothing: the first takes a
sixteenth of its place, the second a quarter of a sixteenth, the n-th 1/n^2 of a sixteenth. All numbers together cost no
more than the highest place (docs/proofs/left-out.md, "One chain").

A reader with a limit has a chain of their own. What they hold of it adds up to no more than their limit, and nothing
that they pay follows from others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dpsql.cascade.reader import Reader
from dpsql.cascade.serving import Draw, Serving
from dpsql.mechanism.calibrate import Calibration, level_of
from dpsql.mechanism.measure import Level
from dpsql.model.frame import PRESENCE, Frame, Statistic
from dpsql.model.identity import in_question, reader_hash, statistic_hash
from dpsql.model.private_query import FrameQuery
from dpsql.model.statistic_kinds import LEFT_OUT_KINDS
from dpsql.state import Level as StoredLevel
from dpsql.state import MeasuredGroups, Pin, State, folded_name

_PARTS = 8
_OF_RISE = 7
"""A number above all others takes so many eighths of what the chain rises by; the rest is the reserve."""
MOST_RESERVED = 30
"""Most numbers of a chain that the reserve pays for."""


def chain_hash(statistic: Statistic, frame: Frame, reader: Reader) -> str:
    """Return the identity of the chain that serves a reader, or of the cascade of any other statistic."""
    name = statistic_hash(statistic, frame)
    is_own = reader.has_limit and statistic.kind in LEFT_OUT_KINDS
    return reader_hash(name, folded_name(reader.name)) if is_own else name


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
    A number of rows left out has no serving if its chain has nothing left for a new one, and no other one serves.

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
        before = in_question(level.statistic)
        question = (level.rho_nano, asked_nano, False, query.request.target is not None)
        if _shown(statistic_hash(before, query.frame), question, state, reader):
            found.append(from_cascade(replace(level, statistic=before)))
        elif served := _from_chain(query, calibration, level, state, reader, asked_nano, found):
            found.append(served)
    return tuple(found)


def _from_chain(
    query: FrameQuery,
    calibration: Calibration,
    level: Level,
    state: State,
    reader: Reader,
    asked_nano: int,
    numbers: Sequence[Serving],
) -> Serving | None:
    """Return how a number of rows left out is served. Return None if no stored one serves, and none can be drawn.

    The arguments are those of `each_served`, with the level of the number, and servings of the released numbers.
    """
    frame, histogram, asked = query.frame, calibration.histogram, level.rho_nano
    name = chain_hash(level.statistic, frame, reader)
    stored = sorted(state.side_table.levels(name), key=lambda one: one.rho_nano)
    question = (asked, asked_nano, False, query.request.target is not None)

    def serving(place: int, steps: tuple[Draw, ...], sigma: float, noise_delta: float) -> Serving:
        pin = Pin(reader.name, name, *question, place, 0, has_threshold=False)
        own = Level(level.statistic, max(asked, place), sigma, noise_delta)
        return Serving(own, own, None, steps, (), 0, is_single_draw=True, pin=pin)

    shown = _shown(name, question, state, reader)
    if found := [one for one in stored if one.rho_nano in shown]:
        return serving(found[0].rho_nano, (), found[0].sigma, 0.0)
    records = ((one, state.side_table.measured_groups(name, one.rho_nano)) for one in stored)
    told = [(one, record) for one, record in records if record and _is_told(record, level, numbers)]
    above = [one for one, record in told if one.rho_nano > asked and _is_of_same(record, level, numbers)]
    # questions by relative error need less noise than others
    if above and not query.finish.within:
        return serving(above[-1].rho_nano, (), above[-1].sigma, 0.0)
    below = [one for one, _ in told if one.rho_nano <= asked]
    if below and below[-1].rho_nano > asked // 2:
        return serving(below[-1].rho_nano, (), below[-1].sigma, 0.0)
    top = max((one.rho_nano for one in stored), default=0)
    own_nano = _own_nano(stored, asked, top) if frame.rows_sql.relation else 0
    place = max(set(range(asked, asked - len(stored) - 1, -1)) - {one.rho_nano for one in stored})
    if own_nano and place > 0:
        own = level_of(level.statistic, own_nano, histogram)
        paid = replace(own, rho_nano=max(0, asked - top), noise_delta=_paid_delta(own, asked, top))
        return serving(place, (Draw(own, None, 0.0, paid),), own.sigma, own.noise_delta)
    return serving(below[-1].rho_nano, (), below[-1].sigma, 0.0) if below else None


def _is_told(measured: MeasuredGroups, level: Level, numbers: Sequence[Serving]) -> bool:
    """Return whether an answer shows all that a stored number belongs to: released numbers of its levels, or higher.

    Releases that stand alone add up, so that another one always tells more.
    """
    presence, levels = numbers[0], {one.level.statistic: one.disclosed.rho_nano for one in numbers[1:]}
    if presence.stands_alone:
        return False
    own_nano = levels.get(level.statistic.covered or PRESENCE, 0)
    return measured.presence_rho_nano <= presence.disclosed.rho_nano and measured.number_rho_nano <= own_nano


def _is_of_same(measured: MeasuredGroups, level: Level, numbers: Sequence[Serving]) -> bool:
    """Return whether an answer shows the very numbers that a stored number is about.

    Its presence count may have a higher level.
    """
    levels = {one.level.statistic: one.level.rho_nano for one in numbers}
    own_nano = levels.get(level.statistic.covered or PRESENCE)
    return measured.presence_rho_nano <= levels[PRESENCE] and measured.number_rho_nano == own_nano


def _shown(name: str, question: tuple[int, int, bool, bool], state: State, reader: Reader) -> set[int]:
    """Return the places of what the reader was shown of a statistic for a question."""
    pins = state.history.pins(name, reader.name)
    alike = (one for one in pins if (one.asked_rho_nano, one.query_rho_nano, False, one.by_half_width) == question)
    return {one.rho_nano for one in alike}


def _own_nano(stored: Sequence[StoredLevel], asked: int, top: int) -> int:
    """Return the level of the noise of a new number, in nano-rho. Return 0 if the chain has nothing left for one.

    Args:
        stored: the numbers of the chain.
        asked: level that is asked for.
        top: the highest place.

    """
    if asked > top:
        return _OF_RISE * (asked - top) // _PARTS
    drawn = sum(one.source_rho_nano is not None for one in stored)
    # the squares of 1, 1/2, 1/3, … add up to less than 2, so all of them together are never more than the reserve; no
    # level follows from the highest place, which released numbers may have chosen
    return asked // (2 * _PARTS * (drawn + 1) ** 2) if drawn < MOST_RESERVED else 0


def _paid_delta(own: Level, asked: int, top: int) -> float:
    """Return what the imprecision of draws costs: with the first number, that of all that the reserve is for."""
    if asked <= top:
        return 0.0
    return own.noise_delta if top else (1 + MOST_RESERVED) * own.noise_delta
