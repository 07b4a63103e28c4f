from __future__ import annotations

import math
from functools import cache

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special

from dpsql.errors import CalibrationError
from dpsql.noise.rounded_gaussian import RoundedGaussian, slack_delta, slack_delta_zcdp

Law = NDArray[np.float64]
draw_counts = st.integers(0, 1 << 60)


def as_draws(distance: float) -> int:
    """How many draws have this total variation distance together."""
    return math.ceil(distance / RoundedGaussian.total_variation)


@given(draw_counts, st.floats(0, 800))
def test_slack_is_at_least_the_exact_value(draws: int, epsilon: float) -> None:
    with mpmath.workdps(50):
        exact = (1 + mpmath.exp(mpmath.mpf(epsilon))) * draws * mpmath.mpf(2) ** -117
        slack = slack_delta(draws, epsilon)
        assert min(1, exact) <= slack <= min(1, exact * (1 + mpmath.mpf(2) ** -39))


LARGEST_LEVEL = 12.3**2 / 2
"""Theorem 6 speaks of levels up to rho = 76.6; the code, which rounds, of those up to this one."""


def mixture_slack(draws: int, rho: float) -> mpmath.mpf:
    """Theorem 5 in many digits."""
    distance = 2 * draws * mpmath.mpf(2) ** -117
    if draws == 0:
        return mpmath.mpf(0)
    if mpmath.log(1 / distance) <= rho:
        return mpmath.mpf(1)
    gap = mpmath.sqrt(mpmath.log(1 / distance)) - mpmath.sqrt(mpmath.mpf(rho))
    moved = distance + mpmath.exp(-(gap**2))
    overlap = mpmath.exp(-mpmath.mpf(rho)) / 2 - moved
    return min(mpmath.mpf(1), moved / overlap) if overlap > 0 else mpmath.mpf(1)


def one_draw_beyond(rho: float) -> mpmath.mpf:
    """What a set of the probability of one draw's distance has at most where a Gaussian is moved by sqrt(2 rho)."""
    return mpmath.ncdf(mpmath.sqrt(2 * mpmath.mpf(rho)) - score_of_one_draw())


@cache
def score_of_one_draw() -> mpmath.mpf:
    with mpmath.workdps(60):
        return mpmath.findroot(lambda z: mpmath.ncdf(-z) - mpmath.mpf(2) ** -117, 12.5)


@given(draw_counts | st.integers(0, 2000), st.floats(0, 90) | st.floats(0, 8))
def test_zcdp_slack_is_the_lesser_of_two_theorems(draws: int, rho: float) -> None:
    slack = slack_delta_zcdp(draws, rho)
    with mpmath.workdps(60):
        mixed = mixture_slack(draws, rho)
        assert slack <= min(1, mixed * (1 + mpmath.mpf(2) ** -30)), "never more than was charged before"
        if mixed < 2.0**-51:
            assert mixed <= slack
            return
        exact = 4 * draws * mpmath.mpf(2) ** -117 + one_draw_beyond(rho) if rho <= LARGEST_LEVEL else mpmath.mpf(1)
        exact = min(1, mixed, max(exact, mpmath.mpf(2) ** -50))
        assert exact * (1 - mpmath.mpf(2) ** -30) <= slack <= min(1, exact * (1 + mpmath.mpf(2) ** -20))
        assert slack >= min(mixed, one_draw_beyond(min(rho, LARGEST_LEVEL))) * (1 - mpmath.mpf(2) ** -30)


def test_many_small_shifts_cost_no_more_than_one_large_one() -> None:
    """Theorem 6's step from the draws of a release to their sum, for shifts of any sizes, in many digits."""
    with mpmath.workdps(50):
        distance = mpmath.mpf(2) ** -117
        score = score_of_one_draw()
        for rho in (0.001, 0.1, 2.0, 20.0, 75.0):
            for draws in (1, 2, 7, 100, 10**6):
                for large in (0.0, 0.3, 0.9, 1.0):
                    others = mpmath.sqrt(2 * rho * (1 - large) / draws)
                    parts = draws * (distance + mpmath.ncdf(others - score)) + mpmath.ncdf(
                        mpmath.sqrt(2 * rho * large) - score
                    )
                    together = 4 * (draws + 1) * distance + mpmath.ncdf(mpmath.sqrt(2 * mpmath.mpf(rho)) - score)
                    assert parts <= together


def test_slack_is_negligible_where_it_is_used() -> None:
    assert slack_delta(1000, 3.0) < 2.0**-100
    assert slack_delta_zcdp(1000, 0.1) < 2.0**-90
    assert slack_delta_zcdp(1000, 10.0) < 1e-15, "below any delta that is asked for"
    assert slack_delta_zcdp(1000, 20.0) < 1e-9, "where Theorem 5 says nothing"
    with mpmath.workdps(50):
        assert mixture_slack(1000, 20.0) == 1


def test_slack_grows_with_draws_and_level() -> None:
    assert slack_delta(1, 1) < slack_delta(2, 1) < slack_delta(2, 2)
    assert slack_delta_zcdp(1, 0.1) < slack_delta_zcdp(2, 0.1) < slack_delta_zcdp(2, 0.2)


def test_slack_never_falls_with_draws_or_level() -> None:
    levels = np.linspace(0.0, 90.0, 400)
    for draws in (1, 30, 10**4, 10**20):
        slacks = [slack_delta_zcdp(draws, float(rho)) for rho in levels]
        assert slacks == sorted(slacks)
    for rho in (0.0, 6.0, 20.0, 75.0):
        slacks = [slack_delta_zcdp(2**n, rho) for n in range(120)]
        assert slacks == sorted(slacks)


