"""Outcomes of AUTO, planned before its histograms are charged: each of them has to be answerable and paid for.

Which bounds AUTO finds decides noise, shares of rho and, where a unit has one group, how keys are selected. So the plan
that follows may need more than the plan that is open. What it needs is found by plans with stand-ins: the bounds that
have the most noise, and one group of a unit. They are functions of policy, text and stored points.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from dpsql.cascade.reader import Reader
from dpsql.features.auto import PlanAgain, found_so_far
from dpsql.features.auto_price import ROWS, STAND_INS, TOO_WIDE, OpenTerms, may_come
from dpsql.features.kinds import kind_of
from dpsql.mechanism.calibrate import calibrate
from dpsql.mechanism.registry import choose_frame
from dpsql.model.estimates import NotFound
from dpsql.model.frame import KEYS_FIRST, Statistic
from dpsql.model.identity import query_hash
from dpsql.model.private_query import AutoBounds, AutoGroups, PrivateQuery
from dpsql.plan.features.auto import GROUPS, with_max_groups
from dpsql.release.offer import current, held_histogram
from dpsql.state import ChargeItem, State


def price_of_outcomes(query: PrivateQuery, plan: PlanAgain, state: State, reader: Reader) -> ChargeItem:
    """Return the most that an answer costs after AUTO, over all that AUTO may find.

    Args:
        query: the plan, with something left open.
        plan: plans its text again.
        state: the state file.
        reader: who asks.

    Raises:
        AccessError, CalibrationError, UnsupportedQueryError: some outcome could not be answered for the reader.

    """
    outcomes = (query, *_outcomes(query, plan, state))
    return ChargeItem(query_hash(query), *_dearest_price(outcomes, state, reader))


def dearest_terms(query: PrivateQuery, terms: OpenTerms, plan: PlanAgain, state: State, reader: Reader) -> OpenTerms:
    """Return terms that hold whatever AUTO finds: of each the largest, over all outcomes.

    Args:
        query: the plan, with something left open.
        terms: those of the plan itself.
        plan: plans its text again.
        state: the state file.
        reader: who asks.

    Raises:
        AccessError, CalibrationError, UnsupportedQueryError: as `price_of_outcomes`.

    """
    found, outcomes = [terms], list(_outcomes(query, plan, state))
    for one in outcomes:
        outcome = one.mapped(lambda part: current(part, state, reader))
        least = may_come(outcome.first)[0]
        calibration = calibrate(least, held_histogram(least, state))
        found.append(kind_of(outcome).open_terms(outcome, calibration, state, reader))
    rho_nano, delta_units = _dearest_price((query, *outcomes), state, reader)
    return OpenTerms(
        epsilon=max(one.epsilon for one in found),
        delta=max(one.delta for one in found),
        total_nano=max(one.total_nano for one in found),
        rho_nano=max(terms.rho_nano, rho_nano),
        delta_units=max(terms.delta_units, delta_units),
    )


def _outcomes(query: PrivateQuery, plan: PlanAgain, state: State) -> Iterator[PrivateQuery]:
    """Yield the plans by stand-ins for what AUTO is yet to find."""
    first = query.first
    # a column that is NULL now may have a value after the charge
    wide = {one.statistic: ROWS for one in first.auto if isinstance(one, AutoBounds) and one.bounds == TOO_WIDE}
    known = {**found_so_far(first, first.auto_levels, state), **wide}
    asked = [one.statistic for one in first.auto if isinstance(one, AutoBounds) and one.statistic not in known]
    # noise and shares of what a norm bounds depend on the norm alone
    stand_ins = STAND_INS[:1] if first.frame.bounding.by_norm or not asked else STAND_INS
    some: list[dict[Statistic, tuple[float, float] | NotFound]]
    some = [
        {one: ROWS if one.kind == "rows_norm" else bounds for one in asked} for bounds in stand_ins if asked or wide
    ]
    if first.frame.mechanism == KEYS_FIRST and isinstance(first.auto[0], AutoGroups) and GROUPS not in known:
        some.append({**(some[0] if some else {}), GROUPS: (1.0, 1.0)})
    for found in some:
        planned = plan({**known, **found})
        yield planned.mapped(
            lambda part: replace(part, auto_levels=first.auto_levels) if part.auto else choose_frame(part)
        )


def _dearest_price(outcomes: Iterable[PrivateQuery], state: State, reader: Reader) -> tuple[int, int]:
    """Return the most nano-rho and the most delta units of some outcomes."""
    prices = (price for outcome in outcomes for price in _prices(outcome, state, reader))
    rho_nano, delta_units = map(max, zip(*prices, strict=True))
    return rho_nano, delta_units


def _prices(query: PrivateQuery, state: State, reader: Reader) -> Iterator[tuple[int, int]]:
    """Yield nano-rho and delta units of the answer, for the least and the largest number of groups."""
    query = query.mapped(lambda part: current(part, state, reader))
    first = query.first
    asked, options = first.auto[0], may_come(first)
    if isinstance(asked, AutoGroups) and asked.chosen:
        options = (choose_frame(with_max_groups(first, asked, asked.chosen)),)
    least, *larger = options
    # a norm has one noise for any number of groups
    more = [] if first.frame.bounding.by_norm else larger[-1:]
    for option in (least, *more):
        outcome = replace(query, parts=(option, *query.parts[1:]))
        yield kind_of(outcome).price_after_auto(outcome, state, reader)
