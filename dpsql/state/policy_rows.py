"""Rows of declarations in the state file, and the history of declarations, which only grows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from dpsql.state.database import insert_row
from dpsql.state.policy import ClearedAnalyst, Domain, Link, ProtectedTable, PublicTable, RememberedTable, Unit
from dpsql.state.rules import Declaration, checked

NOUNS: Mapping[type[Declaration], str] = {
    Unit: "Unit",
    ProtectedTable: "ProtectedTable",
    PublicTable: "PublicTable",
    Domain: "Domain",
    ClearedAnalyst: "ClearedAnalyst",
    Link: "Link",
}
"""The words by which state files record each kind of declaration. They never change, whatever a class is called."""


def record(connection: sqlite3.Connection, declaration: Declaration, **more: bool) -> None:
    """Add a declaration to the history.

    Args:
        connection: in a transaction.
        declaration: as it is now, or as it was if it is undone.
        more: ``withdrawn=True`` if it is undone or replaced.

    """
    row = {"at": datetime.now(UTC), "noun": NOUNS[type(declaration)]}
    insert_row(connection, "policy_log", {**row, "declaration": json.dumps({**asdict(declaration), **more})})


def write_row(connection: sqlite3.Connection, table: str, row: Mapping[str, object]) -> None:
    """Insert the row or update the one with its primary key; a REPLACE would break references to it."""
    updates = ", ".join(f"{name} = excluded.{name}" for name in row)
    insert_row(connection, table, row, f"ON CONFLICT DO UPDATE SET {updates}")


def named_row(declaration: ProtectedTable | Link | RememberedTable) -> dict[str, Any]:
    """Return the row of a table, whose column is called name."""
    row = asdict(declaration)
    return {"name": row.pop("table"), **row}


def declare_row(
    connection: sqlite3.Connection, table: str, row: Mapping[str, object], declaration: Declaration
) -> None:
    """Check a declaration, write its row, and add it to the history.

    Raises:
        PolicyError: it breaks a rule.

    """
    checked(declaration)
    write_row(connection, table, row)
    record(connection, declaration)
