"""Errors of row counts and sums by how a person is bounded: groups and rows, weights, or the norm of all they add.

    python -m benchmarks.contribution_norm [--releases 20] [--epsilon 1] [--delta 1e-6]

The rows are those of `key_selection`, with an amount of 100 times Beta(2, 5) each. Stated are the groups that are
shown, the root mean squared error over them, bounding included, that over the 18 largest, and the time.
Noise differs from run to run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import pyarrow as pa

import dpsql
from benchmarks.key_selection import MOST_HOMES, home_rows

COUNT, SUM = "count(*)", "sum(amount, contribution_bounds_per_row => (0, 100))"
BY_NORM = "count(*, contribution_norm => {})"
SUM_BY_NORM = "sum(amount, contribution_bounds_per_row => (0, 100), contribution_norm => {})"
FIRST = {"mechanism": "KEYS_FIRST", "max_groups_contributed": 16}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "rows, 8 groups of 5": (COUNT, {"max_groups_contributed": 8}),
    "rows, weights, 16 groups of 5": (COUNT, {"max_groups_contributed": 16, "bounding": "L2"}),
    "rows, norm of 14": (BY_NORM.format(14), {"max_groups_contributed": 8, "bounding": "NORM"}),
    "rows, keys first, norm of 12": (BY_NORM.format(12), FIRST | {"bounding": "NORM"}),
    "rows, keys first, norm of 14": (BY_NORM.format(14), FIRST | {"bounding": "NORM"}),
    "sums, 8 groups of 5": (SUM, {"max_groups_contributed": 8}),
    "sums, keys first, norm of 450": (SUM_BY_NORM.format(450), FIRST | {"bounding": "NORM"}),
    "both, keys first, rows": (f"{BY_NORM.format(14)}, {SUM_BY_NORM.format(450)}", FIRST | {"bounding": "NORM"}),
}


def made_rows() -> pa.Table:
    """Rows of people, keys and amounts."""
    rows = home_rows(most_homes=MOST_HOMES, exponent=1.1, seed=1)
    amounts = 100.0 * np.random.default_rng(4).beta(2.0, 5.0, len(rows))
    return rows.append_column("amount", pa.array(amounts))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Errors of row counts and sums by how a person is bounded.")
    parser.add_argument("--releases", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    asked = parser.parse_args()
    rows = made_rows()
    print(
        f"epsilon = {asked.epsilon:g}, delta = {asked.delta:g}, {len(rows):,} rows; means of {asked.releases} releases"
    )
    print(f"{'':32} {'groups':>6} {'RMSE':>8} {'of 18':>8} {'seconds':>8}")
    with dpsql.connect(threads=2, allow_unsigned_extensions=True) as session:
        session.connection.register("made", rows)
        session.connection.execute("CREATE TABLE data AS FROM made")
        session.sql(
            "CALL dp_protect('data', coverage := FALSE, "
            "privacy_unit_column := 'person', max_rows_per_group := 5, rho_budget := 1e6, "
            "delta_threshold := 0.5, delta_conversion := 1e-6)"
        )
        began = time.perf_counter()
        exact = session.connection.sql("SELECT key, count(*), sum(amount) FROM data GROUP BY key").fetchall()
        plain = time.perf_counter() - began
        for name, (select, options) in WAYS.items():
            text = f"SELECT key, {select} FROM data GROUP BY key"
            found, seconds = [], []
            for _ in range(asked.releases):
                began = time.perf_counter()
                answer = session.sql(text, epsilon=asked.epsilon, delta=asked.delta, refresh=True, **options)
                seconds.append(time.perf_counter() - began)
                true = {row[0]: row[2 if name.startswith("sums") else 1] for row in exact}
                found.append(errors({row[0]: row[1] for row in answer.fetchall()}, true))
            groups, error, largest = (statistics.mean(one) for one in zip(*found, strict=True))
            print(f"{name:32} {groups:>6.0f} {error:>8.1f} {largest:>8.1f} {statistics.median(seconds):>8.2f}")
    print(f"{'DuckDB, GROUP BY':32} {'':>6} {'':>8} {'':>8} {plain:>8.2f}")


def errors(shown: dict[int, float], exact: dict[int, float]) -> tuple[float, float, float]:
    """Groups shown, root mean squared error of their numbers, and of those of the 18 largest of all."""
    largest = sorted(exact, key=lambda key: -exact[key])[:18]
    squares = [(number - exact[key]) ** 2 for key, number in shown.items()]
    of_largest = [(shown.get(key, 0) - exact[key]) ** 2 for key in largest]
    return len(shown), float(np.sqrt(np.mean(squares))), float(np.sqrt(np.mean(of_largest)))


if __name__ == "__main__":
    main()
