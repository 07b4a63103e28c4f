"""The side table: frames with salts and keys, and points. It holds all true keys and hidden values."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from dpsql.errors import ReleaseError, StateError
from dpsql.state.arrow_vectors import Decoded, table_blob, table_of, vector_blob, vector_of
from dpsql.state.database import Database, insert_row, select_rows
from dpsql.state.history import record_release
from dpsql.state.measured_groups import insert_measured_groups, stored_measured_groups
from dpsql.state.records import Additions, Level, MeasuredGroups, Point, Snapshot, Tail, Threshold

SALT_BYTES = 16

# Columns of points, and of points that are made of independent releases, by the names of their fields.
_COLUMNS_OF_BOTH = (
    "statistic_hash",
    "rho_nano",
    "frame_hash",
    "lattice_exponent",
    "sigma",
    "created_at",
    "correlation",
    "floor_correlation",
    "floor",
)

_POINTS = f"""
SELECT id,
       value_count + (SELECT coalesce(sum(value_count), 0) FROM point_tail WHERE point_id = point.id) AS value_count,
       {", ".join(_COLUMNS_OF_BOTH)}, tau, threshold_delta_units, source_rho AS source_rho_nano,
       0 AS release_rho_nano FROM point
UNION ALL
SELECT id, value_count, {", ".join(_COLUMNS_OF_BOTH)}, NULL, '0', release_rho, release_rho FROM lowered_point
"""

_POINT_PARTS = """
SELECT noisy_values, value_count FROM point WHERE id = :id
UNION ALL
SELECT * FROM (SELECT noisy_values, value_count FROM point_tail WHERE point_id = :id ORDER BY number)
"""
_LOWERED_PARTS = "SELECT noisy_values, value_count FROM lowered_point WHERE id = :id"

_FRAME = """
SELECT unit, (SELECT coalesce(sum(row_count), 0) FROM key_chunk WHERE key_chunk.frame_hash = frame.frame_hash),
       EXISTS (SELECT 1 FROM snapshot WHERE snapshot.frame_hash = frame.frame_hash)
FROM frame WHERE frame_hash = ?
"""

_RELEASED_MEANWHILE = "the frame was released by another process meanwhile; ask again"


def _insert_keys(connection: sqlite3.Connection, frame_hash: str, keys: pa.Table, blob: bytes) -> int:
    """Store keys of a frame, and return the number of their chunk."""
    first = connection.execute(
        "SELECT keys FROM key_chunk WHERE frame_hash = ? ORDER BY number LIMIT 1", (frame_hash,)
    ).fetchone()
    if first is not None and not table_of(first[0]).schema.equals(keys.schema):
        raise ReleaseError("the new keys do not have the columns and types of the keys of their frame")
    (number,) = connection.execute("SELECT count(*) FROM key_chunk WHERE frame_hash = ?", (frame_hash,)).fetchone()
    connection.execute(
        "INSERT INTO key_chunk (frame_hash, number, row_count, keys) VALUES (?, ?, ?, ?)",
        (frame_hash, number, keys.num_rows, blob),
    )
    return int(number)


def _insert_point(connection: sqlite3.Connection, point: Point, blob: bytes) -> None:
    row = {name: getattr(point, name) for name in _COLUMNS_OF_BOTH}
    row |= {"value_count": len(point.values), "noisy_values": blob}
    if point.release_rho_nano:
        insert_row(connection, "lowered_point", {**row, "release_rho": point.release_rho_nano})
    else:
        own = {"tau": point.tau, "threshold_delta_units": point.threshold_delta_units}
        insert_row(connection, "point", {**row, **own, "source_rho": point.source_rho_nano})


def _set_threshold(connection: sqlite3.Connection, threshold: Threshold) -> None:
    changed = connection.execute(
        "UPDATE point SET tau = ?, threshold_delta_units = ? WHERE statistic_hash = ? AND rho_nano = ? AND tau IS NULL",
        (threshold.tau, str(threshold.delta_units), threshold.statistic_hash, threshold.rho_nano),
    ).rowcount
    if changed != 1:
        raise ReleaseError("a threshold was charged for a point that has one, or that is not stored")


def _tops(connection: sqlite3.Connection, points: Sequence[Point]) -> Counter[str]:
    """The rho (nano) of the highest stored point of each point's statistic; 0 where none is stored."""
    select = "SELECT coalesce(max(rho_nano), 0) FROM point WHERE statistic_hash = ?"
    statistics = {point.statistic_hash for point in points}
    return Counter({one: connection.execute(select, (one,)).fetchone()[0] for one in statistics})


