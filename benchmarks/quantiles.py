"""Rank errors of quantiles by how wide their bounds are, for values from 0 to 100.

    python -m benchmarks.quantiles [--releases 20] [--people 10000] [--rho 0.05]

Ten groups of so many people with one row each. Bounds [1000, 1128] are of the same values plus 1000: far from 0, cells
are 64 equal parts. What is printed is the root mean square, over groups and releases, of the share of rows below the
answer less the share that was asked for, in per cent.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import dpsql

Floats = npt.NDArray[np.float64]
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
BOUNDS = {
    "[1000, 1128]": (1000.0, 1128.0),
    "[0, 128]": (0.0, 128.0),
    "[0, 10**6]": (0.0, 1e6),
    "[-10**6, 10**6]": (-1e6, 1e6),
}
LAWS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "uniform": lambda generator, number: 100.0 * generator.random(number),
    "exponential": lambda generator, number: np.minimum(generator.exponential(12.0, number), 100.0),
    "normal": lambda generator, number: np.clip(generator.normal(50.0, 12.0, number), 0.0, 100.0),
}
_GROUPS = 10


def errors(law: str, bounds: tuple[float, float], people: int, releases: int, rho: float) -> float:
    """Root mean square of rank errors."""
    generator, found = np.random.default_rng(1), []
    values = LAWS[law](generator, people * _GROUPS)
    shift = bounds[0] if bounds[0] > 0.0 else 0.0
    table = pa.table({"u": np.arange(len(values)), "k": np.arange(len(values)) % _GROUPS, "x": values + shift})
    with dpsql.connect(threads=2) as session:
        session.connection.register("made", table)
        session.connection.execute("CREATE TABLE data AS FROM made")
        session.sql(
            "CALL dp_protect('data', privacy_unit_column := 'u', max_groups_contributed := 1, max_rows_per_group := 1, "
            "rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6, coverage := FALSE)"
        )
        calls = ", ".join(
            f"quantile_cont(x, {share}, contribution_bounds_per_row => ({bounds[0]}, {bounds[1]}))" for share in SHARES
        )
        for _ in range(releases):
            answer = session.sql(f"SELECT k, {calls} FROM data GROUP BY k", rho=rho, delta=1e-6, refresh=True)
            for group, *quantiles in answer.fetchall():
                own = np.sort(values[group::_GROUPS] + shift)
                ranks = np.searchsorted(own, quantiles) / people
                found += (ranks - SHARES).tolist()
    return float(np.sqrt(np.mean(np.square(found))))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Rank errors of quantiles by the width of their bounds.")
    parser.add_argument("--releases", type=int, default=20)
    parser.add_argument("--people", type=int, default=10_000)
    parser.add_argument("--rho", type=float, default=0.05)
    asked = parser.parse_args()
    print(f"{'':12}" + "".join(f"{name:>18}" for name in BOUNDS))
    for law in LAWS:
        row = [errors(law, bounds, asked.people, asked.releases, asked.rho) for bounds in BOUNDS.values()]
        print(f"{law:12}" + "".join(f"{100.0 * one:17.4f}%" for one in row), flush=True)


if __name__ == "__main__":
    main()
