"""Four methods that return counts within a relative error, each over many trials at once.

A trial has the counts of all keys, and one unit moves each of them by 0 or 1. Two methods are those of section 7.2 of
"Adaptive privacy composition for accuracy-first mechanisms" (Rogers, Samorodnitsky, Wu and Ramdas, 2023): doubling, and
Brownian noise reduction. The other two release all keys at one level, and by `dpsql/mechanism/chosen_counts.py`.

Noise is numpy's with a seed, because only accuracy is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from benchmarks.chosen_intervals import ERROR, PLAIN, FirstRelease, noised
from dpsql.accounting.weighted_gaussian import equal_variance, with_best_common
from dpsql.mechanism import chosen_counts
from dpsql.mechanism.chosen_counts import Goal

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Generator = np.random.Generator

CHOICE = 0.1
"""The epsilon of the exponential mechanism, which chooses the next key."""
SMALLEST = 1e-4
"""The first squared parameter of doubling and of Brownian noise reduction."""
GRID = 1000
"""Brownian noise reduction looks at so many squared parameters, equally spaced."""
RULE_OF_PAPER = (2.0 + ERROR) / ERROR
"""The least estimate, in its standard deviations, by the paper: (x + 1) / (x - 1) <= 1 + error, so x is 21 or more."""
HALF_WIDTH = PLAIN / ERROR
"""The least estimate, in its standard deviations, whose half width at 95 % is within the error."""


@dataclass(frozen=True)
class Budget:
    """Budget of a trial, and the cost of a choice in it.

    Attributes:
        name: of the composition behind it.
        squared: the largest sum of squared parameters; twice the rho.
        choice: what one choice by the exponential mechanism adds to this sum.

    """

    name: str
    squared: float
    choice: float


@dataclass(frozen=True, eq=False)
class Returned:
    """The counts that a method returned in each trial. *Shapes*: (trials,).

    Attributes:
        counts: number of counts that were returned.
        right: those of them that are within the relative error of the true count.

    """

    counts: Floats
    right: Floats

    @property
    def precision(self) -> Floats:
        """Return the share of right counts in each trial, 1 if none was returned."""
        return np.where(self.counts > 0, self.right / np.maximum(self.counts, 1), 1.0)


Method = Callable[[Floats, Budget, Generator], Returned]
"""Takes the true counts, *shape*: (trials, keys)."""


@dataclass(frozen=True, eq=False)
class Attempt:
    """One attempt, in each of several trials, to measure the chosen count. *Shapes*: (trials,).

    Attributes:
        estimates: of the counts.
        accepted: where the stopping rule is met.
        paid: sum of the squared parameters that were used.

    """

    estimates: Floats
    accepted: Flags
    paid: Floats


def doubled(true: Floats, left: Floats, generator: Generator, needed: float = RULE_OF_PAPER) -> Attempt:
    """Release each count with a squared parameter that doubles until the rule is met; pay for every release.

    Args:
        true: the count of each trial. *Shape*: (trials,).
        left: the budget of each, at least the smallest parameter. *Shape*: (trials,).
        generator: of the noise.
        needed: the least estimate that is accepted, in its standard deviations.

    """
    most = int(np.log2(left.max() / SMALLEST + 1.0))
    squared = SMALLEST * 2.0 ** np.arange(most)
    paid = np.cumsum(squared)
    values = true[:, None] + generator.standard_normal((len(true), most)) / np.sqrt(squared)
    fits = paid <= left[:, None]
    met = fits & (values * np.sqrt(squared) >= needed)
    accepted = np.asarray(met.any(axis=1))
    last = np.where(accepted, met.argmax(axis=1), fits.sum(axis=1) - 1)
    return Attempt(values[np.arange(len(true)), last], accepted, paid[last])


def reduced(true: Floats, left: Floats, generator: Generator, needed: float = RULE_OF_PAPER) -> Attempt:
    """Reduce the noise of each count along a Brownian path until the rule is met; pay for the last parameter.

    With r a squared parameter and y the count, r times the released value is y r + W(r), W a Brownian motion.

    Args:
        true: the count of each trial. *Shape*: (trials,).
        left: the budget of each, at least the smallest parameter. *Shape*: (trials,).
        generator: of the noise.
        needed: the least estimate that is accepted, in its standard deviations.

    """
    squared = np.linspace(SMALLEST, left, GRID, axis=1)
    increments = np.diff(squared, axis=1, prepend=0.0)
    path = np.sqrt(increments)
    path *= generator.standard_normal(path.shape)
    path += true[:, None] * increments
    np.cumsum(path, axis=1, out=path)
    met = path >= needed * np.sqrt(squared)
    accepted = np.asarray(met.any(axis=1))
    last = np.where(accepted, met.argmax(axis=1), GRID - 1)
    rows = np.arange(len(true))
    return Attempt(path[rows, last] / squared[rows, last], accepted, squared[rows, last])


def by_choice(
    true: Floats, budget: Budget, generator: Generator, attempt: Callable[[Floats, Floats, Generator], Attempt]
) -> Returned:
    """Choose one key after the other by the exponential mechanism, and attempt to measure each.

    Choices without replacement are the order of the counts with one draw of Gumbel noise each (Durfee and Rogers 2019).
    A trial ends when its budget has no room for a choice and the smallest parameter.
    """
    trials, keys = true.shape
    order = np.argsort(-(true + generator.gumbel(scale=1.0 / CHOICE, size=true.shape)), axis=1)
    ordered = np.take_along_axis(true, order, axis=1)
    left = np.full(trials, budget.squared)
    counts, right = np.zeros(trials), np.zeros(trials)
    for place in range(keys):
        going = np.flatnonzero(left >= budget.choice + SMALLEST)
        if not len(going):
            break
        left[going] -= budget.choice
        found = attempt(ordered[going, place], left[going], generator)
        left[going] -= found.paid
        counts[going] += found.accepted
        right[going] += found.accepted & within(found.estimates, ordered[going, place])
    return Returned(counts, right)


def within(estimates: Floats, true: Floats) -> Flags:
    """Return where an estimate is within the relative error of the true count."""
    return np.asarray(np.abs(estimates - true) <= ERROR * true)


def doubling(true: Floats, budget: Budget, generator: Generator) -> Returned:
    """Choose keys, and double the squared parameter of each."""
    return by_choice(true, budget, generator, doubled)


def brownian(true: Floats, budget: Budget, generator: Generator, needed: float = RULE_OF_PAPER) -> Returned:
    """Choose keys, and reduce the noise of each."""
    return by_choice(true, budget, generator, partial(reduced, needed=needed))


def one_level(true: Floats, budget: Budget, generator: Generator) -> Returned:
    """Release all keys at one level, and return those whose half width is within the error."""
    total = equal_variance(true.shape[1], budget.squared / 2.0)
    values = noised(true, with_best_common(np.full(true.shape[1], total)), generator)
    shown = values >= HALF_WIDTH * np.sqrt(total)
    return Returned(shown.sum(axis=1, dtype=float), (shown & within(values, true)).sum(axis=1, dtype=float))


@dataclass(frozen=True)
class Rule:
    """Constants that two releases are chosen by; its defaults are those of `dpsql/mechanism/chosen_counts.py`.

    Attributes:
        first_part: the first release has one part in so many of the level.
        margin: number of standard deviations that are taken off a released count.
        room: half widths are chosen smaller by this factor.

    """

    first_part: float = chosen_counts.FIRST_PART
    margin: float = chosen_counts.MARGIN
    room: float = chosen_counts.ROOM

    @contextmanager
    def in_the_library(self) -> Iterator[None]:
        """Let the library choose by the margin and the room of this rule until the end of a `with` statement."""
        before = chosen_counts.MARGIN, chosen_counts.ROOM
        chosen_counts.MARGIN, chosen_counts.ROOM = self.margin, self.room
        try:
            yield
        finally:
            chosen_counts.MARGIN, chosen_counts.ROOM = before


def two_releases(true: Floats, budget: Budget, generator: Generator, rule: Rule | None = None) -> Returned:
    """Release all keys, then the largest with chosen variances, and return the counts that are within the error."""
    rule = rule or Rule()
    rho = budget.squared / 2.0
    first_rho = rho / rule.first_part
    variances = with_best_common(np.ones(true.shape[1])).at(first_rho)
    counts, right = np.zeros(len(true)), np.zeros(len(true))
    with rule.in_the_library():
        for trial, released in enumerate(noised(true, variances, generator)):
            first = FirstRelease(true[trial], released, variances)
            rows = first.rows(Goal(HALF_WIDTH), rho - first_rho, generator)
            counts[trial], right[trial] = len(rows.truths), rows.is_within.sum()
    return Returned(counts, right)


METHODS: dict[str, Method] = {
    "doubling": doubling,
    "Brownian noise reduction": brownian,
    "all keys at one level": one_level,
    "two releases": two_releases,
    "Brownian, rule of half widths": partial(brownian, needed=HALF_WIDTH),
}
