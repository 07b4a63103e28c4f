"""The queries of TPC-H, private: python -m benchmarks.tpch [--scale 1] [--repeats 3] [--only 1 13].

Makes the data with tpchgen-cli (from PyPI) once, declares customers as the privacy unit, and asks each of the 22
queries at epsilon 1, delta 1e-6: answered, with the median relative error over the numbers that are shown and the time
beside the plain query's in the same run; or refused, with the reason. The table is that of docs/tpch.md.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb

import dpsql
from benchmarks.tpch_queries import QUERIES, Query

FOLDER = Path(__file__).parents[1] / "out" / "tpch"
TABLES = ("customer", "orders", "lineitem", "part", "supplier", "partsupp", "nation", "region")
KEYS = {"customer": "c_custkey", "orders": "o_orderkey", "supplier": "s_suppkey"}
EPSILON, DELTA = 1.0, 1e-6
CUSTOMERS = (("orders", "o_custkey", "customer.c_custkey"), ("lineitem", "l_orderkey", "orders.o_orderkey"))
SUPPLIERS = (("partsupp", "ps_suppkey", "supplier.s_suppkey"),)
DOMAINS = (
    ("lineitem", "l_quantity", 0, 50),
    ("lineitem", "l_extendedprice", 0, 105_000),
    ("lineitem", "l_discount", 0, 0.1),
    ("lineitem", "l_tax", 0, 0.08),
    ("orders", "o_totalprice", 0, 600_000),
    ("customer", "c_acctbal", -1_000, 10_000),
)


def data(scale: float) -> Path:
    """A DuckDB file with the eight tables, made once."""
    folder = FOLDER / f"sf{scale:g}"
    file = folder / "tpch.duckdb"
    if file.exists():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    print(f"making TPC-H data at scale factor {scale:g} …", file=sys.stderr)
    generator = Path(sys.executable).with_name("tpchgen-cli")
    subprocess.run([generator, "parquet", "-s", f"{scale:g}", f"--output-dir={folder}"], check=True)
    with duckdb.connect(str(file)) as connection:
        for table in TABLES:
            parquet = folder / f"{table}.parquet"
            connection.execute(f"CREATE TABLE {table} AS FROM '{parquet}'")
            for (column,) in connection.execute(f"SELECT column_name FROM (DESCRIBE {table})").fetchall():
                connection.execute(f"ALTER TABLE {table} ALTER {column} SET NOT NULL")
            if table in KEYS:
                connection.execute(f"ALTER TABLE {table} ADD PRIMARY KEY ({KEYS[table]})")
            parquet.unlink()
    return file


def policy(query: Query) -> list[str]:
    """What the curator declares, with bounds on one unit's groups and rows that suit the query."""
    bounds = f"max_groups_contributed := {query.max_groups}, max_rows_per_group := {query.max_rows}"
    column, children, public = {
        "customer": ("c_custkey", CUSTOMERS, ("part", "supplier", "partsupp", "nation", "region")),
        "supplier": ("s_suppkey", SUPPLIERS, ("part", "nation", "region")),
    }[query.unit]
    return [
        f"CALL dp_unit('{query.unit}', epsilon_budget := 1000, delta_budget := 0.5)",
        f"CALL dp_protect('{query.unit}', coverage := FALSE, "
        f"unit := '{query.unit}', privacy_unit_column := '{column}', {bounds})",
        *(
            f"CALL dp_link('{table}', '{key}', coverage := FALSE, parent := '{parent}', {bounds})"
            for table, key, parent in children
        ),
        *(f"CALL dp_public('{table}')" for table in public),
        *(
            f"CALL dp_domain('{table}', '{name}', bounds := [{low}, {high}])"
            for table, name, low, high in DOMAINS
            if query.unit == "customer"
        ),
    ]


def timed(action: Callable[[], list[tuple[Any, ...]]]) -> tuple[float, list[tuple[Any, ...]]]:
    """Wall time of one run, and the rows that it gives."""
    start = time.perf_counter()
    rows = action()
    return time.perf_counter() - start, rows


def plain(text: str) -> str:
    """The text without what only dpsql reads, and without what leaves rows of the answer out."""
    return re.sub(r"\s*LIMIT \d+$", "", re.sub(r",\s*contribution_bounds_per_\w+ => \([^)]*\)", "", text))


def plain_with_units(query: Query) -> str:
    """The plain query that counts customers too, as every private one does, and joins what it needs to find them."""
    return (
        plain(query.sql)
        .replace("SELECT ", "SELECT count(DISTINCT o_custkey), ", 1)
        .replace("FROM lineitem", f"FROM {query.joined}", 1)
    )


def relative_errors(query: Query, noisy: list[tuple[Any, ...]], exact: list[tuple[Any, ...]]) -> list[float]:
    """Relative errors of the numbers that are shown, each against the plain answer's row of the same keys."""
    truth = {row[: query.keys]: row[query.keys :] for row in exact}
    return [
        abs(float(value) - float(true)) / abs(float(true))
        for row in noisy
        for value, true in zip(row[query.keys :], truth.get(row[: query.keys], ()), strict=False)
        if value is not None and true
    ]


def _rows(ask: Callable[[], dpsql.Result | duckdb.DuckDBPyConnection]) -> list[tuple[Any, ...]]:
    return ask().fetchall()


def measured(query: Query, file: Path, repeats: int) -> list[str]:
    """The cells of a query's line: groups, median relative error, time beside the plain query; or why it is refused."""
    errors: list[float] = []
    groups: list[int] = []
    ratios: list[float] = []
    unit_ratios: list[float] = []
    with duckdb.connect(str(file), read_only=True, config={"threads": "2"}) as connection:
        for _ in range(repeats):
            session = dpsql.Session(connection, None)
            for declaration in policy(query):
                session.sql(declaration)
            asked = partial(session.sql, query.sql, epsilon=EPSILON, delta=DELTA)
            try:
                private, noisy = timed(partial(_rows, asked))
                is_free = asked().receipt is None
            except dpsql.DpsqlError as error:
                return ["refused", type(error).__name__, "", query.note]
            ordinary, exact = timed(partial(_rows, partial(connection.execute, plain(query.sql))))
            errors += relative_errors(query, noisy, exact)
            groups.append(len(noisy))
            ratios.append(private / ordinary)
            if query.joined:
                counting, _ = timed(partial(_rows, partial(connection.execute, plain_with_units(query))))
                unit_ratios.append(private / counting)
    if is_free:
        return [f"{len(noisy):g} of {len(exact)}", "exact, free", f"{statistics.median(ratios):.1f}", query.note]
    shown = f"{statistics.median(errors):.2%}" if errors else "nothing shown"
    ratio = f"{statistics.median(ratios):.1f}"
    if unit_ratios:
        ratio += f"; {statistics.median(unit_ratios):.1f} of the plain query that also counts customers"
    return [f"{statistics.median(groups):g} of {len(exact)}", shown, ratio, query.note]


def main() -> None:
    """Print the table, a line as soon as its query is done."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="scale factor (default 1: 6 million line items)")
    parser.add_argument("--repeats", type=int, default=3, help="fresh releases of each query (default 3)")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of queries (default all)")
    arguments = parser.parse_args()
    file = data(arguments.scale)
    print("| query | groups shown | median relative error | time, private / plain | other than in the standard |")
    print("| --- | --- | --- | --- | --- |")
    for query in QUERIES:
        if not arguments.only or query.number in arguments.only:
            cells = measured(query, file, arguments.repeats)
            print(f"| Q{query.number} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
