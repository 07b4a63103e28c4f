"""Searches, checks of arguments, and the inverses of every profile: safe, tight, refused where nothing is."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.accounting import profile as profile_module
from dpsql.accounting.best_point import best_point
from dpsql.accounting.correlated_histogram import CorrelatedProfile, TopKProfile
from dpsql.accounting.profile import (
    Profile,
    smallest_epsilon,
    smallest_query_threshold,
    smallest_sigma,
    smallest_threshold,
)
from dpsql.accounting.sparse_histogram import SparseProfile, WeightedProfile
from dpsql.errors import CalibrationError
from tests.unit.accounting.added_deltas import AddedDeltasProfile


@given(bound=st.floats(1e-100, 1e100), start=st.floats(1e-100, 1e100))
def test_both_searches_end_on_the_safe_side_of_any_bound(bound: float, start: float) -> None:
    above = profile_module.smallest_safe(lambda x: x >= bound, start)
    assert bound <= above <= bound * (1 + 1e-13)
    below = profile_module.largest_safe(lambda x: x <= bound, start)
    assert bound * (1 - 1e-13) <= below <= bound


def test_a_search_without_a_safe_number_raises() -> None:
    with pytest.raises(CalibrationError):
        profile_module.smallest_safe(lambda _: False, 1.0)
    with pytest.raises(CalibrationError):
        profile_module.largest_safe(lambda _: False, 1.0)


def test_a_search_where_all_is_safe_ends() -> None:
    assert profile_module.smallest_safe(lambda _: True, 1.0) < 1e-300
    assert profile_module.largest_safe(lambda _: True, 1.0) > 1e300


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, True, "1", None])
def test_no_number_that_is_not_one_passes(value: float) -> None:
    with pytest.raises(CalibrationError):
        profile_module.require_finite("epsilon", value, least=0.0)
    with pytest.raises(CalibrationError):
        profile_module.require_positive("sigma", value)
    with pytest.raises(CalibrationError):
        profile_module.require_delta(value)
    with pytest.raises(CalibrationError):
        profile_module.require_max_groups(value)


@pytest.mark.parametrize("value", [0, -3, 1.0, 2.5, 10**7])
def test_max_groups_is_a_whole_number_in_range(value: float) -> None:
    with pytest.raises(CalibrationError):
        profile_module.require_max_groups(value)


@pytest.mark.parametrize("value", [0.0, 1.0, 1.5])
def test_delta_lies_strictly_inside_the_unit_interval(value: float) -> None:
    with pytest.raises(CalibrationError):
        profile_module.require_delta(value)


# --- the inverses, of every profile --------------------------------------------------------------------------------

FAST = st.one_of(
    st.builds(SparseProfile, max_groups=st.integers(1, 40), sigma=st.floats(0.5, 60.0)),
    st.builds(AddedDeltasProfile, max_groups=st.integers(1, 40), sigma=st.floats(0.5, 60.0)),
    st.builds(
        SparseProfile,
        max_groups=st.integers(1, 40),
        sigma=st.floats(3.0, 60.0),
        aggregate_precision=st.floats(0.0, 0.1),
    ),
    st.builds(
        WeightedProfile, max_groups=st.integers(1, 9), counted_groups=st.integers(9, 40), sigma=st.floats(0.5, 60.0)
    ),
)
SLOW = st.one_of(
    st.builds(
        CorrelatedProfile,
        k=st.integers(1, 12),
        sigma=st.floats(0.5, 60.0),
        correlation=st.one_of(st.none(), st.floats(0.0, 3.0)),
        max_groups=st.one_of(st.none(), st.integers(1, 12)),
    ),
    st.builds(
        TopKProfile,
        k=st.integers(1, 12),
        sigma=st.floats(0.5, 60.0),
        correlation=st.one_of(st.none(), st.floats(0.0, 3.0)),
        floor_correlation=st.one_of(st.none(), st.floats(0.1, 3.0)),
        max_groups=st.one_of(st.none(), st.integers(1, 12)),
    ),
)
USUAL: dict[str, Any] = {
    "sigma": 3.0,
    "max_groups": 3,
    "counted_groups": 9,
    "k": 9,
    "correlation": 0.5,
    "floor_correlation": 0.5,
    "aggregate_precision": 0.1,
    "beside": 0.1,
    "analysis": "exact",
    "concentrated": True,
}
EPSILONS, DELTAS = st.floats(0.01, 4.0), st.floats(-12.0, -2.0).map(lambda power: 10.0**power)


@pytest.mark.parametrize("kind", [SparseProfile, AddedDeltasProfile, WeightedProfile, CorrelatedProfile, TopKProfile])
def test_every_parameter_of_a_profile_is_checked(kind: type[Profile]) -> None:
    usual = {field.name: USUAL[field.name] for field in fields(kind)}
    kind(**usual)
    # a switch has no range
    for name in usual.keys() - {"concentrated"}:
        for wrong in (math.nan, math.inf, -1.0, "none"):
            with pytest.raises(CalibrationError):
                kind(**{**usual, name: wrong})


def tightness(profile: Profile) -> float:
    """Share of a number by which an inverse may be above the smallest one."""
    return 4.0 * (profile.resolution or 2.0**-40)


def check_epsilon(profile: Profile, delta: float, hidden: float) -> None:
    """The smallest epsilon is safe, and a little less is not; a threshold that costs more than delta is refused."""
    tau = smallest_threshold(profile, delta * hidden)
    try:
        epsilon = smallest_epsilon(profile, delta, tau)
    except CalibrationError:
        # only where the threshold leaves next to nothing
        assert hidden > 0.999
        return
    assert profile.delta(epsilon, tau) <= delta
    assert epsilon == 0.0 or profile.delta(epsilon * (1.0 - tightness(profile)), tau) > delta
    if tau > 0.0:
        with pytest.raises(CalibrationError, match="the threshold alone costs"):
            smallest_epsilon(profile, 0.5 * profile.threshold_delta(tau), tau)


def check_thresholds(profile: Profile, epsilon: float, delta: float) -> None:
    """Both smallest thresholds are safe, a little less is not; noise that costs delta by itself is refused."""
    own = smallest_threshold(profile, delta)
    assert profile.threshold_delta(own) <= delta
    assert own == 0.0 or profile.threshold_delta(own * (1.0 - 2.0**-30)) > delta
    if profile.delta(epsilon, profile.highest_threshold) > delta:
        with pytest.raises(CalibrationError, match="is too small for epsilon"):
            smallest_query_threshold(profile, epsilon, delta)
        return
    tau = smallest_query_threshold(profile, epsilon, delta)
    assert tau >= own
    assert profile.delta(epsilon, tau) <= delta
    assert tau == 0.0 or profile.delta(epsilon, tau * (1.0 - tightness(profile)) - 2.0**-30) > delta


def check_sigma_and_point(profile: Profile, epsilon: float, delta: float, share: float) -> None:
    """The smallest sigma spends rho and no less; the best point is certified, says what it spends and leaves little."""
    sigma = smallest_sigma(profile, 0.02)
    assert 0.02 * (1 - 1e-9) <= replace(profile, sigma=sigma, aggregate_precision=0.0).rho <= 0.02
    point = best_point(profile, epsilon, delta, share)
    assert 0.4 * delta <= point.delta <= delta
    assert point.profile.rho <= point.rho * (1 + 2**-38)
    assert replace(point.profile, aggregate_precision=0.0).rho <= share * point.rho * (1 + 1e-9)
    assert point.profile.delta(epsilon, point.tau) == point.delta
    assert point.profile.threshold_delta(point.tau) == point.threshold_delta
    # whatever the noise of the profile that was asked about
    assert best_point(replace(profile, sigma=7.0), epsilon, delta, share) == point


ASKED_FAST = {
    "profile": FAST,
    "epsilon": EPSILONS,
    "delta": DELTAS,
    "hidden": st.floats(0.01, 1.0),
    "share": st.floats(0.1, 1.0),
}


@settings(max_examples=40)
@given(**ASKED_FAST)
def test_inverses_are_safe_and_tight(
    profile: Profile, epsilon: float, delta: float, hidden: float, share: float
) -> None:
    check_epsilon(profile, delta, hidden)
    check_thresholds(profile, epsilon, delta)
    check_sigma_and_point(profile, epsilon, delta, share)


@pytest.mark.long
@settings(max_examples=1000)
@given(**ASKED_FAST)
def test_inverses_of_many_profiles_are_safe_and_tight(
    profile: Profile, epsilon: float, delta: float, hidden: float, share: float
) -> None:
    check_epsilon(profile, delta, hidden)
    check_thresholds(profile, epsilon, delta)
    check_sigma_and_point(profile, epsilon, delta, share)


@settings(max_examples=15)
@given(profile=SLOW, epsilon=EPSILONS, delta=DELTAS, hidden=st.floats(0.01, 0.9), share=st.floats(0.1, 1.0))
def test_inverses_by_interpolation_are_safe_and_tight(
    profile: Profile, epsilon: float, delta: float, hidden: float, share: float
) -> None:
    check_epsilon(profile, delta, hidden)
    check_thresholds(profile, epsilon, delta)
    check_sigma_and_point(profile, epsilon, delta, share)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FallingTooEarly(SparseProfile):
    """Planted fault: the threshold's own inverse stops a thousandth too early."""

    def own_threshold(self, delta: float) -> float:
        return 0.999 * SparseProfile.own_threshold(self, delta)


def test_a_threshold_a_thousandth_too_low_is_caught() -> None:
    with pytest.raises(AssertionError):
        check_thresholds(_FallingTooEarly(max_groups=3, sigma=20.0), 1.0, 1e-6)


@given(bound=st.floats(1e-6, 1e6), lowest=st.floats(1e-6, 1e6), power=st.integers(1, 5))
def test_interpolation_ends_on_the_safe_side(bound: float, lowest: float, power: int) -> None:
    def falling(x: float) -> float:
        return (bound / x) ** power

    found = profile_module.smallest_at_most(falling, 1.0, lowest, 1e-9)
    assert falling(found) <= 1.0
    assert found == pytest.approx(max(bound, lowest), rel=1e-8)


@given(bound=st.floats(0.0, 1e3))
def test_the_least_epsilon_is_safe_and_0_where_that_suffices(bound: float) -> None:
    def cost(epsilon: float) -> float:
        return 0.1 * math.exp(min(bound - epsilon, 0.0)) if epsilon >= bound else 0.2

    epsilon = profile_module.least_epsilon(cost, 0.1)
    assert cost(epsilon) <= 0.1
    assert epsilon == pytest.approx(bound, rel=1e-12, abs=1e-300)
