"""Intervals of questions by relative error cover the truth, although the steps end by what was released.

Each walk begins where the script `benchmarks/target_intervals.py` finds the largest number of misses: two doublings
below the level at which the truth is barely within the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

import dpsql
from dpsql.features import target_rule
from dpsql.features.target_levels import STEPS_PER_DOUBLING, absolute_grid, window_of
from dpsql.features.target_picked import PickedRows
from dpsql.features.target_rule import factor_of, interval_quantile, quantile_of
from dpsql.mechanism.window import grid
from dpsql.model.frame import NANO, PRESENCE
from dpsql.model.query_kinds import RelativeError
from dpsql.model.top_rows import TopRows
from dpsql.release.estimates import COLUMNS, Floats
from tests.end_to_end.prepared import with_declarations
from tests.noise_sources import seeded_noise
from tests.target_walks import COSTS, MEAN, Groups, counts, walk

pytestmark = pytest.mark.statistical

FALSE_ALARM = 1e-4
"""If intervals of independent walks cover with 95 %, fewer than `least` of them do with at most this probability."""
GRID = absolute_grid(1_000 * NANO)
TARGET = RelativeError(0.3, 0.9, 0.95)
AVERAGES = Groups((MEAN,), {PRESENCE: np.array([500.0]), COSTS: np.array([1e4])}, {PRESENCE: 1.0, COSTS: 60.0})
CASES: Mapping[str, tuple[Groups, float | Floats, int]] = {
    "one cell": (counts(500.0), 500.0, 250),
    "12 cells": (counts(*np.geomspace(400.0, 1_600.0, 12)), np.geomspace(400.0, 1_600.0, 12), 50),
    "averages": (AVERAGES, 20.0, 60),
}


def least(trials: int) -> int:
    return int(stats.binom.ppf(FALSE_ALARM, trials, 0.95))


def covered(groups: Groups, truth: float | Floats, walks: int, target: RelativeError = TARGET) -> npt.NDArray[np.bool_]:
    """Return which groups were covered by the last interval of each walk."""
    source, found = seeded_noise(11), []
    needed = next(n for n, level in enumerate(GRID) if target_rule.is_met(groups.exact_step(level), target))
    (estimate,) = groups.estimates
    for _ in range(walks):
        _, last = walk(groups, GRID, needed - 2 * STEPS_PER_DOUBLING, target, source)[-1]
        frame = replace(last.found.values, wider=factor_of(quantile_of(target), last.found.values))
        column = COLUMNS[type(estimate.value)](estimate, estimate.value, frame)
        found.append((column.low <= truth) & (truth <= column.high))
    return np.array(found)


@pytest.mark.parametrize("case", CASES)
def test_intervals_of_stopped_walks_cover(case: str) -> None:
    groups, truth, walks = CASES[case]
    hits = covered(groups, truth, walks)
    assert int(hits.sum()) >= least(hits.size)


def test_the_check_fails_for_intervals_that_are_too_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: 1.4 standard deviations, in the rule and in what is stated."""
    monkeypatch.setattr(target_rule, "QUANTILES", {0.95: ((0.5, 1.4),)})
    groups, truth, _ = CASES["one cell"]
    assert int(covered(groups, truth, 150).sum()) < least(150)


COARSE = RelativeError(0.5, 0.9, 0.95)
"""With this error a number at the threshold is within the target, as far as a plain interval says."""
WINDOW = grid(window_of(None, NANO, 1e-6))
HIDDEN = replace(counts(*np.full(300, 100.0)), threshold=5.5)


def covered_rows(limit: int, walks: int) -> npt.NDArray[np.bool_]:
    """Return which rows were covered by the last interval of each walk, of equal counts behind a threshold."""
    groups, source, found = replace(HIDDEN, top=TopRows(0, True, False, limit)), seeded_noise(12), []
    for _ in range(walks):
        _, last = walk(groups, WINDOW, 0, COARSE, source)[-1]
        (column,) = (one.at(last.places) for one in last.columns(interval_quantile(COARSE)))
        found.append(np.abs(column.values - 100.0) <= column.half_widths + 0.5)
    return np.concatenate(found)


@pytest.mark.parametrize(("limit", "walks"), [(1, 120), (5, 40)])
def test_intervals_of_rows_near_a_threshold_cover(limit: int, walks: int) -> None:
    hits = covered_rows(limit, walks)
    assert int(hits.sum()) >= least(hits.size)


def test_the_check_fails_if_intervals_do_not_know_of_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: widths of public keys."""
    monkeypatch.setattr(PickedRows, "threshold_at", lambda *_: None)
    hits = covered_rows(1, 120)
    assert int(hits.sum()) < least(hits.size)


QUESTIONS = {"one cell": "count(*) AS n FROM visits", "12 cells": "month, count(*) AS n FROM visits GROUP BY month"}
QUESTIONS["averages"] = QUESTIONS["12 cells"].replace("count(*)", "avg(cost)")
RELEASES, MUST_COVER = 1_000, 930


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    """3,000 patients with one visit each, more of them in later months."""
    with with_declarations(
        "CREATE TABLE visits AS SELECT i AS patient, floor(sqrt(i % 144))::INT AS month, i * 7 % 50 AS cost "
        "FROM range(3_000) t(i)",
        (
            "CALL dp_protect('visits', privacy_unit_column := 'patient', coverage := FALSE, "
            "max_groups_contributed := 1, max_rows_per_group := 1, "
            "rho_budget := 1e6, delta_threshold := 1e-3, delta_conversion := 1e-6)",
            f"CALL dp_domain('visits', 'month', keys := {list(range(12))})",
            "CALL dp_domain('visits', 'cost', bounds := [0, 50])",
        ),
    ) as session:
        session._runner.noise_source = seeded_noise(4)
        yield session


def covered_in_sql(session: dpsql.Session, question: str, releases: int) -> float:
    """Return the share of intervals of stopped releases that cover, each of another version of the table."""
    column = "avg(cost)" if "avg(cost)" in question else "count(*)"
    exact = session.connection.execute(
        f"SELECT {column} FROM visits {'GROUP BY month ORDER BY month' if 'month' in question else ''}"
    ).fetchnumpy()
    (truth,) = exact.values()
    options = "target_relative_error = 0.3, at_least = 0.75, max_rho = 10"
    shown = question.replace(" FROM visits", ", dp_interval_low(n) AS low, dp_interval_high(n) AS high FROM visits")
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) {shown}"
    text += " ORDER BY month" if "month" in question else ""
    found = []
    for _ in range(releases):
        session.sql("CALL dp_new_version('visits')")
        answer = session.sql(text).df()
        found.append((answer.low.to_numpy() <= truth) & (truth <= answer.high.to_numpy()))
    return float(np.mean(found))


@pytest.mark.long
@pytest.mark.parametrize("question", QUESTIONS)
def test_intervals_of_stopped_releases_cover(session: dpsql.Session, question: str) -> None:
    assert RELEASES * covered_in_sql(session, QUESTIONS[question], RELEASES) >= MUST_COVER
