"""Gaussian noise of its own for every key: on public keys, or behind a threshold (GSHM)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dpsql.accounting.parts import delta_of_parts, threshold_of_parts
from dpsql.accounting.profile import Profile
from dpsql.accounting.sparse_histogram import SparseProfile, WeightedProfile
from dpsql.mechanism.csh import subtracted
from dpsql.mechanism.gaussian_measure import ProfiledHistogram
from dpsql.mechanism.histogram import NOTHING_MOVED, Histogram, HistogramMechanism, Moved
from dpsql.mechanism.measure import FLOAT_SLACK, Integers, Shape
from dpsql.model.frame import GSHM as THRESHOLD
from dpsql.model.frame import KEYS_FIRST, Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNoise(ProfiledHistogram):
    """What holds for every mechanism in which each key has Gaussian noise of its own, with a threshold or without."""

    def sigma(self, rho: float) -> float:
        """sqrt(unit_groups / (2 rho)), rounded up."""
        return math.sqrt(self.unit_groups / (2.0 * rho)) * FLOAT_SLACK


@dataclass(frozen=True, slots=True, kw_only=True)
class IndependentHistogram(OwnNoise):
    """Every key has noise of its own; imprecise are the draws on groups that the unit touches.

    *Guarantee*, *Source*: `SparseProfile` with a threshold, the Gaussian mechanism without; the rounding is
    post-processing (docs/proofs/gshm.md).
    """

    def profile(self, sigma: float, moved: Moved = NOTHING_MOVED) -> Profile:
        """Profile at this noise."""
        return SparseProfile(
            max_groups=self.unit_groups, sigma=sigma, aggregate_precision=moved.per_group, beside=moved.beside
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedHistogram(OwnNoise):
    """Noise of its own for every key, where units in many groups count with a weight (``bounding = L2``).

    A unit in n > unit_groups groups counts sqrt(unit_groups / n) in each.

    *Guarantee*, *Source*: `WeightedProfile` with a threshold, the Gaussian mechanism without; the l2
    norm of a unit's contribution is at most that of unit_groups full ones (docs/proofs/weighted.md). Exact values are
    read in steps of the noise, to which contributions were rounded towards 0.

    Attributes:
        unit_groups: most groups in which a unit counts fully; its l2 norm is the root of it.
        counted_groups: most groups in which it counts at all.
        concentrated: whether all that it adds to a sum may lie in one group.

    """

    counted_groups: int
    concentrated: ClassVar[bool] = False

    def spread(self, exact: Integers, shift: int) -> Integers:  # noqa: ARG002 — as of every histogram
        """The values, which are in steps of the noise already."""
        return exact

    def profile(self, sigma: float, moved: Moved = NOTHING_MOVED) -> Profile:
        """Profile at this noise."""
        return WeightedProfile(
            max_groups=self.unit_groups,
            counted_groups=self.counted_groups,
            sigma=sigma,
            aggregate_precision=moved.per_group,
            beside=moved.beside,
            concentrated=self.concentrated,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NormedHistogram(WeightedHistogram):
    """Weighted counts, where a norm bounds what a unit adds to sums (``bounding = NORM``).

    *Guarantee*, *Source*: docs/proofs/norm.md, Theorem 2. Sums move even where a unit's groups are all its own, so the
    threshold leaves a fortieth of delta for that; a guarantee would else need far more epsilon.
    """

    concentrated: ClassVar[bool] = True
    threshold_share: ClassVar[float] = 39.0 / 40.0

    def threshold_of_rows(self, delta: float, sigma: float, draws: int) -> tuple[float, float]:
        """Return the tau of a count of rows, in norms, and its delta: the chance that a unit shows a key of its own.

        Args:
            delta: the most that it may cost.
            sigma: noise of the count, in norms.
            draws: of how many draws the count is an average; a unit may have other groups in each.

        """
        parts = draws * self.counted_groups
        tau = threshold_of_parts(delta, sigma, parts)
        return tau, delta_of_parts(tau, sigma, parts)


def own_noise(frame: Frame, shape: Shape | None) -> Histogram:
    """The histogram of a frame whose keys have noise of their own; where they are selected first, none is hidden."""
    bounding, groups = frame.bounding, frame.unit_groups
    hides = frame.has_private_keys and frame.mechanism != KEYS_FIRST
    if bounding.sparsity is not None:
        quietest = Shape(0.0, 1.0 / math.sqrt(bounding.sparsity.k))
        return subtracted(bounding.sparsity, bounding.max_groups, shape or quietest)
    name = THRESHOLD if hides else frame.mechanism
    if counted := bounding.counted_groups:
        weighted = NormedHistogram if bounding.by_norm else WeightedHistogram
        return weighted(
            name=name,
            unit_groups=groups,
            draws=counted,
            sum_draws=counted,
            hides=hides,
            counted_groups=counted,
        )
    return IndependentHistogram(name=name, unit_groups=groups, draws=groups, sum_draws=groups, hides=hides)


GAUSSIAN = HistogramMechanism(
    name="gaussian",
    word="GAUSSIAN",
    sentence="Gaussian noise on every public key",
    without=frozenset({"private keys", "composition = pure"}),
    histogram=own_noise,
)
GSHM = HistogramMechanism(
    name=THRESHOLD,
    word="GSHM",
    sentence="Gaussian sparse histogram: noise, then a threshold on the count of units",
    without=frozenset({"public keys", "sketch", "composition = pure"}),
    histogram=own_noise,
)
