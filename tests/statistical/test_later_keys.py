"""Keys that a frame gets after its first release: their noise, at all levels together, is that of keys with value 0."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from scipy import stats

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.mechanism.gaussian_measure import GaussianMeasure
from dpsql.mechanism.measure import Grid, Measure, NoisyHistogram, Placed
from dpsql.model.identity import statistic_hash
from dpsql.noise.entropy import NoiseSource
from dpsql.release import round_keys
from dpsql.release.runtime import Runtime
from dpsql.sql.statements import SelectStatement, read_statement
from dpsql.state import Point
from tests.noise_sources import seeded_noise

pytestmark = pytest.mark.statistical

KEYS = 20_000
# all ways in which a point is made: a first draw, a step down, a rise, a bridge, a rise
LEVELS = (0.5, 0.05, 8.0, 1.5, 12.0)
TEXT = "SELECT k, count(DISTINCT u) AS n, sum(v, contribution_bounds_per_group => (0, 9)) AS s FROM t GROUP BY k"
OPTIONS: dict[str, Any] = {"mechanism": "KEYS_FIRST", "max_groups_contributed": 3}
# With the right law the check fails with probability below 1e-4 per seed; the twins fall below 1e-7.
ACCEPTED, CAUGHT = 1e-4, 1e-7


def whitened_noise() -> npt.NDArray[np.float64]:
    """Of later keys: the noise of each point less that of the next higher one, over what that should deviate by."""
    found = []
    with dpsql.connect(threads=1) as session:
        session._runner.noise_source = seeded_noise(3)
        session.connection.execute("CREATE TABLE t AS SELECT u, u % 3 AS k, u % 10 AS v FROM range(3000) r(u)")
        session.sql(
            "CALL dp_protect('t', coverage := FALSE, "
            "privacy_unit_column := 'u', rho_budget := 100, delta_threshold := 1e-3, "
            "delta_conversion := 1e-6, default_delta := 1e-6)"
        )
        for rho in LEVELS:
            session.sql(TEXT, rho=rho, **OPTIONS)
        statement = read_statement(TEXT)
        assert isinstance(statement, SelectStatement)
        query, _, _ = session._runner.plan(statement, {"rho": 1.0, **OPTIONS}, CURATOR)
        state, numbers = session._access.read(), query.first
        runtime = Runtime(state, session._runner.engine, session._runner.sandbox, seeded_noise(4))
        round_keys.add_keys(numbers.frame, pa.table({"key_0": np.arange(100, 100 + KEYS)}), runtime)
        for statistic in numbers.statistics:
            name = statistic_hash(statistic, numbers.frame)
            higher, variance = np.zeros(KEYS), 0.0
            levels = state.side_table.levels(name)
            assert len(levels) == len(LEVELS)
            for level in levels:
                point = state.side_table.point(name, level.rho_nano)
                assert point is not None
                values = point.noisy_values[-KEYS:]
                found.append((values - higher) / np.sqrt(level.sigma**2 - variance))
                higher, variance = values, level.sigma**2
    return np.array(found)


def p_value() -> float:
    """The least p-value of mean, variance and law of each part, and of the correlation of any two; Bonferroni."""
    noise = whitened_noise()
    found = [stats.kstest(one, "norm").pvalue for one in noise]
    found += [2.0 * stats.norm.sf(abs(one.mean()) * np.sqrt(KEYS)) for one in noise]
    squares = (noise**2).sum(axis=1)
    found += [2.0 * min(stats.chi2.cdf(one, KEYS), stats.chi2.sf(one, KEYS)) for one in squares]
    found += [stats.pearsonr(noise[i], noise[j]).pvalue for i in range(len(noise)) for j in range(i)]
    return float(min(1.0, min(found) * len(found)))


def test_later_keys_have_the_noise_of_keys_that_were_there() -> None:
    assert p_value() > ACCEPTED


def test_the_check_catches_points_that_are_drawn_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who holds several of them could average, and see that nobody was counted."""

    def apart(point: Point, count: int, _: object, measure: Measure, runtime: Runtime) -> Placed:
        noise = measure.draw(
            Grid(point.lattice_exponent, point.lattice_exponent), point.sigma, count, runtime.noise_source
        )
        return Placed(point.rho_nano, point.sigma, noise)

    monkeypatch.setattr(round_keys, "_made", apart)
    assert p_value() < CAUGHT


class TooSmall(GaussianMeasure):
    """Noise that is four percent too small, in bridges and steps down, too."""

    def draw(self, grid: Grid, sigma: float, count: int, source: NoiseSource) -> NoisyHistogram:
        return super().draw(grid, 0.96 * sigma, count, source)


def test_the_check_catches_noise_that_is_four_percent_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_keys, "histogram_of", lambda _: SimpleNamespace(measure=TooSmall("gaussian")))
    assert p_value() < CAUGHT
