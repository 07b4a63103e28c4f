"""AUTO: what a query leaves to the data, chosen by noisy histograms that are drawn first, and stored.

Charge, draw, store, as for every release; each histogram is a statistic of its own, over public places, with a cascade
of its own (`session/auto_level.py`). Later queries of the same rows and groups, at any level, by any mechanism, find a
histogram that is sure of what it says, and pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dpsql.errors import ReleaseError
from dpsql.query.auto import with_max_groups
from dpsql.query.frame import NANO
from dpsql.query.identity import query_hash
from dpsql.query.private_query import AutoLevel, PrivateQuery, ToldBounds
from dpsql.query.salt import STAND_IN_SALT
from dpsql.release.auto_bounds import found_bounds
from dpsql.release.auto_groups import Expected, auto_sigma, chosen_groups, histogram_noise, noisy_histogram
from dpsql.release.calibrate import AUTO_PARTS, Calibration, auto_share, calibrate
from dpsql.release.cascade import Placed, lowered, risen
from dpsql.release.choose import choose, histogram_of
from dpsql.release.histogram import NoisyHistogram, count_sigma
from dpsql.session.auto_level import auto_level
from dpsql.session.auto_question import Question, noisy_units, questions
from dpsql.session.exact import Rooms, prepare_reading, public_key_table
from dpsql.session.reader import Reader
from dpsql.session.trial import require_runs
from dpsql.state import AutoChoice, Charged, ChargeItem, Point, SideTable, State, delta_units_up

_REFERENCE_DELTA = 1e-6
"""Thresholds are predicted at this delta whatever a query asks for, so that every query of a frame has one choice."""

AutoLevels = Mapping[str, AutoLevel]
"""Of each histogram, by its hash, where a reader stands with it."""


def auto_levels(query: PrivateQuery, state: State, reader: Reader) -> AutoLevels:
    """Where a reader stands with all that a query leaves to AUTO; looked up in the books, reads no raw row.

    Args:
        query: the plan before anything of the books was looked at, so that what it leaves for AUTO follows from its
            text and policy.
        state: the books.
        reader: who asks.

    Raises:
        CalibrationError: the delta of a query by epsilon is less than what the precision of the noise costs.

    """
    if not query.auto_levels:
        return {}
    first = query if query.auto is None else with_max_groups(query, query.auto, query.auto.candidates[0])
    first = choose(first)
    share = auto_share(first, histogram_of(first.frame))
    return {question.statistic_hash: auto_level(question, share, state, reader) for question in questions(query)}


def told_bounds(query: PrivateQuery, levels: AutoLevels, state: State) -> ToldBounds:
    """The bounds that AUTO found for sums of a query; with them the query is planned again.

    Raises:
        ReleaseError: no bounds come of the histogram that is stored for this reader and level.

    """
    found = {}
    for asked in query.auto_bounds:
        question = Question(asked)
        level = levels[question.statistic_hash]
        if not level.is_stored:
            continue
        point = question.point(state.side_table, level.rho_nano)
        bounds = found_bounds(noisy_units(point), point.sigma)
        if bounds is None:
            raise ReleaseError(
                f"AUTO found no bounds for {asked.name} at rho = {level.rho_nano / NANO:.9g}: too few units have "
                "values of one size; name the bounds, or ask with more rho"
            )
        found[asked.statistic] = bounds
    return found


def is_open(query: PrivateQuery) -> bool:
    """Whether a histogram that AUTO chooses by is not stored yet."""
    return any(not question.level.is_stored for question in questions(query))


def settled(query: PrivateQuery, levels: AutoLevels, state: State) -> PrivateQuery:
    """The query on the frame with the least noise, of those that AUTO chose; as it is where that is open yet.

    A function of the stored histograms, policy and text; reads no raw row.
    """
    if not query.auto_levels:
        return choose(query)
    query = replace(
        query,
        auto_bounds=tuple(replace(one, level=levels[Question(one).statistic_hash]) for one in query.auto_bounds),
    )
    auto = query.auto
    if auto is None:
        return query if is_open(query) else choose(query)
    level = levels[Question(auto).statistic_hash]
    query = replace(query, auto=replace(auto, level=level))
    if query.auto is None or is_open(query):
        return query
    asked = query.auto
    point = Question(asked).point(state.side_table, level.rho_nano)
    # what a query that leaves this level for AUTO has for its statistics
    rho = point.rho_nano * (AUTO_PARTS - 1) / NANO

    def expected(max_groups: int) -> Expected:
        frame = choose(with_max_groups(query, asked, max_groups)).frame
        histogram = histogram_of(frame)
        sigma = histogram.sigma(rho)
        tau = histogram.threshold(_REFERENCE_DELTA, sigma)
        return Expected(count_sigma(histogram, sigma), None if tau is None else frame.minimum_units + tau)

    public = query.frame.public_keys
    most = chosen_groups(
        noisy_units(point),
        point.sigma,
        asked.candidates,
        expected,
        key_count=None if public is None else public.count,
        weighted=asked.weighted,
    )
    return choose(with_max_groups(query, asked, most))


def may_come(query: PrivateQuery) -> tuple[PrivateQuery, ...]:
    """The query as it would be for some of the numbers that AUTO may choose, the least and the largest among them."""
    auto = query.auto
    if auto is None:
        return (choose(query),)
    some = [number for number in auto.candidates if number.bit_count() == 1 or number == auto.candidates[-1]]
    return tuple(choose(with_max_groups(query, auto, number)) for number in some)


def open_price(query: PrivateQuery) -> tuple[ChargeItem, ...]:
    """What the histograms cost that are not stored yet: the rise of each, and the precision of its draw."""
    return tuple(
        ChargeItem(question.statistic_hash, question.level.due_nano, question.noise_units(question.level.due_nano))
        for question in questions(query)
        if question.level.due_nano
    )


def asked_nano(query: PrivateQuery, calibration: Calibration) -> int:
    """Level of all that a query asks for in nano-rho, what it leaves for AUTO included."""
    return calibration.rho_nano + sum(question.level.share_nano for question in questions(query))


def draw(query: PrivateQuery, rooms: Rooms, reader: Reader, timeout_seconds: float | None) -> Charged:
    """Store every histogram that is missing: charged and drawn, or made of what is stored, for nothing.

    Where the books changed since the plan nothing is done for a histogram, and the query is to be planned again.

    Raises:
        AccessError, CalibrationError, BudgetError, ReleaseError: nothing was charged or read.
        EngineError: the charge stays and pays for asking again.

    """
    total = Charged.nothing()
    # whatever is chosen, the query must be answerable and paid for before anything is charged
    options = may_come(query)
    calibrations = [calibrate(each, histogram_of(each.frame)) for each in (options[0], options[-1])]
    reader.require(asked_nano(query, calibrations[0]))
    _require_budget(query, calibrations, rooms.state)
    for question, listed in prepare_histograms(query, rooms):
        with rooms.state.locks.exclusive(question.statistic_hash):
            if auto_level(question, question.level.share_nano, rooms.state, reader) != question.level:
                continue
            if question.level.due_nano:
                total = total.beside(_draw(question, listed, rooms, reader, timeout_seconds))
            else:
                _lower(question, rooms)
    return total


def prepare_histograms(query: PrivateQuery, rooms: Rooms) -> list[tuple[Question, pa.Table | None]]:
    """The histograms that are not stored yet, each with its public keys.

    What is to be drawn runs on empty tables, and so does what may come of it.

    Raises:
        ReleaseError, SchemaError: as `prepare_reading`; nothing was charged.

    """
    missing = [question for question in questions(query) if not question.level.is_stored]
    prepared = [(question, _prepare(question, rooms) if question.level.due_nano else None) for question in missing]
    if any(question.level.due_nano for question in missing):
        options = may_come(query)
        for option in (options[0], *options[1:][-1:]):
            prepare_reading(option.frame, option.statistics, rooms)
    return prepared


def _prepare(question: Question, rooms: Rooms) -> pa.Table | None:
    """Find what could fail before anything is charged; returns the public keys."""
    frame = question.frame
    if not frame.relation:
        raise ReleaseError(
            f"the rows of {frame.table} in version {frame.version} are gone, and AUTO was told nothing of them; name "
            "what it stands for"
        )
    listed = public_key_table(frame, rooms)
    require_runs(frame, (question.statistic,), [question.sql(STAND_IN_SALT)], listed, rooms)
    return listed


def _draw(
    question: Question, listed: pa.Table | None, rooms: Rooms, reader: Reader, timeout_seconds: float | None
) -> Charged:
    """Charge the rise, draw it, average it with the top where there is one, and store that."""
    table, frame, name, level = rooms.state.side_table, question.frame, question.statistic_hash, question.level
    item = ChargeItem(name, level.due_nano, question.noise_units(level.due_nano))
    charged = rooms.state.ledger.charge(frame.unit, (item,), reader.name)
    # keys of a frame are written once, and every statistic here has places of its own
    salt = table.frame(name, frame.unit, [listed_table for listed_table, _ in frame.table_versions]).salt
    exact = rooms.engine.aggregate(question.sql(salt), listed_keys=listed, timeout_seconds=timeout_seconds)
    drawn = noisy_histogram(question.exact(exact.reveal()), level.due_nano, question.l2, rooms.entropy)
    fresh = Placed(level.due_nano, auto_sigma(level.due_nano, question.l2), NoisyHistogram(drawn, 0))
    places = None
    if level.due_nano == level.rho_nano:
        noisy = fresh.noisy
        places = pa.table({"place": pa.array(np.arange(question.place_count))})
    else:
        noisy = risen(_placed(question, table, level.rho_nano - level.due_nano), fresh)
    table.store(name, places, (_point(question, noisy, None),), charged.charge_ids)
    return charged


def _lower(question: Question, rooms: Rooms) -> None:
    """Make the point at a reader's own level of its neighbours; reads no data and charges nothing."""
    table, name, rho_nano = rooms.state.side_table, question.statistic_hash, question.level.rho_nano
    stored = [one.rho_nano for one in table.levels(name)]
    above = [one for one in stored if one > rho_nano][-1]
    below = [_placed(question, table, one) for one in stored if one < rho_nano][:1]
    high = _placed(question, table, above)
    made = lowered(high, below[0] if below else None, rho_nano, histogram_noise(rooms.entropy))
    table.store(name, None, (_point(question, made, above),), ())


