"""Groups shown against their error, by how units in many groups are bounded: python -m benchmarks.zipf_frontier.

Distinct units per key at epsilon = 1, delta = 1e-6, over a Zipf table of 1 million rows and 50,000 units, which is made
here: a unit draws 1 + Poisson(7) keys from 10,000 of frequency rank**-1.15 (8 on average, before equal ones merge), and
every row belongs to one of these. Error is the root mean square over the shown groups of the answer less the number of
units without any bound. Every run is a whole query on a state file of its own, so AUTO pays for itself in each.

Claims, as means over the runs: with max_groups_contributed = 8 and bounding = L2 at least 435 groups at an error of at
most 157; with AUTO at least 240 groups at an error of at most 100.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import dpsql

EPSILON, DELTA, MAX_GROUPS = 1.0, 1e-6, 8
ROWS, UNITS, SEED = 1_000_000, 50_000, 1

# What OPTIONS say; what the claims are about stands first.
POINTS = {
    "max_groups = 8, L2": "max_groups_contributed = 8, bounding = L2",
    "AUTO, L2": "max_groups_contributed = AUTO, bounding = L2",
    "AUTO": "max_groups_contributed = AUTO",
    **{f"max_groups = {m}": f"max_groups_contributed = {m}" for m in (4, 6, 8, 10, 12, 16)},
    **{f"max_groups = {m}, L2": f"max_groups_contributed = {m}, bounding = L2" for m in (4, 6, 10, 12, 16)},
}
LAPLACE = "Laplace, max_groups = 8"
CLAIMS = {"max_groups = 8, L2": (435.0, 157.0), "AUTO, L2": (240.0, 100.0)}


@dataclass(frozen=True)
class Outcome:
    """One run: groups shown, root mean square of their errors, and the number of groups that a unit counts in."""

    groups: int
    error: float
    max_groups: int


def zipf_table(keys: int, exponent: float) -> pa.Table:
    """Columns unit and key: rows spread over each unit's drawn keys, every one of which has a row."""
    generator = np.random.default_rng(SEED)
    drawn = 1 + generator.poisson(7.0, UNITS)
    edges = np.cumsum(np.arange(1.0, keys + 1.0) ** -exponent)
    unit = np.repeat(np.arange(UNITS, dtype=np.int32), drawn)
    key = np.minimum(np.searchsorted(edges, generator.random(len(unit)) * edges[-1], side="right"), keys - 1)
    more = generator.integers(0, len(unit), ROWS - len(unit))
    place = generator.permutation(np.concatenate([np.arange(len(unit)), more]))
    return pa.table({"unit": unit[place], "key": key[place].astype(np.int32)})


def truth_of(table: pa.Table) -> Mapping[int, int]:
    """Distinct units per key, and a sentence about the table on the way."""
    pairs = np.unique(np.stack([table.column("unit").to_numpy(), table.column("key").to_numpy()]), axis=1)
    groups = np.bincount(pairs[0])
    print(
        f"{table.num_rows:,} rows, {len(groups):,} units in {groups.mean():.2f} groups on average "
        f"({(groups > MAX_GROUPS).mean():.0%} in more than {MAX_GROUPS}), {len(np.unique(pairs[1])):,} groups"
    )
    counts = np.bincount(pairs[1])
    return {int(key): int(counts[key]) for key in np.unique(pairs[1])}


def ask(database: Path, state: Path, options: str, truth: Mapping[int, int]) -> Outcome:
    """One query on a fresh state."""
    with dpsql.connect(database, state=state, read_only=True) as session:
        session.sql(
            "CALL dp_protect('zipf', coverage := FALSE, "
            "privacy_unit_column := 'unit', epsilon_budget := 10, delta_budget := 1e-4)"
        )
        # the runs before have charged the database by other state files
        session.sql("CALL dp_accept_state()")
        answer = session.sql(
            f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = {EPSILON}, delta = {DELTA}, {options}) "
            "key, count(DISTINCT unit) AS units FROM zipf GROUP BY key"
        )
    assert answer.receipt is not None
    assert answer.receipt.epsilon <= EPSILON
    assert answer.receipt.delta <= DELTA
    return _outcome(answer.fetchall(), truth, answer.receipt.max_groups or 0)


