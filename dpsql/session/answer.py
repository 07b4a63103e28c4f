"""Steps 4 to 8 for one planned query: calibrate, charge, aggregate, release, finish.

Charge, draw, store, show, in this order, one release of a frame at a time. The charge is durable before any raw row is
read; a point is durable before anything of it is shown. What was charged but never stored was never shown, and asking
the same again uses that charge up.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from dpsql.errors import AccessError
from dpsql.query.after import RESULT
from dpsql.query.finish import NOISY, finish_sql
from dpsql.query.private_query import PRESENCE, PrivateQuery
from dpsql.release.calibrate import calibrate
from dpsql.release.choose import Shape, histogram_of
from dpsql.release.histogram import Histogram
from dpsql.session import auto
from dpsql.session.exact import Rooms, prepare_reading, read_exact
from dpsql.session.points import new_points
from dpsql.session.reader import Reader
from dpsql.session.receipt import make_receipt, terms_of, with_price
from dpsql.session.result import Receipt, Result
from dpsql.session.servings import Serving, servings_of
from dpsql.session.shown import Stored, noisy_table
from dpsql.state import (
    Charged,
    ChargeItem,
    Release,
    State,
    delta_units_up,
)


def charge_items(query: PrivateQuery, servings: tuple[Serving, ...]) -> tuple[ChargeItem, ...]:
    """The price: each draw and its imprecision, and the thresholds that are due."""
    items = []
    for serving in servings:
        rho_nano = sum(level.rho_nano for level, _ in serving.draws)
        # each part is rounded up by itself, as it is where it is stored
        parts = [level.noise_delta for level, _ in serving.draws]
        parts += [cut.delta for cut in (serving.cut, serving.ceiling_cut) if cut is not None]
        if not serving.is_paid:
            items.append(ChargeItem(serving.statistic.hash_in(query.frame), rho_nano, sum(map(delta_units_up, parts))))
    return tuple(items)


def current(query: PrivateQuery, state: State, reader: Reader) -> PrivateQuery:
    """The query on the last generation of its frame, or on the next where a refresh is asked for.

    Raises:
        AccessError: a reader with a limit asks for a refresh, which adds to what they hold of the same rows.

    """
    if query.refresh and reader.rho_limit is not None:
        raise AccessError(
            f"a refresh is one more release of the same rows, and {reader.name!r} has a limit; the curator can refresh"
        )
    last = state.side_table.generation(query.frame.base_hash)
    generation = 0 if last is None else last + query.refresh
    return replace(query, frame=replace(query.frame, generation=generation))


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
        timeout_seconds: limit on reading raw data; the charge stays when it runs out.
        told: what was charged for telling AUTO; part of the receipt.

    Raises:
        AccessError, CalibrationError, BudgetError: nothing was charged or read.
        ReleaseError: the list of public keys changed since the plan, or the rows that it needs are gone; nothing was
            charged.
        EngineError: the charge stays and pays for asking again.

    """
    auto.require_told(query, reader)
    table = rooms.state.side_table
    with rooms.state.locks.exclusive(query.frame.base_hash):
        query = current(query, rooms.state, reader)
        frame = query.frame
        calibration = calibrate(query, held_histogram(query, rooms.state))
        servings = servings_of(query, calibration, rooms.state, reader)
        terms = terms_of(query, calibration, servings)
        drawn = tuple(serving.statistic for serving in servings if serving.draws)
        # a text that cannot be made is found before the charge; no frame, hence no salt, is stored before it
        reading = prepare_reading(frame, drawn, rooms) if drawn else None
        items = charge_items(query, servings)
        # all of the receipt that can fail is made before the charge
        receipt, charged = make_receipt(query, calibration.histogram, terms), Charged(0, 0, ())
        if items:
            charged = rooms.state.ledger.charge(frame.unit, items, reader.name)
        exact = None
        if reading is not None:
            tables = [name for name, _ in frame.table_versions]
            kept = table.frame(frame.frame_hash, frame.unit, tables, frame.base_hash, frame.generation)
            exact = read_exact(reading, kept.salt, rooms, timeout_seconds)
        made = new_points(frame, calibration.histogram, servings, exact, table, rooms.entropy)
        told = told or Charged(0, 0, ())
        paid = Charged(
            charged.rho_nano + told.rho_nano,
            charged.delta_units + told.delta_units,
            (*told.charge_ids, *charged.charge_ids),
        )
        receipt = with_price(receipt, paid)
        table.store(
            frame.frame_hash,
            exact.new_keys if exact else None,
            made.points,
            charged.charge_ids,
            _release(query, receipt, servings, paid, reader),
            exact.snapshot if exact else None,
            made.thresholds,
        )
        noisy = noisy_table(query, calibration.histogram, servings, Stored(frame, table))
    shown = rooms.sandbox.run(finish_sql(query), {NOISY: noisy})
    for step in query.after:
        shown = rooms.sandbox.run(step.sql, {RESULT: shown})
    return Result(shown, receipt)


def held_histogram(query: PrivateQuery, state: State) -> Histogram:
    """How the presence count is noised; a frame that has a point of it keeps its shape."""
    stored = state.side_table.levels(PRESENCE.hash_in(query.frame))
    shape = Shape(stored[0].correlation, stored[0].floor_correlation) if stored else None
    return histogram_of(query.frame, shape)


def _release(
    query: PrivateQuery, receipt: Receipt, servings: tuple[Serving, ...], charged: Charged, reader: Reader
) -> Release:
    told = auto.told_levels(query)
    return Release(
        analyst=reader.name,
        query_hash=query.query_hash,
        at=dt.datetime.now(dt.UTC),
        statistics=(*(serving.statistic.hash_in(query.frame) for serving in servings), *told),
        levels=(
            *((serving.told_nano, serving.release_nano) for serving in servings),
            *((rho_nano, 0) for rho_nano in told.values()),
        ),
        mechanism=receipt.mechanism,
        rho_nano=sum(serving.level.rho_nano for serving in servings) + sum(told.values()),
        epsilon=receipt.epsilon,
        delta=receipt.delta,
        charged_rho_nano=charged.rho_nano,
        charged_delta_units=charged.delta_units,
        reused=receipt.reused,
        table_versions=query.frame.table_versions,
    )