def _placed(question: Question, table: SideTable, rho_nano: int) -> Placed:
    point = question.point(table, rho_nano)
    return Placed(rho_nano, point.sigma, NoisyHistogram(point.values, 0))


def _point(question: Question, noisy: NoisyHistogram, source_nano: int | None) -> Point:
    rho_nano = question.level.rho_nano
    return Point(
        statistic_hash=question.statistic_hash,
        rho_nano=rho_nano,
        frame_hash=question.statistic_hash,
        values=noisy.values,
        lattice_exponent=question.statistic.noise_exponent,
        sigma=auto_sigma(rho_nano, question.l2),
        tau=None,
        threshold_delta_units=0,
        source_rho_nano=source_nano,
    )


def _require_budget(query: PrivateQuery, calibrations: list[Calibration], state: State) -> None:
    """Refuse, before AUTO is paid, what could not be paid after it: no answer would come of the charge.

    What was charged for a histogram and never stored is used up. Where AUTO costs nothing, the answer may not either.
    """
    items = open_price(query)
    if not items:
        return
    rho_nano = max(calibration.rho_nano for calibration in calibrations)
    noise = [sum(delta_units_up(level.noise_delta) for level in calibration.levels) for calibration in calibrations]
    shown = [delta_units_up(calibration.threshold_delta) for calibration in calibrations]
    rest = ChargeItem(query_hash(query), rho_nano, max(map(sum, zip(noise, shown, strict=True))))
    state.ledger.require(query.frame.unit, (*items, rest))


def choices_of(query: PrivateQuery, reader: Reader) -> tuple[AutoChoice, ...]:
    """What is kept of an answer, so that the same question at the same level stays the same for its reader."""
    return tuple(
        AutoChoice(
            question.statistic_hash, reader.name, question.level.share_nano, question.level.rho_nano, reader.rho_limit
        )
        for question in questions(query)
    )
