"""Rows that bounds leave out if nothing is named: how wrong numbers are, and how much an answer says of it.

    python -m benchmarks.left_out [--epsilon 1] [--delta 1e-6] [--releases 12] [--tables forum …]

Each table of `left_out_tables` is asked for its number by key, with nothing declared but the unit, and a domain for
amounts. Each release has a state of its own, so AUTO, keys, coverage and numbers are drawn anew. Noise is seeded; the
secrets by which groups are chosen differ from run to run. A question by relative error follows, in a state of its own.
Printed of each table are means over the releases:

    left out   share of the rows, or of the amount, in shown groups that bounds leave out; without noise
    error      relative error of the numbers of the 10 largest groups, as far as they are shown
    unbounded  error of ``dp_unbounded`` over that of the numbers; a NULL of it counts as the number itself
    bias       number less true number, as a part of this, over the same groups; of numbers and of ``dp_unbounded``
    too low    how often an answer begins with "too low"
    at least   how often the lower end of what is left out is not above what is left out
    within     part of the cells that a question by relative error calls within 10 % and that are, over all releases;
               and the number of cells that an interval of the bounded number alone would call so

Beside each release its number of rows left out is drawn again many times, from its exact value, cut and level. The
columns on "too low" and on "at least" are over these draws. `left_out_claims` has the claims.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any
from unittest.mock import patch

import numpy as np

import dpsql
from benchmarks.left_out_claims import CUT, Cell, Measured, Release, claims
from benchmarks.left_out_tables import TABLES, Table
from dpsql.bound.aggregation import bounded_sql
from dpsql.bound.left_out import PART_BITS
from dpsql.model.frame import PRESENCE, Frame, Statistic
from dpsql.release import left_out_stage
from dpsql.release.left_out_stage import read_left_out
from tests.end_to_end.prepared import with_own_state
from tests.noise_sources import seeded_noise

LARGEST, TARGET = 10, 0.1
_QUESTION = "SELECT key, {number} AS n, dp_unbounded(n) AS whole FROM data GROUP BY key"
_BY_ERROR = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (target_relative_error = {error}, max_epsilon = {epsilon!r}, "
    "delta = {delta!r}) key, {number} AS n, dp_within_target(n) AS is_within, dp_interval_low(n) AS low, "
    "dp_interval_high(n) AS high FROM data GROUP BY key"
)

COLUMNS: dict[str, Callable[[Measured], str]] = {
    "groups": lambda one: f"{one.mean(lambda release: len(release.true)):.0f}",
    "left out": lambda one: f"{one.mean(lambda release: release.part_left_out):.1%}",
    "error": lambda one: f"{one.error(lambda release: release.numbers):.3f}",
    "unbounded": lambda one: f"{one.ratio:.2f}",
    "bias": lambda one: f"{one.bias(lambda release: release.numbers):+.3f}",
    "of unbounded": lambda one: f"{one.bias(lambda release: release.estimate):+.3f}",
    "too low": lambda one: f"{one.part_too_low:.0%}",
    "at least": lambda one: f"{one.part_held:.1%}",
    "within": lambda one: one.within,
}
"""A heading, and the cell of each table below it. A further figure is a field of `Release`, and a row here."""


@dataclass(frozen=True)
class _Read:
    """Exact value of a number of rows left out, and the frame that it was read for.

    Attributes:
        frame: the groups.
        salt: the secret by which they are chosen.
        number: the bounded number.
        exact: what is left out of the shown groups, each person cut, without noise.

    """

    frame: Frame
    salt: bytes
    number: Statistic
    exact: float


@contextmanager
def _listening(found: list[_Read]) -> Iterator[None]:
    """Hand on what is read for each number of rows left out."""

    def reading(
        frame: Frame, cuts: Sequence[tuple[Statistic, int]], salt: bytes, *of: Any, **named: Any
    ) -> Mapping[Statistic, int]:
        exact = read_left_out(frame, cuts, salt, *of, **named)
        found.extend(_Read(frame, salt, one, exact[one] * 2.0 ** (cut - PART_BITS)) for one, cut in cuts)
        return exact

    with patch.object(left_out_stage, "read_left_out", reading):
        yield


def _kept(read: _Read, session: dpsql.Session) -> dict[str, float]:
    """Return what bounds keep of a number in each group, without noise."""
    frame, number = read.frame, read.number
    sql = bounded_sql(frame, (PRESENCE, number), read.salt)
    steps, weights = (2.0 ** frame.exact_exponent(one) for one in (number, PRESENCE))
    rows = session.connection.execute(sql).fetchall()
    return {row[0]: row[-1] * steps + number.centre * row[-2] * weights for row in rows}


def released(
    session: dpsql.Session, text: str, number: int, true: dict[str, float], asked: argparse.Namespace
) -> Release:
    """Ask once, and find what bounds kept."""
    found: list[_Read] = []
    with _listening(found):
        answer = session.sql(text, epsilon=asked.epsilon, delta=asked.delta)
    shown, receipt = answer.arrow(), answer.receipt
    assert receipt
    (read,), (left_out,) = found, receipt.left_out
    kept = _kept(read, session)
    keys = shown.column("key").to_pylist()
    numbers, whole = (shown.column(name).to_numpy().astype(np.float64) for name in ("n", "whole"))
    largest = sorted(true, key=lambda key: -true[key])[:LARGEST]
    return Release(
        true=np.array([true[key] for key in keys]),
        kept=np.array([kept[key] for key in keys]),
        numbers=numbers,
        whole=whole,
        is_largest=np.isin(keys, largest),
        found=left_out.found,
        exact=read.exact,
        begins_too_low=str(answer).strip().rpartition("\n\n")[2].startswith("too low "),
        number=number,
    )


def cells_of(session: dpsql.Session, text: str, true: dict[str, float]) -> list[Cell]:
    """Ask by relative error, and return the cells of the answer."""
    cells = []
    for row in session.sql(text).arrow().to_pylist():
        number, truth = row["n"], true[row["key"]]
        half_width = max(row["high"] - number, number - row["low"])
        is_within = abs(number - truth) <= TARGET * truth
        cells.append(Cell(bool(row["is_within"]), half_width <= TARGET * abs(number), is_within))
    return cells


def measured(name: str, table: Table, seed: int, asked: argparse.Namespace) -> Measured:
    """Ask a table many times, each time with a new state."""
    begins, releases, cells = monotonic(), [], list[Cell]()
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
                releases.append(released(own, text, release, true, asked))
            with with_own_state(session) as own:
                own._runner.noise_source = seeded_noise(release)
                cells += cells_of(own, by_error, true)
    return Measured(name, table, tuple(releases), tuple(cells), monotonic() - begins)


def main() -> None:
    """Print a line for each table, and the claims; the exit status says whether they hold."""
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
    claimed = list(claims(found))
    print(f"{sum(one.seconds for one in found):.0f} seconds", *claimed, sep="\n")
    false = [one.name for one in found if one.is_cut != one.table.is_cut]
    for name in false:
        print(f"FAILS: {name} is{' not' if TABLES[name].is_cut else ''} cut by more than {CUT:.0%}")
    raise SystemExit(bool(false) or any(one.fails for one in claimed))


if __name__ == "__main__":
    main()
