"""Quantiles of intervals that are stopped by what was released: the table of `dpsql/features/target_rule.py`.

    python -m benchmarks.target_intervals                   # ten minutes

One number rises along a grid of levels until the rule of a question by relative error holds. Released values, times
their level, are a Brownian motion with a drift, so the number over its standard deviation is a Markov chain. The
probability that the last interval misses the truth follows backwards, level by level, by quadrature. The script prints
the least quantile at which it misses seldom enough, for every start and for the worst place of the truth on the grid.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from dpsql.features.target_levels import STEPS_PER_DOUBLING
from dpsql.features.target_rule import AHEAD, FREE_STEPS
from dpsql.mechanism.gaussian_walks import INTERVALS, QUANTILES, Table
from dpsql.mechanism.window import LEVELS_PER_DOUBLING

ERRORS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
ALIGNMENTS = 8
Floats = npt.NDArray[np.float64]
_REACH = 7.0
"""Values further from their mean than so many standard deviations are left out: below 3e-12 a step."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)
_PANEL = 0.5
"""The widest panel. The narrowest kernel has a standard deviation of 0.288, that of one step on the grid."""


@dataclass(frozen=True)
class Walk:
    """The steps of one number, in units of its standard deviation at each level.

    Attributes:
        error: the relative error that is asked for.
        rule: half width over standard deviation in the rule.
        stated: half width over standard deviation of the interval that is stated.
        shift: where the truth is between two levels, from 0 to 1.
        cap: steps of the grid from the level at which the truth is barely within the error to the last one, which
            need not be on the grid; None if the last one is never needed.
        per_doubling: levels of the grid in a doubling.
        below: doublings from the lowest level to the one at which the truth is barely within the error.

    """

    error: float
    rule: float
    stated: float
    shift: float
    cap: float | None = None
    per_doubling: int = STEPS_PER_DOUBLING
    below: int = 4

    @property
    def needed(self) -> float:
        """Return the number of standard deviations at which the rule holds."""
        return self.rule / self.error

    def truths(self) -> Floats:
        """Return the true value at each level, in standard deviations, lowest level first."""
        far = 2.0 * math.log2((self.needed + self.stated + _REACH) / self.needed)
        last = math.ceil(self.per_doubling * far) + 1.0 if self.cap is None else self.cap
        steps = np.append(np.arange(-self.below * self.per_doubling, math.ceil(last)), last) + self.shift
        return np.asarray(self.needed * 2.0 ** (steps / (2.0 * self.per_doubling)))

    def jumps(self, least: int) -> Iterator[tuple[int, float, float]]:
        """Yield the number of levels of the next step, at least a number, and which sizes of a value it is for."""
        high, jump = self.needed, least
        while high > 0.0:
            ratio = 2.0 ** (-(jump + 1) / self.per_doubling)
            low = max(0.0, self.needed * math.sqrt(ratio) - AHEAD * math.sqrt(1.0 - ratio))
            if low < high:
                yield jump, low, high
                high = low
            jump += 1

    def stopped_outside(self, mean: Floats, sd: float, truth: float) -> Floats:
        """Return the probability that a value is one that the rule stops at and its interval misses the truth."""
        above = special.ndtr((mean - max(self.needed, truth + self.stated)) / sd)
        below = special.ndtr((min(-self.needed, truth - self.stated) - mean) / sd)
        short = np.zeros_like(mean)
        if truth - self.stated > self.needed:
            short = special.ndtr((truth - self.stated - mean) / sd) - special.ndtr((self.needed - mean) / sd)
        return np.asarray(above + below + short)

    def outside(self, mean: Floats, sd: float, truth: float) -> Floats:
        """Return the probability that the interval of a value misses the truth."""
        above, below = (mean - truth - self.stated) / sd, (truth - self.stated - mean) / sd
        return np.asarray(special.ndtr(above) + special.ndtr(below))


@dataclass(frozen=True)
class _Level:
    """Nodes of the values that go on from one level.

    Attributes:
        truth: the true value in standard deviations.
        nodes: values.
        weights: of the quadrature.
        misses: probability that the last interval misses, a column for each number of steps taken; the last column is
            for all further numbers.

    """

    truth: float
    nodes: Floats
    weights: Floats
    misses: Floats


def misses(walk: Walk) -> Floats:
    """Return the probability that the interval of the last step misses the truth, for each level to start at."""
    truths = walk.truths()
    levels: dict[int, _Level] = {}
    found = np.zeros(len(truths))
    for place in reversed(range(len(truths))):
        if place < len(truths) - 1:
            levels[place] = _level(walk, truths, place, levels)
            found[place] = _arrival(walk, levels[place], np.array([truths[place]]), 1.0)[0, 0]
        else:
            found[place] = walk.outside(np.array([truths[place]]), 1.0, truths[place])[0]
    return found


