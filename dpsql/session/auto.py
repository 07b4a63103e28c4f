"""AUTO: what a query leaves to the data, told once for a frame and version by noisy histograms that are then stored.

Charge, draw, store, as for every release; each histogram is a statistic of its own, over public places. Later queries
of the same rows and groups, at any level, by any mechanism, find it and pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.errors import AccessError, ReleaseError
from dpsql.query.auto import GROUPS, extremes_sql, group_counts_sql, with_max_groups
from dpsql.query.frame import NANO, Frame, Statistic
from dpsql.query.private_query import AutoBounds, AutoGroups, PrivateQuery, ToldBounds
from dpsql.release.auto_bounds import EXTREMES_L2, PLACES, found_bounds, placed
from dpsql.release.auto_groups import Expected, auto_noise_delta, auto_sigma, binned, chosen_groups, noisy_histogram
from dpsql.release.calibrate import AUTO_PARTS, Calibration, calibrate
from dpsql.release.choose import choose, histogram_of
from dpsql.release.histogram import count_sigma
from dpsql.session.exact import Rooms, public_key_table
from dpsql.session.reader import Reader
from dpsql.state import Charged, ChargeItem, Point, State, delta_units_up

_REFERENCE_DELTA = 1e-6
"""Thresholds are predicted at this delta whatever a query asks for, so that every query of a frame has one choice."""


@dataclass(frozen=True, slots=True)
class _Question:
    """What AUTO asks: whose units are told apart by what, and where they may stand.

    Attributes:
        l2: most that one unit moves the histogram, in the l2 norm; its square is the number of places it stands in.

    """

    asked: AutoGroups | AutoBounds

    @property
    def frame(self) -> Frame:
        return self.asked.frame

    @property
    def statistic(self) -> Statistic:
        return GROUPS if isinstance(self.asked, AutoGroups) else self.asked.statistic

    @property
    def statistic_hash(self) -> str:
        return self.statistic.hash_in(self.frame)

    @property
    def l2(self) -> float:
        return 1.0 if isinstance(self.asked, AutoGroups) else EXTREMES_L2

    @property
    def place_count(self) -> int:
        return len(self.asked.candidates) if isinstance(self.asked, AutoGroups) else 2 * PLACES

    def sql(self) -> str:
        """The exact histogram; nothing of the data."""
        if isinstance(self.asked, AutoGroups):
            return group_counts_sql(self.frame)
        return extremes_sql(self.frame, self.asked.statistic)

    def exact(self, table: pa.Table) -> npt.NDArray[np.int64]:
        """Number of units in each place."""
        units = table.column("units").to_numpy().astype(np.int64)
        if isinstance(self.asked, AutoGroups):
            return binned(table.column("groups").to_numpy().astype(np.int64), units, self.asked.candidates)
        upper = table.column("upper").to_numpy(zero_copy_only=False).astype(np.bool_)
        return placed(upper, table.column("place").to_numpy().astype(np.int64), units)


def _questions(query: PrivateQuery) -> Iterator[_Question]:
    if query.auto is not None:
        yield _Question(query.auto)
    yield from map(_Question, query.auto_bounds)


def _told(question: _Question, state: State) -> Point | None:
    """The stored histogram; None where nothing was drawn yet."""
    stored = state.side_table.levels(question.statistic_hash)
    if not stored:
        return None
    point = state.side_table.point(question.statistic_hash, stored[0].rho_nano)
    if point is None or len(point.values) != question.place_count:
        raise AssertionError("a histogram is stored over its places")
    return point


def _told_to(reader: Reader, question: _Question, state: State) -> Point | None:
    """The stored histogram, which a plan depends on, refusals and all: so it is looked at for whom it may be shown.

    Raises:
        AccessError: its level is above the reader's limit.

    """
    point = _told(question, state)
    if point is not None and not reader.may_see(point.rho_nano):
        raise AccessError(
            f"AUTO was told at rho = {point.rho_nano / NANO:.9g}, above the limit of {reader.name!r}; name what it "
            "stands for"
        )
    return point


def _noisy(point: Point) -> npt.NDArray[np.float64]:
    return point.values.astype(np.float64) * 2.0**point.lattice_exponent


def is_open(query: PrivateQuery) -> bool:
    """Whether AUTO is yet to be told something."""
    return None in query.told


def told_bounds(query: PrivateQuery, state: State, reader: Reader) -> ToldBounds:
    """The bounds that AUTO found for sums of a query, where it was told anything; with them the query is planned again.

    Raises:
        AccessError: AUTO was told above the reader's limit.
        ReleaseError: a histogram was drawn, and no bounds came of it.

    """
    found = {}
    for asked in query.auto_bounds:
        point = _told_to(reader, _Question(asked), state)
        if point is None:
            continue
        bounds = found_bounds(_noisy(point), point.sigma)
        if bounds is None:
            raise ReleaseError(
                f"AUTO found no bounds for {asked.name}: too few units have values of one size, for the rho that it "
                "was told at; name the bounds"
            )
        found[asked.statistic] = (bounds, point.rho_nano)
    return found


def settled(query: PrivateQuery, state: State, reader: Reader) -> PrivateQuery:
    """The query on the frame with the least noise, of those that AUTO chose; as it is where that is open yet.

    A function of the stored histogram, policy and text; reads no raw row.

    Raises:
        AccessError: AUTO was told above the reader's limit.

    """
    auto = query.auto
    if auto is None:
        return query if is_open(query) else choose(query)
    point = _told_to(reader, _Question(auto), state)
    if point is None or None in (bounds.rho_nano for bounds in query.auto_bounds):
        return query
    told = replace(auto, rho_nano=point.rho_nano)
    # what the first query that asked left for its statistics
    rho = point.rho_nano * (AUTO_PARTS - 1) / NANO

    def expected(max_groups: int) -> Expected:
        frame = choose(with_max_groups(query, told, max_groups)).frame
        histogram = histogram_of(frame)
        sigma = histogram.sigma(rho)
        tau = histogram.threshold(_REFERENCE_DELTA, sigma)
        return Expected(count_sigma(histogram, sigma), None if tau is None else frame.minimum_units + tau)

    public = query.frame.public_keys
    most = chosen_groups(
        _noisy(point),
        point.sigma,
        auto.candidates,
        expected,
        key_count=None if public is None else public.count,
        weighted=auto.weighted,
    )
    return choose(with_max_groups(query, told, most))


def may_come(query: PrivateQuery) -> tuple[PrivateQuery, ...]:
    """The query as it would be for some of the numbers that AUTO may choose, the least and the largest among them."""
    auto = query.auto
    if auto is None:
        return (choose(query),)
    some = [number for number in auto.candidates if number.bit_count() == 1 or number == auto.candidates[-1]]
    return tuple(choose(with_max_groups(query, auto, number)) for number in some)


def open_price(query: PrivateQuery, calibration: Calibration) -> tuple[int, int]:
    """What AUTO is yet to be told costs: nano-rho, and delta units for the precision of the draws."""
    share = calibration.auto_share_nano
    due = [_precision(question, share) for question in _questions(query) if question.asked.rho_nano is None]
    return share * len(due), sum(due)


def _precision(question: _Question, rho_nano: int) -> int:
    return delta_units_up(auto_noise_delta(rho_nano, round(question.l2**2)))


def draw(query: PrivateQuery, rooms: Rooms, reader: Reader, timeout_seconds: float | None) -> Charged:
    """Charge, draw and store every histogram that is not there yet; nothing where none is missing.

    Raises:
        AccessError, CalibrationError, BudgetError, ReleaseError: nothing was charged or read.
        EngineError: the charge stays and pays for asking again.

    """
    total = Charged.nothing()
    if not is_open(query):
        return total
    # whatever is chosen, the query must be answerable and paid for before anything is charged
    options = may_come(query)
    calibrations = [calibrate(each, histogram_of(each.frame)) for each in (options[0], options[-1])]
    reader.require(calibrations[0].rho_nano + calibrations[0].auto_nano)
    _require_budget(query, calibrations, rooms.state)
    missing = [question for question in _questions(query) if _told(question, rooms.state) is None]
    prepared = [(question, _prepare(question, rooms)) for question in missing]
    for question, listed in prepared:
        total = total.beside(_draw(question, listed, calibrations[0].auto_share_nano, rooms, reader, timeout_seconds))
    return total


def _prepare(question: _Question, rooms: Rooms) -> pa.Table | None:
    """Find what could fail before anything is charged; returns the public keys."""
    frame = question.frame
    if not frame.relation:
        raise ReleaseError(
            f"the rows of {frame.table} in version {frame.version} are gone, and AUTO was told nothing of them; name "
            "what it stands for"
        )
    listed = public_key_table(frame, rooms)
    rooms.engine.bind(question.sql(), listed_keys=listed)
    return listed


def _draw(
    question: _Question, listed: pa.Table | None, rho_nano: int, rooms: Rooms, reader: Reader,
    timeout_seconds: float | None,
) -> Charged:  # fmt: skip
    state, frame = rooms.state, question.frame
    with state.locks.exclusive(question.statistic_hash):
        if _told(question, state) is not None:
            return Charged.nothing()
        item = ChargeItem(question.statistic_hash, rho_nano, _precision(question, rho_nano))
        charged = state.ledger.charge(frame.unit, (item,), reader.name)
        # keys of a frame are written once, and every statistic here has places of its own
        state.side_table.frame(question.statistic_hash, frame.unit, [table for table, _ in frame.table_versions])
        exact = rooms.engine.aggregate(question.sql(), listed_keys=listed, timeout_seconds=timeout_seconds)
        units = question.exact(exact.reveal())
        point = Point(
            statistic_hash=question.statistic_hash,
            rho_nano=rho_nano,
            frame_hash=question.statistic_hash,
            values=noisy_histogram(units, rho_nano, question.l2, rooms.entropy),
            lattice_exponent=question.statistic.noise_exponent,
            sigma=auto_sigma(rho_nano, question.l2),
            tau=None,
            threshold_delta_units=0,
        )
        places = pa.table({"place": pa.array(np.arange(question.place_count))})
        state.side_table.store(question.statistic_hash, places, (point,), charged.charge_ids)
    return charged


def _require_budget(query: PrivateQuery, calibrations: list[Calibration], state: State) -> None:
    """Refuse, before AUTO is paid, what could not be paid after it: no answer would come of the charge."""
    open_rho, open_delta = open_price(query, calibrations[0])
    rho_nano = open_rho + max(calibration.rho_nano for calibration in calibrations)
    noise = [sum(delta_units_up(level.noise_delta) for level in calibration.levels) for calibration in calibrations]
    shown = [delta_units_up(calibration.threshold_delta) for calibration in calibrations]
    delta_units = open_delta + max(map(sum, zip(noise, shown, strict=True)))
    state.ledger.require(query.frame.unit, (ChargeItem(query.query_hash, rho_nano, delta_units),))


def told_levels(query: PrivateQuery) -> dict[str, int]:
    """What a release tells of the histograms: their statistics and levels; nothing without AUTO."""
    return {question.statistic_hash: question.asked.rho_nano or 0 for question in _questions(query)}
