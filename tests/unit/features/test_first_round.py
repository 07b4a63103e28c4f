"""The rule for what follows a first round of key selection, against brute force."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from dpsql.features.auto_choices import Floats
from dpsql.features.first_round import AfterFirst, Spread, Step, spread_of
from dpsql.model.frame import Bounding
from dpsql.plan.features.auto import candidates
from dpsql.release.round_keys import Found

FIRST, SECOND, NUMBERS = 0.06 * 0.02, 0.54 * 0.02, 0.4 * 0.02


def histogram(groups: dict[int, int]) -> Floats:
    """Return numbers of units by the places of `candidates`."""
    ends = candidates(1024)
    units = np.zeros(len(ends))
    for number, count in groups.items():
        units[ends.index(number)] = count
    return units


def rule(groups: dict[int, int], most: int, *, is_open: bool = True, by_threshold: bool = True) -> AfterFirst:
    """Return the rule for counts of units by their number of groups."""
    spread = spread_of(histogram(groups), 1.0, candidates(1024), 64, Bounding(most, 2 * most))
    assert spread is not None
    size = math.sqrt(most) / spread.in_numbers
    return AfterFirst(spread, size, size if by_threshold else None, FIRST, SECOND, NUMBERS, is_open)


def released(after: AfterFirst, sizes: Floats) -> tuple[Found, dict[Step, float]]:
    """Return the keys of these sizes that a round without noise finds, and the error of each step by brute force."""
    weights = sizes * after.spread.in_round
    threshold = 6.0 / math.sqrt(2.0 * FIRST)
    found = weights[weights > threshold]
    left = 1.0 - found.sum() / weights.sum()
    by_rounds = 6.0 / math.sqrt(2.0 * SECOND) * math.sqrt(left)
    by_threshold = 6.0 / math.sqrt(2.0 * (SECOND + NUMBERS)) * after.size * after.spread.in_round
    errors = {}
    for step, least, rho in (
        (Step.ROUNDS, by_rounds, NUMBERS),
        (Step.NUMBERS, math.inf, SECOND + NUMBERS),
        (Step.THRESHOLD, by_threshold, SECOND + NUMBERS),
    ):
        shown = weights > min(least, threshold)
        noise = math.sqrt(2.0 / math.pi) * after.size / math.sqrt(2.0 * rho)
        errors[step] = float(np.where(shown, noise, sizes).sum())
    return Found(float(found.sum()), 1.0, len(found), float(np.log(found / threshold).sum())), errors


def test_units_spread_their_weight_over_their_groups() -> None:
    """In a round sqrt(1 / n) each; in numbers 1, or sqrt(4 / n) in at most 8 groups."""
    groups = {1: 1_000, 4: 400, 6: 300, 16: 100}
    found = spread_of(histogram(groups), 1.0, candidates(1024), 64, Bounding(4, 8))
    pairs = 1_000 + 1_600 + 1_800 + 1_600
    weight = 1_000 + 400 * 2.0 + 300 * math.sqrt(6) + 100 * 4.0
    kept = 1_000 + 1_600 + 300 * 6 * math.sqrt(4 / 6) + 100 * 8 * math.sqrt(4 / 8)
    assert found is not None
    told = (found.weight, found.groups, found.in_round, found.in_numbers)
    assert told == pytest.approx((weight, pairs / 1_800, weight / pairs, kept / pairs))
    upto = np.array([one for one in candidates(1024) if one <= 16], dtype=float)
    assert found.sigma == pytest.approx(math.sqrt(upto.sum()))
    assert spread_of(np.zeros(len(candidates(1024))), 1.0, candidates(1024), 64, Bounding(4, 8)) is None


def equal(keys: int, pairs: float) -> Floats:
    return np.full(keys, pairs / keys, dtype=np.float64)


def by_rank(keys: int, pairs: float) -> Floats:
    ranks = np.arange(1.0, keys + 1.0)
    sizes: Floats = pairs / ranks / (1.0 / ranks).sum()
    return sizes


@pytest.mark.parametrize("groups", [3, 8, 20])
@pytest.mark.parametrize("units", [1_000, 10_000, 60_000])
@pytest.mark.parametrize("sizes", [equal, by_rank])
@pytest.mark.parametrize("keys", [30, 200, 1_000])
def test_the_step_is_the_best_or_nearly_so(
    groups: int, units: int, sizes: Callable[[int, float], Floats], keys: int
) -> None:
    """Of the three steps by brute force, on tables of equal keys and of keys that fall as 1/rank."""
    after = rule({groups: units}, groups)
    found, errors = released(after, sizes(keys, float(groups * units)))
    assert errors[after.step(found)] <= 1.15 * min(errors.values())


def test_the_check_finds_a_rule_that_keeps_rounds() -> None:
    after = rule({8: 10_000}, 8)
    found, errors = released(after, equal(500, 80_000.0))
    assert after.step(found) == Step.THRESHOLD
    assert errors[Step.ROUNDS] > 1.4 * errors[Step.THRESHOLD]


def test_a_named_mechanism_and_a_limit_keep_rounds() -> None:
    closed = rule({6: 5_000}, 6, is_open=False)
    weight = closed.spread.weight
    assert closed.step(Found(0.0, 1.0, 0, 0.0)) == Step.ROUNDS
    assert closed.step(Found(0.9 * weight, 1.0, 10_000, 0.0)) == Step.ROUNDS
    assert closed.step(Found(weight - 1.0, 1.0, 3, 1.0)) == Step.NUMBERS


def test_without_a_number_that_shows_keys_there_is_no_threshold() -> None:
    after = rule({8: 10_000}, 8, by_threshold=False)
    found, _ = released(after, equal(200, 80_000.0))
    assert after.errors(found).keys() == {Step.ROUNDS, Step.NUMBERS}


def test_noise_in_both_weights_counts() -> None:
    spread = Spread(1_000.0, 30.0, 4.0, 0.5, 1.0)
    after = AfterFirst(spread, 2.0, None, FIRST, SECOND, NUMBERS, is_open=False)
    assert after.step(Found(901.0, 40.0, 3, 1.0)) == Step.NUMBERS
    assert after.step(Found(899.0, 40.0, 3, 1.0)) == Step.ROUNDS
