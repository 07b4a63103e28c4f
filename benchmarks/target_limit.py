"""Price of questions by relative error whose LIMIT picks the largest numbers. `benchmarks.target` runs it.

LIMIT 5 and 20 of 300 keys by Zipf's law, and of the flights' destinations, with public and with private keys. The same
questions are asked in two ways. *Through the library*: the rule alone, on counts of units whose truth is known
(`tests/target_walks.py`). *Through SQL*: in sessions that hold nothing but the policy. The best level in hindsight is
that of `benchmarks.target`, with intervals as wide as LIMIT makes them. Each question may take four times as much.

Claims: at an error of 10 % the median of price over best is at most 1.25 for each question. A question takes 12 steps
at most in the mean. Intervals of the rows where the steps end cover at least 93 % of the truths. They do so as well if
a threshold hides equal counts, for an error of 50 %.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.target_questions import EXPLORED, Outcome, Question, declared, flights, measured
from dpsql.assets import asset
from dpsql.features.target_levels import DOUBLINGS, absolute_grid, window_of
from dpsql.features.target_rule import Step, factor_of, interval_quantile
from dpsql.mechanism.gaussian_measure import GAUSSIAN
from dpsql.mechanism.window import grid, window_taus
from dpsql.model.frame import NANO, PRESENCE
from dpsql.model.query_kinds import RelativeError
from dpsql.model.top_rows import TopRows
from dpsql.noise.entropy import NoiseSource
from dpsql.release.estimates import COLUMNS, Floats
from tests.histograms import independent
from tests.noise_sources import seeded_noise
from tests.target_walks import Groups, counts, noise, walk

MOST_OF_ONE, MOST_STEPS, LEAST_COVERED = 1.25, 12.0, 0.93
CLAIMED_ERROR, COARSE_ERROR = 0.1, 0.5
LIMITS = (5, 20)
KEYS, UNITS_OF_ALL = 300, 30_000
EXPONENTS = (0.5, 0.75, 1.0)
DELTA = 1e-6
RELEASES = 9
"""Fresh releases through SQL at a level, by which the best one is found."""
AIRCRAFT_GROUPS = 8
"""Groups of an aircraft that count."""


@dataclass(frozen=True)
class Found:
    """Runs of a question.

    Attributes:
        name: of the question.
        error: its relative error.
        ratios: price over best of each run.
        steps: number of steps of each run.
        covered: whether the interval covers the truth, of each shown row whose truth is known.

    """

    name: str
    error: float
    ratios: tuple[float, ...]
    steps: tuple[int, ...]
    covered: tuple[bool, ...]

    @property
    def median(self) -> float:
        """Median of price over best."""
        return statistics.median(self.ratios)


def zipf(exponent: float) -> Floats:
    """Return numbers of units of keys by Zipf's law."""
    weights = np.arange(1, KEYS + 1) ** -exponent
    return np.asarray(np.rint(UNITS_OF_ALL * weights / weights.sum()))


def aircraft() -> dict[str, int]:
    """Return the number of aircraft by destination."""
    file = asset("sample_data", "flights.parquet")
    text = f"SELECT dest, count(DISTINCT tailnum) FROM '{file}' WHERE tailnum IS NOT NULL GROUP BY dest ORDER BY dest"
    with duckdb.connect() as plain:
        return dict(plain.sql(text).fetchall())


