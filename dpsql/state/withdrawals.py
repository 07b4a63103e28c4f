"""Whether a public table can still be taken back: not once an answer was made of it."""

from __future__ import annotations

import sqlite3

from dpsql.errors import PolicyError
from dpsql.state.policy import Policy


def require_unread(connection: sqlite3.Connection, table: str, policy: Policy) -> None:
    """Refuse to take back a public table that an answer was made of, or that lists the keys of another one's column.

    Raises:
        PolicyError: it is so.

    """
    listing = connection.execute(
        "SELECT DISTINCT json_extract(declaration, '$.table') FROM policy_log "
        "WHERE noun = 'Domain' AND json_extract(declaration, '$.keys_from[0]') = ?",
        (table,),
    )
    if any(_was_read(connection, one) for one in (table, *(row[0] for row in listing.fetchall()))):
        raise PolicyError(f"answers were made of table {table!r}, which told what it holds: it stays public")
    for domain in policy.domains:
        if domain.keys_from is not None and domain.keys_from[0] == table and domain.table != table:
            raise PolicyError(
                f"table {table!r} lists the keys of {domain.table}.{domain.column}; first CALL "
                f"dp_domain('{domain.table}', '{domain.column}', keys_from := NULL)"
            )


def _was_read(connection: sqlite3.Connection, table: str) -> bool:
    for query in (
        "SELECT 1 FROM frame, json_each(frame.tables) AS one WHERE one.value = ? LIMIT 1",
        "SELECT 1 FROM release, json_each(release.table_versions) AS one WHERE json_extract(one.value, '$[0]') = ? "
        "LIMIT 1",
    ):
        if connection.execute(query, (table,)).fetchone() is not None:
            return True
    return False
