"""The history: what releases were made by, and what each reader was shown.

Rows are added, never changed. They are written once, with the release that they belong to, so that the same question
is answered alike again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, astuple
from datetime import UTC, datetime

from dpsql.errors import ReleaseError
from dpsql.state.database import Database, insert_row
from dpsql.state.last_question import PaidQuestion, last_paid_question
from dpsql.state.records import Additions, Pin, Release, SeenLevels, Stop, TableMark

# One row a release and statistic: who was shown it, up to which level, and of which of its independent releases.
_SHOWN = """
SELECT release.analyst, asked.value AS statistic_hash,
       coalesce(shown.value ->> 0, max(release.rho_nano, coalesce((
           SELECT max(rho_nano) FROM point WHERE point.statistic_hash = asked.value AND tau IS NOT NULL), 0))
       ) AS rho_nano,
       coalesce(shown.value ->> 1, 0) AS source
FROM release, json_each(release.statistics) AS asked
LEFT JOIN json_each(release.levels) AS shown ON shown.key = asked.key
"""

_LAST_LIST = (
    "SELECT digest FROM key_list WHERE table_name = ? AND column_name = ? AND key_type = ? ORDER BY id DESC LIMIT 1"
)


def record_release(connection: sqlite3.Connection, additions: Additions) -> None:
    """Record a release with what it was made by.

    Raises:
        ReleaseError: AUTO chose otherwise for the same reader and level meanwhile.

    """
    for choice in additions.choices:
        kept = _auto_level(connection, choice.statistic_hash, choice.analyst, choice.share_nano, choice.rho_limit)
        if kept is None:
            connection.execute(
                "INSERT INTO auto_choice (statistic_hash, analyst, share_low, share_high, rho_nano) "
                "VALUES (?1, ?2, ?3, ?3, ?4)",
                (choice.statistic_hash, choice.analyst, choice.share_nano, choice.rho_nano),
            )
        elif kept != choice.rho_nano:
            raise ReleaseError("AUTO chose for the same question of the same reader at this moment; ask again")
    release = additions.release
    if release is not None:
        insert_row(connection, "release", asdict(release))
        # the first mark of a version stays
        connection.executemany(
            "INSERT INTO version_mark (table_name, version, part, value, at) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            [(one.table, one.version, *part, release.at.isoformat()) for one in additions.marks for part in one.parts],
        )
        for listed in additions.lists:
            place = (listed.table, listed.column, listed.key_type)
            if connection.execute(_LAST_LIST, place).fetchone() != (listed.digest,):
                connection.execute(
                    "INSERT INTO key_list (table_name, column_name, key_type, digest, at, keys) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    (*place, listed.digest, datetime.now(UTC).isoformat(), listed.blob),
                )
    # what a reader was shown before for the same question stays; own_release holds two flags: 1 for a release with a
    # threshold of its own, 2 for a level that followed from half widths
    connection.executemany(
        "INSERT INTO pin (analyst, statistic_hash, asked_rho, query_rho, own_release, served_rho, release_rho, "
        "has_threshold) VALUES (lower(?), ?, ?, ?, ? + 2 * ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        map(astuple, additions.pins),
    )


def _auto_level(
    connection: sqlite3.Connection, statistic_hash: str, analyst: str, share_nano: int, rho_limit: int | None
) -> int | None:
    row = connection.execute(
        "SELECT rho_nano FROM auto_choice WHERE statistic_hash = ?1 AND analyst = ?2 "
        "AND ?3 BETWEEN share_low AND share_high AND (?4 IS NULL OR rho_nano <= ?4) ORDER BY id LIMIT 1",
        (statistic_hash, analyst, share_nano, rho_limit),
    ).fetchone()
    return None if row is None else int(row[0])


class ReleaseHistory:
    """The releases of one state, and what they were made by."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def releases(self, analyst: str | None = None) -> tuple[Release, ...]:
        """Return the releases to one analyst, or to all, oldest first."""
        rows = self._database.rows(
            "SELECT analyst, query_hash, at, statistics, levels, mechanism, rho_nano, epsilon, delta, "
            "charged_rho_nano, charged_delta_units, reused, table_versions, changed FROM release "
            "WHERE ?1 IS NULL OR lower(trim(analyst)) = lower(?1) ORDER BY id",
            analyst,
        )
        return tuple(Release(**row) for row in rows)

    def held(self, unit: str, analysts: Sequence[str] | None = None) -> int:
        """Return what some analysts together, or all, were shown of a unit, in nano-rho.

        Of one statistic they hold the highest level that any of them was shown, of several the sum; and of independent
        releases of one statistic likewise. A release that was recorded before levels were counts for each of its
        statistics with its whole rho, or the highest level that keys of it were shown at.
        """
        (row,) = self._database.rows(
            # IN is looked up; a join of two tables without an index would compare each row with each
            f"SELECT coalesce(sum(highest), 0) AS total FROM (SELECT max(rho_nano) AS highest FROM ({_SHOWN}) "
            "WHERE statistic_hash IN (SELECT statistic_hash FROM charge WHERE unit = ?1) "
            "AND (?2 IS NULL OR lower(trim(analyst)) IN (SELECT lower(value) FROM json_each(?2))) "
            "GROUP BY statistic_hash, source)",
            unit,
            None if analysts is None else json.dumps(list(analysts)),
        )
        return int(row["total"])

    def last_paid(self, unit: str, analyst: str | None) -> PaidQuestion | None:
        """Return the question about a unit that an analyst, or anybody, was charged for last; None if there is none."""
        with self._database.read() as connection:
            return last_paid_question(connection, unit, analyst)

    def releases_held(self, statistic_hash: str, analyst: str) -> dict[int, int]:
        """Return the highest level that an analyst was shown of each independent release of a statistic."""
        rows = self._database.rows(
            f"SELECT source, max(rho_nano) AS highest FROM ({_SHOWN}) WHERE statistic_hash = ? "
            "AND lower(trim(analyst)) = lower(?) GROUP BY source",
            statistic_hash,
            analyst,
        )
        return {row["source"]: row["highest"] for row in rows}

    def pins(self, statistic_hash: str, analyst: str) -> tuple[Pin, ...]:
        """Return which points of a statistic an analyst was shown, by what was asked for.

        Letters A to Z in names are the same in either case.
        """
        rows = self._database.rows(
            "SELECT analyst, statistic_hash, asked_rho AS asked_rho_nano, query_rho AS query_rho_nano, "
            "own_release % 2 AS own_release, own_release >= 2 AS by_half_width, served_rho AS rho_nano, "
            "release_rho AS release_rho_nano, has_threshold FROM pin "
            "WHERE statistic_hash = ? AND analyst = lower(?)",
            statistic_hash,
            analyst,
        )
        return tuple(Pin(**row) for row in rows)

    def has_claim(self, rows_hash: str, analyst: str) -> bool:
        """Return whether the charge of another reader's question about rows and keys follows from released numbers.

        Args:
            rows_hash: `model.identity.rows_hash` of a frame.
            analyst: the reader whose own questions do not count.

        """
        found = self._database.rows(
            "SELECT 1 AS found FROM release WHERE claim <> '[]' AND claim ->> 0 = ? "
            "AND lower(trim(analyst)) <> lower(?) LIMIT 1",
            rows_hash,
            analyst,
        )
        return bool(found)

    def seen_levels(self, statistic_hash: str, analyst: str) -> SeenLevels:
        """Return the levels of a statistic that a reader with a limit may know of."""
        rows = self._database.rows(
            # a release of an older format has no level that was asked for
            "SELECT claim = '[]' AS is_plain, max(coalesce(shown.value ->> 2, shown.value ->> 0)) AS highest "
            "FROM release, json_each(release.statistics) AS asked "
            "JOIN json_each(release.levels) AS shown ON shown.key = asked.key WHERE asked.value = ? GROUP BY is_plain",
            statistic_hash,
        )
        highest = {bool(row["is_plain"]): int(row["highest"]) for row in rows}
        own = [pin for pin in self.pins(statistic_hash, analyst) if not pin.release_rho_nano]
        known = {pin.rho_nano for pin in own} | ({highest[True]} if True in highest else set())
        return SeenLevels(
            frozenset(known),
            frozenset(pin.rho_nano for pin in own if pin.has_threshold),
            max((*highest.values(), *known), default=0),
        )

    def stop(self, question: str, analyst: str) -> Stop | None:
        """Return where a question by relative error stopped for an analyst; None if it never did."""
        rows = self._database.rows(
            "SELECT rho_nano, steps, ending FROM stop WHERE question = ? AND analyst = lower(?)", question, analyst
        )
        return next((Stop(**row) for row in rows), None)

    def keep_stop(self, question: str, analyst: str, stop: Stop) -> Stop:
        """Store where a question stopped, and return it; if another process was faster, what that one stored."""
        with self._database.write() as connection:
            connection.execute(
                "INSERT INTO stop (question, analyst, rho_nano, steps, ending) VALUES (?, lower(?), ?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (question, analyst, *astuple(stop)),
            )
        return self.stop(question, analyst) or stop

    def auto_level(self, statistic_hash: str, analyst: str, share_nano: int, rho_limit: int | None) -> int | None:
        """Return the level of the histogram that AUTO chose by when it answered this reader at this level first.

        Args:
            statistic_hash: the histogram's.
            analyst: who asks.
            share_nano: what the query leaves for the histogram.
            rho_limit: highest level that may choose for the reader; None for any.

        """
        with self._database.read() as connection:
            return _auto_level(connection, statistic_hash, analyst, share_nano, rho_limit)

    def differences(self, mark: TableMark) -> tuple[str, ...]:
        """Names of the parts in which a mark differs from what is kept of its version."""
        rows = self._database.rows(
            "SELECT part, value FROM version_mark WHERE table_name = ? AND version = ?", mark.table, mark.version
        )
        kept = {row["part"]: row["value"] for row in rows}
        return tuple(part for part, value in mark.parts if kept.get(part, value) != value)

    def is_last_list(self, table: str, column: str, key_type: str, digest: str) -> bool:
        """Check that this is the public list of keys that was kept last of a column."""
        return self._database.rows(_LAST_LIST, table, column, key_type) == [{"digest": digest}]

    def list_at(self, table: str, column: str, key_type: str, moment: datetime) -> bytes | None:
        """Return the public list that releases were made by at a moment, as Arrow; None where none was by then."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT at, keys FROM key_list WHERE table_name = ? AND column_name = ? AND key_type = ? "
                "ORDER BY id DESC",
                (table, column, key_type),
            )
            return next((bytes(keys) for at, keys in rows if datetime.fromisoformat(at) <= moment), None)

    def columns_of(self, table: str, version: str) -> tuple[tuple[str, str, bool], ...]:
        """Return the columns (name, type, nullable) that a version had when it was declared last; empty if unknown."""
        rows = self._database.rows(
            "SELECT columns FROM version_columns WHERE table_name = ? AND version = ?", table, version
        )
        return next((row["columns"] for row in rows), ())
