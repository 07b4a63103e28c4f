"""One statistic at many levels: it costs what the highest level costs, and all its points follow one law."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

import dpsql
from dpsql.cascade import servings as servings_module
from dpsql.engine import DuckDBEngine
from dpsql.errors import CalibrationError
from dpsql.mechanism.gaussian_measure import GaussianMeasure
from dpsql.mechanism.measure import Grid, NoisyHistogram, Placed
from dpsql.mechanism.window import FREE_LEVELS, free_level, grid
from dpsql.model.frame import Window
from dpsql.noise.correlated_gaussian import MOST_RISES, TAU_LOSS, rounding_loss
from dpsql.state import DELTA_UNITS_PER_ONE
from tests.end_to_end.cities import (
    BY_THRESHOLD,
    BY_TOP_K,
    CHARGED,
    CORRELATED,
    COUNT,
    ORDER,
    PRIVATE,
    PUBLIC,
    SUM,
    WITH,
    ask,
    open_session,
    presence_levels,
    spent,
)

Floats = npt.NDArray[np.float64]
# With the right law a check falls below the first with that probability per seed; planted faults fall below the other.
ACCEPTED, CAUGHT = 1e-4, 1e-7


def refuse_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def reading(*_: object, **__: object) -> None:
        raise AssertionError("raw data were read")

    monkeypatch.setattr(DuckDBEngine, "aggregate", reading)


# from groups that no level shows to groups that every level shows
MANY_SIZES = [3 + i % 57 for i in range(200)]


@pytest.mark.parametrize("text", PRIVATE.values(), ids=PRIVATE)
def test_private_keys_cost_the_highest_level_and_the_thresholds_of_those_that_were_charged(text: str) -> None:
    alone = []
    with open_session(MANY_SIZES) as session:
        for rho in CHARGED:
            session.sql("CALL dp_new_version('visits')")
            before = spent(session)
            ask(session, text, rho)
            after = spent(session)
            alone.append((after[0] - before[0], after[1] - before[1]))
    with open_session(MANY_SIZES) as session:
        charged, shown = {}, {}
        for rho in ORDER:
            before = spent(session)
            values, receipt = ask(session, text, rho)
            after = spent(session)
            shown[rho], charged[rho] = set(values), (after[0] - before[0], after[1] - before[1])
            assert receipt.rho == pytest.approx(rho, abs=1e-9)
            assert receipt.charged_rho == charged[rho][0] / 1e9
            assert receipt.charged_delta == charged[rho][1] / DELTA_UNITS_PER_ONE
        assert charged[0.2][0] == 0
        assert alone[-1][0] == 10**9
        if "top_k" in text:
            # what is shown tells of the noise that hidden keys share, so each charged level stands alone
            assert [charged[rho][0] for rho in CHARGED] == [50_000_000, 500_000_000, 10**9]
        else:
            assert [charged[rho][0] for rho in CHARGED] == [50_000_000, 450_000_000, 500_000_000]
            assert spent(session)[0] == 10**9
        # a threshold costs the same delta whatever was there before; beside it is the imprecision of the draws alone
        thresholds = [level.threshold_delta_units for level in reversed(presence_levels(session)) if level.tau]
        for level, rho, (_, delta_alone) in zip(thresholds, CHARGED, alone, strict=True):
            for delta in (delta_alone, charged[rho][1]):
                assert 0 <= delta - level < 1e-20 * DELTA_UNITS_PER_ONE
        assert charged[0.2][1] == 0
        assert spent(session)[1] == sum(delta for _, delta in charged.values())
        # the step between shows exactly what the charged points have shown, a rise shows more beside
        assert shown[0.2] == (shown[0.5] if "top_k" in text else shown[0.05] | shown[0.5])
        assert shown[0.2] < shown[1.0]


@pytest.mark.parametrize("mechanism", PUBLIC)
def test_public_keys_cost_the_highest_level_and_the_draws_imprecision(mechanism: str) -> None:
    sizes = [30, 40, 50]
    with open_session(sizes, max_groups=2, public=True) as session:
        for rho in ORDER:
            before = spent(session)[1]
            values, receipt = ask(session, PUBLIC[mechanism], rho)
            assert receipt.mechanism == mechanism.lower()
            assert set(values) == set(range(len(sizes)))
            delta = spent(session)[1] - before
            exact = mechanism.startswith("DISCRETE") or rho == 0.2
            assert delta == 0 if exact else 0 < delta < 1e-20 * DELTA_UNITS_PER_ONE
        assert spent(session)[0] == 10**9


@pytest.mark.parametrize("text", [*PRIVATE.values(), SUM], ids=[*PRIVATE, "sum"])
def test_below_the_top_no_raw_data_are_read_and_numbers_stay(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_session(MANY_SIZES) as session:
        top, _ = ask(session, text, 1.0)
        price = spent(session)
        refuse_to_read(monkeypatch)
        session.connection.execute("DELETE FROM visits")
        first = {rho: ask(session, text, rho) for rho in (0.3, 0.02, 0.1)}
        for rho, (values, receipt) in first.items():
            assert set(values) == set(top)
            assert values != top
            assert (receipt.charged_rho, receipt.charged_delta, receipt.reused) == (0, 0, True)
            assert receipt.rho == pytest.approx(rho, abs=1e-8)
            assert ask(session, text, rho)[0] == values
        assert ask(session, text, 1.0)[0] == top
        assert spent(session) == price
        assert len(session.sql("FROM dp_releases()")) == 8


def test_numbers_of_lower_levels_outlive_a_rise() -> None:
    """A rise shows more keys, at every level that is asked for again; those that were shown keep their numbers."""
    with open_session(MANY_SIZES) as session:
        before = {rho: ask(session, BY_THRESHOLD, rho)[0] for rho in (0.05, 0.5, 0.2)}
        top, _ = ask(session, BY_THRESHOLD, 1.0)
        for rho, values in before.items():
            after, receipt = ask(session, BY_THRESHOLD, rho)
            assert receipt.charged_rho == receipt.charged_delta == 0
            assert set(after) == set(top)
            assert {city: after[city] for city in values} == values


def test_a_rise_that_was_charged_and_never_stored_pays_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("planted")

    with open_session(MANY_SIZES) as session:
        low, _ = ask(session, BY_THRESHOLD, 0.05)
        monkeypatch.setattr(GaussianMeasure, "risen", fail)
        with pytest.raises(OSError, match="planted"):
            ask(session, BY_THRESHOLD, 0.5)
        assert spent(session)[0] == 500_000_000
        assert [level.rho_nano for level in presence_levels(session)] == [50_000_000]
        assert ask(session, BY_THRESHOLD, 0.05)[0] == low
        monkeypatch.undo()
        first, receipt = ask(session, BY_THRESHOLD, 0.4)
        # the open charge covers it; two thresholds for the same delta differ by how they are rounded
        assert (receipt.charged_rho, receipt.reused) == (0, False)
        assert receipt.charged_delta < 1e-15
        # the level that was asked for is what is stored, and the next rise begins there
        assert [level.rho_nano for level in presence_levels(session)] == [400_000_000, 50_000_000]
        _, receipt = ask(session, BY_THRESHOLD, 1.0)
        assert receipt.charged_rho == 0.6
        assert {city: n for city, n in ask(session, BY_THRESHOLD, 0.4)[0].items() if city in first} == first


@pytest.mark.parametrize("text", [*PRIVATE.values(), SUM], ids=[*PRIVATE, "sum"])
def test_explain_names_the_price_that_is_charged(text: str) -> None:
    with open_session(MANY_SIZES) as session:
        for rho in (*ORDER, 0.7, 3.0):
            plan = session.sql(f"FROM dp_explain($$ {text} $$, rho := {rho})").fetchall()
            price = {name: value for section, name, value in plan if section == "price"}
            sources = {value.rpartition("(")[2] for section, _, value in plan if section == "statistic"}
            _, receipt = ask(session, text, rho)
            assert price["rho"] == f"{receipt.charged_rho:.9g}"
            assert price["threshold delta"] == f"{receipt.charged_delta:.6g}"
            if rho in (0.2, 0.7):
                assert receipt.charged_rho == 0
                assert sources <= {"stored)", "from what is stored)"}
            else:
                assert receipt.charged_rho > 0
                assert sources == {"to be drawn)"}


def test_a_statistic_inside_another_query_is_served_by_the_best_paid_point_up_to_the_querys_level() -> None:
    both = "SELECT city, count(DISTINCT patient) AS n, sum(cost) FROM visits GROUP BY city"
    with open_session([500] * 4) as session:
        # the one at 0.95 is free, and serves nobody but those who ask for that level
        counts = {rho: ask(session, BY_THRESHOLD, rho)[0] for rho in (0.9, 2.0, 0.95, 0.5)}
        inside = session.sql(both, rho=1.0)
        assert {row[0]: float(row[1]) for row in inside.fetchall()} == counts[0.9]
        assert inside.receipt is not None
        assert 0 < inside.receipt.charged_rho < 1.0
        assert inside.receipt.charged_delta < 1e-20


def test_points_that_stand_alone_show_the_keys_of_the_releases_that_the_reader_holds() -> None:
    """Releases with noise of their own each add up: whoever holds several is told what they tell together."""
    text = f"{WITH} (mechanism = CSH, top_k = 40) {COUNT}"
    with open_session(MANY_SIZES) as session:
        shown: set[int] = set()
        first: dict[float, dict[int, float]] = {}
        only: list[dpsql.Receipt] = []
        for rho in (0.5, 0.55, 0.6):
            first[rho], receipt = ask(session, text, rho)
            only.append(receipt)
            assert set(first[rho]) >= shown
            shown |= set(first[rho])
        assert only[0].epsilon < only[1].epsilon < only[2].epsilon
        assert only[0].delta < only[1].delta < only[2].delta
        for rho, values in first.items():
            again, receipt = ask(session, text, rho)
            assert set(again) == shown
            assert {city: again[city] for city in values} == values
            assert (receipt.epsilon, receipt.delta) == (only[2].epsilon, only[2].delta)
            assert any(f"at rho = {1.65 - rho:.9g} more" in note for note in receipt.notes)
            # between this level and the one below: made of this release
            lower, receipt = ask(session, text, rho - 0.01)
            assert set(lower) == shown
            assert (receipt.charged_rho, receipt.charged_delta) == (0.0, 0.0)
            assert any(f"at rho = {rho:.9g}," in note for note in receipt.notes)
            assert receipt.epsilon == only[2].epsilon


def test_what_one_release_guarantees_is_what_it_guaranteed_first() -> None:
    text = f"{WITH} (mechanism = CSH, top_k = 40) {COUNT}"
    with open_session(MANY_SIZES) as session:
        _, only = ask(session, text, 0.5)
        for rho in (0.5, 0.45):
            _, receipt = ask(session, text, rho)
            assert (receipt.epsilon, receipt.delta) == pytest.approx((only.epsilon, only.delta), rel=1e-6)


TEXTS = [
    BY_THRESHOLD,
    pytest.param(BY_TOP_K, marks=pytest.mark.long),
    pytest.param(f"{WITH} (rho_window = [0.0001, 4]) {COUNT}", marks=pytest.mark.long),
]


@pytest.mark.parametrize("text", TEXTS)
def test_whatever_is_asked_for_nothing_the_level_is_at_most_one_step_of_the_grid_below(text: str) -> None:
    """The scene: 1.0 is paid for, and somebody asks 20 lower levels; everybody else is served as before."""
    with open_session([500] * 4) as session:
        ask(session, text, 1.0)
        before = spent(session)
        for rho in np.geomspace(0.0001, 0.95, 20)[::-1]:
            _, receipt = ask(session, text, round(float(rho), 9))
            assert 0.799 * rho < receipt.rho <= rho
        for rho in (0.9, 0.5, 0.33, 0.1, 0.05, 0.0312):
            values, receipt = ask(session, text, rho)
            assert values
            assert 0.799 * rho < receipt.rho <= rho
            assert receipt.charged_rho == receipt.charged_delta == 0
            if "window" not in text:
                assert receipt.rho == free_level(round(rho * 1e9)) / 1e9
        assert spent(session) == before
        # a rise is paid for and always made
        assert ask(session, text, 1.5)[1].charged_rho == pytest.approx(1.5 if "top_k" in text else 0.5, rel=0.2)


def test_levels_that_nobody_pays_for_are_no_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servings_module, "MOST_RISES", 3)
    with open_session([500] * 4) as session:
        for rho in (0.5, 0.4, 0.3, 0.2, 0.1, 0.6, 0.45):
            ask(session, BY_THRESHOLD, rho)
        assert ask(session, BY_THRESHOLD, 0.7)[1].charged_rho == pytest.approx(0.1)
        with pytest.raises(CalibrationError, match="too many levels"):
            ask(session, BY_THRESHOLD, 0.8)
        assert ask(session, BY_THRESHOLD, 0.65)[1].rho == 0.6


def test_the_grid_of_free_levels_is_what_its_proof_says() -> None:
    """docs/proofs/correlated-gaussian.md, Lemma 4."""
    assert FREE_LEVELS[0] == 1
    assert FREE_LEVELS[-1] > 2**62
    assert list(FREE_LEVELS) == sorted(set(FREE_LEVELS))
    fine = [rho for rho in FREE_LEVELS if 10**3 <= rho <= 10**11]
    assert max(b / a for a, b in itertools.pairwise(fine)) <= 1.25
    assert max(b / a for a, b in itertools.pairwise(FREE_LEVELS)) <= 2.5
    for place, lowest in enumerate(FREE_LEVELS):
        assert sum(math.sqrt(lowest / rho) for rho in FREE_LEVELS[place:]) <= 14
    assert rounding_loss(MOST_RISES, len(FREE_LEVELS), 0, shared=False) <= TAU_LOSS


@pytest.mark.parametrize(("low", "high"), [(1, 2**63 - 1), (10**6, 10**11), (10**7, 2 * 10**7), (100, 101), (1, 2**32)])
def test_the_free_levels_of_a_window_are_what_their_proof_says(low: int, high: int) -> None:
    window = Window(low, high, 1e-6)
    free = {free_level(rho, window) for rho in grid(window)}
    assert min(free) == low
    assert free <= set(grid(window))
    assert len(free) == len(grid(window)) or len(grid(window)) > 128
    for lowest in free:
        assert sum(math.sqrt(lowest / rho) for rho in free if rho >= lowest) <= 14
    # all points of the count are on the window's grid, and at most so many are drawn
    drawn = min(MOST_RISES, len(grid(window)) - len(free) + 1)
    assert rounding_loss(drawn, len(free), 0, shared=True) <= TAU_LOSS


def errors(session: dpsql.Session, text: str, exact: Floats, versions: int) -> tuple[Floats, list[list[float]]]:
    """Noise at each level of ORDER, shape (versions, keys, levels), and the sigmas that the receipts name."""
    found, sigmas = [], []
    for _ in range(versions):
        session.sql("CALL dp_new_version('visits')")
        answers = {rho: ask(session, text, rho) for rho in ORDER}
        values = [[answers[rho][0][city] for rho in ORDER] for city in range(len(exact))]
        found.append(np.array(values) - exact[:, None])
        columns = [answers[rho][1].columns[0].sigma for rho in ORDER]
        sigmas.append([sigma for sigma in columns if sigma is not None])
    return np.array(found), sigmas


def law_p(samples: Floats, variances: Floats, rounding: float = 0.0) -> float:
    """P-value of normal samples, one row each, with cov(i, j) = min(variances[i], variances[j]); Bonferroni.

    Whitened by that law the columns are independent standard normals: each has mean 0 and a chi-square sum of squares,
    and the sum of products of two, given one of them, is normal.
    """
    covariance = np.minimum(variances[:, None], variances) + rounding * np.eye(len(variances))
    white = np.linalg.solve(np.linalg.cholesky(covariance), samples.T)
    count, found = samples.shape[0], []
    for i, one in enumerate(white):
        squares = float(one @ one)
        found.append(2 * min(stats.chi2.cdf(squares, count), stats.chi2.sf(squares, count)))
        found.append(2 * stats.norm.sf(abs(one.sum()) / np.sqrt(count)))
        found += [2 * stats.norm.sf(abs(one @ other) / np.sqrt(squares)) for other in white[:i]]
    return min(1.0, len(found) * float(min(found)))


RISEN, LOWERED = GaussianMeasure.risen, GaussianMeasure.lowered


def forgetful_rise(measure: GaussianMeasure, held: Placed, fresh: Placed) -> NoisyHistogram:
    return RISEN(measure, dataclasses.replace(held, rho_nano=fresh.rho_nano), fresh)


def blind_bridge(measure: GaussianMeasure, grid: Grid, high: Placed, _: Placed | None, *of: Any) -> NoisyHistogram:
    return LOWERED(measure, grid, high, None, *of)


FAULTS: dict[str, Callable[..., NoisyHistogram]] = {"risen": forgetful_rise, "lowered": blind_bridge}


def counts_p() -> float:
    """Counts of 1,000 private keys; the receipts' sigma is checked against 1/sqrt(2 rho) as well."""
    with open_session([60] * 1000) as session:
        found, sigmas = errors(session, BY_THRESHOLD, np.full(1000, 60.0), 1)
    expected = [1 / (2 * rho) for rho in ORDER]
    np.testing.assert_allclose(np.square(sigmas), [[variance + 1 / 12 for variance in expected]], rtol=1e-6)
    return law_p(found[0], np.array(expected), 1 / 12)


