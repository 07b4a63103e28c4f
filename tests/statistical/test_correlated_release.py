"""Correlated noise leaves the front door with the law of its receipt, and what hides shows as rarely as was charged.

The faults that a maker of such a mechanism is likeliest to make are planted here, and every one is caught: a threshold
1 % low, or a whole count, or by twice what the grid may lose; noise 3 % low; a common term drawn for each key; `>=` for
`>`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
from scipy import integrate, stats

import dpsql
from dpsql.mechanism.correlated_gaussian import listed_histogram
from dpsql.mechanism.histogram import NOTHING_MOVED, Histogram, Moved, count_sigma
from dpsql.noise.correlated_gaussian import GRID_BITS, TAU_LOSS, CorrelatedGaussian, CorrelatedNoise
from dpsql.noise.entropy import Entropy, NoiseSource
from dpsql.release import points as shown_module
from dpsql.release.points import shown_keys
from tests.deterministic_entropy import SeededEntropy
from tests.histograms import independent, subtracted
from tests.noise_sources import Fault, FaultyNoise, seeded_noise

pytestmark = pytest.mark.statistical

Floats = npt.NDArray[np.float64]
# With the right law a check falls below ACCEPTED with probability 1e-4 per seed; the planted faults fall below CAUGHT.
ACCEPTED, CAUGHT = 1e-4, 1e-7
GROUPS, UNITS = 50, 40
# Of a table of one unit: at most so many that the delta of all stays below 1.
VERSIONS = 20


def listed(session: dpsql.Session, groups: int, max_groups: int) -> None:
    """A table of ``groups`` listed keys with the same units in each."""
    session.connection.execute(
        f"CREATE OR REPLACE TABLE stays AS SELECT u AS guest, g AS house FROM range({groups}) a(g), range({UNITS}) b(u)"
    )
    session.sql(
        "CALL dp_protect('stays', coverage := FALSE, "
        f"privacy_unit_column := 'guest', max_groups_contributed := {max_groups}, "
        "rho_budget := 1e6, delta_threshold := 0.9, delta_conversion := 1e-6)"
    )
    session.sql(f"CALL dp_domain('stays', 'house', keys := [{', '.join(map(str, range(groups)))}])")


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session._runner.noise_source = seeded_noise(3)
        yield session


TEXT = "SELECT {options} house, count(DISTINCT guest) AS guests FROM stays GROUP BY house ORDER BY house"


@pytest.mark.parametrize(("groups", "ratio"), [(50, 0.571), (1000, 0.516)])
def test_common_noise_takes_almost_half_of_the_noise_away(session: dpsql.Session, groups: int, ratio: float) -> None:
    """The exact variance in the receipt against that of independent noise at the same (epsilon, delta)."""
    listed(session, groups, groups)
    sigmas = []
    for mechanism in ("", "WITH DIFFERENTIAL_PRIVACY OPTIONS (mechanism = GAUSSIAN)"):
        receipt = session.sql(TEXT.format(options=mechanism), epsilon=0.3, delta=1e-6).receipt
        assert receipt is not None
        sigma = receipt.columns[-1].sigma
        assert sigma is not None
        # what is left without the rounding to whole counts, which both have
        sigmas.append(math.sqrt(sigma**2 - 1 / 12))
    assert receipt is not None
    assert receipt.mechanism == "gaussian"
    assert sigmas[0] / sigmas[1] == pytest.approx(ratio, abs=5e-4)
    assert sigmas[0] / sigmas[1] == pytest.approx((1 + groups**-0.5) / 2, rel=1e-3)


def errors_of(histogram: Histogram, sigma: float, draws: int, keys: int, source: NoiseSource | None = None) -> Floats:
    """Noise of ``draws`` releases of ``keys`` keys in counts, shape (draws, keys), floor included."""
    source = source or seeded_noise(12)
    found = []
    for _ in range(draws):
        noisy = histogram.draw(np.zeros(keys, dtype=np.int64), 0, sigma, source)
        found.append(noisy.values + noisy.floor)
    return np.stack(found).astype(np.float64) * 2.0**-GRID_BITS


def law_p(error: Floats, sigma: float, shared: float, *, rounding: float = 0.0) -> float:
    """p-value of mean 0, variance own + sigma² shared and covariance sigma² shared; the smallest of three, x 3.

    Own is sigma² and the variance of rounding what is shown. Over one draw, deviations from the draw's mean have the
    own variance, and the mean has sigma² shared beside.
    """
    keys, own = error.shape[1], sigma**2 + rounding
    within = np.sum((error - error.mean(axis=1, keepdims=True)) ** 2) / own
    of_mean = sigma**2 * shared + own / keys
    between = np.sum(error.mean(axis=1) ** 2) / of_mean
    centre = abs(error.mean()) / math.sqrt(of_mean / error.shape[0])
    freedom = error.shape[0]
    one_sided = [
        float(side(value, degrees))
        for side in (stats.chi2.cdf, stats.chi2.sf)
        for value, degrees in ((within, freedom * (keys - 1)), (between, freedom))
    ]
    return min(1.0, 3 * 2 * min(*one_sided, float(stats.norm.sf(centre))))


SHAPES = (
    (listed_histogram(GROUPS, GROUPS, GROUPS**-0.5), GROUPS**-0.5),
    (subtracted(GROUPS, None, correlation=0.2, floor_correlation=0.3), 0.3),
    (subtracted(GROUPS, None, correlation=0.0, floor_correlation=0.3), 0.3),
    (independent(GROUPS, hides=True), 0.0),
)


@pytest.mark.parametrize(("histogram", "shared"), SHAPES)
def test_draws_have_the_variance_and_covariance_of_the_receipt(histogram: Histogram, shared: float) -> None:
    error = errors_of(histogram, 9.0, 3000, GROUPS)
    assert law_p(error, 9.0, shared) > ACCEPTED
    # shown as whole numbers
    assert count_sigma(histogram, 9.0) == pytest.approx(9.0 * math.sqrt(1 + shared))


def common_term_per_key(law: CorrelatedGaussian, count: int, entropy: Entropy) -> CorrelatedNoise:
    """The fault: every key gets a common term of its own."""
    own = dataclasses.replace(law, correlation=0.0).draw(count, entropy)
    common = CorrelatedGaussian(law.sigma * math.sqrt(law.correlation), 0.0).draw(count, entropy).values
    return CorrelatedNoise(own.values + common, int(common[0]), own.floor and own.floor - int(common[0]))


def low_noise(law: CorrelatedGaussian, count: int, entropy: Entropy) -> CorrelatedNoise:
    """The fault: own and common noise are 3 % low."""
    return dataclasses.replace(law, sigma=0.97 * law.sigma).draw(count, entropy)


@pytest.mark.parametrize("fault", [common_term_per_key, low_noise])
@pytest.mark.parametrize(("histogram", "shared"), SHAPES[:2])
def test_the_law_of_correlated_draws_catches_a_planted_fault(
    fault: Fault[CorrelatedGaussian], histogram: Histogram, shared: float
) -> None:
    source = FaultyNoise(SeededEntropy(12), {CorrelatedGaussian: fault})
    assert law_p(errors_of(histogram, 9.0, 800, GROUPS, source), 9.0, shared) < CAUGHT


def test_listed_counts_follow_the_law_of_the_receipt_through_sql(session: dpsql.Session) -> None:
    listed(session, GROUPS, GROUPS)
    found = []
    for _ in range(36):
        session.sql("CALL dp_new_version('stays')")
        answer = session.sql(TEXT.format(options=""), rho=0.1)
        found.append(answer.df()["guests"].to_numpy() - UNITS)
    assert answer.receipt is not None
    assert answer.receipt.mechanism == "correlated_gaussian"
    sigma = answer.receipt.columns[-1].sigma
    assert sigma is not None
    own = math.sqrt((sigma**2 - 1 / 12) / (1 + GROUPS**-0.5))
    assert law_p(np.stack(found).astype(np.float64), own, GROUPS**-0.5, rounding=1 / 12) > ACCEPTED


def any_passes(sigma: float, distance: float, keys: int, correlation: float) -> float:
    """P(one of N(0, sigma²) + a common N(0, correlation sigma²) is at least ``distance``), by quadrature."""
    if correlation == 0.0:
        return -math.expm1(keys * stats.norm.logcdf(distance / sigma))

    def shown(common: float) -> float:
        tail = stats.norm.logcdf((distance - common) / sigma)
        return -math.expm1(keys * tail) * stats.norm.pdf(common, scale=sigma * math.sqrt(correlation))

    far = 12 * sigma * math.sqrt(correlation)
    value, _ = integrate.quad(shown, -far, far, points=[0.0, distance / 2, distance], limit=400, epsrel=1e-10)
    return float(value)


@pytest.mark.parametrize("k", [1, 2, 7, 50, 1000])
@pytest.mark.parametrize("correlated", [True, False])
def test_keys_of_one_unit_hide_after_top_k_with_probability_one_minus_delta(k: int, correlated: bool) -> None:
    """Exact tails at the chosen sigma and tau; the charge covers no threshold that is lower than the grid may make it.

    `>=` for `>` is one step of the grid, which that covers: the rule itself is held to it.
    """
    correlation = k**-0.5 if correlated else 0.0
    histogram = subtracted(k, None, correlation, k**-0.5)
    for rho, delta in ((0.001, 1e-9), (0.1, 1e-6), (2.0, 1e-12)):
        sigma = histogram.sigma(rho)
        tau = histogram.threshold(delta, sigma)
        assert tau is not None
        charged = histogram.threshold_delta(sigma, tau)
        assert any_passes(sigma, tau, k, correlation) <= charged <= delta
        at_most = any_passes(sigma, tau - TAU_LOSS, k, correlation)
        assert at_most * (1 - 1e-9) <= charged <= at_most * (1 + 2e-5)
        for low in (tau - 1.0, 0.99 * tau, tau - 2.0 * TAU_LOSS):
            assert any_passes(sigma, low, k, correlation) > charged
        counts = np.array([tau, 1.0 + tau, 1.0 + tau + 2.0**-GRID_BITS])
        assert shown_keys(counts, tau, 1).tolist() == [2]


def lone_units(session: dpsql.Session, tables: Iterable[int], k: int) -> tuple[int, float]:
    """How many of `VERSIONS` versions of each table, all of one unit in ``k`` keys, showed a key.

    Returns:
        That number, and the delta charged for each version.

    """
    seen = 0
    for number in tables:
        table = f"stays_{number}"
        session.connection.execute(f"CREATE TABLE {table} AS SELECT 1 AS guest, g AS house FROM range({k}) a(g)")
        session.sql(
            f"CALL dp_protect('{table}', coverage := FALSE, "
            "privacy_unit_column := 'guest', rho_budget := 1, delta_threshold := 0.999, "
            "delta_conversion := 1e-6, separate_people := true)"
        )
        text = f"SELECT house, count(DISTINCT guest) AS n FROM {table} GROUP BY house ORDER BY n DESC LIMIT {k // 2}"
        for version in range(VERSIONS):
            if version > 0:
                session.sql(f"CALL dp_new_version('{table}')")
            answer = session.sql(text, rho=0.05, delta=0.05)
            seen += len(answer) > 0
    assert answer.receipt is not None
    return seen, answer.receipt.charged_delta


def test_a_lone_unit_is_shown_after_top_k_as_rarely_as_was_charged(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, charged = lone_units(session, range(3), 8)
    assert stats.binomtest(seen, 3 * VERSIONS, charged, alternative="greater").pvalue > ACCEPTED

    def half_the_threshold(counts: Floats, tau: float | None, min_units: int) -> npt.NDArray[np.intp]:
        assert tau is not None
        return shown_keys(counts + 0.5 * tau, tau, min_units)

    monkeypatch.setattr(shown_module, "shown_keys", half_the_threshold)
    too_often, _ = lone_units(session, range(3, 5), 8)
    assert stats.binomtest(too_often, 2 * VERSIONS, charged, alternative="greater").pvalue < CAUGHT


def test_sums_after_top_k_move_on_the_units_keys_and_counts_on_all(session: dpsql.Session) -> None:
    """The joint epsilon of counts and sums covers the case that counts fall where the unit's sums stay."""
    histogram = subtracted(9, None, 0.3, 0.3)
    sigma, sums = histogram.sigma(0.1), Moved(0.02)
    joint = histogram.query_epsilon(1e-6, sigma, histogram.threshold(1e-7, sigma), sums)
    counts_alone = histogram.query_epsilon(1e-6, sigma, histogram.threshold(1e-7, sigma), NOTHING_MOVED)
    added = subtracted(9, 1, 0.3, 0.3).query_epsilon(1e-6, sigma, histogram.threshold(1e-7, sigma), sums)
    assert counts_alone < joint
    assert added < joint
