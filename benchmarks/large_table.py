"""A question on a table larger than the memory limit: python -m benchmarks.large_table [--rows N] [--memory 2GB].

A table of two columns lies in a DuckDB file. People by key are asked with nothing named, in a new state file, beside
the plain query. Each line says processor seconds, and the most bytes that DuckDB held in its temporary folder at one
moment, which is looked at twenty times a second. The limits are those of issue 37, for 50 million rows and 2 GB.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import duckdb

import dpsql
from benchmarks.make_zipf import write_zipf

ROWS_PER_UNIT = 20
KEYS = 100_000
SQL = "SELECT key, count(DISTINCT unit) AS people FROM zipf GROUP BY key"
UNIT = "CALL dp_unit('person', rho_budget := 10, delta_threshold := 0.5, delta_conversion := 1e-6)"
MOST_TIMES, MOST_SPILLED = 15.0, 8e9


class Spill:
    """Watches a folder: the most bytes that its files held at one moment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._done = threading.Event()
        self.most = 0

    def _held(self) -> int:
        held = 0
        for path in self._folder.rglob("*"):
            # a file may be gone by now
            with contextlib.suppress(OSError):
                held += path.stat().st_size
        return held

    def _watch(self) -> None:
        while not self._done.wait(0.05):
            self.most = max(self.most, self._held())

    def during(self, action: Callable[[], object]) -> tuple[float, int]:
        """Return the processor seconds of an action, and the most bytes."""
        self.most, watcher = 0, threading.Thread(target=self._watch)
        self._done.clear()
        watcher.start()
        began = time.process_time()
        try:
            action()
        finally:
            seconds = time.process_time() - began
            self._done.set()
            watcher.join()
        return seconds, self.most


def fill(database: Path, folder: Path, rows: int) -> None:
    """Write the table to a new DuckDB file."""
    parquet = folder / "zipf.parquet"
    write_zipf(parquet, rows=rows, units=rows // ROWS_PER_UNIT, keys=KEYS, exponent=1.05, seed=1)
    with contextlib.closing(duckdb.connect(str(database))) as connection:
        connection.execute("CREATE TABLE zipf AS SELECT unit, key FROM read_parquet(?)", [str(parquet)])
    parquet.unlink()


def main() -> None:
    """Fill the table, ask both, and print a line for each."""
    parser = argparse.ArgumentParser(description="A question on a table larger than the memory limit.")
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--memory", default="2GB", help="memory_limit of DuckDB (2GB)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="keeps the table there for the next run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        database = (arguments.folder or folder) / f"large_{arguments.rows}.duckdb"
        if not database.exists():
            fill(database, folder, arguments.rows)
        spilled = folder / "spilled"
        config = {"threads": str(arguments.threads), "memory_limit": arguments.memory, "temp_directory": str(spilled)}
        with contextlib.closing(duckdb.connect(str(database), config=config)) as connection:
            spill = Spill(spilled)
            print(f"{arguments.rows:,} rows, memory_limit = {arguments.memory}, threads = {arguments.threads}")
            plain, held = spill.during(lambda: connection.sql(SQL).to_arrow_table())
            print(f"plain    {plain:8.1f} s   {held / 1e9:5.2f} GB spilled", flush=True)
            with dpsql.Session(connection.cursor(), folder / "state.dpsql") as session:
                session.sql(
                    "CALL dp_unit('person', rho_budget := 10, delta_threshold := 0.5, delta_conversion := 1e-6)"
                )
                session.sql("CALL dp_protect('zipf', unit := 'person', privacy_unit_column := 'unit')")
                private, held = spill.during(lambda: session.sql(SQL, rho=0.1, delta=1e-6))
            print(f"private  {private:8.1f} s   {held / 1e9:5.2f} GB spilled   {private / plain:.1f} times plain")
            print(f"at most {MOST_TIMES:g} times: {private <= MOST_TIMES * plain}", end="; ")
            print(f"less than {MOST_SPILLED / 1e9:g} GB: {held < MOST_SPILLED}")


if __name__ == "__main__":
    main()
