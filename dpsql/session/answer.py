"""Steps 4 to 8 for one planned query: calibrate, charge, aggregate, release, finish.

Charge, draw, store, show, in this order, one release of a frame at a time. The charge is durable before any raw row is
read; a point is durable before anything of it is shown. What was charged but never stored was never shown, and asking
the same again uses that charge up.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.query.finish import NOISY, finish_sql
from dpsql.query.private_query import PRESENCE, Frame, PrivateQuery, Statistic
from dpsql.release.calibrate import Calibration, Level, calibrate
from dpsql.release.choose import Shape, histogram_of
from dpsql.release.estimates import NoisyValues, estimate_column, noise_sigma
from dpsql.release.histogram import Histogram
from dpsql.release.noise import noisy_values, shown_keys
from dpsql.session.exact import Exact, Rooms, prepare_reading, read_exact
from dpsql.session.receipt import make_receipt, terms_of
from dpsql.session.result import Receipt, Result
from dpsql.state import (
    Charged,
    ChargeItem,
    Point,
    Release,
    State,
    delta_units_up,
)


def stored_points(query: PrivateQuery, calibration: Calibration, state: State) -> dict[Statistic, Point]:
    """The points that reach the levels asked for."""
    tops = {
        level.statistic: state.side_table.top_point(level.statistic.hash_in(query.frame))
        for level in calibration.levels
    }
    asked = {level.statistic: level.rho_nano for level in calibration.levels}
    return {
        statistic: point
        for statistic, point in tops.items()
        if point is not None and point.rho_nano >= asked[statistic]
    }


def due_levels(calibration: Calibration, stored: Mapping[Statistic, Point]) -> tuple[Level, ...]:
    """Levels that no stored point reaches: what must be charged and drawn."""
    return tuple(level for level in calibration.levels if level.statistic not in stored)


def charge_items(query: PrivateQuery, calibration: Calibration, due: tuple[Level, ...]) -> tuple[ChargeItem, ...]:
    """The price of the due levels: each its rho and its draws' imprecision, the presence count its threshold."""
    items = []
    for level in due:
        delta = level.noise_delta
        if level.statistic == PRESENCE:
            delta += calibration.threshold_delta
        items.append(ChargeItem(level.statistic.hash_in(query.frame), level.rho_nano, delta_units_up(delta)))
    return tuple(items)


def answer(
    query: PrivateQuery,
    rooms: Rooms,
    *,
    default_delta: float,
    reader: str,
    timeout_seconds: float | None = None,
) -> Result:
    """Answer a planned query.

    Args:
        query: the plan.
        rooms: state, engine, sandbox and entropy.
        default_delta: delta of a query that names none.
        reader: who is charged for in the books.
        timeout_seconds: limit on reading raw data; the charge stays when it runs out.

    Raises:
        CalibrationError, BudgetError: nothing was charged or read.
        ReleaseError: the list of public keys changed since the plan; nothing was charged.
        EngineError: the charge stays and pays for asking again.

    """
    frame_hash, table = query.frame.frame_hash, rooms.state.side_table
    with rooms.state.locks.exclusive(frame_hash):
        calibration = calibrate(query, held_histogram(query, rooms.state), default_delta)
        stored = stored_points(query, calibration, rooms.state)
        due = due_levels(calibration, stored)
        terms = terms_of(query, calibration, stored, default_delta)
        charged, drawn = Charged(0, 0, ()), _Drawn({}, None)
        if due:
            # a text that cannot be made is found before the charge; no frame, hence no salt, is stored before it
            reading = prepare_reading(query.frame, tuple(level.statistic for level in due), rooms)
            charged = rooms.state.ledger.charge(query.frame.unit, charge_items(query, calibration, due), reader)
            salt = table.frame(frame_hash, query.frame.unit, (query.frame.table,)).salt
            exact = read_exact(reading, salt, rooms, timeout_seconds)
            drawn = _Drawn(_draw(query, calibration, due, exact, rooms), exact)
        points = {statistic: drawn.points.get(statistic) or stored[statistic] for statistic in query.statistics}
        receipt = make_receipt(query, calibration.histogram, terms, charged)
        table.store(
            frame_hash,
            drawn.exact.new_keys if drawn.exact else None,
            tuple(drawn.points.values()),
            charged.charge_ids,
            _release(query, receipt, points, charged, reader),
            drawn.exact.snapshot if drawn.exact else None,
        )
        presence = points[PRESENCE]
        added, lost = _floors(query.frame, presence.floor)
        shown = shown_keys(_counts(presence), added, presence.tau, query.min_units)
        points = _extended(points, shown, len(presence.values), rooms)
        keys = table.frame_keys(frame_hash)
    noisy = _noisy_table(query, calibration.histogram, points, shown, keys, (added, lost))
    return Result(rooms.sandbox.run(finish_sql(query), {NOISY: noisy}), receipt)


@dataclass(frozen=True)
class _Drawn:
    """New points, not stored yet, and what they were drawn from; nothing of either where nothing was due."""

    points: Mapping[Statistic, Point]
    exact: Exact | None


def held_histogram(query: PrivateQuery, state: State) -> Histogram:
    """How the presence count is noised; a frame that has a point of it keeps its shape."""
    point = state.side_table.top_point(PRESENCE.hash_in(query.frame))
    shape = None if point is None else Shape(point.correlation, point.floor_correlation)
    return histogram_of(query.frame, shape)


