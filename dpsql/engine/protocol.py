"""The protocol of an engine: all that the rooms above ask of the curator's database.

Nothing of the data is shown by what is asked of the catalog. Exact values leave an engine in an ``ExactTable`` alone,
and go to the noise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from dpsql.bound.formulations import Formulation, Sizes
from dpsql.bound.kept_pairs import KeptPairs
from dpsql.bound.pairs import Pairs
from dpsql.bound.statement import Bounded, Statement
from dpsql.bound.unit_histograms import UnitCounts
from dpsql.engine.catalog import Mark
from dpsql.engine.listing import ListedTable
from dpsql.engine.transaction import ExactTable
from dpsql.model.environment import TableSchema

if TYPE_CHECKING:
    from dpsql.engine.definitions import Definitions


class Transaction(Protocol):
    """Several readings of one question. All of them see the rows as they were at its begin.

    The tables that it makes end with it. A reading that fails, or runs out of its time, raises an EngineError whose
    message is constant. ``listed_keys`` are the keys that a reading is about, if they are known before it.
    """

    def has_one_row(self, stored_unit: Sequence[str], timeout_seconds: float | None) -> bool:
        """Return whether a constraint keeps the column of the unit unique."""

    def make_pairs(self, pairs: Pairs, *, listed_keys: pa.Table | None, timeout_seconds: float | None) -> UnitCounts:
        """Make the table of pairs; return the numbers of units by what they have in it."""

    def make_kept_pairs(
        self,
        kept: KeptPairs,
        formulation: Formulation,
        pairs: Pairs | None,
        *,
        listed_keys: pa.Table | None,
        timeout_seconds: float | None,
    ) -> None:
        """Make the table of pairs after bounds, of rows or of the table of pairs."""

    def make_rows(
        self, bounded: Bounded, salt: bytes, *, listed_keys: pa.Table | None, timeout_seconds: float | None
    ) -> Sizes:
        """Make the table of all rows of a frame; return their approximate sizes."""

    def exact(
        self,
        statement: Statement,
        salt: bytes,
        formulation: Formulation,
        pairs: Pairs | KeptPairs | None = None,
        *,
        listed_keys: pa.Table | None,
        timeout_seconds: float | None,
    ) -> ExactTable:
        """Return the exact rows of a statement, over rows or over the tables that were made."""


class Engine(Protocol):
    """The curator's database: names and types for planning, bounded statements for exact values."""

    # names, types and constraints; no row is read for them

    def settings(self) -> tuple[tuple[str, str], ...]:
        """Return the settings that the value of an expression depends on, with the default collation."""

    def session_zone(self) -> str:
        """Return the time zone of the curator's session."""

    def resolve(self, parts: Sequence[str]) -> TableSchema | None:
        """Return the table or view that ``[catalog.][schema.]table`` means. Return None if there is none."""

    def find(self, canonical: str, *, views: bool = False) -> TableSchema | None:
        """Return the base table of an identity, or a view if ``views`` is true. Return None if there is none."""

    def listed(self, wanted: Collection[str]) -> dict[str, ListedTable]:
        """Return the tables and views of some identities, by identity; one that is not there has no entry."""

    def is_base_table(self, schema: TableSchema) -> bool:
        """Return whether a resolved name is a base table and not a view."""

    def view_text(self, schema: TableSchema) -> str | None:
        """Return the statement that made a view of the curator's own schema. Return None for anything else."""

    def tables_read(self, schema: TableSchema) -> tuple[str, ...]:
        """Return the names of the base tables that a view reads, as SQL writes names.

        Raises:
            EngineError: the view cannot be read.

        """

    def members(self, schema: TableSchema, column: str) -> tuple[str, ...]:
        """Return the members of a column's ENUM type in their order, or nothing if it has another type."""

    def collation(self, schema: TableSchema, column: str) -> str | None:
        """Return the collation of a column that may hold different texts equal. Return None if bytes decide.

        Raises:
            EngineError: the column cannot be read.

        """

    def unique_columns(self, schema: TableSchema) -> tuple[tuple[str, ...], ...]:
        """Return the columns of each PRIMARY KEY or UNIQUE constraint, as they are now."""

    def primary_key(self, schema: TableSchema) -> tuple[str, ...]:
        """Return the columns of the PRIMARY KEY, sorted, or nothing if there is none."""

    def references(self, schema: TableSchema, columns: Sequence[str], other: TableSchema) -> bool:
        """Return True if a FOREIGN KEY leads from just these columns of a table to another table of its schema."""

    def is_unique(self, schema: TableSchema, columns: Sequence[str]) -> bool:
        """Return whether a PRIMARY KEY or UNIQUE constraint is over just these columns, or some of them."""

    def unit_constraint(self, stored_unit: Sequence[str]) -> str:
        """Return the constraint that keeps the unit column unique, as SQL; or nothing if there is none.

        Args:
            stored_unit: database, schema, table and column that hold the unit, if there is such a column.

        """

    def snapshot(self) -> contextlib.AbstractContextManager[Engine]:
        """Return a context that holds an engine for one plan, which sees the catalog as it is at one moment."""

    def definitions(self, tables: Collection[str], sized: Collection[str]) -> Definitions:
        """Return what the catalog says of tables and views of some identities, and of all that the views name.

        Args:
            tables: the identities.
            sized: those of public tables, whose number of rows counts, too.

        """

    def while_defined(self, planned: Definitions) -> Engine:
        """Return an engine that reads rows only while the definitions are as they were planned with.

        Its bounded statements raise an EngineError with a constant message if one of them has changed.
        """

    # rows of public tables

    def column_values(self, schema: TableSchema, column: str, key_type: str) -> pa.Array:
        """Return the distinct non-NULL values of a public table's column as ``key_type``, sorted."""

    def distinct_rows(self, relation: str, columns: Sequence[str], conditions: Sequence[str], most: int) -> pa.Table:
        """Return the first distinct rows of expressions of public rows, in the order of their values.

        Args:
            relation: the public rows.
            columns: the expressions. The columns are called key_0, key_1, …
            conditions: those that the rows pass.
            most: number of distinct rows after which no more are returned.

        """

    def copied(self, tables: Sequence[TableSchema]) -> list[pa.Table]:
        """Return the rows of public tables.

        Raises:
            SchemaError: there are too many to copy.

        """

    def most_matches(self, schema: TableSchema, columns: Sequence[str], version: str | None) -> int:
        """Return the most rows of a public table that agree on some columns, none of them NULL.

        An engine may remember the number for a version of the table.
        """

    def value_bounds(self, schema: TableSchema, column: str) -> tuple[float, float] | None:
        """Return the least and the largest finite number of a public table's column.

        Return None if there is none, or if numbers are too large, or too far from 0 for their width, to bound a sum.
        """

    # bounded statements

    @property
    def has_native(self) -> bool:
        """Return whether the native aggregate can be called, so that formulations in C run.

        ``run_empty`` finds out, before any charge. A transaction may not see functions that are loaded after its begin.
        """

    @property
    def has_own_cursors(self) -> bool:
        """Return whether a transaction may stay open while other statements read."""

    def run_empty(self, queries: Sequence[str], *, listed_keys: pa.Table | None) -> None:
        """Run bounded statements on empty copies of their tables, unless they are known to run.

        Raises:
            SchemaError: one fails; the message is constant.
            EngineError: the thread was told to stop.

        """

    def sizes(
        self, bounded: Bounded, salt: bytes, *, listed_keys: pa.Table | None, timeout_seconds: float | None
    ) -> Sizes:
        """Return approximate sizes of the rows of a frame.

        They decide how a statement is written, and not what it returns. An engine may remember them for a salt.

        Args:
            bounded: what is asked of the rows.
            salt: as for ``exact``.
            listed_keys: as for ``exact``.
            timeout_seconds: as for ``exact``.

        Raises:
            EngineError: as ``exact``.

        """

    def exact(
        self,
        statement: Statement,
        salt: bytes,
        choose: Callable[[], Formulation],
        *,
        listed_keys: pa.Table | None,
        timeout_seconds: float | None,
    ) -> ExactTable:
        """Return the exact rows of a statement.

        Args:
            statement: what is asked of the rows.
            salt: 128 secret bits of the frame.
            choose: returns the formulation for rows of which units may have several. It is not called if a constraint
                keeps the unit column unique in the transaction that reads the rows.
            listed_keys: the keys that its groups are of, if they are known before it.
            timeout_seconds: limit of time.

        Raises:
            EngineError: it failed or ran out of time; the message is constant.

        """

    @property
    def has_streams(self) -> bool:
        """Return whether rows of a statement can be read piece by piece in their order."""

    def stream(
        self, bounded: Bounded, salt: bytes, *, timeout_seconds: float | None
    ) -> Generator[ExactTable, None, None]:
        """Yield the exact rows of a statement piece by piece, in their order; one piece at least.

        Raises:
            EngineError: it failed or ran out of time; the message is constant.

        """

    def transaction(self, timeout_seconds: float | None = None) -> contextlib.AbstractContextManager[Transaction]:
        """Return a transaction in which several bounded statements read rows; it begins within a limit of time."""

    # for the curator alone

    def aggregate(self, sql: str, *, listed_keys: pa.Table | None, timeout_seconds: float | None) -> ExactTable:
        """Return the rows of a query without any bound.

        Raises:
            EngineError: it failed, ran out of time, or is none for this engine; the message is constant.

        """

    def marks(self, tables: Sequence[str]) -> dict[str, Mark]:
        """Return the marks of tables and views as they are now, by their canonical names."""

    def progress(self) -> float | None:
        """Return how much of the reading that began last is done, 0 to 1. Return None if it is not known."""
