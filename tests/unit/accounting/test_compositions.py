"""Conversions of a unit's rho to epsilon and back, against mpmath at 50 digits: close, and on the safe side."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import mpmath as mp
import pytest

from dpsql.accounting.composition import CONVERSIONS, Composition, Conversion

Delta = Callable[[mp.mpf, mp.mpf], mp.mpf]
"""Returns the delta of (epsilon, rho)."""

EPSILONS = (1e-3, 0.01, 0.1, 0.5, 1.0, 3.0, 10.0, 30.0)
DELTAS = (1e-2, 1e-4, 1e-6, 5e-7, 1e-9, 1e-15, 1e-30)
CLOSE = mp.mpf("1e-9")


def gaussian_delta(epsilon: mp.mpf, rho: mp.mpf) -> mp.mpf:
    """Return D(sqrt(2 rho), epsilon), as ledger.md writes it."""
    mu = mp.sqrt(2 * rho)
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


def zcdp_delta(epsilon: mp.mpf, rho: mp.mpf) -> mp.mpf:
    """Return the infimum over orders of the optimal conversion, at the root of its derivative."""

    def slope(order: mp.mpf) -> mp.mpf:
        return (2 * order + 1) * rho - epsilon - mp.log1p(1 / order)

    low, high = 1e-9, 3.0 + 2.0 * float((epsilon + 60) / rho)
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if slope(mp.mpf(middle)) > 0 else (middle, high)
    order = mp.findroot(slope, mp.mpf(low))
    return mp.exp(order * ((1 + order) * rho - epsilon) - mp.log1p(order) - order * mp.log1p(1 / order))


EXACT: dict[Composition, Delta] = {"gaussian": gaussian_delta, "zcdp": zcdp_delta}


def faults(conversion: Conversion, exact: Delta, epsilon: float, delta: float) -> list[str]:
    """Return what is wrong with a conversion at one point; the numbers that it returns are tried in the exact delta."""
    found = []
    with mp.workdps(50):
        rho = conversion.rho(epsilon, delta)
        back = conversion.epsilon(delta, rho)
        for name, at, beyond in (
            ("rho", (mp.mpf(epsilon), mp.mpf(rho)), (mp.mpf(epsilon), rho * (1 + CLOSE))),
            ("epsilon", (mp.mpf(back), mp.mpf(rho)), (back * (1 - CLOSE), mp.mpf(rho))),
        ):
            if exact(*at) > mp.mpf(delta):
                found.append(f"{name} is on the other side")
            if exact(*beyond) <= mp.mpf(delta):
                found.append(f"{name} is not close")
    return found


@pytest.mark.parametrize("composition", EXACT)
@pytest.mark.parametrize("delta", DELTAS)
def test_conversions_are_close_and_on_the_safe_side(composition: Composition, delta: float) -> None:
    for epsilon in EPSILONS:
        found = faults(CONVERSIONS[composition], EXACT[composition], epsilon, delta)
        assert found == [], epsilon


def test_amounts_of_a_pure_unit_are_epsilons() -> None:
    assert CONVERSIONS.keys() - EXACT.keys() == {"pure"}
    for epsilon in EPSILONS:
        assert CONVERSIONS["pure"].rho(epsilon, 0.0) == CONVERSIONS["pure"].epsilon(0.0, epsilon) == epsilon


@pytest.mark.parametrize("composition", EXACT)
def test_planted_faults_are_found(composition: Composition) -> None:
    real, exact = CONVERSIONS[composition], EXACT[composition]
    planted = (
        (Conversion(real.epsilon, lambda epsilon, delta: real.rho(epsilon, delta) * (1 + 1e-10)), "rho is on the"),
        (Conversion(lambda delta, rho: real.epsilon(delta, rho) * (1 - 1e-10), real.rho), "epsilon is on the"),
        # a factor of 2 in mu, too far and too little
        (Conversion(real.epsilon, lambda epsilon, delta: real.rho(epsilon, delta) * 4), "rho is on the"),
        (Conversion(lambda delta, rho: real.epsilon(delta, rho * 4), real.rho), "epsilon is not close"),
        (Conversion(lambda delta, rho: real.epsilon(delta, rho / 4), real.rho), "epsilon is on the"),
    )
    for (conversion, fault), (epsilon, delta) in itertools.product(planted, ((0.01, 1e-2), (3.0, 1e-6), (30.0, 1e-15))):
        assert any(one.startswith(fault) for one in faults(conversion, exact, epsilon, delta)), (fault, epsilon)


def test_gaussian_releases_never_cost_more_than_any_zcdp_release() -> None:
    gaussian, zcdp = CONVERSIONS["gaussian"], CONVERSIONS["zcdp"]
    for epsilon, delta in itertools.product(EPSILONS, DELTAS):
        rho = zcdp.rho(epsilon, delta)
        assert gaussian.rho(epsilon, delta) > rho
        assert gaussian.epsilon(delta, rho) < epsilon
