"""Refusals of a level that is too high, in the words of the question: what was asked, and the most that is granted.

The ledger and clearances count in rho. Who asks by epsilon is told the epsilon that the same text may still ask for, at
its delta. Who asks by half widths is told half widths (`asked_half_widths.py`), and who asks by a cap is told a cap.
All of them are found by trying: the text is
planned and priced at a few lower levels, and the highest one that was granted is told. So the answer is true by
construction, for every kind of query. It depends on policy, text and past releases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dpsql.cascade.reader import Reader
from dpsql.errors import AccessError, BudgetError, CalibrationError, DpsqlError
from dpsql.features.auto import PlanAgain
from dpsql.features.auto_outcomes import price_of_outcomes
from dpsql.features.auto_price import open_price
from dpsql.features.kinds import kind_of
from dpsql.model.private_query import PrivateQuery
from dpsql.release.offer import current, price_of
from dpsql.session.told_level import MANTISSAS, TWO_DIGITS, AskedLevel, TwoDigits
from dpsql.sql.levels import with_levels
from dpsql.sql.statements import SelectStatement
from dpsql.state import ChargeItem, State

_MOST_PLACES = 12 * MANTISSAS
"""A level below 1e-12 of what was asked for is not looked for."""
_MOST_DELTA_PLACES = 300 * MANTISSAS
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


def _level_of(query: PrivateQuery) -> AskedLevel:
    """Return the level of a query in its own words."""
    request, cap = query.whole_request, kind_of(query).asked_cap(query)
    if cap is not None:
        return AskedLevel(*cap, TWO_DIGITS)
    if request.target is not None:
        from dpsql.session.asked_half_widths import AskedHalfWidths, EpsilonHalfWidths  # noqa: PLC0415 — few need it

        if request.amount == "epsilon":
            return EpsilonHalfWidths.of_query(query, request.target)
        return AskedHalfWidths.of(request.target)
    if request.rho is None:
        return AskedLevel("epsilon", request.asked_epsilon, TWO_DIGITS)
    return AskedLevel(request.amount, request.rho, TWO_DIGITS)


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
        asked = _level_of(planned.query)
    except DpsqlError:
        # the text is refused for more by now
        return error

    request = planned.query.whole_request
    has_thresholds = any(part.frame.has_private_keys for part in planned.query.parts)
    delta = _delta_left(error, request.delta) if has_thresholds else None

    def guess_after(refused_at: float, refusal: DpsqlError) -> float:
        left = _rho_left(refusal)
        wider = math.log(request.delta / delta) if delta and refusal is error and delta < request.delta else 0.0
        return refused_at if left is None else asked.part(refused_at, *left, wider=wider)

    def refusal_at(value: float) -> DpsqlError | None:
        beside = {"delta": delta} if delta else {}
        try:
            lower = plan(*with_levels({asked.name: asked.option(value), **beside}, statement, options))
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

    with_delta, guess = delta, guess_after(asked.value, error)
    most = most_granted(asked.value, guess, try_level, with_asked=bool(delta), numbers=asked.numbers)
    if most is not None and most < asked.value and delta != with_delta:
        # some levels were refused at a delta that was too large
        most = most_granted(asked.value, most, try_level, numbers=asked.numbers) or most
    return asked.refusal(error, most, [f"delta = {delta:.9g}"] if delta else [])


def _delta_left(error: DpsqlError, asked: float) -> float | None:
    """Return a lower delta that a query may ask for if delta is what lacks, and None otherwise.

    A query pays about the same part of its delta for thresholds, whatever its delta is. Levels leave thresholds as they
    are.

    Args:
        error: the refusal.
        asked: the delta that was asked for.

    """
    if isinstance(error, BudgetError) and 0.0 < error.granted_delta < error.requested_delta:
        place = TWO_DIGITS.place_of(asked * error.granted_delta / error.requested_delta, -_MOST_DELTA_PLACES)
        return TWO_DIGITS.level(min(place, TWO_DIGITS.place_up(asked) - 1))
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


def most_granted(
    asked: float,
    guess: float,
    try_level: Callable[[float], float | None],
    *,
    with_asked: bool = False,
    numbers: TwoDigits = TWO_DIGITS,
) -> float | None:
    """Return the highest level of two digits that was granted when it was tried, or None if none was.

    At most `_MOST_TRIES` levels are tried. Usually no other one between what is told and what is refused is left then.

    Args:
        asked: the level that was asked for.
        guess: a level to try first.
        try_level: returns None if a level is granted, and else a guess of one that is.
        with_asked: whether the level that was asked for may be granted: with a lower delta.
        numbers: the levels that are tried.

    """
    tries = _MOST_TRIES
    if with_asked and guess >= asked:
        tries -= 1
        if try_level(asked) is None:
            return asked
    refused = numbers.place_up(asked)
    least, step, granted = refused - _MOST_PLACES, 1, None
    place = min(numbers.place_of(guess, least), refused - 1)
    for _ in range(tries):
        better = try_level(numbers.level(place))
        if better is None:
            granted = place
        else:
            refused = place
        if granted is None:
            if place <= least:
                break
            place, step = max(least, min(place - step, numbers.place_of(better or 0.0, least))), 4 * step
        else:
            if refused - granted <= 1:
                break
            # a guess that is granted is seldom far below
            place, step = min(granted + step, (granted + refused) // 2), 4 * step
    return None if granted is None else numbers.level(granted)


def _price(planned: Planned) -> tuple[ChargeItem, ...]:
    """Return the most that an answer would charge now.

    Raises:
        AccessError, CalibrationError: the reader, or the precision of the noise, does not allow the level.

    """
    query, state, reader = planned.query, planned.state, planned.reader
    if query.first.is_open:
        return (*open_price(query.first), price_of_outcomes(query, planned.again, state, reader))
    query = query.mapped(lambda part: current(part, state, reader))
    return price_of(kind_of(query).offers(query, state, reader))
