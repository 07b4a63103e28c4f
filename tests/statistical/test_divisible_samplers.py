"""Negative binomial samplers at up to a million draws of fixed seeds, against the exact law, with planted faults.

A true law falls below ACCEPTED with chance 1e-4 a check. The faults fall below CAUGHT.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpsql.noise.divisible import compound_poisson, many_negative_binomials, negative_binomial
from dpsql.noise.divisible.compound_poisson import draw_compound_poisson
from dpsql.noise.divisible.many_negative_binomials import draw_dirichlet_multinomials, draw_many
from dpsql.noise.divisible.negative_binomial import draw_negative_binomials
from dpsql.noise.entropy import Entropy, Flags, Integers
from tests.deterministic_entropy import SeededEntropy

pytestmark = pytest.mark.statistical

ACCEPTED, CAUGHT = 1e-4, 1e-9
DRAWS = 1_000_000
HALF = Fraction(math.log(2))
"""gamma at which a trial succeeds with chance 1/2."""
THIRD, THREE_HALVES = Fraction(1, 3), Fraction(3, 2)

Sampler = Callable[[Fraction, Fraction, int, Entropy], Integers]


def p_value(drawn: Integers, shape: Fraction, gamma: Fraction) -> float:
    """Chi-square against NB(shape, e^-gamma), in about 40 cells of at least 20 expected draws."""
    law = stats.nbinom(float(shape), math.exp(-gamma))
    shares = np.concatenate([np.linspace(0, 1, 41)[1:-1], 1 - np.geomspace(0.02, 50 / drawn.size, 12)])
    ends = np.unique(law.ppf(shares)).astype(np.int64)
    expected = drawn.size * np.diff(np.concatenate([[0.0], law.cdf(ends), [1.0]]))
    return chi_square_p(np.bincount(np.searchsorted(ends, drawn), minlength=ends.size + 1), expected)


def chi_square_p(observed: Integers, expected: NDArray[np.float64]) -> float:
    """Return the p-value, with all cells of fewer than 20 expected draws as one."""
    rare = expected < 20
    seen = np.append(observed[~rare], observed[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    return float(stats.chisquare(seen[wanted > 0], wanted[wanted > 0], sum_check=False).pvalue)


LAWS = [
    (draw_negative_binomials, Fraction(1), Fraction(1, 7)),
    (draw_negative_binomials, Fraction(40), Fraction(1, 100)),
    (draw_negative_binomials, Fraction(1, 1000), HALF),
    (draw_negative_binomials, Fraction(1, 50), Fraction(8)),
    (draw_compound_poisson, THIRD, HALF),
    (draw_compound_poisson, THREE_HALVES, HALF),
    (draw_compound_poisson, Fraction(1, 40), Fraction(34)),
]


@pytest.mark.parametrize("shape", [THIRD, THREE_HALVES])
def test_a_variate_of_a_fair_coin_has_its_law(shape: Fraction) -> None:
    assert p_value(draw_negative_binomials(shape, HALF, DRAWS, SeededEntropy(1)), shape, HALF) > ACCEPTED


@pytest.mark.parametrize(("sampler", "shape", "gamma"), LAWS)
@pytest.mark.parametrize("draws", [50_000, pytest.param(DRAWS, marks=pytest.mark.long)])
def test_a_variate_has_its_law(sampler: Sampler, shape: Fraction, gamma: Fraction, draws: int) -> None:
    assert p_value(sampler(shape, gamma, draws, SeededEntropy(1)), shape, gamma) > ACCEPTED


@pytest.mark.parametrize(
    ("parties", "draws"),
    [(2, 100_000), (7, 30_000), (1000, 1000), *(pytest.param(n, 50_000, marks=pytest.mark.long) for n in (2, 7, 1000))],
)
@pytest.mark.parametrize("shape", [THIRD, THREE_HALVES])
def test_shares_add_up_to_the_whole(parties: int, draws: int, shape: Fraction) -> None:
    shares = draw_negative_binomials(shape / parties, HALF, draws * parties, SeededEntropy(2))
    assert p_value(shares.reshape(parties, draws).sum(axis=0), shape, HALF) > ACCEPTED


@pytest.mark.parametrize(("shape", "fault"), [(THIRD, Fraction(51, 50)), (THREE_HALVES, Fraction(49, 50))])
def test_a_shape_that_is_off_by_a_fiftieth_is_caught(shape: Fraction, fault: Fraction) -> None:
    assert p_value(draw_negative_binomials(shape * fault, HALF, DRAWS, SeededEntropy(3)), shape, HALF) < CAUGHT


@pytest.mark.parametrize("shape", [THIRD, THREE_HALVES])
def test_a_missing_rejection_is_caught(shape: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    def all_kept(proposed: Integers, _: Fraction, __: Entropy) -> Flags:
        return np.ones(proposed.size, dtype=np.bool_)

    monkeypatch.setattr(negative_binomial, "_accepted", all_kept)
    assert p_value(draw_negative_binomials(shape, HALF, DRAWS // 10, SeededEntropy(4)), shape, HALF) < CAUGHT


@pytest.mark.parametrize("step", ["_start_reached", "_survives"])
def test_a_missing_rejection_of_a_jump_is_caught(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, gamma = THREE_HALVES, Fraction(3)
    place, kept = {
        "_start_reached": (compound_poisson, lambda start, *_: np.ones(start.size, dtype=np.bool_)),
        "_survives": (compound_poisson.LogarithmicLaw, lambda _, steps, __: np.arange(steps.size)),
    }[step]
    monkeypatch.setattr(place, step, kept)
    assert p_value(draw_compound_poisson(shape, gamma, DRAWS // 10, SeededEntropy(4)), shape, gamma) < CAUGHT


def joint_p_value(shape: Fraction, gamma: Fraction, kinds: int, seed: int, owners: int = DRAWS // 10) -> float:
    """Chi-square of the joint law of all kinds of one owner: each cell holds one vector of counts, up to 4 each."""
    most = 5
    drawn = np.zeros((owners, kinds), dtype=np.int64)
    owner, kind, number = draw_many(shape, gamma, kinds, owners, SeededEntropy(seed))
    drawn[owner, kind] = number
    law = stats.nbinom(float(shape), math.exp(-gamma))
    single = np.append(law.pmf(np.arange(most)), law.sf(most - 1))
    expected = np.array([math.prod(single[list(cell)]) for cell in itertools.product(range(most + 1), repeat=kinds)])
    cell = np.ravel_multi_index(tuple(np.minimum(drawn, most).T), (most + 1,) * kinds)
    return chi_square_p(np.bincount(cell, minlength=expected.size), expected * owners)


@pytest.mark.parametrize("shape", [THIRD, THREE_HALVES])
@pytest.mark.parametrize("owners", [DRAWS // 10, pytest.param(DRAWS, marks=pytest.mark.long)])
def test_many_variates_have_their_joint_law(shape: Fraction, owners: int) -> None:
    assert joint_p_value(shape, HALF, 3, seed=5, owners=owners) > ACCEPTED


def test_a_total_of_one_variate_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_one(shape: Fraction, gamma: Fraction, count: int, entropy: Entropy) -> Integers:
        return draw_negative_binomials(shape / 3, gamma, count, entropy)

    monkeypatch.setattr(many_negative_binomials, "draw_negative_binomials", of_one)
    assert joint_p_value(THREE_HALVES, HALF, 3, seed=6) < CAUGHT


def test_an_urn_without_added_balls_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def fixed_urn(totals: Integers, kinds: int, alpha: Fraction, entropy: Entropy) -> object:
        return draw_dirichlet_multinomials(totals, kinds, 1000 * alpha, entropy)

    monkeypatch.setattr(many_negative_binomials, "draw_dirichlet_multinomials", fixed_urn)
    assert joint_p_value(THREE_HALVES, HALF, 3, seed=7) < CAUGHT


def test_few_of_many_variates_are_drawn_evenly() -> None:
    """At 100,000 kinds of epsilon 12: the law of a kind's count, and the same chance for every kind."""
    kinds, owners, gamma = 100_000, 200_000, Fraction(-math.log1p(-math.exp(-12)))
    drawn = draw_many(Fraction(1), gamma, kinds, owners, SeededEntropy(8))
    totals = np.zeros(owners, dtype=np.int64)
    np.add.at(totals, drawn.owner, drawn.number)
    assert p_value(totals, Fraction(kinds), gamma) > ACCEPTED
    assert stats.chisquare(np.bincount(drawn.kind * 100 // kinds, minlength=100)).pvalue > ACCEPTED
