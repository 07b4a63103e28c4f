"""Discrete Laplace noise on all numbers of a frame: epsilon, with a delta of 0 but for thresholds of private keys.

Levels are epsilons, and they add up. The mechanism is that of units with ``composition := 'pure'``, and of no others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dpsql.accounting.composition import Composition
from dpsql.mechanism.histogram import Histogram, HistogramMechanism, Shares
from dpsql.mechanism.measure import (
    FLOAT_SLACK,
    MISS,
    Floats,
    Grid,
    Integers,
    Level,
    Measure,
    NoisyHistogram,
    Placed,
    Term,
)
from dpsql.model.frame import NANO, Frame, Statistic
from dpsql.noise.correlated_gaussian import GRID_BITS
from dpsql.noise.entropy import Entropy, NoiseSource
from dpsql.noise.laplace_laws import LaplaceLaw

LAW = LaplaceLaw(sensitivity=1)
"""Its level is the epsilon of one step."""
_MOST = 64.0
"""Largest epsilon of a step that the law draws."""
_MOST_TOLD = 600.0
"""Largest epsilon of a step whose standard deviation is told; that of larger ones could be no float."""
_APART = 1e-3
"""Scales of draws in a sum are taken to differ by this share at least; larger ones make half widths larger."""
_NONE = 1e-13
"""Standard deviation in steps below which noise is 0 but once in 10^26 draws."""
_LEAST = 1e-100
"""Scale below which noise is none."""
_HALVINGS = 60


@dataclass(frozen=True, slots=True)
class LaplaceSteps:
    """Noise in steps: what a draw of the law makes of zeros."""

    drawn: Callable[[Integers, Entropy], Integers]

    def draw(self, count: int, entropy: Entropy) -> Integers:
        """Return the noise of so many values."""
        return self.drawn(np.zeros(count, dtype=np.int64), entropy)


@dataclass(frozen=True, slots=True)
class LaplaceMeasure(Measure):
    """Discrete Laplace noise on whole steps of each statistic's values.

    *Guarantee*: releases whose levels add up to epsilon are (epsilon, 0)-differentially private when all rows of one
    unit are added or removed; draws are exact.
    *Source*: Dwork, McSherry, Nissim and Smith 2006, Proposition 1; Ghosh, Roughgarden and Sundararajan 2009, for whole
    numbers; basic composition, docs/proofs/ledger.md.
    *Randomness*: `LaplaceLaw`.
    """

    composition: Composition = "pure"
    shows_origin: bool = False
    amount: ClassVar[str] = "epsilon"
    rises: ClassVar[bool] = False
    in_steps: ClassVar[bool] = True

    def require(self, grid: Grid, sigma: float) -> None:
        """Find out that noise can be drawn. See `Measure`."""
        LAW.ratio(step_epsilon(grid, sigma))

    def draw(self, grid: Grid, sigma: float, count: int, source: NoiseSource) -> NoisyHistogram:
        """Return one independent draw for each key. See `Measure`. *Randomness*: one draw a key."""
        level = step_epsilon(grid, sigma)
        noise = source.draw(LaplaceSteps(lambda zeros, entropy: LAW.draw(zeros, level, entropy)), count)
        return NoisyHistogram(noise << grid.shift, 0)

    def lowered(
        self,
        grid: Grid,
        high: Placed,
        low: Placed | None,
        rho_nano: int,  # noqa: ARG002 — sigma tells the level
        sigma: float,
        source: NoiseSource,
    ) -> NoisyHistogram:
        """Return a step down from a point, which has the law of a fresh draw at the lower level. See `Measure`.

        *Source*: docs/proofs/cascade.md, Theorems 4 and 5.
        """
        if low:
            raise AssertionError("levels of this law are no chain")
        top, values = step_epsilon(grid, high.sigma), high.noisy.values
        bottom = min(top, step_epsilon(grid, sigma))
        steps = LaplaceSteps(lambda zeros, entropy: LAW.step_down(zeros, top, bottom, entropy))
        return NoisyHistogram(values + (source.draw(steps, len(values)) << grid.shift), 0)

    def epsilon(self, delta: float, rho: float) -> float:  # noqa: ARG002 — levels are epsilons
        """Return the sum of the levels. See `Measure`."""
        return rho

    def converted_delta(self, delta: float) -> float:  # noqa: ARG002
        """Return 0: nothing is converted. See `Measure`."""
        return 0.0

    def quantile(self, miss: float) -> float:
        """Return the size above which there is e^(-sqrt(2) size) / 2 = miss. See `Measure`."""
        return -math.log(2.0 * miss) / math.sqrt(2.0)

    def tail(self, size: npt.ArrayLike) -> Floats:
        """Return what is above a size. See `Measure`."""
        sizes = np.asarray(size, dtype=np.float64)
        beyond = np.exp(-math.sqrt(2.0) * np.abs(sizes)) / 2.0
        return np.where(sizes < 0.0, 1.0 - beyond, beyond)

    def half_width(
        self, noises: Sequence[Term], roundings: int = 0, miss: float = MISS, wider: Floats | float = 1.0
    ) -> Floats:
        """Return the half width of the interval of a draw, exact, or of a sum of draws. See `Measure`.

        *Guarantee*: of one draw it is the smallest number of steps k with Pr[|X| > k] = 2 a^(k+1) / (1 + a) <= miss,
        a = e^-epsilon, and what roundings add to steps that are not whole. Of several draws it is that of continuous
        Laplace noises, and as much more as `_continuous` says.
        """
        missed, draws = (
            miss ** np.asarray(wider),
            [one for one in noises if np.any(one.sigma > _NONE * one.step)] or noises[:1],
        )
        if len(draws) == 1 and np.all(draws[0].step):
            # a multiple of a whole step is shown as it is
            rounded = roundings / 2.0 if np.any(np.mod(draws[0].step, 1.0)) else 0.0
            return np.asarray(whole_half_width(draws[0], missed) + rounded, dtype=np.float64)
        scales, beside = _continuous(draws)
        return np.asarray(sum_half_width(scales, missed) + beside + roundings / 2.0, dtype=np.float64)

    def is_beyond(self, noises: Sequence[Term], size: Floats, wider: Floats | float = 1.0) -> npt.NDArray[np.bool_]:
        """Tell if a sum of draws exceeds a size with a probability of less than what intervals miss. See `Measure`."""
        scales, beside = _continuous(noises)
        apart = _apart(scales, size)
        return np.asarray(_tail_of_sum(apart, _weights(apart), np.maximum(size - beside, 0.0)) < MISS**wider)


def epsilon_of(deviation: Floats) -> Floats:
    """Return the epsilon of a step from the standard deviation in steps, sqrt(2 a) / (1 - a) with a = e^-epsilon.

    >>> float(np.round(epsilon_of(np.array(1.3570)), 3))
    1.0
    """
    variance = np.square(deviation)
    root = np.sqrt(1.0 + 2.0 * variance)
    # each of both forms has all its digits where it is used
    ratio, rest = variance / (1.0 + variance + root), (1.0 + root) / (1.0 + variance + root)
    near = np.log(np.maximum(ratio, 1e-300)), np.log1p(-np.minimum(rest, 0.9))
    return np.asarray(-np.where(ratio < 0.5, *near), dtype=np.float64)


def deviation_of(epsilon: float) -> float:
    """Return the standard deviation in steps of an epsilon of a step."""
    return math.sqrt(2.0) * math.exp(-epsilon / 2.0) / -math.expm1(-epsilon)


def step_epsilon(grid: Grid, sigma: float) -> Fraction:
    """Return the epsilon of one step of a statistic's values. Sigma is rounded up by more than this rounds.

    Noise of more than `_MOST` is drawn as that: it is 0 but once in 10^27 draws.
    """
    return Fraction(min(_MOST, float(epsilon_of(np.array(sigma * 2.0**-grid.lattice_exponent)))))


def whole_half_width(term: Term, miss: Floats | float) -> Floats:
    """Return the smallest multiple of a draw's step that the draw exceeds with a probability of at most ``miss``."""
    epsilon = epsilon_of(np.asarray(term.sigma) / term.step)
    ends = -np.log(miss * (1.0 + np.exp(-epsilon)) / 2.0) / epsilon - 1.0
    return np.asarray(np.maximum(np.ceil(ends), 0.0) * term.step, dtype=np.float64)


