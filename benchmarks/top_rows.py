"""Intervals of the rows that ``ORDER BY`` one number and ``LIMIT`` pick: how many hold, and how wide they are.

    python -m benchmarks.top_rows [--releases 200] [--walks 80]                 # four minutes

The first ten of 500 groups, of which many are about as large, and of 300 groups by Zipf's law, with independent noise
and with a common part: the shown intervals that hold beside the plain ones, and their width over that of plain ones.
A few of the releases are made through SQL. Then walks of questions by relative error with LIMIT 1 and 5 over 20,000 and
100,000 public keys, whose truths are all 0 or follow Zipf's law.

Claims: at least 0.93 of the shown intervals hold; the median width is at most 1.8 times that of plain intervals; where
all truths are 0, at most 5 % of the walks reach their target.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

import dpsql
from dpsql.features.target_levels import DOUBLINGS, STEPS_PER_DOUBLING, absolute_grid
from dpsql.features.target_rule import Step, is_met, quantile_of
from dpsql.mechanism.correlated_gaussian import listed_histogram
from dpsql.model.estimates import UNITS
from dpsql.model.frame import NANO, PRESENCE
from dpsql.model.private_query import EachKey
from dpsql.model.query_kinds import RelativeError
from dpsql.model.top_rows import TopRows
from dpsql.noise.entropy import Entropy
from dpsql.noise.rounded_gaussian import RoundedGaussian
from dpsql.release.estimates import COLUMNS, Floats, NoisyFrame, NoisyValues
from dpsql.release.top_rows import RowOrder, picked_places, selection_of
from tests.deterministic_entropy import SeededEntropy
from tests.end_to_end.prepared import with_declarations
from tests.histograms import independent
from tests.noise_sources import FaultyNoise, seeded_noise
from tests.target_walks import COUNT, Groups, walk

Truths = npt.NDArray[np.bool_]
LEAST_COVER, MOST_WIDTH, MOST_REACHED = 0.93, 1.8, 0.05
TOP = TopRows(0, is_largest=True, nulls_first=False, limit=10)
COMMON = 0.4
"""Part of the variance that is common noise."""


def flat_top() -> Floats:
    """Return the sizes of 500 shops, of which the first hundred differ by less than the noise."""
    return np.rint(900.0 / (1.0 + (np.arange(500) / 700.0) ** 2))


def zipf(groups: int) -> Floats:
    """Return sizes by Zipf's law with the exponent 0.75, of which the largest is 1,000."""
    return np.rint(1_000.0 * np.arange(1.0, groups + 1.0) ** -0.75)


TABLES: Mapping[str, Floats] = {"flat top of 500": flat_top(), "Zipf, 300": zipf(300)}
SIGMA = 20.0


@dataclass(frozen=True, slots=True)
class Shown:
    """Intervals of shown rows.

    Attributes:
        cover: part of them that hold.
        plain: part of them that would hold without the factor.
        width: median of their width over that of plain ones.

    """

    cover: float
    plain: float
    width: float

    @property
    def fails(self) -> bool:
        """Tell if a claim does not hold."""
        return self.cover < LEAST_COVER or self.width > MOST_WIDTH

    def __str__(self) -> str:
        return f"{self.cover:.1%} hold, {self.plain:.1%} of plain ones; width {self.width:.2f}"


def of_numbers(truth: Floats, releases: int, common: float) -> Shown:
    """Return the intervals of the first rows of releases, by the module alone.

    Args:
        truth: of each group.
        releases: how many.
        common: part of the variance that all groups share.

    """
    random, order, groups = np.random.default_rng(51), RowOrder(TOP, COUNT), len(truth)
    histogram = listed_histogram(groups, 1, common) if common else independent(1)
    cover: list[Truths] = []
    plain: list[Truths] = []
    widths: list[float] = []
    for _ in range(releases):
        noise = math.sqrt(1.0 - common) * random.standard_normal(groups) + math.sqrt(common) * random.standard_normal()
        frame = NoisyFrame({PRESENCE: NoisyValues(truth + SIGMA * noise, SIGMA)}, histogram, EachKey())
        wider = selection_of(order, frame, slice(None)).wider()
        places = picked_places(order, frame, slice(None), np.arange(groups))
        for found, own in ((plain, frame), (cover, replace(frame, wider=wider))):
            column = COLUMNS[type(UNITS)](COUNT, UNITS, own)
            found.append(((column.low <= truth) & (truth <= column.high))[places])
        widths.append(wider)
    return Shown(float(np.mean(cover)), float(np.mean(plain)), statistics.median(widths))


COLUMNS_SHOWN = "key, count(DISTINCT unit) AS n, dp_interval_low(n) AS low, dp_interval_high(n) AS high"


def of_sql(truth: Floats, releases: int, mechanism: str) -> Shown:
    """Return the intervals of the first rows of releases through SQL, each of another version of the table.

    Args:
        truth: of each group.
        releases: how many.
        mechanism: its word in SQL.

    """
    declared = (
        "CALL dp_protect('data', privacy_unit_column := 'unit', coverage := FALSE, max_groups_contributed := 1, "
        "max_rows_per_group := 1, rho_budget := 1e6, delta_threshold := 1e-3, delta_conversion := 1e-6)",
        f"CALL dp_domain('data', 'key', keys := {list(range(len(truth)))})",
    )
    rows = ", ".join(f"({key}, {int(size)})" for key, size in enumerate(truth))
    table = (
        "CREATE TABLE data AS SELECT row_number() OVER () AS unit, key "
        f"FROM (VALUES {rows}) t(key, size), range(size) r(i)"
    )
    options = f"rho = {1.0 / (2.0 * SIGMA**2)!r}, mechanism = {mechanism}"
    question = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) {COLUMNS_SHOWN} FROM data GROUP BY key"
    cover: list[Truths] = []
    plain: list[Truths] = []
    widths: list[float] = []
    with with_declarations(table, declared) as session:
        session._runner.noise_source = seeded_noise(51)
        for _ in range(releases):
            session.sql("CALL dp_new_version('data')")
            shown = _answered(session, f"{question} ORDER BY n DESC LIMIT {TOP.limit}")
            # it is free, and has the same numbers
            every = _answered(session, f"{question} ORDER BY key")
            for found, low, high in (
                (cover, shown["low"], shown["high"]),
                (plain, every["low"][shown["key"]], every["high"][shown["key"]]),
            ):
                exact = truth[shown["key"]]
                found.append((low <= exact) & (exact <= high))
            widths.append(float((shown["high"] - shown["low"])[0] / (every["high"] - every["low"])[shown["key"][0]]))
    return Shown(float(np.mean(cover)), float(np.mean(plain)), statistics.median(widths))


