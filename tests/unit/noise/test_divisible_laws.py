"""Laws of noise that parties share: probabilities, variances, losses, published figures, choice and bad input."""

from __future__ import annotations

import doctest
import importlib
import itertools
import math
import pkgutil
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpsql.errors import CalibrationError, ReleaseError
from dpsql.noise import divisible
from dpsql.noise.divisible import (
    DiscreteLaplace,
    DiscreteStaircase,
    DivisibleLaw,
    GeneralizedDiscreteLaplace,
    MultiScaleLaplace,
    Share,
    TransformedLaplace,
    ValueLaplace,
    choose_law,
)
from dpsql.noise.divisible.law import decay_of, gamma_for
from dpsql.noise.divisible.scaled_sum import Term, log_pmf, loss_bound
from dpsql.noise.entropy import SystemEntropy

PRICES = (5, 10, 30, 100)
CASES = [
    (DiscreteLaplace.of(1.5, 4), 4, 1.5),
    (GeneralizedDiscreteLaplace.of(6, 20), 20, 6),
    (GeneralizedDiscreteLaplace.of_theorem_15(8, 20), 20, 8),
    (GeneralizedDiscreteLaplace(Fraction(3, 2), gamma_for(0.4)), 5, 2.0),
    (GeneralizedDiscreteLaplace(Fraction(1, 1000), gamma_for(0.4)), 5, 20),
    (DiscreteLaplace.of(2, 3).share(7), 3, 30),
    (MultiScaleLaplace.of(6, 20), 20, 6),
    (MultiScaleLaplace.of(4, 20), 20, 4),
    (MultiScaleLaplace.of_nearest(4, 20), 20, 4),
    (MultiScaleLaplace.of_nearest(1, 7), 7, 1),
]
STAIRCASES = [(DiscreteStaircase.of(3, 20), 20, 3), (DiscreteStaircase(2.0, 7, 3), 7, 2)]


def largest_loss(law: DivisibleLaw | DiscreteStaircase, changes: range | tuple[int, ...], reach: int) -> float:
    """Return the largest log ratio over a window, and whole numbers of `changes`."""
    logs = law.log_pmf(np.arange(-reach, reach + 1))
    pairs = [(logs[: logs.size - change], logs[change:]) for change in changes]
    # Both may be impossible; one alone is an infinite loss.
    with np.errstate(invalid="ignore"):
        return max(float(np.nanmax(np.abs(low - high))) for low, high in pairs)


@pytest.mark.parametrize(("law", "max_change", "epsilon"), [*CASES, *STAIRCASES])
def test_probabilities_variance_and_loss_agree(
    law: DivisibleLaw | DiscreteStaircase, max_change: int, epsilon: float
) -> None:
    x = np.arange(-4000, 4001)
    chances = np.exp(law.log_pmf(x))
    assert abs(math.fsum(chances) - 1) < 1e-12
    assert math.fsum(chances * x * x) == pytest.approx(law.variance, rel=1e-9)
    seen = largest_loss(law, range(1, max_change + 1), 400)
    assert seen <= law.epsilon(max_change) + 1e-9
    assert law.epsilon(max_change) <= epsilon


@pytest.mark.parametrize(("law", "max_change", "epsilon"), [*CASES[:4], CASES[6], *CASES[8:], *STAIRCASES])
def test_epsilon_is_reached(law: DivisibleLaw | DiscreteStaircase, max_change: int, epsilon: float) -> None:
    assert largest_loss(law, range(1, max_change + 1), 3000) >= law.epsilon(max_change) * (1 - 1e-3)


def test_multi_scale_noise_loses_epsilon_far_out_at_its_largest_change() -> None:
    law = MultiScaleLaplace.of(6, 20)
    first, second = law.log_pmf(np.array([1500, 1520])).tolist()
    assert first - second == pytest.approx(law.epsilon(20), abs=1e-9)
    assert first - second <= law.epsilon(20) <= 6
    assert law.epsilon(40) == pytest.approx(12, abs=1e-9)
    assert law.epsilon(7) < law.epsilon(19) < 6


