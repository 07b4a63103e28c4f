"""Intervals of the rows that ``ORDER BY`` one number and ``LIMIT`` pick of the groups of an answer.

The largest of many noisy numbers are too large, so that intervals for one group miss them more often than 5 %. The
intervals here are wider by a factor that follows from the shown numbers alone, so it is post-processing.

*Guarantee*: of the rows that are shown, the expected part whose intervals miss is at most 5.03 % (the false coverage
rate), with independent noise or noise that all groups share. *Source*: docs/proofs/top-rows.md, Theorem 1; Benjamini
and Yekutieli 2005. *Assumes*: Gaussian noise, and all groups shown that could be among the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from dpsql.answer import row_words
from dpsql.answer.estimates import COLUMNS, Z_95, EstimatedColumn, Floats, NoisyFrame
from dpsql.model.estimates import AnyUnit, Estimate, NoValue, RunningSum
from dpsql.model.frame import PRESENCE, Statistic
from dpsql.model.private_query import Buckets, Finish, FrameQuery
from dpsql.model.top_rows import TopRows

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

    """

    rows: int
    candidates: int
    groups: int

    def wider(self, chance: float = 0.05) -> float:
        """Return the width of the intervals over that of intervals of a group that is named beforehand.

        Args:
            chance: probability with which one of those misses.

        >>> round(Selection(5, 5, 300).wider(), 3), round(Selection(5, 300, 300).wider(), 3)
        (1.023, 1.616)
        >>> Selection(300, 300, 300).wider()
        1.0
        """
        if not 0 < self.rows < self.groups:
            return 1.0
        miss = (1.0 - FAR) * chance * self.rows / self.candidates
        return NormalDist().inv_cdf(miss / 2.0) / NormalDist().inv_cdf(chance / 2.0)


ALL = Selection(0, 0, 0)
"""Numbers of an answer that picks no rows by one number."""


def far_quantile(groups: int, chance: float = 0.05) -> float:
    """Return the number of standard deviations that the noise of some group exceeds with a tenth of the chance."""
    return -NormalDist().inv_cdf(FAR * chance / groups)


def places_of(top: TopRows, values: Floats, ties: Integers | None = None) -> Integers:
    """Return the places of the rows that are picked, in their order.

    Args:
        top: how they are picked.
        values: numbers of all groups, NaN where there is none.
        ties: the order of the groups among those with equal numbers; by default as they stand.

    """
    score = _score(top, values)
    order = np.argsort(-score, kind="stable") if ties is None else np.lexsort((ties, -score))
    return order[top.offset : top.offset + top.limit]


def selection_of(query: FrameQuery, frame: NoisyFrame, among: slice | Integers, chance: float = 0.05) -> Selection:
    """Return how many rows a query picks, and of how many candidates, by the number that orders them.

    A candidate is a group whose number reaches that of the first row below with twice the noise that no group exceeds.
    If the noise of groups depends on each other, all groups are candidates.

    Args:
        query: which rows it picks, and of which numbers.
        frame: noisy numbers.
        among: which of them are those of shown groups.
        chance: probability with which an interval of a group that is named beforehand misses.

    """
    top = query.finish.top
    if top is None:
        return ALL
    estimate = query.estimates[top.estimate]
    if isinstance(estimate.value, NoValue | AnyUnit):
        return ALL

    def column(quantile: float) -> EstimatedColumn:
        return COLUMNS[type(estimate.value)](estimate, estimate.value, replace(frame, wider=quantile / Z_95))

    score = _score(top, as_shown(estimate, column(Z_95).value[among]))
    groups = len(score)
    end = min(groups, top.offset + top.limit)
    rows = max(0, end - top.offset)
    if not rows or end == groups or not _is_independent(query, estimate):
        return Selection(rows, groups, groups)
    far = column(2.0 * far_quantile(groups, chance))
    ends = far.high[among] if top.is_largest else -far.low[among]
    first_below = -np.partition(-score, end)[end]
    # a group of which nothing is known may be anywhere
    candidates = int(np.count_nonzero(~(ends < first_below)))
    return Selection(rows, max(candidates, rows), groups)


def as_shown(estimate: Estimate, values: Floats) -> Floats:
    """Return numbers as the rows are ordered by them: counts and sums of whole numbers are rounded."""
    return np.rint(values) if estimate.type == "BIGINT" else values


def _is_independent(query: FrameQuery, ordering: Estimate) -> bool:
    """Return whether the noise of the groups is independent, but for a part that all of them share."""
    adds_up = isinstance(query.groups, Buckets) or isinstance(ordering.value, RunningSum)
    return not adds_up and query.frame.factorised is None


def _score(top: TopRows, values: Floats) -> Floats:
    """Return numbers that are larger the earlier a row stands."""
    score = values if top.is_largest else -values
    return np.where(np.isnan(values), np.inf if top.nulls_first else -np.inf, score)


def notes_of_rows(finish: Finish) -> tuple[str, ...]:
    """Return what plans and receipts say of rows that are picked by their numbers."""
    if finish.picks:
        return (row_words.PICKED.format(clause=finish.picks),)
    return (row_words.LIMIT_WIDENS.format(side=side_of(finish.top)),) if finish.top else ()


def side_of(top: TopRows) -> str:
    """Return the word for the numbers that come first."""
    return "largest" if top.is_largest else "smallest"


def wider_of(query: FrameQuery, estimate: Estimate, selected: Selection, chance: float = 0.05) -> float:
    """Return the factor of the intervals of an estimate: above 1 if its noise had a part in picking the rows."""
    top = query.finish.top
    if top is None or isinstance(estimate.value, AnyUnit):
        return 1.0
    picks = _noised(estimate) & _noised(query.estimates[top.estimate])
    return selected.wider(chance) if picks else 1.0


def _noised(estimate: Estimate) -> set[Statistic]:
    """Return the statistics that the noise of an estimate comes from."""
    linears = estimate.value.linears
    own = {one.statistic for one in linears if one.statistic}
    return own | ({PRESENCE} if any(one.centre for one in linears) else set())