def _answered(session: dpsql.Session, text: str) -> dict[str, Floats]:
    return {str(name): column.to_numpy() for name, column in session.sql(text).df().items()}


KEYS = (20_000, 100_000)
ERRORS, LIMITS = (0.3, 0.5), (1, 5)
GRID = absolute_grid(NANO)
LEVELS = GRID[-(DOUBLINGS * STEPS_PER_DOUBLING + 1) :]
"""The levels of a question with the cap rho = 1."""


def _quick(law: RoundedGaussian, count: int, _: Entropy) -> Floats:
    """Draw noise that is no safe noise, in a hundredth of the time."""
    return np.rint(law.sigma_steps * _RANDOM.standard_normal(count))


_RANDOM = np.random.default_rng(51)
SOURCE = FaultyNoise(SeededEntropy(51), {RoundedGaussian: _quick})


@dataclass(frozen=True, slots=True)
class Walks:
    """Ends of walks.

    Attributes:
        keys: number of groups.
        limit: number of rows.
        target: the rule.
        is_flat: whether all truths are 0.
        cover: part of the shown intervals that hold.
        reached: part of the walks that reached the target.
        steps: mean number of steps.
        factor: median factor of the intervals at the last step.

    """

    keys: int
    limit: int
    target: RelativeError
    is_flat: bool
    cover: float
    reached: float
    steps: float
    factor: float

    @property
    def fails(self) -> bool:
        """Tell if a claim does not hold."""
        return self.cover < LEAST_COVER or (self.is_flat and self.reached > MOST_REACHED)

    def __str__(self) -> str:
        truths = "all 0" if self.is_flat else "Zipf"
        return (
            f"{self.keys:,} keys, {truths}, LIMIT {self.limit}, error {self.target.error:g}: {self.cover:.1%} hold, "
            f"{self.reached:.1%} reached in {self.steps:.1f} steps; factor {self.factor:.2f}"
        )


def walked(keys: int, limit: int, error: float, walks: int, *, is_flat: bool) -> Walks:
    """Return how walks of a question end.

    Args:
        keys: number of groups.
        limit: number of rows.
        error: the relative error.
        walks: how many.
        is_flat: whether all truths are 0; else they follow Zipf's law.

    """
    truth, target = np.zeros(keys) if is_flat else zipf(keys), RelativeError(error, 1.0, 0.95)
    groups = Groups((COUNT,), {PRESENCE: truth}, {PRESENCE: 1.0}, replace(TOP, limit=limit))
    cover, reached, steps, factors = [], [], [], []
    for _ in range(walks):
        found = walk(groups, LEVELS, 0, target, SOURCE)
        _, last = found[-1]
        (column,) = last.judged(quantile_of(target))
        cover.append(np.mean(np.abs(column.values - truth[last.places]) <= column.half_widths))
        reached.append(is_met(last, target))
        steps.append(len(found))
        factors.append(_factor(last))
    share, met, mean = (float(np.mean(one)) for one in (cover, reached, steps))
    return Walks(keys, limit, target, is_flat, share, met, mean, statistics.median(factors))


def _factor(step: Step) -> float:
    """Return the factor of the intervals of a step."""
    if step.picked is None:
        raise AssertionError("the questions have LIMIT")
    (factor,) = step.picked.factors(step.found.values, step.found, step.estimates)
    return float(np.max(factor))


def ends(walks: int) -> Iterator[Walks]:
    """Yield the ends of all walks, half as many of the largest tables."""
    for keys in KEYS:
        for limit in LIMITS:
            for error in ERRORS:
                for is_flat in (True, False):
                    yield walked(keys, limit, error, walks if keys == KEYS[0] else walks // 2, is_flat=is_flat)


def releases_of(releases: int) -> Iterator[tuple[str, Shown]]:
    """Yield the intervals of releases with a title, the last ones through SQL."""
    for name, truth in TABLES.items():
        for common in (0.0, COMMON):
            noise = "common noise" if common else "independent noise"
            yield f"{name}, {noise}", of_numbers(truth, releases, common)
        for mechanism in ("GAUSSIAN", "CORRELATED_GAUSSIAN"):
            yield f"{name}, {mechanism} through SQL", of_sql(truth, max(1, releases // 10), mechanism)


def main() -> None:
    """Print all figures, and exit with 1 if a claim does not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--releases", type=int, default=200)
    parser.add_argument("--walks", type=int, default=80)
    arguments, fails = parser.parse_args(), False
    for title, shown in releases_of(arguments.releases):
        print(f"{title}: {shown}{' FAILS' if shown.fails else ''}", flush=True)
        fails |= shown.fails
    for end in ends(arguments.walks):
        print(f"{end}{' FAILS' if end.fails else ''}", flush=True)
        fails |= end.fails
    raise SystemExit(fails)


if __name__ == "__main__":
    main()
