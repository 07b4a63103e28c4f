"""The next level of a question by relative error whose LIMIT picks the rows that its rule counts."""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from dpsql.features.target_levels import DOUBLINGS, absolute_grid, window_of
from dpsql.features.target_rule import FREE_STEPS, MOST_STEPS, Step, is_met, next_place, place_after, quantile_of
from dpsql.mechanism.window import grid
from dpsql.model.estimates import Estimate, Linear, Sum
from dpsql.model.frame import NANO, PRESENCE, Statistic
from dpsql.model.query_kinds import RelativeError
from dpsql.model.top_rows import TopRows
from tests.noise_sources import NoNoise
from tests.target_walks import COSTS, MEAN, Groups, counts, walk

TARGET = RelativeError(0.1, 0.9, 0.95)
PUBLIC = [level for level in absolute_grid(NANO) if level >= NANO >> DOUBLINGS]
WINDOW = grid(window_of(None, NANO, 1e-6))
ROWS = Statistic("rows", 1, 4, 0)
TOP = TopRows(0, True, False, 3)


def hiding(groups: Groups) -> Groups:
    """Return groups that a threshold of 5.5 standard deviations hides."""
    return replace(groups, top=TOP, threshold=5.5)


def test_the_rule_counts_the_largest_numbers_alone() -> None:
    groups = replace(counts(9.0, 100.0, 90.0, 8.0, 95.0), top=TOP)
    step = groups.exact_step(NANO)
    assert step.found.shown[step.places].tolist() == [1, 4, 2]
    assert is_met(step, TARGET)
    assert not is_met(replace(groups, top=replace(TOP, limit=4)).exact_step(NANO), TARGET)


def test_rows_that_are_not_shown_are_no_rows_within_the_target() -> None:
    step = hiding(counts(900.0, 800.0, 2.0)).exact_step(NANO)
    assert step.counted == 2
    assert not is_met(step, TARGET)
    assert is_met(hiding(counts(900.0, 800.0, 700.0)).exact_step(NANO), TARGET)


def test_a_row_near_the_threshold_is_not_within_a_coarse_target() -> None:
    """At the threshold of 5.5 deviations a plain interval is within 50 %, whatever the truth is."""
    coarse, level = RelativeError(0.5, 0.9, 0.95), WINDOW[20]
    sigma = math.sqrt(NANO / level)
    near = {PRESENCE: np.array([1.0 + 5.6 * sigma] * 3)}
    groups = hiding(counts(0.0, 0.0, 0.0))
    step = groups.step(level, near)
    assert step.counted == 3
    assert not is_met(step, coarse)
    public = replace(groups, threshold=None).step(level, near)
    assert is_met(public, coarse)
    assert is_met(groups.step(level, {PRESENCE: np.array([8.0 * sigma] * 3)}), coarse)


def brute_force(step: Step, place: int, error: float) -> int:
    """Return the place below the first at which picked counts would meet the target, if they grew by a deviation."""
    values = np.rint(step.found.values.values[PRESENCE].value)
    for later in range(place + 1, len(PUBLIC)):
        now, then = (NANO / PUBLIC[one] + 1.0 / 12.0 for one in (place, later))
        # three of three groups are no selection
        if np.all(quantile_of(TARGET) * math.sqrt(then) <= error * (np.abs(values) + math.sqrt(now - then))):
            return max(place + 1, later - 1)
    return len(PUBLIC) - 1


@pytest.mark.parametrize("place", [40, 80, 120])
def test_picked_numbers_are_taken_to_grow_by_one_deviation(place: int) -> None:
    sigma = math.sqrt(NANO / PUBLIC[place])
    step = replace(counts(0.0, 0.0, 0.0), top=TOP).step(PUBLIC[place], {PRESENCE: sigma * np.array([4.0, 5.0, 6.0])})
    assert next_place(step, PUBLIC, place, 1, TARGET) == brute_force(step, place, TARGET.error)


def test_growth_has_the_noise_and_not_the_width_of_an_interval() -> None:
    """Intervals of 300 numbers that are all noise are 1.7 times as wide; none of them grows more for that."""
    place, random = 60, np.random.default_rng(4)
    sigma = math.sqrt(NANO / PUBLIC[place])
    groups = replace(counts(*np.zeros(300)), top=TOP)
    step = groups.step(PUBLIC[place], {PRESENCE: sigma * random.normal(size=300)})
    (column,) = step.judged(quantile_of(TARGET))
    assert column.sigmas == pytest.approx(math.hypot(sigma, math.sqrt(1.0 / 12.0)))
    assert (column.half_widths > 1.5 * quantile_of(TARGET) * column.sigmas).all()


