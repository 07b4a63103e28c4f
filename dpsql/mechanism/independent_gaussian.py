"""Gaussian noise of its own for every key: on public keys, or behind a threshold (GSHM)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dpsql.accounting.profile import Profile
from dpsql.accounting.sparse_histogram import SparseProfile, WeightedProfile
from dpsql.mechanism.csh import subtracted
from dpsql.mechanism.histogram import (
    FLOAT_SLACK,
    Histogram,
    HistogramMechanism,
    Integers,
    ProfiledHistogram,
    Shape,
)
from dpsql.model.frame import Frame


@dataclass(frozen=True, slots=True)
class OwnNoise(ProfiledHistogram):
    """What holds for every mechanism in which each key has Gaussian noise of its own, with a threshold or without."""

    unit_groups: int
    hides: bool
    correlation: ClassVar[float] = 0.0
    floor_correlation: ClassVar[None] = None

    @property
    def name(self) -> str:
        """``gshm`` with a threshold, ``gaussian`` without."""
        return "gshm" if self.hides else "gaussian"

    def sigma(self, rho: float) -> float:
        """sqrt(unit_groups / (2 rho)), rounded up."""
        return math.sqrt(self.unit_groups / (2.0 * rho)) * FLOAT_SLACK


@dataclass(frozen=True, slots=True)
class IndependentHistogram(OwnNoise):
    """Every key has noise of its own.

    *Guarantee*, *Source*: `SparseProfile` with a threshold, the Gaussian mechanism without; the rounding is
    post-processing (docs/proofs/gshm.md).
    """

    @property
    def draws(self) -> int:
        """Only the draws on groups that the unit touches."""
        return self.unit_groups

    def profile(self, sigma: float, aggregate_precision: float = 0.0) -> Profile:
        """Profile at this noise."""
        return SparseProfile(max_groups=self.unit_groups, sigma=sigma, aggregate_precision=aggregate_precision)


@dataclass(frozen=True, slots=True)
class WeightedHistogram(OwnNoise):
    """The same where units in many groups count with a weight (``bounding = L2``).

    A unit in n > unit_groups groups counts sqrt(unit_groups / n) in each.

    *Guarantee*, *Source*: `WeightedProfile` with a threshold, the Gaussian mechanism without; the l2
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

    def spread(self, exact: Integers, shift: int) -> Integers:  # noqa: ARG002 — the protocol's
        """The values, which are in steps of the noise already."""
        return exact

    def profile(self, sigma: float, aggregate_precision: float = 0.0) -> Profile:
        """Profile at this noise."""
        return WeightedProfile(
            max_groups=self.unit_groups, counted_groups=self.counted_groups, sigma=sigma,
            aggregate_precision=aggregate_precision,
        )  # fmt: skip


def _histogram(frame: Frame, shape: Shape | None) -> Histogram:
    bounding, hides = frame.bounding, frame.has_private_keys
    if bounding.sparsity is not None:
        quietest = Shape(0.0, 1.0 / math.sqrt(bounding.sparsity.k))
        return subtracted(bounding.sparsity, bounding.max_groups, shape or quietest)
    if bounding.counted_groups is not None:
        return WeightedHistogram(frame.unit_groups, hides=hides, counted_groups=bounding.counted_groups)
    return IndependentHistogram(frame.unit_groups, hides=hides)


GAUSSIAN = HistogramMechanism(
    name="gaussian",
    word="GAUSSIAN",
    sentence="Gaussian noise on every public key",
    without=frozenset({"private keys"}),
    histogram=_histogram,
)
GSHM = HistogramMechanism(
    name="gshm",
    word="GSHM",
    sentence="Gaussian sparse histogram: noise, then a threshold on the count of units",
    without=frozenset({"public keys", "sketch"}),
    histogram=_histogram,
)