@dataclass(frozen=True)
class Rule:
    """A question on counts of units whose truth is known.

    Attributes:
        name: for the printed table.
        units: of each key.
        limit: number of rows.
        error: relative error of the target.
        is_private: whether a threshold hides keys.
        unit_groups: most groups of a unit that count.

    """

    name: str
    units: Floats
    limit: int
    error: float
    is_private: bool
    unit_groups: int = 1

    @property
    def target(self) -> RelativeError:
        """The rule."""
        return RelativeError(self.error, 0.9, 0.95)

    def asked(self, cap_nano: int) -> tuple[Groups, Sequence[int]]:
        """Return the groups, and the levels up to a cap."""
        histogram = independent(self.unit_groups, hides=self.is_private)
        groups = replace(
            counts(*self.units), noise={PRESENCE: histogram.sigma(1.0)}, top=TopRows(0, True, False, self.limit)
        )
        if not self.is_private:
            return groups, [level for level in absolute_grid(cap_nano) if level >= cap_nano >> DOUBLINGS]
        window = window_of(None, cap_nano, DELTA)
        levels, taus = grid(window), window_taus(histogram, window)
        # thresholds are the same number of standard deviations at all levels
        groups = replace(groups, threshold=taus[0] / histogram.sigma(levels[0] / NANO))
        return groups, [level for level in levels if level <= cap_nano]

    def best_level(self, cap_nano: int, runs: int) -> int:
        """Return the lowest level up to a cap at which half of the fresh releases meet the rule."""
        groups, levels = self.asked(cap_nano)

        def suffices(level_nano: int) -> bool:
            steps = (fresh(groups, level_nano, seeded_noise(run)) for run in range(runs))
            return 2 * sum(is_enough(step, self.target) for step in steps) >= runs

        place = bisect.bisect_left(range(len(levels) - 1), True, key=lambda one: suffices(levels[one]))
        # the grid of a lower cap begins lower
        return levels[place] if place else self.best_level(cap_nano >> 8, runs)

    def run(self, runs: int) -> Found:
        """Find the best level, and walk up to four times as much."""
        best = self.best_level(round(EXPLORED * NANO), runs)
        best = self.best_level(4 * best, runs)
        groups, levels = self.asked(4 * best)
        ratios, steps, covered = [], [], []
        for run in range(runs):
            places = walk(groups, levels, 0, self.target, seeded_noise(1_000 + run))
            place, last = places[-1]
            ratios.append(levels[place] / best)
            steps.append(len(places))
            covered += covered_rows(last, groups, self.target)
        return Found(self.name, self.error, tuple(ratios), tuple(steps), tuple(covered))


def fresh(groups: Groups, level_nano: int, source: NoiseSource) -> Step:
    """Return the step of one release at a level."""
    sigma = groups.noise[PRESENCE] * (NANO / level_nano) ** 0.5
    exact = groups.exact[PRESENCE]
    return groups.step(level_nano, {PRESENCE: exact + noise(sigma, len(exact), source)})


def is_enough(step: Step, target: RelativeError) -> bool:
    """Return whether the rows of a release at a level that was fixed beforehand meet the rule."""
    (column,) = step.judged(GAUSSIAN.quantile(0.025))
    return step.counts_enough and float(np.mean(column.within(target.error))) >= target.at_least - 1e-9


def covered_rows(last: Step, groups: Groups, target: RelativeError) -> list[bool]:
    """Return whether the shown interval of each row covers the truth."""
    assert last.picked is not None
    frame = replace(last.found.values, wider=factor_of(interval_quantile(target), last.found.values))
    (estimate,), (wider,) = last.estimates, last.picked.factors(frame, last.found, last.estimates)
    column = COLUMNS[type(estimate.value)](estimate, estimate.value, replace(frame, wider=wider))
    truths = groups.exact[PRESENCE][last.found.shown]
    is_covered = (column.low <= truths) & (truths <= column.high)
    return [bool(one) for one in is_covered[last.places]]


def rules() -> Iterator[Rule]:
    """Yield the questions that are asked through the library."""
    flown = np.array(list(aircraft().values()), dtype=np.float64)
    for error in (CLAIMED_ERROR, 0.3):
        for is_private in (False, True):
            for limit in LIMITS:
                said = f"{limit} rows, {'private' if is_private else 'public'}, {100 * error:g} %"
                for exponent in EXPONENTS:
                    yield Rule(f"Zipf {exponent:g}, {said}", zipf(exponent), limit, error, is_private)
                yield Rule(f"aircraft, {said}", flown, limit, error, is_private, AIRCRAFT_GROUPS)


def hidden_rules() -> Iterator[Rule]:
    """Yield questions on equal counts that a threshold hides until the steps come near it."""
    for limit in (1, 5):
        for keys in (30, KEYS):
            said = f"{keys} equal counts, {limit} rows, private, {100 * COARSE_ERROR:g} %"
            yield Rule(said, np.full(keys, 100.0), limit, COARSE_ERROR, is_private=True)


