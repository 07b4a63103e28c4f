"""The rule for what follows a first round of key selection, against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpsql.features.auto_choices import Floats
from dpsql.features.first_round import AfterFirst, Found, Spread, Step, spread_of
from dpsql.model.frame import Bounding
from dpsql.plan.features.auto import candidates

RHO = 0.02
SECOND, NUMBERS = 0.54 * RHO, 0.4 * RHO


def histogram(groups: dict[int, int]) -> Floats:
    """Return numbers of units by the places of `candidates`."""
    ends = candidates(1024)
    units = np.zeros(len(ends))
    for number, count in groups.items():
        units[ends.index(number)] = count
    return units


def rule(groups: dict[int, int], most: int, presence: float = 1.0, *, is_open: bool = True) -> AfterFirst:
    """Return the rule for units by their number of groups."""
    spread = spread_of(histogram(groups), 1.0, candidates(1024), 64, Bounding(most, 2 * most))
    assert spread is not None
    return AfterFirst(spread, math.sqrt(most), presence, SECOND, NUMBERS, is_open)


def test_units_spread_their_weight_over_their_groups() -> None:
    """In a round sqrt(1 / n) each; in numbers 1, or sqrt(4 / n) in at most 8 groups."""
    groups = {1: 1_000, 4: 400, 6: 300, 16: 100}
    found = spread_of(histogram(groups), 1.0, candidates(1024), 64, Bounding(4, 8))
    pairs = 1_000 + 1_600 + 1_800 + 1_600
    weight = 1_000 + 400 * 2.0 + 300 * math.sqrt(6) + 100 * 4.0
    kept = 1_000 + 1_600 + 300 * 6 * math.sqrt(4 / 6) + 100 * 8 * math.sqrt(4 / 8)
    assert found is not None
    assert (found.weight, found.in_round, found.in_numbers) == pytest.approx((weight, weight / pairs, kept / pairs))
    upto = np.array([one for one in candidates(1024) if one <= 16], dtype=float)
    assert found.sigma == pytest.approx(math.sqrt(upto.sum()))
    assert spread_of(np.zeros(len(candidates(1024))), 1.0, candidates(1024), 64, Bounding(4, 8)) is None


@pytest.mark.parametrize("groups", [2, 6, 16])
@pytest.mark.parametrize("found", [0.0, 0.3, 0.6, 0.9])
def test_one_threshold_needs_no_more_units_for_a_key(groups: int, found: float) -> None:
    """Units in as many groups each: brute force over both, with found keys out of the way of the rounds."""
    after = rule({groups: 5_000}, groups)
    weight = after.spread.weight
    left = groups * (1.0 - found)
    by_rounds = math.sqrt(left) / math.sqrt(2.0 * SECOND)
    by_threshold = math.sqrt(groups) / math.sqrt(2.0 * (SECOND + NUMBERS))
    step = after.step(Found(found * weight, 1.0, 0))
    assert step == (Step.THRESHOLD if by_threshold <= by_rounds else Step.ROUNDS)


@pytest.mark.parametrize("keys", [1, 10, 100, 1_000])
def test_what_is_lost_is_less_than_the_noise_that_is_saved(keys: int) -> None:
    """A tenth of the weight is missing, so that rounds would need fewer units."""
    after = rule({6: 5_000}, 6)
    lost = 0.5 * 0.1 * 5_000 * 6
    sigmas = [math.sqrt(6.0 / (2.0 * rho)) for rho in (NUMBERS, SECOND + NUMBERS)]
    saved = keys * math.sqrt(2.0 / math.pi) * (sigmas[0] - sigmas[1])
    found = Found(0.9 * after.spread.weight, 1.0, keys)
    assert after.step(found) == (Step.THRESHOLD if lost < saved else Step.ROUNDS)
    # a share that finds few keys by its count of units leaves numbers alone
    small = rule({6: 5_000}, 6, presence=1.0 / 16.0)
    assert small.step(found) == (Step.NUMBERS if lost < saved else Step.ROUNDS)


def test_a_named_mechanism_and_a_limit_keep_rounds() -> None:
    closed = rule({6: 5_000}, 6, is_open=False)
    weight = closed.spread.weight
    assert closed.step(Found(0.0, 1.0, 0)) == Step.ROUNDS
    assert closed.step(Found(0.9 * weight, 1.0, 10_000)) == Step.ROUNDS
    assert closed.step(Found(weight - 1.0, 1.0, 3)) == Step.NUMBERS


def test_noise_in_both_weights_counts() -> None:
    spread = Spread(1_000.0, 30.0, 0.5, 1.0)
    after = AfterFirst(spread, 2.0, 1.0, SECOND, NUMBERS, is_open=False)
    assert after.step(Found(901.0, 40.0, 3)) == Step.NUMBERS
    assert after.step(Found(899.0, 40.0, 3)) == Step.ROUNDS