def _draw(
    query: PrivateQuery, calibration: Calibration, due: tuple[Level, ...], exact: Exact, rooms: Rooms
) -> dict[Statistic, Point]:
    return {
        level.statistic: _presence_point(query, calibration, level, exact, rooms)
        if level.statistic == PRESENCE
        else _point(query, level, exact, rooms)
        for level in due
    }


def _presence_point(query: PrivateQuery, calibration: Calibration, level: Level, exact: Exact, rooms: Rooms) -> Point:
    histogram = calibration.histogram
    noisy = histogram.draw(exact.values[PRESENCE], exact.floor, level.sigma, rooms.entropy)
    return Point(
        statistic_hash=PRESENCE.hash_in(query.frame),
        rho_nano=level.rho_nano,
        frame_hash=query.frame.frame_hash,
        values=noisy.values,
        lattice_exponent=histogram.lattice_exponent,
        sigma=level.sigma,
        tau=calibration.tau,
        threshold_delta_units=delta_units_up(calibration.threshold_delta),
        correlation=histogram.correlation,
        floor=noisy.floor,
        floor_correlation=histogram.floor_correlation,
    )


def _point(query: PrivateQuery, level: Level, exact: Exact, rooms: Rooms) -> Point:
    return Point(
        statistic_hash=level.statistic.hash_in(query.frame),
        rho_nano=level.rho_nano,
        frame_hash=query.frame.frame_hash,
        values=noisy_values(exact.values[level.statistic], level.statistic, level.sigma, rooms.entropy),
        lattice_exponent=level.statistic.lattice_exponent,
        sigma=level.sigma,
        tau=None,
        threshold_delta_units=0,
    )


def _counts(presence: Point) -> npt.NDArray[np.float64]:
    """Noisy presence counts less the floor, in units."""
    return presence.values.astype(np.float64) * 2.0**presence.lattice_exponent


def _release(
    query: PrivateQuery, receipt: Receipt, points: Mapping[Statistic, Point], charged: Charged, reader: str
) -> Release:
    return Release(
        analyst=reader,
        query_hash=query.query_hash,
        at=dt.datetime.now(dt.UTC),
        statistics=tuple(point.statistic_hash for point in points.values()),
        mechanism=receipt.mechanism,
        rho_nano=sum(point.rho_nano for point in points.values()),
        epsilon=receipt.epsilon,
        delta=receipt.delta,
        charged_rho_nano=charged.rho_nano,
        charged_delta_units=charged.delta_units,
        reused=receipt.reused,
        table_versions=((query.frame.table, query.frame.version),),
    )


def _extended(
    points: dict[Statistic, Point], shown: npt.NDArray[np.intp], key_count: int, rooms: Rooms
) -> dict[Statistic, Point]:
    """Points that cover every shown key.

    A key that came after a sum was drawn had the exact value 0 then; its value is noise around 0, drawn once and
    stored before it is shown. Nothing of the data is read.
    """
    needed = int(shown.max()) + 1 if len(shown) else 0
    extended = dict(points)
    for statistic, point in points.items():
        missing = key_count - len(point.values)
        if needed > len(point.values):
            zeros = np.zeros(missing, dtype=np.int64)
            more = noisy_values(zeros, statistic, point.sigma, rooms.entropy)
            rooms.state.side_table.extend_point(point.statistic_hash, point.rho_nano, more)
            stored = rooms.state.side_table.top_point(point.statistic_hash)
            if stored is None:
                raise AssertionError("a point that was just extended is stored")
            extended[statistic] = stored
    return extended


def _floors(frame: Frame, floor: float) -> tuple[float, float]:
    """What is added to every count again, and how much more may be missing from it.

    What a sketch subtracted is no part of a count for sure: of any one key it is something from nothing to all of it.
    """
    if frame.sparsity is None or frame.sparsity.kind == "top_k":
        return floor, 0.0
    minimum = float(frame.minimum_units - 1)
    return minimum, max(0.0, floor - minimum)


def _noisy_table(
    query: PrivateQuery,
    histogram: Histogram,
    points: Mapping[Statistic, Point],
    shown: npt.NDArray[np.intp],
    keys: pa.Table | None,
    floors: tuple[float, float],
) -> pa.Table:
    added, lost = floors
    values = {
        statistic: NoisyValues(
            point.values[shown].astype(np.float64) * 2.0**point.lattice_exponent
            + (added if statistic == PRESENCE else 0.0),
            noise_sigma(statistic, point.sigma, histogram),
        )
        for statistic, point in points.items()
    }
    columns: dict[str, pa.ChunkedArray | pa.Array] = {}
    if query.frame.keys and keys is not None:
        taken = keys.take(pa.array(shown))
        columns = {name: taken.column(name) for name in taken.column_names}
    for i, estimate in enumerate(query.estimates):
        column = estimate_column(estimate, values, values[PRESENCE])
        whole = estimate.type == "BIGINT"
        columns[f"agg_{i}"] = pa.array(np.rint(column.value) if whole else column.value, from_pandas=True)
        columns[f"agg_{i}_low"] = pa.array(column.low)
        columns[f"agg_{i}_high"] = pa.array(column.high + lost * estimate.numerator.centre)
    if not columns:
        columns["nothing"] = pa.array(np.zeros(len(shown)))
    return pa.table(columns)
