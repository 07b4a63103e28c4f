"""Levels of pure units: releases apart above, steps down below; and thresholds of private keys."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import dpsql
from dpsql.mechanism.laplace import LaplaceHistogram, deviation_of
from dpsql.noise.correlated_gaussian import GRID_BITS
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

PLACES = 4_000
COUNTS = "SELECT place, count(DISTINCT pid) AS n FROM visits GROUP BY place"
LEVELS = ((0.5, 0.5), (0.2, 0.0), (1.0, 1.0), (0.7, 0.0), (1.5, 1.5))
"""Levels in the order in which they are asked, each with its price."""


def asked(seed: int, delta: str = "") -> dpsql.Session:
    session = dpsql.connect()
    session.connection.execute(
        f"CREATE TABLE visits AS SELECT i AS pid, i % {PLACES} AS place FROM range({50 * PLACES}) t(i)"
    )
    session.sql(f"CALL dp_unit('pid', epsilon_budget := 30{delta}, composition := 'pure')")
    session.sql(
        "CALL dp_protect('visits', unit := 'pid', privacy_unit_column := 'pid', max_groups_contributed := 1, "
        "max_rows_per_group := 1)"
    )
    session._runner.noise_source = seeded_noise(seed)
    return session


def noise_p(noise: np.ndarray[tuple[int], np.dtype[np.int64]], epsilon: float) -> float:
    """Return the p-value of whole noise under the discrete Laplace law, by chi-square over sizes with enough mass."""
    most = math.floor(math.log(len(noise) * 0.02) / epsilon)
    sizes = np.arange(-most, most + 1)
    ratio = math.exp(-epsilon)
    mass = (1.0 - ratio) / (1.0 + ratio) * ratio ** np.abs(sizes)
    beyond = (1.0 - mass.sum()) / 2.0
    found = np.bincount(np.clip(noise, -most - 1, most + 1) + most + 1, minlength=2 * most + 3)
    return float(stats.chisquare(found, len(noise) * np.array([beyond, *mass, beyond])).pvalue)


def test_levels_in_any_order_have_the_law_of_a_fresh_release() -> None:
    with asked(seed=7) as session:
        session.sql(f"CALL dp_domain('visits', 'place', keys := {list(range(PLACES))})")
        found = {}
        for epsilon, price in LEVELS:
            response = session.sql(COUNTS, epsilon=epsilon)
            assert receipt_of(response).charged_rho == pytest.approx(price, abs=1e-9)
            shown = response.df().set_index("place")["n"].reindex(range(PLACES)).to_numpy(dtype=np.int64) - 50
            assert receipt_of(response).epsilon == pytest.approx(epsilon, rel=1e-6)
            assert noise_p(shown, epsilon) > 1e-3
            # a scale that is 15 % off is found
            assert noise_p(shown, 1.15 * epsilon) < 1e-5
            found[epsilon] = shown
        assert abs(np.corrcoef(found[0.5], found[1.0])[0, 1]) < 0.06, "releases apart"
        assert np.corrcoef(found[0.5], found[0.2])[0, 1] > 0.2, "a step down from the next one above"
        # rows that came later are read by a new release alone
        more = f"SELECT 10000000 + i, i % {PLACES} FROM range({5 * PLACES}) t(i)"
        session.connection.execute(f"INSERT INTO visits {more}")
        again = session.sql(COUNTS, epsilon=1.0).df().set_index("place")["n"].reindex(range(PLACES)).to_numpy()
        assert np.array_equal(again - 50, found[1.0])
        later = session.sql(COUNTS, epsilon=3.0).df()["n"]
        assert later.mean() == pytest.approx(55.0, abs=0.1)
        (budget,) = session.sql("FROM dp_budget()").df().to_dict("records")
        assert budget["epsilon_spent"] == budget["epsilon_held"] == pytest.approx(6.0)


@pytest.mark.parametrize("groups", [1, 3, 10])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_a_unit_alone_is_shown_with_at_most_the_charged_delta(groups: int, epsilon: float) -> None:
    """100,000 releases of a unit that is alone in all of its groups; p-value 1e-4."""
    histogram = LaplaceHistogram(name="laplace", unit_groups=groups, draws=0, sum_draws=0, hides=True)
    sigma = histogram.sigma(epsilon)
    tau = histogram.threshold(0.02, sigma)
    assert tau is not None
    charged = histogram.threshold_delta(sigma, tau)
    assert charged <= 0.02
    source, releases = seeded_noise(11), 100_000
    ones = np.ones(releases * groups, dtype=np.int64)
    noisy = histogram.draw(ones, 0, sigma, source).values.reshape(releases, groups) >> GRID_BITS

    def shown(threshold: float) -> int:
        return int((noisy > 1.0 + threshold).any(axis=1).sum())

    assert stats.binomtest(shown(tau), releases, charged, alternative="greater").pvalue > 1e-4
    # the smallest such threshold: one below costs more than was allowed
    assert tau == 0.0 or histogram.threshold_delta(sigma, tau - 1.0) > 0.02
    # a threshold that forgets that a unit has several groups
    if groups > 1:
        alone = LaplaceHistogram(name="laplace", unit_groups=1, draws=0, sum_draws=0, hides=True)
        mine = alone.threshold(0.02 / 1.5, deviation_of(epsilon / groups) * (1.0 + 1e-9))
        assert mine is not None
        if mine < tau:
            assert stats.binomtest(shown(mine), releases, 0.02, alternative="greater").pvalue < 1e-4


def test_private_keys_cost_the_delta_of_their_threshold() -> None:
    with asked(seed=3, delta=", delta_budget := 1e-6") as session:
        session.connection.execute("UPDATE visits SET place = place % 7")
        first = session.sql(COUNTS, epsilon=1.0)
        receipt = receipt_of(first)
        assert first.df()["place"].nunique() == 7
        assert (receipt.epsilon, receipt.mechanism) == (1.0, "laplace")
        assert 0.0 < receipt.delta == pytest.approx(receipt.charged_delta, rel=1e-9)
        lower = receipt_of(session.sql(COUNTS, epsilon=0.5))
        assert (lower.charged_rho, lower.charged_delta) == (0.0, 0.0)
        higher = receipt_of(session.sql(COUNTS, epsilon=2.0))
        assert higher.charged_rho == pytest.approx(2.0)
        assert higher.charged_delta > 0.0
        # keys of both releases are shown, and both count
        assert higher.epsilon == pytest.approx(3.0)
        assert higher.delta == pytest.approx(receipt.delta + higher.charged_delta, rel=1e-6)
        (budget,) = session.sql("FROM dp_budget()").df().to_dict("records")
        assert budget["delta_spent"] == pytest.approx(higher.delta, rel=1e-6)


def test_a_step_down_from_a_very_high_level_has_its_law() -> None:
    """Draws above epsilon 64 a step are drawn as that; lower levels count from the level that was asked for."""
    with asked(seed=5) as session:
        session.sql("CALL dp_unit('pid', epsilon_budget := 200000, replace := true)")
        session.sql(f"CALL dp_domain('visits', 'place', keys := {list(range(PLACES))})")
        assert session.sql(COUNTS, epsilon=200.0).df()["n"].std() == 0.0
        lower = session.sql(COUNTS, epsilon=1.0)
        assert receipt_of(lower).charged_rho == 0.0
        assert noise_p(lower.df()["n"].to_numpy(dtype=np.int64) - 50, 1.0) > 1e-3
        assert session.sql(COUNTS, epsilon=100_000.0).df()["n"].std() == 0.0
        middle = session.sql(COUNTS, epsilon=0.5)
        assert noise_p(middle.df()["n"].to_numpy(dtype=np.int64) - 50, 0.5) > 1e-3


def test_versions_that_know_no_pure_unit_refuse_the_state_file() -> None:
    """They read up to format 15, and would answer with Gaussian noise."""
    with asked(seed=5) as session, session._access.read()._database.read() as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] > 15
