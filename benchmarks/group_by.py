"""Measure a private GROUP BY beside the plain one: python benchmarks/group_by.py [--data FILE] [--without-coverage].

Q1 is distinct units per key against the same ``count(DISTINCT unit)``; Q2 is distinct units, rows and clipped sum per
key against ``count(DISTINCT unit), count(*), sum(value)``. The private side is a whole query: plan, bounded SQL, noise,
charge, store, result. Coverage is measured as well, as it is by default. With --without-coverage the native aggregate
runs if ``make native`` has built it, and in pure SQL with --pure-sql. Both
sides run in one process on one table and take turns, so that the ratios do not depend on the load of the machine.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import dpsql
from dpsql.assets import native_library

MAX_GROUPS, MAX_ROWS = 8, 5
RHO, DELTA = 0.1, 1e-6

QUERIES = {
    "Q1": "SELECT key, count(DISTINCT unit) AS units FROM zipf GROUP BY key",
    "Q2": "SELECT key, count(DISTINCT unit) AS units, count(*) AS n, sum(value) AS total FROM zipf GROUP BY key",
}
ALLOWED = {"Q1": 1.8, "Q2": 2.3}
ALLOWED_IN_SQL = {"Q1": 2.5, "Q2": 2.8}
ALLOWED_NATIVE = {"Q1": 1.4, "Q2": 1.6}
ALLOWED_MEMORY = 1.5
POLICY = (
    "CALL dp_unit('person', rho_budget := 1000, delta_threshold := 0.5, delta_conversion := 1e-6)",
    "CALL dp_protect('zipf', unit := 'person', privacy_unit_column := 'unit', "
    f"max_groups_contributed := {MAX_GROUPS}, max_rows_per_group := {MAX_ROWS})",
    "CALL dp_domain('zipf', 'value', bounds := [0, 100])",
)

# Steps of a query, and the functions (file, name) that take their time; none of them calls another one of the list.
STEPS = {
    "plan": [("session.py", "plan")],
    "calibrate": [("calibrate.py", "calibrate")],
    "charge": [("ledger.py", "charge")],
    "sizes": [("database.py", "sizes")],
    "bounded SQL": [("database.py", "aggregate")],
    "align keys": [("align.py", "align_groups")],
    "noise": [("points.py", "new_points")],
    "store": [("side_table.py", "frame"), ("side_table.py", "store")],
    "read back": [("side_table.py", "point"), ("side_table.py", "frame_keys")],
    "noisy table": [("shown.py", "noisy_table")],
}


@dataclass(frozen=True)
class Cost:
    """What one run of a query took: wall seconds, processor seconds of all threads, peak memory in MB."""

    wall: float
    processor: float
    peak_megabytes: float


def cost_of(action: Callable[[], object]) -> Cost:
    """Run and measure; the peak of memory is the process's own since the call began (Linux only, else NaN)."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5", encoding="ascii")
    wall, processor = time.perf_counter(), time.process_time()
    action()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    peak = float("nan")
    if status.exists():
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
        peak = int(line.split()[1]) / 1024
    return Cost(wall, processor, peak)


def seconds_by_step(action: Callable[[], object]) -> Iterator[tuple[str, float]]:
    """Where the time of one private query goes."""
    profile = cProfile.Profile()
    profile.runcall(action)
    # pstats keeps (file, line, name) -> (primitive calls, calls, own seconds, seconds with callees, callers)
    stats = pstats.Stats(profile)
    entries: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = vars(stats)["stats"]
    total: float = vars(stats)["total_tt"]
    named = 0.0
    for step, functions in STEPS.items():
        seconds = sum(entry[3] for (file, _, name), entry in entries.items() if (Path(file).name, name) in functions)
        named += seconds
        yield step, seconds
    yield "finish, rest", total - named