def _settle(connection: sqlite3.Connection, unit: str, additions: Additions, tops: Counter[str]) -> None:
    """Mark each charge with the top point of its statistic; refuse what was not paid.

    That is: what the tops rose by, releases of their own below the top, and thresholds.

    Args:
        connection: in the transaction that stored what is added.
        unit: the unit that paid.
        additions: new points and thresholds, and the charges that pay for them.
        tops: level of the top of each statistic before they were added.

    Raises:
        ReleaseError: a charge is of another unit, pays for no point, or has paid before; or a level or a threshold
            costs more than was paid.

    """
    paid_rho, paid_delta = Counter[str](), Counter[str]()
    for charge_id in additions.charge_ids:
        charge = connection.execute(
            "SELECT statistic_hash, rho_nano, delta_units FROM charge WHERE id = ? AND unit = ?", (charge_id, unit)
        ).fetchone()
        if charge is None:
            raise ReleaseError("a point was to be stored with a charge that is not in its unit's ledger")
        statistic, rho_nano, delta_units = charge
        try:
            closed = connection.execute(
                "INSERT INTO closed_charge (charge_id, point_id) "
                "SELECT ?, id FROM point WHERE statistic_hash = ? ORDER BY rho_nano DESC LIMIT 1",
                (charge_id, statistic),
            ).rowcount
        except sqlite3.IntegrityError as error:
            raise ReleaseError("a charge has paid for a stored point already; ask again") from error
        if not closed:
            raise ReleaseError("a charge was to be closed although its statistic has no point")
        paid_rho[statistic] += rho_nano
        paid_delta[statistic] += int(delta_units)
    due_rho = _tops(connection, additions.points) - tops
    due_delta = Counter[str]()
    for threshold in additions.thresholds:
        due_delta[threshold.statistic_hash] += threshold.delta_units
    for point in additions.points:
        due_delta[point.statistic_hash] += point.threshold_delta_units
        # what is not made of another point was drawn
        if point.source_rho_nano is None and point.rho_nano <= tops[point.statistic_hash]:
            due_rho[point.statistic_hash] += point.rho_nano
    if any(due > paid_rho[statistic] for statistic, due in due_rho.items()):
        raise ReleaseError("a point was to be stored without a charge that pays for it")
    if any(due > paid_delta[statistic] for statistic, due in due_delta.items()):
        raise ReleaseError("a threshold was to be stored without a charge that pays for it")


