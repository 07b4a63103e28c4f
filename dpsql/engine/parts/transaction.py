"""One transaction over parts: tables that each part makes for itself, and merges of what all parts hand on."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from dpsql.bound.aggregation import HELD_ROWS
from dpsql.bound.formulations import Formulation, Sizes
from dpsql.bound.kept_pairs import KEPT_PAIRS, KeptPairs
from dpsql.bound.pairs import PAIRS, Pairs
from dpsql.bound.partials import partial_table
from dpsql.bound.statement import Bounded, Statement
from dpsql.engine.connection import seconds_left
from dpsql.engine.parts.pool import Pool, Task
from dpsql.engine.transaction import DuckDBTransaction, ExactTable
from dpsql.errors import EngineError


@dataclass(frozen=True, slots=True)
class _Made:
    """A table of each part.

    Attributes:
        name: of the table.
        sql: the SELECT that it is made of.
        listed_keys: keys that the SELECT is about.

    """

    name: str
    sql: str
    listed_keys: pa.Table | None


def added_sizes(of_parts: Sequence[pa.Table]) -> Sizes:
    """Return the approximate sizes of all parts; keys may be in several of them, so the most of one part stand in."""
    rows = [tuple(table.to_pylist()[0].values()) for table in of_parts]
    counted, units, keys, pairs = zip(*rows, strict=True)
    return Sizes(sum(counted), sum(units), max(keys), sum(pairs))


class PartsTransaction(DuckDBTransaction):
    """A transaction on the head, and the tables of one question in each part.

    A constraint of the head is one of all parts.

    Args:
        head: the transaction on the head.
        pool: processes that read parts.
        parts: number of parts.

    """

    def __init__(self, head: DuckDBTransaction, pool: Pool, parts: int) -> None:
        super().__init__(head._cursor, head._run_on)
        self._pool, self._parts = pool, parts
        self._name = secrets.token_hex(8)
        self._made: list[_Made] = []

    def end(self) -> None:
        """Let all processes drop the tables."""
        if self._made:
            asked = {"ask": "end", "transaction": self._name}
            with contextlib.suppress(EngineError):
                self._pool.run([Task(place, {**asked, "part": place}) for place in range(self._parts)], None)

    def make_pairs(
        self, pairs: Pairs, *, listed_keys: pa.Table | None, timeout_seconds: float | None
    ) -> list[tuple[int, int]]:
        """Make the table of pairs of each part; return each number of groups with the number of units in all parts."""
        self._made.append(_Made(PAIRS, pairs.sql(), listed_keys))
        groups = f"SELECT count(*) AS n FROM temp.main.{PAIRS} GROUP BY unit"
        (tables,) = self.read([f"SELECT n, count(*) AS units FROM ({groups}) GROUP BY n"], None, timeout_seconds)
        found: dict[int, int] = {}
        for row in pa.concat_tables(tables).to_pylist():
            found[row["n"]] = found.get(row["n"], 0) + row["units"]
        return list(found.items())

    def make_kept_pairs(
        self,
        kept: KeptPairs,
        formulation: Formulation,
        pairs: Pairs | None,
        *,
        listed_keys: pa.Table | None,
        timeout_seconds: float | None,
    ) -> None:
        """Make the table of pairs after bounds of each part."""
        self._made.append(_Made(KEPT_PAIRS, kept.sql(formulation, pairs), listed_keys))
        self.read([], None, timeout_seconds)

    def make_rows(
        self, bounded: Bounded, salt: bytes, *, listed_keys: pa.Table | None, timeout_seconds: float | None
    ) -> Sizes:
        """Make the table of all rows of each part; return their approximate sizes."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._made.append(_Made(HELD_ROWS, bounded.rows_sql(salt), listed_keys))
        count = f"SELECT count(*) AS n FROM temp.main.{HELD_ROWS}"
        (counts,) = self.read([count], None, seconds_left(deadline))
        rows = sum(row["n"] for row in pa.concat_tables(counts).to_pylist())
        sql = replace(bounded, held_rows=True).sizes_sql(salt, rows)
        (sizes,) = self.read([sql], listed_keys, seconds_left(deadline))
        return added_sizes(sizes)

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
        found = self.read([rows.sql for rows in partial.rows], listed_keys, seconds_left(deadline))
        offered = {partial_table(place): pa.concat_tables(tables) for place, tables in enumerate(found)}
        return self.aggregate(
            partial.merged, listed_keys=listed_keys, timeout_seconds=seconds_left(deadline), offered=offered
        )

    def read(
        self, texts: Sequence[str], listed_keys: pa.Table | None, timeout_seconds: float | None
    ) -> list[list[pa.Table]]:
        """Return, for each text, the rows that each part has, after the tables of the transaction are made."""
        listed: list[pa.Table] = []
        places = [_place(one.listed_keys, listed) for one in self._made]
        request: Mapping[str, object] = {
            "ask": "run",
            "transaction": self._name if self._made else "",
            "made": [(one.name, one.sql) for one in self._made],
            "listed_of_made": places,
            "listed_of_texts": _place(listed_keys, listed),
            "texts": list(texts),
        }
        tasks = [Task(place, {**request, "part": place}, tuple(listed)) for place in range(self._parts)]
        replies = [tables for _, tables in self._pool.run(tasks, timeout_seconds)]
        return [[tables[i] for tables in replies] for i in range(len(texts))]


def _place(keys: pa.Table | None, listed: list[pa.Table]) -> int | None:
    """Return the place of a table in a list, to which it is added; None if there is no table."""
    if keys is None:
        return None
    listed.append(keys)
    return len(listed) - 1
