"""Simulated zero counts against the exact joint law of three rounds, and against noise drawn for every key.

Every check below accepts what the law allows but once in 10,000 seeds, and catches Algorithm 6 as it is printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpsql.accounting.window import shown_once
from dpsql.noise.sparse_gradual import NANO, SparseGradual, SparseRound
from tests.deterministic_entropy import SeededEntropy

pytestmark = pytest.mark.statistical

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

ACCEPTED = 1e-4
CAUGHT = 1e-12
KEYS = 150_000
MAX_GROUPS = 2
# In units of UNIT nano-rho.
LEVELS = (2, 4, 7)
RISES = (2, 2, 3)
UNIT = NANO // 20
TAUS = (7.5, 4.6, 3.3)
BARS = tuple(math.floor(level * tau) for level, tau in zip(LEVELS, TAUS, strict=True))
VARIANCES = tuple(MAX_GROUPS * NANO / (2 * rise * UNIT) for rise in RISES)
FARTHEST = 32
BASE = 512


def noise_law(variance: float) -> Floats:
    weights = np.exp(-(np.arange(-FARTHEST, FARTHEST + 1) ** 2) / (2 * variance))
    return np.asarray(weights / weights.sum())


def coded(sums: tuple[Integers, ...]) -> Integers:
    """One integer for what a key shows in all rounds: 0 where it is hidden, else how far it is above the bar."""
    code = np.zeros(np.broadcast_shapes(*(total.shape for total in sums)), dtype=np.int64)
    for total, bar in zip(sums, BARS, strict=True):
        code = code * BASE + np.clip(total - bar, 0, BASE - 1)
    return code


@lru_cache(maxsize=4)
def exact_law(count: int) -> tuple[Integers, Floats]:
    """Codes and their probabilities for a key of this count, by enumeration of the noise of three rounds."""
    noise = np.arange(-FARTHEST, FARTHEST + 1) + count
    first = RISES[0] * noise[:, None, None]
    second = first + RISES[1] * noise[:, None]
    third = second + RISES[2] * noise
    one, two, three = map(noise_law, VARIANCES)
    chance = one[:, None, None] * two[:, None] * three
    codes, place = np.unique(coded((first, second, third)), return_inverse=True)
    return codes, np.bincount(place.ravel(), weights=chance.ravel()).astype(np.float64)


def shown_code(rounds: list[SparseRound], domain_size: int) -> Integers:
    """Codes of all keys from nothing but what was shown."""
    sums = []
    for shown, level, bar in zip(rounds, LEVELS, BARS, strict=True):
        scaled = shown.values * level
        assert np.abs(scaled - np.rint(scaled)).max(initial=0.0) < 1e-6
        total = np.full(domain_size, bar, dtype=np.int64)
        total[shown.keys] = np.rint(scaled).astype(np.int64)
        sums.append(total)
    return coded(tuple(sums))


def run(state: SparseGradual, seed: int) -> tuple[list[SparseRound], SparseGradual]:
    entropy = SeededEntropy(seed)
    rounds = []
    for level, tau in zip(LEVELS, TAUS, strict=True):
        shown, state = state.release(level * UNIT, tau, entropy)
        rounds.append(shown)
    return rounds, state


def empty() -> Integers:
    return np.empty(0, dtype=np.int64)


def simulated(seed: int) -> Integers:
    rounds, _ = run(SparseGradual.over(KEYS, empty(), empty(), max_groups=MAX_GROUPS), seed)
    return shown_code(rounds, KEYS)


def drawn_for_every_key(seed: int, count: int = 0) -> Integers:
    counts = np.full(KEYS, count, dtype=np.int64)
    rounds, _ = run(SparseGradual.over_every_key(counts, max_groups=MAX_GROUPS), seed)
    return shown_code(rounds, KEYS)


def listed(seed: int, count: int) -> Integers:
    """Every second key has a count; the others are simulated beside them and left out here."""
    keys = np.arange(0, 2 * KEYS, 2)
    state = SparseGradual.over(2 * KEYS, keys, np.full(KEYS, count, dtype=np.int64), max_groups=MAX_GROUPS)
    return shown_code(run(state, seed)[0], 2 * KEYS)[::2]


def chi_square_p(observed: Floats, expected: Floats) -> float:
    """Cells that expect fewer than 8 are taken together."""
    few = expected < 8
    cells = np.append(observed[~few], observed[few].sum()), np.append(expected[~few], expected[few].sum())
    kept = cells[1] > 0
    return float(stats.chisquare(cells[0][kept], cells[1][kept], sum_check=False).pvalue)


def joint_p(codes: Integers, count: int = 0) -> float:
    """The whole joint law of what one key shows in three rounds: when, and which values."""
    cells, chances = exact_law(count)
    place = np.searchsorted(cells, codes)
    assert (cells[np.minimum(place, cells.size - 1)] == codes).all()
    return chi_square_p(np.bincount(place, minlength=cells.size).astype(float), chances * codes.size)


def pattern(codes: Integers) -> Integers:
    first, second, third = codes // BASE**2 > 0, codes // BASE % BASE > 0, codes % BASE > 0
    return 4 * first + 2 * second + third


def pattern_p(codes: Integers, count: int = 0) -> float:
    """In which rounds a key is shown."""
    cells, chances = exact_law(count)
    expected = np.bincount(pattern(cells), weights=chances, minlength=8) * float(codes.size)
    return chi_square_p(np.bincount(pattern(codes), minlength=8).astype(float), expected.astype(float))


def first_shown(codes: Integers, turn: int) -> NDArray[np.bool_]:
    """Shown in this round and in none before: the leading bits of the pattern are 1, 01 or 001."""
    return np.asarray(pattern(codes) >> (2 - turn) == 1)


def value_p(codes: Integers, turn: int) -> float:
    """The value with which a key is shown for the first time, among those first shown in this round."""
    cells, chances = exact_law(0)
    kept = first_shown(cells, turn)
    values = cells // BASE ** (2 - turn) % BASE
    law = np.bincount(values[kept], weights=chances[kept], minlength=BASE)
    found = codes[first_shown(codes, turn)] // BASE ** (2 - turn) % BASE
    return chi_square_p(np.bincount(found, minlength=BASE).astype(float), law / law.sum() * found.size)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("draw", [simulated, drawn_for_every_key])
def test_zero_counts_have_the_exact_joint_law_of_three_rounds(draw: Callable[[int], Integers], seed: int) -> None:
    codes = draw(seed)
    assert joint_p(codes) > ACCEPTED
    assert pattern_p(codes) > ACCEPTED
    assert min(value_p(codes, turn) for turn in range(3)) > ACCEPTED / 3


@pytest.mark.parametrize("count", [1, 4])
def test_listed_counts_have_the_exact_joint_law(count: int) -> None:
    codes = listed(3, count)
    assert joint_p(codes, count) > ACCEPTED
    assert pattern_p(codes, count) > ACCEPTED
    # A unit more or less would be seen.
    assert pattern_p(codes, count - 1) < CAUGHT


def between(low: Floats, high: Floats, law: Floats, generator: np.random.Generator) -> Integers:
    """Noise from its law, given that the law's distribution function lies between."""
    place = np.searchsorted(np.cumsum(law), low + (high - low) * generator.random(low.size), side="right")
    return np.minimum(place, law.size - 1) - FARTHEST


