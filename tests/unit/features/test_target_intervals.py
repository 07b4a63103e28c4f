"""The script that computes quantiles after stopping takes the steps of the product, and agrees with its table."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.target_intervals import Walk, misses
from dpsql.features.target_levels import STEPS_PER_DOUBLING, absolute_grid
from dpsql.features.target_rule import FREE_STEPS, next_place, quantile_of
from dpsql.mechanism.gaussian_walks import INTERVALS, QUANTILES
from dpsql.model.frame import NANO, PRESENCE
from dpsql.model.query_kinds import RelativeError
from tests.target_walks import COSTS, TOTAL, Groups

GRID = absolute_grid(1_000 * NANO)


def worst_known(error: float, rule: float, stated: float) -> float:
    """Return the probability of a miss in the walk that the script finds to be the worst one, or close to it."""
    in_window = Walk(error, rule, stated, 0.5, 0.0, 4, below=3)
    on_grid = Walk(error, rule, stated, 0.0, STEPS_PER_DOUBLING / 2, below=3)
    return float(misses(in_window if error <= 0.2 else on_grid).max())


@pytest.mark.parametrize("confidence", QUANTILES)
def test_the_worst_walks_miss_as_seldom_as_the_table_says(confidence: float) -> None:
    for (error, rule), (_, stated) in zip(QUANTILES[confidence], INTERVALS[confidence], strict=True):
        assert worst_known(error, rule, rule) <= 1.0 - confidence
        assert confidence == 0.95 or worst_known(error, rule, stated) <= 0.05


def test_narrower_intervals_miss_too_often() -> None:
    """Planted faults: quantiles two hundredths lower, and 95 % intervals of the wrong rule."""
    assert worst_known(0.3, 2.04, 2.04) > 0.05
    assert worst_known(0.3, 1.77, 2.06) > 0.05


def test_walks_of_the_script_step_as_the_product_does() -> None:
    random = np.random.default_rng(8)
    place = 120
    total = Groups((TOTAL,), {PRESENCE: np.zeros(1), COSTS: np.zeros(1)}, {PRESENCE: 1.0, COSTS: 1.0})
    sigma = (NANO / GRID[place]) ** 0.5
    for error in (0.05, 0.3, 0.5):
        target = RelativeError(error, 1.0, 0.95)
        quantile = quantile_of(target)
        walk = Walk(error, quantile, quantile, 0.0)
        for size, (taken, least) in zip(
            random.uniform(0.0, 0.99 * walk.needed, 12), 6 * ((1, 1), (FREE_STEPS, STEPS_PER_DOUBLING)), strict=True
        ):
            step = total.step(GRID[place], {PRESENCE: np.zeros(1), COSTS: np.array([-size * sigma])})
            jump = next(jump for jump, low, high in walk.jumps(least) if low <= size < high)
            assert next_place(step, GRID, place, taken, target) - place == jump
