"""Exact parts of the negative binomial samplers: bounds that hold, results in order, bad input refused."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpsql.errors import CalibrationError, DpsqlError, ReleaseError
from dpsql.noise.divisible.compound_poisson import logarithmic_law
from dpsql.noise.divisible.exponential_powers import failure_powers, success_powers
from dpsql.noise.divisible.many_negative_binomials import draw_dirichlet_multinomials, draw_many
from dpsql.noise.divisible.negative_binomial import draw_negative_binomials
from tests.deterministic_entropy import ScriptedEntropy, SeededEntropy

GAMMAS = [Fraction(1, 1 << 50), Fraction(3, 7), Fraction(9), Fraction(34)]
ONE = Fraction(1)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("digits", [64, 192])
def test_powers_lie_between_their_bounds(gamma: Fraction, digits: int) -> None:
    with mpmath.workdps(120):
        success = mpmath.exp(-mpmath.mpf(gamma.numerator) / gamma.denominator)
        for doublings in (0, 1, 8):
            for powers, base in ((success_powers, success), (failure_powers, 1 - success)):
                below, above = powers(gamma, doublings, digits)
                assert below <= base ** (2**doublings) * 2**digits <= above <= below + 3


@pytest.mark.parametrize("gamma", GAMMAS[1:])
@pytest.mark.parametrize("digits", [64, 192])
def test_blocks_lie_between_their_bounds(gamma: Fraction, digits: int) -> None:
    below, above = logarithmic_law(gamma)._block_borders(digits)
    with mpmath.workdps(120):
        failure = 1 - mpmath.exp(-mpmath.mpf(gamma.numerator) / gamma.denominator)
        weights = [failure ** (2**block) for block in range(80)]
        total, passed = sum(weights), mpmath.mpf(0)
        for block, (low, high) in enumerate(zip(below, above, strict=True)):
            passed += weights[block]
            assert low <= passed / total * 2**digits <= high <= low + 2
    assert above[-1] == 1 << digits


def test_results_are_sorted_and_have_no_pair_twice() -> None:
    drawn = draw_many(Fraction(2, 3), Fraction(1, 2), 5, 200, SeededEntropy(1))
    pairs = drawn.owner * 5 + drawn.kind
    assert (np.diff(pairs) > 0).all()
    assert drawn.number.min() >= 1
    assert set(drawn.kind) == set(range(5))


def test_an_urn_puts_back_what_it_gave_out_and_more() -> None:
    """Two kinds of one ball each, three added: balls 2 to 4 belong to the first pick, 5 to 7 to the second."""
    drawn = draw_dirichlet_multinomials(np.array([0, 4]), 2, Fraction(1, 3), ScriptedEntropy([1, 2, 0, 5 + 11]))
    assert [part.tolist() for part in drawn] == [[1, 1], [0, 1], [1, 3]]


@pytest.mark.parametrize(("shape", "gamma"), [(ONE, Fraction(1, 9)), (Fraction(1, 2), Fraction(9))])
def test_nothing_is_drawn_for_nobody(shape: Fraction, gamma: Fraction) -> None:
    assert draw_negative_binomials(shape, gamma, 0, SeededEntropy(1)).tolist() == []
    assert [part.size for part in draw_many(shape, gamma, 3, 0, SeededEntropy(1))] == [0, 0, 0]


@pytest.mark.parametrize(
    ("shape", "gamma", "kinds", "count", "error", "said"),
    [
        (Fraction(0), ONE, 1, 1, CalibrationError, "the shape must be a Fraction above 0"),
        (0.5, ONE, 1, 1, CalibrationError, "the shape must be a Fraction above 0"),
        (Fraction(1, 10**6 + 1), ONE, 1, 1, CalibrationError, "the denominator of the shape must be at most"),
        (ONE, Fraction(0), 1, 1, CalibrationError, "gamma must be a Fraction from"),
        (ONE, Fraction(35), 1, 1, CalibrationError, "gamma must be a Fraction from"),
        (ONE, float("nan"), 1, 1, CalibrationError, "gamma must be a Fraction from"),
        (Fraction(10**6), ONE, 2, 1, CalibrationError, "shape [*] gamma must be at most"),
        (ONE, ONE, 0, 1, CalibrationError, "the number of kinds must be a whole number from 1"),
        (ONE, ONE, True, 1, CalibrationError, "the number of kinds must be a whole number from 1"),
        (ONE, ONE, 1, -1, ReleaseError, "cannot be negative"),
    ],
)
def test_bad_input_is_refused(
    shape: Fraction, gamma: Fraction, kinds: int, count: int, error: type[DpsqlError], said: str
) -> None:
    entropy = ScriptedEntropy([])
    with pytest.raises(error, match=said):
        draw_many(shape, gamma, kinds, count, entropy)


@pytest.mark.parametrize(
    ("totals", "kinds", "alpha", "said"),
    [
        ([1], 0, ONE, "the number of kinds"),
        ([1], 1, Fraction(-1), "alpha must be"),
        ([-1], 1, ONE, "negative total"),
        ([1], 1 << 20, Fraction(1 << 43), "more than 2[*][*]62 balls"),
    ],
)
def test_a_bad_urn_is_refused(totals: list[int], kinds: int, alpha: Fraction, said: str) -> None:
    with pytest.raises(DpsqlError, match=said):
        draw_dirichlet_multinomials(np.array(totals), kinds, alpha, ScriptedEntropy([]))
