"""Stored records of the groups in which rows that bounds leave out were measured (`records.MeasuredGroups`)."""

from __future__ import annotations

import sqlite3

from dpsql.errors import ReleaseError, StateError
from dpsql.state.arrow_vectors import vector_of
from dpsql.state.database import Database, insert_row
from dpsql.state.records import MeasuredGroups

_POINT = """
SELECT id, EXISTS (SELECT 1 FROM measured_groups WHERE point_id = point.id) FROM point
WHERE statistic_hash = ? AND rho_nano = ? AND frame_hash = ?
"""

_RECORD = """
SELECT statistic_hash, rho_nano, cut_exponent, shown, shown_sigma, presence_rho AS presence_rho_nano,
       number_rho AS number_rho_nano, key_count, key_ids
FROM measured_groups JOIN point ON point.id = point_id WHERE statistic_hash = ? AND rho_nano = ?
"""


def insert_measured_groups(
    connection: sqlite3.Connection, frame_hash: str, record: MeasuredGroups, id_blob: bytes | None
) -> None:
    """Store a record beside its point.

    Args:
        connection: in the transaction that stored the point.
        frame_hash: the frame of the point.
        record: the record.
        id_blob: its ids as a blob; None for all groups.

    Raises:
        ReleaseError: the frame has no such point, or the point has a record.

    """
    found = connection.execute(_POINT, (record.statistic_hash, record.rho_nano, frame_hash)).fetchone()
    if found is None:
        raise ReleaseError("measured groups were to be stored for a point that is not in the state")
    point_id, has_record = found
    if has_record:
        raise ReleaseError("the measured groups of a point are stored already; ask again")
    row = {
        "point_id": point_id,
        "cut_exponent": record.cut_exponent,
        "shown": record.shown,
        "shown_sigma": record.shown_sigma,
        "presence_rho": record.presence_rho_nano,
        "number_rho": record.number_rho_nano,
        "key_count": None if record.key_ids is None else len(record.key_ids),
        "key_ids": id_blob,
    }
    insert_row(connection, "measured_groups", row)


def stored_measured_groups(database: Database, statistic_hash: str, rho_nano: int) -> MeasuredGroups | None:
    """Return the record of a point; None if it has none.

    Raises:
        StateError: the record is damaged.

    """
    rows = database.rows(_RECORD, statistic_hash, rho_nano)
    if not rows:
        return None
    (row,) = rows
    key_count, blob = row.pop("key_count"), row.pop("key_ids")
    key_ids = None if blob is None else vector_of([(blob, key_count)])
    try:
        return MeasuredGroups(key_ids=key_ids, **row)
    except ReleaseError:
        raise StateError("the state is damaged: the measured groups of a point cannot be read") from None
