from __future__ import annotations

from bisect import bisect_right

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from dpsql.errors import CalibrationError
from dpsql.noise.entropy import Entropy
from dpsql.noise.rounded_gaussian import CumulativeTable
from tests.deterministic_entropy import ScriptedEntropy, SeededEntropy

TOP = 1 << 128
HIGH = 0x8000_0000_0000_0000
# Sixteen equally likely outcomes, once the high limb is HIGH: only the low limb tells them apart.
TIED = [(HIGH << 64) + (sixteenth << 60) for sixteenth in range(1, 16)]

limbs = st.integers(0, (1 << 64) - 1)


class HighLimbOnly(CumulativeTable):
    """The planted fault: ties are decided by the high limb alone."""

    def outcomes(self, high_words: NDArray[np.uint64], entropy: Entropy) -> NDArray[np.int64]:
        limbs = np.array([threshold >> 64 for threshold in self.thresholds], dtype=np.uint64)
        return np.searchsorted(limbs, high_words, side="right").astype(np.int64)


@given(
    st.lists(st.integers(1, TOP - 1), max_size=20).map(sorted),
    st.lists(st.tuples(limbs, limbs), min_size=1, max_size=10),
)
def test_outcome_counts_the_thresholds_at_or_below_the_uniform(
    thresholds: list[int], uniforms: list[tuple[int, int]]
) -> None:
    # Each threshold itself and its lower neighbour are tried too: the boundary belongs to the outcome above.
    uniforms = uniforms + [divmod(t - back, 1 << 64) for t in thresholds for back in (0, 1)]
    table = CumulativeTable(thresholds)
    for high, low in uniforms:
        outcome = table.outcomes(np.array([high], dtype=np.uint64), ScriptedEntropy([low]))
        assert outcome.tolist() == [bisect_right(thresholds, high << 64 | low)]


def test_a_second_word_is_drawn_for_ties_only() -> None:
    table = CumulativeTable([3 << 64 | 7, 5 << 64])
    script = ScriptedEntropy([6, 7, 0])
    words = np.array([2, 3, 4, 3, 6, 5], dtype=np.uint64)
    assert table.outcomes(words, script).tolist() == [0, 0, 1, 1, 2, 2]
    assert script.left == 0


def _tie_p_value(table: CumulativeTable) -> float:
    outcomes = table.outcomes(np.full(16_000, HIGH, dtype=np.uint64), SeededEntropy(5))
    return float(stats.chisquare(np.bincount(outcomes, minlength=16)).pvalue)


@pytest.mark.statistical
def test_ties_follow_the_low_limb() -> None:
    """p > 1e-4 at this fixed seed."""
    assert _tie_p_value(CumulativeTable(TIED)) > 1e-4


@pytest.mark.statistical
def test_dropping_the_low_limb_is_caught() -> None:
    assert _tie_p_value(HighLimbOnly(TIED)) < 1e-12


def test_a_table_without_thresholds_has_one_outcome() -> None:
    words = np.array([0, 1, (1 << 64) - 1], dtype=np.uint64)
    assert CumulativeTable([]).outcomes(words, SeededEntropy(1)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("thresholds", [[0], [TOP], [-1], [5, 4], [1, TOP]])
def test_thresholds_that_are_no_law_are_refused(thresholds: list[int]) -> None:
    with pytest.raises(CalibrationError):
        CumulativeTable(thresholds)
