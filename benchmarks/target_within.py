"""Cells that ``dp_within_target`` calls within the error of a question, beside the true numbers of all rows.

    python -m benchmarks.target_within [--seeds 4]                # two minutes of one core

Eight tables. Three have heavy tails: of rows of a person, of both rows and groups, and of groups with values beyond the
bounds. One has a narrow policy: the flights with 2 months of an aircraft and 20 rows in each. Of the other four, bounds
cut nothing: constraints say so of two, the number of keys says it of people in one, and the rows alone in the last one.
Four columns are asked by themselves: people, rows, sums and averages, each at three relative errors. A cell is truly
within if the shown number is within the error of the number of all rows, without bounds. Noise is seeded; the rows of a
person that count differ from run to run.

Claims: of the cells that say TRUE, at least 90 % are truly within, on each table and of each column. On tables whose
bounds cut nothing, at least 40 % of the cells that are truly within say TRUE, of each column over all of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import dpsql
from dpsql.assets import asset
from tests.end_to_end.prepared import with_own_state
from tests.noise_sources import seeded_noise

LEAST_TRUE, LEAST_SAID = 0.9, 0.4
ERRORS = (0.05, 0.1, 0.2)
FEWEST = 20
"""A share of fewer cells than this is printed, and no claim is about it."""
UNIT = "rho_budget := 1e9, delta_threshold := 0.9, delta_conversion := 1e-6"
MAX_RHO = 64.0
BOUNDED = ", contribution_bounds_per_row => (0, 40)"

Integers = npt.NDArray[np.int64]
Random = np.random.Generator


@dataclass(frozen=True)
class Table:
    """A table with its policy.

    Attributes:
        name: what is printed.
        make: makes person and key of each row.
        keys: number of public keys.
        groups, rows: bounds of a person.
        constraint: of the table, in SQL.
        is_cut: whether bounds cut rows or values.
        bounds: argument of the sum and the average that names narrower bounds than the domain.

    """

    name: str
    make: Callable[[Random], tuple[Integers, Integers]]
    keys: int
    groups: int
    rows: int
    constraint: str = ""
    is_cut: bool = True
    bounds: str = ""

    @property
    def columns(self) -> Mapping[str, str]:
        """Aggregates by the names that are printed."""
        return {
            "people": "count(DISTINCT unit)",
            "rows": "count(*)",
            "sum": f"sum(value{self.bounds})",
            "average": f"avg(value{self.bounds})",
        }


@dataclass(frozen=True)
class Cell:
    """A cell of an answer: what is said of it, and whether it is truly within the error."""

    says: bool | None
    is_within: bool


def _zipf(random: Random, size: int, keys: int, exponent: float) -> Integers:
    """Return keys by a Zipf law."""
    odds = np.arange(1, keys + 1) ** -exponent
    return random.choice(keys, size, p=odds / odds.sum()).astype(np.int64)


def _in_groups(random: Random, groups: Integers, keys: int, exponent: float) -> tuple[Integers, Integers]:
    """Return one row of each person in each of a number of different keys, by a Zipf law."""
    odds = np.log(np.arange(1, keys + 1) ** -exponent)
    # the first keys of a random order in which larger keys come earlier
    order = np.argsort(-(odds + random.gumbel(size=(len(groups), keys))), axis=1)
    chosen = np.arange(keys) < groups[:, None]
    return np.repeat(np.arange(len(groups)), groups), order[chosen].astype(np.int64)


def _repeated(random: Random, rows: tuple[Integers, Integers], most: int) -> tuple[Integers, Integers]:
    """Return each row up to a number of times."""
    times = random.integers(1, most + 1, len(rows[0]))
    return np.repeat(rows[0], times), np.repeat(rows[1], times)


def _web_log(random: Random) -> tuple[Integers, Integers]:
    """Return rows of people by a Pareto law, on 12 keys."""
    rows = np.minimum(np.floor(2.0 * random.pareto(1.2, 5_000)) + 1.0, 3_000.0).astype(np.int64)
    return np.repeat(np.arange(len(rows)), rows), _zipf(random, int(rows.sum()), 12, 0.8)


def _shop(random: Random) -> tuple[Integers, Integers]:
    """Return rows of people by a log-normal law; busy people have other keys than the rest."""
    rows = np.minimum(np.ceil(random.lognormal(0.5, 1.5, 6_000)), 2_000.0).astype(np.int64)
    person = np.repeat(np.arange(len(rows)), rows)
    busy = rows[person] > 20
    return person, np.where(busy, 9 - _zipf(random, len(person), 10, 1.0), _zipf(random, len(person), 10, 1.0))


def _places(random: Random) -> tuple[Integers, Integers]:
    """Return one row of people in some of 30 keys; their numbers of keys follow a Pareto law."""
    groups = np.minimum(np.floor(random.pareto(0.9, 8_000)) + 1.0, 30.0).astype(np.int64)
    return _in_groups(random, groups, 30, 0.7)


def _patients(random: Random) -> tuple[Integers, Integers]:
    """Return one row of each person."""
    return np.arange(12_000), _zipf(random, 12_000, 10, 1.0)


def _members(random: Random) -> tuple[Integers, Integers]:
    """Return one row of people in each of some of 8 keys."""
    return _in_groups(random, random.integers(1, 9, 4_000), 8, 1.2)


def _meters(random: Random) -> tuple[Integers, Integers]:
    """Return one to three rows of people in each of some of 6 keys."""
    return _repeated(random, _in_groups(random, random.integers(1, 5, 5_000), 6, 1.5), 3)


def _visits(random: Random) -> tuple[Integers, Integers]:
    """Return one or two rows of people in each of up to 5 of 8 keys."""
    return _repeated(random, _in_groups(random, random.integers(1, 6, 6_000), 8, 1.2), 2)


TABLES = (
    Table("web log (heavy rows)", _web_log, 12, 12, 10),
    Table("shop (heavy, uneven)", _shop, 10, 4, 20),
    Table("places (heavy groups)", _places, 30, 4, 1, bounds=BOUNDED),
    Table("patients (unique)", _patients, 10, 1, 1, "UNIQUE (unit)", is_cut=False),
    Table("members (unique in group)", _members, 8, 8, 1, "UNIQUE (unit, key)", is_cut=False),
    Table("meters (all groups)", _meters, 6, 6, 4, is_cut=False),
    Table("visits (rows say so)", _visits, 8, 6, 4, is_cut=False),
)
FLIGHTS = Table("flights (2 months, 20 rows)", _visits, 12, 2, 20)
"""The flights by month; their rows come from a file."""


@contextmanager
def opened(table: Table) -> Iterator[dpsql.Session]:
    """Open a session on a table with its policy."""
    with dpsql.connect(":memory:", state=None, threads=1) as session:
        keys: Iterable[int] = range(table.keys)
        if table is FLIGHTS:
            keys = range(1, 13)
            file = asset("sample_data", "flights.parquet")
            session.connection.execute(
                "CREATE TABLE data AS SELECT tailnum AS unit, month AS key, distance AS value "
                f"FROM '{file}' WHERE tailnum IS NOT NULL"
            )
        else:
            random = np.random.default_rng(len(table.name))
            unit, key = table.make(random)
            value = np.minimum(random.gamma(2.0, 15.0, len(unit)), 100.0)
            made = pa.table({"unit": unit, "key": key, "value": value})
            session.connection.register("made", made)
            constraint = f", {table.constraint}" if table.constraint else ""
            session.connection.execute(f"CREATE TABLE data (unit BIGINT, key BIGINT, value DOUBLE{constraint})")
            session.connection.execute("INSERT INTO data FROM made")
        most = 5_000 if table is FLIGHTS else 100
        for statement in (
            f"CALL dp_protect('data', privacy_unit_column := 'unit', max_groups_contributed := {table.groups}, "
            f"max_rows_per_group := {table.rows}, {UNIT})",
            f"CALL dp_domain('data', 'key', keys := {list(keys)})",
            f"CALL dp_domain('data', 'value', bounds := [0, {most}])",
        ):
            session.sql(statement)
        yield session


def cells(session: dpsql.Session, aggregate: str, error: float, seeds: int) -> Iterator[Cell]:
    """Yield the cells of one question, asked in sessions that hold nothing but the policy."""
    plain = aggregate.replace(BOUNDED, "")
    true = dict(session.connection.execute(f"SELECT key, {plain} FROM data GROUP BY key").fetchall())
    text = (
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (target_relative_error = {error!r}, max_rho = {MAX_RHO!r}) "
        f"key, {aggregate} AS n, dp_within_target(n) AS says FROM data GROUP BY key"
    )
    for seed in range(seeds):
        with with_own_state(session) as own:
            own._runner.noise_source = seeded_noise(1_000 + seed)
            for key, number, says in own.sql(text).fetchall():
                whole = float(true.get(key, 0.0))
                yield Cell(says, number is not None and abs(float(number) - whole) <= error * abs(whole))


def share(found: Sequence[bool]) -> float:
    """Return the share of cells of which something holds; NaN of none."""
    return sum(found) / len(found) if found else float("nan")


def truth(found: Iterable[Cell]) -> list[bool]:
    """Return of each cell that says TRUE if it is truly within."""
    return [one.is_within for one in found if one.says]


def said(found: Iterable[Cell]) -> list[bool]:
    """Return of each cell that is truly within if it says TRUE."""
    return [one.says is True for one in found if one.is_within]


def measure(tables: Sequence[Table], seeds: int) -> dict[tuple[Table, str], list[Cell]]:
    """Ask all questions, and print a line for each table and column."""
    print(f"{'':28} {'':8} {'cells':>5} {'TRUE':>5} {'truly within':>12} {'of all within':>14}  seconds")
    found: dict[tuple[Table, str], list[Cell]] = {}
    for table in tables:
        with opened(table) as session:
            for column, aggregate in table.columns.items():
                began = time.perf_counter()
                one = [cell for error in ERRORS for cell in cells(session, aggregate, error, seeds)]
                found[table, column] = one
                recall = "" if table.is_cut else f"{share(said(one)):.0%}"
                print(
                    f"{table.name:28} {column:8} {len(one):5} {len(truth(one)):5} {share(truth(one)):12.0%} "
                    f"{recall:>14} {time.perf_counter() - began:8.1f}",
                    flush=True,
                )
    return found


def claims(found: Mapping[tuple[Table, str], Sequence[Cell]]) -> Iterator[tuple[str, list[bool], float]]:
    """Yield each claim with the cells that it is about, and the least share of them that must be right."""
    names = dict.fromkeys(column for _, column in found)
    for (table, column), some in found.items():
        yield f"{table.name}, {column}: TRUE is truly within", truth(some), LEAST_TRUE
    for column in names:
        clean = [one for (table, name), some in found.items() if name == column and not table.is_cut for one in some]
        yield f"{column}: within says TRUE where nothing is cut", said(clean), LEAST_SAID


def main() -> None:
    """Print the figures and the claims; end with an error if one fails."""
    parser = argparse.ArgumentParser(description="Cells that say TRUE, beside the true numbers.")
    parser.add_argument("--seeds", type=int, default=4)
    asked = parser.parse_args()
    began = time.perf_counter()
    found = measure((*TABLES[:3], FLIGHTS, *TABLES[3:]), asked.seeds)
    failed = 0
    clean = [one for (table, _), some in found.items() if not table.is_cut for one in some]
    print(f"of all cells that are within where nothing is cut, {share(said(clean)):.0%} say TRUE")
    for name, cells_of, least in claims(found):
        if len(cells_of) >= FEWEST and share(cells_of) < least:
            failed += 1
            print(f"FAILS: {name}: {share(cells_of):.0%} of {len(cells_of)} cells, must be {least:.0%}")
    print(f"{failed} claims fail ({time.perf_counter() - began:.0f} s)" if failed else "all claims hold")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
