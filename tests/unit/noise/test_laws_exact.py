"""The laws of lossless multiple release in rational arithmetic: what the code's weights and chances imply, exactly."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpsql.noise import gaussian_laws as gaussian
from dpsql.noise import lazy_jumps, refined_table
from dpsql.noise.entropy import Entropy
from dpsql.noise.gaussian_laws import GaussianLaw, between, fall, rise, unit_variance
from dpsql.noise.laplace_laws import DiscreteLaplaceLaw, ExponentialLaw, LaplaceLaw
from dpsql.noise.law import Law
from dpsql.noise.lazy_jumps import split_weights, stay_chance
from dpsql.noise.poisson_laws import PoissonLaw, SkellamLaw
from tests.deterministic_entropy import SeededEntropy

Values = NDArray[np.int64]
Covariance = dict[tuple[Fraction, Fraction], Fraction]
Between = Callable[[Fraction, Fraction, Fraction], gaussian.Combination]
FOUR_LEVELS = (Fraction(1, 20), Fraction(1, 5), Fraction(1, 2), Fraction(1))


# --- Gaussian: covariances -------------------------------------------------------------------------------------------


def covariance_after(order: tuple[Fraction, ...], bridge: Between = between) -> Covariance:
    """Covariances of the points after all releases, by the weights that the law uses; sensitivity 1."""
    covariance: Covariance = {}
    drawn: list[Fraction] = []
    for level in order:
        lower = max((other for other in drawn if other < level), default=None)
        higher = min((other for other in drawn if other > level), default=None)
        shares: dict[Fraction, Fraction] = {}
        if lower is None and higher is None:
            noise = unit_variance(level)
        elif higher is None and lower is not None:
            made = rise(lower, level)
            shares = {lower: 1 - made.weight}
            noise = made.weight**2 * unit_variance(level - lower) + made.unit_variance
        elif lower is None and higher is not None:
            shares, noise = {higher: Fraction(1)}, fall(higher, level).unit_variance
        else:
            assert lower is not None
            assert higher is not None
            made = bridge(lower, level, higher)
            shares, noise = {higher: 1 - made.weight, lower: made.weight}, made.unit_variance
        for other in drawn:
            with_other = sum((share * covariance[point, other] for point, share in shares.items()), Fraction(0))
            covariance[level, other] = covariance[other, level] = with_other
        own = sum((a * b * covariance[p, q] for p, a in shares.items() for q, b in shares.items()), Fraction(0))
        covariance[level, level] = own + noise
        drawn.append(level)
    return covariance


def lossless(levels: tuple[Fraction, ...]) -> Covariance:
    return {(one, other): 1 / (2 * max(one, other)) for one in levels for other in levels}


@pytest.mark.parametrize("order", list(permutations(FOUR_LEVELS)))
def test_every_order_gives_the_covariance_of_the_less_private_point(order: tuple[Fraction, ...]) -> None:
    assert covariance_after(order) == lossless(FOUR_LEVELS)


levels_in_any_order = st.lists(st.fractions("1/1000", 50, max_denominator=10**6), min_size=2, max_size=6, unique=True)


@given(levels_in_any_order)
def test_any_levels_in_any_order_give_that_covariance(order: list[Fraction]) -> None:
    assert covariance_after(tuple(order)) == lossless(tuple(order))


def test_swapped_levels_and_a_variance_three_percent_low_are_caught() -> None:
    def swapped(low: Fraction, level: Fraction, high: Fraction) -> gaussian.Combination:
        made = between(low, level, high)
        return gaussian.Combination(1 - made.weight, made.unit_variance)

    def low_variance(low: Fraction, level: Fraction, high: Fraction) -> gaussian.Combination:
        made = between(low, level, high)
        return gaussian.Combination(made.weight, made.unit_variance * Fraction(97, 100))

    order = (FOUR_LEVELS[0], FOUR_LEVELS[3], FOUR_LEVELS[1], FOUR_LEVELS[2])
    for fault in (swapped, low_variance):
        assert covariance_after(order, fault) != lossless(FOUR_LEVELS)


class Silent(GaussianLaw):
    """The law without its noise, noting the variances it asks for."""

    asked: list[Fraction] = []  # noqa: RUF012

    def _noise(self, unit: Fraction, count: int, entropy: Entropy) -> Values:
        self.asked.append(unit)
        return np.zeros(count, dtype=np.int64)


def test_the_law_uses_these_weights_and_variances() -> None:
    law, entropy = Silent(Fraction(1)), SeededEntropy(0)
    low, level, high = FOUR_LEVELS[:3]
    at_low, at_high = np.array([100, -7, 5]), np.array([400, 9, 5])
    law.asked.clear()
    raised = law.step_up(at_low, low, high, at_high, entropy)
    weight = rise(low, high).weight
    assert raised.tolist() == [round(a + weight * (b - a)) for a, b in zip(at_low, at_high, strict=True)]
    law.step_down(at_high, high, low, entropy)
    weight = between(low, level, high).weight
    middle = law.bridge(at_low, low, at_high, high, level, entropy)
    assert middle.tolist() == [round(b + weight * (a - b)) for a, b in zip(at_low, at_high, strict=True)]
    assert law.asked == [
        unit_variance(high - low),
        fall(high, low).unit_variance,
        between(low, level, high).unit_variance,
    ]


def test_averages_of_far_values_stay_within_the_stated_error() -> None:
    rng = np.random.Generator(np.random.Philox(4))
    base, other = rng.integers(-(2**61), 2**61, 200), rng.integers(-(2**61), 2**61, 200)
    weight = Fraction(1, 3)
    for ours, a, b in zip(gaussian.towards(base, other, weight), base.tolist(), other.tolist(), strict=True):
        assert abs(int(ours) - (a + weight * (b - a))) <= Fraction(1, 2) + Fraction(abs(b - a), 1 << 51)


# --- Discrete Laplace and geometric noise ----------------------------------------------------------------------------

RATIOS = [(Fraction(1, 5), Fraction(1, 3), Fraction(1, 2)), (Fraction(0), Fraction(2, 7), Fraction(9, 10))]


def step_mass(low: Fraction, high: Fraction, x: int, *, two_sided: bool) -> Fraction:
    """P(step from `low` to `high` = x), for a step that is 0 with the code's chance and else a fresh variate."""
    stay = stay_chance(low, high, two_sided=two_sided)
    fresh = lazy_jumps._mass_at_zero(high, two_sided) * high ** abs(x) if two_sided or x >= 0 else Fraction(0)
    return (1 - stay) * fresh + (stay if x == 0 else 0)


