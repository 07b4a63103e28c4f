"""Walks of a question by relative error without SQL: its rule and next levels, on numbers whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsql.features.target_picked import PickedRows
from dpsql.features.target_rule import Column, Step, place_after, quantile_of
from dpsql.model.estimates import UNITS, Estimate, Linear, Ratio, Sum
from dpsql.model.frame import NANO, PRESENCE, Statistic
from dpsql.model.private_query import EachKey
from dpsql.model.query_kinds import RelativeError
from dpsql.model.top_rows import TopRows
from dpsql.noise.entropy import NoiseSource
from dpsql.noise.rounded_gaussian import RoundedGaussian
from dpsql.release.estimates import Floats, NoisyFrame, NoisyValues
from dpsql.release.points import ShownFrame
from dpsql.release.top_rows import Integers, RowOrder
from tests.histograms import independent

COSTS = Statistic("sum", -100 * 2**10, 100 * 2**10, -10)
"""A statistic of sums."""
COUNT = Estimate("count", UNITS, "BIGINT")
TOTAL = Estimate("total", Sum(Linear(COSTS, 0.0)), "DOUBLE")
MEAN = Estimate("mean", Ratio((0.0, 100.0), Linear(COSTS, 0.0), Linear(None, 1.0)), "DOUBLE")
_STEPS_OF_NOISE = 2**20


@dataclass(frozen=True)
class Groups:
    """Groups whose exact values are known, as a question asks for them.

    Attributes:
        estimates: the columns.
        exact: values of each statistic, one for each group.
        noise: standard deviation of each statistic at rho = 1.
        top: the rows that LIMIT picks by the first column; None if it picks none.
        threshold: the number of standard deviations by which a count of units has to exceed one unit for its group to
            be shown; None for public keys.

    """

    estimates: tuple[Estimate, ...]
    exact: Mapping[Statistic, Floats]
    noise: Mapping[Statistic, float]
    top: TopRows | None = None
    threshold: float | None = None

    def shown(self, level_nano: int, released: Mapping[Statistic, Floats]) -> npt.NDArray[np.bool_]:
        """Return which groups the values at a level show."""
        if self.threshold is None:
            return np.ones(len(self.exact[PRESENCE]), dtype=np.bool_)
        return released[PRESENCE] > self.least_shown(level_nano)

    def least_shown(self, level_nano: int) -> float:
        """Return the number that a count of units has to exceed at a level."""
        return 1.0 + (self.threshold or 0.0) * self.noise[PRESENCE] * math.sqrt(NANO / level_nano)

    def step(
        self,
        level_nano: int,
        released: Mapping[Statistic, Floats],
        shown: Integers | None = None,
        chance: float = 0.05,
    ) -> Step:
        """Return the step at a level at which values were released.

        Args:
            level_nano: the level.
            released: values of all groups.
            shown: places of the shown groups; None for those that these values show.
            chance: probability with which an interval misses, by the rule.

        """
        shown = np.flatnonzero(self.shown(level_nano, released)) if shown is None else shown
        noise = {one: sigma * (NANO / level_nano) ** 0.5 for one, sigma in self.noise.items()}
        values = {one: NoisyValues(value[shown], noise[one]) for one, value in released.items()}
        found = ShownFrame(NoisyFrame(values, independent(1), EachKey()), {}, shown, slice(None))
        picked = None
        if self.top is not None:
            threshold = None if self.threshold is None else self.least_shown(level_nano)
            needed = self.top.limit if threshold else min(self.top.limit, len(shown) - self.top.offset)
            picked = PickedRows(RowOrder(self.top, self.estimates[0]), shown, needed, chance, threshold)
        return Step(level_nano, self.estimates, found, noise, picked)

    def exact_step(self, level_nano: int) -> Step:
        """Return the step at a level whose noise happened to be 0."""
        return self.step(level_nano, self.exact)


def counts(*units: float) -> Groups:
    """Return groups of which the number of units is asked, whose noise is 1 at rho = 1."""
    return Groups((COUNT,), {PRESENCE: np.array(units, dtype=np.float64)}, {PRESENCE: 1.0})


def noise(sigma: float, groups: int, source: NoiseSource) -> Floats:
    """Return Gaussian noise of a standard deviation, one for each group."""
    return np.asarray(source.draw(RoundedGaussian(sigma * _STEPS_OF_NOISE), groups) / _STEPS_OF_NOISE)


def walk(
    groups: Groups, levels: Sequence[int], place: int, target: RelativeError, source: NoiseSource
) -> list[tuple[int, Step]]:
    """Return the places and steps from one place on, as a question takes them on fresh rises.

    Args:
        groups: what is asked for.
        levels: the grid in nano-rho.
        place: where the first step is.
        target: the rule.
        source: where noise comes from.

    """
    released = {one: np.zeros_like(exact) for one, exact in groups.exact.items()}
    found: list[tuple[int, Step]] = []
    before, shown = 0, np.zeros(len(groups.exact[PRESENCE]), dtype=np.bool_)
    while True:
        level = levels[place]
        for one, exact in groups.exact.items():
            # a rise averages what was released with a fresh release at the difference of the levels
            sigma = groups.noise[one] * (NANO / (level - before)) ** 0.5
            drawn = noise(sigma, len(exact), source)
            released[one] = (before * released[one] + (level - before) * (exact + drawn)) / level
        # a group that one step has shown stays
        shown |= groups.shown(level, released)
        step, before = groups.step(level, released, np.flatnonzero(shown), 1.0 - target.confidence), level
        found.append((place, step))
        after = place_after(step, levels, place, len(found), target)
        if after is None:
            return found
        place = after


def shown(step: Step, target: RelativeError) -> tuple[Column, ...]:
    """Return the columns of a step, with the half widths that the target's confidence has."""
    return step.columns(quantile_of(target))
