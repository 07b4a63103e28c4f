"""The mechanisms: the one list by which they are named, offered and found by their frames; and the choice among them.

Chosen is the mechanism with the least predicted error, by policy and text alone (step 4). At one level, half widths and
thresholds of two mechanisms stand in the ratio of their noise (thresholds nearly so), so the choice needs no level, and
two texts that ask for one frame get one mechanism. What threshold top-k pre-processing leads to, nobody can predict: it
stands on top of the (k+1)-th largest count. It is therefore chosen only where the text asks for it, or where nothing
else bounds what a unit can move.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dpsql.mechanism.calibrate import whole_nano
from dpsql.mechanism.correlated_gaussian import CORRELATED_GAUSSIAN
from dpsql.mechanism.csh import CSH, MISRA_GRIES
from dpsql.mechanism.discrete_correlated_gaussian import DISCRETE_CORRELATED_GAUSSIAN
from dpsql.mechanism.factorised_gaussian import FACTORISED_GAUSSIAN, with_best_power
from dpsql.mechanism.histogram import Histogram, HistogramMechanism, count_sigma
from dpsql.mechanism.independent_gaussian import GAUSSIAN, GSHM
from dpsql.mechanism.joint import shared_requests
from dpsql.mechanism.keys_first import KEYS_FIRST
from dpsql.mechanism.laplace import LAPLACE
from dpsql.mechanism.measure import Shape
from dpsql.mechanism.too_little import too_little
from dpsql.mechanism.weighted_gaussian import WEIGHTED_CORRELATED_GAUSSIAN
from dpsql.model.estimates import RunningTotal
from dpsql.model.frame import NANO, Frame
from dpsql.model.private_query import FrameQuery, PrivateQuery
from dpsql.model.query_kinds import GroupingSets
from dpsql.model.statistic_kinds import BESIDE_KINDS
from dpsql.noise.running_totals import FractionalSum, totals_error

MECHANISMS: tuple[HistogramMechanism, ...] = (
    GAUSSIAN,
    CORRELATED_GAUSSIAN,
    DISCRETE_CORRELATED_GAUSSIAN,
    FACTORISED_GAUSSIAN,
    GSHM,
    CSH,
    MISRA_GRIES,
    KEYS_FIRST,
    LAPLACE,
)


def mechanism_of(frame: Frame) -> HistogramMechanism:
    """The mechanism of a frame; of a sketch, the one that noises its counters."""
    return next(one for one in (*MECHANISMS, WEIGHTED_CORRELATED_GAUSSIAN) if one.name == frame.mechanism)


def histogram_of(frame: Frame, shape: Shape | None = None) -> Histogram:
    """How the presence count of a frame is noised.

    Args:
        frame: what is grouped, and by which mechanism it is noised.
        shape: that of the points which the frame has already; their cascade keeps it.

    """
    return mechanism_of(frame).histogram(frame, shape)


_WORTH_IT = 0.999
"""A later candidate must have less noise than this many times the earlier one: near a tie, rounding must not decide."""


def choose(query: PrivateQuery) -> PrivateQuery:
    """The query on the frames with the least noise; of several grouping sets each gets its share of the request."""
    chosen = query.mapped(choose_frame)
    return shared(chosen) if isinstance(chosen, GroupingSets) else chosen


def choose_frame(query: FrameQuery) -> FrameQuery:
    """The query on the frame with the least noise; the others become its alternatives.

    The presence count's share of rho shrinks with its noise, which keeps the relative variances at their least sum.
    """
    tuned = (
        with_best_power(frame, query.total) if frame.factorised else frame
        for frame in (query.frame, *query.alternatives)
    )
    frames = list(dict.fromkeys(tuned))
    best = frames[0]
    for frame in frames[1:]:
        if _error(frame, query.total) < _WORTH_IT * _error(best, query.total):
            best = frame
    independent = math.sqrt(best.unit_groups / 2.0)
    presence = query.weights[0] * min(1.0, unit_noise(best) / independent)
    asked = [*zip(query.statistics, (presence, *query.weights[1:]), strict=True), *query.unasked]
    # what is left for coverage stays what it is
    coverage = [weight if one.kind in BESIDE_KINDS else 0.0 for one, weight in asked]
    others = [weight - own for (_, weight), own in zip(asked, coverage, strict=True)]
    total = math.fsum(others) / (1.0 - math.fsum(coverage))
    weights = [weight / total + own for weight, own in zip(others, coverage, strict=True)]
    count = len(query.statistics)
    return replace(
        query,
        frame=best,
        alternatives=tuple(frame for frame in frames if frame is not best),
        weights=tuple(weights[:count]),
        unasked=tuple((one, weight) for (one, _), weight in zip(query.unasked, weights[count:], strict=True)),
    )


def shared(sets: GroupingSets) -> GroupingSets:
    """Return the grouping sets, each part with its share of the request of all sets together.

    Raises:
        CalibrationError: the level is too small for the statistics of all sets.

    """
    requests = shared_requests(
        sets.request,
        [histogram_of(part.frame) for part in sets.parts],
        [unit_noise(part.frame) for part in sets.parts],
        sets.parts[0].statistics,
    )
    levels = [whole_nano(request.rho or 0.0) for request in requests]
    counts = [len(part.statistics) for part in sets.parts]
    if any(level < count for level, count in zip(levels, counts, strict=True)):
        raise too_little(sets.request, sets.request.rho or sum(levels) / NANO, sum(counts))
    asked = tuple(replace(part, request=request) for part, request in zip(sets.parts, requests, strict=True))
    return replace(sets, parts=asked)


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
