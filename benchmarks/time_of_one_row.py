"""Processor time of random texts over two databases that differ in one row of one person.

    python -m benchmarks.time_of_one_row [--texts 0:60] [--runs 5] [--rows 1000000] [--sql] [--plant]

Sizes are such that the one row crosses the numbers that are known without a salt, at which dpsql or DuckDB computes in
another way, or once did (`one_row_texts`): half a million rows, half of all units, rows of a pair and of a key, no row.
Every run asks in a process of its own. It is forked from one that has imported all, and has asked nothing of these
databases; and it has a state file of its own. Runs take turns. What looks bad is measured twice as often again, so that
other work on the machine fails nothing. Texts are asked with the library in C and without it, eight by eight.

Claim: for each text the medians of both databases are within 1.15 of each other. The table says where all runs of one
side take longer than all of the other. At each start a planted comparison, which reads the rows again above a fixed
number, has to be caught; ``--plant`` plants it for all texts. The exit status is 1 if a claim fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dpsql
from benchmarks.one_row_texts import Scale, Text, Writer, edges, opened
from dpsql.errors import DpsqlError
from dpsql.release import exact
from dpsql.session.session import LazyState
from tests.noise_sources import seeded_noise

ALLOWED_RATIO = 1.15
_WARMING = 48
"""Texts that are asked of small tables first, so that all is imported."""


@dataclass(frozen=True)
class World:
    """One database, with the state file that every run begins with."""

    session: dpsql.Session
    state: Path


@dataclass(frozen=True)
class Runs:
    """Processor seconds of a text without the row and with it, run by run."""

    without: tuple[float, ...]
    having: tuple[float, ...]

    @property
    def medians(self) -> tuple[float, float]:
        """Return the median of each side."""
        return statistics.median(self.without), statistics.median(self.having)

    @property
    def ratio(self) -> float:
        """Return the larger median over the smaller one."""
        return max(self.medians) / min(self.medians)

    @property
    def are_apart(self) -> bool:
        """Return whether every run of one side takes longer than every run of the other."""
        return max(self.without) < min(self.having) or max(self.having) < min(self.without)

    @property
    def is_step(self) -> bool:
        """Return whether the row moves the time by more than is allowed."""
        return self.ratio > ALLOWED_RATIO

    def __add__(self, more: Runs) -> Runs:
        return Runs((*self.without, *more.without), (*self.having, *more.having))


def seconds_of(world: World, text: Text, seed: int, *, has_native: bool) -> float:
    """Return the processor seconds of a question, in a process of its own.

    Raises:
        RuntimeError: the question was refused.

    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, json.dumps(_asked(world, text, seed, has_native=has_native)).encode())
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as found:
        said = found.read()
    os.waitpid(child, 0)
    seconds, refusal = json.loads(said or '[0, "the process ended"]')
    if refusal:
        raise RuntimeError(f"{refusal}\n{text.sql} {text.options}")
    return float(seconds)


def _asked(world: World, text: Text, seed: int, *, has_native: bool) -> tuple[float, str]:
    """Ask, with a state of one's own and with noise that both databases have; return the seconds and a refusal."""
    session, refusal = world.session, ""
    session._runner.noise_source = seeded_noise(seed)
    # the library is loaded before the clock runs, if it is built
    session._runner.engine.__dict__["has_native"] = session._runner.engine.has_native and has_native
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "state.dpsql")
        shutil.copy(world.state, path)
        session._access = session._runner.access = LazyState(path)
        session._access.read()
        began = time.process_time()
        try:
            session.sql(text.sql, **text.options)
        except DpsqlError as error:
            # what AUTO was told is a release, and that it found nothing is an answer
            refusal = "" if str(error).startswith("AUTO found") else f"{type(error).__name__}: {error}"
        return time.process_time() - began, refusal


def measured(worlds: Sequence[World], text: Text, runs: int, *, has_native: bool) -> Runs:
    """Measure a text in both databases in turns; what looks bad twice as often again, all runs together."""
    found = _runs(worlds, text, range(runs), has_native=has_native)
    if found.is_step:
        found += _runs(worlds, text, range(runs, 3 * runs), has_native=has_native)
    return found


