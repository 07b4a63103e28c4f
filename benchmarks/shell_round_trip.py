"""A question at the stock DuckDB shell, there and back: python -m benchmarks.shell_round_trip [--repeats 50].

One `duckdb` process at a pseudo-terminal, a table of 1,000 rows, and the time from the Enter key until the answer is on
screen: of a plain GROUP BY, of a private one whose answer is stored, and of a private one that was never asked before
(another WHERE each time), which is planned, charged, drawn and stored.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.end_to_end.shell_terminal import QUIET, Terminal

PROGRAM = str(Path(sys.executable).with_name("dpsql"))
SETUP = (
    "CREATE TABLE visits AS SELECT u AS patient, 'city ' || u % 4 AS city, u % 90 AS cost FROM range(1000) t(u);",
    "CALL dp_unit('patient', epsilon_budget := 1000, delta_budget := 0.1);",
    "CALL dp_protect('visits', coverage := FALSE, "
    "unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 1);",
)


def private(least: int) -> str:
    """A private question about those who paid at least so much."""
    query = f"SELECT city, count(DISTINCT patient) AS n FROM visits WHERE cost >= {least} GROUP BY city"
    return f"FROM dp_query($$ {query} $$, epsilon := 1, delta := 1e-6);"


def median_milliseconds(terminal: Terminal, statements: list[str]) -> float:
    """Median time of statements."""
    times = []
    for statement in statements:
        start = time.perf_counter()
        terminal.ask(statement)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def main() -> None:
    """Print the medians, and the bound of four times plain plus 50 ms."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=50)
    repeats = parser.parse_args().repeats
    plain = "SELECT city, count(DISTINCT patient) AS n FROM visits WHERE cost >= 0 GROUP BY city;"
    with (
        tempfile.TemporaryDirectory() as folder,
        Terminal([PROGRAM, "shell", str(Path(folder, "clinic.duckdb")), *QUIET]) as terminal,
    ):
        for statement in (*SETUP, private(0)):
            terminal.ask(statement)
        base = median_milliseconds(terminal, [plain] * repeats)
        stored = median_milliseconds(terminal, [private(0)] * repeats)
        fresh = median_milliseconds(terminal, [private(i + 1) for i in range(repeats)])
    print(f"plain query          {base:6.1f} ms")
    print(f"private, stored      {stored:6.1f} ms")
    print(f"private, new         {fresh:6.1f} ms")
    print(f"4 x plain + 50 ms    {4 * base + 50:6.1f} ms")


if __name__ == "__main__":
    main()