def as_printed(seed: int, *, divided: bool) -> Integers:
    """Algorithm 6 as printed, with the right number of new keys: each step conditioned on its own bound alone."""
    generator = np.random.default_rng(seed)
    cells, chances = exact_law(0)
    laws = [noise_law(variance) for variance in VARIANCES]
    codes = []
    for turn in range(3):
        size = generator.binomial(KEYS, chances[first_shown(cells, turn)].sum())
        total, sums = np.zeros(size, dtype=np.int64), []
        for level in range(3):
            # The largest noise that keeps the sum at or below the bar.
            highest = np.clip((BARS[level] - total) // RISES[level] + FARTHEST, 0, 2 * FARTHEST)
            below = np.cumsum(laws[level])[highest]
            none, all_of_it = np.zeros(size), np.ones(size)
            low, high = (none, below) if level < turn else (below if level == turn else none, all_of_it)
            total = total + RISES[level] * between(low, high, laws[level], generator)
            sums.append(total if level >= turn else np.full(size, BARS[level]))
        published = [
            shown if divided else shown * level * UNIT // NANO for shown, level in zip(sums, LEVELS, strict=True)
        ]
        codes.append(coded(tuple(published)))
    hidden = np.zeros(KEYS - sum(code.size for code in codes), dtype=np.int64)
    return np.concatenate([*codes, hidden])


def test_algorithm_6_as_printed_is_caught() -> None:
    codes = as_printed(5, divided=True)
    # The first round is right, and so is how many keys are new; what they show is not.
    assert value_p(codes, 0) > ACCEPTED
    assert value_p(codes, 1) < CAUGHT
    assert value_p(codes, 2) < CAUGHT
    assert joint_p(codes) < CAUGHT
    assert pattern_p(codes) < ACCEPTED


def test_values_that_were_not_divided_by_rho_are_caught() -> None:
    codes = as_printed(5, divided=False)
    assert pattern_p(codes) < CAUGHT
    # Below the threshold a shown value gives away that its count is 0: here it counts as hidden altogether.
    assert (pattern(codes) == 0).mean() > 0.99


def support_sizes(seed: int, *, every_key: bool) -> Integers:
    """How many of 60 keys are first shown in each round, in 150 repetitions."""
    entropy = SeededEntropy(seed)
    sizes = []
    for _ in range(150):
        if every_key:
            state = SparseGradual.over_every_key(np.zeros(60, dtype=np.int64), max_groups=MAX_GROUPS)
        else:
            state = SparseGradual.over(60, empty(), empty(), max_groups=MAX_GROUPS)
        before, row = empty(), []
        for level, tau in zip(LEVELS, TAUS, strict=True):
            shown, state = state.release(level * UNIT, tau, entropy)
            row.append(np.setdiff1d(shown.keys, before).size)
            before = np.union1d(before, shown.keys)
        sizes.append(row)
    return np.array(sizes)


def sizes_p(sizes: Integers) -> float:
    """The multinomial law of the sizes: all of them together, and the last two of what the first leaves."""
    cells, chances = exact_law(0)
    chance = [float(chances[first_shown(cells, turn)].sum()) for turn in range(3)]
    left, unused, p_values = np.full(len(sizes), 60), 1.0, []
    for turn in range(3):
        share = chance[turn] / unused
        spread = ((sizes[:, turn] - left * share) ** 2 / (left * share * (1 - share))).sum()
        p_values.append(2 * min(stats.chi2.cdf(spread, len(sizes)), stats.chi2.sf(spread, len(sizes))))
        total = stats.binomtest(int(sizes[:, turn].sum()), int(left.sum()), share)
        p_values.append(total.pvalue)
        left, unused = left - sizes[:, turn], unused - chance[turn]
    return float(min(1.0, 6 * min(p_values)))


@pytest.mark.parametrize("every_key", [False, True])
def test_support_sizes_are_multinomial(every_key: bool) -> None:
    sizes = support_sizes(8, every_key=every_key)
    assert sizes_p(sizes) > ACCEPTED
    # Sizes that were drawn apart from each other, or always the expected ones.
    steady = np.tile(np.rint(sizes.mean(axis=0)).astype(np.int64), (len(sizes), 1))
    assert sizes_p(steady) < CAUGHT


def test_new_keys_are_uniform_among_the_untouched() -> None:
    taken = np.arange(0, KEYS, 3)
    counts = np.full(taken.size, 1000, dtype=np.int64)
    rounds, state = run(SparseGradual.over(KEYS, taken, counts, max_groups=MAX_GROUPS), 11)
    assert (np.diff(state.keys) > 0).all()
    new = np.setdiff1d(state.keys, taken)
    assert (state.counts[np.isin(state.keys, new)] == 0).all()
    places = np.bincount(new * 50 // KEYS, minlength=50)
    assert stats.chisquare(places).pvalue > ACCEPTED
    assert stats.chisquare(np.bincount(np.minimum(new, KEYS * 9 // 10) * 50 // KEYS, minlength=50)).pvalue < CAUGHT
    assert stats.chisquare(np.bincount(new % 3, minlength=3)[1:]).pvalue > ACCEPTED
    assert all(np.isin(taken, shown.keys).all() for shown in rounds)


def test_wide_noise_keeps_as_many_keys_as_the_recursion_over_levels_says() -> None:
    """Noise of hundreds of counts is all but continuous; the sum of tails, or independent rounds, would be caught."""
    levels, scores, max_groups = (10**8, 15 * 10**7, 4 * 10**8), (2.4, 2.3, 2.4), 10**5
    state, entropy = SparseGradual.over(1_000_000, empty(), empty(), max_groups=max_groups), SeededEntropy(12)
    for level, score in zip(levels, scores, strict=True):
        _, state = state.release(level, score * math.sqrt(max_groups * NANO / (2 * level)), entropy)

    def p_value(chance: float) -> float:
        return float(stats.binomtest(state.keys.size, state.domain_size, chance).pvalue)

    assert p_value(shown_once(tuple(map(float, levels)), scores)) > ACCEPTED
    assert p_value(-math.expm1(sum(math.log1p(-stats.norm.sf(score)) for score in scores))) < CAUGHT