def sql_runs(runs: int, exponents: Sequence[float]) -> Iterator[Found]:
    """Ask through SQL, and yield what was found."""
    public = f"'key', keys := {list(range(KEYS))}"
    for exponent in exponents:
        units = zipf(exponent)
        truths = dict(enumerate(units))
        keys = np.repeat(np.arange(KEYS), units.astype(np.int64))
        table = pa.table({"unit": np.arange(len(keys)), "key": keys})
        for domains in ((public,), ()):
            with declared(table, 1, 1, domains) as session:
                for question in questions(f"Zipf {exponent:g}", "key", is_private=not domains):
                    yield as_found(measured(session, question, runs, RELEASES), truths)
    listed = ", ".join(f"'{name}'" for name in aircraft())
    for domains in ((f"'dest', keys := [{listed}]",), ()):
        with flights(AIRCRAFT_GROUPS, 1, *domains) as session:
            for question in questions("aircraft", "dest", is_private=not domains):
                # aircraft of more destinations count in some of them
                yield as_found(measured(session, question, runs, RELEASES), {})


def questions(name: str, key: str, *, is_private: bool) -> Iterator[Question]:
    """Yield the questions that are asked of a table."""
    options = f"delta = {DELTA!r}" if is_private else ""
    for limit in LIMITS:
        said = f"{name}, {limit} rows, {'private' if is_private else 'public'}, SQL"
        columns = (("n", "count(DISTINCT unit)"),)
        yield Question(said, columns, key, CLAIMED_ERROR, 0.9, options, is_private, limit)


def as_found(outcome: Outcome, truths: dict[int, float]) -> Found:
    """Return the runs of a question through SQL; rows are counted where the truth is known."""
    covered = [
        row["n_low"] <= truths[row["key"]] <= row["n_high"]
        for one in outcome.walks
        for row in (one.rows.to_pylist() if truths else [])
    ]
    question, steps = outcome.question, tuple(one.steps for one in outcome.walks)
    return Found(question.name, question.error, tuple(outcome.ratios), steps, tuple(covered))


def show(found: Found) -> None:
    """Print what was found through the library."""
    ratios = f"{found.median:5.2f} ({min(found.ratios):.2f} to {max(found.ratios):.2f})"
    print(f"{found.name:56} {ratios} {statistics.fmean(found.steps):5.1f} {np.mean(found.covered):6.1%}", flush=True)


def compare(runs: int, sql: int, hidden: int, exponents: Sequence[float] = EXPONENTS) -> bool:
    """Measure and print all questions and each claim; return whether all claims hold.

    Args:
        runs: of each question through the library.
        sql: of each question through SQL.
        hidden: of each question on equal counts that a threshold hides.
        exponents: of the tables by Zipf's law that are asked through SQL.

    """
    print(f"{'LIMIT, through the library':56} price over best      steps rows covered")
    library, near = [], []
    for rule in rules():
        library.append(rule.run(runs))
        show(library[-1])
    for rule in hidden_rules():
        near.append(rule.run(hidden))
        show(near[-1])
    print(f"{'LIMIT, through SQL':66} {'best rho':>9} price over best      steps reached")
    through_sql = list(sql_runs(sql, exponents))
    return hold({"library": library, "SQL": through_sql}, near)


def hold(found: Mapping[str, Sequence[Found]], near: Sequence[Found]) -> bool:
    """Print each claim, and return whether all hold.

    Args:
        found: questions through the library and through SQL.
        near: questions on equal counts that a threshold hides.

    """
    claims: dict[str, bool] = {}
    for door, questions in found.items():
        claimed = [one for one in questions if one.error == CLAIMED_ERROR]
        worst = max(one.median for one in claimed)
        median = statistics.median(ratio for one in questions for ratio in one.ratios)
        steps = statistics.fmean(step for one in questions for step in one.steps)
        print(f"LIMIT, {door}: median of price over best {median:.2f} over all questions")
        claims |= {
            f"LIMIT, {door}: largest median of a question {worst:.2f}, at most {MOST_OF_ONE:.2f}": worst <= MOST_OF_ONE,
            f"LIMIT, {door}: mean number of steps {steps:.1f}, at most {MOST_STEPS:g}": steps <= MOST_STEPS,
        }
    groups = {f"{door}, all rows": questions for door, questions in found.items()}
    groups |= {one.name: [one] for one in near}
    for name, questions in groups.items():
        rows = [is_covered for one in questions for is_covered in one.covered]
        share = statistics.fmean(rows)
        said = f"LIMIT, {name}: {share:.1%} of {len(rows):,} truths covered, at least {LEAST_COVERED:.0%}"
        claims[said] = share >= LEAST_COVERED
    for claim, is_true in claims.items():
        print(f"{claim}: {'holds' if is_true else 'FAILS'}")
    return all(claims.values())
