"""Noise with a common term over a public list of keys: every listed key is shown, none hides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from dpsql.accounting import gaussian, zcdp
from dpsql.accounting.calibration import narrow
from dpsql.accounting.discrete_histogram import (
    discrete_counts_delta,
    discrete_rho,
    discrete_sigma,
)
from dpsql.accounting.sparse_histogram import csh_rho, csh_sigma
from dpsql.mechanisms.correlated_gaussian import GRID_ALLOWANCE, GRID_BITS, CorrelatedGaussian, effective_sigma
from dpsql.mechanisms.discrete_gaussian import DiscreteCorrelatedGaussian, rational_variance
from dpsql.mechanisms.entropy import Entropy
from dpsql.release.histogram import FLOAT_SLACK, Integers, NoisyHistogram, PublicHistogram, ValuesThemselves


@dataclass(frozen=True, slots=True)
class ListedHistogram(ValuesThemselves, PublicHistogram):
    """All keys of a public list share a common term of the noise.

    *Guarantee*, *Source*: the correlated Gaussian mechanism (Lebeda 2024; Lemma 2.8 of Lebeda and Retschmeier 2025) at
    the exact distance `csh_rho`; every listed key is noised, so nothing hides and no delta is spent on it.
    """

    k: int
    unit_groups: int
    correlation: float
    name: ClassVar[str] = "correlated_gaussian"

    @property
    def draws(self) -> int:
        """All, as all share the common term, and that itself."""
        return self.k + 1

    def sigma(self, rho: float) -> float:
        """Own noise at a level, rounded up."""
        own = csh_sigma(rho, k=self.k, correlation=self.correlation, max_groups=self.unit_groups)
        return own * GRID_ALLOWANCE * FLOAT_SLACK

    def check(self, sigma: float) -> None:
        """Refuse noise that cannot be drawn."""
        CorrelatedGaussian(sigma, self.correlation)

    def query_rho(self, epsilon: float, delta: float, presence_share: float) -> float:
        """Largest rho of a query: where counts and sums together move by what (epsilon, delta) allows."""
        at_one = self._rho(self.sigma(presence_share), 2.0 * (1.0 - presence_share) / self.unit_groups)
        return 0.5 / gaussian.sigma(epsilon, delta, 1.0) ** 2 / at_one / FLOAT_SLACK**3

    def query_epsilon(self, delta: float, sigma: float, tau: float | None, aggregate_precision: float) -> float:  # noqa: ARG002
        """Smallest epsilon of the query at delta."""
        mu = math.sqrt(2.0 * self._rho(sigma, aggregate_precision)) * FLOAT_SLACK
        return gaussian.epsilon(delta, mu, 1.0)

    def draw(self, exact: Integers, floor: int, sigma: float, entropy: Entropy) -> NoisyHistogram:
        """Add own and common noise to every count."""
        noise = CorrelatedGaussian(sigma, self.correlation).draw(len(exact), entropy)
        return NoisyHistogram((exact << GRID_BITS) + noise.values, floor << GRID_BITS)

    def _rho(self, sigma: float, aggregate_precision: float) -> float:
        return csh_rho(
            k=self.k,
            sigma=effective_sigma(sigma, k=self.k, correlation=self.correlation),
            correlation=self.correlation,
            max_groups=self.unit_groups,
            aggregate_precision=aggregate_precision,
        )


@dataclass(frozen=True, slots=True)
class DiscreteListedHistogram(ValuesThemselves, PublicHistogram):
    """The same with discrete Gaussian noise in half counts: integers all the way, and no imprecision of draws.

    *Guarantee*, *Source*: Lebeda and Retschmeier 2025, Algorithm 4 and Lemma 7.5; docs/proofs/discrete-gaussian.md. All
    counts move by one half, up or down, whichever groups a unit has, so max_groups makes nothing smaller.
    """

    k: int
    unit_groups: int
    correlation: float
    name: ClassVar[str] = "discrete_correlated_gaussian"
    is_gaussian: ClassVar[bool] = False
    draws: ClassVar[int] = 0

    def sigma(self, rho: float) -> float:
        """Own noise at a level, rounded up."""
        return discrete_sigma(rho, k=self.k, correlation=self.correlation) * FLOAT_SLACK

    def check(self, sigma: float) -> None:
        """Refuse noise that cannot be drawn."""
        self._noise(sigma)

    def query_rho(self, epsilon: float, delta: float, presence_share: float) -> float:
        """Largest rho of a query: by the optimal conversion, or for counts alone by the exact lattice delta."""
        by_conversion = zcdp.rho(epsilon, delta) / FLOAT_SLACK**3
        if presence_share < 1.0:
            return by_conversion

        def is_safe(rho: float) -> bool:
            return self._counts_delta(epsilon, self.sigma(rho)) <= delta

        if not is_safe(by_conversion):
            return by_conversion
        most = 0.5 / gaussian.sigma(epsilon, delta, 1.0) ** 2 * 4.0
        return most if is_safe(most) else narrow(is_safe, most, by_conversion, 1e-9)

    def query_epsilon(self, delta: float, sigma: float, tau: float | None, aggregate_precision: float) -> float:  # noqa: ARG002
        """Smallest epsilon of the query at delta, by zCDP, which also holds for points that are averages."""
        counts = discrete_rho(self.k, rational_variance(sigma), self.correlation)
        sums = 0.5 * self.unit_groups * aggregate_precision
        return zcdp.epsilon(delta, (counts + sums) * FLOAT_SLACK)

    def draw(self, exact: Integers, floor: int, sigma: float, entropy: Entropy) -> NoisyHistogram:
        """Add own and common noise to every count."""
        noise = self._noise(sigma).draw(len(exact), entropy)
        return NoisyHistogram((2 * exact + noise.values) << (GRID_BITS - 1), floor << GRID_BITS)

    def _noise(self, sigma: float) -> DiscreteCorrelatedGaussian:
        # the correlation is a multiple of a power of two, hence exactly this fraction
        return DiscreteCorrelatedGaussian(rational_variance(sigma), Fraction(self.correlation))

    def _counts_delta(self, epsilon: float, sigma: float) -> float:
        return discrete_counts_delta(epsilon, k=self.k, variance=rational_variance(sigma), correlation=self.correlation)
