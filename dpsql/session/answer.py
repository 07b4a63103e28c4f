"""Steps 4 to 8 for one planned query: calibrate, charge, aggregate, release, finish.

Charge, draw, store, show, in this order, one release of a frame at a time. The charge is durable before any raw row is
read; a point is durable before anything of it is shown. What was charged but never stored was never shown, and asking
the same again uses that charge up.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.query.finish import NOISY, finish_sql
from dpsql.query.private_query import PRESENCE, Frame, PrivateQuery, Statistic
from dpsql.release.calibrate import calibrate
from dpsql.release.choose import Shape, histogram_of
from dpsql.release.estimates import estimate_column, noise_sigma, read_values
from dpsql.release.histogram import Histogram
from dpsql.release.noise import shown_keys
from dpsql.session.exact import Rooms, prepare_reading, read_exact
from dpsql.session.points import new_points
from dpsql.session.reader import Reader
from dpsql.session.receipt import make_receipt, terms_of
from dpsql.session.result import Receipt, Result
from dpsql.session.servings import Serving, servings_of
from dpsql.state import (
    Charged,
    ChargeItem,
    Point,
    Release,
    State,
    delta_units_up,
)


def charge_items(query: PrivateQuery, servings: tuple[Serving, ...]) -> tuple[ChargeItem, ...]:
    """The price: each draw and its imprecision, and the thresholds that are due."""
    items = []
    for serving in servings:
        rho_nano = sum(level.rho_nano for level, _ in serving.draws)
        delta = math.fsum(level.noise_delta for level, _ in serving.draws)
        delta += math.fsum(cut.delta for cut in (serving.cut, serving.ceiling_cut) if cut is not None)
        if not serving.is_paid:
            items.append(ChargeItem(serving.statistic.hash_in(query.frame), rho_nano, delta_units_up(delta)))
    return tuple(items)


def current(query: PrivateQuery, state: State) -> PrivateQuery:
    """The query on the last generation of its frame, or on the next where a refresh is asked for."""
    last = state.side_table.generation(query.frame.base_hash)
    generation = 0 if last is None else last + query.refresh
    return replace(query, frame=replace(query.frame, generation=generation))


def answer(
    query: PrivateQuery,
    rooms: Rooms,
    *,
    reader: Reader,
    timeout_seconds: float | None = None,
) -> Result:
    """Answer a planned query.

    Args:
        query: the plan.
        rooms: state, engine, sandbox and entropy.
        reader: who asks, with their clearance; who is charged for in the books.
        timeout_seconds: limit on reading raw data; the charge stays when it runs out.

    Raises:
        AccessError, CalibrationError, BudgetError: nothing was charged or read.
        ReleaseError: the list of public keys changed since the plan, or the rows that it needs are gone; nothing was
            charged.
        EngineError: the charge stays and pays for asking again.

    """
    table = rooms.state.side_table
    with rooms.state.locks.exclusive(query.frame.base_hash):
        query = current(query, rooms.state)
        frame = query.frame
        calibration = calibrate(query, held_histogram(query, rooms.state))
        servings = servings_of(query, calibration, rooms.state, reader)
        terms = terms_of(query, calibration, servings)
        drawn = tuple(serving.statistic for serving in servings if serving.draws)
        # a text that cannot be made is found before the charge; no frame, hence no salt, is stored before it
        reading = prepare_reading(frame, drawn, rooms) if drawn else None
        items = charge_items(query, servings)
        charged = Charged(0, 0, ())
        if items:
            charged = rooms.state.ledger.charge(frame.unit, items, reader.name)
        exact = None
        if reading is not None:
            kept = table.frame(frame.frame_hash, frame.unit, (frame.table,), frame.base_hash, frame.generation)
            exact = read_exact(reading, kept.salt, rooms, timeout_seconds)
        made = new_points(frame, calibration.histogram, servings, exact, table, rooms.entropy)
        receipt = make_receipt(query, calibration.histogram, terms, charged)
        table.store(
            frame.frame_hash,
            exact.new_keys if exact else None,
            made.points,
            charged.charge_ids,
            _release(query, receipt, servings, charged, reader),
            exact.snapshot if exact else None,
            made.thresholds,
        )
        points = {
            serving.statistic: _served(query, serving.statistic, serving.level.rho_nano, rooms) for serving in servings
        }
        shown = _shown(query, servings[0], points[PRESENCE], calibration.histogram, rooms)
        keys = table.frame_keys(frame.frame_hash)
    noisy = _noisy_table(query, calibration.histogram, points, shown, keys)
    return Result(rooms.sandbox.run(finish_sql(query), {NOISY: noisy}), receipt)


def _served(query: PrivateQuery, statistic: Statistic, rho_nano: int, rooms: Rooms) -> Point:
    point = rooms.state.side_table.point(statistic.hash_in(query.frame), rho_nano)
    if point is None:
        raise AssertionError("what is served is stored")
    return point


def _shown(
    query: PrivateQuery, presence: Serving, served: Point, histogram: Histogram, rooms: Rooms
) -> npt.NDArray[np.intp]:
    """Ids of the keys that may be shown: those that charged points have shown, and that pass the reader's own rule."""
    if not query.frame.has_private_keys:
        return shown_keys(histogram.values(_steps(served)), 0.0, None, query.min_units)
    passed = np.zeros(len(served.values), dtype=np.bool_)
    for level in presence.keys_from:
        point = served if level.rho_nano == served.rho_nano else _served(query, PRESENCE, level.rho_nano, rooms)
        passed[shown_keys(_steps(point), 0.0, point.tau, 1)] = True
    if query.min_units > 1:
        floor, _ = _floors(query.frame, served)
        own = np.zeros(len(passed), dtype=np.bool_)
        own[shown_keys(_steps(served) + floor, 0.0, served.tau or 0.0, query.min_units)] = True
        passed &= own
    return np.flatnonzero(passed)