def laplace(table: pa.Table, truth: Mapping[int, int], generator: np.random.Generator) -> Outcome:
    """What Laplace noise and its threshold (Wilson et al. 2020) would show at max_groups = 8, for comparison."""
    pairs = np.unique(np.stack([table.column("unit").to_numpy(), table.column("key").to_numpy()]), axis=1)
    pairs = pairs[:, np.lexsort((generator.random(pairs.shape[1]), pairs[0]))]
    first = np.flatnonzero(np.diff(pairs[0], prepend=-1))
    rank = np.arange(pairs.shape[1]) - np.repeat(first, np.diff(np.append(first, pairs.shape[1])))
    kept = np.bincount(pairs[1][rank < MAX_GROUPS])
    noisy = kept + generator.laplace(0.0, MAX_GROUPS / EPSILON, len(kept))
    threshold = 1.0 - MAX_GROUPS * math.log(2.0 - 2.0 * (1.0 - DELTA) ** (1.0 / MAX_GROUPS)) / EPSILON
    shown = [(int(key), float(noisy[key])) for key in np.flatnonzero((noisy > threshold) & (kept > 0))]
    return _outcome(shown, truth, MAX_GROUPS)


def _outcome(shown: list[tuple[Any, ...]], truth: Mapping[int, int], max_groups: int) -> Outcome:
    errors = np.array([value - truth[key] for key, value in shown])
    return Outcome(len(shown), float(np.sqrt(np.mean(errors**2))), max_groups)


def measure(runs: int, table: pa.Table) -> dict[str, list[Outcome]]:
    """All points, run after run, so that a run that is broken off has some of each."""
    truth = truth_of(table)
    found: dict[str, list[Outcome]] = {name: [] for name in (*POINTS, LAPLACE)}
    generator = np.random.default_rng(SEED)
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "zipf.duckdb"
        with dpsql.connect(database) as session:
            session.connection.register("made", table)
            session.connection.execute("CREATE TABLE zipf AS SELECT * FROM made")
        began = time.perf_counter()
        for run in range(runs):
            for name, options in POINTS.items():
                found[name].append(ask(database, Path(folder) / f"{run} {name}.dpsql", options, truth))
            found[LAPLACE].append(laplace(table, truth, generator))
            passed = time.perf_counter() - began
            left = passed / (run + 1) * (runs - run - 1)
            print(f"\rrun {run + 1} of {runs}, {left:.0f} s left ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def print_table(found: Mapping[str, list[Outcome]]) -> bool:
    """One line a point; returns whether the claims hold."""
    print(f"{'':24} {'groups':>14} {'RMSE':>16} {'max_groups':>12}")
    for name, outcomes in found.items():
        groups, errors = (np.array([getattr(o, field) for o in outcomes], float) for field in ("groups", "error"))
        chosen = sorted({outcome.max_groups for outcome in outcomes})
        print(
            f"{name:24} {groups.mean():8.1f} ± {groups.std():3.1f} {errors.mean():9.1f} ± {errors.std():4.1f}"
            f" {' '.join(map(str, chosen)):>12}"
        )
    failed = [name for name, (least, most) in CLAIMS.items() if not _holds(found[name], least, most)]
    for name, (least, most) in CLAIMS.items():
        verdict = "FAILS" if name in failed else "holds"
        print(f"{name}: at least {least:g} groups at an error of at most {most:g}: {verdict}")
    return not failed


def _holds(outcomes: list[Outcome], least: float, most: float) -> bool:
    groups = float(np.mean([outcome.groups for outcome in outcomes]))
    return groups >= least and float(np.mean([outcome.error for outcome in outcomes])) <= most


def draw(found: Mapping[str, list[Outcome]], path: Path) -> None:
    """The frontier as a picture; needs matplotlib (the extra ``plot``)."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    pyplot.rcParams["svg.hashsalt"] = "zipf"
    figure, axes = pyplot.subplots(figsize=(6.4, 4.0))
    families = {
        "groups dropped (L0)": [f"max_groups = {m}" for m in (4, 6, 8, 10, 12, 16)],
        "groups weighted (L2)": [f"max_groups = {m}, L2" for m in (4, 6, 8, 10, 12, 16)],
        "AUTO": ["AUTO"],
        "AUTO, L2": ["AUTO, L2"],
        "Laplace, dropped, max_groups = 8": [LAPLACE],
    }
    for label, names in families.items():
        points = [(np.mean([o.groups for o in found[name]]), np.mean([o.error for o in found[name]])) for name in names]
        axes.plot(*zip(*points, strict=True), "o-" if len(points) > 1 else "D", label=label)
    axes.set(xlabel="groups shown", ylabel="RMSE over shown groups", yscale="log")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, print, and draw if asked to; the exit status says whether the claims hold."""
    parser = argparse.ArgumentParser(description="Groups shown against their error on a Zipf table.")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--exponent", type=float, default=1.15)
    parser.add_argument("--svg", type=Path, help="where to draw the picture")
    arguments = parser.parse_args()
    if arguments.svg is not None and importlib.util.find_spec("matplotlib") is None:
        parser.error("--svg needs matplotlib: pip install 'dpsql[plot]'")
    found = measure(arguments.runs, zipf_table(arguments.keys, arguments.exponent))
    held = print_table(found)
    if arguments.svg is not None:
        draw(found, arguments.svg)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
