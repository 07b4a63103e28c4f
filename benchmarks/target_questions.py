"""Questions by relative error through SQL: their best level in hindsight, and walks in sessions without history.

The best level is the lowest one of the grid at which half of the fresh releases meet the rule, with the interval of a
level that was fixed beforehand. Nobody knows it without paying for it. Noise is seeded; the rows of a unit that count
differ from run to run.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

import dpsql
from dpsql.assets import asset
from dpsql.cascade.reader import CURATOR, Reader
from dpsql.engine import DuckDBEngine, Sandbox
from dpsql.features.target_levels import capped, steps_up
from dpsql.model.frame import NANO
from dpsql.model.query_kinds import WithinTarget
from dpsql.plan.environment.policy_view import environment
from dpsql.plan.planner import plan_query
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end.prepared import with_own_state
from tests.noise_sources import seeded_noise

EXPLORED = 64.0
"""The best level is looked for up to this one."""
_LEAST_CAP = 0.07
"""The window of a lower cap begins below the levels that the option ``rho_window`` takes."""
_UNIT = "rho_budget := 1e9, delta_threshold := 0.9, delta_conversion := 1e-6"


@dataclass(frozen=True)
class Question:
    """A question by relative error on the table ``data``.

    Attributes:
        name: for the printed table.
        columns: aliases and aggregates.
        key: the column that groups.
        error: relative error of the target.
        at_least: share of groups.
        options: further options.
        is_private: whether the keys are hidden by a threshold.
        limit: number of rows, those with the largest numbers of the first column; 0 for all.

    """

    name: str
    columns: tuple[tuple[str, str], ...]
    key: str
    error: float
    at_least: float = 0.9
    options: str = ""
    is_private: bool = False
    limit: int = 0

    def text(self, options: str, *, with_intervals: bool = False) -> str:
        """Return the question with options in SQL."""
        selected = [f"{value} AS {alias}" for alias, value in self.columns]
        if with_intervals:
            selected += [
                f"dp_interval_{end}({alias}) AS {alias}_{end}" for alias, _ in self.columns for end in ("low", "high")
            ]
        given = ", ".join(filter(None, (options, self.options)))
        rows = f" ORDER BY {self.columns[0][0]} DESC LIMIT {self.limit}" if self.limit else ""
        return (
            f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({given}) {self.key}, {', '.join(selected)} "
            f"FROM data GROUP BY {self.key}{rows}"
        )

    def by_target(self, max_rho: float) -> str:
        """Return the question by relative error in SQL."""
        options = f"target_relative_error = {self.error!r}, at_least = {self.at_least!r}, max_rho = {max_rho:.9f}"
        return self.text(options, with_intervals=self.limit > 0)


@dataclass(frozen=True)
class Walk:
    """A question by relative error that was answered.

    Attributes:
        price: in nano-rho.
        steps: number of releases.
        is_reached: whether the target is met.
        rows: the answer.

    """

    price: int
    steps: int
    is_reached: bool
    rows: pa.Table


@dataclass(frozen=True)
class Outcome:
    """Runs of a question, and the best level in nano-rho."""

    question: Question
    best: int
    walks: tuple[Walk, ...]

    @property
    def ratios(self) -> list[float]:
        """Price over best of each run."""
        return [walk.price / self.best for walk in self.walks]

    @property
    def median(self) -> float:
        """Median of price over best."""
        return statistics.median(self.ratios)

    @property
    def steps(self) -> float:
        """Mean number of steps."""
        return statistics.fmean(walk.steps for walk in self.walks)

    @property
    def reached(self) -> int:
        """Number of runs that met the target."""
        return sum(walk.is_reached for walk in self.walks)


@contextmanager
def declared(table: pa.Table | str, groups: int, rows: int, domains: Sequence[str]) -> Iterator[dpsql.Session]:
    """Open a session on a table whose unit, domains and bounds (groups of a unit, and rows in each) are declared."""
    with dpsql.connect(":memory:", state=None, threads=1) as session:
        if isinstance(table, str):
            session.connection.execute(table)
        else:
            session.connection.register("made", table)
            session.connection.execute("CREATE TABLE data AS FROM made")
        session.sql(
            "CALL dp_protect('data', privacy_unit_column := 'unit', coverage := FALSE, "
            f"max_groups_contributed := {groups}, max_rows_per_group := {rows}, {_UNIT})"
        )
        for domain in domains:
            session.sql(f"CALL dp_domain('data', {domain})")
        yield session


@contextmanager
def flights(groups: int, rows: int, *others: str) -> Iterator[dpsql.Session]:
    """Open a session on the flights with bounds of an aircraft; destinations stay private.

    Args:
        groups: most groups of an aircraft that count.
        rows: most of its rows in a group that count.
        others: further domains that are declared.

    """
    file = asset("sample_data", "flights.parquet")
    with duckdb.connect() as plain:
        carriers = [row[0] for row in plain.sql(f"SELECT DISTINCT carrier FROM '{file}' ORDER BY carrier").fetchall()]
    domains = (
        "'origin', keys := ['EWR', 'JFK', 'LGA']",
        f"'month', keys := {list(range(1, 13))}",
        f"'carrier', keys := {carriers}",
        "'distance', bounds := [0, 3000]",
    )
    table = f"CREATE TABLE data AS SELECT tailnum AS unit, * FROM '{file}' WHERE tailnum IS NOT NULL"
    with declared(table, groups, rows, (*domains, *others)) as session:
        yield session


def is_within(question: Question, shown: pa.Table) -> bool:
    """Return whether enough groups of each column are within the target by the intervals that are shown."""
    if shown.num_rows < question.limit:
        return False
    for alias, _ in question.columns:
        value, low, high = (
            shown.column(name).to_numpy(zero_copy_only=False).astype(np.float64)
            for name in (alias, f"{alias}_low", f"{alias}_high")
        )
        # the interval of an average is not symmetric, and a count is shown rounded
        half_widths = (high - low) / 2.0 if alias == "n" else np.maximum(high - value, value - low)
        if not len(value) or np.mean(half_widths <= question.error * np.abs(value)) < question.at_least - 1e-9:
            return False
    return True


def is_enough(session: dpsql.Session, question: Question, text: str, runs: int) -> bool:
    """Return whether half of the fresh releases meet the rule."""
    met = missed = 0
    for run in range(runs):
        with with_own_state(session) as own:
            own._runner.noise_source = seeded_noise(run)
            is_met = is_within(question, own.sql(text).arrow())
        met, missed = met + is_met, missed + (not is_met)
        if 2 * met >= runs or 2 * missed > runs:
            break
    return 2 * met >= runs


def planned(session: dpsql.Session, text: str) -> WithinTarget:
    """Return the plan of a question by relative error."""
    statement, sandbox = read_statement(text), Sandbox()
    assert isinstance(statement, SelectStatement)
    try:
        engine = DuckDBEngine(session.connection)
        query = plan_query(statement, environment(session._access.read().policy(), engine, sandbox, Reader(CURATOR)))
    finally:
        sandbox.close()
    assert isinstance(query, WithinTarget)
    return capped(query)


def best_level(session: dpsql.Session, question: Question, max_rho: float, runs: int) -> int:
    """Return the lowest level of the grid, in nano-rho, at which half of the fresh releases meet the rule."""
    part = planned(session, question.by_target(max_rho)).first
    levels, window = steps_up(part), part.frame.window
    within = f", rho_window = [{window.low / NANO:.9f}, {window.high / NANO:.9f}]" if window else ""

    def suffices(level_nano: int) -> bool:
        text = question.text(f"rho = {level_nano / NANO:.9f}{within}", with_intervals=True)
        return is_enough(session, question, text, runs)

    place = bisect.bisect_left(range(len(levels) - 1), True, key=lambda one: suffices(levels[one]))
    # the grid of a lower cap begins lower
    return levels[place] if place or window else best_level(session, question, max_rho / 256.0, runs)


def walked(session: dpsql.Session, text: str, seed: int) -> Walk:
    """Return what a question by relative error cost in a session that knows nothing but the policy."""
    with with_own_state(session) as own:
        own._runner.noise_source = seeded_noise(seed)
        answer = own.sql(text)
        receipt, rows = answer.receipt, answer.arrow()
        assert receipt is not None
        charges = [round(rho * NANO) for rho in own.sql("FROM dp_releases()").df().charged_rho]
    price = round(receipt.charged_rho * NANO)
    assert price == round(receipt.rho * NANO) == sum(charges), (receipt.rho, charges)
    return Walk(price, len(charges), not any("target is not reached" in note for note in receipt.notes), rows)


def measured(session: dpsql.Session, question: Question, runs: int, releases: int | None = None) -> Outcome:
    """Find the best level of a question, and ask it by relative error in many sessions.

    Args:
        session: declares the table.
        question: with its error.
        runs: number of sessions.
        releases: number of fresh releases at a level, by which the best one is found; None for as many.

    """
    releases = releases or runs
    best = best_level(session, question, EXPLORED, releases)
    if question.is_private:
        # thresholds depend on the window, and the window on the cap
        best = best_level(session, question, max(4.0 * best / NANO, _LEAST_CAP), releases)
    # noise of still higher levels is too fine for the precision of a count
    least = _LEAST_CAP if question.is_private else 0.0
    text = question.by_target(min(max(4.0 * best / NANO, least), 2.0 * EXPLORED))
    found = Outcome(question, best, tuple(walked(session, text, 1_000 + run) for run in range(runs)))
    print(
        f"{question.name:66} {best / NANO:9.3g} {found.median:5.2f} ({min(found.ratios):.2f} to "
        f"{max(found.ratios):.2f}) {found.steps:5.1f} {found.reached:3} of {runs}",
        flush=True,
    )
    return found
