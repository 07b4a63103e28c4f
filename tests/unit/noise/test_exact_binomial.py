"""The binomial table against exact fractions and mpmath; nothing here is random but two draws."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise

import mpmath as mp
import pytest

from dpsql.errors import CalibrationError
from dpsql.noise import sparse_gradual
from dpsql.noise.rounded_gaussian import working_context
from dpsql.noise.sparse_gradual import MOST_EXPECTED, draw_binomial
from tests.deterministic_entropy import ScriptedEntropy, SeededEntropy

BOUND = Fraction(1, 1 << 110)


def law_of(trials: int, chance: Decimal) -> dict[int, Fraction]:
    """Exactly the law that is drawn."""
    lowest, table = sparse_gradual._table_around_the_mode(trials, chance)
    ends = [0, *table.thresholds, 1 << 128]
    return {lowest + i: Fraction(right - left, 1 << 128) for i, (left, right) in enumerate(pairwise(ends))}


@pytest.mark.parametrize("trials", [0, 1, 2, 7, 60])
@pytest.mark.parametrize("chance", ["0", "1e-30", "0.003", "0.5", "0.875", "0.99"])
def test_small_laws_are_within_the_bound(trials: int, chance: str) -> None:
    p = Fraction(chance)
    exact = {k: math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(trials + 1)}
    drawn = law_of(trials, Decimal(chance))
    assert sum(drawn.values()) == 1
    assert set(drawn) <= set(exact)
    assert sum(abs(exact[k] - drawn.get(k, 0)) for k in exact) / 2 < BOUND


@pytest.mark.parametrize(("trials", "expected"), [(10**12, "0.001"), (10**12, "37"), (10**18, "5000.3")])
def test_large_laws_agree_with_mpmath(trials: int, expected: str) -> None:
    with localcontext(working_context()):
        chance = Decimal(expected) / trials
    with mp.workdps(80):
        p = mp.mpf(str(chance))
        drawn = law_of(trials, chance)
        for outcome, share in list(drawn.items())[:: max(1, len(drawn) // 40)]:
            log_law = (
                mp.loggamma(trials + 1)
                - mp.loggamma(outcome + 1)
                - mp.loggamma(trials - outcome + 1)
                + outcome * mp.log(p)
                + (trials - outcome) * mp.log1p(-p)
            )
            assert abs(mp.mpf(share.numerator) / share.denominator - mp.exp(log_law)) < 2.0**-127
    mean = sum(outcome * share for outcome, share in drawn.items())
    assert float(mean) == pytest.approx(float(expected), rel=1e-12)


def test_the_widest_table_stays_within_its_bound() -> None:
    with localcontext(working_context()):
        _, table = sparse_gradual._table_around_the_mode(1 << 40, Decimal(MOST_EXPECTED) / (1 << 40))
    # Lemma 3: 0.51 * 2**-128 for each entry.
    assert 0.51 * len(table.thresholds) < 2**17.5


def test_one_word_is_one_draw() -> None:
    # 0.25, 0.75, 1 are the values of the distribution function of two fair coins.
    words = [1, (1 << 62) - 1, (1 << 62) + 1, (3 << 62) - 1, (3 << 62) + 1, (1 << 64) - 1]
    entropy = ScriptedEntropy(words)
    assert [draw_binomial(2, Decimal("0.5"), entropy) for _ in words] == [0, 0, 1, 1, 2, 2]
    assert entropy.left == 0


def test_draws_have_the_mean_and_spread_of_the_law() -> None:
    """Each fails by chance once in 10,000 seeds."""
    entropy = SeededEntropy(6)
    draws = [draw_binomial(10**12, Decimal("3e-12"), entropy) for _ in range(2000)]
    assert abs(sum(draws) - 6000) < 3.9 * math.sqrt(6000)
    assert abs(sum((draw - 3) ** 2 for draw in draws) / 3 - 2000) < 3.9 * math.sqrt(2000 * (2 + 1 / 3))


@pytest.mark.parametrize(
    ("trials", "chance"),
    [
        (-1, "0.5"),
        ((1 << 62) + 1, "1e-30"),
        (10, "-0.1"),
        (10, "0.991"),
        (10, "NaN"),
        (10, "Infinity"),
        (10**12, "0.1"),
    ],
)
def test_what_no_table_holds_is_refused(trials: int, chance: str) -> None:
    with pytest.raises(CalibrationError):
        draw_binomial(trials, Decimal(chance), ScriptedEntropy([]))
