"""Measure questions on tables in parts, by number of rows: python -m benchmarks.parts [--rows N …] [--parts P].

A table of three columns is split into parts, and processes of one thread each read them. People have 10 rows on
average, keys are Zipf. Each question is also asked of one DuckDB file with the same rows. Each answer is the first one
of a new state file and session, so that nothing is stored or remembered. Coverage is on, as it is by default.

A process takes processor time to begin, and a question takes some on empty parts, for plans of the same texts. Both are
printed apart, and the *own* time of a question is what is left. The peak of a process is the most that it ever held.
Limits: the processor time of the processes, whole and own, may grow by 1.15 times the rows, and each process has to
stay below 2 GB.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import duckdb

import dpsql
from benchmarks.make_zipf import write_zipf
from dpsql.assets import native_library
from dpsql.session import SplitOrder, make_split

RHO, DELTA = 0.1, 1e-6
ROWS_PER_PERSON = 10
KEYS = 100_000
MOST_GROWTH = 1.15
"""Largest ratio of the own times of two sizes, in units of the ratio of their rows."""
MOST_HELD = 2e9
"""Limit of the bytes of one process."""
UNIT = "CALL dp_unit('person', rho_budget := 1000, delta_threshold := 0.5, delta_conversion := 1e-6)"
BOUNDS = ", max_groups_contributed := 8, max_rows_per_group := 5"


@dataclass(frozen=True)
class Line:
    """A question.

    Attributes:
        name: what is asked.
        selected: what is selected beside the key.
        bounds: parameters of ``dp_protect``; empty if nothing is named.
        public_keys: number of keys that are public; 0 if they are private.

    """

    name: str
    selected: str
    bounds: str = BOUNDS
    public_keys: int = 0

    @property
    def sql(self) -> str:
        """The question."""
        return f"SELECT key, {self.selected} FROM zipf GROUP BY key"


ROWS = "count(*) AS n, sum(value) AS total"
LINES = (
    Line("rows and sum, named bounds", ROWS),
    Line("rows and sum, 1,000 public keys", ROWS, public_keys=1000),
    Line("people, named bounds", "count(DISTINCT unit) AS people"),
    Line("distinct values, named bounds", "count(DISTINCT value) AS amounts"),
    Line("rows and sum, nothing named", ROWS, bounds=""),
)


@dataclass(frozen=True)
class Reading:
    """Times and memory that a question took.

    Attributes:
        processes: processor seconds of all processes that read parts.
        driver: processor seconds of the process that asks, or of all threads of one DuckDB.
        wall: seconds.
        held: most bytes of a process that reads parts.
        driver_held: most bytes of the process that asks.
        begun: processor seconds of the processes before the question.

    """

    processes: float
    driver: float
    wall: float
    held: float
    driver_held: float
    begun: float = 0.0


@dataclass(frozen=True)
class Measured:
    """Times of a question on parts, on empty parts, and of one DuckDB."""

    whole: Reading
    empty: Reading
    one: Reading

    @property
    def own(self) -> float:
        """Processor seconds that the processes need for rows."""
        return self.whole.processes - self.empty.processes


def make_table(folder: Path, rows: int, parts: int) -> tuple[Path, Path]:
    """Write a table as a database and as a folder of parts. Without rows both are empty."""
    folder.mkdir()
    database, split, source = folder / "zipf.duckdb", folder / "parts", folder / "zipf.parquet"
    most = max(rows, 1000)
    write_zipf(source, rows=most, units=most // ROWS_PER_PERSON, keys=KEYS, exponent=1.05, seed=1)
    with contextlib.closing(duckdb.connect(str(database))) as connection:
        connection.execute(
            f"CREATE TABLE zipf AS SELECT unit, key, round(value, 2) AS value FROM read_parquet(?) LIMIT {rows}",
            [str(source)],
        )
    source.unlink()
    began, stored = time.process_time(), database.stat().st_size / 1e6
    make_split(SplitOrder((database,), split, parts, by=("unit",), tables=("zipf",)))
    print(f"split of {rows:,} rows, {stored:.0f} MB: {time.process_time() - began:.1f} CPU seconds", flush=True)
    return database, split


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and its threads."""
    # the clock of a process, as Linux numbers it
    return time.clock_gettime(~pid << 3 | 2)


def held_bytes(pid: int) -> float:
    """Return the most bytes that a process ever held."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return 1024.0 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


@contextlib.contextmanager
def opened(line: Line, where: Mapping[str, Any]) -> Iterator[dpsql.Session]:
    """Open a session on a new state file, with the declarations of a question."""
    with (
        tempfile.TemporaryDirectory() as folder,
        dpsql.connect(state=Path(folder, "state.dpsql"), **where) as session,
    ):
        session.sql(UNIT)
        session.sql(f"CALL dp_protect('zipf', unit := 'person', privacy_unit_column := 'unit'{line.bounds})")
        session.sql("CALL dp_domain('zipf', 'value', bounds := [0, 100])")
        if line.public_keys:
            names = ", ".join(f"'key_{rank:06d}'" for rank in range(1, line.public_keys + 1))
            session.sql(f"CALL dp_domain('zipf', 'key', keys := [{names}])")
        # each answer has a state file of its own, of which dpsql warns
        session.sql("CALL dp_accept_state()")
        yield session


def children() -> list[int]:
    """Return the numbers of the processes that this one began."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        # a process may be gone by now
        with contextlib.suppress(OSError):
            _, parent = path.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid():
                found.append(int(path.parent.name))
    return found


