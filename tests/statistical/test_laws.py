"""Every law of lossless multiple release passes one set of checks, at fixed seeds, and planted faults do not.

The checks and what they are based on: tests/statistical/lossless_checks.py.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest

from dpsql.errors import ReleaseError
from dpsql.noise.entropy import Entropy
from dpsql.noise.gaussian_laws import CorrelatedGaussianLaw, GaussianLaw
from dpsql.noise.law import Law, Values
from dpsql.noise.laws import LAWS
from tests.deterministic_entropy import SeededEntropy
from tests.statistical.lossless_checks import (
    CASES,
    CORRELATED,
    DRAWS,
    RHOS,
    STEPS,
    Case,
    Levels,
    Points,
    Samples,
    estimator_p,
    gaussian_cdf,
    law_p,
    marginal_p,
    of_variance,
    released,
    second_moments_p,
    taken,
)

pytestmark = pytest.mark.statistical

# The chance to stay and the scale of the jump.
Lazy = tuple[float, float]
# The true law falls below this with probability 1e-4 per test; the planted faults fall far below it.
ACCEPTED = 1e-4
CAUGHT = 1e-9
# Their four hundred thousand draws take most of a second; the discrete Laplace law is drawn by the same code.
SLOW = {"laplace", "exponential"}
by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


# --- The laws pass ---------------------------------------------------------------------------------------------------


def test_every_law_is_checked() -> None:
    assert {case.name for case in CASES} == set(LAWS)


@by_case
def test_points_have_the_lossless_law(case: Case) -> None:
    """An order with every kind of step: draw, up, bridge, down."""
    assert law_p(case, taken(case.levels, 1, 3, 2, 0)) > ACCEPTED


@by_case
@pytest.mark.parametrize("places", [(0, 1, 2, 3), (3, 2, 1, 0), (0, 3, 1, 2)])
def test_a_few_orders_have_the_same_law(case: Case, places: tuple[int, ...]) -> None:
    """All up, all down, and two bridges in a row, with fewer draws."""
    fewer = case.with_keys(case.keys // 10)
    assert law_p(fewer, taken(case.levels, *places), seed=6) > ACCEPTED


@pytest.mark.long
@by_case
@pytest.mark.parametrize("places", list(permutations(range(4))))
def test_all_orders_have_the_same_law(case: Case, places: tuple[int, ...]) -> None:
    assert law_p(case, taken(case.levels, *places), seed=7) > ACCEPTED


# --- The planted faults are caught -----------------------------------------------------------------------------------


class Wrapped:
    """A law with one step replaced."""

    def __init__(self, law: Law) -> None:
        self.law = law

    def __getattr__(self, name: str) -> object:
        return getattr(self.law, name)


class SwappedBridge(Wrapped):
    def bridge(
        self, low: Values, low_level: Fraction, high: Values, high_level: Fraction, level: Fraction, entropy: Entropy
    ) -> Values:
        return self.law.bridge(high, low_level, low, high_level, level, entropy)


class FreshUpStep(Wrapped):
    """Forgets the point there is: independent releases."""

    def step_up(self, values: Values, level: Fraction, higher: Fraction, exact: Values, entropy: Entropy) -> Values:
        return self.law.draw(exact, higher, entropy)


class UndividedUpStep(Wrapped):
    """Adds up the inverse-variance weighted values and forgets to divide by their sum."""

    def step_up(self, values: Values, level: Fraction, higher: Fraction, exact: Values, entropy: Entropy) -> Values:
        fresh = self.law.draw(exact, higher - level, entropy)
        return np.rint(values * float(level) + fresh * float(higher - level)).astype(np.int64)


class NoiseOfTheLowerLevel(Wrapped):
    """Steps down by the lower level's noise instead of the difference."""

    def step_down(self, values: Values, level: Fraction, lower: Fraction, entropy: Entropy) -> Values:
        return self.law.draw(values, lower, entropy)


