"""Values that leave the front door follow the law that the receipt states, keys of one unit hardly ever show."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.mechanism.calibrate import calibrate
from dpsql.mechanism.gaussian_measure import GaussianHistogram
from dpsql.mechanism.registry import histogram_of
from dpsql.model.estimates import Linear
from dpsql.model.frame import Statistic
from dpsql.model.private_query import PrivateQuery, Request
from dpsql.noise.correlated_gaussian import GRID_BITS, TAU_LOSS, CorrelatedGaussian, CorrelatedNoise
from dpsql.noise.entropy import Entropy
from dpsql.noise.rounded_gaussian import RoundedGaussian
from dpsql.release import estimates
from dpsql.release import points as shown_module
from dpsql.release.points import shown_keys
from dpsql.sql.statements import SelectStatement, read_statement
from tests.deterministic_entropy import SeededEntropy
from tests.frames import with_bounding
from tests.noise_sources import Fault, FaultyNoise, seeded_noise

pytestmark = pytest.mark.statistical

Floats = npt.NDArray[np.float64]
# One release of many groups costs less than many releases of few.
GROUPS, UNITS = 8000, 25
# With the right law a check falls below this with probability 1e-4 per seed; the planted faults fall far below it.
ACCEPTED, CAUGHT = 1e-4, 1e-7


@pytest.fixture(scope="module")
def table() -> Iterator[dpsql.Session]:
    """8,000 groups of 25 patients, one to three rows each; all values keep to the bounds that are declared."""
    with dpsql.connect() as session:
        session.connection.execute(
            "CREATE TABLE visits (patient INTEGER, city INTEGER, whole INTEGER NOT NULL, maybe DOUBLE)"
        )
        session.connection.execute(
            "INSERT INTO visits SELECT g * 100 + u, g, 20 + (g * 7 + u * 3 + v * 11) % 41, "
            "CASE WHEN (u + v) % 3 > 0 THEN 20 + (g + u * 5 + v) % 41 END "
            f"FROM range({GROUPS}) a(g), range({UNITS}) b(u), range(3) c(v) WHERE v <= u % 3"
        )
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "privacy_unit_column := 'patient', max_groups_contributed := 1, "
            "max_rows_per_group := 3, rho_budget := 10000, delta_threshold := 0.99, delta_conversion := 1e-6)"
        )
        for column in ("whole", "maybe"):
            session.sql(f"CALL dp_domain('visits', '{column}', bounds := [20, 60])")
        yield session


@pytest.fixture
def session(table: dpsql.Session) -> dpsql.Session:
    """The table's session, with noise that starts afresh: every release is one of a new version."""
    table._runner.noise_source = seeded_noise(7)
    return table


PER_GROUP = ", contribution_bounds_per_group => (20, 180)"


def errors(
    session: dpsql.Session, aggregates: dict[str, str], rho: float, releases: int
) -> tuple[dict[str, Floats], dpsql.Receipt]:
    """Shown minus exact value of each aggregate, shape (releases, groups), over fresh releases."""
    listed = ", ".join(f"{private} AS {name}" for name, private in aggregates.items())
    plain = ", ".join(f"{private.replace(PER_GROUP, '')} AS {name}" for name, private in aggregates.items())
    exact = session.connection.execute(f"SELECT {plain} FROM visits GROUP BY city ORDER BY city").fetchnumpy()
    found: dict[str, list[Floats]] = {name: [] for name in aggregates}
    for _ in range(releases):
        session.sql("CALL dp_new_version('visits')")
        answer = session.sql(f"SELECT city, {listed} FROM visits GROUP BY city ORDER BY city", rho=rho, delta=1e-2)
        assert len(answer) == GROUPS, "a group is not well above the threshold"
        shown = answer.df()
        for name in aggregates:
            found[name].append(np.asarray(shown[name] - exact[name], dtype=np.float64))
    assert answer.receipt is not None
    return {name: np.stack(rows) for name, rows in found.items()}, answer.receipt


def moments_p(error: Floats, sigma: float) -> float:
    """p-value of mean 0 and variance sigma² (near-normal errors); the smaller of the two, times two."""
    mean = abs(error.mean()) / sigma * math.sqrt(error.size)
    variance = abs(np.mean(error**2) / sigma**2 - 1) * math.sqrt(error.size / 2)
    return min(1.0, 2 * 2 * float(stats.norm.sf(max(mean, variance))))