def split_mass(ratios: tuple[Fraction, Fraction, Fraction], k: int, x: int, *, two_sided: bool) -> Fraction:
    """P(first part = x | sum = k >= 0) as the sampler makes it of its chances."""
    weights = split_weights(*ratios, two_sided=two_sided)
    q, r = ratios[1] / ratios[2], ratios[1] * ratios[2]
    if k == 0:
        zero, whole, below, inside, beyond = (weight / sum(weights.at_zero) for weight in weights.at_zero)
    else:
        mixed = [(1 - q**k) * far + q**k * near for far, near in zip(weights.far, weights.near, strict=True)]
        zero, whole, below, inside, beyond = (weight / sum(weights.far) for weight in mixed)
    mass = zero * (x == 0) + whole * (x == k)
    if 0 <= x <= k:
        return mass + inside * q**x * (1 - q) / (1 - q ** (k + 1))
    return mass + (below * (1 - r) * r ** (-x - 1) if x < 0 else beyond * (1 - r) * r ** (x - k - 1))


@pytest.mark.parametrize("two_sided", [True, False])
@pytest.mark.parametrize("ratios", RATIOS)
def test_the_split_of_a_step_is_its_conditional_law(ratios: tuple[Fraction, ...], two_sided: bool) -> None:
    low, middle, high = ratios
    for k in range(6):
        whole = step_mass(low, high, k, two_sided=two_sided)
        for x in range(-6, 12):
            first = step_mass(low, middle, x, two_sided=two_sided)
            joint = first * step_mass(middle, high, k - x, two_sided=two_sided)
            assert split_mass((low, middle, high), k, x, two_sided=two_sided) == joint / whole


@pytest.mark.parametrize("ratios", RATIOS)
def test_both_mixtures_of_a_split_have_one_total(ratios: tuple[Fraction, Fraction, Fraction]) -> None:
    for two_sided in (True, False):
        weights = split_weights(*ratios, two_sided=two_sided)
        assert sum(weights.far) == sum(weights.near)
        assert min(weights.far + weights.near + weights.at_zero) >= 0


def generating(ratio: Fraction, z: Fraction, *, two_sided: bool) -> Fraction:
    one_side = (1 - ratio) / (1 - ratio * z)
    return one_side * (1 - ratio) / (1 - ratio / z) if two_sided else one_side


