"""The side table: frames with salts and keys, points, releases. It holds all true keys and hidden values."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.errors import ReleaseError, StateError
from dpsql.state.auto_choice import keep_choices, kept_level
from dpsql.state.decoded import Decoded
from dpsql.state.key_lists import keep_lists
from dpsql.state.marks import keep_marks
from dpsql.state.pins import insert_lowered_point, insert_pins, read_pins
from dpsql.state.records import (
    AutoChoice,
    Frame,
    KeyList,
    Level,
    Pin,
    Point,
    Release,
    Snapshot,
    TableMark,
    Threshold,
)  # fmt: skip
from dpsql.state.schema import Database

SALT_BYTES = 16


def _arrow_blob(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    blob: bytes = sink.getvalue().to_pybytes()
    return blob


def _arrow_table(blob: bytes) -> pa.Table:
    try:
        with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
            return reader.read_all()
    except (pa.ArrowException, OSError):
        # Arrow's own message may quote what it could read.
        raise StateError("the state is damaged: stored Arrow data cannot be read") from None


def _values_blob(values: npt.NDArray[np.int64]) -> bytes:
    return _arrow_blob(pa.table({"value": pa.array(values)}))


def _values(blob: bytes, value_count: int) -> npt.NDArray[np.int64]:
    table = _arrow_table(blob)
    if table.column_names != ["value"] or table.num_rows != value_count:
        raise StateError("the state is damaged: a point does not have the values it should")
    values: npt.NDArray[np.int64] = table["value"].combine_chunks().to_numpy(zero_copy_only=False)
    values.setflags(write=False)
    return values


def _key_count(connection: sqlite3.Connection, frame_hash: str) -> int:
    row = connection.execute(
        "SELECT coalesce(sum(row_count), 0) FROM key_chunk WHERE frame_hash = ?", (frame_hash,)
    ).fetchone()
    return int(row[0])


def _insert_keys(connection: sqlite3.Connection, frame_hash: str, keys: pa.Table, blob: bytes) -> None:
    first = connection.execute(
        "SELECT keys FROM key_chunk WHERE frame_hash = ? ORDER BY number LIMIT 1", (frame_hash,)
    ).fetchone()
    if first is not None and not _arrow_table(first[0]).schema.equals(keys.schema):
        raise ReleaseError("the new keys do not have the columns and types of the keys of their frame")
    connection.execute(
        "INSERT INTO key_chunk (frame_hash, number, row_count, keys) "
        "SELECT ?, count(*), ?, ? FROM key_chunk WHERE frame_hash = ?",
        (frame_hash, keys.num_rows, blob, frame_hash),
    )


def _unit_of_frame(connection: sqlite3.Connection, frame_hash: str) -> str:
    row = connection.execute("SELECT unit FROM frame WHERE frame_hash = ?", (frame_hash,)).fetchone()
    if row is None:
        raise ReleaseError("the frame of a point is not in the state")
    return str(row[0])


def _top_level(connection: sqlite3.Connection, statistic_hash: str) -> tuple[int | None, int]:
    """Return the id and the rho (nano) of the highest point of a statistic; (None, 0) if it has none."""
    row = connection.execute(
        "SELECT id, rho_nano FROM point WHERE statistic_hash = ? ORDER BY rho_nano DESC LIMIT 1",
        (statistic_hash,),
    ).fetchone()
    return (None, 0) if row is None else (row[0], row[1])


def _insert_point(connection: sqlite3.Connection, point: Point, blob: bytes) -> None:
    if point.release_rho_nano:
        insert_lowered_point(connection, point, blob)
        return
    connection.execute(
        "INSERT INTO point (statistic_hash, rho_nano, frame_hash, value_count, lattice_exponent, sigma, tau, "
        "threshold_delta_units, created_at, noisy_values, correlation, floor_correlation, floor, source_rho) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            point.statistic_hash,
            point.rho_nano,
            point.frame_hash,
            len(point.values),
            point.lattice_exponent,
            point.sigma,
            point.tau,
            str(point.threshold_delta_units),
            point.created_at.isoformat(),
            blob,
            point.correlation,
            point.floor_correlation,
            point.floor,
            point.source_rho_nano,
        ),
    )


def _set_threshold(connection: sqlite3.Connection, threshold: Threshold) -> None:
    changed = connection.execute(
        "UPDATE point SET tau = ?, threshold_delta_units = ? WHERE statistic_hash = ? AND rho_nano = ? AND tau IS NULL",
        (threshold.tau, str(threshold.delta_units), threshold.statistic_hash, threshold.rho_nano),
    ).rowcount
    if changed != 1:
        raise ReleaseError("a threshold was charged for a point that has one, or that is not stored")


def _close_charges(
    connection: sqlite3.Connection, unit: str, charge_ids: Sequence[int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Mark each charge with the top point of its statistic; return nano-rho and delta units paid, by statistic."""
    paid_rho: dict[str, int] = {}
    paid_delta: dict[str, int] = {}
    for charge_id in charge_ids:
        row = connection.execute(
            "SELECT unit, statistic_hash, rho_nano, delta_units FROM charge WHERE id = ?", (charge_id,)
        ).fetchone()
        if row is None or row[0] != unit:
            raise ReleaseError("a point was to be stored with a charge that is not in its unit's ledger")
        point_id, _ = _top_level(connection, row[1])
        if point_id is None:
            raise ReleaseError("a charge was to be closed although its statistic has no point")
        try:
            connection.execute("INSERT INTO closed_charge (charge_id, point_id) VALUES (?, ?)", (charge_id, point_id))
        except sqlite3.IntegrityError as error:
            raise ReleaseError("a charge has paid for a stored point already; ask again") from error
        paid_rho[row[1]] = paid_rho.get(row[1], 0) + row[2]
        paid_delta[row[1]] = paid_delta.get(row[1], 0) + int(row[3])
    return paid_rho, paid_delta