def _runs(worlds: Sequence[World], text: Text, seeds: Sequence[int], *, has_native: bool) -> Runs:
    sides: tuple[list[float], list[float]] = ([], [])
    for seed in seeds:
        for side in (0, 1) if seed % 2 else (1, 0):
            sides[side].append(seconds_of(worlds[side], text, seed, has_native=has_native))
    return Runs(tuple(sides[0]), tuple(sides[1]))


@contextmanager
def planted(rows: int) -> Iterator[None]:
    """Read rows twice if a table has more than a fixed number of them up to some place: a step that one row makes."""
    read = exact._aggregate

    def twice(reading: Any, salt: bytes, runtime: Any, timeout_seconds: float | None) -> Any:
        counted = f"SELECT count(*) AS n FROM memory.main.visits WHERE id <= {rows}"
        (found,) = runtime.engine.aggregate(counted, listed_keys=None, timeout_seconds=None).reveal().to_pylist()
        if found["n"] > rows:
            read(reading, salt, runtime, timeout_seconds)
        return read(reading, salt, runtime, timeout_seconds)

    with patch.object(exact, "_aggregate", twice):
        yield


def warm(folder: Path) -> None:
    """Import what questions need, by questions to small tables."""
    small = Scale(2_000)
    with opened(small, has_row=True, state=str(folder / "warm.dpsql")) as session:
        writer = Writer(edges(small, [session.connection] * 2))
        for number in range(_WARMING):
            text = writer.text(number)
            with_rho = {**text.options, "rho": 1.25 * text.options["rho"]}
            try:
                session.sql(text.sql, **with_rho)
            except DpsqlError as error:
                if not str(error).startswith("AUTO found"):
                    raise


def main() -> int:
    """Measure, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(description="Processor time of texts over databases that differ in one row.")
    parser.add_argument("--texts", default="0:60", help="first number and end of the texts (0:60)")
    parser.add_argument("--runs", type=int, default=5, help="of each database")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the largest tables")
    parser.add_argument("--sql", action="store_true", help="print the texts")
    parser.add_argument("--plant", action="store_true", help="plant a comparison with a fixed number in all texts")
    arguments = parser.parse_args()
    first, end = map(int, arguments.texts.split(":"))
    scale = Scale(arguments.rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        warm(folder)
        worlds = [
            _world(scale, folder / f"{side}.dpsql", has_row=has_row) for side, has_row in enumerate((False, True))
        ]
        writer = Writer(edges(scale, [world.session.connection for world in worlds]))
        check = Text(
            f"SELECT t.ward, count(*) FROM visits t WHERE t.id <= {scale.half // 2} GROUP BY t.ward",
            "planted",
            f"{scale.half // 2:,} rows",
            {"rho": 1e-6, "delta": 1e-9},
        )
        print(f"{'':>3} {'kind':<11} {'edge':<23}{'native':<7}{'without':>9}{'with':>9} ms{'ratio':>7}", flush=True)
        with planted(scale.half // 2):
            caught = _shown("", check, measured(worlds, check, arguments.runs, has_native=True), has_native=True)
        steps = []
        with planted(scale.half // 2) if arguments.plant else contextlib.nullcontext():
            for number in range(first, end):
                text, has_native = writer.text(number), number % 16 < 8
                found = measured(worlds, text, arguments.runs, has_native=has_native)
                if _shown(str(number), text, found, has_native=has_native):
                    steps.append(number)
                if arguments.sql or found.is_step:
                    print(f"    {text.sql}", flush=True)
        for world in worlds:
            world.session.close()
    print(f"\nThe planted comparison is caught: {caught}")
    print(f"Medians are within {ALLOWED_RATIO} for each text: {not steps}", *steps)
    return int(bool(steps) or not caught)


def _world(scale: Scale, state: Path, *, has_row: bool) -> World:
    session = opened(scale, has_row=has_row, state=str(state))
    # all of it in one file, which is copied
    with contextlib.closing(sqlite3.connect(state)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return World(session, state)


def _shown(number: str, text: Text, found: Runs, *, has_native: bool) -> bool:
    """Print a row of the table, and return whether the row moves the time."""
    without, having = (1000 * one for one in found.medians)
    mark = " apart" * found.are_apart + " STEP" * found.is_step
    print(
        f"{number:>3} {text.kind:<11} {text.edge:<23}{'yes' if has_native else 'no':<7}{without:>9.1f}{having:>9.1f}   "
        f"{found.ratio:>7.3f}{mark}",
        flush=True,
    )
    return found.is_step


if __name__ == "__main__":
    sys.exit(main())
