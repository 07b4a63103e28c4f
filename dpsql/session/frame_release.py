"""Steps 6 and 7 for one frame that is paid for: read, draw, store, with the record of its release."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa

from dpsql.session.auto import told_levels
from dpsql.session.exact import Exact, Reading, Rooms, prepare_reading, read_exact
from dpsql.session.points import new_points
from dpsql.session.prepared import Prepared
from dpsql.session.receipt import with_price
from dpsql.session.result import Receipt
from dpsql.state import Charged, Release


def reading_of(part: Prepared, rooms: Rooms, shown_keys: pa.Table | None = None) -> Reading | None:
    """Where the exact values of what is drawn come from; None where nothing is.

    Raises:
        ReleaseError: the list of public keys changed since the plan, or the rows that are needed are gone.

    """
    drawn = tuple(serving.statistic for serving in part.servings if serving.draws)
    return prepare_reading(part.query.frame, drawn, rooms, shown_keys) if drawn else None


def release_frame(
    part: Prepared,
    reading: Reading | None,
    receipt: Receipt,
    charged: Charged,
    rooms: Rooms,
    *,
    told: Charged,
    analyst: str,
    query_hash: str,
    timeout_seconds: float | None,
) -> None:
    """Draw and make what is not stored, and store it with its release, under the name of the whole query.

    Args:
        part: how the frame is served.
        reading: as `reading_of` gives it.
        receipt: of this frame, before a price is known.
        charged: what was charged for it.
        rooms: state, engine, sandbox and entropy.
        told: what was charged beside it for telling AUTO.
        analyst: who asks.
        query_hash: of the whole query.
        timeout_seconds: limit on reading raw data.

    Raises:
        EngineError: the charge stays and pays for asking again.

    """
    exact = None if reading is None else read_exact(reading, _salt(part, rooms), rooms, timeout_seconds)
    paid = told.beside(charged)
    release = _release(part, with_price(receipt, paid), paid, analyst, query_hash, rooms.asked_at)
    _store(part, exact, release, charged, rooms)


def _salt(part: Prepared, rooms: Rooms) -> bytes:
    """The salt by which units are bounded; the frame is stored, and its finer one, if they are not yet."""
    frame = part.query.frame
    kept = [
        rooms.state.side_table.frame(
            one.frame_hash, one.unit, [name for name, _ in one.table_versions], one.base_hash, one.generation
        )
        for one in (frame, frame.finer)
        if one is not None
    ]
    return kept[-1].salt


def _store(part: Prepared, exact: Exact | None, release: Release, charged: Charged, rooms: Rooms) -> None:
    """Draw and make what is not stored, and store it with its release."""
    frame, table = part.query.frame, rooms.state.side_table
    made = new_points(frame, part.histogram, part.servings, exact, table, rooms.entropy)
    table.store(
        frame.frame_hash,
        exact.new_keys if exact else None,
        made.points,
        charged.charge_ids,
        release,
        exact.snapshot if exact else None,
        made.thresholds,
    )


def _release(
    part: Prepared, receipt: Receipt, charged: Charged, analyst: str, query_hash: str, asked_at: dt.datetime
) -> Release:
    """The record of one frame's release; who is shown it is shown what AUTO was told, too."""
    frame, told = part.query.frame, told_levels(part.query)
    return Release(
        analyst=analyst,
        query_hash=query_hash,
        at=asked_at,
        statistics=(*(serving.statistic.hash_in(frame) for serving in part.servings), *told),
        levels=(
            *((serving.told_nano, serving.release_nano) for serving in part.servings),
            *((level, 0) for level in told.values()),
        ),
        mechanism=receipt.mechanism,
        rho_nano=sum(serving.level.rho_nano for serving in part.servings),
        epsilon=receipt.epsilon,
        delta=receipt.delta,
        charged_rho_nano=charged.rho_nano,
        charged_delta_units=charged.delta_units,
        reused=receipt.reused,
        table_versions=frame.table_versions,
    )
