"""The row of the groups that are not shown: released after the groups, outside those which this release shows.

The groups are charged, drawn and stored first; which of them are shown is then post-processing of stored points, and
names the frame of the row. The row is charged, drawn and stored after that. Whoever is stopped in between, or asks the
same again, finds the same groups stored, so that the row has the same frame, and no part is paid twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from dpsql.engine import digest
from dpsql.errors import AccessError
from dpsql.query.identity import query_hash
from dpsql.query.outside import outside_of
from dpsql.query.private_query import OtherGroup, PrivateQuery, Request
from dpsql.session.exact import Rooms
from dpsql.session.frame_release import reading_of, release_frame
from dpsql.session.prepared import Prepared, prepare
from dpsql.session.reader import Reader
from dpsql.session.receipt import make_receipt, with_price
from dpsql.session.result import Receipt, SetReceipt
from dpsql.session.sets import joint_guarantee_of, largest_columns
from dpsql.session.shown import Stored, noisy_table, shown_key_table
from dpsql.state import NANO_PER_RHO, Charged, State


@dataclass(frozen=True)
class Shown:
    """An answer as far as it is known: the table that the finish reads, and its receipt with the price."""

    table: pa.Table
    receipt: Receipt


def prepare_other(query: PrivateQuery, groups: Prepared, state: State, reader: Reader) -> Prepared:
    """How the row is served where nothing is stored of it, which costs the most.

    Args:
        query: with the row.
        groups: how the groups are served.
        state: the books.
        reader: who asks.

    Raises:
        AccessError: a reader with a limit asks; of each set of shown groups the row is a release of its own.
        CalibrationError: the level is too small for the row's noise.

    """
    if reader.rho_limit is not None:
        raise AccessError(
            "each set of shown groups has an other group of its own, which adds to the others, and "
            f"{reader.name!r} has a limit; leave other_group out"
        )
    return _prepared(_other(query).query, query, groups, state, reader)


def require_other(query: PrivateQuery, groups: Prepared, rooms: Rooms, reader: Reader) -> None:
    """Find what could keep the row from being released after the groups are paid for; charges and reads nothing.

    Raises:
        AccessError, CalibrationError: as `prepare_other`.
        BudgetError: groups and row together exceed what is left.
        ReleaseError, SchemaError: the row cannot be read.

    """
    row = prepare_other(query, groups, rooms.state, reader)
    if not groups.items:
        # the groups cost nothing, and tell which row it is: what that one needs is found before it is charged
        return
    _receipts(query, groups, row)
    rooms.state.ledger.require(query.frame.unit, (*groups.items, *row.items))
    _require_row_runs(query, row, rooms)


def require_other_runs(query: PrivateQuery, groups: Prepared, rooms: Rooms, reader: Reader) -> None:
    """Find out that the row can be read where it is yet to be drawn.

    Raises:
        AccessError, CalibrationError, ReleaseError, SchemaError: as `require_other`.

    """
    if groups.items:
        _require_row_runs(query, prepare_other(query, groups, rooms.state, reader), rooms)


def _require_row_runs(query: PrivateQuery, row: Prepared, rooms: Rooms) -> None:
    none_shown = pa.table({f"key_{i}": pa.nulls(0) for i in range(len(query.frame.keys))})
    reading_of(row, rooms, none_shown)


def with_other(
    query: PrivateQuery,
    groups: Prepared,
    shown: Shown,
    charged: Charged,
    rooms: Rooms,
    reader: Reader,
    timeout_seconds: float | None,
) -> Shown:
    """The answer with the row, which is charged, drawn and stored here where it is not there yet.

    Args:
        query: with the row.
        groups: how the groups are served; they are stored.
        shown: the answer without the row.
        charged: what was charged for the groups.
        rooms: state, engine, sandbox and entropy.
        reader: who asks.
        timeout_seconds: limit on reading raw data.

    Raises:
        BudgetError: somebody else took what was left, or the groups cost nothing and the row exceeds it.
        ReleaseError: the rows that it needs are gone; nothing was charged for it.
        EngineError: the charge stays and pays for asking again.

    """
    other, state = _other(query), rooms.state
    keys = shown_key_table(
        groups.query, groups.histogram, groups.servings[0], Stored(groups.query.frame, state.side_table)
    )
    frame = outside_of(other.query.frame, groups.query.frame, digest(keys))
    row = _prepared(replace(other.query, frame=frame), query, groups, state, reader)
    reading = reading_of(row, rooms, keys)
    own, joint = _receipts(query, groups, row)
    paid = state.ledger.charge(frame.unit, row.items, reader.name) if row.items else Charged.nothing()
    release_frame(
        row, reading, own, paid, rooms,
        told=Charged.nothing(), analyst=reader.name, query_hash=query_hash(query), timeout_seconds=timeout_seconds,
    )  # fmt: skip
    table = noisy_table(row.query, row.histogram, row.servings, Stored(frame, state.side_table))
    receipt = replace(
        with_price(joint, charged.beside(paid)),
        sets=(
            SetReceipt(tuple(key.sql for key in query.frame.keys), shown.receipt),
            SetReceipt((), with_price(own, paid)),
        ),
    )
    return Shown(_appended(shown.table, table, query, other), receipt)


def other_notes(query: PrivateQuery) -> tuple[str, ...]:
    """What holds for the row beside the groups."""
    return (
        f"the row {_other(query).name!r} is a release of its own, of the rows outside the shown groups, at the level "
        "of the groups, on top of it, and paid once for each set of shown groups",
        f"of one unit the row holds at most {query.frame.max_groups} times what it may add to one group; groups that "
        "HAVING or LIMIT takes out are not in it",
    )


def joint_terms(query: PrivateQuery, groups: Prepared, row: Prepared) -> tuple[float, float, float]:
    """Rho, epsilon and delta of groups and row together."""
    rho_nano = sum(level.rho_nano for part in (groups, row) for level in part.terms.levels)
    return (rho_nano / NANO_PER_RHO, *joint_guarantee_of(query, (groups, row)))


def _other(query: PrivateQuery) -> OtherGroup:
    if query.other is None:
        raise AssertionError("the row is there where it is asked for")
    return query.other


def _prepared(outside: PrivateQuery, query: PrivateQuery, groups: Prepared, state: State, reader: Reader) -> Prepared:
    """The row at the level that was asked for the groups."""
    request = Request(groups.calibration.rho_nano / NANO_PER_RHO, None, query.request.delta)
    (row,) = prepare(replace(outside, request=request), state, reader)
    return row


def _receipts(query: PrivateQuery, groups: Prepared, row: Prepared) -> tuple[Receipt, Receipt]:
    """The row's own receipt, and that of both, before a price is known."""
    rho, epsilon, delta = joint_terms(query, groups, row)
    first = make_receipt(groups.query, groups.histogram, groups.terms)
    own = replace(make_receipt(row.query, row.histogram, row.terms), query_hash=query_hash(query))
    joint = replace(
        first, rho=rho, epsilon=epsilon, delta=delta, columns=largest_columns((first.columns, own.columns)),
        notes=(*first.notes, *other_notes(query)),
    )  # fmt: skip
    return own, joint


def _appended(groups: pa.Table, row: pa.Table, query: PrivateQuery, other: OtherGroup) -> pa.Table:
    """The row under the groups: its text keys read its name, its others NULL."""
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    for i, key in enumerate(query.frame.keys):
        kind = groups.column(f"key_{i}").type
        named = key.type == "VARCHAR"
        columns[f"key_{i}"] = pa.array([other.name] * row.num_rows, kind) if named else pa.nulls(row.num_rows, kind)
    values = {name: row.column(name) for name in groups.column_names if name not in columns}
    return pa.concat_tables(
        [groups, pa.table(columns | values).select(groups.column_names)], promote_options="permissive"
    )
