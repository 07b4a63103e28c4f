"""Step 4, the choice: the mechanism with the least predicted error, by policy and text alone.

At one level, half widths and thresholds of two mechanisms stand in the ratio of their noise (thresholds nearly so), so
the choice needs no level, and two texts that ask for one frame get one mechanism. What threshold top-k pre-processing
leads to, nobody can predict: it stands on top of the (k+1)-th largest count. It is therefore chosen only where the text
asks for it, or where nothing else bounds what a unit can move.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from dpsql.accounting.correlated_histogram import quietest_correlation
from dpsql.accounting.top_k_histogram import quietest_top_k_correlation
from dpsql.mechanisms.running_totals import FractionalSum, best_power, totals_error
from dpsql.query.frame import Frame, Mechanism
from dpsql.query.private_query import Grouping, PrivateQuery, RunningTotal
from dpsql.release.histogram import Histogram, IndependentHistogram, count_sigma
from dpsql.release.joint import shared_requests
from dpsql.release.listed_histogram import DiscreteListedHistogram, ListedHistogram
from dpsql.release.sequences import FactorisedHistogram, Sequences
from dpsql.release.subtracted_histogram import SubtractedHistogram
from dpsql.release.weighted_histogram import WeightedHistogram

_WORTH_IT = 0.999
"""A later candidate must have less noise than this many times the earlier one: near a tie, rounding must not decide."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Variances over sigma^2: of the noise that all keys share, and of the floor's own (None without a floor)."""

    correlation: float
    floor_correlation: float | None


def choose(query: PrivateQuery) -> PrivateQuery:
    """The query on the frame with the least noise; the others become its alternatives.

    The presence count's share of rho shrinks with its noise, which keeps the relative variances at their least sum. Of
    a query with several grouping sets each is chosen by itself, and gets its share of the request.
    """
    if query.grouping is not None:
        return _choose_parts(query, query.grouping)
    tuned = (_with_power(frame, query.total) for frame in (query.frame, *query.alternatives))
    frames = list(dict.fromkeys(tuned))
    best = frames[0]
    for frame in frames[1:]:
        if _error(frame, query.total) < _WORTH_IT * _error(best, query.total):
            best = frame
    independent = math.sqrt(best.unit_groups / 2.0)
    presence = query.weights[0] * min(1.0, unit_noise(best) / independent)
    total = math.fsum([presence, *query.weights[1:]])
    return replace(
        query,
        frame=best,
        alternatives=tuple(frame for frame in frames if frame is not best),
        weights=tuple(weight / total for weight in (presence, *query.weights[1:])),
    )


def _choose_parts(query: PrivateQuery, grouping: Grouping) -> PrivateQuery:
    first, *others = grouping.with_first(choose(grouping.parts[0])).parts
    parts = (first, *map(choose, others))
    requests = shared_requests(
        query.request,
        [histogram_of(part.frame) for part in parts],
        [unit_noise(part.frame) for part in parts],
        query.statistics,
    )
    asked = tuple(replace(part, request=request) for part, request in zip(parts, requests, strict=True))
    return replace(
        query, frame=first.frame, alternatives=first.alternatives, weights=first.weights,
        grouping=replace(grouping, parts=asked),
    )  # fmt: skip


def _with_power(frame: Frame, total: RunningTotal | None) -> Frame:
    """The frame with the power of its totals that has the least noise; plain where that is none."""
    if frame.factorised is None or total is None:
        return frame
    power = best_power(total.ordering.length, frame.unit_groups, total.span).sixteenths
    if not power:
        return replace(frame, mechanism="gaussian", factorised=None)
    return replace(frame, factorised=replace(frame.factorised, sixteenths=power))


def _error(frame: Frame, total: RunningTotal | None) -> float:
    """What mechanisms are compared by: the noise of a count, or of running totals where the query has them."""
    if total is None:
        return unit_noise(frame)
    power = 0 if frame.factorised is None else frame.factorised.sixteenths
    return totals_error(FractionalSum(total.ordering.length, power), frame.unit_groups, total.span)


def unit_noise(frame: Frame) -> float:
    """Standard deviation of a count at rho = 1."""
    histogram = histogram_of(frame)
    return count_sigma(histogram, histogram.sigma(1.0))


def histogram_of(frame: Frame, shape: Shape | None = None) -> Histogram:
    """The presence count's mechanism on a frame.

    Args:
        frame: what is grouped, and by which mechanism it is noised.
        shape: that of the points which the frame has already; their cascade keeps it.

    """
    k, groups = frame.key_count, frame.unit_groups
    if frame.sparsity is not None:
        # a unit with one key may raise every counter of a sketch, in a later shard
        bound = frame.max_groups if frame.sparsity.kind == "top_k" else None
        kept = shape or _subtracted_shape(frame.mechanism, frame.sparsity.k, bound)
        if kept.floor_correlation is None:
            raise AssertionError("a floor that was subtracted is shown with noise")
        return SubtractedHistogram(frame.sparsity.k, bound, kept.correlation, kept.floor_correlation)
    if frame.counted_groups is not None:
        return WeightedHistogram(groups, hides=frame.has_private_keys, counted_groups=frame.counted_groups)
    if frame.factorised is not None:
        return FactorisedHistogram(Sequences(frame.factorised.ordering, frame.factorised.sixteenths), groups)
    if frame.mechanism == "correlated_gaussian" and k is not None:
        return ListedHistogram(k, groups, (shape or _listed_shape(k, groups)).correlation)
    if frame.mechanism == "discrete_correlated_gaussian" and k is not None:
        return DiscreteListedHistogram(k, groups, (shape or _discrete_shape(k)).correlation)
    return IndependentHistogram(groups, hides=frame.has_private_keys)


@lru_cache(maxsize=4096)
def _listed_shape(k: int, unit_groups: int) -> Shape:
    return Shape(quietest_correlation(k, unit_groups) or 1.0 / math.sqrt(k), None)


def _discrete_shape(k: int) -> Shape:
    """The paper's 1/sqrt(k), as a multiple of a power of two, which the sampler takes exactly."""
    return Shape(max(1, round(2**20 / math.sqrt(k))) / 2**20, None)


@lru_cache(maxsize=4096)
def _subtracted_shape(mechanism: Mechanism, k: int, max_groups: int | None) -> Shape:
    if mechanism == "gshm":
        return Shape(0.0, 1.0 / math.sqrt(k))
    correlation = quietest_top_k_correlation(k, max_groups)
    return Shape(correlation, correlation)
