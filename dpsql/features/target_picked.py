"""Rows that ``ORDER BY`` one number and ``LIMIT`` pick, as the rule of a question by relative error counts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpsql.engine import Sandbox
from dpsql.model.estimates import Estimate
from dpsql.model.frame import PRESENCE
from dpsql.model.private_query import Buckets, FrameQuery
from dpsql.model.query_kinds import RelativeError
from dpsql.model.top_rows import TopRows
from dpsql.release.estimates import Floats, NoisyFrame
from dpsql.release.offer import Offer
from dpsql.release.points import ShownFrame, stored_keys
from dpsql.release.top_rows import Integers, RowOrder, picked_places, row_order, row_threshold, selection_of, wider_of
from dpsql.state import SideTable, to_arrow, to_numpy


@dataclass(frozen=True)
class PickedRows:
    """The rows of an answer that its rule counts.

    Attributes:
        order: how they are picked of the shown groups.
        ties: the place of each shown group among those with an equal number.
        needed: how many rows have to be shown.
        chance: probability with which an interval of a group that is named beforehand misses, by the rule.
        threshold: the number that a count of units has to exceed for its group to be shown; None for public keys.
        units: the part of the threshold that does not become smaller with the noise.

    """

    order: RowOrder
    ties: Integers
    needed: int
    chance: float
    threshold: float | None = None
    units: float = 1.0

    def places(self, found: ShownFrame) -> Integers:
        """Return the places of the rows among the shown groups, in their order."""
        return picked_places(self.order, found.values, found.among, self.ties)

    def factors(self, frame: NoisyFrame, found: ShownFrame, estimates: Sequence[Estimate]) -> list[float | Floats]:
        """Return by which factors the intervals of columns are wider, with some noise."""
        threshold = self.threshold_at(frame.noise[PRESENCE] / found.values.noise[PRESENCE])
        rows = selection_of(self.order, frame, found.among, self.chance, threshold)
        return [wider_of(self.order, one, rows, self.chance) for one in estimates]

    def threshold_at(self, scale: float) -> float | None:
        """Return the threshold of a level whose noise is that of this one times a factor."""
        return None if self.threshold is None else self.units + (self.threshold - self.units) * scale


def picked_rows(
    part: FrameQuery, target: RelativeError, offer: Offer, found: ShownFrame, side_table: SideTable, sandbox: Sandbox
) -> PickedRows | None:
    """Return the rows that the rule counts; None if it counts all shown groups.

    Args:
        part: the question.
        target: its rule.
        offer: how a step is served.
        found: values and shown groups of that step.
        side_table: where keys are stored.
        sandbox: orders keys of shown groups.

    """
    order = row_order(part)
    if order is None:
        return None
    needed = _needed_rows(part, order.top, len(found.shown))
    # each level of a window has a threshold of its own
    threshold, _ = row_threshold(offer)
    units = 0.0 if threshold is None else threshold - (offer.presence.tau or 0.0)
    ties = _ties(part, found.shown, side_table, sandbox)
    return PickedRows(order, ties, needed, 1.0 - target.confidence, threshold, units)


def _needed_rows(part: FrameQuery, top: TopRows, shown: int) -> int:
    """Return how many rows have to be shown: as many as LIMIT says, or as there are groups of public keys."""
    most = shown if isinstance(part.groups, Buckets) else part.frame.key_count
    if most is None:
        return top.limit
    if part.request.min_units > 1 and not part.frame.has_private_keys:
        # groups with too few units are never shown; those near that number are not waited for
        most = max(shown, top.offset + 1)
    return max(0, min(top.limit, most - top.offset))


def _ties(part: FrameQuery, shown: Integers, side_table: SideTable, sandbox: Sandbox) -> Integers:
    """Return the place of each shown group in the order among those with an equal number."""
    if isinstance(part.groups, Buckets) or not part.frame.keys:
        return np.arange(len(shown))
    # hidden keys are left out first
    numbered = (
        stored_keys(part.frame, side_table).take(to_arrow(shown)).append_column("id", to_arrow(np.arange(len(shown))))
    )
    typed = ", ".join(f"CAST(key_{i} AS {key.type}) AS key_{i}" for i, key in enumerate(part.frame.keys))
    terms = ", ".join(part.finish.order_by[1:])
    placed = sandbox.run(f"SELECT id FROM (SELECT {typed}, id FROM keys) ORDER BY {terms}", {"keys": numbered})
    places = np.empty(len(shown), dtype=np.intp)
    places[to_numpy(placed.column("id"))] = np.arange(len(shown))
    return places
