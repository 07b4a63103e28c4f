"""What bounding and selection add to the noise, in numbers: the tables of docs/accuracy.md.

    python -m benchmarks.bounding_error

Bounding is exact (no noise is drawn): the bounded table of a plan beside the plain SQL answer, on the sample data.
Selection is the closed form of the mean of a normal count, given that it passed the threshold.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy.stats import norm

import dpsql
from dpsql.assets import asset
from dpsql.bound.aggregation import bounded_sql
from dpsql.cascade.reader import CURATOR, Reader
from dpsql.engine import DuckDBEngine, Sandbox
from dpsql.model.private_query import PrivateQuery
from dpsql.plan.environment.policy_view import environment
from dpsql.plan.planner import plan_query
from dpsql.sql.statements import SelectStatement, read_statement


def main() -> None:
    """Print both tables."""
    print("1. Bounding: share of the true total that is left after bounding, and of the largest groups\n")
    print(f"{'data and key':34} {'max_groups':>10} {'max_rows':>8} {'units':>8} {'rows':>8} {'top 10 rows':>12}")
    for name, table, unit, key in (
        ("flights per destination", asset("sample_data", "flights.parquet"), "tailnum", "dest"),
        ("visits per diagnosis", asset("sample_data", "clinic", "visits.parquet"), "patient_id", "diagnosis"),
    ):
        for max_groups, max_rows in ((4, 5), (8, 20), (16, 50), (32, 200), (64, 1000)):
            units, rows, top = _kept_shares(table, unit, key, max_groups, max_rows)
            print(f"{name:34} {max_groups:>10} {max_rows:>8} {units:>8.1%} {rows:>8.1%} {top:>12.1%}")
    print("\n2. Selection: a group of n units, threshold T, noise sigma\n")
    print(f"{'(n - T) / sigma':>16} {'shown':>8} {'mean error if shown / sigma':>30} {'95 % interval covers':>22}")
    for distance in (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0):
        shown = norm.sf(-distance)
        bias = norm.pdf(distance) / shown
        low, high = max(-1.959964, -distance), 1.959964
        covers = max(0.0, norm.cdf(high) - norm.cdf(low)) / shown
        print(f"{distance:>16.1f} {shown:>8.2%} {bias:>30.3f} {covers:>22.1%}")


def _kept_shares(path: Path, unit: str, key: str, max_groups: int, max_rows: int) -> tuple[float, float, float]:
    with dpsql.connect(":memory:", threads=2) as session:
        session.connection.execute(f"CREATE TABLE data AS FROM '{path}'")
        counted = session.connection.sql(
            f"SELECT {key} AS key_0, count(DISTINCT {unit}) AS units, count(*) AS rows FROM data "
            f"WHERE {unit} IS NOT NULL GROUP BY ALL"
        )
        plain = _by_key(counted.to_arrow_table(), "rows")
        engine, sandbox = DuckDBEngine(session.connection), Sandbox()
        session.sql(
            "CALL dp_protect('data', coverage := FALSE, "
            f"privacy_unit_column := '{unit}', max_groups_contributed := {max_groups}, "
            f"max_rows_per_group := {max_rows}, default_rho := 1, epsilon_budget := 3, delta_budget := 1e-6)"
        )
        query = _plan(session, f"SELECT {key}, count(*) FROM data GROUP BY ALL", engine, sandbox)
        statistic = query.first.statistics[1]
        exact = engine.aggregate(
            bounded_sql(query.first.frame, query.first.statistics, secrets.token_bytes(16)),
            listed_keys=None,
            timeout_seconds=None,
        ).reveal()
        sandbox.close()
        rows = exact.column("stat_1").to_numpy() * statistic.lattice
        rows = rows + statistic.centre * exact.column("units").to_numpy()
        bounded = _by_key(exact.append_column("rows", pa.array(rows)), "rows")
    largest = sorted(plain, key=lambda group: -plain[group][1])[:10]
    return (
        sum(u for u, _ in bounded.values()) / sum(u for u, _ in plain.values()),
        sum(r for _, r in bounded.values()) / sum(r for _, r in plain.values()),
        float(np.mean([bounded.get(group, (0, 0.0))[1] / plain[group][1] for group in largest])),
    )


def _plan(session: dpsql.Session, text: str, engine: DuckDBEngine, sandbox: Sandbox) -> PrivateQuery:
    statement = read_statement(text)
    assert isinstance(statement, SelectStatement)
    return plan_query(statement, environment(session._access.read().policy(), engine, sandbox, Reader(CURATOR)))


def _by_key(table: pa.Table, rows: str) -> dict[object, tuple[int, float]]:
    columns = table.select(["key_0", "units", rows]).to_pydict()
    return {key: (units, float(n)) for key, units, n in zip(*columns.values(), strict=True)}


if __name__ == "__main__":
    main()
