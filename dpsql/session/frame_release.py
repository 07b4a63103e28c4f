"""Steps 6 and 7 for one frame that is paid for: read, draw, store, with the record of its release."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from dpsql.query.frame import Frame
from dpsql.query.identity import base_hash, frame_hash, statistic_hash
from dpsql.session.exact import Exact, Reading, Rooms, prepare_reading, read_exact
from dpsql.session.marks import changed_tables, log_changes, read_marks
from dpsql.session.points import new_points
from dpsql.session.policy_view import SchemaView
from dpsql.session.prepared import Prepared
from dpsql.session.receipt import with_price
from dpsql.session.result import Receipt
from dpsql.state import AutoChoice, Charged, KeyList, Release, TableMark


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
    choices: tuple[AutoChoice, ...] = (),
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
        choices: which histograms AUTO chose by.

    Raises:
        EngineError: the charge stays and pays for asking again.
        ReleaseError: AUTO chose otherwise for the same reader and level meanwhile; the charge stays.

    """
    exact: Exact | None = None
    marks: tuple[TableMark, ...] = ()
    if reading is not None:
        exact = read_exact(reading, _salt(part, rooms), rooms, timeout_seconds)
        if reading.needs_data:
            marks = read_marks(part.query.frame.table_versions, rooms.engine)
    paid = told.beside(charged)
    release = _release(part, with_price(receipt, paid), paid, analyst, query_hash, rooms.asked_at)
    release = replace(release, changed=changed_tables(marks, rooms.state))
    _store(part, exact, release, charged, choices, marks, rooms)
    if rooms.logs_changes:
        log_changes(release)


def _salt(part: Prepared, rooms: Rooms) -> bytes:
    """The salt by which units are bounded; the frame is stored, and its finer one, if they are not yet."""
    frame = part.query.frame
    kept = [
        rooms.state.side_table.frame(
            frame_hash(one), one.unit, [name for name, _ in one.table_versions], base_hash(one), one.generation
        )
        for one in (frame, frame.finer)
        if one is not None
    ]
    return kept[-1].salt


def _store(
    part: Prepared, exact: Exact | None, release: Release, charged: Charged, choices: Sequence[AutoChoice],
    marks: Sequence[TableMark], rooms: Rooms,
) -> None:  # fmt: skip
    """Draw and make what is not stored, and store it with its release."""
    frame, table = part.query.frame, rooms.state.side_table
    made = new_points(frame, part.histogram, part.servings, exact, table, rooms.entropy)
    table.store(
        frame_hash(frame),
        exact.new_keys if exact else None,
        made.points,
        charged.charge_ids,
        release,
        exact.snapshot if exact else None,
        made.thresholds,
        choices,
        marks,
        _new_lists(frame, rooms),
        tuple(serving.pin for serving in part.servings),
    )


def _new_lists(frame: Frame, rooms: Rooms) -> list[KeyList]:
    """The public lists of the frame's keys that are others than those that the books know last."""
    found: list[KeyList] = []
    for one in (frame, frame.finer):
        # an earlier version has the lists of its time
        if one is None or one.public_keys is None or not one.relation:
            continue
        public, types = one.public_keys, [key.type for key in one.keys]
        listed = list(zip(public.columns, types, public.list_digests, strict=True))
        if all(rooms.state.key_lists.is_last(*column, kind, digest) for column, kind, digest in listed):
            continue
        blobs = SchemaView(rooms.state.policy(), rooms.engine, rooms.sandbox).list_blobs(public.columns, types)
        found += [
            KeyList(*column, kind, digest, blob)
            for (column, kind, digest), blob in zip(listed, blobs, strict=True)
            if hashlib.sha256(blob).hexdigest() == digest
        ]
    return found


def _release(
    part: Prepared, receipt: Receipt, charged: Charged, analyst: str, query_hash: str, asked_at: dt.datetime
) -> Release:
    """The record of one frame's release; who is shown it is shown what AUTO was told, too."""
    frame, told = part.query.frame, part.query.told_levels
    return Release(
        analyst=analyst,
        query_hash=query_hash,
        at=asked_at,
        statistics=(*(statistic_hash(serving.statistic, frame) for serving in part.servings), *told),
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