@pytest.mark.parametrize(
    ("estimate", "noise", "most"),
    [
        (counts().estimates[0], {PRESENCE: 1.0}, 1.0),
        (Estimate("rows", Sum(Linear(ROWS, 2.5)), "BIGINT"), {PRESENCE: 1.0, ROWS: 1.5}, 4.0),
        (Estimate("costs", Sum(Linear(COSTS, 0.0)), "DOUBLE"), {PRESENCE: 1.0, COSTS: 100.0}, 100.0),
    ],
)
def test_levels_at_which_no_hidden_group_is_within_the_target_are_passed_over(
    estimate: Estimate, noise: dict[Statistic, float], most: float
) -> None:
    groups = hiding(Groups((estimate,), {one: np.zeros(5) for one in noise}, noise))
    step, place = groups.exact_step(WINDOW[8]), 8
    assert not step.groups
    found = next_place(step, WINDOW, place, 1, TARGET)

    def may_be(level: int) -> bool:
        now, later = (NANO / one for one in (WINDOW[place], level))
        sigma = math.hypot(noise.get(ROWS, noise.get(COSTS, 0.0)), noise[PRESENCE] * estimate.value.linears[0].centre)
        units = groups.least_shown(WINDOW[place]) + math.sqrt(now - later)
        return quantile_of(TARGET) * sigma * math.sqrt(later) <= TARGET.error * most * units

    assert may_be(WINDOW[found + 1])
    assert not may_be(WINDOW[found])
    assert WINDOW[found] > 4 * WINDOW[place]


@pytest.mark.parametrize("case", ["coarse", "average", "enough", "all rows"])
def test_the_level_doubles_if_no_bound_is_known_or_if_it_says_less(case: str) -> None:
    groups, target, place = hiding(counts(*np.zeros(5))), TARGET, 8
    released = {PRESENCE: np.zeros(5)}
    if case == "coarse":
        target = replace(TARGET, error=0.5)
    if case == "average":
        groups = hiding(Groups((MEAN,), {PRESENCE: np.zeros(5), COSTS: np.zeros(5)}, {PRESENCE: 1.0, COSTS: 50.0}))
        released[COSTS] = np.zeros(5)
    if case == "enough":
        # a third of the rows may be beyond the error
        target, released = replace(TARGET, at_least=0.6), {PRESENCE: np.array([1e4, 1e4, 0.0, 0.0, 0.0])}
    if case == "all rows":
        groups = replace(groups, top=None)
    found = next_place(groups.step(WINDOW[place], released), WINDOW, place, 1, target)
    assert WINDOW[found - 1] < 2 * WINDOW[place] <= WINDOW[found]


def test_steps_that_double_are_no_free_steps_of_picked_rows() -> None:
    place = bisect.bisect_left(WINDOW, 2**6 * WINDOW[0])
    sigma = math.sqrt(NANO / WINDOW[place])
    released = {PRESENCE: np.full(3, 19.5 * sigma)}
    picked, others = hiding(counts(0.0, 0.0, 0.0)), replace(counts(0.0, 0.0, 0.0), threshold=5.5)
    for groups, free in ((picked, FREE_STEPS + 6), (others, FREE_STEPS)):
        step = groups.step(WINDOW[place], released)
        assert next_place(step, WINDOW, place, free - 1, TARGET) == place + 1
        assert WINDOW[next_place(step, WINDOW, place, free + 1, TARGET)] >= 2 * WINDOW[place]


def test_no_values_lead_to_more_than_forty_steps() -> None:
    """Numbers by an adversary: each step shows what the rule just misses."""
    for levels, start in itertools.product((PUBLIC, WINDOW), (0, 5)):
        place, taken = start, 1
        while True:
            sigma = math.sqrt(NANO / levels[place])
            released = {PRESENCE: np.full(3, 0.98 * quantile_of(TARGET) / TARGET.error * sigma)}
            after = place_after(
                hiding(counts(1.0, 1.0, 1.0)).step(levels[place], released), levels, place, taken, TARGET
            )
            if after is None:
                break
            place, taken = after, taken + 1
        assert place == len(levels) - 1
        assert FREE_STEPS < taken <= MOST_STEPS


def test_exact_numbers_of_hidden_groups_end_at_the_first_level_at_which_the_rule_holds() -> None:
    groups = hiding(counts(6_000.0, 5_000.0, 4_000.0, 60.0))
    steps = walk(groups, WINDOW, 0, TARGET, NoNoise())
    first = next(place for place, level in enumerate(WINDOW) if is_met(groups.exact_step(level), TARGET))
    assert steps[-1][0] == first
    assert len(steps) <= 6
