"""Folders of parts for tests: tables of a live connection, split by their units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb

from dpsql.engine.connection import LocalConnection
from dpsql.engine.parts.manifest import Step
from dpsql.engine.parts.sources import table_source, views_of
from dpsql.engine.parts.split import split_tables


def split_of(
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    parts: int,
    *,
    units: Mapping[str, str],
    links: Mapping[str, Sequence[Step]] | None = None,
    public: Sequence[str] = (),
) -> Path:
    """Split tables of a connection into a folder, and return the folder.

    Args:
        connection: its own database has the tables.
        folder: of the parts.
        parts: number of parts.
        units: unit column of each split table, by the table's name in SQL, as ``main.visits`` or ``visits``; of a
            linked table the column of the last parent.
        links: steps to the last parent, by name; parents go by their canonical names, as ``main.patients``.
        public: names of public tables.

    """
    steps = links or {}
    opened = LocalConnection(connection, None)
    split_tables(
        opened,
        [table_source(opened, name.split("."), unit, steps.get(name, ())) for name, unit in units.items()],
        [table_source(opened, name.split(".")) for name in public],
        parts=parts,
        folder=folder,
        views=views_of(opened),
    )
    return folder


def small_split(folder: Path) -> Path:
    """Split 900 visits of 50 patients, with a public table beside them, into three parts, and return the folder."""
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE visits AS SELECT i % 50 AS patient, i % 3 AS code FROM range(900) t(i)")
        connection.execute("CREATE TABLE cities AS SELECT 'city ' || i AS city FROM range(3) t(i)")
        return split_of(connection, folder, 3, units={"visits": "patient"}, public=("cities",))
