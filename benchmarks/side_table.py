"""What it takes to store and to read answers: python benchmarks/side_table.py [--keys N] [--levels N] [--repeats N].

Claim: one million keys at five levels are written to the state file, and read from it, in seconds. One frame with a
table of text keys, and one statistic that rises level by level, each rise charged before it is stored, as a query does
it. Counts are skewed, and the noise is that of the levels, in steps of 2**-20 of a count.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.state import NANO_PER_RHO, Additions, ChargeItem, Point, ProtectedTable, State, Unit

UNIT, TABLE, FRAME, STATISTIC = "person", "main.visits", "frame", "statistic"
LOWEST_RHO_NANO = 50_000_000
EXPONENT = -20
CLAIMED_SECONDS = 10.0


def points_of(keys: int, levels: int) -> list[Point]:
    """One point per level, each twice as high as the one before, lowest first."""
    generator = np.random.default_rng(1)
    counts = np.rint(generator.pareto(1.1, keys) + 1)
    points = []
    for level in range(levels):
        rho_nano = LOWEST_RHO_NANO << level
        sigma = (2 * rho_nano / NANO_PER_RHO) ** -0.5
        noisy: npt.NDArray[np.int64] = np.rint((counts + sigma * generator.normal(size=keys)) * 2.0**-EXPONENT).astype(
            np.int64
        )
        points.append(Point(STATISTIC, rho_nano, FRAME, noisy, EXPONENT, sigma, tau=30.0, threshold_delta_units=1))
    return points


def new_state(path: Path) -> State:
    """A state file with a budget, and a frame without keys."""
    state = State.open(path, create=True)
    state.declare_unit(Unit(UNIT, 10**6 * NANO_PER_RHO, 2**99, 1e-6))
    state.declare_protected(ProtectedTable(TABLE, UNIT, "unit"))
    state.side_table.frame_salt(FRAME, UNIT, [TABLE])
    return state


def write(state: State, keys: pa.Table, points: list[Point]) -> None:
    """Charge and store level by level, keys with the first."""
    before = 0
    for point in points:
        charged = state.ledger.charge(UNIT, [ChargeItem(STATISTIC, point.rho_nano - before, 1)], "curator")
        state.side_table.store(FRAME, Additions(None if before else keys, [point], charged.charge_ids))
        before = point.rho_nano


def read(path: Path, keys: pa.Table, points: list[Point]) -> float:
    """Read keys and all points through a new connection; seconds, without comparing them with what was written."""
    began = time.perf_counter()
    with State.open(path, create=False) as state:
        found = state.side_table.frame_keys(FRAME)
        levels = state.side_table.levels(STATISTIC)
        read_points = [state.side_table.point(STATISTIC, level.rho_nano) for level in levels]
    seconds = time.perf_counter() - began
    assert found is not None
    assert found.equals(keys)
    for stored, written in zip(reversed(read_points), points, strict=True):
        assert stored is not None
        assert np.array_equal(stored.values, written.values)
    return seconds


def main() -> None:
    """Write and read in turns, and print seconds and the size of the file."""
    parser = argparse.ArgumentParser(description="Seconds and bytes of stored answers.")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--levels", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    keys = pa.table({"key_0": [f"key_{number:07d}" for number in range(arguments.keys)]})
    points = points_of(arguments.keys, arguments.levels)
    assert all(low.rho_nano < high.rho_nano for low, high in pairwise(points))
    writing, reading, size = [], [], 0
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "answers.dpsql")
            with new_state(path) as state:
                began = time.perf_counter()
                write(state, keys, points)
                writing.append(time.perf_counter() - began)
            reading.append(read(path, keys, points))
            size = sum(file.stat().st_size for file in Path(folder).iterdir())
    raw = sum(point.values.nbytes for point in points) + keys.nbytes
    print(f"{arguments.keys:,} keys, {arguments.levels} levels, medians of {arguments.repeats}")
    print(f"  write {statistics.median(writing):.2f} s, with {arguments.levels} charges")
    print(f"  read  {statistics.median(reading):.2f} s, with opening the file")
    print(f"  file  {size / 1e6:.1f} MB; keys and values alone, uncompressed: {raw / 1e6:.1f} MB")
    slowest = max(*writing, *reading)
    print(f"both are to take seconds, at most {CLAIMED_SECONDS:g}: {slowest <= CLAIMED_SECONDS}")


if __name__ == "__main__":
    main()
