"""Independent noise for every key where units in many groups count with a weight (``bounding = L2``)."""

from __future__ import annotations

from dataclasses import dataclass

from dpsql.accounting import weighted_histogram
from dpsql.mechanisms.correlated_gaussian import CorrelatedGaussian
from dpsql.mechanisms.entropy import Entropy
from dpsql.query.frame import NOISE_GRID_EXPONENT
from dpsql.release.histogram import Integers, NoisyHistogram, OwnNoise


@dataclass(frozen=True, slots=True)
class WeightedHistogram(OwnNoise):
    """Every key has noise of its own, and a unit in n > unit_groups groups counts sqrt(unit_groups / n) in each.

    *Guarantee*, *Source*: `accounting.weighted_histogram` with a threshold, the Gaussian mechanism without; the l2
    norm of a unit's contribution is at most that of unit_groups full ones (docs/proofs/weighted.md). Exact values are
    read in steps of the noise, to which contributions were rounded towards 0.

    Attributes:
        unit_groups: most groups in which a unit counts fully; its l2 norm is the root of it.
        counted_groups: most groups in which it counts at all.

    """

    counted_groups: int

    @property
    def draws(self) -> int:
        """Draws on groups that the unit touches."""
        return self.counted_groups

    @property
    def sum_draws(self) -> int:
        """The same of a sum."""
        return self.counted_groups

    def draw(self, exact: Integers, floor: int, sigma: float, entropy: Entropy) -> NoisyHistogram:
        """Add one draw to every count; the floor is a constant of the policy, in units."""
        noise = CorrelatedGaussian(sigma, 0.0).draw(len(exact), entropy)
        return NoisyHistogram(exact + noise.values, floor << -NOISE_GRID_EXPONENT)

    def spread(self, exact: Integers, shift: int) -> Integers:  # noqa: ARG002 — the protocol's
        """The values, which are in steps of the noise already."""
        return exact

    def _hiding_rho(self, epsilon: float, delta: float, presence_share: float) -> float:
        point = weighted_histogram.best_weighted(
            epsilon, delta, max_groups=self.unit_groups, counted_groups=self.counted_groups,
            presence_share=presence_share,
        )  # fmt: skip
        return point.rho

    def _tau(self, delta: float, sigma: float) -> float:
        return weighted_histogram.weighted_threshold(
            delta, max_groups=self.unit_groups, counted_groups=self.counted_groups, sigma=sigma
        )

    def _query_tau(self, epsilon: float, delta: float, sigma: float, aggregate_precision: float) -> float:
        return weighted_histogram.weighted_query_threshold(
            epsilon, delta, max_groups=self.unit_groups, counted_groups=self.counted_groups, sigma=sigma,
            aggregate_precision=aggregate_precision,
        )  # fmt: skip

    def _tau_delta(self, sigma: float, tau: float) -> float:
        return weighted_histogram.weighted_threshold_delta(
            max_groups=self.unit_groups, counted_groups=self.counted_groups, sigma=sigma, tau=tau
        )

    def _hiding_epsilon(self, delta: float, sigma: float, tau: float, aggregate_precision: float) -> float:
        return weighted_histogram.weighted_epsilon(
            delta, max_groups=self.unit_groups, counted_groups=self.counted_groups, sigma=sigma, tau=tau,
            aggregate_precision=aggregate_precision,
        )  # fmt: skip
