from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.noise import rounded_gaussian
from dpsql.noise.rounded_gaussian import RoundedGaussian, cell_table, keeps_exactly, rounded_proposals
from tests.deterministic_entropy import ScriptedEntropy, SeededEntropy

RATIOS = (32.0, 32.1, 45.6, 63.999999)
# Past the cells that can be proposed the exponent, and with it the error of the Taylor sum, is largest here.
LAST_CELL = 432
words = st.integers(0, (1 << 64) - 1)


def chance_of(ratio: float, cell: int, place: int, place_bits: int = 63) -> mpmath.mpf:
    """The probability of keeping, by mpmath, to 100 digits, for y = place / 2**place_bits."""
    with mpmath.workdps(100):
        y = mpmath.mpf(place) / 2**place_bits
        return mpmath.exp(-y * (2 * cell + y) / (2 * mpmath.mpf(ratio) ** 2))


@pytest.mark.parametrize("ratio", RATIOS)
def test_cell_probabilities_are_the_envelopes(ratio: float) -> None:
    thresholds = cell_table(ratio).thresholds
    with mpmath.workdps(80):
        weights = [mpmath.exp(-(mpmath.mpf(a) ** 2) / (2 * mpmath.mpf(ratio) ** 2)) for a in range(2000)]
        total = mpmath.fsum(weights)
        below = mpmath.mpf(0)
        distance = mpmath.mpf(0)
        for cell, weight in enumerate(weights):
            below += weight
            threshold = thresholds[cell] if cell < len(thresholds) else 2**128
            error = abs(threshold - 2**128 * below / total)
            assert error <= 0.51
            distance += error / 2**128
        kept = ratio * mpmath.sqrt(mpmath.pi / 2) / total
        assert kept > 1 - 1 / mpmath.mpf(41)
        assert 2 * distance / kept <= RoundedGaussian.total_variation


@settings(max_examples=150)
@given(
    st.sampled_from(RATIOS),
    st.integers(0, 40),
    words,
    st.tuples(words, words),
    st.lists(words, min_size=8, max_size=8),
)
def test_a_proposal_is_what_the_words_say(
    ratio: float, width_bits: int, cell_word: int, place_and_coin: tuple[int, int], more: list[int]
) -> None:
    place_word, coin = place_and_coin
    script = ScriptedEntropy([cell_word, place_word, coin, *more])
    drawn = rounded_proposals(ratio, width_bits, 1, script).tolist()

    thresholds = cell_table(ratio).thresholds
    # A high limb that does not decide reads its low limb before anything else; 0 is read as undecided too.
    tied = cell_word in {0, *(threshold >> 64 for threshold in thresholds)}
    low, more = (more[0], more[1:]) if tied else (0, more)
    cell = bisect_right(thresholds, cell_word << 64 | low)
    place, negative = divmod(place_word, 2)
    # Every further word that a decision could read; hypothesis does find coins that need the third pair.
    rounds = len(more) // 2
    for more_place, more_coin in zip(more[: 2 * rounds : 2], more[1 : 2 * rounds : 2], strict=True):
        place, coin = place << 64 | more_place, coin << 64 | more_coin
    place_bits, coin_bits = 63 + 64 * rounds, 64 + 64 * rounds
    with mpmath.workdps(100):
        kept = mpmath.mpf(coin) / 2**coin_bits < chance_of(ratio, cell, place, place_bits)
    size = int((cell + Fraction(place, 1 << place_bits)) * 2**width_bits + Fraction(1, 2))
    assert drawn == ([-size if negative else size] if kept else [])


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("cell", [0, 1, 40, LAST_CELL])
@pytest.mark.parametrize("place", [1, 1 << 62, (1 << 63) - 1])
@pytest.mark.parametrize("bits", [33, 66, 130, 190])
def test_exact_decision_is_right_on_both_sides_of_the_boundary(ratio: float, cell: int, place: int, bits: int) -> None:
    """The accepted coins are those below the chance, to 2**-190: the law of the scalar path is exact."""
    more_place = 0x0123_4567_89AB_CDEF
    chance = chance_of(ratio, cell, place << 192 | more_place << 128, 255)
    with mpmath.workdps(100):
        for side, expected in ((-1, True), (1, False)):
            coin = int(mpmath.floor((chance + side * mpmath.mpf(2) ** -bits) * 2**256))
            if not 0 <= coin < 1 << 256:
                continue
            coin_words = [coin >> shift & (1 << 64) - 1 for shift in (128, 64, 0)]
            script = ScriptedEntropy(word for pair in zip([more_place, 0, 0], coin_words, strict=True) for word in pair)
            assert keeps_exactly(Fraction(ratio), cell, place, coin >> 192, script) is expected
            # Far from the boundary no further word is read, next to it some are.
            assert (script.left == 6) is (bits < 60) or bits == 66


@pytest.mark.parametrize("sigma_steps", [33.0, 1e5, 3.3e10])
def test_scalar_and_vector_decisions_agree(monkeypatch: pytest.MonkeyPatch, sigma_steps: float) -> None:
    fast = RoundedGaussian(sigma_steps).draw(2_000, SeededEntropy(11))
    monkeypatch.setattr(rounded_gaussian, "_DOUBT", 2.0)
    asked: list[int] = []

    def counting(*arguments: object) -> bool:
        asked.append(1)
        return keeps_exactly(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rounded_gaussian, "keeps_exactly", counting)
    exactly = RoundedGaussian(sigma_steps).draw(2_000, SeededEntropy(11))
    assert len(asked) >= 2_000
    np.testing.assert_array_equal(fast, exactly)


def _wrong_decisions(offset: int) -> int:
    """Decide coins `offset` * 2**-64 below and above the chance, also where float64 and Taylor err most."""
    wrong = 0
    for ratio in (32.0, 40.0):
        # Proposals stop at 13.5 standard deviations.
        cells = np.array([0, 16, 64, int(13.5 * ratio)])
        for place in ((1 << 63) - 1, 0x7123_4567_89AB_CDEF, 1 << 61):
            places = np.full(cells.size, place, dtype=np.uint64)
            with mpmath.workdps(100):
                chances = [int(chance_of(ratio, int(a), place) * 2**64) for a in cells]
            for side, expected in ((-1, True), (1, False)):
                exact = [chance + side * offset for chance in chances]
                coins = np.array([min(coin, 2**64 - 1) for coin in exact], dtype=np.uint64)
                inside = np.array([coin < 2**64 for coin in exact])
                kept = rounded_gaussian._keep(ratio, cells, places, coins, ScriptedEntropy([]))
                wrong += int(np.count_nonzero((kept != expected) & inside))
    return wrong


@pytest.mark.parametrize("offset", [1 << 4, 1 << 27, 1 << 31, 1 << 33, (1 << 34) + (1 << 31), 1 << 40])
def test_decisions_next_to_the_boundary_are_right(offset: int) -> None:
    assert _wrong_decisions(offset) == 0


def test_float_decisions_alone_are_wrong_next_to_the_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounded_gaussian, "_DOUBT", -1.0)
    assert _wrong_decisions(1 << 27) > 0
    # The stated bound of the float error, 2**-34, with the widest cell there is.
    assert _wrong_decisions(1 << 30) == 0
