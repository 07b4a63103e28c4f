"""One transaction in which several statements of a question read rows, with temporary tables that end with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import pyarrow as pa

from dpsql.bound.aggregation import HELD_ROWS
from dpsql.bound.formulations import Formulation, Sizes
from dpsql.bound.kept_pairs import KEPT_PAIRS, KeptPairs
from dpsql.bound.pairs import PAIRS, Pairs
from dpsql.bound.statement import Bounded, Statement
from dpsql.bound.unit_histograms import UnitCounts, unit_counts_sql
from dpsql.engine.catalog import unique_by
from dpsql.engine.connection import Cursor

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ExactTable:
    """Exact values on their way to the noise: a wrapper whose text shows nothing."""

    _table: pa.Table

    def __repr__(self) -> str:
        return "ExactTable(…)"

    def reveal(self) -> pa.Table:
        """The table itself; called by the release step only."""
        return self._table


class RunOn(Protocol):
    """Runs a reading on a cursor, within a limit of time; whatever fails has one message."""

    def __call__(
        self, read: Callable[[Cursor], _T], listed_keys: pa.Table | None, timeout_seconds: float | None, opened: Cursor
    ) -> _T:
        """Return what was read."""


class DuckDBTransaction:
    """A transaction on a cursor of its own, which stays in here. The protocol of an engine describes its methods."""

    def __init__(self, cursor: Cursor, run_on: RunOn) -> None:
        self._cursor = cursor
        self._run_on = run_on

    def has_one_row(self, stored_unit: Sequence[str], timeout_seconds: float | None) -> bool:
        """Return whether a constraint keeps the column of the unit unique."""
        return bool(stored_unit) and self._run_on(
            lambda cursor: bool(unique_by(cursor, stored_unit)), None, timeout_seconds, self._cursor
        )

    def make_pairs(self, pairs: Pairs, *, listed_keys: pa.Table | None, timeout_seconds: float | None) -> UnitCounts:
        """Make the table of pairs; return the numbers of units by what they have in it."""

        def make(cursor: Cursor) -> UnitCounts:
            cursor.rows(f"CREATE TEMP TABLE {PAIRS} AS {pairs.sql()}")
            return UnitCounts.of(pairs, cursor.rows(unit_counts_sql(pairs)))

        return self._run_on(make, listed_keys, timeout_seconds, self._cursor)

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
        made = f"CREATE TEMP TABLE {KEPT_PAIRS} AS {kept.sql(formulation, pairs)}"
        self._run_on(lambda cursor: cursor.rows(made), listed_keys, timeout_seconds, self._cursor)

    def make_rows(
        self, bounded: Bounded, salt: bytes, *, listed_keys: pa.Table | None, timeout_seconds: float | None
    ) -> Sizes:
        """Make the table of all rows of a frame; return their approximate sizes."""

        def make(cursor: Cursor) -> Sizes:
            cursor.rows(f"CREATE TEMP TABLE {HELD_ROWS} AS {bounded.rows_sql(salt)}")
            ((rows,),) = cursor.rows(f"SELECT count(*) FROM temp.main.{HELD_ROWS}")
            (sizes,) = cursor.rows(replace(bounded, held_rows=True).sizes_sql(salt, rows))
            return Sizes(*sizes)

        return self._run_on(make, listed_keys, timeout_seconds, self._cursor)

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
        sql = statement.sql(salt, formulation, pairs)
        return self.aggregate(sql, listed_keys=listed_keys, timeout_seconds=timeout_seconds)

    def aggregate(
        self,
        sql: str,
        *,
        listed_keys: pa.Table | None,
        timeout_seconds: float | None,
        offered: Mapping[str, pa.Table] | None = None,
    ) -> ExactTable:
        """Return the exact rows of a text, which may read tables that are offered by their names."""

        def read(cursor: Cursor) -> pa.Table:
            for name, table in (offered or {}).items():
                cursor.offer(name, table)
            return cursor.table(sql)

        return ExactTable(self._run_on(read, listed_keys, timeout_seconds, self._cursor))