@pytest.mark.parametrize("shape", [Fraction(1, 3), Fraction(1, 10**6), 1 - Fraction(1, 10**6), Fraction(7, 3)])
@pytest.mark.parametrize("decay", [0.01, 0.3, 12.0])
def test_the_generalized_law_has_its_hypergeometric_probabilities(shape: Fraction, decay: float) -> None:
    law = GeneralizedDiscreteLaplace(shape, gamma_for(decay))
    sizes = [0, 1, 17, 300]
    with mpmath.workdps(40):
        gamma, beta = (mpmath.mpf(number.numerator) / number.denominator for number in (law.gamma, shape))
        p = mpmath.exp(-gamma)
        q = 1 - p
        for size, log in zip(sizes, law.log_pmf(np.array(sizes)), strict=True):
            whole = mpmath.hyp2f1(beta, beta + size, 1 + size, q * q) * mpmath.rf(beta, size) / mpmath.factorial(size)
            assert log == pytest.approx(float(mpmath.log(q**size * p ** (2 * beta) * whole)), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("steps", "decay"), [((1, 2, 3), 1.0), ((2, 4, 10), 0.7)])
def test_multi_scale_probabilities_are_convolutions(steps: tuple[int, ...], decay: float) -> None:
    law = ValueLaplace(steps, gamma_for(decay))
    total, reach = np.ones(1), 60
    for step in steps:
        one = np.zeros(2 * reach * step + 1)
        one[::step] = np.exp(DiscreteLaplace(law.gamma).log_pmf(np.arange(-reach, reach + 1)))
        total = np.convolve(total, one)
    middle = total.size // 2
    x = np.arange(-30, 31)
    np.testing.assert_allclose(np.exp(law.log_pmf(x)), total[middle - 30 : middle + 31], rtol=1e-10, atol=1e-25)


def test_probabilities_of_wide_sums_are_those_of_the_fourier_inverse() -> None:
    """A hundred steps of slow decay, asked at few places: most of the mass of each half is far above them."""
    law = ValueLaplace(tuple(range(1, 101)), gamma_for(1))
    q, size = -math.expm1(-float(law.gamma)), 1 << 17
    angles = 2 * np.pi * np.arange(size) / size
    logs = sum(2 * math.log(1 - q) - np.log(1 - 2 * q * np.cos(step * angles) + q * q) for step in law.values)
    x = np.array([0, 1, 789, 3157])
    np.testing.assert_allclose(np.exp(law.log_pmf(x)), np.fft.ifft(np.exp(logs)).real[x], rtol=1e-9)


