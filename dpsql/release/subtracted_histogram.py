"""What the subtraction of a floor has left: the k largest groups, or the counters of a sketch, behind a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dpsql.accounting import top_k_histogram
from dpsql.accounting.exceedance import shown_quantile
from dpsql.mechanisms.correlated_gaussian import (
    GRID_ALLOWANCE,
    GRID_BITS,
    CorrelatedGaussian,
    effective_sigma,
    effective_tau,
    threshold_to_compare,
)
from dpsql.mechanisms.entropy import Entropy
from dpsql.release.histogram import FLOAT_SLACK, Integers, NoisyHistogram, ValuesThemselves


@dataclass(frozen=True, slots=True)
class SubtractedHistogram(ValuesThemselves):
    """What a floor has left: at most k keys, whatever the data are, with a common term and a noisy floor beside them.

    *Guarantee*, *Source*: `top_k_delta`, and `top_k_rho` with `top_k_threshold_delta`; docs/proofs/top-k.md, which also
    says why a sketch is as private. One unit may move all k counts, whatever max_groups is, and its sums on the keys
    that it has.
    """

    k: int
    max_groups: int | None
    correlation: float
    floor_correlation: float
    hides: ClassVar[bool] = True
    # where all keys are lost the floor still moves, and that has to fit in beside them
    threshold_room: ClassVar[float] = 1.125

    @property
    def name(self) -> str:
        """``csh`` with a common term, ``gshm`` without."""
        return "csh" if self.correlation > 0.0 else "gshm"

    @property
    def unit_groups(self) -> int:
        """A unit may have all keys that are left."""
        return self.k if self.max_groups is None else min(self.max_groups, self.k)

    @property
    def draws(self) -> int:
        """All, as one unit may move all counts, the common term and the floor."""
        return self.k + 2

    def sigma(self, rho: float) -> float:
        """Own noise at a level, rounded up."""
        own = top_k_histogram.top_k_sigma(
            rho,
            k=self.k,
            correlation=self.correlation,
            floor_correlation=self.floor_correlation,
            max_groups=self.max_groups,
        )
        return own * GRID_ALLOWANCE * FLOAT_SLACK

    def check(self, sigma: float) -> None:
        """Refuse noise that cannot be drawn."""
        CorrelatedGaussian(sigma, max(self.correlation, self.floor_correlation))

    def query_rho(self, epsilon: float, delta: float, presence_share: float) -> float:
        """Largest rho of a query, rounded down."""
        point = top_k_histogram.best_top_k(
            epsilon,
            delta,
            k=self.k,
            correlation=self.correlation,
            floor_correlation=self.floor_correlation,
            max_groups=self.max_groups,
            presence_share=presence_share,
        )
        return point.rho / FLOAT_SLACK**3

    def threshold(self, delta: float, sigma: float) -> float:
        """Smallest tau whose threshold part is at most delta."""
        quantile = shown_quantile(delta / self.threshold_room, self.k, self.correlation)
        return threshold_to_compare(quantile * self._effective(sigma), self.correlation)

    def query_threshold(self, epsilon: float, delta: float, sigma: float, aggregate_precision: float) -> float:
        """Smallest tau for which the query is (epsilon, delta)-private."""
        tau = top_k_histogram.top_k_threshold(
            epsilon,
            delta,
            k=self.k,
            sigma=self._effective(sigma),
            correlation=self.correlation,
            floor_correlation=self.floor_correlation,
            max_groups=self.max_groups,
            aggregate_precision=aggregate_precision,
        )
        return threshold_to_compare(tau, self.correlation)

    def threshold_delta(self, sigma: float, tau: float | None) -> float:
        """What the ledger adds beside rho."""
        if tau is None:
            return 0.0
        return top_k_histogram.top_k_threshold_delta(
            k=self.k,
            sigma=self._effective(sigma),
            tau=effective_tau(tau, self.correlation),
            correlation=self.correlation,
        )

    def query_epsilon(self, delta: float, sigma: float, tau: float | None, aggregate_precision: float) -> float:
        """Smallest epsilon of the query at delta."""
        if tau is None:
            raise AssertionError("what a floor has left hides behind a threshold")
        return top_k_histogram.top_k_epsilon(
            delta,
            k=self.k,
            sigma=self._effective(sigma),
            tau=effective_tau(tau, self.correlation),
            correlation=self.correlation,
            floor_correlation=self.floor_correlation,
            max_groups=self.max_groups,
            aggregate_precision=aggregate_precision,
        )

    def draw(self, exact: Integers, floor: int, sigma: float, entropy: Entropy) -> NoisyHistogram:
        """Add own and common noise to every count, and take the common noise from the floor."""
        source = CorrelatedGaussian(sigma, self.correlation)
        noise = source.draw(len(exact), entropy)
        shared = source.floor_noise(self.floor_correlation, noise, entropy)
        return NoisyHistogram((exact << GRID_BITS) + noise.values, (floor << GRID_BITS) + shared)

    def _effective(self, sigma: float) -> float:
        return effective_sigma(sigma, k=self.k, correlation=self.correlation, floor_correlation=self.floor_correlation)