@pytest.mark.parametrize("two_sided", [True, False])
@pytest.mark.parametrize(
    "ratios", list(combinations([Fraction(1, 9), Fraction(1, 5), Fraction(1, 3), Fraction(1, 2)], 2))
)
def test_noise_and_step_have_the_law_of_more_noise(ratios: tuple[Fraction, Fraction], two_sided: bool) -> None:
    """Generating functions are quotients of polynomials of degree 4 at most: equal at ten points, equal everywhere."""
    low, high = ratios
    stay = stay_chance(low, high, two_sided=two_sided)
    assert 0 < stay < 1
    for z in [1 + Fraction(i, 12) for i in range(1, 11)]:
        more = generating(high, z, two_sided=two_sided)
        assert generating(low, z, two_sided=two_sided) * (stay + (1 - stay) * more) == more


def test_the_three_steps_give_one_joint_law_whatever_their_order() -> None:
    """P(noise at three levels): drawn down from the least noise, up from the most, and the middle last; on a box."""
    low, middle, high = RATIOS[0]
    none = Fraction(0)

    def noise(ratio: Fraction, x: int) -> Fraction:
        return lazy_jumps._mass_at_zero(ratio, True) * ratio ** abs(x)

    def split(ratios: tuple[Fraction, Fraction, Fraction], k: int, x: int) -> Fraction:
        return split_mass(ratios, abs(k), x if k >= 0 else -x, two_sided=True)

    for x in range(-3, 4):
        for y in range(-3, 4):
            for z in range(-3, 4):
                down = noise(low, x) * step_mass(low, middle, y - x, two_sided=True)
                down *= step_mass(middle, high, z - y, two_sided=True)
                up = noise(high, z) * split((none, middle, high), z, y) * split((none, low, middle), y, x)
                last = noise(low, x) * step_mass(low, high, z - x, two_sided=True)
                last *= split((low, middle, high), z - x, y - x)
                assert down == up == last


def test_the_loss_of_three_points_is_that_of_the_least_private() -> None:
    """Shift all exact values by one: the largest ratio of joint probabilities is that of the least noise alone."""
    low, middle, high = RATIOS[0]

    def joint(f: int, x: int, y: int, z: int) -> Fraction:
        mass = lazy_jumps._mass_at_zero(low, True) * low ** abs(x - f)
        return mass * step_mass(low, middle, y - x, two_sided=True) * step_mass(middle, high, z - y, two_sided=True)

    box = range(-3, 4)
    losses = {joint(0, x, y, z) / joint(1, x, y, z) for x in box for y in box for z in box}
    assert losses == {low, 1 / low}
    assert DiscreteLaplaceLaw(1).epsilon(1 / low) >= math.log(5)


# --- Continuous Laplace and exponential formulas, as limits ----------------------------------------------------------


def test_a_fine_lattice_has_the_continuous_laplace_law() -> None:
    """Equations 22 and 25, and the corrected Lemma F.5, for b2, b, b1 = 1/3, 1/2, 1 and k = 0.8."""
    steps = 1 << 14
    law = LaplaceLaw(steps)
    low, middle, high = (law.ratio(Fraction(level)) for level in (3, 2, 1))
    b2, b, b1, k = 1 / 3, 1 / 2, 1.0, 0.8
    # Equation 25: stays with chance (eps1 / eps2)^2.
    assert float(stay_chance(low, high, two_sided=True)) == pytest.approx((b2 / b1) ** 2, rel=1e-4)
    sum_in_steps = round(k * steps)
    near = float((middle / high) ** sum_in_steps)

    def place(first: Fraction) -> list[float]:
        weights = split_weights(first, middle, high, two_sided=True)
        total = float(sum(weights.far))
        pairs = zip(weights.far, weights.near, strict=True)
        return [((1 - near) * float(far) + near * float(close)) / total for far, close in pairs]

    zero, whole, below, inside, beyond = place(low)
    assert zero == pytest.approx(b2**2 * (b1**2 - b**2) / (b**2 * (b1**2 - b2**2)), rel=2e-4)
    stays = (b1 / b) * (b**2 - b2**2) / (b1**2 - b2**2) * math.exp(-k * (1 / b - 1 / b1))
    assert whole == pytest.approx(stays, rel=2e-4)
    s, d = 1 / b + 1 / b1, 1 / b - 1 / b1
    masses = np.array([1 / s, (1 - math.exp(-k * d)) / d, math.exp(-k * d) / s])
    assert np.array([below, inside, beyond]) == pytest.approx((1 - zero - whole) * masses / masses.sum(), rel=1e-3)
    # Equation 22: from noise x at eps1 the atom is (eps1 / eps2) exp(-(eps2 - eps1) |x|).
    zero, whole, *_ = place(Fraction(0))
    assert zero == 0
    assert whole == pytest.approx((b / b1) * math.exp(-(1 / b - 1 / b1) * k), rel=2e-4)


