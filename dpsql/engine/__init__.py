"""DuckDB: the only way from raw rows into the program, and a sandbox that never meets one."""

from __future__ import annotations

from dpsql.engine.arrow_stream import from_stream, to_stream
from dpsql.engine.catalog import Mark, identity
from dpsql.engine.connection import (
    BYTEWISE,
    MAIN_DATABASE,
    PINNED,
    SETTINGS,
    MainDatabase,
    main_database,
    seconds_left,
    stopped_by,
)
from dpsql.engine.database import DuckDBEngine
from dpsql.engine.definitions import Definitions, redefined
from dpsql.engine.listing import ListedTable, without_members
from dpsql.engine.probes import warn_if_untested
from dpsql.engine.protocol import Engine, Transaction
from dpsql.engine.sandbox import Sandbox, digest
from dpsql.engine.transaction import ExactTable

__all__ = [
    "BYTEWISE",
    "MAIN_DATABASE",
    "PINNED",
    "SETTINGS",
    "Definitions",
    "DuckDBEngine",
    "Engine",
    "ExactTable",
    "ListedTable",
    "MainDatabase",
    "Mark",
    "Sandbox",
    "Transaction",
    "digest",
    "from_stream",
    "identity",
    "main_database",
    "redefined",
    "seconds_left",
    "stopped_by",
    "to_stream",
    "warn_if_untested",
    "without_members",
]