def rounded_gaussian_p(error: Floats, sigma: float) -> float:
    """Chi-square of whole errors against the rounded Gaussian with standard deviation ``sigma`` before rounding."""
    largest = math.floor(3 * sigma)
    edges = np.arange(-largest, largest + 1) + 0.5
    expected = np.diff(stats.norm.cdf(edges / sigma), prepend=0.0, append=1.0) * error.size
    observed = np.bincount(np.searchsorted(edges, error.ravel()), minlength=expected.size)
    return float(stats.chisquare(observed, expected).pvalue)


def independence_p(error: Floats, sigma: float) -> float:
    """Means over the keys of a release, and over the releases of a key, have the variance of independent draws."""
    of_releases = float(np.sum((error.mean(axis=1) / sigma) ** 2) * error.shape[1])
    of_keys = float(np.sum((error.mean(axis=0) / sigma) ** 2) * error.shape[0])
    tails = stats.chi2.sf([of_releases, of_keys], [error.shape[0], error.shape[1]])
    return min(1.0, 2 * float(np.min(tails)))


LAW = {
    "units": "count(DISTINCT patient)",
    "n": "count(*)",
    "total": f"sum(whole{PER_GROUP})",
}


def law_p(session: dpsql.Session, releases: int) -> dict[str, float]:
    """The worst p-value of every column against the receipt; Bonferroni over its checks."""
    found, receipt = errors(session, LAW, rho=0.6, releases=releases)
    sigmas = {column.name: column.sigma for column in receipt.columns}
    worst = {}
    for name, error in found.items():
        sigma = sigmas[name]
        assert sigma is not None
        checks = [moments_p(error, sigma), independence_p(error, sigma)]
        if name == "units":
            checks.append(rounded_gaussian_p(error, math.sqrt(sigma**2 - 1 / 12)))
        if name == "total":
            checks.append(float(stats.kstest(error.ravel() / sigma, "norm").pvalue))
        worst[name] = min(1.0, 3 * min(checks))
    return worst


def low_sigma(law: CorrelatedGaussian, count: int, entropy: Entropy) -> CorrelatedNoise:
    return dataclasses.replace(law, sigma=0.97 * law.sigma).draw(count, entropy)


FAULTS: Mapping[str, Mapping[type, Fault[Any]]] = {
    "low sigma": {
        CorrelatedGaussian: low_sigma,
        RoundedGaussian: lambda law, count, entropy: RoundedGaussian(0.97 * law.sigma_steps).draw(count, entropy),
    },
    "one draw for all": {
        CorrelatedGaussian: lambda law, count, entropy: CorrelatedNoise(
            law.draw(1, entropy).values.repeat(count), common=0
        ),
        RoundedGaussian: lambda law, count, entropy: law.draw(1, entropy).repeat(count),
    },
    "same draws each time": dict.fromkeys(
        (CorrelatedGaussian, RoundedGaussian), lambda law, count, _: law.draw(count, SeededEntropy(1))
    ),
}
"""Faults of the noise of presence counts, which is `CorrelatedGaussian`, and of that of other statistics."""

# A fault, and of how many releases the checks need to see it: noise that is shared is plain in a few.
RELEASES = {"low sigma": 4, "one draw for all": 2, "same draws each time": 2}


def test_shown_values_follow_the_law_of_the_receipt(session: dpsql.Session) -> None:
    assert min(law_p(session, 9).values()) > ACCEPTED


def plant(session: dpsql.Session, fault: str, *laws: type) -> None:
    session._runner.noise_source = FaultyNoise(SeededEntropy(7), {law: FAULTS[fault][law] for law in laws})


@pytest.mark.parametrize(("fault", "releases"), RELEASES.items())
def test_the_law_catches_a_planted_fault(session: dpsql.Session, fault: str, releases: int) -> None:
    """In every draw: the presence count's and those of the other statistics; each column's own checks catch it."""
    plant(session, fault, CorrelatedGaussian, RoundedGaussian)
    assert max(law_p(session, releases).values()) < CAUGHT


@pytest.mark.parametrize(("fault", "releases"), RELEASES.items())
def test_the_law_catches_a_fault_of_the_presence_noise_alone(session: dpsql.Session, fault: str, releases: int) -> None:
    plant(session, fault, CorrelatedGaussian)
    assert law_p(session, releases)["units"] < CAUGHT


