"""Steps 4 to 8 for one planned query: calibrate, charge, aggregate, release, finish.

Charge, draw, store, show, in this order, one release of a frame at a time. The charge is durable before any raw row is
read; a point is durable before anything of it is shown. What was charged but never stored was never shown, and asking
the same again uses that charge up. A query with grouping sets is charged whole, and then released set by set; the row
of the groups that are not shown is charged once it is known which these are.
"""

from __future__ import annotations

import contextlib

import pyarrow as pa

from dpsql.errors import EngineError, ReleaseError
from dpsql.query.finish import NOISY, finish_sql
from dpsql.query.identity import base_hash, query_hash
from dpsql.query.inner_query import RESULT
from dpsql.query.private_query import After, PrivateQuery
from dpsql.session.auto import choices_of, is_open, prepare_histograms
from dpsql.session.exact import Rooms
from dpsql.session.frame_release import reading_of, release_frame
from dpsql.session.layout import laid_out
from dpsql.session.other import Shown, require_other, require_other_runs, with_other
from dpsql.session.prepared import current, parts_of, prepare
from dpsql.session.reader import Reader
from dpsql.session.receipt import make_receipt, with_price
from dpsql.session.result import Result
from dpsql.session.sets import joint_price, joint_receipt, joint_table
from dpsql.session.shown import Stored, noisy_table
from dpsql.state import Charged

_AFTER_SECONDS = 20.0
"""What is computed of an answer may take this long."""


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
    told = told or Charged.nothing()
    with rooms.state.locks.all_exclusive(base_hash(part.frame) for part in parts_of(query)):
        query = current(query, rooms.state, reader)
        prepared = prepare(query, rooms.state, reader)
        # a text that cannot be made is found before the charge; no frame, hence no salt, is stored before it
        readings = [reading_of(part, rooms) for part in prepared]
        # all of the receipt that can fail is made before the charge
        receipts = [make_receipt(part.query, part.histogram, part.terms) for part in prepared]
        joint = None if query.grouping is None else joint_receipt(query, prepared, receipts)
        if query.other is not None:
            require_other(query, prepared[0], rooms, reader)
        items = [item for part in prepared for item in part.items]
        charged = Charged.nothing()
        if items:
            charged = rooms.state.ledger.charge(query.frame.unit, items, reader.name)
        for part, reading, receipt in zip(prepared, readings, receipts, strict=True):
            # AUTO is told for queries with one set of keys alone
            release_frame(
                part, reading, receipt, charged.part(part.items), rooms,
                told=told, analyst=reader.name, query_hash=query_hash(query), timeout_seconds=timeout_seconds,
                choices=choices_of(query, reader),
            )  # fmt: skip
        stored = [Stored(part.query.frame, rooms.state.side_table) for part in prepared]
        if joint is None:
            noisy = noisy_table(query, prepared[0].histogram, prepared[0].servings, stored[0])
            shown = Shown(noisy, with_price(receipts[0], told.beside(charged)))
        else:
            shown = Shown(joint_table(query, prepared, stored), joint_price(joint, prepared, charged))
        if query.other is not None:
            shown = with_other(query, prepared[0], shown, charged, rooms, reader, timeout_seconds)
    table, layout = laid_out(query, rooms.sandbox.run(finish_sql(query), {NOISY: shown.table}))
    for step in query.after:
        table = _computed(step, table, rooms)
    return Result(table, shown.receipt, None if query.after else layout)


def require_runs(query: PrivateQuery, rooms: Rooms, reader: Reader) -> None:
    """Refuse what `answer` would refuse because the database cannot run it, or its rows are gone; charges nothing.

    Raises:
        AccessError, CalibrationError, ReleaseError, SchemaError: as `answer`.

    """
    if is_open(query):
        prepare_histograms(query, rooms)
        return
    query = current(query, rooms.state, reader)
    prepared = prepare(query, rooms.state, reader)
    for part in prepared:
        reading_of(part, rooms)
    if query.other is not None:
        require_other_runs(query, prepared[0], rooms, reader)


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
