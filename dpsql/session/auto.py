"""AUTO: a frame's max_groups, chosen from a noisy histogram that is drawn once for a frame and version and then stored.

Charge, draw, store, as for every release; the histogram is a statistic of its own, over public places. Later queries of
the same rows and groups, at any level, by any mechanism, find it and pay nothing for it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from dpsql.errors import AccessError, BudgetError, ReleaseError
from dpsql.query.auto import GROUPS, group_counts_sql, with_max_groups
from dpsql.query.private_query import NANO, AutoGroups, PrivateQuery
from dpsql.release.auto_groups import Expected, auto_noise_delta, auto_sigma, binned, chosen_groups, noisy_histogram
from dpsql.release.calibrate import AUTO_PARTS, Calibration, calibrate
from dpsql.release.choose import choose, histogram_of
from dpsql.release.histogram import count_sigma
from dpsql.session.exact import Rooms, public_key_table
from dpsql.session.reader import Reader
from dpsql.state import (
    DELTA_UNITS_PER_ONE,
    NANO_PER_RHO,
    Charged,
    ChargeItem,
    Point,
    State,
    delta_units_up,
)

_REFERENCE_DELTA = 1e-6
"""Thresholds are predicted at this delta whatever a query asks for, so that every query of a frame has one choice."""


def is_open(query: PrivateQuery) -> bool:
    """Whether AUTO is yet to be told something."""
    return query.auto is not None and query.auto.rho_nano is None


def settled(query: PrivateQuery, state: State) -> PrivateQuery:
    """The query on the frame with the least noise, of those that AUTO chose; as it is where nothing was drawn yet.

    A function of the stored histogram, policy and text; reads no raw row.
    """
    auto = query.auto
    if auto is None:
        return choose(query)
    name = GROUPS.hash_in(auto.frame)
    stored = state.side_table.levels(name)
    if not stored:
        return query
    point = state.side_table.point(name, stored[0].rho_nano)
    if point is None or len(point.values) != len(auto.candidates):
        raise AssertionError("a histogram is stored over its places")
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
        point.values.astype(np.float64) * 2.0**point.lattice_exponent,
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
        raise AssertionError("only AUTO leaves something open")
    some = [number for number in auto.candidates if number.bit_count() == 1 or number == auto.candidates[-1]]
    return tuple(choose(with_max_groups(query, auto, number)) for number in some)


def require_told(query: PrivateQuery, reader: Reader) -> None:
    """Refuse a reader whose limit is below the level at which AUTO was told.

    Raises:
        AccessError: it is.

    """
    if query.auto is not None and query.auto.rho_nano and not reader.may_see(query.auto.rho_nano):
        raise AccessError(
            f"AUTO was told at rho = {query.auto.rho_nano / NANO:.9g}, above the limit of {reader.name!r}; name "
            "max_groups_contributed"
        )


def price(calibration: Calibration) -> tuple[int, int]:
    """What drawing the histogram costs: nano-rho, and delta units for the precision of the draw."""
    return calibration.auto_nano, delta_units_up(auto_noise_delta(calibration.auto_nano))


def draw(query: PrivateQuery, rooms: Rooms, reader: Reader, timeout_seconds: float | None) -> Charged:
    """Charge, draw and store the histogram, unless somebody was faster.

    Raises:
        AccessError, CalibrationError, BudgetError, ReleaseError: nothing was charged or read.
        EngineError: the charge stays and pays for asking again.

    """
    auto = query.auto
    if auto is None:
        raise AssertionError("only AUTO is drawn")
    state, frame = rooms.state, auto.frame
    with state.locks.exclusive(frame.base_hash):
        if state.side_table.levels(GROUPS.hash_in(frame)):
            return Charged(0, 0, ())
        # whatever is chosen, the query must be answerable and paid for before anything is charged
        options = may_come(query)
        calibrations = [calibrate(each, histogram_of(each.frame)) for each in (options[0], options[-1])]
        calibration = calibrations[0]
        rho_nano, delta_units = price(calibration)
        reader.require(calibration.rho_nano + rho_nano)
        _require_budget(query, calibrations, state)
        if not frame.relation:
            raise ReleaseError(
                f"the rows of {frame.table} in version {frame.version} are gone, and AUTO was told nothing of them; "
                "name max_groups_contributed"
            )
        listed = public_key_table(frame, rooms)
        rooms.engine.bind(group_counts_sql(frame), listed_keys=listed)
        name = GROUPS.hash_in(frame)
        charged = state.ledger.charge(frame.unit, (ChargeItem(name, rho_nano, delta_units),), reader.name)
        tables = [table for table, _ in frame.table_versions]
        state.side_table.frame(frame.frame_hash, frame.unit, tables)
        exact = rooms.engine.aggregate(group_counts_sql(frame), listed_keys=listed, timeout_seconds=timeout_seconds)
        counts = exact.reveal()
        units = binned(
            counts.column("groups").to_numpy().astype(np.int64),
            counts.column("units").to_numpy().astype(np.int64),
            auto.candidates,
        )
        point = Point(
            statistic_hash=name,
            rho_nano=rho_nano,
            frame_hash=frame.frame_hash,
            values=noisy_histogram(units, rho_nano, rooms.entropy),
            lattice_exponent=GROUPS.noise_exponent,
            sigma=auto_sigma(rho_nano),
            tau=None,
            threshold_delta_units=0,
        )
        places = pa.table({"groups": pa.array(auto.candidates, pa.int64())})
        state.side_table.store(frame.frame_hash, places, (point,), charged.charge_ids)
    return charged


def _require_budget(query: PrivateQuery, calibrations: list[Calibration], state: State) -> None:
    """Refuse, before AUTO is paid, what could not be paid after it: no answer would come of the charge."""
    unit = next(unit for unit in state.policy().units if unit.name == query.frame.unit)
    spent = state.ledger.spent(unit.name)
    rho_nano = max(calibration.rho_nano + calibration.auto_nano for calibration in calibrations)
    noise = [sum(delta_units_up(level.noise_delta) for level in calibration.levels) for calibration in calibrations]
    shown = [delta_units_up(calibration.threshold_delta) for calibration in calibrations]
    delta_units = price(calibrations[0])[1] + max(map(sum, zip(noise, shown, strict=True)))
    if rho_nano > unit.rho_budget - spent.rho_nano or delta_units > unit.delta_threshold - spent.delta_units:
        raise BudgetError(
            unit.name,
            requested_rho=rho_nano / NANO_PER_RHO,
            remaining_rho=(unit.rho_budget - spent.rho_nano) / NANO_PER_RHO,
            requested_delta=delta_units / DELTA_UNITS_PER_ONE,
            remaining_delta=(unit.delta_threshold - spent.delta_units) / DELTA_UNITS_PER_ONE,
        )


def told(auto: AutoGroups | None) -> dict[str, int]:
    """What a release tells of the histogram: its statistic and level; nothing without AUTO."""
    if auto is None or auto.rho_nano is None:
        return {}
    return {GROUPS.hash_in(auto.frame): auto.rho_nano}
