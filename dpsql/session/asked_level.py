"""Refusals of a level that is too high, in the words of the question: what was asked, and the most that is granted.

The ledger and clearances count in rho. Who asks by epsilon is told the epsilon that the same text may still ask for, at
its delta. It is found by trying: the text is planned and priced at lower levels, and the highest one that is granted is
told. So the answer is true by construction, for every kind of query. It depends on policy, text and past releases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from dpsql.answer import words
from dpsql.answer.offer import current, offers_of
from dpsql.cascade.reader import Reader
from dpsql.errors import AccessError, BudgetError, CalibrationError, DpsqlError
from dpsql.features.auto import PlanAgain
from dpsql.features.auto_outcomes import price_of_outcomes
from dpsql.features.auto_price import open_price
from dpsql.features.joint_release import other_offer
from dpsql.features.key_rounds import KeyRounds, round_offers
from dpsql.features.keys_first import KeysAndNumbers
from dpsql.model.private_query import GroupingSets, KeysAlone, KeysFirst, PrivateQuery, WithOtherGroup
from dpsql.sql.levels import with_levels
from dpsql.sql.statements import SelectStatement
from dpsql.state import ChargeItem, State

_MANTISSAS = 900
"""Numbers of three digits in each power of ten, as which levels are told."""
_MOST_PLACES = 6 * _MANTISSAS
"""A level below the millionth part of what was asked for is not looked for."""


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
        request = query.request if isinstance(query, GroupingSets) else query.first.request
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
        asked = AskedLevel.of(plan(statement, options).query)
    except DpsqlError:
        # the text is refused for more by now
        return error

    def is_granted(value: float, **others: float) -> bool:
        try:
            planned = plan(*with_levels({asked.name: value, **others}, statement, options))
            planned.state.ledger.require(planned.query.first.frame.rows.unit, _price(planned))
        except DpsqlError:
            return False
        return True

    most, cure = most_granted(asked.value, asked.value * _part_left(error, asked), is_granted), words.NO_LOWER_LEVEL
    if most is not None:
        cure = words.ask_with(asked.shown(most))
    elif isinstance(error, BudgetError) and 0.0 < error.remaining_delta < error.requested_delta:
        # a lower level leaves thresholds as they are
        delta = _level(_place_up(error.remaining_delta) - 1)
        with_delta = partial(is_granted, delta=delta)
        most = asked.value if with_delta(asked.value) else most_granted(asked.value, asked.value, with_delta)
        cure = words.NO_LOWER_LEVEL if most is None else words.ask_with(asked.shown(most), f"delta = {delta:.9g}")
    refused = error.at_level(words.level_refused(error, asked.shown(asked.value), cure))
    if asked.name == "epsilon":
        refused.requested_epsilon, refused.remaining_epsilon = asked.value, most or 0.0
    return refused


def _part_left(error: DpsqlError, asked: AskedLevel) -> float:
    """Return about which part of a level is granted: rho rises with the square of epsilon."""
    match error:
        case BudgetError(requested_rho=float(requested), remaining_rho=float(left)):
            part = left / requested if requested else 1.0
        case AccessError(requested_rho=float(requested), limit_rho=float(limit)):
            part = limit / requested
        case CalibrationError(requested_rho=float(requested), limit_rho=float(limit)):
            part = limit / requested
        case _:
            part = 1.0
    part = min(1.0, max(part, 1e-12))
    return math.sqrt(part) if asked.name == "epsilon" else part


def most_granted(asked: float, guess: float, is_granted: Callable[[float], bool]) -> float | None:
    """Return the highest level of three digits below the one asked for that is granted; None if none is found.

    Args:
        asked: a level that is refused.
        guess: a level to look near first.
        is_granted: tells of a lower one; what is granted is granted at lower levels, too.

    """
    refused = _place_up(asked)
    least, place, step = refused - _MOST_PLACES, min(_place_up(guess), refused) - 1, 1
    granted = None
    while granted is None or refused - granted > 1:
        if is_granted(_level(place)):
            granted = place
        else:
            refused = place
        if granted is None:
            if place == least:
                return None
            place, step = max(least, place - step), 4 * step
        else:
            # a guess that is granted is seldom far below
            place = min(granted + step, (granted + refused) // 2)
            step *= 4
    return _level(granted)


def _level(place: int) -> float:
    """Return the number of three digits at a place in their order, 100 at place 0."""
    return float(f"{100 + place % _MANTISSAS}e{place // _MANTISSAS}")


def _place_up(number: float) -> int:
    """Return the place of the lowest number of three digits that is at least a number."""
    place = _MANTISSAS * (math.floor(math.log10(number)) - 3)
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
    if isinstance(query, KeysAlone):
        offers = round_offers(KeyRounds.of(query.first, reader).planned(state), state)
    elif isinstance(query, KeysFirst):
        offers = KeysAndNumbers.of(query, state, reader).offers(state)
    else:
        offers = offers_of(query.parts, state, reader)
    if isinstance(query, WithOtherGroup):
        offers += (other_offer(query, offers[0], state, reader),)
    return tuple(item for offer in offers for item in offer.items)
