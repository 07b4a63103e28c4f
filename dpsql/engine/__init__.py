"""DuckDB: the only way from raw rows into the program, and a sandbox that never meets one."""

from __future__ import annotations

from dpsql.engine.catalog import identity
from dpsql.engine.connection import PINNED
from dpsql.engine.database import DuckDBEngine, Engine, ExactTable
from dpsql.engine.interrupts import stopped_by
from dpsql.engine.marks import Mark
from dpsql.engine.sandbox import Sandbox, digest
from dpsql.engine.settings import BYTEWISE, SETTINGS

__all__ = [
    "BYTEWISE",
    "PINNED",
    "SETTINGS",
    "DuckDBEngine",
    "Engine",
    "ExactTable",
    "Mark",
    "Sandbox",
    "digest",
    "identity",
    "stopped_by",
]
