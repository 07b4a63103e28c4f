from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import erfc

from dpsql.accounting.exceedance import (
    cells_above,
    hidden_bracket,
    integral_above,
    integral_below,
    shown_probabilities,
    shown_probability,
    shown_quantile,
)

EDGES = [-14, -8, -4, -2, -1, *range(14), 20, 40]


def exact_shown(keys: int, x: float, correlation: float, *, hidden: bool = False) -> mp.mpf:
    """Exact probability that one of the keys is shown (or that none is), by integrating over the common noise."""
    with mp.workdps(20):
        spread = mp.sqrt(mp.mpf(correlation))

        def integrand(common: mp.mpf) -> mp.mpf:
            one = mp.erfc((mp.mpf(x) - spread * common) / mp.sqrt(2)) / 2
            each = (
                keys * mp.log1p(-one) if one < 0.9 else keys * mp.log(mp.erfc(-(x - spread * common) / mp.sqrt(2)) / 2)
            )
            return mp.npdf(common) * (mp.exp(each) if hidden else -mp.expm1(each))

        edges = [-edge for edge in reversed(EDGES)] if hidden else EDGES
        return mp.quad(integrand, edges)


@given(
    mean=st.floats(-3.0, 3.0),
    slope=st.floats(-4.0, 4.0),
    bend=st.floats(0.3, 3.0),
    nodes=st.integers(12, 300),
    cut=st.floats(-6.0, 0.0),
)
def test_a_truncated_bell_lies_between_the_bounds(
    *, mean: float, slope: float, bend: float, nodes: int, cut: float
) -> None:
    grid = np.linspace(-9.0, 9.0, nodes)
    step = float(grid[1] - grid[0])
    log_values = np.where(grid > cut, slope * grid - bend * (grid - mean) ** 2, -np.inf)[None, :]
    # Completing the square: the integral from the cut upwards.
    centre = mean + slope / (2.0 * bend)
    height = math.exp(slope * centre - bend * (centre - mean) ** 2)
    exact = height * 0.5 * math.sqrt(math.pi / bend) * erfc(math.sqrt(bend) * (cut - centre))
    width = np.array([step])
    assert float(integral_above(log_values, log_values, width)[0]) >= exact * (1 - 1e-12)
    assert float(integral_below(log_values, width)[0]) <= exact * (1 + 1e-12)


def test_the_bounds_close_in_like_the_square_of_the_step() -> None:
    gaps = []
    for nodes in (101, 201, 401):
        grid, step = np.linspace(-12.0, 12.0, nodes, retstep=True)
        values = (-0.5 * grid * grid)[None, :]
        above = float(integral_above(values, values, np.array([step]))[0]) / math.sqrt(2.0 * math.pi) - 1.0
        below = float(integral_below(values, np.array([step]))[0]) / math.sqrt(2.0 * math.pi) - 1.0
        assert below < 0.0 < above
        gaps.append(above - below)
    assert gaps[1] == pytest.approx(gaps[0] / 4.0, rel=0.05)
    assert gaps[2] == pytest.approx(gaps[1] / 4.0, rel=0.05)


def test_a_cell_that_no_line_bounds_is_infinite_and_an_empty_one_is_nothing() -> None:
    none, one = np.array([-np.inf]), np.array([0.0])
    assert cells_above(none, one, one, none, 1.0)[0] == math.inf
    assert cells_above(one, none, none, one, 1.0)[0] == 0.0
    assert cells_above(none, none, one, one, 1.0)[0] == pytest.approx(1.0)
    rising = np.array([[0.0, 1.0, 2.0, 3.0]])
    assert integral_above(rising, rising, np.ones(1))[0] == math.inf


CASES = [
    (1, 3.0, 0.5),
    (2, 4.0, 0.7),
    (10, 5.4, 10**-0.5),
    (1000, 6.2, 1000**-0.5),
    (51914, 6.27, 51914**-0.5),
    (3, 9.0, 5.0),
    (5, 0.5, 20.0),
    (40, 0.0, 0.2),
]


@pytest.mark.parametrize(("keys", "x", "correlation"), CASES)
def test_the_probability_is_the_exact_one_rounded_up(keys: int, x: float, correlation: float) -> None:
    exact = exact_shown(keys, x, correlation)
    value = shown_probability(keys, x, correlation)
    assert exact <= value <= exact * (1 + mp.mpf("2e-6"))
    rough = float(shown_probabilities(np.array([keys]), x, correlation, 128)[0])
    assert exact <= rough <= exact * (1 + mp.mpf("5e-3"))
    # The bound of the paper's Lemma 3.2 is looser, and the check above would refuse it.
    paper = -math.expm1((keys + 1) * math.log1p(-0.5 * erfc(x / (1 + math.sqrt(correlation)) / math.sqrt(2.0))))
    assert paper > 1.01 * value or paper > 0.9


@pytest.mark.parametrize(("keys", "spread"), [(1, 0.5), (3, 4.0), (500, 0.2), (500, 0.5)])
def test_the_chance_to_stay_hidden_lies_in_its_bracket(keys: int, spread: float) -> None:
    points = np.array([0.0, 4.5])
    low, high = hidden_bracket(keys, points, spread, 512)
    for point, below, above in zip(points, low, high, strict=True):
        exact = float(mp.log(exact_shown(keys, float(point), spread**2, hidden=True)))
        assert below <= exact + 1e-15
        assert above >= exact - 1e-15
        assert above - below <= 2e-3 * max(1.0, abs(exact))
        # Common noise keeps keys hidden together: independent noise of the same size is outside the bracket.
        alone = keys * math.log(0.5 * erfc(-float(point) / math.sqrt(2.0 * (1.0 + spread**2))))
        assert keys == 1 or alone < below
    # A chance below the floating-point range is its smallest number.
    assert hidden_bracket(500, np.array([-6.0]), 0.05, 64)[0][0] == pytest.approx(math.log(5e-324))


@given(
    delta=st.floats(1e-30, 0.9),
    keys=st.integers(1, 10**5),
    correlation=st.one_of(st.just(0.0), st.floats(1e-6, 30.0)),
)
def test_the_quantile_is_safe_and_smallest(delta: float, keys: int, correlation: float) -> None:
    x = shown_quantile(delta, keys, correlation)
    assert shown_probability(keys, x, correlation) <= delta
    smaller = x - 1e-6 * max(x, 1.0)
    assert smaller <= 0.0 or shown_probability(keys, smaller, correlation) > delta


def test_extremes_are_safe() -> None:
    assert shown_probability(0, 0.0, 0.3) == 0.0
    assert 0.0 < shown_probability(5, 1e9, 0.3) < 1e-300
    assert 0.0 < shown_probability(5, 55.0, 0.3) < 1e-300
    assert 0.0 < shown_probability(1, 60.0, 1.0) < 1e-300
    assert shown_probability(10**6, 0.0, 1e-3) == pytest.approx(1.0)
    assert shown_probability(7, 5.0, 0.0) == pytest.approx(-math.expm1(7 * math.log1p(-0.5 * erfc(5 / math.sqrt(2)))))
