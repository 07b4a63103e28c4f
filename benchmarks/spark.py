"""Compare questions on tables of Spark with Spark's own GROUP BY: python -m benchmarks.spark [--rows N] [--repeats R].

It needs pyspark 4 and Java. People have 10 rows on average as in `benchmarks.parts`, and keys are Zipf.
Both run in one session of ``local[2]``, once everything was asked twice. A private answer is the first one of a new
state file, so that nothing is stored. Keys are private, and coverage is on, as it is by default.
The library in C is loaded if `make native` built it. Times are processor seconds of this process, the Java machine
and all its workers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.make_zipf import write_zipf
from benchmarks.parts import BOUNDS, DELTA, KEYS, RHO, ROWS_PER_PERSON, UNIT

PROTECTED = "CALL dp_protect('zipf', unit := 'person', privacy_unit_column := 'unit'{})"
DOMAIN = "CALL dp_domain('zipf', 'value', bounds := [0, 100])"


@dataclass(frozen=True)
class Line:
    """A question.

    Attributes:
        name: what is asked.
        selected: what is selected beside the key.
        limit: most processor time, in units of that of Spark's own query; None for no limit.
        bounds: parameters of ``dp_protect``; empty if nothing is named.

    """

    name: str
    selected: str
    limit: float | None
    bounds: str = BOUNDS

    @property
    def sql(self) -> str:
        """The question."""
        return f"SELECT key, {self.selected} FROM zipf GROUP BY key"


LINES = (
    Line("people", "count(DISTINCT unit) AS people", 2.0),
    Line("rows and sum", "count(*) AS n, sum(value) AS total", 3.0),
    Line("rows and sum, nothing named", "count(*) AS n, sum(value) AS total", None, bounds=""),
)


def processor_seconds() -> float:
    """Return the processor seconds of this process and all that came of it, those that ended too."""
    return sum(seconds for _, seconds in _processes())


def _processes() -> Iterator[tuple[int, float]]:
    """Yield this process and those below it with their seconds; those of ended children count for their parents."""
    tick, below, seconds = os.sysconf("SC_CLK_TCK"), dict[int, list[int]](), dict[int, float]()
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(place.parent.name)
        below.setdefault(int(fields[1]), []).append(pid)
        seconds[pid] = sum(map(int, fields[11:15])) / tick
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        yield pid, seconds.get(pid, 0.0)
        waiting += below.get(pid, [])


def measured(action: Callable[[], object]) -> tuple[float, float]:
    """Return the processor seconds and the seconds of an action."""
    began, used = time.perf_counter(), processor_seconds()
    action()
    return processor_seconds() - used, time.perf_counter() - began


def main() -> None:
    """Print one line for each question."""
    parser = argparse.ArgumentParser(description="What a question on a table of Spark costs beside Spark's own.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    folder = Path(tempfile.mkdtemp(prefix="dpsql-spark-"))
    try:
        _compare(folder, arguments.rows, arguments.repeats)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _compare(folder: Path, rows: int, repeats: int) -> None:
    from pyspark.sql import SparkSession  # noqa: PLC0415 — only `make spark` installs it

    parquet = folder / "zipf.parquet"
    write_zipf(parquet, rows=rows, units=rows // ROWS_PER_PERSON, keys=KEYS, exponent=1.0, seed=1)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sql(f"CREATE TABLE zipf USING parquet LOCATION '{parquet}'")

    def plain(line: Line) -> tuple[float, float]:
        return measured(spark.sql(line.sql).toArrow)

    def private(line: Line, name: str) -> tuple[float, float]:
        import dpsql  # noqa: PLC0415

        with dpsql.connect(spark=spark, state=folder / f"{name}.dpsql", allow_unsigned_extensions=True) as session:
            for statement in (UNIT, PROTECTED.format(line.bounds), DOMAIN):
                session.sql(statement)
            return measured(lambda: session.sql(line.sql, rho=RHO, delta=DELTA))

    print(f"{rows:,} rows, Spark {spark.version}, local[2]; medians of {repeats}, processor seconds (seconds)")
    print(f"{'':30}{'Spark':>16}{'private':>16}{'ratio':>8}  limit")
    for line in LINES:
        both = [(plain(line), private(line, f"{line.name} {place}")) for place in range(repeats + 2)]
        own, ours = (tuple(statistics.median(one[i][j] for one in both[2:]) for j in (0, 1)) for i in (0, 1))
        ratio = ours[0] / own[0]
        times = "".join(f"{cpu:9.2f} ({wall:.2f})" for cpu, wall in (own, ours))
        limit = "no limit" if line.limit is None else f"at most {line.limit:g}: {ratio <= line.limit}"
        print(f"{line.name:30}{times}{ratio:8.2f}  {limit}")
    spark.stop()


if __name__ == "__main__":
    main()
