"""Changes split at the nearest multiple of a spacing: footnote 7 of Harrison and Manurangsi 2025."""

from __future__ import annotations

import numpy as np
import pytest

from dpsql.noise.divisible import MultiScaleLaplace
from dpsql.noise.divisible.law import gamma_for

EPSILON = 3
CHANGES_AND_SPACINGS = [(change, spacing) for change in range(2, 13) for spacing in range(2, change + 1)]


def law_of(spacing: int, scales: int) -> MultiScaleLaplace:
    """Return the noise of Theorem 18's proof, except that Y hides half a spacing at epsilon 1."""
    return MultiScaleLaplace(spacing, scales, gamma_for(EPSILON - 1), gamma_for(1 / (spacing // 2)))


def largest_loss(law: MultiScaleLaplace, max_change: int) -> float:
    """Return the largest log ratio of two probabilities near 0, for whole changes up to `max_change`."""
    logs = law.log_pmf(np.arange(-60 * max_change, 60 * max_change + 1))
    return max(float(np.abs(logs[change:] - logs[:-change]).max()) for change in range(1, max_change + 1))


def test_the_scales_of_theorem_18_are_too_few_for_nearest_multiples() -> None:
    """The corrections say: 11 of 66 laws cost more than epsilon 3, and the worst one costs 3.79."""
    losses = {pair: largest_loss(law_of(pair[1], pair[0] // pair[1]), pair[0]) for pair in CHANGES_AND_SPACINGS}
    assert len(losses) == 66
    assert sum(loss > EPSILON for loss in losses.values()) == 11
    assert max(losses, key=losses.__getitem__) == (5, 3)
    assert losses[5, 3] == pytest.approx(3.79, abs=0.005)


def test_half_a_spacing_more_is_enough_below_the_ratio_too() -> None:
    """In 23 of the 66 laws the number of scales is below max_change / spacing, where the footnote rules it out."""
    below = 0
    for change, spacing in CHANGES_AND_SPACINGS:
        scales = (change + spacing // 2) // spacing
        law = law_of(spacing, scales)
        assert largest_loss(law, change) <= law.epsilon(change) <= EPSILON
        below += scales * spacing < change
    assert below == 23