def _require_paid(
    points: Sequence[Point],
    thresholds: Sequence[Threshold],
    tops: Mapping[str, int],
    rises: Mapping[str, int],
    paid: tuple[Mapping[str, int], Mapping[str, int]],
) -> None:
    """Refuse what was not paid: rises over the top, releases of their own below it, and thresholds."""
    rho_nano, delta_units = Counter(rises), Counter[str]()
    for threshold in thresholds:
        delta_units[threshold.statistic_hash] += threshold.delta_units
    for point in points:
        delta_units[point.statistic_hash] += point.threshold_delta_units
        # what is not made of another point was drawn
        if point.source_rho_nano is None and point.rho_nano <= tops[point.statistic_hash]:
            rho_nano[point.statistic_hash] += point.rho_nano
    if any(due > paid[0].get(statistic, 0) for statistic, due in rho_nano.items()):
        raise ReleaseError("a point was to be stored without a charge that pays for it")
    if any(due > paid[1].get(statistic, 0) for statistic, due in delta_units.items()):
        raise ReleaseError("a threshold was to be stored without a charge that pays for it")


def _insert_release(connection: sqlite3.Connection, release: Release) -> None:
    connection.execute(
        "INSERT INTO release (analyst, query_hash, at, statistics, mechanism, rho_nano, epsilon, delta, "
        "charged_rho_nano, charged_delta_units, reused, table_versions, levels, changed) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            release.analyst,
            release.query_hash,
            release.at.isoformat(),
            json.dumps(release.statistics),
            release.mechanism,
            release.rho_nano,
            release.epsilon,
            release.delta,
            release.charged_rho_nano,
            str(release.charged_delta_units),
            int(release.reused),
            json.dumps(release.table_versions),
            json.dumps(release.levels),
            json.dumps(release.changed),
        ),
    )


