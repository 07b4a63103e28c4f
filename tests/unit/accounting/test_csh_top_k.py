"""Why max_groups must not be used after top-k pre-processing: one row can move all k counts."""

from __future__ import annotations

import numpy as np
import pytest

from dpsql.accounting import gaussian
from dpsql.accounting.correlated_histogram import CorrelatedProfile
from dpsql.accounting.sparse_histogram import SparseProfile


def top_k(counts: np.ndarray, k: int) -> np.ndarray:
    """Subtract the (k+1)-th largest count and clip at 0 (Algorithm 3 of the paper)."""
    return np.asarray(np.maximum(0, counts - np.sort(counts)[-(k + 1)]))


@pytest.mark.parametrize("k", [4, 50])
def test_one_row_of_one_unit_moves_all_k_counts(k: int) -> None:
    counts = np.append(np.full(k, 100), 10)
    one_row = np.zeros(k + 1, dtype=int)
    one_row[-1] = 1
    moved = top_k(counts, k) - top_k(counts + one_row, k)
    assert moved[:k].tolist() == [1] * k
    # At a threshold that never shows a new key, delta is that of the shift of the counts.
    sigma, tau = 1.5 * np.sqrt(k), 40.0 * np.sqrt(k)
    length = np.linalg.norm(moved)
    actual = gaussian.delta(0.35, float(length), float(sigma))
    assert SparseProfile(max_groups=k, sigma=sigma).delta(0.35, tau) >= actual
    # One key per unit would be believed to cost far less than it does: k keys are what counts, not max_groups.
    assert SparseProfile(max_groups=1, sigma=sigma).delta(0.35, tau) < 0.5 * actual


@pytest.mark.parametrize("k", [4, 50])
def test_after_top_k_a_contribution_bound_would_be_exceeded(k: int) -> None:
    """Units with one key each: the rows of one move half of the surviving counts, in one direction."""
    counts = np.append(np.arange(k) + 20, 10)
    keys = np.zeros(k + 1, dtype=int)
    keys[-1] = 1
    keys[: k // 2] = 1
    moved = top_k(counts, k) - top_k(counts + keys, k)
    assert set(moved.tolist()) == {0, 1}
    correlation, sigma = k**-0.5, 3.0
    covariance = sigma**2 * (np.eye(k) + correlation * np.ones((k, k)))
    squared = float(moved[:k] @ np.linalg.solve(covariance, moved[:k]))
    assert (
        2.0 * CorrelatedProfile(k=k, sigma=sigma).rho
        >= squared
        > 2.0 * CorrelatedProfile(k=k, sigma=sigma, max_groups=1).rho
    )
    tau = 60.0 * sigma
    actual = gaussian.delta(0.35, squared**0.5, 1.0)
    assert CorrelatedProfile(k=k, sigma=sigma).delta(0.35, tau) >= actual
    assert CorrelatedProfile(k=k, sigma=sigma, max_groups=1).delta(0.35, tau) < actual