def _level(walk: Walk, truths: Floats, place: int, above: dict[int, _Level]) -> _Level:
    """Return what follows from each value that goes on from a level."""
    truth, last = float(truths[place]), len(truths) - 1
    free, doubled = list(walk.jumps(1)), list(walk.jumps(walk.per_doubling))
    ends = sorted({0.0, *(end for _, *both in (*free, *doubled) for end in both)})
    edges = sorted({*ends, *(-end for end in ends)})
    nodes, weights = _quadrature(edges, truth)
    result = np.zeros((len(nodes), FREE_STEPS))
    size = np.abs(nodes)
    for columns, jumps in ((slice(0, FREE_STEPS - 1), free), (slice(FREE_STEPS - 1, None), doubled)):
        for jump, low, high in jumps:
            rows = (size >= low) & (size < high)
            if not rows.any():
                continue
            there = min(place + jump, last)
            ratio = (truths[place] / truths[there]) ** 2
            mean, sd = nodes[rows] * math.sqrt(ratio) + truths[there] * (1.0 - ratio), math.sqrt(1.0 - ratio)
            if there == last:
                result[rows, columns] = walk.outside(mean, sd, float(truths[last]))[:, None]
                continue
            then = _arrival(walk, above[there], mean, sd)
            # one more step is taken there
            result[rows, columns] = then[:, 1:] if columns.start == 0 else then[:, -1:]
    return _Level(truth, nodes, weights, result)


def _arrival(walk: Walk, level: _Level, mean: Floats, sd: float) -> Floats:
    """Return the probability that the last interval misses, given the law of the value at a level."""
    kernel = np.exp(-(((level.nodes[None, :] - mean[:, None]) / sd) ** 2) / 2.0) / (sd * math.sqrt(2.0 * math.pi))
    return np.asarray(walk.stopped_outside(mean, sd, level.truth)[:, None] + (kernel * level.weights) @ level.misses)


def _quadrature(edges: Sequence[float], truth: float) -> tuple[Floats, Floats]:
    """Return nodes and weights on all that lies between the edges and within reach of the truth."""
    nodes, weights = [np.zeros(0)], [np.zeros(0)]
    for low, high in itertools.pairwise(edges):
        start, end = max(low, truth - _REACH), min(high, truth + _REACH)
        if end <= start:
            continue
        panels = np.linspace(start, end, math.ceil((end - start) / _PANEL) + 1)
        half = np.diff(panels) / 2.0
        nodes.append(((panels[:-1] + half)[:, None] + half[:, None] * _NODES).ravel())
        weights.append((half[:, None] * _WEIGHTS).ravel())
    return np.concatenate(nodes), np.concatenate(weights)


def walks(error: float, rule: float, stated: float) -> Iterator[Walk]:
    """Yield walks on both grids, for some places of the truth between two levels, without a cap and with caps near."""
    for per_doubling in (STEPS_PER_DOUBLING, LEVELS_PER_DOUBLING):
        for number in range(ALIGNMENTS):
            yield Walk(error, rule, stated, number / ALIGNMENTS, per_doubling=per_doubling)
        for cap in np.arange(-1.0, 1.01, 1.0 / STEPS_PER_DOUBLING) * per_doubling:
            yield Walk(error, rule, stated, 0.0, float(cap), per_doubling)
            yield Walk(error, rule, stated, 0.5, float(cap), per_doubling)


def worst(error: float, rule: float, stated: float) -> tuple[float, Walk]:
    """Return the largest probability of a miss, of all starts, and the walk that has it."""
    return max(((float(misses(one).max()), one) for one in walks(error, rule, stated)), key=lambda found: found[0])


def least_quantile(error: float, confidence: float, rule: float | None, start: float) -> float:
    """Return the least quantile, in hundredths, whose intervals miss seldom enough.

    Args:
        error: the relative error that is asked for.
        confidence: that of the intervals.
        rule: the quantile of the rule; None if it is the one that is looked for.
        start: a first guess.

    """

    def is_enough(hundredths: int) -> bool:
        stated = hundredths / 100.0
        return worst(error, rule or stated, stated)[0] <= 1.0 - confidence

    hundredths = round(100.0 * start)
    while not is_enough(hundredths):
        hundredths += 1
    while is_enough(hundredths - 1):
        hundredths -= 1
    return hundredths / 100.0


def show(title: str, rules: Table, table: Table, confidence: float) -> None:
    """Print the quantiles beside those of a table, and how often intervals miss with the latter."""
    above = 0.0
    for (upper, rule), (_, stated) in zip(rules, table, strict=True):
        found = least_quantile(upper, confidence, None if table is rules else rule, stated)
        print(f"{title}, errors up to {upper:.0%}: {found}, in the table {stated}", flush=True)
        for error in ERRORS:
            if above < error <= upper:
                missed, walk = worst(error, rule, stated)
                print(f"  {error:.0%}: {missed:.5f} of the intervals miss, {walk}", flush=True)
        above = upper


def main() -> None:
    """Print both tables."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    for confidence, rules in QUANTILES.items():
        show(f"{confidence:.0%}", rules, rules, confidence)
    for confidence, rules in QUANTILES.items():
        if INTERVALS[confidence] is not QUANTILES[0.95]:
            show(f"95 % intervals beside the rule of {confidence:.0%}", rules, INTERVALS[confidence], 0.95)


if __name__ == "__main__":
    main()
