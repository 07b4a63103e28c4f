"""AUTO: what a query leaves to the data, chosen by noisy histograms that are drawn first, and stored.

Each histogram is a statistic of its own, over public places as coverage is, and is released by the steps of a stage:
charge, read, draw, store. Later queries of the same rows and groups, at any level, by any mechanism, find a histogram
that is sure of what it says, and pay nothing for it. `cascade.auto_levels` has the rule for the point that serves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa

from dpsql.bound.coverage import numbers_of
from dpsql.bound.statement import UnitHistogram
from dpsql.bound.value_steps import LARGEST_VALUE, VALUE_EXPONENT
from dpsql.cascade.auto_levels import missing_step
from dpsql.cascade.reader import Reader
from dpsql.errors import ReleaseError
from dpsql.features.auto_choices import TYPICAL_GROUPS, Expected, Integers, chosen_groups, found_bounds, holds_most
from dpsql.features.auto_histograms import MEASURE, Question, questions
from dpsql.features.auto_norms import FEW_KEYS, USUAL_ROWS_PLACES, NormUse, chosen_norm, on_row_lattice, rounded_up
from dpsql.features.auto_price import may_come, open_price
from dpsql.features.auto_ratios import groups_for_ratios, ratio_groups, ratio_kind, ratio_norm
from dpsql.mechanism.calibrate import AUTO_PARTS, auto_share, part_for_auto
from dpsql.mechanism.histogram import count_sigma
from dpsql.mechanism.registry import choose_frame, histogram_of
from dpsql.model.auto_level import AutoLevel
from dpsql.model.estimates import NotFound
from dpsql.model.frame import KEYS_FIRST, NANO, Statistic
from dpsql.model.private_query import AutoBounds, AutoGroups, FoundBounds, FrameQuery, PrivateQuery
from dpsql.operations.row_sql import STAND_IN_SALT
from dpsql.plan.features.auto import GROUPS, with_max_groups
from dpsql.release.exact import prepare_reading, public_key_table, require_runs
from dpsql.release.runtime import Runtime, hold_pairs, read_units
from dpsql.release.stored_beside import release_places
from dpsql.state import Charged, ChargeItem, Point, State

_FEW_ROWS = 4.0
"""The norm of rows where a histogram tells nothing: a row in each of 16 groups, or four in one."""

PlanAgain = Callable[[FoundBounds], PrivateQuery]
"""Plans a text by the bounds that AUTO found for its sums."""


def bound(
    query: PrivateQuery, plan: PlanAgain, state: State, reader: Reader, key_count: int | None = None
) -> PrivateQuery:
    """A plan with AUTO bound to a reader and to what is stored: on the frame with the least noise, of those it chose.

    A function of the stored histograms, policy and text; reads no raw row. What is open yet stays as it is planned, so
    that what a query leaves for AUTO follows from its text and policy.

    Args:
        query: the plan by text and policy alone.
        plan: plans it again.
        state: the state file.
        reader: who asks.
        key_count: number of keys that a first round selected, if it found nearly all.

    Raises:
        CalibrationError: the delta of a query by epsilon is less than what the precision of the noise costs.

    """
    levels = _levels(query.first, state, reader)
    found = found_so_far(query.first, levels, state, key_count)

    def planned(by: FoundBounds) -> PrivateQuery:
        again = plan(by) if by else query
        return again.mapped(
            lambda part: _settled(replace(part, auto_levels=levels) if part.auto else part, state, key_count)
        )

    if not any(one.kind == "rows_norm" for one in found):
        return planned(found)
    from dpsql.features.auto_undrawable import without_undrawable  # noqa: PLC0415 — few queries need it

    return without_undrawable(planned(found), planned, found, state, reader)


def _levels(query: FrameQuery, state: State, reader: Reader) -> tuple[AutoLevel, ...]:
    """Where a reader stands with all that a query leaves to AUTO."""
    first = may_come(query)[0]
    share = auto_share(first, histogram_of(first.frame))
    limit = reader.rho_limit and part_for_auto(reader.rho_limit, query)
    return tuple(Question(asked).served(share, state, replace(reader, rho_limit=limit)) for asked in query.auto)


def found_so_far(
    query: FrameQuery, levels: tuple[AutoLevel, ...], state: State, key_count: int | None = None
) -> FoundBounds:
    """Return the bounds that stored histograms tell for the sums of a query, or why they tell none.

    Args:
        query: the plan.
        levels: where the reader stands with what it leaves to AUTO.
        state: the state file.
        key_count: number of private keys, if a first round found nearly all.

    """
    query = replace(query, auto_levels=levels)
    found: dict[Statistic, tuple[float, float] | NotFound] = {}
    is_ratio = ratio_kind(query) is not None
    for asked, level in zip(query.auto, levels, strict=True):
        if not level.is_stored:
            continue
        if isinstance(asked, AutoGroups):
            is_first = query.frame.mechanism == KEYS_FIRST
            is_known = not query.is_open or not groups_for_ratios(query, asked)
            if is_first and is_known and most_groups(query, asked, state) == 1:
                # rounds of key selection are for units with several keys
                found[GROUPS] = (1.0, 1.0)
            continue
        if is_ratio and asked.statistic.kind == "rows_norm":
            if norm := ratio_norm(query, asked, partial(most_groups, query, state=state), state.side_table):
                found[asked.statistic] = -norm, norm
            continue
        point = Question(asked).point(state.side_table, level.rho_nano)
        if asked.is_norm:
            bounds = _found_norm(asked, point, _norm_use(asked, query, point, state, key_count))
        else:
            bounds = found_bounds(point.noisy_values, point.sigma)
        found[asked.statistic] = _usable(bounds, asked, point)
    return found


def _usable(bounds: tuple[float, float] | None, asked: AutoBounds, point: Point) -> tuple[float, float] | NotFound:
    """Return bounds that a histogram tells, or why it tells none that values can be clamped to."""
    if bounds is None:
        is_zero = asked.is_norm and holds_most(point.noisy_values[:1], point.noisy_values[1:], point.sigma)
        return NotFound("zeros" if is_zero else "few")
    # no table has as many rows as a value may have digits
    is_told = asked.statistic.kind == "rows_norm" or max(map(abs, bounds)) < LARGEST_VALUE
    return bounds if is_told else NotFound("range")


def _norm_use(asked: AutoBounds, query: FrameQuery, point: Point, state: State, selected: int | None) -> NormUse:
    """Return how a norm will be used, by the number of keys that a first round selected if that is known."""
    frame, groups = query.frame, query.auto[0]
    key_count, most = selected or frame.key_count, frame.bounding.max_groups
    is_few = frame.bounding.by_norm and key_count is not None and key_count <= FEW_KEYS
    if is_few and isinstance(groups, AutoGroups) and query.auto_levels[0].is_stored:
        most = groups.chosen or most_groups(query, groups, state, selected)
    elif not is_few:
        key_count = frame.key_count
    number = min(one for one in (most, key_count, TYPICAL_GROUPS) if one)
    usual = USUAL_ROWS_PLACES if asked.statistic.kind == "rows_norm" else 0
    return NormUse(point.rho_nano * (AUTO_PARTS - 1) / NANO, number, key_count, usual, is_few)


def _found_norm(asked: AutoBounds, point: Point, use: NormUse) -> tuple[float, float] | None:
    """Return the norm that a histogram chooses for a query, as the interval around 0 that it is half of."""
    choose = chosen_norm
    if use.is_of_few:
        from dpsql.features.auto_few_keys import norm_of_few_keys as choose  # noqa: PLC0415 — few queries need it
    steps = choose(point.noisy_values, point.sigma, use)
    if asked.statistic.kind == "rows_norm":
        if steps is None:
            # whoever has rows has one or more, and few units tell whether that is worth much noise
            return -_FEW_ROWS, _FEW_ROWS
        norm = on_row_lattice(steps)
    elif steps is None:
        return None
    else:
        norm = rounded_up(steps * 2.0**VALUE_EXPONENT)
    return -norm, norm


def _settled(query: FrameQuery, state: State, key_count: int | None) -> FrameQuery:
    """The query on the frame with the least noise, with the number of groups that AUTO chose."""
    if query.is_open:
        return query
    asked = next(iter(query.auto), None)
    if not isinstance(asked, AutoGroups):
        return choose_frame(query)
    return choose_frame(with_max_groups(query, asked, asked.chosen or most_groups(query, asked, state, key_count)))


def release_histograms(
    query: FrameQuery,
    runtime: Runtime,
    reader: Reader,
    timeout_seconds: float | None,
    later: ChargeItem,
) -> Charged:
    """Store every histogram that is missing: charged and drawn, or made of what is stored, for nothing.

    Where the state file changed since the plan nothing is done for a histogram, and the query is to be planned again.

    Args:
        query: the plan.
        runtime: state, engine and source of noise.
        reader: who asks.
        timeout_seconds: limit on reading raw data.
        later: the most that the answer costs after AUTO.

    Raises:
        AccessError, CalibrationError, BudgetError, ReleaseError: nothing was charged or read.
        EngineError: the charge stays and pays for asking again.

    """
    total = Charged()
    if items := open_price(query):
        # what could not be paid after AUTO is refused before: no answer would come of the charge. What was charged for
        # a histogram and never stored is used up; where AUTO costs nothing, the answer may not either
        runtime.state.ledger.require(query.frame.rows.unit, (*items, later), reader.name)
    prepared = prepare_histograms(query, runtime)
    _hold_pairs(query, prepared, runtime)
    for question, level, listed in prepared:
        with runtime.state.locks.exclusive(question.statistic_hash):
            limited = replace(reader, rho_limit=level.limit_nano)
            if question.served(level.share_nano, runtime.state, limited) == level:
                step = missing_step(level, question.level, runtime.state.side_table)
                read = partial(_read, question, listed, runtime, timeout_seconds)
                total += release_places(question.frame, step, read, MEASURE, runtime, reader)
    return total


def _hold_pairs(
    query: FrameQuery, prepared: list[tuple[Question, AutoLevel, pa.Table | None]], runtime: Runtime
) -> None:
    """Let the histograms, and the numbers that follow them, share the pairs of the rows."""
    due = [(question, listed) for question, level, listed in prepared if level.due_nano]
    if due:
        asked = [question.statistic for question, _ in due]
        # a sum whose bounds are yet to be found has no lattice
        is_open = any(isinstance(question.asked, AutoBounds) for question, _ in due)
        asked += [one for one in numbers_of(query.statistics) if not is_open or one.kind != "sum"]
        hold_pairs(due[0][0].frame, asked, due[0][1], runtime)


def prepare_histograms(query: FrameQuery, runtime: Runtime) -> list[tuple[Question, AutoLevel, pa.Table | None]]:
    """The histograms that are not stored yet, each with its public keys.

    What is to be drawn runs on empty tables, and so does what may come of it.

    Raises:
        ReleaseError, SchemaError: as `prepare_reading`; nothing was charged.

    """
    missing = [(question, level) for question, level in questions(query) if not level.is_stored]
    prepared = [(one, level, _prepare(one, runtime) if level.due_nano else None) for one, level in missing]
    if any(level.due_nano for _, level in missing):
        options = may_come(query)
        for option in (options[0], *options[1:][-1:]):
            prepare_reading(option.frame, option.statistics, runtime)
    return prepared


def _prepare(question: Question, runtime: Runtime) -> pa.Table | None:
    """Find what could fail before anything is charged; returns the public keys."""
    frame = question.frame
    if not frame.rows_sql.relation:
        raise ReleaseError(
            f"the rows of {frame.rows.table} in version {frame.rows.version} are gone, or the curator archived the "
            "table. AUTO has chosen nothing for them, so only a question that was answered before can be asked"
        )
    listed = public_key_table(frame, runtime)
    sql = UnitHistogram(frame, question.statistic).sql(STAND_IN_SALT)
    require_runs(frame, (question.statistic,), sql, listed, runtime.engine)
    return listed


def _read(
    question: Question, listed: pa.Table | None, runtime: Runtime, timeout_seconds: float | None, salt: bytes
) -> Integers:
    """Return the number of units in each place of a histogram, after the charge for it."""
    histogram = UnitHistogram(question.frame, question.statistic)
    return question.exact(read_units(histogram, salt, runtime, listed, timeout_seconds).reveal())


_REFERENCE_DELTA = 1e-6
"""Thresholds are predicted at this delta whatever a query asks for, so that every query of a frame has one choice."""
_FOUND = 4.0
"""A key is taken to be selected in rounds where it has so many times the noise of a count of units in that many."""


def most_groups(query: FrameQuery, asked: AutoGroups, state: State, selected: int | None = None) -> int:
    """Return the number of groups that a stored histogram chooses for a query.

    Args:
        query: the plan, with the levels of what it leaves to AUTO.
        asked: the question for the number of groups.
        state: the state file.
        selected: number of private keys, if a first round found nearly all.

    """
    if groups_for_ratios(query, asked):
        return ratio_groups(query, asked, state.side_table)
    point = Question(asked).point(state.side_table, query.auto_levels[0].rho_nano)
    # what a query that leaves this level for AUTO has for its statistics
    rho = point.rho_nano * (AUTO_PARTS - 1) / NANO

    def expected(max_groups: int) -> Expected:
        frame = choose_frame(with_max_groups(query, asked, max_groups)).frame
        histogram = histogram_of(frame)
        sigma = histogram.sigma(rho)
        if frame.mechanism == KEYS_FIRST:
            # which keys are found is not for this number to decide
            return Expected(count_sigma(histogram, sigma), _FOUND * math.sqrt(TYPICAL_GROUPS / (2.0 * rho)))
        tau = histogram.threshold(_REFERENCE_DELTA, sigma)
        return Expected(count_sigma(histogram, sigma), None if tau is None else frame.bounding.minimum_units + tau)

    public, few = query.frame.public_keys, selected if selected and selected <= FEW_KEYS else None
    return chosen_groups(
        point.noisy_values,
        point.sigma,
        asked.candidates,
        expected,
        key_count=few if public is None else public.count,
        weighted=asked.weighted,
    )