class ContinuousLemma(Wrapped):
    """Lemma F.5 in floating-point numbers: corrected, it is what the lattice law has to agree with; printed, a fault.

    X1 is the step from Y_b2 to Y_b. As printed, X1 has the chance and scale of no step of the process; `first` tells
    whether the new point is Y_b2 + X1 or Y_b2 + X2, either of which the text could mean.
    """

    def __init__(self, law: Law, *, printed: bool, first: bool) -> None:
        super().__init__(law)
        self.printed, self.first, self.rng = printed, first, np.random.Generator(np.random.Philox(3))

    def bridge(
        self, low: Values, low_level: Fraction, high: Values, high_level: Fraction, level: Fraction, entropy: Entropy
    ) -> Values:
        b1, b, b2 = (STEPS / float(one) for one in (low_level, level, high_level))
        if self.printed:
            first, second = (b**2 / b1**2, b), (b2**2 / b**2, b2)
        else:
            first, second = (b2**2 / b**2, b), (b**2 / b1**2, b1)
        whole = (low - high).astype(np.float64)
        part = first_part(np.abs(whole), first, second, self.rng) * np.sign(whole)
        return high + np.rint(part if self.first else whole - part).astype(np.int64)


def first_part(k: Samples, first: Lazy, second: Lazy, rng: np.random.Generator) -> Samples:
    """X1 given X1 + X2 = k >= 0, each 0 with its chance and else Laplace of its scale: equation 3 of the paper."""
    (mu1, s1), (mu2, s2) = first, second
    masses = np.array(
        [
            mu1 * (1 - mu2) * np.exp(-k / s2) / (2 * s2),
            (1 - mu1) * mu2 * np.exp(-k / s1) / (2 * s1),
            (1 - mu1) * (1 - mu2) * (s1 * np.exp(-k / s1) - s2 * np.exp(-k / s2)) / (2 * (s1**2 - s2**2)),
        ]
    )
    place = (rng.random(k.size) * masses.sum(axis=0) > np.cumsum(masses, axis=0)).sum(axis=0)
    # The third is the density proportional to exp(-|x| / s1 - |k - x| / s2), in three pieces.
    s, d = 1 / s1 + 1 / s2, 1 / s2 - 1 / s1
    pieces = np.array([np.exp(-k / s2) / s, (np.exp(-k / s1) - np.exp(-k / s2)) / d, np.exp(-k / s1) / s])
    piece = (rng.random(k.size) * pieces.sum(axis=0) > np.cumsum(pieces, axis=0)).sum(axis=0)
    outside = rng.exponential(1 / s, k.size)
    inside = k + np.log1p(rng.random(k.size) * np.expm1(-k * d)) / d
    both = np.choose(piece, [-outside, inside, k + outside])
    return np.where(k == 0, 0.0, np.choose(place, [np.zeros_like(k), k, both]))


def faulty(case: Case, law: object) -> Case:
    return replace(case, law=law)  # type: ignore[arg-type]


def caught(case: Case, *places: int) -> bool:
    """Whether the checks reject, or the law itself refuses the points."""
    try:
        return law_p(case, taken(case.levels, *places)) < CAUGHT
    except ReleaseError:
        return True


