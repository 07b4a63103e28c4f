"""Draws whose probabilities are refined until they decide: exact borders, exact digits, exact thinning."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import partial
from itertools import product
from math import comb

import mpmath
import numpy as np
import pytest

from dpsql.errors import CalibrationError, ReleaseError
from dpsql.noise.refined_table import (
    Borders,
    GeometricLaw,
    RefinedTable,
    _digit_borders,
    _power,
    by_ratios,
    choice,
    coin,
    poisson,
    smaller_of_pair,
    thinned,
)
from tests.deterministic_entropy import ScriptedEntropy, SeededEntropy

WORD = 1 << 64


def borders_of(table: RefinedTable) -> Borders:
    return table._borders


def outcome(table: RefinedTable, *words: int) -> int:
    script = ScriptedEntropy(words)
    drawn = int(table.draw(1, script)[0])
    assert script.left == 0
    return drawn


def test_a_word_that_does_not_decide_is_refined() -> None:
    thirds = choice([Fraction(1), Fraction(1), Fraction(1)])
    border = WORD // 3
    assert outcome(thirds, border - 1) == 0
    assert outcome(thirds, border + 1) == 1
    # The border is 0.0101… in binary: the next word, and the one after it, decide.
    assert outcome(thirds, border, border - 1) == 0
    assert outcome(thirds, border, border + 1) == 1
    assert outcome(thirds, border, border, 2**63) == 1
    assert outcome(thirds, 2 * border + 1) == 2
    assert outcome(thirds, WORD - 1) == 2


def test_borders_that_are_binary_numbers_need_no_second_word() -> None:
    quarter = coin(Fraction(1, 4))
    assert [outcome(quarter, word) for word in (0, 3 * WORD // 4 - 1, 3 * WORD // 4, WORD - 1)] == [0, 0, 1, 1]
    assert outcome(coin(Fraction(1)), 0) == 1
    assert outcome(coin(Fraction(0)), WORD - 1) == 0


@pytest.mark.parametrize("weights", [[], [Fraction(0)], [Fraction(2), Fraction(-1)]])
def test_a_choice_without_a_law_is_refused(weights: list[Fraction]) -> None:
    with pytest.raises(CalibrationError):
        choice(weights)


def test_a_table_that_ends_too_early_is_refused() -> None:
    with pytest.raises(CalibrationError):
        RefinedTable(lambda digits: ([1], [2]))


@pytest.mark.parametrize("digits", [64, 128, 256])
@pytest.mark.parametrize("mean", [Fraction(1, 1000), Fraction(1), Fraction(37, 3), Fraction(900)])
def test_poisson_borders_hold_the_true_probabilities(mean: Fraction, digits: int) -> None:
    below, above = borders_of(by_ratios(lambda n: (mean.numerator, mean.denominator * n)))(digits)
    with mpmath.workdps(120):
        term = passed = mpmath.exp(-mpmath.mpf(mean.numerator) / mean.denominator)
        for outcome_, (low, high) in enumerate(zip(below[:-1], above[:-1], strict=True)):
            assert low <= min(passed, mpmath.mpf(1)) * 2**digits <= high
            # A border that is rounded apart by its guard digits alone is at most two units wide.
            assert high - low <= 2
            term = term * mean.numerator / (mean.denominator * (outcome_ + 1))
            passed += term
        assert below[-1] <= 2**digits * passed
    assert above[-1] == 2**digits
    assert below == sorted(below)
    assert above == sorted(above)


@pytest.mark.parametrize(("mean", "difference"), [(Fraction(1, 2), 0), (Fraction(50), 3), (Fraction(7, 3), 40)])
def test_bessel_borders_hold_the_true_probabilities(mean: Fraction, difference: int) -> None:
    square = mean * mean
    table = by_ratios(lambda n: (square.numerator, square.denominator * n * (n + difference)))
    below, above = borders_of(table)(128)
    with mpmath.workdps(80):
        total = mpmath.besseli(difference, 2 * mpmath.mpf(mean.numerator) / mean.denominator)
        passed = mpmath.mpf(0)
        for n, (low, high) in enumerate(zip(below[:-1], above[:-1], strict=True)):
            power = (mpmath.mpf(mean.numerator) / mean.denominator) ** (2 * n + difference)
            passed += power / mpmath.factorial(n) / mpmath.factorial(n + difference) / total
            assert low <= passed * mpmath.mpf(2) ** 128 <= high
            assert high - low <= 2


def test_a_law_too_wide_for_a_table_is_refused() -> None:
    with pytest.raises(CalibrationError):
        by_ratios(lambda n: (1 << 40, n))


@pytest.mark.parametrize("ratio", [Fraction(2, 3), Fraction(9, 10), Fraction(1, 7)])
def test_digits_of_a_geometric_variate_are_independent(ratio: Fraction) -> None:
    """The product of the digits' chances, and of the part above them, is the geometric law: rational arithmetic."""
    places = 3
    for x in range(24):
        mass = (1 - ratio**8) * ratio ** (8 * (x >> places))
        for place in range(places):
            power = ratio ** (1 << place)
            mass *= (power if x >> place & 1 else 1) / (1 + power)
        assert mass == (1 - ratio) * ratio**x


