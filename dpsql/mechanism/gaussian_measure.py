"""The measure of Gaussian noise, and presence counts with it.

Noise is drawn rounded, averages are by inverse variance, and intervals those of the normal law.

Levels are rho of zCDP. A level's noise is that of the Gaussian mechanism at rho, so levels of one statistic are points
of one Brownian motion: they average by inverse variance, and lower ones are a bridge (docs/proofs/cascade.md).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from statistics import NormalDist
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dpsql.accounting import gaussian, zcdp
from dpsql.accounting.best_point import best_point
from dpsql.accounting.composition import Composition, gaussian_rho
from dpsql.accounting.profile import Profile, smallest_epsilon, smallest_query_threshold, smallest_threshold
from dpsql.mechanism.histogram import NOTHING_MOVED, Histogram, Moved, Shares
from dpsql.mechanism.measure import FLOAT_SLACK, MISS, Grid, Level, Measure, NoisyHistogram, Placed, RatioTerm, Term
from dpsql.model.frame import NANO, Statistic
from dpsql.noise.correlated_gaussian import CorrelatedGaussian, effective_tau, threshold_to_compare
from dpsql.noise.entropy import NoiseSource
from dpsql.noise.gaussian_laws import between, fall, rise, towards
from dpsql.noise.rounded_gaussian import RoundedGaussian, slack_delta, slack_delta_zcdp

Floats = npt.NDArray[np.float64]

_QUANTILES = {
    0.05: 1.6448536269514722,
    0.025: 1.959963984540054,
    0.0125: 2.241402727604947,
    0.05 / 6: 2.3939797998185104,
    0.005: 2.5758293035489004,
}
"""Quantiles of the normal law, by the probability above them; those of intervals that were stored or printed before."""
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


@dataclass(frozen=True, slots=True)
class GaussianMeasure(Measure):
    """Gaussian noise on every number; of counts it may be discrete.

    *Guarantee*: releases whose levels add up to rho are rho-zCDP when all rows of one unit are added or removed, and
    cost exactly one Gaussian shift of length sqrt(2 rho) if the composition is ``gaussian``; up to the imprecision of
    their draws. *Source*: docs/proofs/ledger.md, Theorem 2; Bun and Steinke 2016, Proposition 1.6 and Lemma 2.3.
    """

    composition: Composition
    shows_origin: bool = False

    def joint_epsilon(self, delta: float, rho: float) -> float:
        """Return the epsilon of one Gaussian release at rho, or that of zCDP."""
        if self.composition == "zcdp":
            return self.epsilon(delta, rho)
        return gaussian.epsilon(delta, math.sqrt(2.0 * rho) * FLOAT_SLACK, 1.0)

    def rho(self, epsilon: float, delta: float) -> float:
        """Return the largest rho to which levels may add up: exact for Gaussian noise, by zCDP for discrete."""
        if self.composition == "zcdp":
            return Measure.rho(self, epsilon, delta)
        return 0.5 / gaussian.sigma(epsilon, delta, 1.0) ** 2 / FLOAT_SLACK**3

    def budget_rho(self, epsilon: float, delta: float) -> float:
        """Return the rho that an exact budget of Gaussian noise has for (epsilon, delta)."""
        return gaussian_rho(epsilon, delta)

    imprecision = staticmethod(slack_delta_zcdp)
    imprecision_at = staticmethod(slack_delta)

    def require(self, grid: Grid, sigma: float) -> None:
        """Find out that noise is no wider than can be drawn. See `Measure`."""
        if grid.shape is None:
            RoundedGaussian(sigma * 2.0**-grid.exponent)
        else:
            CorrelatedGaussian(sigma, grid.shape.correlation, grid.shape.floor_correlation)

    def draw(self, grid: Grid, sigma: float, count: int, source: NoiseSource) -> NoisyHistogram:
        """Return noise alone: of each key its own, and of a shape a common term and a floor's. See `Measure`.

        *Source*: docs/proofs/rounded-gaussian.md and docs/proofs/correlated-gaussian.md.
        *Randomness*: one draw a key, and of a shape one for each shared term.
        """
        if grid.shape is None:
            return NoisyHistogram(source.draw(RoundedGaussian(sigma * 2.0**-grid.exponent), count), 0)
        noise = source.draw(CorrelatedGaussian(sigma, grid.shape.correlation, grid.shape.floor_correlation), count)
        return NoisyHistogram(noise.values, noise.floor)

    def risen(self, held: Placed, fresh: Placed) -> NoisyHistogram:
        """Return the average of both points by inverse variance. See `Measure`.

        *Source*: Andersson, Retschmeier, Nelson and Pagh, Lemma 3.1; docs/proofs/cascade.md.
        """
        weight = rise(_level(held.rho_nano), _level(held.rho_nano + fresh.rho_nano)).weight
        return _towards(held.noisy, fresh.noisy, weight)

    def lowered(
        self,
        grid: Grid,
        high: Placed,
        low: Placed | None,
        rho_nano: int,
        sigma: float,  # noqa: ARG002 — it follows from the level
        source: NoiseSource,
    ) -> NoisyHistogram:
        """Return a point of the Brownian bridge between two points, or a step down from one. See `Measure`.

        *Source*: Andersson, Retschmeier, Nelson and Pagh, Lemma 3.3; docs/proofs/cascade.md.
        """
        level, top = _level(rho_nano), _level(high.rho_nano)
        if low:
            made = between(_level(low.rho_nano), level, top)
            base = _towards(high.noisy, low.noisy, made.weight)
        else:
            made, base = fall(top, level), high.noisy
        # scaled from the noise that the higher level has
        own_sigma = high.sigma * math.sqrt(float(made.unit_variance * 2 * top))
        own = self.draw(grid, own_sigma, len(base.values), source)
        return NoisyHistogram(base.values + own.values, base.floor + own.floor)

    def quantile(self, miss: float) -> float:
        """Return the quantile of the normal law. See `Measure`.

        >>> GAUSSIAN.quantile(0.025)
        1.959963984540054
        """
        return _QUANTILES.get(miss) or -NormalDist().inv_cdf(miss)

    def half_width(
        self, noises: Sequence[Term], roundings: int = 0, miss: float = MISS, wider: Floats | float = 1.0
    ) -> Floats:
        """Return the half width of the interval of a normal number. See `Measure`."""
        sigma = reduce(np.hypot, [*(one.sigma for one in noises), math.sqrt(roundings / 12.0)])
        return np.asarray(self.quantile(miss / 2.0) * sigma * wider, dtype=np.float64)

    def ratio_interval(
        self,
        ratio: tuple[Floats, Floats],
        noises: Sequence[RatioTerm],
        bounds: tuple[float, float],
        wider: Floats | float = 1.0,
    ) -> tuple[Floats, Floats]:
        """Return Fieller's interval, in closed form. See `Measure`. *Source*: Fieller 1954."""
        top, bottom = ratio
        quantile = self.quantile(MISS / 2.0) * wider
        top_sigma, bottom_sigma = (
            reduce(np.hypot, side) for side in ([one.above for one in noises], [one.below for one in noises])
        )
        covariance = sum(one.above * one.below for one in noises)
        safe = np.where(bottom > 0.0, bottom, 1.0)
        quotient = top / safe
        doubt = (quantile * bottom_sigma / safe) ** 2
        clear = (bottom > 0.0) & (doubt < 1.0)
        remaining = np.where(clear, 1.0 - doubt, 1.0)
        slope = covariance / np.where(bottom_sigma > 0.0, bottom_sigma, 1.0) ** 2
        spread = (
            top_sigma**2
            - 2.0 * quotient * covariance
            + (quotient * bottom_sigma) ** 2
            - doubt * (top_sigma**2 - slope * covariance)
        )
        half_width = quantile / safe * np.sqrt(np.maximum(spread, 0.0)) / remaining
        centre, (low, high) = (quotient - doubt * slope) / remaining, bounds
        return (
            np.where(clear, np.clip(centre - half_width, low, high), low),
            np.where(clear, np.clip(centre + half_width, low, high), high),
        )

    def tail(self, size: npt.ArrayLike) -> Floats:
        """Return the probability that a normal variate exceeds a size. See `Measure`."""
        return 0.5 * np.asarray(_erfc(np.asarray(size) / math.sqrt(2.0)))

    def mean_above(self, size: npt.ArrayLike) -> Floats:
        """Return E[x; x > size] of a normal variate, its density there. See `Measure`."""
        return np.asarray(np.exp(-0.5 * np.square(size)) / math.sqrt(2.0 * math.pi))


