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

from dpsql.engine import Engine, Sandbox, digest
from dpsql.errors import ReleaseError
from dpsql.mechanisms.entropy import Entropy
from dpsql.query.bound import bounded_sql
from dpsql.query.finish import NOISY, finish_sql
from dpsql.query.private_query import PRESENCE, PrivateQuery, Statistic
from dpsql.release.align import align_groups
from dpsql.release.calibrate import Calibration, Level, calibrate
from dpsql.release.estimates import NoisyValues, estimate_column, noise_sigma
from dpsql.release.noise import noisy_values, shown_keys
from dpsql.session.policy_view import SchemaView
from dpsql.session.receipt import make_receipt
from dpsql.session.result import Receipt, Result
from dpsql.state import (
    Charged,
    ChargeItem,
    Point,
    Release,
    State,
    delta_units_up,
)

_STAND_IN_SALT = bytes(16)


@dataclass(frozen=True)
class Rooms:
    """What the steps run on."""

    state: State
    engine: Engine
    sandbox: Sandbox
    entropy: Entropy


def due_levels(query: PrivateQuery, calibration: Calibration, state: State) -> tuple[Level, ...]:
    """Levels that no stored point reaches: what must be charged and drawn."""
    due = []
    for level in calibration.levels:
        point = state.side_table.top_point(level.statistic.hash_in(query.frame))
        if point is None or point.rho_nano < level.rho_nano:
            due.append(level)
    return tuple(due)


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
    calibration = calibrate(query, default_delta)
    frame_hash, table = query.frame.frame_hash, rooms.state.side_table
    with rooms.state.locks.exclusive(frame_hash):
        due = due_levels(query, calibration, rooms.state)
        charged, drawn = Charged(0, 0, ()), _Drawn(None, {})
        if due:
            public_keys = _public_key_table(query, rooms)
            read = (PRESENCE, *_beside_presence(due))
            # a text that cannot be made is found before the charge; no frame, hence no salt, is stored before it
            bounded_sql(query.frame, read, _STAND_IN_SALT)
            charged = rooms.state.ledger.charge(query.frame.unit, charge_items(query, calibration, due), reader)
            salt = table.frame(frame_hash, query.frame.unit, (query.frame.table,)).salt
            sql = bounded_sql(query.frame, read, salt)
            drawn = _draw(query, calibration, due, sql, public_keys, rooms, timeout_seconds)
        points = {
            statistic: drawn.points.get(statistic) or _stored(statistic, query, rooms) for statistic in query.statistics
        }
        receipt = make_receipt(query, calibration, points, charged, default_delta)
        table.store(
            frame_hash,
            drawn.new_keys,
            tuple(drawn.points.values()),
            charged.charge_ids,
            _release(query, receipt, points, charged, reader),
        )
        presence = points[PRESENCE]
        shown = shown_keys(presence.values, presence.tau_steps, query.min_units)
        points = _extended(points, shown, len(presence.values), rooms)
        keys = table.frame_keys(frame_hash)
    noisy = _noisy_table(query, points, shown, keys)
    return Result(rooms.sandbox.run(finish_sql(query), {NOISY: noisy}), receipt)


@dataclass(frozen=True)
class _Drawn:
    """New points, not stored yet, and the keys that the frame did not hold before."""

    new_keys: pa.Table | None
    points: Mapping[Statistic, Point]


def _beside_presence(due: tuple[Level, ...]) -> tuple[Statistic, ...]:
    return tuple(level.statistic for level in due if level.statistic != PRESENCE)


def _draw(
    query: PrivateQuery,
    calibration: Calibration,
    due: tuple[Level, ...],
    sql: str,
    public_keys: pa.Table | None,
    rooms: Rooms,
    timeout_seconds: float | None,
) -> _Drawn:
    frame, table = query.frame, rooms.state.side_table
    exact = rooms.engine.aggregate(sql, public_keys=public_keys, timeout_seconds=timeout_seconds)
    key_names = tuple(f"key_{i}" for i in range(len(frame.keys)))
    held = table.frame_keys(frame.frame_hash)
    # public keys are the whole dictionary from the start, so that every one of them is noised, zeros included
    known = held if held is not None else public_keys
    aligned = align_groups(exact.reveal(), known, key_names, rooms.sandbox.run)
    new_keys = aligned.new_keys if held is not None or public_keys is None else public_keys
    columns = {PRESENCE: "units"} | {
        statistic: f"stat_{i}" for i, statistic in enumerate(_beside_presence(due), start=1)
    }
    points = {
        level.statistic: Point(
            statistic_hash=level.statistic.hash_in(frame),
            rho_nano=level.rho_nano,
            frame_hash=frame.frame_hash,
            values=noisy_values(aligned.values[columns[level.statistic]], level.statistic, level.sigma, rooms.entropy),
            lattice_exponent=level.statistic.lattice_exponent,
            sigma=level.sigma,
            tau=_stored_tau(calibration, level.statistic),
            threshold_delta_units=(delta_units_up(calibration.threshold_delta) if level.statistic == PRESENCE else 0),
        )
        for level in due
    }
    return _Drawn(new_keys, points)


def _stored_tau(calibration: Calibration, statistic: Statistic) -> float | None:
    if statistic != PRESENCE or calibration.tau_steps is None:
        return None
    return float(calibration.tau_steps)


def _public_key_table(query: PrivateQuery, rooms: Rooms) -> pa.Table | None:
    public = query.frame.public_keys
    if public is None:
        return None
    view = SchemaView(rooms.state.policy(), rooms.engine, rooms.sandbox)
    table = view.public_key_table(query.frame.table, public.columns, [key.type for key in query.frame.keys])
    if digest(table) != public.digest:
        raise ReleaseError("the public keys changed while the query was planned; nothing was charged, ask again")
    return table


def _stored(statistic: Statistic, query: PrivateQuery, rooms: Rooms) -> Point:
    point = rooms.state.side_table.top_point(statistic.hash_in(query.frame))
    if point is None:
        raise AssertionError("a statistic that is not due is stored")
    return point


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


def _noisy_table(
    query: PrivateQuery,
    points: Mapping[Statistic, Point],
    shown: npt.NDArray[np.intp],
    keys: pa.Table | None,
) -> pa.Table:
    values = {
        statistic: NoisyValues(
            point.values[shown].astype(np.float64) * statistic.lattice, noise_sigma(statistic, point.sigma)
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
        columns[f"agg_{i}_high"] = pa.array(column.high)
    if not columns:
        columns["nothing"] = pa.array(np.zeros(len(shown)))
    return pa.table(columns)