def held_histogram(query: PrivateQuery, state: State) -> Histogram:
    """How the presence count is noised; a frame that has a point of it keeps its shape."""
    stored = state.side_table.levels(PRESENCE.hash_in(query.frame))
    shape = Shape(stored[0].correlation, stored[0].floor_correlation) if stored else None
    return histogram_of(query.frame, shape)


def _steps(point: Point) -> npt.NDArray[np.float64]:
    """What is stored, in the aggregate's units; of a presence count less the floor."""
    return point.values.astype(np.float64) * 2.0**point.lattice_exponent


def _release(
    query: PrivateQuery, receipt: Receipt, servings: tuple[Serving, ...], charged: Charged, reader: Reader
) -> Release:
    return Release(
        analyst=reader.name,
        query_hash=query.query_hash,
        at=dt.datetime.now(dt.UTC),
        statistics=tuple(serving.statistic.hash_in(query.frame) for serving in servings),
        levels=tuple(serving.told_nano for serving in servings),
        mechanism=receipt.mechanism,
        rho_nano=sum(serving.level.rho_nano for serving in servings),
        epsilon=receipt.epsilon,
        delta=receipt.delta,
        charged_rho_nano=charged.rho_nano,
        charged_delta_units=charged.delta_units,
        reused=receipt.reused,
        table_versions=((query.frame.table, query.frame.version),),
    )


def _floors(frame: Frame, presence: Point) -> tuple[float, float]:
    """What is added to every count again, and how much more may be missing from it.

    What a sketch subtracted is no part of a count for sure: of any one key it is something from nothing to all of it.
    """
    floor = presence.floor * 2.0**presence.lattice_exponent
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
) -> pa.Table:
    added, lost = _floors(query.frame, points[PRESENCE])
    # what is read from under the noise, or added up, needs all keys; hidden ones are left out first
    first, then = (shown, slice(None)) if query.frame.has_private_keys else (slice(None), shown)
    values = {
        statistic: read_values(
            _steps(point)[first] + (added if statistic == PRESENCE else 0.0),
            noise_sigma(statistic, point.sigma, histogram),
            histogram,
        )
        for statistic, point in points.items()
    }
    columns: dict[str, pa.ChunkedArray | pa.Array] = {}
    if query.frame.keys and keys is not None:
        taken = keys.take(pa.array(shown))
        columns = {name: taken.column(name) for name in taken.column_names}
    for i, estimate in enumerate(query.estimates):
        column = estimate_column(estimate, values, histogram)
        whole = estimate.type == "BIGINT"
        value = column.value[then]
        columns[f"agg_{i}"] = pa.array(np.rint(value) if whole else value, from_pandas=True)
        columns[f"agg_{i}_low"] = pa.array(column.low[then])
        columns[f"agg_{i}_high"] = pa.array((column.high + lost * estimate.numerator.centre)[then])
    if not columns:
        columns["nothing"] = pa.array(np.zeros(len(shown)))
    return pa.table(columns)
