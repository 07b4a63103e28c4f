"""What a query answers that names nothing but epsilon and delta, of a table of which nothing but the unit is declared.

    python -m benchmarks.defaults [--releases 20] [--epsilon 1] [--delta 1e-6]

The rows are those of `contribution_norm`. Stated are the groups that are shown, the root mean squared error over them,
what bounds leave out included, that over the 18 largest groups, and the median time, of fresh releases on which AUTO's
histograms, coverage and keys are drawn anew. Noise differs from run to run.
"""

from __future__ import annotations

import argparse
import statistics
import time

import pyarrow as pa

import dpsql
from benchmarks.contribution_norm import errors, made_rows

QUERIES = {
    "people": ("count(DISTINCT person)",),
    "rows": ("count(*)",),
    "sums": ("sum(amount)",),
    "rows and sums": ("count(*)", "sum(amount)"),
}


def released(rows: pa.Table, select: str, epsilon: float, delta: float) -> tuple[pa.Table, float]:
    """A first answer, and how long it took."""
    with dpsql.connect(threads=2, allow_unsigned_extensions=True) as session:
        session.connection.register("made", rows)
        session.connection.execute("CREATE TABLE data AS FROM made")
        session.sql(
            "CALL dp_protect('data', privacy_unit_column := 'person', rho_budget := 1, delta_threshold := 1e-5, "
            "delta_conversion := 1e-6)"
        )
        began = time.perf_counter()
        shown = session.sql(f"SELECT key, {select} FROM data GROUP BY key", epsilon=epsilon, delta=delta).arrow()
        return shown, time.perf_counter() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Errors of queries that name nothing but epsilon and delta.")
    parser.add_argument("--releases", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    asked = parser.parse_args()
    rows = made_rows()
    print(f"epsilon = {asked.epsilon:g}, delta = {asked.delta:g}, {len(rows):,} rows; means of {asked.releases}")
    print(f"{'':32} {'groups':>6} {'RMSE':>8} {'of 18':>8} {'seconds':>8}")
    with dpsql.connect() as plain:
        plain.connection.register("data", rows)
        for name, selects in QUERIES.items():
            select = ", ".join(selects)
            exact = plain.connection.sql(f"SELECT key, {select} FROM data GROUP BY key").fetchall()
            found = [released(rows, select, asked.epsilon, asked.delta) for _ in range(asked.releases)]
            seconds = statistics.median(one for _, one in found)
            for column, each in enumerate(selects, start=1):
                true = {row[0]: row[column] for row in exact}
                numbers = (zip(shown[0].to_pylist(), shown[column].to_pylist(), strict=True) for shown, _ in found)
                told = zip(*(errors(dict(one), true) for one in numbers), strict=True)
                groups, mean, of_largest = map(statistics.fmean, told)
                label = name if len(selects) == 1 else f"{name}: {each}"
                print(f"{label:32} {groups:>6.0f} {mean:>8.1f} {of_largest:>8.1f} {seconds:>8.2f}")


if __name__ == "__main__":
    main()