@pytest.mark.parametrize("ratio", [Fraction(2, 3), Fraction(12345, 12347)])
def test_digit_borders_hold_the_true_chances(ratio: Fraction) -> None:
    for place in range(6):
        zero = 1 / (1 + ratio ** (1 << place))
        for digits in (64, 192):
            below, above = _digit_borders(partial(_power, ratio), place, digits)
            assert below[0] <= zero * 2**digits <= above[0] <= below[0] + 1
            low, high = _power(ratio, place, digits)
            assert low <= ratio ** (1 << place) * 2**digits <= high <= low + 1


@pytest.mark.parametrize("ratio", [Fraction(-1, 2), Fraction(1), 1 - Fraction(1, 1 << 51)])
def test_a_geometric_law_needs_a_ratio_below_one(ratio: Fraction) -> None:
    with pytest.raises(CalibrationError):
        GeometricLaw(ratio)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("eighths", range(9))
def test_thinning_by_enumeration_of_all_bits(count: int, eighths: int) -> None:
    """A chance of three binary digits: all first bits of the words, equally likely, give the binomial law."""
    found: Counter[int] = Counter()
    scripts = list(product(range(1 << count), repeat=3))
    for bits in scripts:
        words = ScriptedEntropy(bit << 64 - count if count else 0 for bit in bits)
        found[int(thinned(np.array([count]), Fraction(eighths, 8), words)[0])] += 1
    chance = Fraction(eighths, 8)
    for survived in range(count + 1):
        exact = comb(count, survived) * chance**survived * (1 - chance) ** (count - survived)
        assert Fraction(found[survived], len(scripts)) == exact


def test_thinning_counts_items_across_words_and_blocks() -> None:
    counts = np.array([0, 1, 63, 64, 65, 0, 10**6, 3 * 10**7, 200])
    kept = thinned(counts, Fraction(1, 3), SeededEntropy(8))
    deviation = np.abs(kept - counts / 3) / np.sqrt(counts * 2 / 9 + 1)
    assert deviation.max() < 4.5
    assert (kept <= counts).all()
    assert thinned(counts, Fraction(1), SeededEntropy(8)).tolist() == counts.tolist()
    assert not thinned(counts, Fraction(0), SeededEntropy(8)).any()


def test_what_cannot_be_drawn_is_refused() -> None:
    entropy = SeededEntropy(1)
    with pytest.raises(ReleaseError):
        thinned(np.array([3, -1]), Fraction(1, 2), entropy)
    with pytest.raises(CalibrationError):
        thinned(np.array([3]), Fraction(3, 2), entropy)
    with pytest.raises(CalibrationError):
        poisson(Fraction(-1), 3, entropy)
    with pytest.raises(CalibrationError):
        poisson(Fraction(1 << 21), 3, entropy)
    with pytest.raises(ReleaseError):
        poisson(Fraction(1), -1, entropy)
    assert smaller_of_pair(np.empty(0, dtype=np.int64), Fraction(1), entropy).size == 0
