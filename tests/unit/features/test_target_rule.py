"""The rule of a question by relative error, and the level that comes next, on numbers whose truth is known."""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from dpsql.features.target_levels import DOUBLINGS, absolute_grid
from dpsql.features.target_rule import (
    FREE_STEPS,
    MOST_STEPS,
    Step,
    best_level,
    interval_quantile,
    is_met,
    next_place,
    numbers_within,
    quantile_of,
)
from dpsql.mechanism.gaussian_walks import QUANTILES
from dpsql.model.estimates import Estimate, Linear, Ratio
from dpsql.model.frame import NANO, PRESENCE
from dpsql.model.query_kinds import RelativeError
from tests.noise_sources import NoNoise
from tests.target_walks import COSTS, MEAN, TOTAL, Groups, counts, shown, walk

TARGET = RelativeError(0.1, 1.0, 0.95)
GRID = absolute_grid(NANO)
LEVELS = GRID[bisect.bisect_left(GRID, NANO >> DOUBLINGS) :]
AVERAGES = Groups((MEAN,), {PRESENCE: np.array([400.0]), COSTS: np.array([8_000.0])}, {PRESENCE: 1.0, COSTS: 50.0})


def test_quantiles_grow_with_the_confidence_and_the_error() -> None:
    for confidence, least in ((0.9, 1.6448), (0.95, 1.9599), (0.99, 2.5758)):
        errors, quantiles = zip(*QUANTILES[confidence], strict=True)
        assert errors[-1] == 0.5
        assert list(errors) == sorted(errors)
        assert [least, *quantiles] == sorted({least, *quantiles})
        for error, quantile in QUANTILES[confidence]:
            assert quantile_of(RelativeError(error, 1.0, confidence)) == quantile
            assert interval_quantile(RelativeError(error, 1.0, confidence)) >= quantile_of(
                RelativeError(error, 1.0, 0.95)
            )


def test_a_number_is_within_the_target_up_to_its_end() -> None:
    quantile, sigma = quantile_of(TARGET), 1.0
    (column,) = shown(
        Groups((TOTAL,), {PRESENCE: np.ones(4), COSTS: np.zeros(4)}, {PRESENCE: 1.0, COSTS: sigma}).step(
            NANO, {PRESENCE: np.ones(4), COSTS: 10.0 * quantile * np.array([1.001, 0.999, -1.001, -0.999])}
        ),
        TARGET,
    )
    assert column.half_widths == pytest.approx(quantile * sigma)
    assert column.within(0.1).tolist() == [True, False, True, False]


def test_a_count_that_is_shown_as_zero_is_never_within_the_target() -> None:
    step = counts(1.0, 1.0).step(NANO, {PRESENCE: np.array([-500.0, 0.4])})
    (column,) = shown(step, TARGET)
    assert column.values.tolist() == [0.0, 0.0]
    assert not column.within(0.5).any()
    assert not is_met(step, TARGET)
    assert numbers_within(step, TARGET) == (0,)


def test_an_average_whose_interval_says_nothing_is_not_within_the_target() -> None:
    """Noise takes it to its upper bound, and half of the interval from 0 to 100 is 50 % of 100."""
    target = RelativeError(0.5, 1.0, 0.95)
    step = AVERAGES.step(1_000, {PRESENCE: np.array([3.0]), COSTS: np.array([9_000.0])})
    (column,) = shown(step, target)
    assert column.values.tolist() == [100.0]
    assert column.half_widths.tolist() == [100.0]
    assert not column.known.any()
    assert not is_met(step, target)
    # all of a narrow domain is within the target, and yet the answer shows NULL
    narrow = Estimate("mean", Ratio((90.0, 100.0), Linear(COSTS, 0.0), Linear(None, 1.0)), "DOUBLE")
    step = replace(AVERAGES, estimates=(narrow,)).step(1_000, {PRESENCE: np.array([3.0]), COSTS: np.array([300.0])})
    (column,) = shown(step, target)
    assert column.half_widths[0] < 0.5 * column.values[0]
    assert not is_met(step, target)
    # no rows at all: no number
    step = AVERAGES.step(1_000, {PRESENCE: np.array([-3.0]), COSTS: np.array([9_000.0])})
    assert not is_met(step, target)
    assert GRID[next_place(step, GRID, 50, 1, target)] >= 2 * GRID[50]


@pytest.mark.parametrize(("at_least", "met"), [(0.5, True), (0.6, True), (0.61, False), (1.0, False)])
def test_the_rule_counts_groups_of_each_column(at_least: float, met: bool) -> None:
    target = RelativeError(0.1, at_least, 0.95)
    units = np.array([100.0, 100.0, 100.0, 1.0, 1.0])
    step = counts(*units).exact_step(NANO)
    assert numbers_within(step, target) == (3,)
    assert is_met(step, target) is met
    both = Groups((*step.estimates, TOTAL), {PRESENCE: units, COSTS: np.zeros(5)}, {PRESENCE: 1.0, COSTS: 1.0})
    assert not is_met(both.exact_step(NANO), target)
    assert numbers_within(both.exact_step(NANO), target) == (3, 0)


def test_without_groups_the_rule_does_not_hold_and_the_level_doubles() -> None:
    step = counts().exact_step(GRID[40])
    assert not is_met(step, TARGET)
    assert best_level(step, GRID, TARGET) is None
    assert GRID[next_place(step, GRID, 40, 1, TARGET)] == pytest.approx(2 * GRID[40], rel=1e-3)