def test_missing_shares_of_multi_scale_noise_cost_what_one_term_costs() -> None:
    """Sums of two thirds of all shares: the probabilities are convolutions of generalized laws."""
    part = GeneralizedDiscreteLaplace(Fraction(2, 3), gamma_for(2))
    total, reach = np.ones(1), 40
    for step in (1, 2, 3):
        one = np.zeros(2 * reach * step + 1)
        one[::step] = np.exp(part.log_pmf(np.arange(-reach, reach + 1)))
        total = np.convolve(total, one)
    logs = np.log(total[total.size // 2 - 30 : total.size // 2 + 31])
    seen = max(float(np.abs(logs[change:] - logs[:-change]).max()) for change in (1, 2, 3))
    assert 2 < seen <= part.epsilon(1)


def test_small_probabilities_have_all_digits() -> None:
    law = ValueLaplace((1, 5), gamma_for(20))
    with mpmath.workdps(60):
        q = 1 - mpmath.exp(-mpmath.mpf(law.gamma.numerator) / law.gamma.denominator)
        ways = mpmath.fsum(q ** (abs(23 - 5 * fives) + abs(fives)) for fives in range(-40, 40))
        expected = float(mpmath.log(ways * ((1 - q) / (1 + q)) ** 2))
    assert law.log_pmf(np.array([23]))[0] == pytest.approx(expected, rel=1e-13)


def test_the_split_of_the_paper_is_loose() -> None:
    """Y of scale r hides r - 1 at most, and the noise costs less than the sum of both losses."""
    printed = MultiScaleLaplace(3, 3, gamma_for(2.0), gamma_for(1 / 3))
    assert printed.epsilon(10) == pytest.approx(2.29, abs=0.005)
    assert largest_loss(printed, range(1, 11), 400) == pytest.approx(printed.epsilon(10), rel=1e-9)


@pytest.mark.parametrize(("epsilon", "ratio"), [(6, 1.0148), (8, 1.0020), (10, 1.0003), (14, 1.00001)])
def test_multi_scale_noise_is_close_to_the_staircase(epsilon: float, ratio: float) -> None:
    found = MultiScaleLaplace.of(epsilon, 5).variance / DiscreteStaircase.of(epsilon, 5).variance
    assert found == pytest.approx(ratio, abs=0.6e-4 if epsilon < 14 else 0.6e-5)


@pytest.mark.parametrize(
    ("epsilon", "staircase", "multi_scale", "generalized", "laplace"),
    [
        (4, 26.1, 79.0, 49.8, 49.8),
        (6, 5.70, 14.3, 22.0, 22.1),
        (8, 1.40, 1.93, 7.80, 12.3),
        (10, 0.260, 0.261, 1.30, 7.84),
    ],
)
def test_mean_squared_errors_at_a_change_of_20(
    epsilon: float, staircase: float, multi_scale: float, generalized: float, laplace: float
) -> None:
    choice = choose_law(epsilon, 20)
    assert choice.staircase == pytest.approx(staircase, rel=4e-3)
    assert choice.variances["multi-scale Laplace"] == pytest.approx(multi_scale, rel=2e-3)
    assert choice.variances["generalized discrete Laplace"] == pytest.approx(generalized, rel=4e-3)
    assert choice.variances["discrete Laplace"] == pytest.approx(laplace, rel=4e-3)
    assert choice.law.variance == min(choice.variances.values())


def test_lemma_34_is_the_variance_of_the_staircase() -> None:
    for epsilon, change, inner in itertools.product((0.5, 3.0), (1, 7), (1, 5)):
        if inner <= change:
            with mpmath.workdps(30):
                e, delta, r = mpmath.e**epsilon, change, inner
                z = e - 1
                first = 2 * r**3 * z**3 - 3 * r**2 * z**2 * (z - 2 * delta)
                second = r * z * (1 + e**2 + 6 * delta * (1 + delta) + e * (6 * delta * (delta - 1) - 2))
                cosh, sinh = mpmath.cosh(epsilon), mpmath.sinh(epsilon)
                third = 2 * e * delta * (-1 + 4 * delta**2 + cosh + 2 * delta**2 * cosh - 3 * delta * sinh)
                expected = (first + second + third) / (3 * z**2 * (1 - 2 * r + e * (2 * r - 1) + 2 * delta))
            assert DiscreteStaircase(epsilon, change, inner).variance == pytest.approx(float(expected), rel=1e-12)


def test_a_price_list_has_nearly_no_error() -> None:
    law = ValueLaplace.of(10, PRICES)
    assert law.variance == pytest.approx(1.001, abs=5e-4)
    chances = np.exp(law.log_pmf(np.arange(-3000, 3001)))
    assert abs(math.fsum(chances) - 1) < 1e-12
    assert divisible.continuous_staircase_variance(10, 100) == pytest.approx(8.47, abs=5e-3)
    choice = choose_law(10, 100, values=PRICES)
    assert (choice.name, choice.law) == ("Laplace of known values", law)
    assert choice.staircase == pytest.approx(8.51, abs=5e-3)
    assert choice.variances["multi-scale Laplace"] == pytest.approx(30.7, abs=0.05)


def test_a_price_list_hides_no_replacement_and_no_other_price() -> None:
    law = ValueLaplace.of(2, PRICES)
    assert law.epsilon(100) == pytest.approx(2, abs=1e-9)
    assert largest_loss(law, PRICES, 2000) <= law.epsilon(100)
    assert law.epsilon(4) == 0
    assert law.epsilon_of([5, 20, 25, 70, 90, 95]) == pytest.approx(3.86, abs=5e-3)
    assert law.epsilon_of([3]) == math.inf
    replacing = ValueLaplace.of(2, {abs(a - b) for a in (0, *PRICES) for b in (0, *PRICES)} - {0})
    assert replacing.epsilon_of([5, 20, 25, 70, 90, 95, 100]) <= 2


@pytest.mark.parametrize("cases", [30, pytest.param(3000, marks=pytest.mark.long)])
def test_loss_bounds_are_never_below_a_loss_and_seldom_above_it(cases: int) -> None:
    random = np.random.default_rng(36)
    close = 0
    for _ in range(cases):
        steps = tuple(sorted(random.choice(np.arange(1, 16), random.integers(1, 6), replace=False).tolist()))
        terms = [Term(steps, gamma_for(float(np.exp(random.uniform(-1, 2.5)))))]
        terms += [Term((int(random.integers(1, 4)),), gamma_for(float(np.exp(random.uniform(-2, 1.5)))))]
        changes = random.integers(1, 25, 3).tolist()
        bound = loss_bound(terms, changes)
        logs = log_pmf(terms, np.arange(-1500, 1501))
        finite = np.isfinite(logs)
        for change in changes:
            both = finite[change:] & finite[:-change]
            seen = np.abs(logs[change:][both] - logs[:-change][both]).max(initial=0)
            assert seen <= bound + 1e-9
            close += bool(seen >= bound - 1e-3)
    assert close >= cases / 2


def test_losses_without_a_proof_are_infinite() -> None:
    """Steps 2 and 4 with one decay a step have no limit; narrow noise of huge steps is impossible in floats."""
    assert loss_bound(ValueLaplace((2, 4), gamma_for(1)).terms, [3]) == math.inf
    assert loss_bound(ValueLaplace((9967, 9973), gamma_for(30)).terms, [1]) == math.inf


@pytest.mark.parametrize("decay", [1e-9, 1e-4, 0.3, 1.0, 20.0, 34.0])
def test_rounded_decays_are_never_larger(decay: float) -> None:
    gamma = gamma_for(decay)
    with mpmath.workdps(50):
        exact = -mpmath.log(1 - mpmath.exp(-mpmath.mpf(gamma.numerator) / gamma.denominator))
    assert decay - 1e-10 * max(decay, 0.1) <= exact <= decay
    assert decay_of(gamma) == pytest.approx(float(exact), rel=1e-14)


@pytest.mark.parametrize("epsilon", [1e-6, 7.3, 34.0])
def test_no_law_costs_more_than_was_asked_for(epsilon: float) -> None:
    for max_change in (1, 9, 10_000):
        for law in (DiscreteLaplace, MultiScaleLaplace, GeneralizedDiscreteLaplace):
            assert law.of(epsilon, max_change).epsilon(max_change) <= epsilon
        assert MultiScaleLaplace.of_nearest(epsilon, max_change).epsilon(max_change) <= epsilon
        assert TransformedLaplace.of(epsilon, max_change).epsilon(max_change) <= epsilon
    assert ValueLaplace.of(epsilon, PRICES).epsilon(100) <= epsilon


def test_negative_noise_has_residues_of_its_own() -> None:
    """Lemma 29 decodes residues above n Delta as n. With q = 2 n Delta these are those of negative noise, too."""
    parties, scale = 20, 8
    law = MultiScaleLaplace.of(6, scale)
    below_0 = np.exp(law.log_pmf(np.arange(-parties * scale, 0))).sum()
    assert below_0 * parties**2 == pytest.approx(7.78, abs=0.01)
    assert law.variance / scale**2 + parties / (4 * scale**2) < 0.1


@pytest.mark.parametrize(("max_change", "epsilon"), [(2, 1.89), (3, 2.29), (50, 5), (1000, 5)])
def test_discrete_laplace_is_best_at_small_epsilon(max_change: int, epsilon: float) -> None:
    assert choose_law(epsilon, max_change).name == "discrete Laplace"
    assert choose_law(2 + math.log(max_change) + 0.5, max_change).name.startswith("multi-scale")


def test_many_parties_restrict_the_shapes() -> None:
    law = GeneralizedDiscreteLaplace.of(10, 20, parties=1000)
    assert law.shape.denominator <= 1000
    assert law.share(1000).shape * 1000 == law.shape
    assert law.variance == pytest.approx(GeneralizedDiscreteLaplace.of(10, 20).variance, rel=1e-4)
    assert law.share(1000).variance == pytest.approx(law.variance / 1000)


@pytest.mark.parametrize("epsilon", [2.0, 5.0, 8.0])
def test_continuous_noise_keeps_its_epsilon(epsilon: float) -> None:
    x = np.linspace(-5, 5, 20_001)
    for law in (TransformedLaplace.of(epsilon, 1), TransformedLaplace.of_theorem_21(epsilon, 1)):
        assert law.epsilon(1) <= epsilon + 1e-9
        density = law.density(x)
        for change in (77, 1000, 1999, 2000):
            assert np.abs(np.log(density[change:] / density[:-change])).max() <= law.epsilon(1)
        if epsilon == 8:
            assert np.trapezoid(density, x) == pytest.approx(1, abs=1e-4)
            assert np.trapezoid(density * x * x, x) == pytest.approx(law.variance, rel=1e-3)


def test_theorem_21_loses_to_laplace_noise_below_5() -> None:
    assert TransformedLaplace.of_theorem_21(8, 1).variance == pytest.approx(0.0123, abs=5e-5)
    assert TransformedLaplace.of_theorem_21(5, 1).variance == pytest.approx(0.110, abs=5e-4)
    assert TransformedLaplace.of(5, 1).variance == pytest.approx(0.080)
    assert TransformedLaplace.of(8, 1).variance < 0.0123
    assert TransformedLaplace.of_theorem_21(8, 1, generalized=True).variance == pytest.approx(0.0527, abs=5e-5)


@pytest.mark.parametrize("epsilon", [3.0, 8.0])
def test_continuous_noise_has_a_lattice_form_of_the_same_cost(epsilon: float) -> None:
    law = TransformedLaplace.of(epsilon, 2.5)
    lattice = law.on_lattice(64)
    change = round(2.5 / law.spacing * 64)
    assert lattice.epsilon(change) <= epsilon
    assert lattice.variance * (law.spacing / 64) ** 2 == pytest.approx(law.variance, rel=1e-3)


def test_the_arete_law_has_the_loss_of_its_conjecture() -> None:
    law = divisible.Arete.of_conjecture_30(11, 1)
    assert law.variance == pytest.approx(6.16 * math.exp(-22 / 3), rel=1e-3)
    x = np.arange(-12, 12, 0.05)
    density = law.density(x)
    assert np.abs(np.log(density[20:] / density[:-20])).max() == pytest.approx(10.993, abs=5e-4)


@pytest.mark.parametrize("count", [-1, 2.5, True, None])
def test_an_impossible_number_of_draws_is_refused(count: int) -> None:
    multi_scale, generalized = MultiScaleLaplace.of(8, 20), GeneralizedDiscreteLaplace.of(8, 20)
    noises: list[Share] = [DiscreteLaplace.of(1, 1), generalized, multi_scale, multi_scale.share(3)]
    for noise in noises:
        with pytest.raises(ReleaseError, match="the number of noise draws"):
            noise.draw(count, SystemEntropy())


def test_whole_numbers_of_numpy_are_numbers() -> None:
    epsilon, change, parties = np.array([8, 20, 3])
    assert choose_law(epsilon, change, parties=parties) == choose_law(8, 20, parties=3)


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, 35, True, "1"])
def test_an_impossible_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(CalibrationError, match=r"from 1e-06 to 34"):
        choose_law(epsilon, 20)
    with pytest.raises(CalibrationError, match=r"from 1e-06 to 34"):
        TransformedLaplace.of(epsilon, 1)