def ask(line: Line, where: Mapping[str, Any]) -> Reading:
    """Ask a question for the first time, and return what it took."""
    with opened(line, where) as session:
        # the plan begins the processes
        session.sql(f"FROM dp_explain($$ {line.sql} $$, rho := {RHO}, delta := {DELTA})")
        pids = children()
        begun, began, clock = sum(map(processor_seconds, pids)), time.process_time(), time.perf_counter()
        session.sql(line.sql, rho=RHO, delta=DELTA)
        wall, driver = time.perf_counter() - clock, time.process_time() - began
        processes = sum(map(processor_seconds, pids)) - begun
        held = max(map(held_bytes, pids), default=0.0)
        return Reading(processes, driver, wall, held, held_bytes(os.getpid()), begun)


def medians(line: Line, where: Mapping[str, Any], first: Mapping[str, Any], repeats: int) -> Reading:
    """Return the medians of several first answers, once an answer elsewhere has imported modules."""
    ask(line, first)
    found = [astuple(ask(line, where)) for _ in range(repeats)]
    return Reading(*map(statistics.median, zip(*found, strict=True)))


def apart(line: Line, where: Mapping[str, Any], first: Mapping[str, Any], repeats: int) -> Reading:
    """Return the medians of a new process, so that its peak is that of the question."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(medians, (line, where, first, repeats))


def printed_line(line: Line, rows: int, found: Measured) -> str:
    """Return the figures of a question as a row of the table."""
    whole, empty, one = found.whole, found.empty, found.one
    seconds = [found.own, whole.driver - empty.driver, empty.processes, empty.driver, whole.begun, whole.wall]
    held = [whole.held / 1e6, whole.driver_held / 1e6]
    figures = [f"{second:>8.2f}" for second in seconds] + [f"{most:>8.0f}" for most in held]
    figures += [f"{one.driver:>8.2f}{one.wall:>8.2f}{one.driver_held / 1e6:>8.0f}"]
    return f"{line.name:<32} {rows / 1e6:>6g}" + "".join(figures)


def print_growth(measured: Mapping[tuple[Line, int], Measured]) -> None:
    """Print by which factor processor times grow beyond the rows, and whether the limits hold."""
    print(f"\ngrowth of the CPU seconds of all processes, divided by that of the rows; at most {MOST_GROWTH:g}")
    print(f"{'':<32} {'million rows':<16}{'whole':>8}{'':>19}{'own':>8}")
    for line in dict.fromkeys(line for line, _ in measured):
        sizes = [rows for other, rows in measured if other == line]
        for fewer, more in itertools.pairwise(sizes):
            before, after = measured[line, fewer], measured[line, more]
            growth = [
                later / sooner * fewer / more
                for later, sooner in ((after.whole.processes, before.whole.processes), (after.own, before.own))
            ]
            figures = "   ".join(f"{one:>8.2f}   {verdict(one <= MOST_GROWTH):<13}" for one in growth)
            print(f"{line.name:<32} {f'{fewer / 1e6:g} to {more / 1e6:g}':<16}{figures.rstrip()}")
    most = max(max(one.whole.held, one.whole.driver_held) for one in measured.values())
    print(
        f"most memory of a process, less than {MOST_HELD / 1e9:g} GB: {most / 1e9:.2f} GB   {verdict(most < MOST_HELD)}"
    )


def verdict(holds: bool) -> str:
    """Return whether a limit holds, in words."""
    return "holds" if holds else "does not hold"


COLUMNS = ("own", "driver", "empty", "driver", "begin", "wall", "MB each", "driver", "CPU", "wall", "MB")
HEADING = (
    f"{'':<39}{'of rows':>16}{'empty parts':>16}{'':>16}{'peak':>16}{'one DuckDB':>24}\n"
    f"{'CPU seconds':<32} {'rows':>6}" + "".join(f"{name:>8}" for name in COLUMNS)
)


def main() -> None:
    """Make the tables, ask, and print a line for each question and size."""
    parser = argparse.ArgumentParser(description="What questions on a table in parts take, by number of rows.")
    parser.add_argument("--rows", type=int, nargs="+", default=[2_500_000, 10_000_000], help="sizes, rising")
    parser.add_argument("--parts", type=int, default=16)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--memory", default="3GB", help="memory_limit of all processes together, and of one DuckDB (3GB)"
    )
    parser.add_argument("--pure-sql", action="store_true", help="without the aggregate in C")
    parser.add_argument("--only", default="", help="questions whose name has this text")
    parser.add_argument("--folder", type=Path, help="where the tables are written while they are asked")
    arguments = parser.parse_args()
    is_native = native_library() is not None and not arguments.pure_sql
    shared = {"memory_limit": arguments.memory, "allow_unsigned_extensions": is_native}
    print(
        f"{arguments.parts} parts, {arguments.processes} processes, {'native' if is_native else 'pure SQL'};", end=" "
    )
    print(f"memory_limit = {arguments.memory}, medians of {arguments.repeats}; rows in millions")
    lines = [line for line in LINES if arguments.only in line.name]
    measured: dict[tuple[Line, int], Measured] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        _, parts = make_table(Path(name, "empty"), 0, arguments.parts)
        empty = {**shared, "parts": parts, "processes": arguments.processes}
        on_empty = {line: apart(line, empty, empty, arguments.repeats) for line in lines}
        for rows in sorted(arguments.rows):
            folder = Path(name, f"{rows}")
            database, parts = make_table(folder, rows, arguments.parts)
            print(HEADING)
            for line in lines:
                whole = apart(line, {**empty, "parts": parts}, empty, arguments.repeats)
                one = apart(line, {**shared, "path": database}, empty, arguments.repeats)
                measured[line, rows] = Measured(whole, on_empty[line], one)
                print(printed_line(line, rows, measured[line, rows]), flush=True)
            shutil.rmtree(folder)
    print_growth(measured)


if __name__ == "__main__":
    main()
