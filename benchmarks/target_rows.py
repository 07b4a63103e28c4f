"""Processor time of a question by relative error, over that of a question by rho.

    python -m benchmarks.target_rows [--rows 10000000] [--repeats 3]

Both count the rows of 20 public keys, in turns, in sessions that hold nothing but the policy. Rows are read once, so a
question by relative error costs little more, whatever its steps are. The time of a further step is measured on a table
of 1,000 rows. Claim: the median ratio is at most 3.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import dpsql
from tests.end_to_end.prepared import with_declarations, with_own_state
from tests.noise_sources import seeded_noise

ALLOWED_RATIO = 3.0
TABLE = "CREATE TABLE data AS SELECT (i * 7919) % {units} AS unit, i % 20 AS key FROM range({rows}) t(i)"
DECLARED = (
    "CALL dp_protect('data', privacy_unit_column := 'unit', coverage := FALSE, max_groups_contributed := 3, "
    "max_rows_per_group := 2, rho_budget := 1e6, delta_threshold := 1e-3, delta_conversion := 1e-6)",
    f"CALL dp_domain('data', 'key', keys := {list(range(20))})",
)


@contextmanager
def declared(rows: int) -> Iterator[dpsql.Session]:
    """Open a session on a table of some rows."""
    with with_declarations(TABLE.format(units=rows // 5 + 1, rows=rows), DECLARED) as session:
        yield session


def answered(session: dpsql.Session, options: str) -> tuple[float, int]:
    """Return the processor time of a question in seconds, and its number of releases."""
    with with_own_state(session) as own:
        own._runner.noise_source = seeded_noise(1)
        began = time.process_time()
        own.sql(f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) key, count(*) AS n FROM data GROUP BY key").df()
        seconds = time.process_time() - began
        return seconds, len(own.sql("FROM dp_releases()").df())


def compared(rows: int, error: float, most: float, repeats: int) -> tuple[float, float, int]:
    """Return the median time by rho and by relative error in seconds, and the number of steps."""
    by_error = f"target_relative_error = {error:g}, max_rho = {most:g}"
    found: dict[str, list[float]] = {f"rho = {most:g}": [], by_error: []}
    steps = 1
    with declared(rows) as session:
        for number in range(repeats + 1):
            for options, seconds in found.items():
                taken, steps = answered(session, options)
                # the first pair imports what is needed
                if number:
                    seconds.append(taken)
    first, second = map(statistics.median, found.values())
    return first, second, steps


def main() -> None:
    """Print the times, and exit with 1 if the ratio is above the claim."""
    parser = argparse.ArgumentParser(description="Processor time of a question by relative error.")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    small, walked, steps = compared(1_000, 0.05, 30.0, 5)
    print(f"a further step on 1,000 rows: {1e3 * (walked - small) / max(1, steps - 1):.1f} ms ({steps} steps)")
    by_rho, by_error, steps = compared(arguments.rows, 0.001, 1e4 / arguments.rows, arguments.repeats)
    print(f"{arguments.rows:,} rows: {by_rho:.2f} s by rho, {by_error:.2f} s by relative error ({steps} steps)")
    print(f"ratio: {by_error / by_rho:.2f}; claim: at most {ALLOWED_RATIO:g}")
    raise SystemExit(by_error > ALLOWED_RATIO * by_rho)


if __name__ == "__main__":
    main()
