"""The DuckDB in memory that reads one part, in a process of a folder or in a task of Spark."""

from __future__ import annotations

from pathlib import Path

import duckdb

from dpsql.engine.connection import LocalConnection


def open_part_database(
    memory_limit: str, temp_directory: str, library: Path | None
) -> tuple[duckdb.DuckDBPyConnection, LocalConnection]:
    """Open a DuckDB of one thread in memory; return it, and the connection whose cursors read rows.

    Args:
        memory_limit: as in SET memory_limit.
        temp_directory: folder for rows that memory does not hold; empty for no such rows.
        library: the aggregates in C, if they are loaded.

    """
    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "memory_limit": memory_limit,
        "temp_directory": temp_directory,
    }
    if library:
        config["allow_unsigned_extensions"] = True
    database = duckdb.connect(":memory:", config=config)
    # wide whole numbers and UUIDs stay what they are
    database.execute("SET arrow_lossless_conversion = true")
    # texts of one person may be long: beyond 2 GiB in a batch, small buffers would fail
    database.execute("SET arrow_large_buffer_size = true")
    connection = LocalConnection(database, library)
    connection.load_native()
    return database, connection