@pytest.mark.parametrize("truth", [60.0, 777.0, 5_000.0, 20_000.0])
def test_exact_numbers_end_at_the_first_level_at_which_the_rule_holds(truth: float) -> None:
    groups = counts(truth, 2.0 * truth)
    steps = walk(groups, LEVELS, 0, TARGET, NoNoise())
    first = next(place for place, level in enumerate(LEVELS) if is_met(groups.exact_step(level), TARGET))
    assert steps[-1][0] == first
    assert len(steps) <= FREE_STEPS
    # a forecast, whose quantile is that of a level fixed before, needs less
    level = best_level(steps[-1][1], LEVELS, TARGET)
    sigma = 0.1 * truth / 1.96
    assert level == LEVELS[bisect.bisect_left(LEVELS, math.ceil(NANO * (1 / sigma) ** 2 * 0.999))]


def test_a_forecast_needs_a_level_that_is_high_enough() -> None:
    assert best_level(counts(10.0).exact_step(LEVELS[50]), LEVELS, TARGET) is None
    step = counts(10.0).exact_step(LEVELS[50])
    higher = absolute_grid(1_000 * NANO)
    level = best_level(step, higher, TARGET)
    assert level is not None
    assert level > NANO


def brute_force(step: Step, place: int, target: RelativeError) -> int:
    """Return the place below the first at which counts would meet the target, if they grew by two deviations."""
    values = np.maximum(np.rint(step.found.values.values[PRESENCE].value), 0.0)
    needed = math.ceil(round(target.at_least * len(values), 9))
    for later in range(place + 1, len(LEVELS)):
        # shown counts are rounded, which has a variance too
        now, then = (NANO / LEVELS[one] + 1.0 / 12.0 for one in (place, later))
        most = values + 2.0 * math.sqrt(now - then)
        if np.count_nonzero(quantile_of(target) * math.sqrt(then) <= target.error * most) >= needed:
            return max(place + 1, later - 1)
    return len(LEVELS) - 1


def test_the_next_level_is_the_one_below_the_first_that_may_be_enough() -> None:
    random = np.random.default_rng(5)
    for error, at_least, place in itertools.product((0.02, 0.1, 0.5), (0.2, 0.75, 1.0), (0, 60, 110)):
        target = RelativeError(error, at_least, 0.95)
        sigma = (NANO / LEVELS[place]) ** 0.5
        values = sigma * random.normal(random.choice([0.0, 3.0, 9.0]), 1.0, 7)
        step = counts(*np.zeros(7)).step(LEVELS[place], {PRESENCE: values})
        if not is_met(step, target):
            assert next_place(step, LEVELS, place, 1, target) == brute_force(step, place, target)


def test_noise_that_is_held_counts_as_it_is() -> None:
    """A stored statistic with less noise than a level gives keeps that noise until a level gives less."""
    step = counts(500.0).exact_step(LEVELS[100])
    held = replace(step, sigmas={PRESENCE: 10.0 * step.sigmas[PRESENCE]})
    (now,), (then,) = held.columns(1.0, LEVELS[101]), held.columns(1.0)
    assert now.half_widths == pytest.approx(then.half_widths)
    (asked,) = held.columns(1.0, LEVELS[101], held=False)
    assert asked.half_widths[0] > 9.0 * now.half_widths[0]


@pytest.mark.parametrize("kind", ["counts", "averages"])
def test_no_values_lead_to_more_than_forty_steps(kind: str) -> None:
    """Values by an adversary: each step shows what the rule just misses, nothing, or what the forecast just trusts."""
    groups = counts(1.0) if kind == "counts" else AVERAGES
    random, most = np.random.default_rng(3), 0
    for start, target in itertools.product((0, 1, 77), (TARGET, RelativeError(0.5, 1.0, 0.99))):
        place, taken = start, 1
        while place < len(LEVELS) - 1:
            sigma = (NANO / LEVELS[place]) ** 0.5
            barely = 0.98 * quantile_of(target) / target.error * sigma
            units = random.choice([0.0, -barely, barely, 0.9 * barely]) if taken > FREE_STEPS else barely
            values = np.array([units])
            released = {PRESENCE: values} | ({} if kind == "counts" else {COSTS: values * 0.001})
            step = groups.step(LEVELS[place], released)
            if is_met(step, target):
                step = groups.step(LEVELS[place], {one: np.zeros(1) for one in released})
            later = next_place(step, LEVELS, place, taken, target)
            assert later > place
            assert taken < FREE_STEPS or LEVELS[later] >= min(2 * LEVELS[place], LEVELS[-1])
            place, taken = later, taken + 1
        most = max(most, taken)
    assert most < MOST_STEPS
    assert kind == "averages" or most > FREE_STEPS


def test_an_average_without_a_number_is_forecast_by_its_rows() -> None:
    """With 5 rows, and noise of 30 on them, no level below that of a larger number of rows can be enough."""
    place = 60
    sigma = (NANO / LEVELS[place]) ** 0.5
    step = AVERAGES.step(LEVELS[place], {PRESENCE: np.array([0.2 * sigma]), COSTS: np.array([0.0])})
    later = next_place(step, LEVELS, place, 1, TARGET)
    assert isinstance(MEAN.value, Ratio)
    rows = step.rows(MEAN.value, LEVELS[later])
    most = rows.counted + 2.0 * np.sqrt(step.rows(MEAN.value).sigmas ** 2 - rows.sigmas**2)
    assert LEVELS[later] >= 2 * LEVELS[place]
    assert quantile_of(TARGET) * rows.least[0] > TARGET.error * 100.0 * most[0]