@pytest.mark.parametrize("max_change", [0, -1, 10_001, 2.5, math.nan])
def test_an_impossible_change_is_refused(max_change: int) -> None:
    with pytest.raises(CalibrationError, match=r"max_change must be a whole number from 1 to 10,000"):
        choose_law(1, max_change)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (5, "must be a list of whole numbers"),
        ([], "1 to 1,000 values"),
        (range(1, 1002), "1 to 1,000 values"),
        ([0, 5], "from 1 to 10,000"),
        ([-5], "from 1 to 10,000"),
        ([2.5], "from 1 to 10,000"),
        ([5, 101], "max_change is 100, but one of the values is 101"),
    ],
)
def test_impossible_values_are_refused(values: list[int], said: str) -> None:
    with pytest.raises(CalibrationError, match=said):
        choose_law(1, 100, values=values)


@pytest.mark.parametrize("parties", [0, -1, 10**6 + 1, 1.5])
def test_an_impossible_number_of_parties_is_refused(parties: int) -> None:
    law = choose_law(8, 20).law
    for share in (law.share, DiscreteLaplace.of(1, 1).share, lambda n: choose_law(8, 20, parties=n)):
        with pytest.raises(CalibrationError, match=r"parties must be a whole number from 1 to 1,000,000"):
            share(parties)