# half of the variance of a sum is that of the presence count
@pytest.mark.parametrize(("fault", "releases"), (RELEASES | {"low sigma": 9}).items())
def test_the_law_catches_a_fault_of_the_other_noise_alone(session: dpsql.Session, fault: str, releases: int) -> None:
    plant(session, fault, RoundedGaussian)
    found = law_p(session, releases)
    assert found["total"] < CAUGHT
    assert found["units"] > ACCEPTED, "the presence count has noise of its own"


@dataclass(frozen=True)
class Recentred:
    """An aggregate, its public interval by the rules of the design, and the index of its statistic."""

    sql: str
    low: float
    high: float


RECENTRED = {
    "rows": Recentred("count(*)", 1, 3),
    "nullable_rows": Recentred("count(maybe)", 0, 3),
    "filtered_rows": Recentred("count(*) FILTER (WHERE whole > 40)", 0, 3),
    "per_row": Recentred("sum(whole)", 20, 180),
    "filtered": Recentred("sum(whole) FILTER (WHERE whole > 40)", 0, 180),
    "nullable": Recentred("sum(maybe)", 0, 180),
    "per_group": Recentred(f"sum(whole{PER_GROUP})", 20, 180),
}


def planned(session: dpsql.Session, text: str, **options: object) -> PrivateQuery:
    statement = read_statement(text)
    assert isinstance(statement, SelectStatement)
    return session._runner.plan(statement, options, CURATOR)[0]


def formula_sigma(session: dpsql.Session, case: Recentred, rho: float) -> float:
    """Standard deviation by hand: own noise at half the interval, and the centre times the presence count's.

    Each with max_groups = 1. The grid adds nothing, but counts are shown as whole numbers.
    """
    query = planned(session, f"SELECT city, {case.sql} AS a FROM visits GROUP BY city", rho=rho, delta=1e-2)
    presence_rho, own_rho = (weight * rho for weight in query.first.weights)
    centre, radius = (case.low + case.high) / 2, (case.high - case.low) / 2
    noise = radius**2 / (2 * own_rho) + centre**2 / (2 * presence_rho)
    rounding = 1 / 12 if "count" in case.sql else 0.0
    return math.sqrt(noise + rounding)


def recentring_p(session: dpsql.Session, name: str) -> tuple[float, float]:
    """p-value of the errors against the law, and the receipt's sigma as a multiple of its formula's."""
    case = RECENTRED[name]
    rho = 0.25
    found, receipt = errors(session, {"a": case.sql}, rho, releases=2)
    law = formula_sigma(session, case, rho)
    shown = receipt.columns[0].sigma
    assert shown is not None
    return moments_p(found["a"], law), shown / law


@pytest.mark.parametrize("name", RECENTRED)
def test_bias_and_variance_of_recentred_aggregates_are_the_formulas(session: dpsql.Session, name: str) -> None:
    p_value, ratio = recentring_p(session, name)
    assert p_value > ACCEPTED
    assert ratio == pytest.approx(1, rel=1e-5)


def without_centre(linear: Linear, values: dict[Statistic, estimates.NoisyValues]) -> Floats:
    assert linear.statistic is not None
    return values[linear.statistic].value


def at_full_range(histogram: GaussianHistogram, statistic: Statistic, rho: float) -> float:
    return (
        (statistic.high_steps - statistic.low_steps or 1)
        * statistic.lattice
        * math.sqrt(histogram.unit_groups / (2.0 * rho))
    )


def centre_of_exact_presence(linear: Linear, values: dict[Statistic, estimates.NoisyValues]) -> Floats:
    assert linear.statistic is not None
    return values[linear.statistic].value + linear.centre * UNITS


@pytest.mark.parametrize(
    ("module", "function", "fault"),
    [
        (estimates, "linear_value", without_centre),
        (estimates, "linear_value", centre_of_exact_presence),
        (GaussianHistogram, "sum_sigma", at_full_range),
    ],
)
@pytest.mark.usefixtures("plans_each_time")
def test_recentring_catches_a_planted_fault(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch, module: object, function: str, fault: object
) -> None:
    monkeypatch.setattr(module, function, fault)
    assert recentring_p(session, "nullable")[0] < CAUGHT


