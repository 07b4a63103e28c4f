"""What a task of Spark is asked, and the form of what it hands on."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from dpsql.bound.partials import PartialRows
from dpsql.engine.arrow_stream import to_stream

SOURCE = "source"
"""Column of the rows of a part: the place of the table that a row is of. Rows of one table need none."""

HOME = "memory.main"
"""Database and schema of the tables, in the head and in a task."""

NO_TABLE = -1
"""Place of a row of no table, which keeps the parts of empty tables."""

OUTPUT = pa.schema(
    [
        ("part", pa.int32()),
        ("attempt", pa.int64()),
        ("name", pa.string()),
        ("bucket", pa.int32()),
        ("failure", pa.string()),
        ("rows", pa.binary()),
    ]
)
"""What a task hands on: pieces of named tables. The last row of a part is called `DONE`, and counts them by name.

An attempt is the number that Spark gives to a run of a task. So rows of a second run of one task are told apart.
"""
DONE = "done"
TEXT = "text "
"""Begin of the names of the rows of texts."""
LARGE = "large "
"""Begin of the names of the rows of a text that are too many for the driver. Equal keys are in one bucket."""
FEW = "few "
"""Begin of the names of the rows of a table that are few: they come to the driver with the rows of texts."""
ADDED = "added "
"""Begin of the names of such rows, once those of equal keys were added up in their bucket."""

FAILED = "failed"
"""Word of a failure: the task could not run a text."""
OTHER = "other"
"""Word of a failure: the task has another DuckDB."""
NO_NATIVE = "no native"
"""Word of a failure: the task has not the aggregates in C that its texts call."""


@dataclass(frozen=True, slots=True)
class TaskTable:
    """A table of the rows of a part.

    Attributes:
        name: its name.
        columns: name and DuckDB type of each column. Spark calls them as `column_name` says.

    """

    name: str
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TaskMade:
    """A temporary table that a task makes before its texts run.

    Attributes:
        name: its name.
        sql: the SELECT that it is made of.
        listed_keys: the keys that the SELECT is about, as a stream of Arrow; None for none.
        is_handed_on: whether later tasks are given the table.

    """

    name: str
    sql: str
    listed_keys: bytes | None
    is_handed_on: bool


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """What a task does with the rows of its part. It travels in the pickled task.

    Attributes:
        probe: row of `PROBE` in the process that asks.
        has_native: whether texts call the aggregates in C.
        memory_limit: of DuckDB, as in SET memory_limit.
        tables: tables of the rows of a part, in the order of their places.
        held: name of a temporary table that an earlier task made; or nothing.
        public: name and rows of each public table, as streams of Arrow.
        made: temporary tables that are made before the texts run, in their order.
        texts: rows that are handed on.
        listed_keys: the keys that the texts are about, as a stream of Arrow; None for none.
        most_rows: number of rows of a text beyond which they are divided into buckets by their keys.
        buckets: number of buckets.
        few_units: number of units of a table that was made up to which its rows are few. One person is one unit.
        lone_unit: if all rows are of one table, the column of their unit, as Spark calls it; else empty. It is NULL in
            the row that keeps the parts of an empty table, and in rows of nobody, which no text reads.
        is_packed: whether the task is given what an earlier task handed on, and not rows of Spark.
        keeps: whether the tables are handed on.

    """

    probe: tuple[str, ...]
    has_native: bool
    memory_limit: str
    tables: tuple[TaskTable, ...] = ()
    held: str = ""
    public: tuple[tuple[str, bytes], ...] = ()
    made: tuple[TaskMade, ...] = ()
    texts: tuple[PartialRows, ...] = ()
    listed_keys: bytes | None = None
    most_rows: int = 2**31
    buckets: int = 1
    few_units: int = -1
    lone_unit: str = ""
    is_packed: bool = False
    keeps: bool = False

    @property
    def needed(self) -> tuple[str, ...]:
        """Return the names of what the task takes of an earlier task."""
        return (self.held, few(self.held)) if self.held else tuple(packed_name(table.name) for table in self.tables)


def column_name(table: int, column: int) -> str:
    """Return the name by which Spark knows a column of a table, by their places."""
    return f"c{table}_{column}"


def to_bytes(table: pa.Table) -> bytes:
    """Return a table as a compressed stream of Arrow."""
    return bytes(to_stream(table, "lz4"))


def few(table: str) -> str:
    """Return the name by which the rows of a made table are handed on if they are few."""
    return f"{FEW}{table}"


def packed_name(table: str) -> str:
    """Return the name by which rows of a table are handed on."""
    return f"table {table}"