def sums_p() -> float:
    """Sums of 300 public keys, at levels that are a share of the query's."""
    with open_session([1] * 300, public=True) as session:
        found, sigmas = errors(session, SUM, np.zeros(300), 1)
        variances = np.square(sigmas[0])
    np.testing.assert_allclose(variances * ORDER, variances[0] * ORDER[0], rtol=1e-6)
    return law_p(found[0], variances)


KEYS = 40


def shared_p(text: str, versions: int) -> float:
    """Counts of 40 keys with a common term: differences have own noise alone, means are nearly all common."""
    with open_session([300] * KEYS, max_groups=KEYS // 2, public=True) as session:
        found, sigmas = errors(session, text, np.full(KEYS, 300.0), versions)
        state = session._access.read()
        with state._database.read() as connection:
            rows = connection.execute(
                "SELECT DISTINCT rho_nano, sigma, coalesce(floor_correlation, correlation) FROM point"
            ).fetchall()
    own = {rho_nano: sigma**2 for rho_nano, sigma, _ in rows}
    variances = np.array([own[round(rho * 1e9)] for rho in ORDER])
    (correlation,) = {row[2] for row in rows}
    assert correlation > 0
    np.testing.assert_allclose(np.square(sigmas[0]), variances * (1 + correlation) + 1 / 12, rtol=1e-9)
    differences = (found[:, ::2] - found[:, 1::2]).reshape(-1, len(ORDER)) / np.sqrt(2)
    means = found.mean(axis=1)
    p = law_p(differences, variances, 1 / 12), law_p(means, variances * (1 / KEYS + correlation), 1 / 12 / KEYS)
    return min(1.0, 2 * min(p))


LAWS: dict[str, Callable[[], float]] = {
    "gshm": counts_p,
    "sum": sums_p,
    "correlated": functools.partial(shared_p, PUBLIC[CORRELATED], 6),
    "many correlated": functools.partial(shared_p, PUBLIC[CORRELATED], 60),
    "many discrete": functools.partial(shared_p, PUBLIC[f"DISCRETE_{CORRELATED}"], 60),
}
LONG = [pytest.param(name, marks=pytest.mark.long) if name.startswith("many") else name for name in LAWS]


@pytest.mark.statistical
@pytest.mark.parametrize("which", LONG)
def test_all_points_follow_the_law_of_the_cascade(which: str) -> None:
    """The covariance of two levels is the variance of the less noisy, and the top has the error of one release."""
    assert LAWS[which]() > ACCEPTED


@pytest.mark.statistical
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("which", ["gshm", "sum", *LONG[4:]])
def test_a_wrong_average_is_caught(which: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GaussianMeasure, fault, FAULTS[fault])
    assert LAWS[which]() < CAUGHT