@pytest.mark.parametrize("aggregates", ["count(DISTINCT patient)", "count(*), sum(whole)"])
def test_a_unit_alone_in_its_groups_shows_none_with_probability_one_minus_delta(
    session: dpsql.Session, aggregates: str
) -> None:
    """Exact tails at the chosen sigma and tau, and at thresholds a whole count low or lower than the grid may make it.

    ``>=`` for ``>`` is one step of the grid, which the charge covers: the rule itself is held to its boundary.
    """
    requests = [Request(0.01, None, 1e-9), Request(0.5, None, 1e-6), Request(5.0, None, 1e-9)]
    requests += [Request(None, 0.1, 1e-9), Request(None, 4.0, 1e-6)]
    base = planned(session, f"SELECT city, {aggregates} FROM visits GROUP BY city", rho=1.0)
    for max_groups in (1, 2, 3, 5, 8, 13, 21, 34, 50):
        frame = with_bounding(base.first.frame, max_groups=max_groups)
        for request in requests:
            assert request.delta is not None
            asked = dataclasses.replace(base.first, frame=frame, request=request)
            made = calibrate(asked, histogram_of(frame))
            assert made.cut.tau is not None
            assert made.cut.tau >= 1
            sigma, tau = made.levels[0].sigma, made.cut.tau
            assert any_passes(sigma, tau, max_groups) <= made.cut.delta <= request.delta <= made.delta
            at_most = any_passes(sigma, tau - TAU_LOSS, max_groups)
            assert at_most * (1 - 1e-9) <= made.cut.delta <= at_most * (1 + 1e-9)
            # The planted faults: the charge no longer covers them, nor does delta where tau answers to delta alone.
            for low in (tau - 1.0, tau - 2.0 * TAU_LOSS):
                too_often = any_passes(sigma, low, max_groups)
                assert too_often > made.cut.delta * (1 + 1e-9)
                assert request.rho is None or too_often > request.delta
            counts = np.array([tau, 1.0 + tau, 1.0 + tau + 2.0**-GRID_BITS])
            assert shown_keys(counts, tau, 1).tolist() == [2]


def any_passes(sigma: float, distance: float, max_groups: int) -> float:
    """P(one of ``max_groups`` independent N(0, sigma²) exceeds ``distance``)."""
    return -math.expm1(max_groups * math.log1p(-stats.norm.sf(distance / sigma)))


DELTA, RHO = 0.05, 0.1115


def shown_units(max_groups: int, releases: int) -> tuple[int, int, float]:
    """How many of how many units, each alone in ``max_groups`` groups, showed a group, and the exact probability."""
    units = 4000
    with dpsql.connect() as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT u AS patient, u * 100 + g AS city "
            f"FROM range({units}) a(u), range({max_groups}) b(g)"
        )
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            f"privacy_unit_column := 'patient', max_groups_contributed := {max_groups}, "
            "rho_budget := 10000, delta_threshold := 0.99, delta_conversion := 1e-6)"
        )
        session._runner.noise_source = seeded_noise(11)
        text = "SELECT city, count(DISTINCT patient) FROM visits GROUP BY city"
        seen = 0
        for _ in range(releases):
            session.sql("CALL dp_new_version('visits')")
            answer = session.sql(text, rho=RHO * max_groups, delta=DELTA)
            seen += len({city // 100 for city, _ in answer.fetchall()})
        asked = planned(session, text, rho=RHO * max_groups, delta=DELTA)
        made = calibrate(asked.first, histogram_of(asked.first.frame))
        assert made.cut.tau is not None
        return seen, units * releases, any_passes(made.levels[0].sigma, made.cut.tau, max_groups)


def too_often_p(seen: int, units: int, _: float) -> float:
    return float(stats.binomtest(seen, units, DELTA, alternative="greater").pvalue)


@pytest.mark.parametrize("max_groups", [1, 4])
def test_units_alone_in_their_groups_are_shown_as_rarely_as_delta_says(
    monkeypatch: pytest.MonkeyPatch, max_groups: int
) -> None:
    seen, units, passing = shown_units(max_groups, 5)
    assert too_often_p(seen, units, passing) > ACCEPTED
    assert stats.binomtest(seen, units, passing).pvalue > ACCEPTED

    def a_count_low(counts: Floats, tau: float | None, min_units: int) -> npt.NDArray[np.intp]:
        return shown_keys(counts + 1.0, tau, min_units)

    monkeypatch.setattr(shown_module, "shown_keys", a_count_low)
    assert too_often_p(*shown_units(max_groups, 1)) < CAUGHT
