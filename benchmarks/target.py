"""Price of questions by relative error, over that of the best level in hindsight.

    python -m benchmarks.target [--quick] [--svg docs/pictures/target.svg]

Five questions on the flights, 20 generated tables with public keys, and two questions by destination, whose keys are
private. The best level is the lowest one of the grid at which half of the fresh releases meet the rule, with the
interval of a level that was fixed beforehand. Nobody knows it without paying for it. Each question may take four times
as much. It is asked in sessions that hold nothing but the policy. Noise is seeded; the rows of a unit that count differ
from run to run.

Claims, for public keys: the median of price over best is at most 1.20 over all questions, and at most 1.35 for each of
them. At least 18 of the 20 tables are reached, each in half of its runs or more. A question takes 12 steps at most in
the mean. Charges add up to the last level, to the nano-rho; where AUTO chooses bounds, its share is part of that level.
``benchmarks.target_rows`` has the time.
"""

from __future__ import annotations

import argparse
import bisect
import importlib
import importlib.util
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import dpsql
from dpsql.answer.policy_view import environment
from dpsql.assets import asset
from dpsql.cascade.reader import CURATOR, Reader
from dpsql.engine import DuckDBEngine, Sandbox
from dpsql.features.target_levels import capped, steps_up
from dpsql.model.frame import NANO
from dpsql.model.query_kinds import WithinTarget
from dpsql.plan.planner import plan_query
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end.prepared import with_own_state
from tests.noise_sources import seeded_noise

