"""Steps 4 to 8 for one planned query: calibrate, charge, aggregate, release, finish.

Charge, draw, store, show, in this order, one release of a frame at a time. The charge is durable before any raw row is
read; a point is durable before anything of it is shown. What was charged but never stored was never shown, and asking
the same again uses that charge up. A query with grouping sets is charged whole, and then released set by set.
"""

from __future__ import annotations

import contextlib
import datetime as dt

import pyarrow as pa

from dpsql.errors import EngineError, ReleaseError
from dpsql.query.after import RESULT
from dpsql.query.finish import NOISY, finish_sql
from dpsql.query.private_query import After, PrivateQuery
from dpsql.session import auto
from dpsql.session.exact import Exact, Reading, Rooms, prepare_reading, read_exact
from dpsql.session.points import new_points
from dpsql.session.prepared import Prepared, current, parts_of, prepare
from dpsql.session.reader import Reader
from dpsql.session.receipt import make_receipt, with_price
from dpsql.session.result import Receipt, Result
from dpsql.session.sets import joint_price, joint_receipt, joint_table
from dpsql.session.shown import Stored, noisy_table
from dpsql.state import Charged, Release

_AFTER_SECONDS = 20.0
"""What is computed of an answer may take this long, while every other query of the session waits."""


def answer(
    query: PrivateQuery,
    rooms: Rooms,
    *,
    reader: Reader,
    timeout_seconds: float | None = None,
    told: Charged | None = None,
) -> Result:
    """Answer a planned query.

    Args:
        query: the plan, with nothing left open that AUTO is to be told.
        rooms: state, engine, sandbox and entropy.
        reader: who asks, with their clearance; who is charged for in the books.
        timeout_seconds: limit on reading raw data, for each grouping set; the charge stays when it runs out.
        told: what was charged for telling AUTO; part of the receipt.

    Raises:
        AccessError, CalibrationError, BudgetError: nothing was charged or read.
        ReleaseError: the list of public keys changed since the plan, or the rows that it needs are gone; nothing was
            charged.
        EngineError: the charge stays and pays for asking again.
        ReleaseError: what stands around a private query fails on its answer, which is charged and stored.

    """
    auto.require_told(query, reader)
    told = told or Charged.nothing()
    with rooms.state.locks.all_exclusive(part.frame.base_hash for part in parts_of(query)):
        query = current(query, rooms.state, reader)
        prepared = prepare(query, rooms.state, reader)
        # a text that cannot be made is found before the charge; no frame, hence no salt, is stored before it
        readings = [_reading(part, rooms) for part in prepared]
        # all of the receipt that can fail is made before the charge
        receipts = [make_receipt(part.query, part.histogram, part.terms) for part in prepared]
        joint = None if query.grouping is None else joint_receipt(query, prepared, receipts)
        items = [item for part in prepared for item in part.items]
        charged = Charged.nothing()
        if items:
            charged = rooms.state.ledger.charge(query.frame.unit, items, reader.name)
        for part, reading, receipt in zip(prepared, readings, receipts, strict=True):
            exact = None if reading is None else read_exact(reading, _salt(part, rooms), rooms, timeout_seconds)
            drawn = charged.part(part.items)
            # AUTO is told for queries with one set of keys alone
            paid = told.beside(drawn)
            _store(part, exact, _release(query, part, with_price(receipt, paid), paid, reader), drawn, rooms)
        stored = [Stored(part.query.frame, rooms.state.side_table) for part in prepared]
        if joint is None:
            noisy = noisy_table(query, prepared[0].histogram, prepared[0].servings, stored[0])
            receipt = with_price(receipts[0], told.beside(charged))
        else:
            noisy = joint_table(query, prepared, stored)
            receipt = joint_price(joint, prepared, charged)
    shown = rooms.sandbox.run(finish_sql(query), {NOISY: noisy})
    for step in query.after:
        shown = _computed(step, shown, rooms)
    return Result(shown, receipt)


def _computed(step: After, shown: pa.Table, rooms: Rooms) -> pa.Table:
    """What is asked of the answer; whether that fails is a fact of numbers that the reader is shown anyway."""
    with contextlib.suppress(EngineError):
        return rooms.sandbox.run(step.sql, {RESULT: shown}, seconds=_AFTER_SECONDS)
    # outside the handler, so that no earlier error travels along
    raise ReleaseError(
        "what stands around the private query failed on a number of its answer (a cast, an overflow, an argument), or "
        f"took more than {_AFTER_SECONDS:g} s; the answer is paid for and stored, and costs nothing asked for alone. "
        "Write TRY_CAST for a cast"
    )


def _reading(part: Prepared, rooms: Rooms) -> Reading | None:
    """Where the exact values of what is drawn come from; None where nothing is."""
    drawn = tuple(serving.statistic for serving in part.servings if serving.draws)
    return prepare_reading(part.query.frame, drawn, rooms) if drawn else None


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


def _release(query: PrivateQuery, part: Prepared, receipt: Receipt, charged: Charged, reader: Reader) -> Release:
    """The record of one frame's release, under the name of the whole query."""
    frame = part.query.frame
    return Release(
        analyst=reader.name,
        query_hash=query.query_hash,
        at=dt.datetime.now(dt.UTC),
        statistics=tuple(serving.statistic.hash_in(frame) for serving in part.servings),
        levels=tuple((serving.told_nano, serving.release_nano) for serving in part.servings),
        mechanism=receipt.mechanism,
        rho_nano=sum(serving.level.rho_nano for serving in part.servings),
        epsilon=receipt.epsilon,
        delta=receipt.delta,
        charged_rho_nano=charged.rho_nano,
        charged_delta_units=charged.delta_units,
        reused=receipt.reused,
        table_versions=frame.table_versions,
    )