class SideTable:
    """Frames, keys and points of one state."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._decoded = Decoded()

    def frame_salt(
        self, frame_hash: str, unit: str, tables: Sequence[str], base_hash: str = "", generation: int = 0
    ) -> bytes:
        """Return the secret salt that picks what of a unit counts in a frame, which it stores the first time.

        Every process gets the same.

        Args:
            frame_hash: its identity.
            unit: its privacy unit.
            tables: the tables it reads.
            base_hash: what it is but for its generation.
            generation: how many refreshes came before it.

        Raises:
            StateError: the hash stands for another unit or other tables, or the unit is not declared.

        """
        listed = json.dumps(list(tables))
        with self._database.write() as connection:
            connection.execute(
                "INSERT INTO frame (frame_hash, unit, tables, salt, base_hash, generation) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (frame_hash) DO NOTHING",
                (frame_hash, unit, listed, os.urandom(SALT_BYTES), base_hash or frame_hash, generation),
            )
            found = connection.execute("SELECT unit, tables, salt FROM frame WHERE frame_hash = ?", (frame_hash,))
            *known, salt = found.fetchone()
        if known != [unit, listed]:
            raise StateError("two frames have one hash")
        return bytes(salt)

    def generation(self, base_hash: str) -> int | None:
        """Return the last generation of a frame of which anything was stored, None before the first."""
        (row,) = self._database.rows(
            "SELECT max(generation) AS last FROM frame WHERE coalesce(base_hash, frame_hash) = ? "
            "AND EXISTS (SELECT 1 FROM key_chunk WHERE key_chunk.frame_hash = frame.frame_hash)",
            base_hash,
        )
        last: int | None = row["last"]
        return last

    def frame_keys(self, frame_hash: str) -> pa.Table | None:
        """Return every key that the frame ever met, None if none was stored yet; row number = key id."""
        rows = self._database.rows(
            "SELECT row_count, keys AS blob FROM key_chunk WHERE frame_hash = ? ORDER BY number", frame_hash
        )
        if not rows:
            return None
        chunks = [table_of(row["blob"]) for row in rows]
        row_count = sum(row["row_count"] for row in rows)
        if not chunks[0].column_names:
            # Without GROUP BY the key has no columns, and Arrow's format does not count rows of those.
            return pa.table({"": pa.nulls(row_count)}).select([])
        keys = pa.concat_tables(chunks)
        if keys.num_rows != row_count:
            raise StateError("the state is damaged: a frame does not have the keys it should")
        return keys

    def levels(self, statistic_hash: str) -> tuple[Level, ...]:
        """Return what is stored for the statistic without its values, highest level first."""
        rows = self._database.rows(
            "SELECT rho_nano, sigma, tau, threshold_delta_units, correlation, floor_correlation, value_count, "
            f"source_rho_nano, release_rho_nano FROM ({_POINTS}) WHERE statistic_hash = ? "
            "ORDER BY rho_nano DESC, release_rho_nano DESC",
            statistic_hash,
        )
        return tuple(Level(**row) for row in rows)

    def point(self, statistic_hash: str, rho_nano: int, release_rho_nano: int = 0) -> Point | None:
        """Return the point at a level, or the one made of an independent release there; None if there is none."""
        place = (statistic_hash, rho_nano, release_rho_nano)
        with self._database.read() as connection:
            rows = select_rows(
                connection,
                f"SELECT * FROM ({_POINTS}) WHERE statistic_hash = ? AND rho_nano = ? AND release_rho_nano = ?",
                place,
            )
            if not rows:
                return None
            (row,) = rows
            number, count = row.pop("id"), row.pop("value_count")
            select = _LOWERED_PARTS if release_rho_nano else _POINT_PARTS
            # a threshold may be set after a point was stored, by others too: only its vector is at hand for good
            values = self._decoded.vector(
                (*place, row["created_at"], count),
                lambda: vector_of(connection.execute(select, {"id": number}).fetchall()),
            )
        return Point(values=values, **row)

    def first_count(self, statistic_hash: str, rho_nano: int) -> int:
        """Return how many values a point had when it was stored: keys that its frame got later have larger ids."""
        (row,) = self._database.rows(
            "SELECT value_count FROM point WHERE statistic_hash = ? AND rho_nano = ?", statistic_hash, rho_nano
        )
        count: int = row["value_count"]
        return count

    def points_made(self, frame_hash: str) -> tuple[tuple[str, int], ...]:
        """Return statistic and level of each point of a frame, in the order in which they were made."""
        rows = self._database.rows(
            "SELECT statistic_hash, rho_nano FROM point WHERE frame_hash = ? ORDER BY id", frame_hash
        )
        return tuple((row["statistic_hash"], row["rho_nano"]) for row in rows)

    def snapshot(self, frame_hash: str) -> Snapshot | None:
        """Return the frame's exact histogram, None if it has none."""
        rows = self._database.rows(
            "SELECT exact_values, value_count, floor FROM snapshot WHERE frame_hash = ?", frame_hash
        )
        return next(
            (Snapshot(vector_of([(row["exact_values"], row["value_count"])]), row["floor"]) for row in rows), None
        )

    def measured_groups(self, statistic_hash: str, rho_nano: int) -> MeasuredGroups | None:
        """Return the groups in which rows left out were measured for a point; None if the point has no record."""
        return stored_measured_groups(self._database, statistic_hash, rho_nano)

    def store(self, frame_hash: str, additions: Additions) -> None:
        """Store what was drawn, close the charges that paid for it, and record the release: all or nothing.

        Args:
            frame_hash: the frame of all new points.
            additions: what is stored.

        Raises:
            ReleaseError: a point does not cover the keys of its frame, or was drawn for more than its charges pay, or
                its threshold costs more than they pay, or a charge has paid before, or AUTO chose otherwise for the
                same reader and level meanwhile, or measured groups have no point or a second record. Or the frame has a
                snapshot, or a draw of what is drawn once: then the error is the same for every number of keys.
            StateError: a point of the same rho is stored already, or the file could not be written.

        """
        points, new_keys, snapshot = additions.points, additions.new_keys, additions.snapshot
        if any(point.frame_hash != frame_hash for point in points):
            raise ReleaseError("the points belong to another frame")
        # Compressed before the transaction, which holds up every other writer.
        blobs = [vector_blob(point.values) for point in points]
        keys_blob = b"" if new_keys is None else table_blob(new_keys)
        exact_blob = b"" if snapshot is None else vector_blob(snapshot.values)
        id_blobs = [None if one.key_ids is None else vector_blob(one.key_ids) for one in additions.measured_groups]
        with self._database.write() as connection:
            frame = connection.execute(_FRAME, (frame_hash,)).fetchone()
            if frame is None:
                raise ReleaseError("the frame of a point is not in the state")
            unit, key_count, has_snapshot = frame
            tops = _tops(connection, points)
            draws = (point.statistic_hash for point in points if point.source_rho_nano is None)
            if (snapshot is not None and has_snapshot) or (additions.drawn_once and any(tops[draw] for draw in draws)):
                raise ReleaseError(_RELEASED_MEANWHILE)
            if new_keys is not None:
                _insert_keys(connection, frame_hash, new_keys, keys_blob)
                key_count += new_keys.num_rows
            if snapshot is not None:
                if len(snapshot.values) != key_count:
                    raise ReleaseError("a snapshot must have one value for each key of its frame")
                row = {"frame_hash": frame_hash, "value_count": key_count, "floor": snapshot.floor}
                insert_row(connection, "snapshot", {**row, "exact_values": exact_blob})
            for point, blob in zip(points, blobs, strict=True):
                if len(point.values) != key_count * point.cells:
                    raise ReleaseError("a point must have one value for each key of its frame, and each of its cells")
                _insert_point(connection, point, blob)
            for measured, id_blob in zip(additions.measured_groups, id_blobs, strict=True):
                insert_measured_groups(connection, frame_hash, measured, id_blob)
            for threshold in additions.thresholds:
                _set_threshold(connection, threshold)
            _settle(connection, unit, additions, tops)
            record_release(connection, additions)
        for point in points:
            place = (point.statistic_hash, point.rho_nano, point.release_rho_nano)
            self._decoded.vector((*place, point.created_at, len(point.values)), point.values.copy)

    def add_keys(self, frame_hash: str, held: int, keys: pa.Table, tails: Sequence[Tail]) -> None:
        """Store keys that a frame gets after its first release, with values of all its points on them.

        Args:
            frame_hash: the frame.
            held: how many keys it has.
            keys: more keys.
            tails: of each of its points in the order of `points_made`.

        Raises:
            ReleaseError: the frame has got other keys or points meanwhile.

        """
        blobs = [vector_blob(tail.values) for tail in tails]
        keys_blob = table_blob(keys)
        with self._database.write() as connection:
            _, key_count, _ = connection.execute(_FRAME, (frame_hash,)).fetchone()
            points = connection.execute(
                "SELECT id, statistic_hash, rho_nano FROM point WHERE frame_hash = ? ORDER BY id", (frame_hash,)
            ).fetchall()
            places = [(tail.statistic_hash, tail.rho_nano) for tail in tails]
            if key_count != held or [tuple(place) for _, *place in points] != places:
                raise ReleaseError(_RELEASED_MEANWHILE)
            chunk = _insert_keys(connection, frame_hash, keys, keys_blob)
            for (point_id, *_), tail, blob in zip(points, tails, blobs, strict=True):
                if len(tail.values) != keys.num_rows:
                    raise ReleaseError("a point must have one value for each key of its frame")
                row = {"point_id": point_id, "number": chunk, "value_count": len(tail.values), "noisy_values": blob}
                insert_row(connection, "point_tail", row)