def _continuous(draws: Sequence[Term]) -> tuple[list[Floats], Floats]:
    """Return scales of continuous Laplace noises, and by how much more a sum of draws may be away from 0.

    *Guarantee*: Pr[|sum of draws| > h + more] <= Pr[|sum of noises| > h].
    *Proof*: a draw X has steps of 1, a = e^-epsilon, and d = ln(2 / (1 + a)) / epsilon, which is at most 1/2. Y is
    continuous of the scale 1 / epsilon. For one uniform variate the quantiles X = k and Y have k - d <= Y <= k + 1 - d,
    so that |X - Y| is at most max(d, 1 - d). One draw can have less: Pr[|X| >= k] = 2 a^k / (1 + a) = Pr[|Y| >= k - d],
    so |X| is at most d + |Y| in law. What is beside it is continuous, symmetric and unimodal, and with it the
    probability of a large sum rises with |X| (Wintner 1938). So one draw adds d, and each other one max(d, 1 - d). ∎
    """
    scales, most, spared = [], [], []
    for draw in draws:
        sigma, step = np.asarray(draw.sigma, dtype=np.float64), np.asarray(draw.step, dtype=np.float64)
        has_steps = (sigma > 0.0) & (step > 0.0)
        epsilon = epsilon_of(np.where(has_steps, sigma / np.where(has_steps, step, 1.0), 1.0))
        scales.append(np.where(has_steps, step / epsilon, sigma / math.sqrt(2.0)))
        place = np.log(2.0 / (1.0 + np.exp(-epsilon))) / epsilon
        most.append(np.where(has_steps, step * (1.0 - place), 0.0))
        spared.append(np.where(has_steps, step * (1.0 - 2.0 * place), 0.0))
    more = sum(most) - np.max(np.stack(np.broadcast_arrays(*spared)), axis=0)
    return scales, np.asarray(more, dtype=np.float64)


