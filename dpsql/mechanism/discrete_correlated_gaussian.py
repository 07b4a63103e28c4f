"""Discrete Gaussian noise with a common term over a public list of keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from dpsql.accounting import gaussian, zcdp
from dpsql.accounting.discrete_histogram import discrete_counts_delta, discrete_rho, discrete_sigma
from dpsql.accounting.profile import narrow
from dpsql.mechanism.correlated_gaussian import listed_keys
from dpsql.mechanism.gaussian_measure import GaussianHistogram, GaussianMeasure
from dpsql.mechanism.histogram import Histogram, HistogramMechanism, Moved, Shares
from dpsql.mechanism.measure import FLOAT_SLACK, Grid, Integers, Measure, NoisyHistogram, Shape
from dpsql.model.frame import Frame
from dpsql.noise.correlated_gaussian import GRID_BITS
from dpsql.noise.discrete_gaussian import DiscreteCorrelatedGaussian, rational_variance
from dpsql.noise.entropy import NoiseSource


@dataclass(frozen=True, slots=True)
class DiscreteMeasure(GaussianMeasure):
    """Gaussian noise on whole numbers of a presence count, and rounded Gaussian noise on all other numbers."""

    def require(self, grid: Grid, sigma: float) -> None:
        """Find out that noise can be drawn. See `Measure`."""
        if grid.shape is None:
            GaussianMeasure.require(self, grid, sigma)
        else:
            _law(sigma, grid.shape.correlation)


DISCRETE = DiscreteMeasure("zcdp", shows_origin=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteListedHistogram(GaussianHistogram):
    """All keys of a public list share a common term, in half counts: integers all the way, no imprecise draws.

    *Guarantee*, *Source*: Lebeda and Retschmeier 2025, Algorithm 4 and Lemma 7.5; docs/proofs/discrete-gaussian.md. All
    counts move by one half, up or down, whichever groups a unit has, so max_groups makes nothing smaller.
    """

    k: int
    measure: ClassVar[Measure] = DISCRETE

    def sigma(self, rho: float) -> float:
        """Own noise at a level, rounded up."""
        return discrete_sigma(rho, k=self.k, correlation=self.shape.correlation) * FLOAT_SLACK

    def query_rho(self, epsilon: float, delta: float, shares: Shares) -> float:
        """Largest rho of a query: by the optimal conversion, or for counts alone by the exact lattice delta."""
        by_conversion = zcdp.rho(epsilon, delta) / FLOAT_SLACK**3
        if shares.presence < 1.0:
            return by_conversion

        def is_safe(rho: float) -> bool:
            variance = rational_variance(self.sigma(rho))
            return (
                discrete_counts_delta(epsilon, k=self.k, variance=variance, correlation=self.shape.correlation) <= delta
            )

        if not is_safe(by_conversion):
            return by_conversion
        most = 0.5 / gaussian.sigma(epsilon, delta, 1.0) ** 2 * 4.0
        return most if is_safe(most) else narrow(is_safe, most, by_conversion, 1e-9)

    def query_epsilon(self, delta: float, sigma: float, tau: float | None, moved: Moved) -> float:  # noqa: ARG002
        """Smallest epsilon of the query at delta, by zCDP, which also holds for points that are averages."""
        counts = discrete_rho(self.k, rational_variance(sigma), self.shape.correlation)
        others = 0.5 * (self.unit_groups * moved.per_group + moved.beside)
        return zcdp.epsilon(delta, (counts + others) * FLOAT_SLACK)

    def draw(self, exact: Integers, floor: int, sigma: float, source: NoiseSource) -> NoisyHistogram:
        """Add own and common noise to every count."""
        noise = source.draw(_law(sigma, self.shape.correlation), len(exact))
        return NoisyHistogram((2 * exact + noise.values) << (GRID_BITS - 1), floor << GRID_BITS)


def _law(sigma: float, correlation: float) -> DiscreteCorrelatedGaussian:
    """Return the law of the noise of all counts, in half counts."""
    # the correlation is a multiple of a power of two, hence exactly this fraction
    return DiscreteCorrelatedGaussian(rational_variance(sigma), Fraction(correlation))


def _histogram(frame: Frame, shape: Shape | None) -> Histogram:
    k = listed_keys(frame)
    # the paper's 1/sqrt(k), as a multiple of a power of two, which the sampler takes exactly
    correlation = shape.correlation if shape else max(1, round(2**20 / math.sqrt(k))) / 2**20
    groups = frame.unit_groups
    return DiscreteListedHistogram(
        name="discrete_correlated_gaussian",
        unit_groups=groups,
        draws=0,
        sum_draws=groups,
        k=k,
        shape=Shape(correlation, None),
    )


DISCRETE_CORRELATED_GAUSSIAN = HistogramMechanism(
    name="discrete_correlated_gaussian",
    word="DISCRETE_CORRELATED_GAUSSIAN",
    sentence="correlated discrete Gaussian noise on every public key",
    without=frozenset(
        {
            "private keys",
            "bounding = L2",
            "running totals or buckets",
            "AUTO",
            "composition = gaussian",
            "composition = pure",
        }
    ),
    is_offered=False,
    histogram=_histogram,
)
