"""The points of one statistic at many levels: the top rises by composition, all below is post-processing.

A point is the noisy values of a statistic, and for a presence count its noisy floor, on one grid. Rising averages the
highest point with a fresh release at the difference of levels, weighted by inverse variance: whoever holds both points
holds the fresh release, so all rises together cost what the highest level costs. Every other point is drawn from its
neighbours among the points there are and fresh noise of the same shape; nothing of the data is read for it.

*Source*: Andersson, Retschmeier, Nelson and Pagh, Lemmas 3.1 to 3.3; docs/proofs/cascade.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from dpsql.mechanisms.correlated_gaussian import CorrelatedGaussian
from dpsql.mechanisms.entropy import Entropy
from dpsql.mechanisms.laws.gaussian import Combination, between, fall, rise, towards
from dpsql.mechanisms.rounded_gaussian import RoundedGaussian
from dpsql.query.frame import NANO, PRESENCE, Statistic
from dpsql.release.histogram import Histogram, NoisyHistogram

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


def noise_of(statistic: Statistic, histogram: Histogram, entropy: Entropy) -> Noise:
    """Noise of a statistic's shape, for post-processing: it reads no data and costs nothing."""

    def of_counts(count: int, sigma: float) -> NoisyHistogram:
        source = CorrelatedGaussian(sigma, histogram.correlation)
        noise = source.draw(count, entropy)
        shared = histogram.floor_correlation
        return NoisyHistogram(noise.values, 0 if shared is None else source.floor_noise(shared, noise, entropy))

    def of_sums(count: int, sigma: float) -> NoisyHistogram:
        return NoisyHistogram(RoundedGaussian(sigma * 2.0**-statistic.noise_exponent).draw(count, entropy), 0)

    return of_counts if statistic == PRESENCE else of_sums


def risen(held: Placed, fresh: Placed) -> NoisyHistogram:
    """The point at the sum of both levels: both averaged by inverse variance.

    *Guarantee*: post-processing of two releases, the second of which was charged for its own level.
    *Shapes*: both over all keys of the frame.
    """
    made = rise(_level(held.rho_nano), _level(held.rho_nano + fresh.rho_nano))
    return _towards(held.noisy, fresh.noisy, made.weight)


def lowered(high: Placed, low: Placed | None, rho_nano: int, noise: Noise) -> NoisyHistogram:
    """The point at a level below ``high``, and above ``low`` where there is one: a bridge, or a step down.

    *Guarantee*: post-processing of points that were paid for.
    *Shapes*: both over the same keys.
    """
    level, top = _level(rho_nano), _level(high.rho_nano)
    made = fall(top, level) if low is None else between(_level(low.rho_nano), level, top)
    base = high.noisy if low is None else _towards(high.noisy, low.noisy, made.weight)
    return added(base, noise(len(base.values), _own_sigma(high.rho_nano, high.sigma, made)))


def added(base: NoisyHistogram, noise: NoisyHistogram) -> NoisyHistogram:
    """Values and floor, with noise."""
    return NoisyHistogram(base.values + noise.values, base.floor + noise.floor)


def _level(rho_nano: int) -> Fraction:
    return Fraction(rho_nano, NANO)


def _own_sigma(rho_nano: int, sigma: float, made: Combination) -> float:
    """Standard deviation of the noise that a combination adds, scaled from what a level has."""
    return sigma * math.sqrt(float(made.unit_variance * 2 * _level(rho_nano)))


def _towards(base: NoisyHistogram, other: NoisyHistogram, weight: Fraction) -> NoisyHistogram:
    floor = towards(np.array([base.floor]), np.array([other.floor]), weight)
    return NoisyHistogram(towards(base.values, other.values, weight), int(floor[0]))
