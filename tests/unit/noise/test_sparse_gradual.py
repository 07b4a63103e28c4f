"""What holds in every run of a gradual sparse release; its law is tested in tests/statistical."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpsql.errors import CalibrationError, ReleaseError
from dpsql.noise.rounded_gaussian import slack_delta
from dpsql.noise.sparse_gradual import NANO, SparseGradual, _untouched_keys
from tests.deterministic_entropy import ScriptedEntropy, SeededEntropy

NO_WORDS = ScriptedEntropy([])


def integers(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def sparse(domain_size: int = 10**9, max_groups: int = 1) -> SparseGradual:
    return SparseGradual.over(domain_size, integers(3, 77, 12345), integers(1, 40, 10**6), max_groups=max_groups)


@settings(max_examples=15)
@given(
    st.lists(st.integers(1, NANO), min_size=1, max_size=4, unique=True),
    st.floats(5.0, 7.0),
    st.integers(1, 30),
    st.integers(0, 1000),
)
def test_invariants_of_every_round(levels: list[int], score: float, max_groups: int, seed: int) -> None:
    state, entropy = sparse(max_groups=max_groups), SeededEntropy(seed)
    for level in sorted(levels):
        tau = score * math.sqrt(max_groups * NANO / (2 * level))
        before = state
        shown, state = state.release(level, tau, entropy)
        # What is shown is above the threshold, kept from now on, and the noisy count of the state.
        assert (shown.values >= tau * (1 - 1e-15)).all()
        assert np.isin(shown.keys, state.keys).all()
        assert np.isin(before.keys, state.keys).all()
        assert (np.diff(state.keys) > 0).all()
        place = np.searchsorted(state.keys, shown.keys)
        exact = [Fraction(int(state.noise[i]), level) + int(state.counts[i]) for i in place]
        assert shown.values.tolist() == pytest.approx([float(value) for value in exact], rel=1e-14)
        above = (
            Fraction(int(n), level) + int(c) > Fraction(tau) for n, c in zip(state.noise, state.counts, strict=True)
        )
        assert sum(above) == shown.keys.size
        # A key is new only because it exceeds now.
        new = np.setdiff1d(state.keys, before.keys)
        assert np.isin(new, shown.keys).all()
        assert state.undecided <= before.undecided - new.size
        assert before.levels == state.levels[:-1]


def test_noise_moves_by_the_rise_only() -> None:
    """With an all but equal level the noisy counts hardly move, with a hundred times the level they do."""
    state, entropy = sparse(), SeededEntropy(1)
    _, state = state.release(NANO // 100, 60.0, entropy)
    _, near = state.release(NANO // 100 + 1, 60.0, entropy)
    moved = near.noise[:3] / near.levels[-1] - state.noise[:3] / state.levels[-1]
    assert np.abs(moved).max() < 0.01


def test_the_largest_counts_are_shown_exactly_enough() -> None:
    counts = integers(1 << 60, (1 << 60) - 1, 1 << 50)
    state = SparseGradual.over(10, integers(0, 5, 9), counts, max_groups=1)
    shown, _ = state.release(1000 * NANO, 50.0, SeededEntropy(1))
    assert shown.keys.tolist() == [0, 5, 9]
    assert shown.values.tolist() == pytest.approx(counts.tolist(), rel=1e-15)


def test_two_ways_to_one_noisy_count_show_the_same_bits() -> None:
    """A count of 1000 with noise s - 997, and a count of 3 with noise s, must not differ in the last bit."""
    level, keys = 300_000_007, np.arange(500)
    noise = np.linspace(-0.9, 4.0, keys.size) * level // 1

    def shown(count: int, total: NDArray[np.int64]) -> list[float]:
        counts = np.full(keys.size, count)
        state = SparseGradual(keys.size, 1, keys, counts, total, (level,), (level // 2,), 0, simulated=True)
        return [float(value) for value in state._shown().values]

    values = shown(3, noise.astype(np.int64))
    assert values == shown(1000, noise.astype(np.int64) - 997 * level)
    assert len(values) == keys.size
    # A sum of floats would differ.
    assert values != (1000 + (noise - 997.0 * level) / level).tolist()


def test_the_threshold_is_strict_and_exact() -> None:
    state = SparseGradual.over_every_key(integers(5, 5, 5), max_groups=1)
    placed = SparseGradual(3, 1, state.keys, state.counts, integers(-1, 0, 1), (NANO,), (5 * NANO,), 0, simulated=False)
    assert placed._shown().keys.tolist() == [2]


def test_work_does_not_grow_with_the_domain() -> None:
    state, entropy = sparse(1 << 60), SeededEntropy(2)
    for level in (NANO // 10, NANO):
        shown, state = state.release(level, 12 * math.sqrt(NANO / (2 * level)), entropy)
        assert state.keys.size == 3
        assert shown.keys.size <= 3


def test_most_of_a_small_domain_may_be_new() -> None:
    """More new keys than are left out: then the ones left out are chosen."""
    taken = integers(2, 3, 19)
    for count in range(18):
        new = _untouched_keys(20, taken, count, SeededEntropy(count))
        assert new.size == count
        assert np.unique(np.concatenate([new, taken])).size == count + 3
        assert ((new >= 0) & (new < 20)).all()


@pytest.mark.parametrize("tau", [-1.0, math.nan, math.inf, 1e12])
def test_bad_thresholds_are_refused_before_anything_is_drawn(tau: float) -> None:
    with pytest.raises(CalibrationError):
        sparse().release(1000 * NANO, tau, NO_WORDS)


@pytest.mark.parametrize("level", [0, -5, True, 0.5, NANO // 10, 1000 * NANO + 1])
def test_levels_must_rise(level: int) -> None:
    _, state = sparse().release(NANO // 10, 20.0, SeededEntropy(4))
    with pytest.raises(CalibrationError):
        state.release(level, 20.0, NO_WORDS)


@pytest.mark.parametrize("listed", [0, 1000])
def test_thresholds_too_low_to_simulate_are_refused_whatever_is_listed(listed: int) -> None:
    counts = np.ones(listed, dtype=np.int64)
    state = SparseGradual.over(1000, np.arange(listed), counts, max_groups=100)
    with pytest.raises(CalibrationError):
        state.release(NANO // 10, 0.1, NO_WORDS)
    every_key = SparseGradual.over_every_key(np.ones(1000, dtype=np.int64), max_groups=100)
    shown, _ = every_key.release(NANO // 10, 0.1, SeededEntropy(5))
    assert shown.keys.size > 300


def test_a_domain_too_large_for_its_threshold_is_refused() -> None:
    with pytest.raises(CalibrationError):
        sparse(10**12).release(NANO // 10, 3 * math.sqrt(5), NO_WORDS)


def test_thresholds_of_several_rounds_share_the_chances_of_a_key() -> None:
    state, entropy = SparseGradual.over(1000, integers(), integers(), max_groups=1), SeededEntropy(6)
    with pytest.raises(CalibrationError):  # noqa: PT012
        for level in range(1, 20):
            _, state = state.release(level * NANO // 10, 1.5 * math.sqrt(5 / level), entropy)
    assert 2 <= len(state.levels) < 19


@pytest.mark.parametrize(
    ("keys", "counts"),
    [
        (integers(1, 1), integers(1, 1)),
        (integers(2, 1), integers(1, 1)),
        (integers(-1), integers(1)),
        (integers(100), integers(1)),
        (integers(1), integers(-1)),
        (integers(1), integers((1 << 60) + 1)),
        (integers(1, 2), integers(1)),
        (np.array([1.0]), integers(1)),
        (np.array([[1]]), np.array([[1]])),
    ],
)
def test_bad_histograms_are_refused(keys: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    with pytest.raises(ReleaseError):
        SparseGradual.over(100, keys, counts, max_groups=1)


@pytest.mark.parametrize(
    ("domain_size", "max_groups"), [(0, 1), ((1 << 60) + 1, 1), (10, 0), (10, 10**6 + 1), (True, 1)]
)
def test_bad_domains_are_refused(domain_size: int, max_groups: int) -> None:
    with pytest.raises(CalibrationError):
        SparseGradual.over(domain_size, integers(), integers(), max_groups=max_groups)


def test_the_slack_of_the_simulation_is_counted_and_small() -> None:
    state, entropy = sparse(), SeededEntropy(7)
    assert state.slack_draws == 0
    for level in (1, 2, 3):
        _, state = state.release(level * NANO // 10, 40.0, entropy)
    assert state.slack_draws == 3 * 128
    assert slack_delta(state.slack_draws, 1.0) < 1e-32
    _, every_key = SparseGradual.over_every_key(integers(1, 2), max_groups=1).release(NANO, 5.0, entropy)
    assert every_key.slack_draws == 0


def test_the_histogram_given_is_not_written_to() -> None:
    keys, counts = integers(1, 5), integers(4, 4)
    state = SparseGradual.over(9, keys, counts, max_groups=1)
    keys[0] = counts[0] = 0
    assert state.keys.tolist() == [1, 5]
    assert state.counts.tolist() == [4, 4]