class SideTable:
    """Frames, keys, points and releases of one state."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._decoded = Decoded()

    def frame(
        self, frame_hash: str, unit: str, tables: Sequence[str], base_hash: str = "", generation: int = 0
    ) -> Frame:
        """Return the frame, creating it with a fresh salt the first time; every process gets the same salt.

        Args:
            frame_hash: its identity.
            unit: its privacy unit.
            tables: the tables it reads.
            base_hash: what it is but for its generation.
            generation: how many refreshes came before it.

        Raises:
            StateError: the hash stands for another unit or other tables, or the unit is not declared.

        """
        select = "SELECT unit, tables, salt FROM frame WHERE frame_hash = ?"
        listed = json.dumps(list(tables))
        with self._database.read() as connection:
            row = connection.execute(select, (frame_hash,)).fetchone()
        if row is None:
            with self._database.write() as connection:
                connection.execute(
                    "INSERT INTO frame (frame_hash, unit, tables, salt, base_hash, generation) "
                    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (frame_hash) DO NOTHING",
                    (frame_hash, unit, listed, os.urandom(SALT_BYTES), base_hash or frame_hash, generation),
                )
                row = connection.execute(select, (frame_hash,)).fetchone()
        if row[:2] != (unit, listed):
            raise StateError("a frame hash stands for two frames")
        return Frame(frame_hash, unit, tuple(tables), row[2])

    def generation(self, base_hash: str) -> int | None:
        """Return the last generation of a frame of which anything was stored, None before the first."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT max(generation) FROM frame WHERE coalesce(base_hash, frame_hash) = ? "
                "AND EXISTS (SELECT 1 FROM key_chunk WHERE key_chunk.frame_hash = frame.frame_hash)",
                (base_hash,),
            ).fetchone()
        return None if row[0] is None else int(row[0])

    def frame_keys(self, frame_hash: str) -> pa.Table | None:
        """Return every key that the frame ever met, None if none was stored yet; row number = key id."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT row_count, keys FROM key_chunk WHERE frame_hash = ? ORDER BY number", (frame_hash,)
            ).fetchall()
        if not rows:
            return None
        chunks = [_arrow_table(blob) for _, blob in rows]
        row_count = sum(row[0] for row in rows)
        if not chunks[0].column_names:
            # Without GROUP BY the key has no columns, and Arrow's format does not count rows of those.
            return pa.table({"": pa.nulls(row_count)}).select([])
        keys = pa.concat_tables(chunks)
        if keys.num_rows != row_count:
            raise StateError("the state is damaged: a frame does not have the keys it should")
        return keys

    def levels(self, statistic_hash: str) -> tuple[Level, ...]:
        """Return what is stored for the statistic without its values, highest level first."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT rho_nano, sigma, tau, threshold_delta_units, correlation, floor_correlation, value_count, "
                f"source_rho, release_rho FROM ({_POINTS}) WHERE statistic_hash = ? ORDER BY 1 DESC, 9 DESC",
                (statistic_hash,),
            ).fetchall()
        return tuple(Level(row[0], row[1], row[2], int(row[3]), *row[4:]) for row in rows)

    def point(self, statistic_hash: str, rho_nano: int, release_rho_nano: int = 0) -> Point | None:
        """Return the point at a level, or the one made of an independent release there; None if there is none."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT rho_nano, frame_hash, lattice_exponent, sigma, tau, threshold_delta_units, "
                "created_at, value_count, id, correlation, floor_correlation, floor, source_rho "
                f"FROM ({_POINTS}) WHERE statistic_hash = ? AND rho_nano = ? AND release_rho = ?",
                (statistic_hash, rho_nano, release_rho_nano),
            ).fetchone()
            if row is None:
                return None
            # a threshold may be set after a point was stored, by others too: only its vector is at hand for good
            name = (statistic_hash, rho_nano, f"{release_rho_nano} {row[6]}")
            values = self._decoded.get(name)
            if values is None or len(values) != row[7]:
                table = "lowered_point" if release_rho_nano else "point"
                blob = connection.execute(f"SELECT noisy_values FROM {table} WHERE id = ?", (row[8],)).fetchone()[0]
                values = _values(blob, row[7])
                self._decoded.put(name, values)
        return Point(
            statistic_hash=statistic_hash,
            rho_nano=row[0],
            frame_hash=row[1],
            values=values,
            lattice_exponent=row[2],
            sigma=row[3],
            tau=row[4],
            threshold_delta_units=int(row[5]),
            correlation=row[9],
            floor_correlation=row[10],
            floor=row[11],
            source_rho_nano=row[12],
            release_rho_nano=release_rho_nano,
            created_at=datetime.fromisoformat(row[6]),
        )

    def snapshot(self, frame_hash: str) -> Snapshot | None:
        """Return the frame's exact histogram, None if it has none."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT exact_values, value_count, floor FROM snapshot WHERE frame_hash = ?", (frame_hash,)
            ).fetchone()
        return None if row is None else Snapshot(_values(row[0], row[1]), row[2])

    def store(
        self,
        frame_hash: str,
        new_keys: pa.Table | None,
        points: Sequence[Point],
        charge_ids: Sequence[int],
        release: Release | None = None,
        snapshot: Snapshot | None = None,
        thresholds: Sequence[Threshold] = (),
        choices: Sequence[AutoChoice] = (),
        marks: Sequence[TableMark] = (),
        lists: Sequence[KeyList] = (),
        pins: Sequence[Pin] = (),
    ) -> None:
        """Store what was drawn, close the charges that paid for it, and record the release: all or nothing.

        Args:
            frame_hash: the frame of all ``points``.
            new_keys: keys that the frame did not hold; they get the next key ids.
            points: new points, each with a value for every key of the frame, the new ones included.
            charge_ids: as returned by ``Ledger.charge``; each pays once.
            release: what the analyst will be shown.
            snapshot: the exact histogram of a frame that is drawn from it ever after; written once.
            thresholds: for points that were stored without one.
            choices: which histograms AUTO chose by.
            marks: of the tables that were read; the first of each version is kept.
            lists: public lists of keys that are others than before.
            pins: which points the analyst is shown from now on; the first for a question stands.

        Raises:
            ReleaseError: a point does not cover the keys of its frame, or was drawn for more than its charges pay, or
                its threshold costs more than they pay, or a charge has paid before, or AUTO chose otherwise for the
                same reader and level meanwhile.
            StateError: a point of the same rho is stored already, or the file could not be written.

        """
        if any(point.frame_hash != frame_hash for point in points):
            raise ReleaseError("the points belong to another frame")
        # Compressed before the transaction, which holds up every other writer.
        blobs = [_values_blob(point.values) for point in points]
        keys_blob = None if new_keys is None else _arrow_blob(new_keys)
        exact_blob = None if snapshot is None else _values_blob(snapshot.values)
        with self._database.write() as connection:
            unit = _unit_of_frame(connection, frame_hash)
            if new_keys is not None and keys_blob is not None:
                _insert_keys(connection, frame_hash, new_keys, keys_blob)
            key_count = _key_count(connection, frame_hash)
            if snapshot is not None:
                if len(snapshot.values) != key_count:
                    raise ReleaseError("a snapshot must have one value for each key of its frame")
                connection.execute(
                    "INSERT INTO snapshot (frame_hash, value_count, floor, exact_values) VALUES (?, ?, ?, ?)",
                    (frame_hash, len(snapshot.values), snapshot.floor, exact_blob),
                )
            hashes = {point.statistic_hash for point in points}
            before = {statistic: _top_level(connection, statistic)[1] for statistic in hashes}
            for point, blob in zip(points, blobs, strict=True):
                if len(point.values) != key_count * point.cells:
                    raise ReleaseError("a point must have one value for each key of its frame, and each of its cells")
                _insert_point(connection, point, blob)
            for threshold in thresholds:
                _set_threshold(connection, threshold)
            paid = _close_charges(connection, unit, charge_ids)
            rises = {statistic: _top_level(connection, statistic)[1] - level for statistic, level in before.items()}
            _require_paid(points, thresholds, before, rises, paid)
            keep_choices(connection, choices)
            if release is not None:
                _insert_release(connection, release)
                keep_marks(connection, marks, release.at)
                keep_lists(connection, lists)
            insert_pins(connection, pins)
        for point in points:
            made = f"{point.release_rho_nano} {point.created_at.isoformat()}"
            self._decoded.put((point.statistic_hash, point.rho_nano, made), point.values)

    def pins(self, statistic_hash: str, analyst: str) -> tuple[Pin, ...]:
        """Return which points of a statistic an analyst was shown, by what was asked for."""
        with self._database.read() as connection:
            return read_pins(connection, statistic_hash, analyst)

    def auto_level(self, statistic_hash: str, analyst: str, share_nano: int, rho_limit: int | None) -> int | None:
        """Return the level of the histogram that AUTO chose by when it answered this reader at this level first.

        Args:
            statistic_hash: the histogram's.
            analyst: who asks.
            share_nano: what the query leaves for the histogram.
            rho_limit: the reader's limit; None without one.

        """
        with self._database.read() as connection:
            return kept_level(connection, statistic_hash, analyst, share_nano, rho_limit)

    def releases(self, analyst: str | None = None) -> tuple[Release, ...]:
        """Return the releases to one analyst, or to all, oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT analyst, query_hash, at, statistics, mechanism, rho_nano, epsilon, delta, "
                "charged_rho_nano, charged_delta_units, reused, table_versions, levels, changed FROM release "
                "WHERE ?1 IS NULL OR lower(trim(analyst)) = lower(?1) ORDER BY id",
                (analyst,),
            ).fetchall()
        return tuple(
            Release(
                analyst=row[0],
                query_hash=row[1],
                at=datetime.fromisoformat(row[2]),
                statistics=tuple(json.loads(row[3])),
                levels=tuple((level, source) for level, source in json.loads(row[12])),
                mechanism=row[4],
                rho_nano=row[5],
                epsilon=row[6],
                delta=row[7],
                charged_rho_nano=row[8],
                charged_delta_units=int(row[9]),
                reused=bool(row[10]),
                table_versions=tuple((table, version) for table, version in json.loads(row[11])),
                changed=tuple(json.loads(row[13])),
            )
            for row in rows
        )

    def held(self, unit: str, analysts: Sequence[str] | None = None) -> int:
        """Return what some analysts together, or all, were shown of a unit, in nano-rho.

        Of one statistic they hold the highest level that any of them was shown, of several the sum; and of independent
        releases of one statistic likewise. A release that was recorded before levels were counts for each of its
        statistics with its whole rho, or the highest level that keys of it were shown at.
        """
        with self._database.read() as connection:
            row = connection.execute(
                # IN is looked up; a join of two tables without an index would compare each row with each
                f"SELECT coalesce(sum(highest), 0) FROM (SELECT max(rho_nano) AS highest FROM ({_SHOWN}) "
                "WHERE statistic_hash IN (SELECT statistic_hash FROM charge WHERE unit = ?1) "
                "AND (?2 IS NULL OR lower(trim(analyst)) IN (SELECT lower(value) FROM json_each(?2))) "
                "GROUP BY statistic_hash, source)",
                (unit, None if analysts is None else json.dumps(list(analysts))),
            ).fetchone()
        return int(row[0])

    def releases_held(self, statistic_hash: str, analyst: str) -> dict[int, int]:
        """Return the highest level that an analyst was shown of each independent release of a statistic."""
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT source, max(rho_nano) FROM ({_SHOWN}) WHERE statistic_hash = ? "
                "AND lower(trim(analyst)) = lower(?) GROUP BY source",
                (statistic_hash, analyst),
            ).fetchall()
        return dict(rows)


_POINTS = """
SELECT id, statistic_hash, rho_nano, frame_hash, value_count, lattice_exponent, sigma, tau, threshold_delta_units,
       created_at, correlation, floor_correlation, floor, source_rho, 0 AS release_rho FROM point
UNION ALL
SELECT id, statistic_hash, rho_nano, frame_hash, value_count, lattice_exponent, sigma, NULL, '0',
       created_at, correlation, floor_correlation, floor, release_rho, release_rho FROM lowered_point
"""

# One row a release and statistic: who was shown it, up to which level, and of which of its independent releases.
_SHOWN = """
SELECT release.analyst, asked.value AS statistic_hash,
       coalesce(told.value ->> 0, max(release.rho_nano, coalesce((
           SELECT max(rho_nano) FROM point WHERE point.statistic_hash = asked.value AND tau IS NOT NULL), 0))
       ) AS rho_nano,
       coalesce(told.value ->> 1, 0) AS source
FROM release, json_each(release.statistics) AS asked
LEFT JOIN json_each(release.levels) AS told ON told.key = asked.key
"""
