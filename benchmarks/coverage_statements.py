"""Count how often a receipt's statements on coverage are true, and measure how much they say.

    python -m benchmarks.coverage_statements [--epsilon 1] [--delta 1e-6] [--releases 400] [--runs 4]

Six tables with nothing declared but the unit, and a web log whose visitors follow a Pareto law of index 1.2, cut at
3,000 rows. Each run asks SQL for the number of rows by key, under a new secret. It hands on the exact histogram and the
arguments with which its receipt was read; noise is then drawn for every further release by the functions of dpsql. What
is true is counted by the SQL that bounds rows, of the units up to each size.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import dpsql
from dpsql.bound.aggregation import bounded_sql
from dpsql.bound.coverage import BUCKETS, first_end
from dpsql.mechanism.gaussian_measure import GAUSSIAN
from dpsql.model.frame import NOISE_GRID_EXPONENT, PRESENCE, Frame, Statistic
from dpsql.noise.entropy import NoiseSource, SystemEntropy
from dpsql.release import noisy_table, stage
from dpsql.release.coverage import Kept, kept_of
from dpsql.release.exact import Exact, Reading, read_exact
from dpsql.release.points import noisy_places
from dpsql.release.runtime import Runtime

Integers = npt.NDArray[np.int64]
_SAMPLES = Path(__file__).parent.parent / "sample_data"
_PAGES = 40


@dataclass
class Measured:
    """One run: the exact histogram, how it was read, and the truth up to each size.

    Attributes:
        exact: units in each place.
        arguments: with which the noisy histogram was read.
        truth: by size, what is there, what is left of it, and the number of units.

    """

    exact: Integers
    arguments: Mapping[str, Any]
    truth: dict[float, tuple[float, float, int]] = field(default_factory=dict)


def _with_pages(rows: npt.NDArray[np.float64], random: np.random.Generator) -> pa.Table:
    """Rows of visitors on pages, of which the first has a tenth of all."""
    visitor = np.repeat(np.arange(len(rows)), rows.astype(np.int64))
    odds = np.arange(1, _PAGES + 1) ** -0.6
    page = random.choice(_PAGES, len(visitor), p=odds / odds.sum())
    return pa.table({"unit": visitor, "key": np.array(["/", *(f"/{i}" for i in range(1, _PAGES))])[page]})


def _web_log(random: np.random.Generator) -> pa.Table:
    return _with_pages(np.minimum(np.floor(4.3 * random.pareto(1.2, 20_000)) + 1.0, 3_000.0), random)


def _few_keys(random: np.random.Generator) -> pa.Table:
    unit, key = np.divmod(np.arange(8_000 * 5), 5)
    is_there = key < random.integers(1, 6, 8_000)[unit]
    return pa.table({"unit": unit[is_there], "key": key[is_there].astype(str)})


def _sample(file: str, unit: str, key: str) -> pa.Table:
    table = pq.read_table(_SAMPLES / file, columns=[unit, key])
    return table.rename_columns(["unit", "key"]).filter(table.column(0).is_valid())


TABLES: dict[str, Callable[[np.random.Generator], pa.Table]] = {
    "web log": _web_log,
    "flights": lambda _: _sample("flights.parquet", "tailnum", "carrier"),
    "hospital": lambda _: _sample("clinic/visits.parquet", "patient_id", "diagnosis"),
    "log-normal tail": lambda random: _with_pages(np.ceil(random.lognormal(1.0, 1.5, 20_000)), random),
    "Pareto tail": lambda random: _with_pages(np.minimum(np.ceil(3.0 * random.pareto(1.0, 10_000)), 20_000.0), random),
    "one row a unit": lambda random: _with_pages(np.ones(20_000), random),
    "few keys": _few_keys,
}


@contextmanager
def _listening(
    found: list[tuple[Frame, bytes, dict[Statistic, Integers], Runtime]], read: list[dict[str, Any]]
) -> Iterator[None]:
    """Hand on the exact histograms that an answer reads, and how it reads their noisy points."""

    def reading(reading: Reading, salt: bytes, runtime: Runtime, timeout: float | None) -> Exact:
        exact = read_exact(reading, salt, runtime, timeout)
        if coverage := reading.bounded.coverage:
            found.append((reading.bounded.frame, salt, {one: exact.values[one] for one in coverage}, runtime))
        return exact

    def kept(noisy: npt.NDArray[np.float64], sigma: float, end: float, most: float, **named: Any) -> Kept:
        read.append({"sigma": sigma, "end": end, "most": most, **named})
        return kept_of(noisy, sigma, end, most, **named)

    with patch.object(stage, "read_exact", reading), patch.object(noisy_table, "kept_of", kept):
        yield


def _kept_up_to(frame: Frame, rows: Statistic, salt: bytes, size: float, session: dpsql.Session) -> float:
    """Rows that bounds keep of the units with at most so many."""
    table = frame.rows_sql.relation
    few = (
        f"(SELECT * FROM {table} WHERE unit IN (SELECT unit FROM {table} GROUP BY unit HAVING count(*) <= {size:.0f}))"
    )
    sql = bounded_sql(replace(frame, rows_sql=replace(frame.rows_sql, relation=few)), (PRESENCE, rows), salt)
    found = session.connection.execute(sql).fetchall()
    steps, weights = (2.0 ** frame.exact_exponent(one) for one in (rows, PRESENCE))
    return float(sum(row[-1] * steps + rows.centre * row[-2] * weights for row in found))


def measured(table: pa.Table, epsilon: float, delta: float) -> tuple[Measured, dpsql.Result]:
    """Ask once, and find what the receipt is about."""
    found: list[tuple[Frame, bytes, dict[Statistic, Integers], Runtime]] = []
    read: list[dict[str, Any]] = []
    with dpsql.connect() as session:
        session.connection.register("made", table)
        session.connection.execute("CREATE TABLE rows AS SELECT * FROM made")
        session.sql("CALL dp_unit('unit', epsilon_budget := 100, delta_budget := 1e-3)")
        session.sql("CALL dp_protect('rows', unit := 'unit', privacy_unit_column := 'unit')")
        with _listening(found, read):
            text = "SELECT key, count(*) AS n FROM rows GROUP BY key ORDER BY n DESC LIMIT 3"
            answer = session.sql(text, epsilon=epsilon, delta=delta)
        ((frame, salt, exact, _),), (arguments,) = found, read
        ((asked, places),) = exact.items()
        rows = asked.covered
        assert rows
        run, sizes = (
            Measured(places, arguments),
            np.unique(np.asarray(table.column("unit").to_numpy()), return_counts=True)[1],
        )
        for end in (*(first_end(rows) * 2.0**bucket for bucket in range(BUCKETS)), np.inf):
            few = sizes[sizes <= end]
            left = _kept_up_to(frame, rows, salt, min(end, 1e15), session)
            run.truth[end] = (float(few.sum()), left, len(few))
    return run, answer


@dataclass(frozen=True)
class Judged:
    """One release against the truth.

    Attributes:
        is_true: everything that is said.
        tells_part: the least part beyond is a fifth of the true one or more.
        is_near: the lower end is 0.8 of the share up to the size or more.
        is_whole: nobody is beyond the size.

    """

    is_true: bool
    tells_part: bool
    is_near: bool
    is_whole: bool


def _judged(run: Measured, source: NoiseSource) -> Judged:
    """Draw one release of a histogram, read it, and check what is said."""
    drawn = noisy_places(run.exact, run.arguments["sigma"], GAUSSIAN, source)
    noisy: npt.NDArray[np.float64] = np.ldexp(drawn.astype(np.float64), NOISE_GRID_EXPONENT)
    kept = kept_of(noisy, **run.arguments)
    whole, left, units = run.truth[np.inf]
    if not kept.share:
        return Judged(True, False, False, False)
    there, kept_there, number = run.truth[kept.share.size]
    share, part = kept_there / there, 1.0 - there / whole
    return Judged(
        is_true=kept.share.low <= share <= kept.share.high
        and kept.least_beyond <= units - number <= kept.most_beyond
        and kept.part_beyond <= part
        and left / whole <= kept.high_of_all,
        tells_part=kept.part_beyond >= part / 5.0,
        is_near=kept.share.low >= 0.8 * share,
        is_whole=number == units,
    )


def main() -> None:
    """Print a line for each table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--releases", type=int, default=400)
    parser.add_argument("--runs", type=int, default=4)
    asked = parser.parse_args()
    source = NoiseSource(SystemEntropy())
    for number, (name, make) in enumerate(TABLES.items()):
        table = make(np.random.default_rng(number))
        found: list[Judged] = []
        for _ in range(asked.runs):
            run, answer = measured(table, asked.epsilon, asked.delta)
            found += [_judged(run, source) for _ in range(asked.releases // asked.runs)]
        assert answer.receipt
        print(
            f"{name}: {table.num_rows:,} rows, {len(found)} releases: everything is true in "
            f"{sum(one.is_true for one in found)}, the least part beyond is a fifth of the true one in "
            f"{sum(one.tells_part for one in found)}, the lower end is 0.8 of the share in "
            f"{sum(one.is_near for one in found)}; nobody is beyond in {sum(one.is_whole for one in found)}, near in "
            f"{sum(one.is_near and one.is_whole for one in found)} of these\n  {'; '.join(answer.receipt.kept)}"
        )


if __name__ == "__main__":
    main()
