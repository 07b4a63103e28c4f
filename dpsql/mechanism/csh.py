"""CSH: noise with a common term on what the subtraction of a floor has left, behind a threshold.

What is left are the k largest groups, or the counters of a Misra-Gries sketch. GSHM after top-k pre-processing is the
same without a common term.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from dpsql.accounting.correlated_histogram import TopKProfile, quietest_top_k_correlation
from dpsql.mechanism.correlated_gaussian import SharedNoise
from dpsql.mechanism.histogram import Histogram, HistogramMechanism
from dpsql.mechanism.measure import Shape
from dpsql.model.frame import Frame, Sparsity


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtractedHistogram(SharedNoise):
    """What a floor has left: at most k keys, whatever the data are, with a common term and a noisy floor beside them.

    *Guarantee*, *Source*: `TopKProfile`; docs/proofs/top-k.md, which also says why a sketch is as private. One unit may
    move all k counts, whatever max_groups is, and its sums on the keys that it has.
    """

    # where all keys are lost the floor still moves, and that has to fit in beside them
    threshold_room: ClassVar[float] = 1.125

    def threshold(self, delta: float, sigma: float) -> float | None:
        """Smallest tau whose threshold part leaves room in delta for the floor."""
        return SharedNoise.threshold(self, delta / self.threshold_room, sigma)


def subtracted(sparsity: Sparsity, max_groups: int | None, shape: Shape) -> SubtractedHistogram:
    """The histogram of what a floor has left, with noise of a shape."""
    k, own, floor = sparsity.k, shape.correlation, shape.floor_correlation
    if floor is None:
        raise AssertionError("a floor that was subtracted is shown with noise")
    moved = _groups(sparsity, max_groups)
    profile = TopKProfile(k=k, sigma=1.0, correlation=own, floor_correlation=floor, max_groups=moved)
    # one unit may move all counts, the common term and the floor, and has sums on the keys that it may have
    return SubtractedHistogram(
        name="csh" if own > 0.0 else "gshm",
        unit_groups=profile.unit_groups,
        draws=k + 2,
        sum_draws=profile.unit_groups,
        hides=True,
        shape=Shape(own, floor),
        unit_profile=profile,
    )


def _groups(sparsity: Sparsity, max_groups: int | None) -> int | None:
    """Most counts that a unit moves: one with one key may raise every counter of a sketch, in a later shard."""
    return max_groups if sparsity.kind == "top_k" else None


@lru_cache(maxsize=4096)
def _quietest(k: int, max_groups: int | None) -> Shape:
    correlation = quietest_top_k_correlation(k, max_groups)
    return Shape(correlation, correlation)


def _histogram(frame: Frame, shape: Shape | None) -> Histogram:
    sparsity = frame.bounding.sparsity
    if sparsity is None:
        raise AssertionError("a common term needs a number of keys that is enforced")
    max_groups = frame.bounding.max_groups
    return subtracted(sparsity, max_groups, shape or _quietest(sparsity.k, _groups(sparsity, max_groups)))


CSH = HistogramMechanism(
    name="csh",
    word="CSH",
    sentence="correlated stability histogram: noise, part of it common to all keys, then a threshold",
    without=frozenset(
        {"public keys", "all private keys", "sketch", "GROUPING SETS", "bounding = L2", "AUTO", "composition = pure"}
    ),
    histogram=_histogram,
)
MISRA_GRIES = HistogramMechanism(
    name="csh",
    word="MISRA_GRIES",
    sentence=CSH.sentence,
    without=frozenset({"public keys", "no sketch", "GROUPING SETS", "bounding = L2", "AUTO", "composition = pure"}),
    histogram=_histogram,
)


def selection_sentence(sparsity: Sparsity) -> str:
    """What is noised of all groups, in plans."""
    if sparsity.kind == "sketch":
        return f"on a Misra-Gries sketch of {sparsity.k} counters"
    return f"on the {sparsity.k} largest groups, less the next largest"