def test_parameters_that_no_law_has_are_refused() -> None:
    gamma = gamma_for(1)
    with pytest.raises(CalibrationError, match=r"above 2 \+ log\(max_change\) = 4.996"):
        GeneralizedDiscreteLaplace.of_theorem_15(4.9, 20)
    with pytest.raises(CalibrationError, match=r"at least 2"):
        TransformedLaplace.of_theorem_21(1.9, 1)
    with pytest.raises(CalibrationError, match=r"choose the law with parties=1000000,"):
        GeneralizedDiscreteLaplace(Fraction(1, 7), gamma).share(10**6)
    with pytest.raises(CalibrationError, match="too many operations"):
        GeneralizedDiscreteLaplace(Fraction(3, 2), gamma_for(1e-6)).log_pmf(np.array([0]))
    with pytest.raises(CalibrationError, match="gamma must be a Fraction"):
        DiscreteLaplace(Fraction(0))
    with pytest.raises(CalibrationError, match="needs a fine gamma"):
        MultiScaleLaplace(2, 3, gamma)
    with pytest.raises(CalibrationError, match="must rise"):
        ValueLaplace((5, 3), gamma)
    with pytest.raises(CalibrationError, match="a number from 1e-12 to 1e12"):
        TransformedLaplace.of(1, math.nan)
    with pytest.raises(CalibrationError, match="a number from 1e-12 to 1e12"):
        divisible.continuous_staircase_variance(5, -1)
    with pytest.raises(CalibrationError, match="spacing and scale must be above 0"):
        TransformedLaplace(1, None, math.nan)
    with pytest.raises(CalibrationError, match="inner must be a whole number from 1 to 3"):
        DiscreteStaircase(1, 3, 5)
    with pytest.raises(CalibrationError, match="steps must be even"):
        TransformedLaplace.of(1, 1).on_lattice(7)
    with pytest.raises(CalibrationError, match="only multi-scale noise"):
        TransformedLaplace.of_theorem_21(8, 1, generalized=True).on_lattice()
    with pytest.raises(CalibrationError, match="too many operations"):
        MultiScaleLaplace(1, 10_000, gamma_for(0.01)).log_pmf(np.array([0]))


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(divisible.__path__)])
def test_the_examples_in_the_docstrings_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"{divisible.__name__}.{name}")).failed == 0


def test_the_example_of_the_room_holds() -> None:
    found = doctest.testmod(divisible)
    assert (found.attempted > 0, found.failed) == (True, 0)