def test_a_fine_lattice_has_the_continuous_exponential_law() -> None:
    law = ExponentialLaw(1 << 14)
    stay = stay_chance(law.ratio(Fraction(3)), law.ratio(Fraction(1)), two_sided=False)
    assert float(stay) == pytest.approx(1 / 3, rel=1e-4)


@given(st.fractions("1/1000", 20, max_denominator=10**9), st.integers(1, 1 << 24))
def test_the_laplace_ratio_is_rounded_to_the_private_side(epsilon: Fraction, sensitivity: int) -> None:
    ratio = LaplaceLaw(sensitivity).ratio(epsilon)
    # either form alone loses digits at one end
    spent = -sensitivity * (math.log(ratio) if 2 * ratio < 1 else math.log1p(-(1 - ratio)))
    assert spent <= float(epsilon) * (1 + 1e-12)
    assert spent == pytest.approx(float(epsilon), rel=1e-9)


# --- Poisson and Skellam ---------------------------------------------------------------------------------------------


class Heard:
    """Notes the chances that items survive with, and lets all survive."""

    def __init__(self) -> None:
        self.chances: list[Fraction] = []

    def __call__(self, counts: Values, chance: Fraction, entropy: Entropy) -> Values:
        self.chances.append(chance)
        return counts


@pytest.mark.parametrize("law", [PoissonLaw(), SkellamLaw()])
def test_thinning_has_the_conditional_law(monkeypatch: pytest.MonkeyPatch, law: Law) -> None:
    """With the chances that the law uses, binomial mass = joint mass of two Poisson variates / mass of their sum."""
    heard = Heard()
    monkeypatch.setattr("dpsql.noise.poisson_laws.thinned", heard)
    low, level, high = Fraction(1, 7), Fraction(1, 4), Fraction(1, 2)
    noise = np.array([3, 0, 5])
    law.bridge(noise, low, np.zeros(3, dtype=np.int64), high, level, SeededEntropy(1))
    law.step_up(noise, low, level, np.zeros(3, dtype=np.int64), SeededEntropy(1))
    # Parts of the noise between two points: from `high` to `level` of all from `high` to `low`, then all of it.
    parts = [(Fraction(2), Fraction(3)), (Fraction(4), Fraction(3))]
    if isinstance(law, SkellamLaw):
        parts = [parts[0], parts[0], parts[1], parts[1]]
    assert len(heard.chances) == len(parts)
    for chance, (first, second) in zip(heard.chances, parts, strict=True):
        for k in range(6):
            for x in range(k + 1):
                binomial = math.comb(k, x) * chance**x * (1 - chance) ** (k - x)
                joint = first**x / math.factorial(x) * second ** (k - x) / math.factorial(k - x)
                assert binomial == joint * math.factorial(k) / (first + second) ** k


def test_the_pair_behind_a_skellam_step_may_be_drawn_afresh() -> None:
    """Joint mass of both parts of a difference, with a pair given the difference alone, is the product of two laws.

    Both sides are power series in a common factor; the sums over the hidden pair are compared up to 40 terms.
    """
    first, second = 1.0, 1.5

    def skellam(mean: float, k: int) -> float:
        return sum(mean ** (2 * n + abs(k)) / math.factorial(n) / math.factorial(n + abs(k)) for n in range(40))

    def binomial(n: int, x: int) -> float:
        share = first / (first + second)
        return math.comb(n, x) * share**x * (1 - share) ** (n - x) if 0 <= x <= n else 0.0

    for k in (-2, 0, 3):
        for x in (-1, 0, 2):
            total = 0.0
            for smaller in range(30):
                up, down = smaller + max(k, 0), smaller + max(-k, 0)
                pair = (first + second) ** (up + down) / math.factorial(up) / math.factorial(down)
                total += pair * sum(binomial(up, kept) * binomial(down, kept - x) for kept in range(up + 1))
            assert total == pytest.approx(skellam(first, x) * skellam(second, k - x), rel=1e-12)


# --- Integers only ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [refined_table, lazy_jumps])
def test_no_floating_point_number_decides(module: object) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))  # type: ignore[attr-defined]
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    assert not any(isinstance(value, float) for value in constants)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not names & {"float", "float64", "float32", "math", "sqrt", "exp", "log"}
