"""Thresholds of a window where all keys share one noise term: the levels' deltas are added."""

from __future__ import annotations

import math

import pytest

from dpsql.mechanism.window import THRESHOLD_SHARE, charged_delta, grid, window_taus
from dpsql.model.frame import NANO, Window
from tests.histograms import subtracted

WINDOW = Window(NANO // 20, NANO // 5, 1e-6)


@pytest.mark.parametrize("max_groups", [None, 3])
def test_levels_with_a_common_term_are_added(max_groups: int | None) -> None:
    histogram = subtracted(20, max_groups, 0.4, 0.3)
    sigmas = [histogram.sigma(rho_nano / NANO) for rho_nano in grid(WINDOW)]
    taus = window_taus(histogram, WINDOW)
    parts = [histogram.threshold_delta(sigma, tau) for sigma, tau in zip(sigmas, taus, strict=True)]
    assert math.fsum(parts) < charged_delta(histogram, WINDOW) <= math.fsum(parts) * (1 + 1e-15)
    # each level has an equal share, less the room that the floor needs beside lost keys
    share = WINDOW.delta * THRESHOLD_SHARE / len(parts)
    assert all(0.99 * share <= part * histogram.threshold_room <= share for part in parts)
