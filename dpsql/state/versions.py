"""The versions of a table: names that are used once, in the order in which they were declared."""

from __future__ import annotations

import itertools
import sqlite3
from datetime import UTC, datetime

from dpsql.errors import PolicyError
from dpsql.state.database import insert_row


def versions_of(connection: sqlite3.Connection, table: str) -> list[str]:
    """Return all versions that the table ever had, oldest first."""
    select = "SELECT version FROM table_version WHERE table_name = ? ORDER BY number"
    return [version for (version,) in connection.execute(select, (table,))]


def add_version(connection: sqlite3.Connection, table: str, version: str | None) -> str:
    """Store a new version of a table, a running number by default, and return it.

    Raises:
        PolicyError: it has no name, or the table had it before.

    """
    used = versions_of(connection, table)
    if version is None:
        version = next(str(number) for number in itertools.count(len(used) + 1) if str(number) not in used)
    if not version:
        raise PolicyError(f"a version of table {table!r} needs a name")
    if version in used:
        raise PolicyError(f"table {table!r} had version {version!r} before; answers to it are stored under that name")
    row = {"table_name": table, "number": len(used) + 1, "version": version, "at": datetime.now(UTC)}
    insert_row(connection, "table_version", row)
    return version


def settle_version(connection: sqlite3.Connection, table: str, declared: str, *, is_new: bool) -> str:
    """Return the version under which a declaration is stored; only ``new_version`` moves that of a declared table.

    Args:
        connection: in a transaction.
        table: its canonical name.
        declared: the version that the declaration names, or an empty text.
        is_new: whether the table is not declared, perhaps because its declaration was undone.

    """
    used = versions_of(connection, table)
    if not used or (is_new and declared and declared not in used):
        return add_version(connection, table, declared or None)
    if declared not in ("", used[-1]):
        raise PolicyError(f"table {table!r} is at version {used[-1]!r}; declare {declared!r} as a new version of it")
    return used[-1]
