"""Which histogram AUTO chose by for a reader and a level: kept with the release that showed the choice, for good."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from dpsql.errors import ReleaseError
from dpsql.state.records import AutoChoice

TABLES = """
CREATE TABLE auto_choice (
    id INTEGER PRIMARY KEY, statistic_hash TEXT NOT NULL, analyst TEXT NOT NULL COLLATE NOCASE,
    share_low INTEGER NOT NULL, share_high INTEGER NOT NULL, rho_nano INTEGER NOT NULL,
    FOREIGN KEY (statistic_hash, rho_nano) REFERENCES point(statistic_hash, rho_nano)
) STRICT;
CREATE INDEX auto_choice_of_reader ON auto_choice (statistic_hash, analyst);
"""

OLD_CHOICES = """
INSERT INTO auto_choice (statistic_hash, analyst, share_low, share_high, rho_nano)
SELECT statistic_hash, analyst, 1, max(2 * (shown / (32 - asked_count))), rho_nano FROM (
    SELECT asked.value AS statistic_hash, release.analyst, release.rho_nano AS shown, point.rho_nano AS rho_nano,
           count(*) OVER (PARTITION BY release.id) AS asked_count
    FROM release, json_each(release.statistics) AS asked
    JOIN point ON point.statistic_hash = asked.value AND point.frame_hash = point.statistic_hash
) GROUP BY statistic_hash, lower(analyst) ORDER BY statistic_hash, lower(analyst)
"""
"""What was answered before choices were kept: one histogram chose for all levels.

Such a reader keeps it for every level that they asked at, and some above: of a query that leaves AUTO k shares of 1/32,
the statistics have 32 - k of them, so twice what they were shown over 32 - k is more than the share.
"""


def kept_level(
    connection: sqlite3.Connection, statistic_hash: str, analyst: str, share_nano: int, rho_limit: int | None
) -> int | None:
    """The level of the histogram that chose first for a reader at a level, of those within their limit."""
    row = connection.execute(
        "SELECT rho_nano FROM auto_choice WHERE statistic_hash = ?1 AND analyst = ?2 "
        "AND ?3 BETWEEN share_low AND share_high AND (?4 IS NULL OR rho_nano <= ?4) ORDER BY id LIMIT 1",
        (statistic_hash, analyst, share_nano, rho_limit),
    ).fetchone()
    return None if row is None else int(row[0])


def keep_choices(connection: sqlite3.Connection, choices: Sequence[AutoChoice]) -> None:
    """Keep what a release was chosen by.

    Raises:
        ReleaseError: another release to the same reader, at the same level, was chosen by another histogram meanwhile.

    """
    for one in choices:
        kept = kept_level(connection, one.statistic_hash, one.analyst, one.share_nano, one.rho_limit)
        if kept is None:
            connection.execute(
                "INSERT INTO auto_choice (statistic_hash, analyst, share_low, share_high, rho_nano) "
                "VALUES (?, ?, ?, ?, ?)",
                (one.statistic_hash, one.analyst, one.share_nano, one.share_nano, one.rho_nano),
            )
        elif kept != one.rho_nano:
            raise ReleaseError("AUTO chose for the same question of the same reader at this moment; ask again")
