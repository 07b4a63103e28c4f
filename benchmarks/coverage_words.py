"""Count how often the sentences on averages, spreads and sums over AUTO's bounds are true, read as they are printed.

    python -m benchmarks.coverage_words [--epsilon 1] [--releases 400] [--units 10000]

Six tables with nothing declared but the unit; values of two have heavy tails, by a Pareto and a log-normal law. Each
release is an answer for a new version of the table: AUTO chooses anew, under a new secret. Every clause of the receipt
is read by its words, and compared with the rows, values and totals of the units. A clause that nobody can read counts
as false. Beside it, the sentence before these words is read in the same way: its totals are those of a unit's values.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import dpsql
from dpsql.bound.aggregation import bounded_sql
from dpsql.cascade.reader import CURATOR
from dpsql.model.estimates import Estimate, Ratio, Spread
from dpsql.model.frame import PRESENCE, Frame, Norm, Statistic
from dpsql.model.identity import frame_hash
from dpsql.noise.entropy import NoiseSource
from dpsql.receipts import coverage_receipt, phrases
from dpsql.receipts.coverage_lines import CoverageReceipt
from dpsql.release.coverage import Kept
from dpsql.release.noisy_table import kept_shares
from dpsql.sql.statements import SelectStatement, read_statement

Floats = npt.NDArray[np.float64]
_DELTA = 1e-6
_SHARE = r"([\d.]+) %"
_COUNT = r"([\d,]+)"
_NUMBER = r"(-?[\d,.]+(?:e[+-]\d+)?)"


@dataclass(frozen=True)
class Case:
    """A table and a question about it.

    Attributes:
        make: makes the table with a number of units; its columns are unit, key and x.
        question: the question; the rows are named visits.
        values: SQL of the rows that the question is about, with the columns unit and x.

    """

    make: Callable[[int, np.random.Generator], pa.Table]
    question: str
    values: str = "SELECT unit, x FROM visits"


def _table(rows: Floats, values: Callable[[int], Floats], random: np.random.Generator, keys: int = 5) -> pa.Table:
    """Return a table of units with so many rows each."""
    unit = np.repeat(np.arange(len(rows)), rows.astype(np.int64))
    return pa.table({"unit": unit, "key": random.integers(0, keys, len(unit)), "x": values(len(unit))})


def _web_log(units: int, random: np.random.Generator) -> pa.Table:
    rows = np.minimum(np.floor(4.3 * random.pareto(1.2, units)) + 1.0, 3_000.0)
    return _table(rows, np.ones, random)


def _bills(units: int, random: np.random.Generator) -> pa.Table:
    rows = random.integers(1, 5, units).astype(np.float64)
    return _table(rows, lambda count: np.round(random.lognormal(3.0, 2.0, count), 2), random)


def _temperatures(units: int, random: np.random.Generator) -> pa.Table:
    rows = random.poisson(4.0, units).astype(np.float64) + 1.0
    return _table(rows, lambda count: np.round(random.normal(37.0, 1.0, count), 1), random)


def _transfers(units: int, random: np.random.Generator) -> pa.Table:
    rows = random.poisson(6.0, units).astype(np.float64) + 1.0
    return _table(rows, lambda count: np.round(random.normal(0.0, 100.0, count)), random)


def _stars(units: int, random: np.random.Generator) -> pa.Table:
    rows = random.geometric(0.3, units).astype(np.float64)
    return _table(rows, lambda count: random.integers(1, 6, count).astype(np.float64), random, keys=8)


def _incomes(units: int, random: np.random.Generator) -> pa.Table:
    return _table(np.ones(units), lambda count: np.round(20_000.0 * (random.pareto(2.0, count) + 1.0)), random)


_TOTAL = "contribution_bounds_per_group => AUTO"
CASES: Mapping[str, Case] = {
    "web log, Pareto": Case(
        _web_log,
        "SELECT avg(hits) AS a FROM (SELECT unit, count(*) AS hits FROM visits GROUP BY unit)",
        "SELECT unit, count(*) AS x FROM visits GROUP BY unit",
    ),
    "bills, log-normal": Case(_bills, "SELECT avg(x) AS a, stddev(x) AS s, sum(x) AS t FROM visits"),
    "temperatures": Case(_temperatures, "SELECT key, avg(x) AS a, stddev(x) AS s FROM visits GROUP BY key"),
    "transfers": Case(_transfers, f"SELECT avg(x) AS a, sum(x, {_TOTAL}) AS t FROM visits"),
    "stars": Case(_stars, "SELECT key, avg(x) AS a FROM visits GROUP BY key"),
    "incomes, Pareto": Case(_incomes, "SELECT avg(x) AS a, var_pop(x) AS v FROM visits"),
}


@dataclass(frozen=True)
class Units:
    """Facts on each unit: its number of rows, its total, its smallest and its largest value."""

    rows: Floats
    totals: Floats
    lowest: Floats
    highest: Floats


@dataclass(frozen=True)
class Truth:
    """Amounts that are there and that bounds keep, for one column of one release.

    Attributes:
        sizes: of each unit, its number of rows, or the absolute value of its total.
        kept: what bounds keep of units up to a size.
        units: their values and totals.
        norm: the norm of a sum; infinite for others.

    """

    sizes: Floats
    kept: Callable[[float], float]
    units: Units
    norm: float = np.inf

    def share(self, size: float) -> float:
        """Return the share that is kept of units up to a size."""
        return self.kept(size) / float(self.sizes[self.sizes <= size].sum())

    def part_beyond(self, size: float) -> float:
        """Return the part of all that units beyond a size have."""
        return float(self.sizes[self.sizes > size].sum() / self.sizes.sum())

    def share_outside(self, low: float, high: float, *, of_totals: bool) -> float:
        """Return the share of units with a value, or a total, outside bounds."""
        units = self.units
        lowest, highest = (units.totals, units.totals) if of_totals else (units.lowest, units.highest)
        return float(np.mean((lowest < low) | (highest > high)))


def number(text: str) -> float:
    """Return a number as it is printed."""
    return float(text.replace(",", ""))


def is_true(sentence: str, truth: Truth) -> bool:
    """Check every clause of a sentence against the truth. A clause that has no meaning here is false."""
    clauses = sentence.partition(": ")[2].split("; ")
    size = next((number(found[1]) for one in clauses if (found := re.search(r"more than " + _NUMBER, one))), np.inf)
    return all(_holds(clause, truth, size) for clause in clauses)


def _holds(clause: str, truth: Truth, size: float) -> bool:
    """Check one clause; ``size`` is what a clause before it speaks of."""
    if clause.startswith(("it is unknown", "larger bounds")):
        return True
    if found := re.fullmatch(rf"at most {_SHARE} of all .* are counted", clause):
        return truth.share(np.inf) <= float(found[1]) / 100.0
    if found := re.match(rf"at least {_COUNT} and at most {_COUNT} units \(\w+\) have .* more than {_NUMBER}", clause):
        beyond, part = truth.sizes > number(found[3]), re.search(rf"they have at least {_SHARE} of all", clause)
        is_number = number(found[1]) <= beyond.sum() <= number(found[2])
        return is_number and (not part or float(part[1]) / 100.0 <= truth.part_beyond(number(found[3])))
    if found := re.fullmatch(rf"up to {_SHARE} of the units \(\w+\) with \w+ may have (.*)", clause):
        return _share_cut(found[2], truth) <= float(found[1]) / 100.0
    if found := re.fullmatch(rf"at most {_COUNT} units have more, perhaps none", clause):
        return number(found[1]) >= float((truth.sizes > size).sum()) or np.isinf(size)
    named = re.search(rf"with (?:up to {_NUMBER}|(1) of them)", clause)
    of = number(named[1] or named[2]) if named else size
    low, high = re.search(rf"at least {_SHARE} of", clause), re.search(rf"at most {_SHARE} and", clause)
    if not low or np.isinf(of):
        return False
    share = truth.share(of)
    return float(low[1]) / 100.0 <= share <= (float(high[1]) / 100.0 if high else 1.0)


def _share_cut(how: str, truth: Truth) -> float:
    """Return the share of units with values that are changed in a way, as a clause says it."""
    if how.endswith("scaled down"):
        return float(np.mean(np.abs(truth.units.totals) > truth.norm))
    found = re.fullmatch(rf"(\w+).* cut at \[{_NUMBER}, {_NUMBER}\]", how)
    assert found, how
    return truth.share_outside(number(found[2]), number(found[3]), of_totals=found[1] == "totals")


@dataclass(frozen=True)
class Release:
    """One answer: its lines on averages, spreads and sums of both signs, judged.

    Attributes:
        lines: these.
        is_true: whether all their clauses are.
        was_true: whether the sentences before them would be.

    """

    lines: Sequence[CoverageReceipt]
    is_true: bool
    was_true: bool


def was_true(shares: Mapping[Statistic, Kept | None], units: Units) -> bool:
    """Check the sentence before: numbers of units whose values add up, without signs, to more than a size."""
    totals = np.abs(units.totals)
    told = [kept for one, kept in shares.items() if one.kind == "sum" and kept]
    return all(
        int(kept.least_beyond) <= (totals > kept.share.size).sum() <= np.ceil(kept.most_beyond)
        for kept in told
        if kept.share
    )


@contextmanager
def _listening(read: list[Mapping[Statistic, Kept | None]]) -> Iterator[None]:
    """Hand on the shares that a receipt is made of."""

    def listening(*given: Any) -> Mapping[Statistic, Kept | None]:
        read.append(kept_shares(*given))
        return read[-1]

    with patch.object(coverage_receipt, "kept_shares", listening):
        yield


@contextmanager
def opened(
    case: Case, units: int, seed: int, noise: NoiseSource | None = None
) -> Iterator[tuple[dpsql.Session, Units]]:
    """Yield a session with the table of a case, and facts on its units."""
    with dpsql.connect() as session:
        if noise:
            session._runner.noise_source = noise
        session.connection.register("made", case.make(units, np.random.default_rng(seed)))
        session.connection.execute("CREATE TABLE visits AS SELECT * FROM made")
        session.sql("CALL dp_unit('person', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)")
        session.sql("CALL dp_protect('visits', unit := 'person', privacy_unit_column := 'unit')")
        facts = "SELECT count(*) AS n, sum(x)::DOUBLE AS t, min(x)::DOUBLE AS l, max(x)::DOUBLE AS h FROM"
        found = session.connection.execute(f"{facts} ({case.values}) GROUP BY unit").fetchnumpy()
        yield session, Units(*(np.asarray(found[name], dtype=np.float64) for name in ("n", "t", "l", "h")))


def released(session: dpsql.Session, case: Case, units: Units, epsilon: float) -> Release:
    """Ask about a new version of the table, and find the truth of what is said."""
    session.sql("CALL dp_new_version('visits')")
    read: list[Mapping[Statistic, Kept | None]] = []
    with _listening(read):
        answer = session.sql(case.question, epsilon=epsilon, delta=_DELTA)
    statement = read_statement(case.question)
    assert isinstance(statement, SelectStatement)
    assert answer.receipt
    query, state, _ = session._runner.plan(statement, {"epsilon": epsilon, "delta": _DELTA}, CURATOR)
    frame = query.first.frame
    versions = [table for table, _ in frame.rows.table_versions]
    salt = state.side_table.frame_salt(frame_hash(frame), frame.rows.unit, versions)
    lines = [line for line in answer.receipt.coverage if line.values]
    truths = []
    for line in lines:
        estimate = next(one for one in query.first.estimates if line.of.startswith(one.name))
        value = estimate.value.average if isinstance(estimate.value, Spread) else estimate.value
        if isinstance(value, Ratio):
            rows = value.denominator.statistic

            def kept_rows(size: float, rows: Statistic | None = rows) -> float:
                assert rows
                return _kept_up_to(frame, rows, salt, size, session)

            truths.append(Truth(units.rows, kept_rows, units))
            continue
        truths.append(_truth_of_total(estimate, units))
    held = all(is_true(str(line), truth) for line, truth in zip(lines, truths, strict=True))
    return Release(lines, held, was_true(read[-1], units))


def _truth_of_total(estimate: Estimate, units: Units) -> Truth:
    """Return the truth of a sum over all rows, whose total of a unit is clamped and then scaled down."""
    (linear,) = estimate.value.linears
    statistic, bounds = linear.statistic, estimate.value_bounds
    assert statistic
    assert bounds
    norm = statistic.radius if isinstance(statistic.limit, Norm) else np.inf
    left = np.clip(np.clip(units.totals, *bounds.bounds), -norm, norm)
    sizes = np.abs(units.totals)
    kept = np.maximum(sizes - np.abs(units.totals - left), 0.0)
    return Truth(sizes, lambda size: float(kept[sizes <= size].sum()), units, norm)


def _kept_up_to(frame: Frame, rows: Statistic, salt: bytes, size: float, session: dpsql.Session) -> float:
    """Return the rows that bounds keep of the units with at most so many."""
    table = frame.rows_sql.relation
    few = f"(SELECT * FROM {table} WHERE unit IN (SELECT unit FROM {table} GROUP BY unit HAVING count(*) <= {size}))"
    if np.isinf(size):
        few = table
    sql = bounded_sql(replace(frame, rows_sql=replace(frame.rows_sql, relation=few)), (PRESENCE, rows), salt)
    steps, weights = (2.0 ** frame.exact_exponent(one) for one in (rows, PRESENCE))
    found = session.connection.execute(sql).fetchall()
    return float(sum(row[-1] * steps + rows.centre * row[-2] * weights for row in found))


def main() -> None:
    """Print a line for each table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--releases", type=int, default=400)
    parser.add_argument("--units", type=int, default=10_000)
    asked = parser.parse_args()
    for seed, (name, case) in enumerate(CASES.items()):
        begins = monotonic()
        with opened(case, asked.units, seed) as (session, units):
            found = [released(session, case, units, asked.epsilon) for _ in range(asked.releases)]
        said = [line for one in found for line in one.lines]
        ends = [line.most_cut for line in said if line.most_cut < 1.0]
        print(
            f"{name}: true in {sum(one.is_true for one in found)} of {len(found)} releases, the sentence before in "
            f"{sum(one.was_true for one in found)}; {len(ends)} of {len(said)} lines name a share of units with cut "
            f"values, in the middle {phrases.at_most(float(np.median(ends)) if ends else 1.0)}; "
            f"{monotonic() - begins:.0f} s\n  {'; '.join(map(str, found[-1].lines))}",
            flush=True,
        )


if __name__ == "__main__":
    main()