@pytest.mark.parametrize("slack", [slack_delta, slack_delta_zcdp])
@pytest.mark.parametrize(("draws", "level"), [(-1, 1.0), (1, -1.0), (1, math.nan), (1, math.inf)])
def test_senseless_arguments_are_refused(slack: object, draws: int, level: float) -> None:
    assert callable(slack)
    with pytest.raises(CalibrationError):
        slack(draws, level)


@pytest.mark.parametrize("slack", [slack_delta, slack_delta_zcdp])
def test_slack_never_exceeds_one(slack: object) -> None:
    assert callable(slack)
    assert slack(10**400, 1.0) == 1.0
    assert slack(1, 1e300) == 1.0


def rounded_normal(centre: int, sigma: float) -> Law:
    edges = (np.arange(-45, 46) - centre + 0.5) / sigma
    # Differences on the side where they do not cancel.
    from_below = np.diff(special.ndtr(edges), prepend=0.0, append=1.0)
    from_above = -np.diff(special.ndtr(-edges), prepend=1.0, append=0.0)
    law: Law = np.minimum(from_below, from_above)
    law[1:-1] = np.where(edges[1:] < 0, from_below[1:-1], from_above[1:-1])
    law[0], law[-1] = from_below[0], from_above[-1]
    return law


def moved(law: Law, source: NDArray[np.bool_], target: int, distance: float) -> Law:
    """Take mass `distance` away from the source, in proportion, and put it on the target."""
    assert distance < law[source].sum()
    actual = law.copy()
    actual[source] *= 1 - distance / law[source].sum()
    actual[target] += distance
    return actual


def hockey_stick(left: Law, right: Law, epsilon: float) -> float:
    return float(np.maximum(left - math.exp(epsilon) * right, 0).sum())


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.0])
def test_slack_covers_the_worst_shift_of_mass_and_nothing_smaller_does(epsilon: float) -> None:
    distance = 1e-4
    left, right = rounded_normal(2, 3.0), rounded_normal(0, 3.0)
    tail = left > math.exp(epsilon) * right
    actual_left = moved(left, ~tail, int(np.argmax(left * tail)), distance)
    actual_right = moved(right, tail, int(np.argmin(left / right)), distance)
    rise = hockey_stick(actual_left, actual_right, epsilon) - hockey_stick(left, right, epsilon)
    slack = slack_delta(as_draws(distance), epsilon)
    assert rise <= slack + 1e-13
    # The planted fault: counting the distance on one side only.
    assert rise > slack_delta(as_draws(distance), epsilon) - distance * 0.01
    assert rise > max(1.0, math.exp(epsilon)) * distance * 1.01


@pytest.mark.parametrize("shift", [1, 4, 12])
def test_the_ledgers_slack_covers_draws_that_are_off_and_hardly_more_than_it_happens(shift: int) -> None:
    """Theorem 6 on one coordinate, at every epsilon; without it, and with one side's distance alone, it is exceeded."""
    sigma, distance = 3.0, 1e-6
    left, right = rounded_normal(shift, sigma), rounded_normal(0, sigma)
    score = -float(special.ndtri(distance))
    slack = distance + float(special.ndtr(shift / sigma - score))
    # the right law has no outcomes in its tail any more: about the worst that this distance can do
    tail = np.cumsum(right[::-1])[::-1] < distance
    actual_left, actual_right = left.copy(), right.copy()
    actual_right[tail] = 0.0
    actual_right[np.argmax(right)] += right[tail].sum()
    rises = [
        hockey_stick(actual_left, actual_right, epsilon) - hockey_stick(left, right, epsilon)
        for epsilon in np.linspace(0.0, 40.0, 81)
    ]
    assert max(rises) <= slack
    assert max(rises) > 0.2 * slack
    assert max(rises) > distance or shift < 2


@pytest.mark.parametrize("delta", [0.0, 0.3])
@pytest.mark.parametrize(("distance", "shift"), [(1e-9, 1), (1e-6, 1), (1e-11, 3)])
def test_zcdp_slack_leaves_room_for_the_kernel_of_the_proof(delta: float, distance: float, shift: int) -> None:
    """Build the kernel of Theorem 5 and check both of its conclusions on a coordinate."""
    sigma = 3.0
    rho = shift**2 / (2 * sigma**2)
    left, right = rounded_normal(shift, sigma), rounded_normal(0, sigma)
    failure = np.zeros_like(left)
    failure[0] = 1.0
    ideal_left, ideal_right = (
        (1 - delta) * left + delta * failure,
        (1 - delta) * right + delta * failure[::-1],
    )
    actual_left = moved(ideal_left, right > 3 * left, int(np.argmax(left)), distance)
    actual_right = moved(ideal_right, left > 3 * right, int(np.argmax(right)), distance)

    keep = np.minimum(1, np.minimum(actual_left / ideal_left, actual_right / ideal_right))
    target = np.minimum(left, right) * keep
    target /= target.sum()
    core_left, core_right = (law * keep + (1 - (law * keep).sum()) * target for law in (left, right))

    # The planted fault: no slack at all.
    assert not np.all((1 - delta) * core_left <= actual_left)
    total = delta + float(mixture_slack(as_draws(distance), rho))
    assert np.all((1 - total) * core_left <= actual_left)
    assert np.all((1 - total) * core_right <= actual_right)
    for order in (1.0001, 1.5, 2.0, 5.0, 20.0):
        renyi = np.log(np.sum(core_left * (core_left / core_right) ** (order - 1))) / (order - 1)
        assert renyi <= rho * order + 1e-9
