"""The points of one statistic at many levels: the top rises by composition, all below is post-processing.

A point is the noisy values of a statistic, and for a presence count its noisy floor, on one grid. Rising averages the
highest point with a fresh release at the difference of levels, weighted by inverse variance: whoever holds both points
holds the fresh release, so all rises together cost what the highest level costs. Every other point is drawn from its
neighbours among the points there are and fresh noise of the same shape; nothing of the data is read for it.

`Cascade` is the same of one array in memory, under any law.

*Source*: Andersson, Retschmeier, Nelson and Pagh, Lemmas 3.1 to 3.3; docs/proofs/cascade.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from dpsql.errors import ReleaseError
from dpsql.mechanism.histogram import Histogram, NoisyHistogram
from dpsql.model.frame import NANO, PRESENCE, Statistic
from dpsql.noise.correlated_gaussian import CorrelatedGaussian
from dpsql.noise.entropy import Entropy, NoiseSource, SystemEntropy
from dpsql.noise.laws.gaussian import between, fall, rise, towards
from dpsql.noise.laws.law import Law
from dpsql.noise.rounded_gaussian import RoundedGaussian

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Placed:
    """A point at its level.

    Attributes:
        rho_nano: its level.
        sigma: standard deviation of each key's own noise at that level, in units.
        noisy: its values and floor; a floor of 0 where there is none.

    """

    rho_nano: int
    sigma: float
    noisy: NoisyHistogram


Noise = Callable[[int, float], NoisyHistogram]
"""Noise alone, of the statistic's shape: for so many keys, at a standard deviation of each key's own, in units."""


def noise_of(statistic: Statistic, histogram: Histogram | None, source: NoiseSource) -> Noise:
    """Noise of a statistic's shape, for post-processing: it reads no data and costs nothing.

    Only noise of a presence count depends on the histogram.
    """
    if statistic != PRESENCE or histogram is None:
        return own_noise(statistic.noise_exponent, source)

    def of_counts(count: int, sigma: float) -> NoisyHistogram:
        noise = source.draw(CorrelatedGaussian(sigma, histogram.correlation, histogram.floor_correlation), count)
        return NoisyHistogram(noise.values, noise.floor)

    return of_counts


def own_noise(exponent: int, source: NoiseSource) -> Noise:
    """Independent noise in steps of 2**exponent of a unit, for post-processing like `noise_of`."""
    return lambda count, sigma: NoisyHistogram(source.draw(RoundedGaussian(sigma * 2.0**-exponent), count), 0)


def risen(held: Placed, fresh: Placed) -> NoisyHistogram:
    """The point at the sum of both levels: both averaged by inverse variance.

    *Guarantee*: post-processing of two releases, the second of which was charged for its own level.
    *Shapes*: both over all keys of the frame.
    """
    weight = rise(_level(held.rho_nano), _level(held.rho_nano + fresh.rho_nano)).weight
    return _towards(held.noisy, fresh.noisy, weight)


def lowered(high: Placed, low: Placed | None, rho_nano: int, noise: Noise) -> NoisyHistogram:
    """The point at a level below ``high``, and above ``low`` where there is one: a bridge, or a step down.

    *Guarantee*: post-processing of points that were paid for.
    *Shapes*: both over the same keys.
    """
    level, top = _level(rho_nano), _level(high.rho_nano)
    if low:
        made = between(_level(low.rho_nano), level, top)
        base = _towards(high.noisy, low.noisy, made.weight)
    else:
        made, base = fall(top, level), high.noisy
    # scaled from the noise that the higher level has
    own_sigma = high.sigma * math.sqrt(float(made.unit_variance * 2 * top))
    own = noise(len(base.values), own_sigma)
    return NoisyHistogram(base.values + own.values, base.floor + own.floor)


def _level(rho_nano: int) -> Fraction:
    return Fraction(rho_nano, NANO)


def _towards(base: NoisyHistogram, other: NoisyHistogram, weight: Fraction) -> NoisyHistogram:
    floor = towards(np.array([base.floor]), np.array([other.floor]), weight)
    return NoisyHistogram(towards(base.values, other.values, weight), int(floor[0]))


class Cascade:
    """The points (level, noisy values) of one statistic under one law.

    *Guarantee*: all points together cost what their highest level costs under the law, when all rows of one unit are
    added or removed; the caller charges each rise before asking for it.
    *Source*: Andersson, Retschmeier, Nelson and Pagh, Algorithm 1 and Lemma A.2 (``ceiling``); docs/proofs/cascade.md.
    *Assumes*: exact values that stay what they are; a law's docstring says what its levels mean.

    Args:
        law: the noise.
        exact: int64 in lattice steps, one per key.
        ceiling: draw once at this level and forget the exact values; no level above it can be had then.
        entropy: where noise comes from.

    """

    def __init__(
        self, law: Law, exact: Integers, *, ceiling: Fraction | None = None, entropy: Entropy | None = None
    ) -> None:
        self._law = law
        self._entropy = entropy or SystemEntropy()
        self._points: dict[Fraction, Integers] = {}
        self._exact: Integers | None = exact.copy()
        if ceiling is not None:
            self.release(ceiling)
            self._exact = None

    def __repr__(self) -> str:
        return f"Cascade({self._law!r}, levels={[str(level) for level in self.points]})"

    @property
    def points(self) -> MappingProxyType[Fraction, Integers]:
        """Every point, most private first."""
        return MappingProxyType(dict(sorted(self._points.items())))

    def release(self, level: Fraction) -> Integers:
        """The point at a level: stored, between its neighbours, below the lowest, or risen above the highest.

        *Returns*: int64 in lattice steps; the same array for the same level.
        *Raises*: ReleaseError above a ceiling; CalibrationError for a level that the law has not.
        """
        if level not in self._points:
            made = self._made(level)
            made.setflags(write=False)
            self._points[level] = made
        return self._points[level]

    def _made(self, level: Fraction) -> Integers:
        # the next ones, with their levels
        above = [(self._points[known], known) for known in sorted(self._points) if known > level][:1]
        below = [(self._points[known], known) for known in sorted(self._points) if known < level][-1:]
        if above and below:
            return self._law.bridge(*below[0], *above[0], level, self._entropy)
        if above:
            return self._law.step_down(*above[0], level, self._entropy)
        if self._exact is None:
            raise ReleaseError("this cascade was drawn at its ceiling, and its exact values are forgotten")
        if below:
            return self._law.step_up(*below[0], level, self._exact, self._entropy)
        return self._law.draw(self._exact, level, self._entropy)
