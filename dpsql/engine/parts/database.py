"""An engine over a folder of parts: names and public rows in the head, rows of units in processes that read parts.

A statement is run on each part, as `bound.partials` writes it, and its rows are merged in the head's DuckDB. Parts hold
whole units, so the merge has the result of the statement on one table with all rows.

Before a charge, every part is compared with the manifest, and the DuckDB of every process with this one: their hashes
choose the groups that units keep. A part is compared again when it is read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from dpsql.bound.formulations import Sizes
from dpsql.bound.statement import Bounded
from dpsql.engine.catalog import Mark
from dpsql.engine.connection import Connection
from dpsql.engine.database import MOST_SIZES, DuckDBEngine
from dpsql.engine.parts.manifest import DEFINITIONS, HEAD, PUBLIC_ROWS, Split, file_digest, read_manifest
from dpsql.engine.parts.pool import CHECK_SECONDS, Pool, Task, changed
from dpsql.engine.parts.process import PROBE
from dpsql.engine.parts.remote_rows import RemoteRowsEngine
from dpsql.engine.parts.transaction import PoolCarrier, read_by
from dpsql.errors import EngineError, PolicyError
from dpsql.operations.dialect import quote, text_literal

Require = Callable[[Split], None]
"""Raises an error if the policy and a split do not agree on the units of tables."""


class PartsEngine(RemoteRowsEngine):
    """The protocol of an engine over a folder of parts.

    Args:
        connection: the head.
        folder: the folder.
        split: its manifest.
        pool: processes that read its parts.
        require: compares the policy with the split.

    """

    def __init__(self, connection: Connection, folder: Path, split: Split, pool: Pool, require: Require) -> None:
        super().__init__(connection)
        self._folder, self._split, self._pool, self._require = folder, split, pool, require
        self._files: list[tuple[int, int, int]] = []

    def close(self) -> None:
        """End the processes."""
        self._pool.close()

    def run_empty(self, queries: Sequence[str], *, listed_keys: pa.Table | None) -> None:
        """Run queries on empty tables, once head and parts are those of the split.

        Raises:
            SchemaError: a query fails.
            PolicyError: the head has other tables than the split, or rows of units.
            EngineError: a part is another file, or a process has another DuckDB; nothing was charged.

        """
        self._require_head()
        self._require_parts()
        super().run_empty(queries, listed_keys=listed_keys)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[DuckDBEngine]:
        """Yield an engine for one plan, if the policy has the units of the split.

        Raises:
            PolicyError: it has others, or the folder has another split by now.

        """
        if read_manifest(self._folder).identity != self._split.identity:
            raise PolicyError(
                "the folder of parts was split again after it was opened: open it again (a server: start it again)"
            )
        self._require(self._split)
        with super().snapshot() as planning:
            yield planning

    def _require_head(self) -> None:
        name, *_ = self._connection.main_database()
        if self._look_up(DEFINITIONS, [name, name]) != [(self._split.definitions,)]:
            raise PolicyError(
                f"{HEAD} has other tables or views than the parts beside it: drop what was added to it, or split the "
                "tables again"
            )
        firsts = [
            f"(SELECT {text_literal(one.table)} FROM {quote(name)}.{one.table} LIMIT 1)"
            for one in self._split.tables
            if one.unit_column
        ]
        if filled := self._look_up(" UNION ALL ".join(firsts)):
            raise PolicyError(
                f"the table {filled[0][0]} of {HEAD} has rows, and no question reads them: delete them there, change "
                "the source, and split it again"
            )
        if duckdb.__version__ == self._split.duckdb_version:
            self._require_public_rows(name)

    def _require_public_rows(self, name: str) -> None:
        for one in self._split.tables:
            if one.unit_column:
                continue
            if self._look_up(PUBLIC_ROWS.format(f"{quote(name)}.{one.table}")) != [(one.public_rows,)]:
                raise PolicyError(
                    f"the public table {one.table} of {HEAD} has other rows than the parts: change the source, and "
                    "split it again"
                )

    def _require_parts(self) -> None:
        """Compare files that changed on disk since the last comparison, and the processes at the first one."""
        _ = self.has_native
        found = []
        for place, part in enumerate(self._split.parts):
            path = self._folder / part.name
            if not path.is_file():
                raise changed(place, charged=False)
            status = path.stat()
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        if found == self._files:
            return
        for place, part in enumerate(self._split.parts):
            if file_digest(self._folder / part.name) != part.digest:
                raise changed(place, charged=False)
        checks = [Task(place, {"ask": "check", "part": place}) for place in range(len(self._split.parts))]
        self._pool.run(checks, CHECK_SECONDS, charged=False)
        self._files[:] = found

    def _load_native(self) -> bool:
        """Load the library here; return whether all processes have it, once their DuckDB was compared with this one."""
        has_native = super()._load_native()
        (own,) = self._look_up(PROBE)
        facts = self._pool.facts()
        if any(one["probe"] != list(own) for one in facts):
            raise EngineError(
                "the processes that read parts have another version of DuckDB than this one",
                withheld=False,
                charged=False,
            )
        return has_native and all(one["has_native"] for one in facts)

    def marks(self, tables: Sequence[str]) -> dict[str, Mark]:
        """Return the marks of tables: of those that are split the name of the split, which a new split changes."""
        split = [one.table for one in self._split.tables if one.unit_column and one.table in tables]
        others = super().marks([table for table in tables if table not in split])
        return {**others, **{table: {"split": self._split.identity} for table in split}}

    def sizes(
        self, bounded: Bounded, salt: bytes, *, listed_keys: pa.Table | None, timeout_seconds: float | None
    ) -> Sizes:
        """Return approximate sizes of the rows of all parts, unless they are remembered."""
        if known := self._sizes.get(salt):
            return known
        names = {table for table, _ in bounded.frame.rows.table_versions}
        most = max((one.most_rows for one in self._split.tables if one.table in names), default=0)
        sql = bounded.sizes_sql(salt, most * len(self._split.parts))
        with self.transaction(timeout_seconds) as transaction:
            sizes = transaction.sizes(sql, read_by(bounded.frame), listed_keys, timeout_seconds)
        if len(self._sizes) >= MOST_SIZES:
            self._sizes.clear()
        self._sizes[salt] = sizes
        return sizes

    def _carrier(self) -> PoolCarrier:
        return PoolCarrier(self._pool, len(self._split.parts))
