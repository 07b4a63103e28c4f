"""The cost of Skellam noise: the published bound holds, the exact value is exact, the Gaussian is close."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import mpmath
import pytest

from dpsql.accounting.skellam import skellam_renyi, skellam_renyi_bound
from dpsql.errors import CalibrationError
from dpsql.noise.poisson_laws import SkellamLaw


def by_definition(order: float, variance: float, shift: int) -> float:
    """Rényi divergence summed with 40 digits over a wide enough lattice."""
    reach = int(12 * variance**0.5 + 50 + 2 * order * shift)
    with mpmath.workdps(40):
        law = {x: mpmath.besseli(x, variance) * mpmath.exp(-variance) for x in range(reach + shift + 1)}
        terms = (law[abs(x)] ** order * law[abs(x - shift)] ** (1 - order) for x in range(-reach, reach + 1))
        return float(mpmath.log(mpmath.fsum(terms)) / (order - 1))


@pytest.mark.parametrize(
    ("order", "variance", "shift"), [(1.001, 0.5, 1), (2, 0.5, 1), (1.5, 1, 2), (3, 4, 3), (32, 0.1, 3), (8, 25, 1)]
)
def test_the_exact_value_is_the_definition_rounded_up(order: float, variance: float, shift: int) -> None:
    exact = by_definition(order, variance, shift)
    ours = skellam_renyi(order, variance, shift=shift)
    assert exact <= ours <= exact * (1 + 1e-9) + 1e-10
    assert skellam_renyi(order, variance, shift=-shift) == ours


@pytest.mark.parametrize("variance", [0.1, 0.5, 1.0, 4.0, 25.0, 100.0])
@pytest.mark.parametrize("shift", [1, 2, 5])
def test_the_published_bound_holds_and_is_not_tight(variance: float, shift: int) -> None:
    for order in (2, 3, 8, 64):
        bound = skellam_renyi_bound(order, variance, sensitivity_l1=shift, sensitivity_l2=shift)
        assert skellam_renyi(order, variance, shift=shift) < bound
        assert bound > order * shift**2 / (2 * variance)


@pytest.mark.parametrize(
    ("variance", "shift", "ratio"), [(0.5, 1, 1.0274), (1.0, 1, 1.0526), (4.0, 1, 1.0043), (25.0, 1, 1.00013)]
)
def test_steps_of_one_cost_a_little_more_than_gaussian_noise(variance: float, shift: int, ratio: float) -> None:
    """Largest divergence over order, with the Gaussian's 1 / (2 variance) as the unit: attained towards order 1."""
    orders = [1.00001, 1.01, 1.1, 1.5, 2, 4, 16, 64]
    costs = [skellam_renyi(order, variance, shift=shift) / order * 2 * variance / shift**2 for order in orders]
    assert max(costs) == pytest.approx(ratio, abs=6e-5)
    assert max(costs) == costs[0]


@pytest.mark.parametrize("shift", [2, 3, 5, 13])
@pytest.mark.parametrize("mean_square", [0.1, 0.5, 1.0, 4.0])
def test_steps_of_two_and_more_cost_no_more_than_gaussian_noise(shift: int, mean_square: float) -> None:
    """Numerically, not by proof: the divergence never exceeds order / (2 mean_square)."""
    for order in (1.001, 1.2, 2, 5, 30):
        assert skellam_renyi(order, shift**2 * mean_square, shift=shift) < order / (2 * mean_square)


def test_the_law_names_its_own_cost() -> None:
    bound = SkellamLaw().renyi_bound(4, Fraction(1, 10), sensitivity_l1=3, sensitivity_l2=2)
    assert bound == skellam_renyi_bound(4, 10.0, sensitivity_l1=3, sensitivity_l2=2)
    assert bound == pytest.approx(4 * 4 / 20 + min((7 * 4 + 18) / 400, 9 / 20), rel=1e-9)


def test_no_shift_costs_nothing() -> None:
    assert skellam_renyi(2.0, 1.0, shift=0) == 0.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: skellam_renyi(1.0, 1.0, shift=1),
        lambda: skellam_renyi(float("nan"), 1.0, shift=1),
        lambda: skellam_renyi(600.0, 1.0, shift=1),
        lambda: skellam_renyi(2.0, 1e6, shift=1),
        lambda: skellam_renyi(2.0, 0.0, shift=1),
        lambda: skellam_renyi(2.0, 1.0, shift=True),
        lambda: skellam_renyi(2.0, 1.0, shift=1 << 17),
        lambda: skellam_renyi_bound(1, 1.0, sensitivity_l1=1, sensitivity_l2=1),
        lambda: skellam_renyi_bound(2, -1.0, sensitivity_l1=1, sensitivity_l2=1),
        lambda: skellam_renyi_bound(2, 1.0, sensitivity_l1=1, sensitivity_l2=2),
        lambda: skellam_renyi_bound(2, 1.0, sensitivity_l1=float("inf"), sensitivity_l2=2),
    ],
)
def test_what_has_no_cost_is_refused(call: Callable[[], float]) -> None:
    with pytest.raises(CalibrationError):
        call()
