"""Ways to bound contributions, side by side: python benchmarks/bounding.py [--data FILE] [--memory-limit 2GB].

Distinct units of at most 8 keys each (Q1), and rows and clipped sums with them (Q2): DuckDB without bounds, the
product's formulations, and what lost against them. Each runs in a process of its own, so that the peak of memory is its
own; all of a query must return the same table. Seconds are processor seconds of all threads.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import duckdb

import dpsql
from dpsql.assets import native_library
from dpsql.bound.aggregation import bounded_sql
from dpsql.bound.formulations import Formulation
from dpsql.cascade.reader import CURATOR
from dpsql.engine.connection import LocalConnection
from dpsql.sql.statements import SelectStatement, read_statement

SALT = bytes(range(16))
FORMULATIONS: tuple[Formulation, ...] = ("groups_first", "rows_first", "native")
QUERIES = {
    "Q1": "SELECT key, count(DISTINCT unit) AS units FROM zipf GROUP BY key",
    "Q2": "SELECT key, count(DISTINCT unit) AS units, count(*) AS n, sum(value) AS total FROM zipf GROUP BY key",
}
POLICY = (
    "CALL dp_unit('person', rho_budget := 1000, delta_threshold := 0.5, delta_conversion := 1e-6)",
    "CALL dp_protect('zipf', coverage := FALSE, unit := 'person', privacy_unit_column := 'unit', "
    "max_groups_contributed := 8, max_rows_per_group := 5)",
    "CALL dp_domain('zipf', 'value', bounds := [0, 100])",
)
_PRIORITY = f"hash(hash(unit, key, '{SALT.hex()}'))"
_CODES = (
    "codes AS MATERIALIZED (SELECT key, CAST(row_number() OVER (ORDER BY key) AS INTEGER) AS code "
    "FROM (SELECT DISTINCT key FROM zipf))"
)
_CODED = f"coded AS (SELECT unit, code, {_PRIORITY} AS priority FROM zipf JOIN codes USING (key))"
_PACKED = "(CAST(unit AS BIGINT) << 32) | code"
_DECODED = (
    "SELECT key AS key_0, units FROM (SELECT code, count(*) AS units FROM kept GROUP BY code) JOIN codes USING (code)"
)
LOST = {
    "codes, rows first": f"WITH {_CODES}, {_CODED}, kept_rows AS (SELECT unit, code FROM coded QUALIFY "
    "dense_rank() OVER (PARTITION BY unit ORDER BY priority, code) <= 8), "
    f"kept AS (SELECT DISTINCT unit, code FROM kept_rows) {_DECODED}",
    "codes packed with units, priority along": f"WITH {_CODES}, {_CODED}, pairs AS (SELECT {_PACKED} AS pair, "
    "any_value(priority) AS priority FROM coded GROUP BY pair), kept AS (SELECT pair & 4294967295 AS code FROM pairs "
    f"QUALIFY row_number() OVER (PARTITION BY pair >> 32 ORDER BY priority, pair) <= 8) {_DECODED}",
    "codes packed with units, priority after": f"WITH {_CODES}, pairs AS (SELECT DISTINCT {_PACKED} AS pair FROM zipf "
    "JOIN codes USING (key)), apart AS (SELECT pair >> 32 AS unit, pair & 4294967295 AS code FROM pairs), "
    f"prioritised AS (SELECT CAST(unit AS INTEGER) AS unit, code, {_PRIORITY} AS priority FROM (SELECT CAST(unit AS "
    "INTEGER) AS unit, code, key FROM apart JOIN codes USING (code))), kept AS (SELECT code FROM prioritised QUALIFY "
    f"row_number() OVER (PARTITION BY unit ORDER BY priority, code) <= 8) {_DECODED}",
    "the least priorities by min(h, 8), joined": "WITH pairs AS MATERIALIZED (SELECT unit, key, "
    f"{_PRIORITY} AS priority FROM zipf GROUP BY unit, key), least AS (SELECT unit, list_max(min(priority, 8)) AS last "
    "FROM pairs GROUP BY unit) SELECT key AS key_0, count(*) AS units FROM pairs JOIN least USING (unit) "
    "WHERE priority <= last GROUP BY key",
    "a window that DuckDB turns into arg_min": "WITH pairs AS (SELECT unit, key FROM zipf GROUP BY unit, key), "
    "kept AS (SELECT key FROM pairs QUALIFY row_number() OVER (PARTITION BY unit "
    f"ORDER BY {_PRIORITY}) <= 8) SELECT key AS key_0, count(*) AS units FROM kept GROUP BY key",
}


@dataclass(frozen=True)
class Run:
    """What one way took: seconds of processor time, peak memory in MB, and a digest of its table."""

    seconds: float
    megabytes: float
    digest: str


def planned(data: Path) -> dict[str, dict[str, str]]:
    """Per query the SQL of every way."""
    ways: dict[str, dict[str, str]] = {}
    with dpsql.connect() as session:
        session.connection.execute("CREATE TABLE zipf AS FROM read_parquet(?) LIMIT 0", [str(data)])
        for declaration in POLICY:
            session.sql(declaration)
        for name, text in QUERIES.items():
            statement = read_statement(text)
            if not isinstance(statement, SelectStatement):
                raise TypeError(text)
            query = session._runner.plan(statement, {"rho": 0.1, "delta": 1e-6}, CURATOR)[0]
            ways[name] = {"plain": text} | {
                way: bounded_sql(query.first.frame, query.first.statistics, SALT, formulation=way).replace(
                    '"memory".', ""
                )
                for way in FORMULATIONS
                if way != "native" or native_library() is not None
            }
    ways["Q1"] |= LOST
    return ways


def run(path: Path, sql: str, threads: int, memory_limit: str) -> Run:
    """One way in this process."""
    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": threads,
        "memory_limit": memory_limit,
        "allow_unsigned_extensions": True,
    }
    with duckdb.connect(path, read_only=True, config=config) as connection:
        connection.execute(f"SET temp_directory = '{path.parent}'; SET enable_progress_bar = false")
        LocalConnection(connection, native_library()).load_native()
        began = time.process_time()
        table = connection.sql(sql).to_arrow_table()
        seconds = time.process_time() - began
        digest = hashlib.sha256(repr(table.sort_by("key_0").to_pylist()).encode()).hexdigest() if "key_0" in sql else ""
    status = Path("/proc/self/status")
    peak = float("nan")
    if status.exists():
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
        peak = int(line.split()[1]) / 1024
    return Run(seconds, peak, digest)


def _measured(path: Path, sql: str, threads: int, memory_limit: str) -> Run | None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        try:
            return pool.apply(run, (path, sql, threads, memory_limit))
        except duckdb.OutOfMemoryException:
            return None


def main() -> None:
    """Run every way in turn, and print medians and ratios."""
    parser = argparse.ArgumentParser(description="Ways to bound contributions.")
    parser.add_argument("--data", type=Path, default=Path("out/zipf.parquet"), help="made by make_zipf.py")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory-limit", default="16GB")
    arguments = parser.parse_args()
    if not arguments.data.is_file():
        parser.error(f"{arguments.data} is missing; make it with: python benchmarks/make_zipf.py")
    with tempfile.TemporaryDirectory(dir=arguments.data.parent) as folder:
        path = Path(folder, "zipf.duckdb")
        with duckdb.connect(path) as connection:
            connection.execute("CREATE TABLE zipf AS FROM read_parquet(?)", [str(arguments.data)])
        for name, ways in planned(arguments.data).items():
            found: dict[str, list[Run]] = {way: [] for way in ways}
            for _ in range(arguments.repeats):
                for way, sql in ways.items():
                    measured = _measured(path, sql, arguments.threads, arguments.memory_limit)
                    found[way] += [] if measured is None else [measured]
            plain = statistics.median(each.seconds for each in found["plain"])
            for way, runs in found.items():
                if not runs:
                    print(f"{name} {way:<42} out of memory")
                    continue
                seconds = statistics.median(each.seconds for each in runs)
                megabytes = max(each.megabytes for each in runs)
                print(f"{name} {way:<42} {seconds:>6.2f} s {seconds / plain:>6.2f} x {megabytes:>7.0f} MB", flush=True)
            digests = {each.digest for runs in found.values() for each in runs} - {""}
            print(f"{name} every way has one result: {len(digests) == 1}")


if __name__ == "__main__":
    main()
