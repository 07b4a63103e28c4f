"""One transaction over parts: tables that each part makes for itself, and merges of what all parts hand on."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from dpsql.bound.aggregation import HELD_ROWS
from dpsql.bound.formulations import Formulation, Sizes
from dpsql.bound.kept_pairs import KEPT_PAIRS, LOST_PAIRS, KeptPairs
from dpsql.bound.pairs import PAIRS, Pairs
from dpsql.bound.partials import PartialRows, partial_table
from dpsql.bound.statement import Bounded, LeftOut, Statement
from dpsql.bound.unit_histograms import UnitCounts, unit_counts_sql
from dpsql.engine.connection import seconds_left
from dpsql.engine.parts.pool import Header, Pool, Task
from dpsql.engine.transaction import DuckDBTransaction, ExactTable
from dpsql.errors import EngineError
from dpsql.model.frame import Frame


@dataclass(frozen=True, slots=True)
class Made:
    """A table of each part.

    Attributes:
        name: of the table.
        sql: the SELECT that it is made of.
        reads: canonical names of the tables that the SELECT reads, or the name of a table that was made before.
        listed_keys: keys that the SELECT is about.
        is_kept: whether later readings find the table as it was made. Else it is made again for each.

    """

    name: str
    sql: str
    reads: tuple[str, ...]
    listed_keys: pa.Table | None
    is_kept: bool = True


@dataclass(frozen=True, slots=True)
class Reading:
    """Texts that are run on each part.

    Attributes:
        texts: the rows that are asked of each part. If a text names keys, rows of equal ones may be added up before the
            merge.
        reads: canonical names of the tables that they read, or the name of a table that was made before.
        listed_keys: keys that they are about.

    """

    texts: tuple[PartialRows, ...]
    reads: tuple[str, ...]
    listed_keys: pa.Table | None = None


class Carrier(Protocol):
    """Brings the texts of one transaction to all parts, and their rows back."""

    def read(self, made: Sequence[Made], reading: Reading, timeout_seconds: float | None) -> list[list[pa.Table]]:
        """Return, for each text, the rows that each part has, after tables are made that are not there yet.

        Raises:
            EngineError: a part could not be read, or the time ran out; the message is constant.

        """

    def end(self) -> None:
        """Drop the tables."""


class PoolCarrier:
    """Brings texts to the processes of a pool.

    Args:
        pool: processes that read parts.
        parts: number of parts.

    """

    def __init__(self, pool: Pool, parts: int) -> None:
        self._pool, self._parts = pool, parts
        self._name = secrets.token_hex(8)
        self._has_tables = False

    def read(self, made: Sequence[Made], reading: Reading, timeout_seconds: float | None) -> list[list[pa.Table]]:
        """Let each process run the texts on its parts."""
        self._has_tables = bool(made)
        listed: list[pa.Table] = []
        places = [_place(one.listed_keys, listed) for one in made]
        request: Header = {
            "ask": "run",
            "transaction": self._name if made else "",
            "made": [(one.name, one.sql) for one in made],
            "listed_of_made": places,
            "listed_of_texts": _place(reading.listed_keys, listed),
            "texts": [text.sql for text in reading.texts],
        }
        tasks = [Task(place, {**request, "part": place}, tuple(listed)) for place in range(self._parts)]
        replies = [tables for _, tables in self._pool.run(tasks, timeout_seconds)]
        return [[tables[i] for tables in replies] for i in range(len(reading.texts))]

    def end(self) -> None:
        """Let all processes drop the tables."""
        if self._has_tables:
            asked = {"ask": "end", "transaction": self._name}
            with contextlib.suppress(EngineError):
                self._pool.run([Task(place, {**asked, "part": place}) for place in range(self._parts)], None)


class PartsTransaction(DuckDBTransaction):
    """A transaction on the head, and the tables of one question in each part.

    A constraint of the head is one of all parts.

    Args:
        head: the transaction on the head.
        carrier: brings texts to the parts.

    """

    def __init__(self, head: DuckDBTransaction, carrier: Carrier) -> None:
        super().__init__(head._cursor, head._run_on)
        self._carrier = carrier
        self._made: list[Made] = []

    def make_pairs(self, pairs: Pairs, *, listed_keys: pa.Table | None, timeout_seconds: float | None) -> UnitCounts:
        """Make the table of pairs of each part; return the numbers of units in all parts by what they have in it."""
        self._made.append(Made(PAIRS, pairs.sql(), read_by(pairs.frame), listed_keys))
        counted = PartialRows(unit_counts_sql(pairs), ("measure", "place"), ("units",))
        (tables,) = self.read(Reading((counted,), (PAIRS,)), timeout_seconds)
        rows = pa.concat_tables(tables).to_pylist()
        return UnitCounts.of(pairs, [(row["measure"], row["place"], row["units"]) for row in rows])

    def make_kept_pairs(
        self,
        kept: KeptPairs,
        formulation: Formulation,
        pairs: Pairs | None,
        *,
        listed_keys: pa.Table | None,
        timeout_seconds: float | None,
    ) -> None:
        """Make the table of pairs after bounds of each part, and that of what they leave out.

        Most questions read the first once, and then only the second, which is far smaller.
        """
        reads = (PAIRS,) if pairs else read_by(kept.frame)
        self._made.append(Made(KEPT_PAIRS, kept.sql(formulation, pairs), reads, listed_keys, is_kept=False))
        self._made.append(Made(LOST_PAIRS, kept.lost_sql(), (KEPT_PAIRS,), None))
        self.read(Reading((), (KEPT_PAIRS,)), timeout_seconds)

    def make_rows(
        self, bounded: Bounded, salt: bytes, *, listed_keys: pa.Table | None, timeout_seconds: float | None
    ) -> Sizes:
        """Make the table of all rows of each part; return their approximate sizes."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._made.append(Made(HELD_ROWS, bounded.rows_sql(salt), read_by(bounded.frame), listed_keys))
        count = f"SELECT count(*) AS n FROM temp.main.{HELD_ROWS}"
        (counts,) = self.read(Reading((PartialRows(count, (), ("n",)),), (HELD_ROWS,)), seconds_left(deadline))
        rows = sum(row["n"] for row in pa.concat_tables(counts).to_pylist())
        sql = replace(bounded, held_rows=True).sizes_sql(salt, rows)
        return self.sizes(sql, (HELD_ROWS,), listed_keys, seconds_left(deadline))

    def sizes(
        self, sql: str, reads: tuple[str, ...], listed_keys: pa.Table | None, timeout_seconds: float | None
    ) -> Sizes:
        """Return the approximate sizes of all parts; keys may be in several, so the most of one part stand in.

        Args:
            sql: a SELECT of one row, the sizes of a part.
            reads: as of a reading.
            listed_keys: as of a reading.
            timeout_seconds: limit of time.

        """
        (of_parts,) = self.read(Reading((PartialRows(sql, (), ()),), reads, listed_keys), timeout_seconds)
        rows = [tuple(table.to_pylist()[0].values()) for table in of_parts]
        counted, units, keys, pairs = zip(*rows, strict=True)
        return Sizes(sum(counted), sum(units), max(keys), sum(pairs))

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
        """Return the exact rows of a statement: those of all parts, merged in the head."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        partial = statement.partial(salt, formulation, pairs)
        reading = Reading(partial.rows, _read_by_statement(statement, pairs), listed_keys)
        found = self.read(reading, seconds_left(deadline))
        offered = {partial_table(place): pa.concat_tables(tables) for place, tables in enumerate(found)}
        return self.aggregate(
            partial.merged, listed_keys=listed_keys, timeout_seconds=seconds_left(deadline), offered=offered
        )

    def read(self, reading: Reading, timeout_seconds: float | None) -> list[list[pa.Table]]:
        """Return, for each text, the rows that each part has, after the tables of the transaction are made."""
        return self._carrier.read(self._made, reading, timeout_seconds)


def read_by(frame: Frame) -> tuple[str, ...]:
    """Return the canonical names of the tables that the rows of a frame are of."""
    return tuple(table for table, _ in (frame.bounding.finer or frame).rows.table_versions)


def _read_by_statement(statement: Statement, pairs: Pairs | KeptPairs | None) -> tuple[str, ...]:
    """Return what the texts of a statement read: one table that was made, or the tables of the rows."""
    if isinstance(pairs, KeptPairs):
        return (LOST_PAIRS if isinstance(statement, LeftOut) else KEPT_PAIRS,)
    if pairs is not None:
        return (PAIRS,)
    is_held = isinstance(statement, Bounded) and statement.held_rows
    return (HELD_ROWS,) if is_held else read_by(statement.frame)


def _place(keys: pa.Table | None, listed: list[pa.Table]) -> int | None:
    """Return the place of a table in a list, to which it is added; None if there is no table."""
    if keys is None:
        return None
    listed.append(keys)
    return len(listed) - 1
