"""What is released with Gaussian noise beside keys that hide: the profile of both, against integrals of its own law."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpsql.accounting import gaussian
from dpsql.accounting.best_point import best_point
from dpsql.accounting.correlated_histogram import CorrelatedProfile
from dpsql.accounting.profile import Profile
from dpsql.accounting.sparse_histogram import SparseProfile, WeightedProfile
from dpsql.errors import CalibrationError

Floats = npt.NDArray[np.float64]
LAWS = st.fixed_dictionaries(
    {
        "max_groups": st.integers(1, 6),
        "sigma": st.floats(0.5, 20.0),
        "aggregate_precision": st.floats(0.0, 0.5),
        "beside": st.floats(0.0, 4.0),
    }
)


def hockey_stick(epsilon: float, hidden: float, mu: float) -> tuple[float, float]:
    """Deltas of the law with the unit against that without, and the reverse.

    The law with the unit hides its own keys with this probability, and is then N(mu, 1) against N(0, 1).
    """
    x = np.linspace(-12.0, 12.0 + mu, 20_001)
    with_unit, without = hidden * norm.pdf(x, mu), norm.pdf(x)
    over = np.maximum(with_unit - math.exp(epsilon) * without, 0.0)
    under = np.maximum(without - math.exp(epsilon) * with_unit, 0.0)
    step = float(x[1] - x[0])
    return 1.0 - hidden + float(over.sum()) * step, float(under.sum()) * step


def pair_delta(epsilon: float, tau: float, common: int, new: int, law: dict[str, Any]) -> float:
    """Delta of one pair of neighbours."""
    squared = common * (law["sigma"] ** -2 + law["aggregate_precision"]) + law["beside"]
    return max(hockey_stick(epsilon, norm.cdf(tau / law["sigma"]) ** new, math.sqrt(squared)))


@settings(max_examples=40)
@given(law=LAWS, epsilon=st.floats(0.05, 3.0), x=st.floats(0.5, 6.0))
def test_the_profile_is_that_of_the_worst_pair_with_what_is_beside(
    law: dict[str, Any], epsilon: float, x: float
) -> None:
    groups, tau = int(law["max_groups"]), x * law["sigma"]
    worst = max(pair_delta(epsilon, tau, j, groups - j, law) for j in range(groups + 1))
    assert SparseProfile(**law).delta(epsilon, tau) == pytest.approx(worst, rel=1e-4, abs=1e-8)


@settings(max_examples=40)
@given(law=LAWS, more=st.integers(0, 6), epsilon=st.floats(0.05, 3.0), x=st.floats(0.5, 6.0))
def test_the_profile_of_weighted_units_is_no_less_than_any_pair(
    law: dict[str, Any], more: int, epsilon: float, x: float
) -> None:
    groups, tau = int(law["max_groups"]), x * law["sigma"]
    profile = WeightedProfile(counted_groups=groups + more, **law)
    for n in {groups, groups + more}:
        weight = math.sqrt(groups / n)
        scaled = {**law, "sigma": law["sigma"] / weight, "aggregate_precision": law["aggregate_precision"] * weight**2}
        own = ((1.0 + tau) / weight) - 1.0
        worst = max(pair_delta(epsilon, own, j, n - j, scaled) for j in range(n + 1))
        assert worst <= profile.delta(epsilon, tau) * (1.0 + 1e-4) + 1e-8


def test_a_unit_without_common_keys_is_told_by_what_is_beside() -> None:
    """A profile that adds it where keys are common alone is too small: of the pair without any it is most."""
    law: dict[str, Any] = {"max_groups": 1, "sigma": 50.0, "aggregate_precision": 0.0, "beside": 4.0}
    tau = 50.0
    common = hockey_stick(1.0, 1.0, math.sqrt(1 / 2500 + 4.0))[0]
    fault = max(common, 1.0 - norm.cdf(1.0))
    exact = pair_delta(1.0, tau, 0, 1, law)
    assert exact > 1.1 * fault
    assert SparseProfile(**law).delta(1.0, tau) == pytest.approx(exact, rel=1e-5)


def _chosen_delta(epsilon: float, hidden: float, mu: float, shift: Floats, x: Floats) -> float:
    """Return the delta of a release at each x beside N(mu, 1), the unit moving it by the shift at x."""
    at_x = epsilon - math.log(hidden) - (mu * x - mu * mu / 2.0)
    then = np.exp(gaussian.log_delta(at_x, shift))
    return 1.0 - hidden + hidden * float((norm.pdf(x, mu) * then).sum()) * float(x[1] - x[0])


@pytest.mark.parametrize("mu", [0.2, 1.0])
@pytest.mark.parametrize("beside", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("hidden", [0.99, 1.0 - 1e-6])
def test_what_follows_may_be_chosen_by_what_is_shown(mu: float, beside: float, hidden: float) -> None:
    """The delta is never above that of the largest shift, which is docs/proofs/left-out.md, Theorem 4."""
    x, most = np.linspace(-9.0, 9.0 + mu, 4_001), math.sqrt(beside)
    always = np.full_like(x, most)
    choices = [
        always,
        np.where(x > mu / 2.0, most, 1e-6),
        np.where(x < mu / 2.0, most, 1e-6),
        most * (1e-6 + np.abs(np.sin(3.0 * x))) / (1.0 + 1e-6),
    ]
    for epsilon in (0.1, 1.0, 2.0):
        bound = hockey_stick(epsilon, hidden, math.sqrt(mu * mu + beside))[0]
        found = [_chosen_delta(epsilon, hidden, mu, shift, x) for shift in choices]
        assert max(found) <= bound * (1.0 + 1e-4)
        assert found[0] == pytest.approx(bound, rel=1e-3)
        # of a choice that may be larger, the bound is no bound
        assert _chosen_delta(epsilon, hidden, mu, np.where(x > mu / 2.0, 2.0 * most, most), x) > bound


@given(law=LAWS)
def test_its_level_adds_up(law: dict[str, Any]) -> None:
    for profile in (
        SparseProfile(**law),
        WeightedProfile(counted_groups=9, **law),
        CorrelatedProfile(k=8, correlation=0.4, **law),
    ):
        alone = replace(profile, beside=0.0)
        assert profile.rho == pytest.approx(alone.rho + 0.5 * law["beside"], rel=1e-14)
        assert profile.rho >= alone.rho + 0.5 * law["beside"]


def test_keys_that_share_noise_have_no_such_profile() -> None:
    with pytest.raises(CalibrationError, match="nothing is released beside its keys"):
        CorrelatedProfile(k=8, sigma=3.0, beside=0.1).delta(1.0, 10.0)


@pytest.mark.parametrize(
    "profile",
    [
        SparseProfile(max_groups=8, sigma=1.0),
        WeightedProfile(max_groups=8, counted_groups=16, sigma=1.0),
    ],
)
@pytest.mark.parametrize("presence", [1.0, 0.6])
def test_the_best_point_shares_its_level_with_what_is_beside(profile: Profile, presence: float) -> None:
    share = 1.0 / 32.0
    before = best_point(profile, 1.0, 1e-6, presence)
    point = best_point(profile, 1.0, 1e-6, presence * (1.0 - share), share)
    assert point.profile.beside == pytest.approx(2.0 * point.rho * share, rel=1e-12)
    assert point.profile.delta(1.0, point.tau) <= 1e-6
    # nothing is lost but the share itself: noise grows by the root of 32/31, and the threshold with it
    assert point.rho == pytest.approx(before.rho, rel=1e-3)
    assert point.sigma / before.sigma == pytest.approx(math.sqrt(32.0 / 31.0), rel=1e-3)
    assert point.tau / before.tau == pytest.approx(math.sqrt(32.0 / 31.0), rel=2e-3)
    # two parts of delta, for noise and for the threshold, would cost this much more
    mu = 1.0 / gaussian.sigma(1.0, 0.5e-6, 1.0)
    assert 0.5 * mu * mu < 0.97 * point.rho