@by_case
def test_a_bridge_with_swapped_ends_is_caught(case: Case) -> None:
    assert caught(faulty(case.with_keys(case.keys // 10), SwappedBridge(case.law)), 0, 3, 2, 1)


@by_case
def test_releases_that_are_independent_are_caught(case: Case) -> None:
    fewer = case.with_keys(case.keys // 10)
    assert caught(faulty(fewer, FreshUpStep(case.law)), 0, 1, 2, 3)
    # The estimator check alone sees it: independent points say more together than the best of them.
    points = released(faulty(fewer, FreshUpStep(case.law)), fewer.levels, 5)
    assert estimator_p(points, fewer) < CAUGHT


@by_case
def test_a_step_down_by_too_much_noise_is_caught(case: Case) -> None:
    assert caught(faulty(case.with_keys(case.keys // 10), NoiseOfTheLowerLevel(case.law)), 3, 2, 1, 0)


@pytest.mark.parametrize("case", CASES[:2], ids=lambda case: case.name)
def test_an_up_step_without_division_is_caught(case: Case) -> None:
    # At the highest level of all the weights would add up to 1: the last step has to end elsewhere.
    moved = replace(case, levels=tuple(level / 2 for level in case.levels))
    assert caught(faulty(moved.with_keys(case.keys // 5), UndividedUpStep(case.law)), 0, 1, 2, 3)


@pytest.mark.parametrize(("printed", "first"), [(False, True), (True, True), (True, False)])
def test_lemma_f5_corrected_passes_and_as_printed_is_caught(printed: bool, first: bool) -> None:
    case = next(case for case in CASES if case.name == "laplace").with_keys(DRAWS // 2)
    lemma = faulty(case, ContinuousLemma(case.law, printed=printed, first=first))
    p = law_p(lemma, taken(case.levels, 0, 3, 2, 1))
    assert p < CAUGHT if printed else p > ACCEPTED


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[pytest.mark.long] * (case.name in SLOW)) for case in CASES],
)
def test_a_variance_three_percent_low_is_caught(case: Case) -> None:
    """Of the draw alone, by its marginal law; with the level that has the right variance the same check passes."""
    level, more = case.levels[0], case.with_keys(4 * case.keys)

    def p_of(drawn_at: Fraction) -> float:
        noise = case.law.draw(more.exact, drawn_at, SeededEntropy(8)) - more.exact
        return marginal_p(case.independent(noise), case, level)

    assert p_of(level) > ACCEPTED
    assert p_of(case.three_percent_low(level)) < CAUGHT


# --- The common term -------------------------------------------------------------------------------------------------

COMMON_KEYS, COMMON_RELEASES = 16, 700
OWN_AND_COMMON = Case(
    "common term",
    CORRELATED,
    RHOS,
    gaussian_cdf,
    of_variance,
    lambda noise: np.array([noise.mean()]),
    float((CORRELATED.correlation + Fraction(1, COMMON_KEYS)) / (1 + CORRELATED.correlation)),
).with_keys(COMMON_KEYS)


def common_terms(case: Case, order: Levels) -> Points:
    """Means over the keys, one for each of many cascades: the common term and 1/16 of the own variance."""
    drawn = [released(case, order, seed) for seed in range(COMMON_RELEASES)]
    return {level: np.concatenate([points[level] for points in drawn]) for level in case.levels}


def common_p(case: Case, order: Levels) -> float:
    points = common_terms(case, order)
    found = [marginal_p(points[level], case, level) for level in case.levels]
    found += [*second_moments_p(points, case), estimator_p(points, case)]
    return min(1.0, len(found) * min(found))


class CommonTermPerKey(Wrapped):
    """Steps of independent noise of the right variance for each key."""

    def __init__(self, law: CorrelatedGaussianLaw) -> None:
        self.independent = GaussianLaw(law.sensitivity * Fraction(math.sqrt(1 + law.correlation)))
        super().__init__(law)

    def bridge(
        self, low: Values, low_level: Fraction, high: Values, high_level: Fraction, level: Fraction, entropy: Entropy
    ) -> Values:
        return self.independent.bridge(low, low_level, high, high_level, level, entropy)


def test_the_common_term_follows_the_same_law() -> None:
    assert common_p(OWN_AND_COMMON, taken(RHOS, 1, 3, 2, 0)) > ACCEPTED


def test_a_bridge_with_a_common_term_per_key_is_caught() -> None:
    assert common_p(faulty(OWN_AND_COMMON, CommonTermPerKey(CORRELATED)), taken(RHOS, 0, 3, 1, 2)) < CAUGHT