def compare(session: dpsql.Session, name: str, sql: str, repeats: int) -> tuple[float, float]:
    """Print the costs of one query, plain and private in turn; returns the ratios of median wall times and peaks."""

    def plain() -> object:
        with session.connection.cursor() as cursor:
            return cursor.sql(sql).to_arrow_table()

    def private() -> object:
        return session.sql(sql, rho=RHO, delta=DELTA)

    pairs = []
    for _ in range(repeats):
        # a new version makes the answer a new one, which nothing stored can serve
        session.sql("CALL dp_new_version('zipf')")
        pairs.append((cost_of(plain), cost_of(private)))
    ratios = sorted(ours.wall / plains.wall for plains, ours in pairs)
    medians = [
        [statistics.median(getattr(cost, what) for cost in side) for side in zip(*pairs, strict=True)]
        for what in ("wall", "processor", "peak_megabytes")
    ]
    wall, processor, memory = medians
    print(
        f"{name:<4} {wall[0]:>9.2f} {wall[1]:>9.2f} {wall[1] / wall[0]:>7.2f}  {ratios[0]:>6.2f} … {ratios[-1]:<6.2f}"
        f" {processor[0]:>9.2f} {processor[1]:>9.2f} {processor[1] / processor[0]:>7.2f}"
        f" {memory[0]:>9.0f} {memory[1]:>9.0f}",
        flush=True,
    )
    return wall[1] / wall[0], memory[1] / memory[0]


def main() -> None:
    """Load the table, compare both queries, and say where their time goes."""
    parser = argparse.ArgumentParser(description="Private GROUP BY beside the plain one.")
    parser.add_argument("--data", type=Path, default=Path("out/zipf.parquet"), help="made by make_zipf.py")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without-coverage", action="store_true", help="declare coverage := FALSE")
    parser.add_argument("--pure-sql", action="store_true", help="without the native aggregate")
    arguments = parser.parse_args()
    if not arguments.data.is_file():
        parser.error(f"{arguments.data} is missing; make it with: python benchmarks/make_zipf.py")
    native = native_library() is not None and not arguments.pure_sql
    options = {"threads": arguments.threads, "allow_unsigned_extensions": native}
    with (
        tempfile.TemporaryDirectory() as folder,
        dpsql.connect(Path(folder, "zipf.duckdb"), **options) as session,
    ):
        session.connection.execute("CREATE TABLE zipf AS FROM read_parquet(?)", [str(arguments.data)])
        for declaration in POLICY:
            session.sql(declaration)
        if arguments.without_coverage:
            session.sql("CALL dp_protect('zipf', coverage := FALSE)")
        counted = session.connection.execute(
            "SELECT count(*), count(DISTINCT unit), count(DISTINCT key) FROM zipf"
        ).fetchall()[0]
        print("{:,} rows, {:,} units, {:,} keys;".format(*counted), end=" ")
        print(f"threads = {arguments.threads}, max_groups = {MAX_GROUPS}, medians of {arguments.repeats};", end=" ")
        print("native" if native else "pure SQL", "without coverage" if arguments.without_coverage else "with coverage")
        print(f"{'':<4} {'wall seconds':^27}  {'of pairs':^15} {'processor seconds':^27} {'peak memory, MB':^19}")
        print(f"{'':<4} {'plain':>9} {'private':>9} {'ratio':>7}  {'least … most':^15}", end=" ")
        print(f"{'plain':>9} {'private':>9} {'ratio':>7} {'plain':>9} {'private':>9}")
        ratios = {name: compare(session, name, sql, arguments.repeats) for name, sql in QUERIES.items()}
        for name, sql in QUERIES.items():
            session.sql("CALL dp_new_version('zipf')")
            print(f"\n{name}: where the time of one private query goes")
            for step, seconds in seconds_by_step(partial(session.sql, sql, rho=RHO, delta=DELTA)):
                print(f"  {step:<14} {seconds:>8.3f} s")
        print()
        limits = (ALLOWED_NATIVE if native else ALLOWED_IN_SQL) if arguments.without_coverage else ALLOWED
        for name, allowed in limits.items():
            wall, memory = ratios[name]
            print(f"{name} is to take at most {allowed:g} times the time: {wall <= allowed};", end=" ")
            print(f"at most {ALLOWED_MEMORY:g} times the memory: {memory <= ALLOWED_MEMORY}")


if __name__ == "__main__":
    main()
