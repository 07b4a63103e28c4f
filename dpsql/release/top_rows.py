"""Intervals of the rows that ``ORDER BY`` one number and ``LIMIT`` pick of the groups of an answer.

The largest of many noisy numbers are too large, so that intervals for one group miss them more often than 5 %. The
intervals here are wider by a factor that follows from the shown numbers alone, so it is post-processing.

*Guarantee*: of the rows that are shown, the expected part whose intervals miss is at most 5.02 % (the false coverage
rate). *Source*: docs/proofs/top-rows.md, Theorems 1 to 4, with the columns and the dependence that they cover;
Benjamini and Yekutieli 2005. *Assumes*: Gaussian noise, and groups that are fixed before their numbers are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpsql.mechanism.measure import MISS, Measure
from dpsql.model.estimates import WHOLE, AnyUnit, Estimate, LinearValue, Moments, NoValue, RunningSum
from dpsql.model.frame import PRESENCE, Statistic
from dpsql.model.private_query import Buckets, FrameQuery
from dpsql.model.top_rows import TopRows
from dpsql.release.estimates import COLUMNS, EstimatedColumn, Floats, NoisyFrame
from dpsql.release.offer import Offer, shown_threshold
from dpsql.release.points import ShownFrame

if TYPE_CHECKING:
    from dpsql.release.near_threshold import Hidden

Integers = npt.NDArray[np.intp]
FAR = 0.1
"""Part of the error that is left for groups so far below the last row that they are no candidates."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Numbers that the intervals of picked rows depend on.

    Attributes:
        rows: how many rows are shown.
        candidates: how many groups may be among them but for noise, the rows included.
        groups: how many there are.
        measure: the law of their noise.
        hidden: counts of units whose threshold hides other groups; None if no threshold does.

    """

    rows: int
    candidates: int
    groups: int
    measure: Measure
    hidden: Hidden | None = None

    def wider(self, chance: float = 0.05) -> float:
        """Return the width of the intervals over that of intervals of a group that is named beforehand.

        Args:
            chance: probability with which one of those misses.

        """
        if not 0 < self.rows < self.groups:
            return 1.0
        miss = (1.0 - FAR) * chance * self.rows / self.candidates
        return self.measure.quantile(miss / 2.0) / self.measure.quantile(chance / 2.0)


def far_quantile(measure: Measure, groups: int, chance: float = 0.05) -> float:
    """Return the number of standard deviations that the noise of some group exceeds with a tenth of the chance."""
    return measure.quantile(FAR * chance / groups)


@dataclass(frozen=True, slots=True)
class RowOrder:
    """The order by which an answer picks rows of its groups.

    Attributes:
        top: how many rows are picked, and from which end.
        estimate: the number that orders the groups.
        is_independent: whether the noise of the groups is independent, but for a part that all of them share.

    """

    top: TopRows
    estimate: Estimate
    is_independent: bool = True

    def scores(self, frame: NoisyFrame, among: slice | Integers) -> Floats:
        """Return a number of each shown group that is larger the earlier its row stands."""
        values = self._column(frame).value[among]
        # the rows of an answer are ordered by whole numbers where it shows such
        values = np.rint(values) if self.estimate.type in WHOLE else values
        score = values if self.top.is_largest else -values
        return np.where(np.isnan(values), np.inf if self.top.nulls_first else -np.inf, score)

    def ends(self, frame: NoisyFrame, among: slice | Integers, factor: float) -> Floats:
        """Return the ends of the scores, on the side of the rows, at a factor of the 95 % half width."""
        column = self._column(replace(frame, wider=factor))
        return column.high[among] if self.top.is_largest else -column.low[among]

    def _column(self, frame: NoisyFrame) -> EstimatedColumn:
        return COLUMNS[type(self.estimate.value)](self.estimate, self.estimate.value, frame)


def row_order(query: FrameQuery) -> RowOrder | None:
    """Return the order by which a query picks rows by one number; None if it picks none so."""
    top = query.finish.top
    if top is None:
        return None
    estimate = query.estimates[top.estimate]
    adds_up = isinstance(query.groups, Buckets) or isinstance(estimate.value, RunningSum)
    # of numbers of pairs it is not proved that far groups are no candidates (docs/proofs/top-rows.md)
    is_independent = not (adds_up or isinstance(estimate.value, Moments)) and query.frame.factorised is None
    return None if isinstance(estimate.value, NoValue | AnyUnit) else RowOrder(top, estimate, is_independent)


def selection_of(
    order: RowOrder | None,
    frame: NoisyFrame,
    among: slice | Integers,
    chance: float = 0.05,
    threshold: float | None = None,
    ratio: float = 1.0,
) -> Selection:
    """Return how many rows a query picks, and of how many candidates, by the number that orders them.

    A candidate is a group whose number reaches that of the first row below with twice the noise that no group exceeds.
    If the rows depend on noise that groups share, all groups are candidates.

    Args:
        order: how rows are picked; None if none are.
        frame: noisy numbers.
        among: which of them are those of shown groups.
        chance: probability with which an interval of a group that is named beforehand misses.
        threshold: the number that a count of units has to exceed for its group to be shown; None if none has to.
        ratio: noise of the counts over that of those that had to exceed the threshold.

    """
    measure = frame.histogram.measure
    if order is None:
        return Selection(0, 0, 0, measure)
    hidden = None
    if threshold is not None:
        from dpsql.release.near_threshold import hidden_counts  # noqa: PLC0415 — few queries need it

        hidden = hidden_counts(frame, threshold, ratio)
    score = order.scores(frame, among)
    groups, top = len(score), order.top
    end = min(groups, top.offset + top.limit)
    rows = max(0, end - top.offset)
    if not rows or end == groups or _is_shared(order, frame):
        return Selection(rows, groups, groups, measure, hidden)
    first_below = -np.partition(-score, end)[end]
    ends = order.ends(frame, among, 2.0 * far_quantile(measure, groups, chance) / measure.quantile(MISS / 2.0))
    # a group of which nothing is known may be anywhere
    candidates = int(np.count_nonzero(~(ends < first_below)))
    return Selection(rows, max(candidates, rows), groups, measure, hidden)


def _is_shared(order: RowOrder, frame: NoisyFrame) -> bool:
    """Return whether the rows depend on noise that groups share."""
    # a common part leaves differences of counts and sums as they are, and not those of averages
    shared = frame.histogram.shape
    is_common = shared.correlation > 0.0 or shared.floor_correlation is not None
    return not order.is_independent or (is_common and not isinstance(order.estimate.value, LinearValue))


def picked_places(order: RowOrder, frame: NoisyFrame, among: slice | Integers, ties: Integers) -> Integers:
    """Return the places of the picked rows among the shown groups, in their order.

    Args:
        order: how rows are picked.
        frame: noisy numbers.
        among: which of them are those of shown groups.
        ties: the place of each shown group among those with an equal number.

    """
    placed = np.lexsort((ties, -order.scores(frame, among)))
    return placed[order.top.offset : order.top.offset + order.top.limit]


def side_of(top: TopRows) -> str:
    """Return the word for the numbers that come first."""
    return "largest" if top.is_largest else "smallest"


def wider_of(order: RowOrder | None, estimate: Estimate, selected: Selection, chance: float = 0.05) -> float | Floats:
    """Return the factor of the intervals of an estimate, or one for each group if some may be near a threshold.

    It is above 1 if the noise of the estimate had a part in picking the rows, or in showing their groups.
    """
    factor = order_factor(order, estimate, selected, chance)
    if order is None or selected.hidden is None or PRESENCE not in _noised(estimate):
        return factor
    return selected.hidden.wider(factor, chance)


def order_factor(order: RowOrder | None, estimate: Estimate, selected: Selection, chance: float = 0.05) -> float:
    """Return the factor of the intervals of an estimate that is due to the order of the rows alone."""
    if order is None or isinstance(estimate.value, AnyUnit):
        return 1.0
    if isinstance(estimate.value, RunningSum):
        # its noise is that of other groups, too
        selected = replace(selected, candidates=selected.groups)
    return selected.wider(chance) if _noised(estimate) & _noised(order.estimate) else 1.0


def _noised(estimate: Estimate) -> set[Statistic]:
    """Return the statistics that the noise of an estimate comes from."""
    linears = estimate.value.linears
    own = {one.statistic for one in linears if one.statistic}
    return own | ({PRESENCE} if any(one.centre for one in linears) else set())


def factors_of_rows(offer: Offer, found: ShownFrame) -> list[float | Floats]:
    """Return by which factors intervals are wider because clauses pick rows by one number, for each estimate.

    Args:
        offer: how the query of one frame is served.
        found: values and shown groups.

    """
    order, rows = row_order(offer.query), selected_rows(offer, found)
    return [wider_of(order, one, rows) for one in offer.query.estimates]


def selected_rows(offer: Offer, found: ShownFrame) -> Selection:
    """Return how many rows an answer picks, and of how many candidates."""
    threshold, ratio = row_threshold(offer)
    return selection_of(row_order(offer.query), found.values, found.among, threshold=threshold, ratio=ratio)


def row_threshold(offer: Offer) -> tuple[float | None, float]:
    """Return the number that each shown count of units had to exceed, and by how much less noise it then had.

    The number is None if it is unknown, or if no group is hidden. Keys of a point without a threshold are those that
    points of other levels have shown.
    """
    presence, frame, least = offer.presence, offer.query.frame, offer.query.request.min_units
    # that of top-k and sketches stands on top of what was subtracted
    if frame.bounding.sparsity:
        return None, 1.0
    if presence.tau is None and presence.keys_from:
        shown = min(presence.keys_from, key=lambda one: one.tau)
        threshold = frame.bounding.minimum_units + shown.tau
        if threshold >= least:
            return threshold, presence.level.sigma / shown.sigma
    return shown_threshold(frame, presence.tau, least), 1.0