MOST_OF_ALL, MOST_OF_ONE, MOST_STEPS = 1.20, 1.35, 12.0
TABLES, REACHED = 20, 18
EXPLORED = 64.0
"""The best level is looked for up to this one."""
UNIT = "rho_budget := 1e9, delta_threshold := 0.9, delta_conversion := 1e-6"


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

    """

    name: str
    columns: tuple[tuple[str, str], ...]
    key: str
    error: float
    at_least: float = 0.9
    options: str = ""

    def text(self, options: str, *, with_intervals: bool = False) -> str:
        """Return the question with options in SQL."""
        selected = [f"{value} AS {alias}" for alias, value in self.columns]
        if with_intervals:
            selected += [
                f"dp_interval_{end}({alias}) AS {alias}_{end}" for alias, _ in self.columns for end in ("low", "high")
            ]
        given = ", ".join(filter(None, (options, self.options)))
        return (
            f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({given}) {self.key}, {', '.join(selected)} "
            f"FROM data GROUP BY {self.key}"
        )

    def by_target(self, max_rho: float) -> str:
        """Return the question by relative error in SQL."""
        return self.text(
            f"target_relative_error = {self.error!r}, at_least = {self.at_least!r}, max_rho = {max_rho:.9f}"
        )


@dataclass(frozen=True)
class Walk:
    """A question by relative error that was answered.

    Attributes:
        price: in nano-rho.
        steps: number of releases.
        is_reached: whether the target is met.

    """

    price: int
    steps: int
    is_reached: bool


@dataclass(frozen=True)
class Outcome:
    """All runs of a question, and the best level in nano-rho."""

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


FLIGHT_QUESTIONS = (
    Question("aircraft by origin, 10 %", (("n", "count(DISTINCT unit)"),), "origin", 0.1),
    Question("aircraft by origin, 2 %", (("n", "count(DISTINCT unit)"),), "origin", 0.02),
    Question("flights by month, 10 %", (("n", "count(*)"),), "month", 0.1),
    Question("flights by carrier, 10 %", (("n", "count(*)"),), "carrier", 0.1, 0.75),
    Question("miles by origin, 10 %", (("n", "sum(distance)"),), "origin", 0.1),
)
AUTO_QUESTION = Question(
    "aircraft by origin", (("n", "count(DISTINCT unit)"),), "origin", 0.1, options="max_groups_contributed = AUTO"
)
DELTA = "delta = 1e-6"
PRIVATE = {
    (8, 20): Question(
        "aircraft by destination (private), 20 %", (("n", "count(DISTINCT unit)"),), "dest", 0.2, 0.8, DELTA
    ),
    (4, 5): Question("flights by destination (private), 20 %", (("n", "count(*)"),), "dest", 0.2, 0.8, DELTA),
}
"""Questions with private keys, by the groups of an aircraft and its rows in each."""
SELECTED: tuple[tuple[tuple[str, str], ...], ...] = (
    (("n", "count(DISTINCT unit)"),),
    (("n", "count(*)"),),
    (("total", "sum(value)"),),
    (("n", "count(*)"), ("mean", "avg(value)")),
)


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
            f"max_groups_contributed := {groups}, max_rows_per_group := {rows}, {UNIT})"
        )
        for domain in domains:
            session.sql(f"CALL dp_domain('data', {domain})")
        yield session


@contextmanager
def flights(groups: int, rows: int) -> Iterator[dpsql.Session]:
    """Open a session on the flights with bounds of an aircraft; destinations stay private."""
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
    with declared(table, groups, rows, domains) as session:
        yield session


@contextmanager
def generated(seed: int) -> Iterator[tuple[dpsql.Session, Question]]:
    """Open a session on a generated table with public keys, and yield the question that is asked of it."""
    generator = np.random.default_rng(seed)
    rows, keys = int(np.exp(generator.uniform(np.log(2_000), np.log(30_000)))), int(generator.integers(2, 61))
    exponent, error = generator.uniform(0.0, 1.0), round(float(generator.uniform(0.05, 0.2)), 3)
    odds = np.arange(1, keys + 1) ** -exponent
    table = pa.table(
        {
            "unit": generator.integers(0, rows // 2, rows),
            "key": generator.choice(keys, rows, p=odds / odds.sum()),
            "value": generator.gamma(2.0, 20.0, rows),
        }
    )
    columns = SELECTED[seed % len(SELECTED)]
    name = f"table {seed}: {', '.join(value for _, value in columns)}; {rows:,} rows, {keys} keys, {100 * error:.1f} %"
    with declared(table, 2, 1, (f"'key', keys := {list(range(keys))}", "'value', bounds := [0, 100]")) as session:
        yield session, Question(name, columns, "key", error)


def is_within(question: Question, shown: pa.Table) -> bool:
    """Return whether enough groups of each column are within the target by the intervals that are shown."""
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
        receipt = own.sql(text).receipt
        assert receipt is not None
        charges = [round(rho * NANO) for rho in own.sql("FROM dp_releases()").df().charged_rho]
    price = round(receipt.charged_rho * NANO)
    assert price == round(receipt.rho * NANO) == sum(charges), (receipt.rho, charges)
    return Walk(price, len(charges), not any("target is not reached" in note for note in receipt.notes))


def measured(session: dpsql.Session, question: Question, runs: int) -> Outcome:
    """Find the best level of a question, and ask it by relative error in many sessions."""
    best = best_level(session, question, EXPLORED, runs)
    if question in PRIVATE.values():
        # thresholds depend on the window, and the window on the cap
        best = best_level(session, question, 4.0 * best / NANO, runs)
    # noise of still higher levels is too fine for the precision of a count
    text = question.by_target(min(4.0 * best / NANO, 2.0 * EXPLORED))
    found = Outcome(question, best, tuple(walked(session, text, 1_000 + run) for run in range(runs)))
    print(
        f"{question.name:66} {best / NANO:9.3g} {found.median:5.2f} ({min(found.ratios):.2f} to "
        f"{max(found.ratios):.2f}) {found.steps:5.1f} {found.reached:3} of {runs}",
        flush=True,
    )
    return found


def compare(runs: int, tables: int) -> list[Outcome]:
    """Measure and print all questions; return those with public keys."""
    print(f"{'':66} {'best rho':>9} price over best      steps reached")
    with flights(3, 50) as session:
        found = [measured(session, question, runs) for question in FLIGHT_QUESTIONS]
        walked(session, AUTO_QUESTION.by_target(0.01), 1)
    for bounds, question in PRIVATE.items():
        with flights(*bounds) as session:
            measured(session, question, runs)
    for seed in range(tables):
        with generated(seed) as (session, question):
            found.append(measured(session, question, runs))
    return found


def hold(found: Sequence[Outcome]) -> bool:
    """Print each claim on questions with public keys, and return whether all hold."""
    median = statistics.median(ratio for outcome in found for ratio in outcome.ratios)
    worst = max(outcome.median for outcome in found)
    steps = statistics.fmean(outcome.steps for outcome in found)
    tables = found[len(FLIGHT_QUESTIONS) :]
    reached = sum(2 * outcome.reached >= len(outcome.walks) for outcome in tables)
    claims = {
        f"median of price over best {median:.2f}, at most {MOST_OF_ALL:.2f}": median <= MOST_OF_ALL,
        f"largest median of a question {worst:.2f}, at most {MOST_OF_ONE:.2f}": worst <= MOST_OF_ONE,
        f"mean number of steps {steps:.1f}, at most {MOST_STEPS:g}": steps <= MOST_STEPS,
        f"tables that are reached: {reached} of {len(tables)}": TABLES * reached >= REACHED * len(tables),
    }
    for claim, is_true in claims.items():
        print(f"{claim}: {'holds' if is_true else 'FAILS'}")
    print("charges add up to the last level in every run")
    return all(claims.values())


def draw(found: Sequence[Outcome], path: Path) -> None:
    """Draw the price of each run over the best level; needs matplotlib (the extra ``plot``)."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    pyplot.rcParams.update({"svg.hashsalt": "target", "svg.fonttype": "none"})
    figure, axes = pyplot.subplots(figsize=(8.0, 6.4), layout="constrained")
    for place, outcome in enumerate(found):
        times = Counter(round(ratio, 3) for ratio in outcome.ratios)
        axes.scatter(list(times), [place] * len(times), s=[9 * n for n in times.values()], color="#4878a8", alpha=0.6)
        axes.plot([outcome.median] * 2, [place - 0.35, place + 0.35], color="#b04030", lw=2)
    axes.axvline(1.0, color="0.6", lw=1)
    axes.set_yticks(range(len(found)), [outcome.question.name for outcome in found], size=7)
    axes.invert_yaxis()
    axes.set_xlabel("price over best (larger dots: more runs; red: median)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, print, and draw if asked to; the exit status says whether the claims hold."""
    parser = argparse.ArgumentParser(description="Price of questions by relative error over the best level.")
    parser.add_argument("--quick", action="store_true", help="6 runs of each question, and 8 tables")
    parser.add_argument("--svg", type=Path, help="where to draw the picture")
    arguments = parser.parse_args()
    if arguments.svg is not None and importlib.util.find_spec("matplotlib") is None:
        parser.error("--svg needs matplotlib: pip install 'dpsql[plot]'")
    found = compare(*((6, 8) if arguments.quick else (20, TABLES)))
    if arguments.svg is not None:
        draw(found, arguments.svg)
    raise SystemExit(not hold(found))


if __name__ == "__main__":
    main()