GAUSSIAN = GaussianMeasure("gaussian")
"""Measure of Gaussian noise, exact."""
ZCDP = GaussianMeasure("zcdp")
"""Measure of releases that are zCDP at their levels; it holds for all of them together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianHistogram(Histogram):
    """A presence count with Gaussian noise: with a common term, or without."""

    measure: ClassVar[Measure] = GAUSSIAN

    @abstractmethod
    def query_epsilon(self, delta: float, sigma: float, tau: float | None, moved: Moved) -> float:
        """Smallest epsilon of the query, sums and what is beside included, at delta; rounded up."""

    def sum_sigma(self, statistic: Statistic, rho: float) -> float:
        """l2 / sqrt(2 rho), rounded up.

        *Source*: Bun and Steinke 2016, Proposition 1.6.
        """
        return self.sum_l2(statistic) / math.sqrt(2.0 * rho) * FLOAT_SLACK

    def guarantee(
        self, levels: tuple[Level, ...], tau: float | None, delta: float, auto_nano: int
    ) -> tuple[float, float]:
        """(epsilon, delta) by the exact joint analysis. See `Histogram`.

        What the draws' precision adds comes on top of ``delta``. Where AUTO was told something, the bound that holds
        however it chose (docs/proofs/auto.md); a threshold that costs all of ``delta`` leaves it none for the noise,
        which then gets as much again.
        """
        sigma = levels[0].sigma
        shown = self.threshold_delta(sigma, tau)
        if auto_nano:
            delta = max(delta, 2.0 * shown)
            rho = (sum(level.rho_nano for level in levels) + auto_nano) / NANO
            epsilon = zcdp.composed_epsilon(delta, rho=rho * FLOAT_SLACK, threshold_delta=shown)
        else:
            # a stored threshold may cost more than is asked for now
            delta = max(delta, shown * self.threshold_room)
            epsilon = self.query_epsilon(delta, sigma, tau, self.moved(levels))
        return epsilon, self.with_imprecision(levels, epsilon, delta, with_auto=auto_nano > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledHistogram(GaussianHistogram):
    """Mechanism whose cost is read off one `Profile`, with a threshold or without.

    Without a threshold every key is shown, and what is left is the Gaussian mechanism at the profile's distance.
    """

    @abstractmethod
    def profile(self, sigma: float, moved: Moved = NOTHING_MOVED) -> Profile:
        """The profile of noise as it is drawn."""

    def query_rho(self, epsilon: float, delta: float, shares: Shares) -> float:
        """Largest rho of a query, rounded down: where all of it moves together by what (epsilon, delta) allows."""
        presence, beside = shares.presence, shares.beside
        if self.hides:
            return best_point(self.profile(1.0), epsilon, delta, presence, beside).rho / FLOAT_SLACK**3
        sums = 2.0 * max(0.0, 1.0 - presence - beside) / self.unit_groups
        at_one = self.profile(self.sigma(presence), Moved(sums, 2.0 * beside)).rho
        return 0.5 / gaussian.sigma(epsilon, delta, 1.0) ** 2 / at_one / FLOAT_SLACK**3

    def threshold(self, delta: float, sigma: float) -> float | None:
        """Smallest tau whose threshold part is at most delta."""
        if not self.hides:
            return None
        return threshold_to_compare(smallest_threshold(self.profile(sigma), delta), self.shape.correlation)

    def query_threshold(self, epsilon: float, delta: float, sigma: float, moved: Moved) -> float | None:
        """Smallest tau for which the query is (epsilon, delta)-private."""
        if not self.hides:
            return None
        profile = self.profile(sigma, moved)
        return threshold_to_compare(smallest_query_threshold(profile, epsilon, delta), self.shape.correlation)

    def threshold_delta(self, sigma: float, tau: float | None) -> float:
        """Return the delta that the ledger adds beside rho."""
        return 0.0 if tau is None else self.profile(sigma).threshold_delta(effective_tau(tau, self.shape.correlation))

    def query_epsilon(self, delta: float, sigma: float, tau: float | None, moved: Moved) -> float:
        """Smallest epsilon of the query at delta."""
        profile = self.profile(sigma, moved)
        if tau is None:
            return gaussian.epsilon(delta, math.sqrt(2.0 * profile.rho) * FLOAT_SLACK, 1.0)
        return smallest_epsilon(profile, delta, effective_tau(tau, self.shape.correlation))


def _level(rho_nano: int) -> Fraction:
    return Fraction(rho_nano, NANO)


def _towards(base: NoisyHistogram, other: NoisyHistogram, weight: Fraction) -> NoisyHistogram:
    floor = towards(np.array([base.floor]), np.array([other.floor]), weight)
    return NoisyHistogram(towards(base.values, other.values, weight), int(floor[0]))
