"""Rows that bounds leave out if nothing is named: how wrong numbers are, and how much an answer says of it.

    python -m benchmarks.left_out [--epsilon 1] [--delta 1e-6] [--releases 12] [--tables forum …]

Each table of `left_out_tables` is asked for its number by key, with nothing declared but the unit, and a domain for
amounts. Each release has a state of its own, so AUTO, keys, coverage and numbers are drawn anew. Noise is seeded; the
secrets by which groups are chosen differ from run to run. A question by relative error follows, in a state of its own.
Printed of each table are means over the releases:

    left out    share of the rows, or of the amount, in shown groups that bounds leave out; without noise
    error       relative error of the numbers of the 10 largest groups, as far as they are shown
    unbounded   error of ``dp_unbounded`` over that of the numbers; a NULL of it counts as the number itself
    bias        number less true number, as a part of this, over the same groups; of numbers and of ``dp_unbounded``
    first line  median of the lower end of the share with which the line on bounds begins
    within      part of the cells that a question by relative error calls within 10 % and that are, over all releases

Claims: bounds leave out more than 8 % of each table that is called cut, and less than 8 % of the others.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from unittest.mock import patch

import numpy as np

import dpsql
from benchmarks.left_out_tables import TABLES, Floats, Table
from dpsql.answer import stage
from dpsql.answer.exact import Exact, Reading, Runtime, read_exact
from dpsql.bound.aggregation import bounded_sql
from dpsql.model.frame import PRESENCE, Frame, Statistic
from tests.end_to_end.prepared import with_own_state
from tests.noise_sources import seeded_noise

CUT, LARGEST, TARGET = 0.08, 10, 0.1
_QUESTION = "SELECT key, {number} AS n, dp_unbounded(n) AS whole FROM data GROUP BY key"
_BY_ERROR = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (target_relative_error = {error}, max_epsilon = {epsilon!r}, "
    "delta = {delta!r}) key, {number} AS n, dp_within_target(n) AS is_within FROM data GROUP BY key"
)


@dataclass(frozen=True)
class Release:
    """One answer beside the truth; arrays are over the groups that are shown.

    Attributes:
        true: the number of all rows.
        kept: what bounds keep of it, without noise.
        numbers: the number that is shown.
        whole: ``dp_unbounded``.
        line: the lower end of the share with which the line on bounds begins; None if it begins otherwise.
        is_largest: whether a group is one of the largest of all.

    """

    true: Floats
    kept: Floats
    numbers: Floats
    whole: Floats
    line: float | None
    is_largest: np.typing.NDArray[np.bool_]

    @property
    def left_out(self) -> float:
        """Rows, or the amount, in shown groups that bounds leave out."""
        return float((self.true - self.kept).sum())

    @property
    def part_left_out(self) -> float:
        """Share of all in shown groups that bounds leave out."""
        return self.left_out / float(self.true.sum())

    def errors(self, numbers: Floats) -> Floats:
        """Return the relative errors, with their signs, of numbers of the largest groups."""
        errors: Floats = (numbers / self.true - 1.0)[self.is_largest]
        return errors

    @property
    def estimate(self) -> Floats:
        """Number that a reader has by ``dp_unbounded``: the bounded one if that is NULL."""
        return np.where(np.isnan(self.whole), self.numbers, self.whole)


@dataclass(frozen=True)
class Measured:
    """Releases of a table, and the cells that questions by relative error call within it.

    Attributes:
        name: the name of the table.
        table: the table.
        releases: the releases.
        cells: for each cell that is called within the error, whether it is.
        seconds: the time of all.

    """

    name: str
    table: Table
    releases: tuple[Release, ...]
    cells: tuple[bool, ...]
    seconds: float

    def mean(self, of: Callable[[Release], float]) -> float:
        """Return a mean over the releases."""
        return statistics.fmean(map(of, self.releases))

    def error(self, of: Callable[[Release], Floats]) -> float:
        """Return the mean relative error of numbers of the largest groups."""
        return self.mean(lambda one: float(np.mean(np.abs(one.errors(of(one))))))

    def bias(self, of: Callable[[Release], Floats]) -> float:
        """Return the mean relative error with its sign."""
        return self.mean(lambda one: float(np.mean(one.errors(of(one)))))

    @property
    def ratio(self) -> float:
        """Error of ``dp_unbounded`` over that of the numbers."""
        return self.error(lambda one: one.estimate) / self.error(lambda one: one.numbers)

    @property
    def first_line(self) -> str:
        """Median of the share with which the line on bounds begins."""
        shares = [one.line for one in self.releases if one.line is not None]
        return f"{statistics.median(shares):.0%}" if shares else "none"

    @property
    def within(self) -> str:
        """Part of the cells called within the error that are."""
        return f"{statistics.fmean(self.cells):.0%} of {len(self.cells)}" if self.cells else "no cells"


COLUMNS: dict[str, Callable[[Measured], str]] = {
    "groups": lambda one: f"{one.mean(lambda release: len(release.true)):.0f}",
    "left out": lambda one: f"{one.mean(lambda release: release.part_left_out):.1%}",
    "error": lambda one: f"{one.error(lambda release: release.numbers):.3f}",
    "unbounded": lambda one: f"{one.ratio:.2f}",
    "bias": lambda one: f"{one.bias(lambda release: release.numbers):+.3f}",
    "of unbounded": lambda one: f"{one.bias(lambda release: release.estimate):+.3f}",
    "first line": lambda one: one.first_line,
    "within": lambda one: one.within,
}
"""A heading, and the cell of each table below it. A further figure is a field of `Release`, and a row here."""


@contextmanager
def _listening(found: list[tuple[Frame, bytes, Statistic]]) -> Iterator[None]:
    """Hand on the frame, the salt and the bounded number of each reading with coverage."""

    def reading(reading: Reading, salt: bytes, runtime: Runtime, timeout: float | None) -> Exact:
        covered = (one.covered for one in reading.bounded.coverage)
        found.extend((reading.bounded.frame, salt, one) for one in covered if one and one.kind != "presence")
        return read_exact(reading, salt, runtime, timeout)

    with patch.object(stage, "read_exact", reading):
        yield


def _kept(frame: Frame, salt: bytes, number: Statistic, session: dpsql.Session) -> dict[str, float]:
    """Return what bounds keep of a number in each group, without noise."""
    sql = bounded_sql(frame, (PRESENCE, number), salt)
    steps, weights = (2.0 ** frame.exact_exponent(one) for one in (number, PRESENCE))
    rows = session.connection.execute(sql).fetchall()
    return {row[0]: row[-1] * steps + number.centre * row[-2] * weights for row in rows}


def released(session: dpsql.Session, text: str, epsilon: float, delta: float, true: dict[str, float]) -> Release:
    """Ask once, and find what bounds kept."""
    found: list[tuple[Frame, bytes, Statistic]] = []
    with _listening(found):
        answer = session.sql(text, epsilon=epsilon, delta=delta)
    shown, receipt = answer.arrow(), answer.receipt
    assert receipt
    kept = _kept(*found[-1], session)
    keys = shown.column("key").to_pylist()
    number, whole = (shown.column(name).to_numpy().astype(np.float64) for name in ("n", "whole"))
    largest = sorted(true, key=lambda key: -true[key])[:LARGEST]
    first = min(receipt.coverage, key=lambda one: one.sureness)
    return Release(
        true=np.array([true[key] for key in keys]),
        kept=np.array([kept[key] for key in keys]),
        numbers=number,
        whole=whole,
        line=None if first.share is None or first.values else first.low,
        is_largest=np.isin(keys, largest),
    )


def called_within(session: dpsql.Session, text: str, true: dict[str, float]) -> list[bool]:
    """Ask by relative error, and return for each cell that is called within it whether it is."""
    shown = session.sql(text).arrow()
    return [
        abs(row["n"] - true[row["key"]]) <= TARGET * true[row["key"]] for row in shown.to_pylist() if row["is_within"]
    ]


def measured(name: str, table: Table, seed: int, asked: argparse.Namespace) -> Measured:
    """Ask a table many times, each time with a new state."""
    begins, releases, cells = monotonic(), [], list[bool]()
    text = _QUESTION.format(number=table.number)
    by_error = _BY_ERROR.format(number=table.number, error=TARGET, epsilon=asked.epsilon, delta=asked.delta)
    with dpsql.connect(threads=2, allow_unsigned_extensions=True) as session:
        session.connection.register("made", table.make(np.random.default_rng(seed)))
        session.connection.execute("CREATE TABLE data AS FROM made")
        session.sql(
            "CALL dp_protect('data', privacy_unit_column := 'person', epsilon_budget := 100, delta_budget := 1e-3)"
        )
        if table.domain:
            session.sql(f"CALL dp_domain('data', 'amount', bounds := {list(table.domain)})")
        true = dict(session.connection.sql(f"SELECT key, {table.number} FROM data GROUP BY key").fetchall())
        for release in range(asked.releases):
            with with_own_state(session) as own:
                own._runner.noise_source = seeded_noise(release)
                releases.append(released(own, text, asked.epsilon, asked.delta, true))
            with with_own_state(session) as own:
                own._runner.noise_source = seeded_noise(release)
                cells += called_within(own, by_error, true)
    return Measured(name, table, tuple(releases), tuple(cells), monotonic() - begins)


def summary(found: Sequence[Measured]) -> Iterator[str]:
    """Yield a line on the tables that are cut, and one on the others."""
    for is_cut in (True, False):
        few = [one for one in found if one.table.is_cut == is_cut]
        if few:
            ratios = [one.ratio for one in few]
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            yield (
                f"{len(few)} tables that are {'cut' if is_cut else 'hardly cut'}: error of dp_unbounded over that of "
                f"the numbers {mean:.2f} in the geometric mean, {max(ratios):.2f} at most"
            )


def main() -> None:
    """Print a line for each table; the exit status says whether each table is cut as it is called."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--releases", type=int, default=12)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES), metavar="TABLE")
    asked = parser.parse_args()
    print(f"| table | {' | '.join(COLUMNS)} |\n|{' --- |' * (1 + len(COLUMNS))}")
    found = []
    for seed, (name, table) in enumerate(TABLES.items()):
        if name in asked.tables:
            one = measured(name, table, seed, asked)
            print(f"| {name} | {' | '.join(cell(one) for cell in COLUMNS.values())} |", flush=True)
            found.append(one)
    print(*summary(found), f"{sum(one.seconds for one in found):.0f} seconds", sep="\n")
    false = [one.name for one in found if (one.mean(lambda release: release.part_left_out) > CUT) != one.table.is_cut]
    for name in false:
        print(f"{name}: FAILS, it is{' not' if TABLES[name].is_cut else ''} cut by more than {CUT:.0%}")
    raise SystemExit(bool(false))


if __name__ == "__main__":
    main()
