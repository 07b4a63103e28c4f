"""Quantiles and averages that name no bounds, against bounds by hand: half widths, cover and errors.

    python -m benchmarks.quantile_bounds [--releases 3] [--epsilon 0.5] [--delta 1e-6] [--seed 1] [--auto-alone]

Before AUTO chose by purpose, half widths of medians were 151 % by ward, 165 % by status and 764 % by diagnosis, with
the bounds of ``counts``; averages of two known groups had an error of 5.6 %.

Each table is asked for the median and the 95 % quantile of a value by group, and for its average. The policy names the
privacy unit alone. By hand are bounds (m, r) in the policy: m groups of a unit, and r rows of it in a group. ``counts``
are the bounds that AUTO chooses for a count of the same groups. A half width is that of the stated 95 % interval over
the true quantile of all rows. It is averaged over the shown groups and all releases. ``cover`` is the share of these
intervals that hold the quantile of all rows.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import dpsql
from dpsql.assets import asset

Random = np.random.Generator
Integers = npt.NDArray[np.int64]
BY_HAND = ((1, 1), (1, 4), (4, 1), (4, 4))
SHARES = (0.5, 0.95)
_QUANTILES = ", ".join(
    f"quantile_cont(value, {share}) AS q{number}, dp_interval_low(q{number}), dp_interval_high(q{number})"
    for number, share in enumerate(SHARES)
)
Truth = Mapping[str, tuple[float, ...]]
"""Quantiles, and the average, of all rows by group."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Table that is asked, and the bounds of counts.

    Attributes:
        rows: columns unit, key and value.
        counts: groups and rows that AUTO chooses for a count.
        keys: keys that the policy declares public, if any.

    """

    rows: Callable[[Random], pa.Table]
    counts: tuple[int, int]
    keys: tuple[str, ...] = ()


def _table(unit: Integers, key: npt.NDArray[np.generic], value: npt.NDArray[np.float64]) -> pa.Table:
    return pa.table({"unit": unit, "key": key.astype(str), "value": value.round(1)})


def _wards(generator: Random) -> pa.Table:
    """Return ten stays of each of 2,000 patients in eight wards."""
    unit = np.repeat(np.arange(2_000), 10)
    shares = (0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05)
    return _table(unit, generator.choice(8, len(unit), p=shares), 0.5 + generator.gamma(2.0, 3.0, len(unit)))


def _status(generator: Random) -> pa.Table:
    """Return orders of 3,000 customers, 15 each on average, in three states."""
    unit = np.repeat(np.arange(3_000), 1 + generator.poisson(14.0, 3_000))
    key = generator.choice(["open", "done", "partly"], len(unit), p=(0.48, 0.48, 0.04))
    return _table(unit, key, generator.lognormal(4.0, 0.8, len(unit)))


def _clinic(_: Random) -> pa.Table:
    """Return the visits of the sample data, by diagnosis."""
    visits = pq.read_table(asset("sample_data", "clinic", "visits.parquet"))
    return visits.select(["patient_id", "diagnosis", "cost"]).rename_columns(["unit", "key", "value"]).drop_null()


def _two_kinds(generator: Random) -> pa.Table:
    """Return stays of 4,000 patients. One in eight has ten times the rows of others, and stays three times as long."""
    heavy = np.arange(4_000) % 8 == 0
    unit = np.repeat(np.arange(4_000), np.where(heavy, 40, 4))
    value = (1.0 + generator.gamma(2.0, 3.0, len(unit))) * np.where(heavy[unit], 3.0, 1.0)
    return _table(unit, generator.integers(0, 4, len(unit)), value)


def _few_large(generator: Random) -> pa.Table:
    """Return amounts of 5,000 people in two groups; numbers of rows are lognormal."""
    unit = np.repeat(np.arange(5_000), np.ceil(generator.lognormal(2.0, 1.0, 5_000)).astype(np.int64))
    return _table(unit, generator.integers(0, 2, len(unit)), 100.0 * generator.beta(2.0, 5.0, len(unit)))


TABLES: Mapping[str, Measured] = {
    "stay by ward": Measured(_wards, (6, 6)),
    "amount by status": Measured(_status, (3, 16)),
    "cost by diagnosis": Measured(_clinic, (4, 16)),
    "stay, two kinds": Measured(_two_kinds, (4, 16)),
    "amount, known groups": Measured(_few_large, (2, 32), ("0", "1")),
}


def _session(rows: pa.Table, keys: tuple[str, ...], bounds: tuple[int, int] | None) -> dpsql.Session:
    """Return a session with a table, protected with bounds of a unit or without."""
    session = dpsql.connect(threads=2)
    session.connection.register("made", rows)
    session.connection.execute("CREATE TABLE data AS FROM made")
    named = f"max_groups_contributed := {bounds[0]}, max_rows_per_group := {bounds[1]}, " if bounds else ""
    session.sql(
        f"CALL dp_protect('data', privacy_unit_column := 'unit', {named}rho_budget := 1e6, delta_threshold := 0.5, "
        "delta_conversion := 1e-6, coverage := FALSE)"
    )
    if keys:
        session.sql(f"CALL dp_domain('data', 'key', keys := {list(keys)})")
    return session


@dataclass(slots=True)
class Found:
    """Numbers of all releases: of each quantile half widths and whether they hold it; errors of averages; groups."""

    widths: tuple[list[float], list[float]]
    holds: tuple[list[bool], list[bool]]
    errors: list[float]
    groups: list[int]
    bounds: list[str]

    def line(self) -> str:
        """Return the means as columns, and the bounds of each release."""
        means = [f"{np.mean(one):9.1%}" if one else f"{'':9}" for one in (*self.widths, self.errors)]
        cover = [f"{np.mean(one):6.3f}" if one else f"{'':6}" for one in self.holds]
        return f"{means[0]}{means[1]} {' '.join(cover)} {np.mean(self.groups):6.1f}{means[2]}  {' '.join(self.bounds)}"


def _measured(
    rows: pa.Table, keys: tuple[str, ...], bounds: tuple[int, int] | None, truth: Truth, asked: argparse.Namespace
) -> Found:
    """Return the numbers of releases, each in a session of its own, so that AUTO chooses each time."""
    found = Found(([], []), ([], []), [], [], [])
    level: dict[str, Any] = {"epsilon": asked.epsilon, "delta": asked.delta}
    for _ in range(asked.releases):
        with _session(rows, keys, bounds) as session:
            answer = session.sql(f"SELECT key, {_QUANTILES} FROM data GROUP BY key", **level)
            groups = answer.fetchall()
            receipt = str(answer.receipt)
            averages = session.sql("SELECT key, avg(value) FROM data GROUP BY key", **level).fetchall()
        found.groups.append(len(groups))
        for key, *numbers in groups:
            for number, true in enumerate(truth.get(key, ())[: len(SHARES)]):
                _, low, high = numbers[3 * number : 3 * number + 3]
                found.widths[number].append((high - low) / 2.0 / true)
                found.holds[number].append(low <= true <= high)
        found.errors += [abs(value / truth[key][-1] - 1.0) for key, value in averages if value and key in truth]
        if not bounds:
            chosen = re.search(r"max_groups = (\d+)", receipt), re.search(r"at most (\d+) rows? of a", receipt)
            found.bounds.append("x".join(one.group(1) if one else "-" for one in chosen))
    return found


def _truth(rows: pa.Table) -> Truth:
    """Return the quantiles and the average of all rows by group."""
    with duckdb.connect() as connection:
        connection.register("made", rows)
        calls = ", ".join(f"quantile_cont(value, {share})" for share in SHARES)
        found = connection.sql(f"SELECT key, {calls}, avg(value) FROM made GROUP BY key").fetchall()
    return {key: tuple(numbers) for key, *numbers in found}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=0.5)
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--auto-alone", action="store_true")
    asked = parser.parse_args()
    titles = ("median", "95 %", "cover", "cover", "groups", "average")
    print(f"{'table':22}{'bounds':>8}" + "{:>9}{:>9} {:>6} {:>6} {:>6}{:>9}".format(*titles))
    for name, table in TABLES.items():
        rows = table.rows(np.random.default_rng(asked.seed))
        truth, by_hand = _truth(rows), {"counts": table.counts, **{f"{m} x {r}": (m, r) for m, r in BY_HAND}}
        for way, bounds in {"AUTO": None, **({} if asked.auto_alone else by_hand)}.items():
            print(f"{name:22}{way:>8}{_measured(rows, table.keys, bounds, truth, asked).line()}", flush=True)


if __name__ == "__main__":
    main()
