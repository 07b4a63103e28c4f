"""Independent noise for every key where units in many groups count with a weight (``bounding = L2``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dpsql.accounting import gaussian, weighted_histogram
from dpsql.mechanisms.correlated_gaussian import CorrelatedGaussian, effective_tau, threshold_to_compare
from dpsql.mechanisms.entropy import Entropy
from dpsql.query.private_query import NOISE_GRID_EXPONENT
from dpsql.release.histogram import FLOAT_SLACK, Integers, NoisyHistogram, ValuesThemselves


@dataclass(frozen=True, slots=True)
class WeightedHistogram(ValuesThemselves):
    """Every key has noise of its own, and a unit in n > unit_groups groups counts sqrt(unit_groups / n) in each.

    *Guarantee*, *Source*: `accounting.weighted_histogram` with a threshold, the Gaussian mechanism without; the l2
    norm of a unit's contribution is at most that of unit_groups full ones (docs/proofs/weighted.md). Exact values are
    read in steps of the noise, to which contributions were rounded towards 0.

    Attributes:
        unit_groups: most groups in which a unit counts fully; its l2 norm is the root of it.
        counted_groups: most groups in which it counts at all.

    """

    unit_groups: int
    counted_groups: int
    hides: bool
    threshold_room: ClassVar[float] = FLOAT_SLACK
    correlation: ClassVar[float] = 0.0
    floor_correlation: ClassVar[None] = None

    @property
    def name(self) -> str:
        """``gshm`` with a threshold, ``gaussian`` without."""
        return "gshm" if self.hides else "gaussian"

    @property
    def draws(self) -> int:
        """Draws on groups that the unit touches."""
        return self.counted_groups

    @property
    def sum_draws(self) -> int:
        """The same of a sum."""
        return self.counted_groups

    def sigma(self, rho: float) -> float:
        """sqrt(unit_groups / (2 rho)), rounded up."""
        return math.sqrt(self.unit_groups / (2.0 * rho)) * FLOAT_SLACK

    def check(self, sigma: float) -> None:
        """Refuse noise that cannot be drawn."""
        CorrelatedGaussian(sigma, 0.0)

    def query_rho(self, epsilon: float, delta: float, presence_share: float) -> float:
        """Largest rho of a query, rounded down."""
        if not self.hides:
            return 0.5 / gaussian.sigma(epsilon, delta, 1.0) ** 2 / FLOAT_SLACK**3
        point = weighted_histogram.best_weighted(
            epsilon,
            delta,
            max_groups=self.unit_groups,
            counted_groups=self.counted_groups,
            presence_share=presence_share,
        )
        return point.rho / FLOAT_SLACK

    def threshold(self, delta: float, sigma: float) -> float | None:
        """Smallest tau whose threshold part is at most delta."""
        if not self.hides:
            return None
        tau = weighted_histogram.weighted_threshold(
            delta, max_groups=self.unit_groups, counted_groups=self.counted_groups, sigma=sigma
        )
        return threshold_to_compare(tau, 0.0)

    def query_threshold(self, epsilon: float, delta: float, sigma: float, aggregate_precision: float) -> float | None:
        """Smallest tau for which the query is (epsilon, delta)-private."""
        if not self.hides:
            return None
        tau = weighted_histogram.weighted_query_threshold(
            epsilon,
            delta,
            max_groups=self.unit_groups,
            counted_groups=self.counted_groups,
            sigma=sigma,
            aggregate_precision=aggregate_precision,
        )
        return threshold_to_compare(tau, 0.0)

    def threshold_delta(self, sigma: float, tau: float | None) -> float:
        """What the ledger adds beside rho."""
        if tau is None:
            return 0.0
        return weighted_histogram.weighted_threshold_delta(
            max_groups=self.unit_groups,
            counted_groups=self.counted_groups,
            sigma=sigma,
            tau=effective_tau(tau, 0.0),
        )

    def query_epsilon(self, delta: float, sigma: float, tau: float | None, aggregate_precision: float) -> float:
        """Smallest epsilon of the query at delta."""
        if tau is None:
            mu = math.sqrt(self.unit_groups * (sigma**-2 + aggregate_precision)) * FLOAT_SLACK
            return gaussian.epsilon(delta, mu, 1.0)
        return weighted_histogram.weighted_epsilon(
            delta,
            max_groups=self.unit_groups,
            counted_groups=self.counted_groups,
            sigma=sigma,
            tau=effective_tau(tau, 0.0),
            aggregate_precision=aggregate_precision,
        )

    def draw(self, exact: Integers, floor: int, sigma: float, entropy: Entropy) -> NoisyHistogram:
        """Add one draw to every count; the floor is a constant of the policy, in units."""
        noise = CorrelatedGaussian(sigma, 0.0).draw(len(exact), entropy)
        return NoisyHistogram(exact + noise.values, floor << -NOISE_GRID_EXPONENT)

    def spread(self, exact: Integers, shift: int) -> Integers:  # noqa: ARG002 — the protocol's
        """The values, which are in steps of the noise already."""
        return exact