def sum_half_width(scales: Sequence[Floats], miss: Floats | float) -> Floats:
    """Return a number that the size of a sum of continuous Laplace noises exceeds with a probability of ``miss``."""
    apart = _apart(scales, np.asarray(miss))
    weights = _weights(apart)
    low, high = np.zeros_like(apart[0]), -apart.sum(axis=0) * np.log(np.divide(miss, len(apart)))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        is_more = _tail_of_sum(apart, weights, middle) > miss
        low, high = np.where(is_more, middle, low), np.where(is_more, high, middle)
    return np.asarray(high, dtype=np.float64)


def _apart(scales: Sequence[Floats], beside: Floats) -> Floats:
    """Return scales in their order; those that are too near to each other are taken a little apart, upwards.

    They have the shape of what is ``beside``, too.

    *Guarantee*: a larger scale is the smaller one with more independent noise, and makes the size of a sum no smaller
    in law.
    """
    ordered = np.sort(np.stack(np.broadcast_arrays(*scales, beside)[:-1]).astype(np.float64), axis=0)
    ordered = np.maximum(ordered, np.maximum(1e-9 * ordered[-1], _LEAST))
    for place in range(1, len(ordered)):
        ordered[place] = np.maximum(ordered[place], ordered[place - 1] * (1.0 + _APART))
    return np.asarray(ordered)


def _weights(apart: Floats) -> Floats:
    """Return the product of b^2 / (b^2 - c^2) over the other scales c of each scale b."""
    squares, weights = np.square(apart), np.ones_like(apart)
    for place in range(len(apart)):
        for other in range(len(apart)):
            if other != place:
                weights[place] *= squares[place] / (squares[place] - squares[other])
    return weights


def _tail_of_sum(apart: Floats, weights: Floats, size: Floats) -> Floats:
    """Return the probability that the size of a sum of continuous Laplace noises is larger than a number.

    *Source*: partial fractions of the product of 1 / (1 + b^2 t^2): it is the sum over the scales b of e^(-size / b)
    times their weights.
    """
    return np.asarray((weights * np.exp(-size / apart)).sum(axis=0))


