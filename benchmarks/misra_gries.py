"""What a sketch of the keys costs beside a plain GROUP BY: python benchmarks/misra_gries.py [--data FILE] [--size N].

The plain side is ``count(DISTINCT unit)`` per key by DuckDB alone; the other one is the Misra-Gries sketch of the same
counts, every group of every unit kept: one ordered scan, read as a stream, a step for each shard. Each run is a process
of its own, so that the peak of memory is that run's. For many keys: make_zipf.py FOLDER --keys 1000000.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import tempfile
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import dpsql
from dpsql.bound.shards import SHARDS, sketch_sql
from dpsql.cascade.reader import CURATOR
from dpsql.engine import DuckDBEngine, Sandbox
from dpsql.model.frame import Frame
from dpsql.release.sketch import Sketch, sketched
from dpsql.sql.statements import SelectStatement, read_statement

SALT = bytes(range(16))
PLAIN = "SELECT key, count(DISTINCT unit) AS units FROM zipf GROUP BY key"
PREPARED = (
    "CALL dp_unit('person', rho_budget := 1000, delta_threshold := 0.5, delta_conversion := 1e-6)",
    "CALL dp_protect('zipf', coverage := FALSE, "
    "unit := 'person', privacy_unit_column := 'unit', max_groups_contributed := 8)",
)


@dataclass(frozen=True)
class Run:
    """One side at one memory limit; size None is the plain GROUP BY."""

    data: Path
    threads: int
    memory_limit: str
    size: int | None


@dataclass(frozen=True)
class Cost:
    """Wall seconds, processor seconds of all threads, MB at most (and before the run), what came out."""

    wall: float
    processor: float
    peak_megabytes: float
    idle_megabytes: float
    result: str


def _peak_megabytes() -> float:
    """The peak of the process's memory since the last reset (Linux only, else NaN)."""
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def _frame(session: dpsql.Session) -> Frame:
    """The frame of the question, with every group of a unit kept."""
    for declaration in PREPARED:
        session.sql(declaration)
    statement = read_statement(PLAIN)
    assert isinstance(statement, SelectStatement)
    frame = session._runner.plan(statement, {"rho": 0.1, "delta": 1e-6}, CURATOR)[0].first.frame
    return replace(frame, bounding=replace(frame.bounding, max_groups=None))


def _sketch(session: dpsql.Session, frame: Frame, size: int) -> Sketch:
    engine, sandbox = DuckDBEngine(session.connection), Sandbox()
    stream = engine.pieces(sketch_sql(frame, SALT), timeout_seconds=None)
    with contextlib.closing(sandbox):
        return sketched(size, (piece.reveal() for piece in stream), sandbox.run)


def _measure(run: Run, answer: Connection) -> None:
    """The cost of one side, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "zipf.duckdb")
        with dpsql.connect(path, threads=run.threads, memory_limit=run.memory_limit, temp_directory=folder) as session:
            session.connection.execute("SET enable_progress_bar = false")
            session.connection.execute(f"CREATE VIEW zipf AS FROM read_parquet('{run.data}')")
            frame = _frame(session)
            idle = _peak_megabytes()
            wall, processor = time.perf_counter(), time.process_time()
            if run.size is None:
                groups = session.connection.sql(PLAIN).to_arrow_table()
                result = f"{groups.num_rows:,} groups"
            else:
                sketch = _sketch(session, frame, run.size)
                result = f"{sketch.counters.num_rows:,} counters, floor {sketch.floor:,}"
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
            answer.send(Cost(wall, processor, _peak_megabytes(), idle, result))


def cost_of(run: Run) -> Cost | None:
    """The cost of one side; None where it failed, of memory say."""
    spawning = multiprocessing.get_context("spawn")
    receiver, sender = spawning.Pipe(duplex=False)
    process = spawning.Process(target=_measure, args=(run, sender))
    process.start()
    sender.close()
    cost: Cost | None = None
    with contextlib.suppress(EOFError):
        cost = receiver.recv()
    process.join()
    return cost


def main() -> None:
    """Measure both sides at every memory limit, in turn."""
    parser = argparse.ArgumentParser(description="A Misra-Gries sketch beside a plain GROUP BY.")
    parser.add_argument("--data", type=Path, default=Path("out/zipf.parquet"), help="made by make_zipf.py")
    parser.add_argument("--size", type=int, default=1000, help="most counters of the sketch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limits", nargs="+", default=["8GB", "500MB", "200MB"], help="DuckDB's memory_limit")
    arguments = parser.parse_args()
    if not arguments.data.is_file():
        parser.error(f"{arguments.data} is missing; make it with: python benchmarks/make_zipf.py")
    print(f"{arguments.data}: size {arguments.size:,}, {SHARDS} shards, threads = {arguments.threads}")
    print(f"{'memory_limit':<13} {'':<8} {'wall s':>7} {'processor s':>12} {'peak MB':>8} {'idle MB':>8}")
    for limit in arguments.limits:
        for side, size in (("plain", None), ("sketch", arguments.size)):
            cost = cost_of(Run(arguments.data, arguments.threads, limit, size))
            if cost is None:
                print(f"{limit:<13} {side:<8} failed")
                continue
            print(
                f"{limit:<13} {side:<8} {cost.wall:>7.2f} {cost.processor:>12.2f} {cost.peak_megabytes:>8.0f} "
                f"{cost.idle_megabytes:>8.0f}  {cost.result}",
                flush=True,
            )


if __name__ == "__main__":
    main()
