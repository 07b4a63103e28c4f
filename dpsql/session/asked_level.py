"""Refusals of a level that is too high, in the words of the question: what was asked, and the most that is granted.

The ledger and clearances count in rho. Who asks by epsilon is told the epsilon that the same text may still ask for, at
its delta. It is found by trying: the text is planned and priced at a few lower levels, and the highest one that was
granted is told. So the answer is true by construction, for every kind of query. It depends on policy, text and past
releases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dpsql.answer import words
from dpsql.answer.offer import current
from dpsql.cascade.reader import Reader
from dpsql.errors import AccessError, BudgetError, CalibrationError, DpsqlError
from dpsql.features.auto import PlanAgain
from dpsql.features.auto_outcomes import price_of_outcomes
from dpsql.features.auto_price import open_price
from dpsql.features.kinds import kind_of
from dpsql.model.private_query import PrivateQuery
from dpsql.sql.levels import with_levels
from dpsql.sql.statements import SelectStatement
from dpsql.state import ChargeItem, State

_MANTISSAS = 90
"""Numbers of two digits in each power of ten, as which levels are told."""
_MOST_PLACES = 12 * _MANTISSAS
"""A level below 1e-12 of what was asked for is not looked for."""
_MOST_DELTA_PLACES = 300 * _MANTISSAS
"""A delta below 1e-299 is not looked for."""
_MOST_TRIES = 8
"""Levels that are tried for one refusal. Each is a plan, for which nothing is charged."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan for one reader.

    Attributes:
        query: the plan, as it would be answered now.
        state: what it would be written to.
        reader: who asks, with their clearance.
        again: plans the text by bounds that AUTO finds.

    """

    query: PrivateQuery
    state: State
    reader: Reader
    again: PlanAgain


Plan = Callable[[SelectStatement, Mapping[str, object]], Planned]
"""Plans a text with options for one reader, as it would be answered now."""


@dataclass(frozen=True, slots=True)
class AskedLevel:
    """The level of a query in the words of its text or its policy.

    Attributes:
        name: epsilon or rho.
        value: the level.

    """

    name: str
    value: float

    @classmethod
    def of(cls, query: PrivateQuery) -> AskedLevel:
        """Return the level of a query."""
        request = query.whole_request
        if request.rho is None:
            return cls("epsilon", request.asked_epsilon)
        return cls("rho", request.rho)

    def shown(self, value: float) -> str:
        """Return a value of the level as it is written in a query."""
        return f"{self.name} = {value:.9g}"


def in_asked_words(
    error: DpsqlError, plan: Plan, statement: SelectStatement, options: Mapping[str, object]
) -> DpsqlError:
    """Return a refusal of a level with the level that was asked for, and the most that is granted.

    Args:
        error: of a budget, a clearance or a ceiling.
        plan: plans a text for the reader.
        statement: what was asked.
        options: those beside the text.

    """
    try:
        planned = plan(statement, options)
        asked = AskedLevel.of(planned.query)
    except DpsqlError:
        # the text is refused for more by now
        return error

    request = planned.query.whole_request
    has_thresholds = any(part.frame.has_private_keys for part in planned.query.parts)
    delta = _delta_left(error, request.delta) if has_thresholds else None

    def guess_after(refused_at: float, refusal: DpsqlError) -> float:
        left = _rho_left(refusal)
        wider = math.log(request.delta / delta) if delta and refusal is error and delta < request.delta else 0.0
        return refused_at if left is None else _part(asked.name, refused_at, *left, wider=wider)

    def refusal_at(value: float) -> DpsqlError | None:
        beside = {"delta": delta} if delta else {}
        try:
            lower = plan(*with_levels({asked.name: value, **beside}, statement, options))
            lower.state.ledger.require(lower.query.first.frame.rows.unit, _price(lower), lower.reader.name)
        except DpsqlError as refusal:
            return refusal
        return None

    def try_level(value: float) -> float | None:
        nonlocal delta
        refusal = refusal_at(value)
        if refusal and has_thresholds and (less := _delta_left(refusal, delta or request.delta)):
            # a clearance was refused before delta was looked at, or thresholds are not quite proportional to delta
            delta = less
            refusal = refusal_at(value)
        return None if refusal is None else guess_after(value, refusal)

    with_delta = delta
    most = most_granted(asked.value, guess_after(asked.value, error), try_level, with_asked=bool(delta))
    if most is not None and most < asked.value and delta != with_delta:
        # some levels were refused at a delta that was too large
        most = most_granted(asked.value, most, try_level) or most
    cure = words.NO_LOWER_LEVEL
    if most is not None:
        cure = words.ask_with(asked.shown(most), *([f"delta = {delta:.9g}"] if delta else []))
    refused = error.at_level(words.level_refused(error, asked.shown(asked.value), cure))
    if asked.name == "epsilon":
        refused.requested_epsilon, refused.remaining_epsilon = asked.value, most or 0.0
    return refused


def _delta_left(error: DpsqlError, asked: float) -> float | None:
    """Return a lower delta that a query may ask for if delta is what lacks, and None otherwise.

    A query pays about the same part of its delta for thresholds, whatever its delta is. Levels leave thresholds as they
    are.

    Args:
        error: the refusal.
        asked: the delta that was asked for.

    """
    if isinstance(error, BudgetError) and 0.0 < error.remaining_delta < error.requested_delta:
        place = _place_of(asked * error.remaining_delta / error.requested_delta, -_MOST_DELTA_PLACES)
        return _level(min(place, _place_up(asked) - 1))
    return None


def _rho_left(error: DpsqlError) -> tuple[float, float] | None:
    """Return the rho that was requested and the rho that is granted, or None if a refusal does not tell them."""
    match error:
        case BudgetError(requested_rho=float(requested), remaining_rho=float(left)):
            return requested, left
        case AccessError(requested_rho=float(requested), limit_rho=float(limit)):
            return requested, limit
        case CalibrationError(requested_rho=float(requested), limit_rho=float(limit)):
            return requested, limit
    return None


def _part(name: str, value: float, requested: float, left: float, *, wider: float) -> float:
    """Return about the level that costs a rho, from another level and what it costs.

    Epsilon is about rho + 2 sqrt(rho c), where c is about log(1 / delta).

    Args:
        name: epsilon or rho.
        value: a level.
        requested: the rho that it costs.
        left: the rho that is granted.
        wider: how much larger c is at the delta that is granted.

    """
    if not 0.0 < left < requested:
        return 0.0 if left <= 0.0 < requested else value
    if name == "rho":
        return value * left / requested
    c = max(value - requested, 0.0) ** 2 / (4.0 * requested) + wider
    return min(value, left + 2.0 * math.sqrt(left * c))


def most_granted(
    asked: float, guess: float, try_level: Callable[[float], float | None], *, with_asked: bool = False
) -> float | None:
    """Return the highest level of two digits that was granted when it was tried, or None if none was.

    At most `_MOST_TRIES` levels are tried. Usually no other one between what is told and what is refused is left then.

    Args:
        asked: the level that was asked for.
        guess: a level to try first.
        try_level: returns None if a level is granted, and else a guess of one that is.
        with_asked: whether the level that was asked for may be granted: with a lower delta.

    """
    tries = _MOST_TRIES
    if with_asked and guess >= asked:
        tries -= 1
        if try_level(asked) is None:
            return asked
    refused = _place_up(asked)
    least, step, granted = refused - _MOST_PLACES, 1, None
    place = min(_place_of(guess, least), refused - 1)
    for _ in range(tries):
        better = try_level(_level(place))
        if better is None:
            granted = place
        else:
            refused = place
        if granted is None:
            if place <= least:
                break
            place, step = max(least, min(place - step, _place_of(better or 0.0, least))), 4 * step
        else:
            if refused - granted <= 1:
                break
            # a guess that is granted is seldom far below
            place, step = min(granted + step, (granted + refused) // 2), 4 * step
    return None if granted is None else _level(granted)


def _place_of(number: float, least: int) -> int:
    """Return the place of the highest number of two digits that is at most a number, or the least place."""
    if number <= _level(least):
        return least
    place = _place_up(number)
    # a number that has two digits but for rounding stays what it is
    return place if _level(place) <= number * (1.0 + 1e-9) else place - 1


def _level(place: int) -> float:
    """Return the number of two digits at a place in their order, 10 at place 0."""
    return float(f"{10 + place % _MANTISSAS}e{place // _MANTISSAS}")


def _place_up(number: float) -> int:
    """Return the place of the lowest number of two digits that is at least a number."""
    place = _MANTISSAS * (math.floor(math.log10(number)) - 2)
    while _level(place) < number:
        place += 1
    return place


def _price(planned: Planned) -> tuple[ChargeItem, ...]:
    """Return the most that an answer would charge now.

    Raises:
        AccessError, CalibrationError: the reader, or the precision of the noise, does not allow the level.

    """
    query, state, reader = planned.query, planned.state, planned.reader
    if query.first.is_open:
        return (*open_price(query.first), price_of_outcomes(query, planned.again, state, reader))
    query = query.mapped(lambda part: current(part, state, reader))
    return tuple(item for offer in kind_of(query).offers(query, state, reader) for item in offer.items)