LAPLACE_MEASURE = LaplaceMeasure()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceHistogram(Histogram):
    """Keys with independent discrete Laplace noise on every number; private ones pass a threshold.

    *Guarantee*: each statistic is (epsilon, 0)-differentially private at its level epsilon when all rows of one unit
    are added or removed. *Source*: as `LaplaceMeasure`. One unit moves `unit_groups` numbers, each by at most the
    radius of the statistic: that is its l1 sensitivity.
    """

    measure: ClassVar[Measure] = LAPLACE_MEASURE

    def sum_sigma(self, statistic: Statistic, rho: float) -> float:
        """Return the standard deviation of discrete Laplace noise at a level, rounded up; of a count, too."""
        steps = self.unit_groups * statistic.radius_steps
        return deviation_of(min(_MOST_TOLD, rho / steps)) * 2.0**statistic.lattice_exponent * FLOAT_SLACK

    def query_rho(self, epsilon: float, delta: float, shares: Shares) -> float:  # noqa: ARG002 — levels are epsilons
        """Return the level of a query."""
        return epsilon

    def guarantee(
        self,
        levels: tuple[Level, ...],
        tau: float | None,
        delta: float,  # noqa: ARG002 — a threshold alone costs any
        auto_nano: int,
    ) -> tuple[float, float]:
        """Return the sum of the levels, rounded up, and the delta of the threshold. See `Histogram`."""
        exact = Fraction(sum(level.rho_nano for level in levels) + auto_nano, NANO)
        epsilon = float(exact)
        shown = self.threshold_delta(levels[0].sigma, tau)
        return (epsilon if epsilon >= exact else math.nextafter(epsilon, math.inf)), shown

    def threshold(self, delta: float, sigma: float) -> float | None:
        """Return the least whole tau at which a unit alone in its groups shows one of them with at most delta.

        *Guarantee*: docs/proofs/ledger.md, Corollary (pure epsilon). A unit that is alone in its groups counts 1 in
        each, and shows none with (1 - Pr[Z > tau])^unit_groups, Z the noise and Pr[Z > tau] = a^(tau + 1) / (1 + a).
        """
        if not self.hides:
            return None
        epsilon = self._epsilon(sigma)
        most = -math.expm1(math.log1p(-delta) / self.unit_groups)
        tau = max(0, math.ceil(-math.log(most * (1.0 + math.exp(-epsilon))) / epsilon - 1.0))
        while self.threshold_delta(sigma, float(tau)) > delta:
            tau += 1
        return float(tau)

    def threshold_delta(self, sigma: float, tau: float | None) -> float:
        """Return the chance that a unit alone in its groups shows one of them, rounded up."""
        if tau is None:
            return 0.0
        epsilon = self._epsilon(sigma)
        # a float tau may be none of these noises; what exceeds it is at least the next whole number
        log_tail = -epsilon * (math.floor(tau) + 1.0) - math.log1p(math.exp(-epsilon))
        shown = -math.expm1(self.unit_groups * math.log1p(-math.exp(log_tail)))
        return min(1.0, shown * FLOAT_SLACK)

    def _epsilon(self, sigma: float) -> float:
        return float(step_epsilon(Grid(-GRID_BITS, 0), sigma))


def _histogram(frame: Frame) -> LaplaceHistogram:
    groups, hides = frame.unit_groups, frame.has_private_keys
    return LaplaceHistogram(name="laplace", unit_groups=groups, draws=0, sum_draws=0, hides=hides)


LAPLACE = HistogramMechanism(
    name="laplace",
    word="LAPLACE",
    sentence="discrete Laplace noise on every key; private keys pass a threshold",
    without=frozenset(
        {
            *("composition = gaussian", "composition = zcdp"),
            *("bounding = L2", "AUTO", "running totals or buckets", "GROUPING SETS", "quantiles"),
        }
    ),
    histogram=lambda frame, _: _histogram(frame),
)
