"""Notes and errors of an answer whose clauses pick rows by their noisy numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dpsql.answer import row_words
from dpsql.answer.estimates import Floats
from dpsql.answer.offer import Offer, shown_threshold
from dpsql.answer.phrases import listed
from dpsql.answer.points import ShownFrame, shown_frame
from dpsql.answer.receipt import Receipt
from dpsql.answer.top_rows import (
    RowOrder,
    Selection,
    order_factor,
    picked_places,
    row_order,
    selection_of,
    side_of,
    wider_of,
)
from dpsql.state import SideTable

_MUCH = 1.01
"""Factors that exceed that of the order by no more are not named."""


def factors_of_rows(offer: Offer, found: ShownFrame) -> list[float | Floats]:
    """Return by which factors intervals are wider because clauses pick rows by one number, for each estimate.

    Args:
        offer: how the query of one frame is served.
        found: values and shown groups.

    """
    order, rows = row_order(offer.query), _selected(offer, found)
    return [wider_of(order, one, rows) for one in offer.query.estimates]


def _selected(offer: Offer, found: ShownFrame) -> Selection:
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


def with_picked_rows(
    receipt: Receipt, offer: Offer, side_table: SideTable, selected: npt.NDArray[np.intp] | None = None
) -> Receipt:
    """Return a receipt with the errors of the rows that LIMIT picks.

    Args:
        receipt: of an answer; its errors are those of groups that are named beforehand.
        offer: how its numbers are served; all of it is stored.
        side_table: where points are stored.
        selected: ids of the keys that another release has selected, as in `noisy_table`.

    """
    query, order = offer.query, row_order(offer.query)
    if order is None:
        return receipt
    found = shown_frame(offer, side_table, selected=selected)
    rows, (threshold, _) = _selected(offer, found), row_threshold(offer)
    estimates = {one.name: query.estimates[one.estimate] for one in query.finish.columns if one.estimate is not None}
    factors = {name: order_factor(order, estimate, rows) for name, estimate in estimates.items()}
    side = side_of(order.top)
    general = row_words.LIMIT_WIDENS.format(side=side)
    notes = [note for note in receipt.notes if note != general]
    for factor in sorted({factor for factor in factors.values() if factor > 1.0}):
        widened = [name for name, own in factors.items() if own == factor]
        notes.append(row_words.LIMIT_WIDENED.format(side=side, columns=listed(widened), factor=factor))
    if query.request.target and max(factors.values(), default=1.0) > 1.0:
        notes.append(row_words.ASKED_OF_ONE)
    may_be_rows = _may_be_rows(order, found)
    most = {
        name: np.max(_of_groups(wider_of(order, one, rows), found)[may_be_rows], initial=1.0)
        for name, one in estimates.items()
    }
    if nearer := [name for name, factor in most.items() if factor > _MUCH * factors[name]]:
        told = {"columns": listed(nearer), "factor": max(most.values()), "threshold": threshold or 0.0}
        notes.append(row_words.NEAR_THRESHOLD.format(**told))
    columns = tuple(
        one
        if one.half_width_95 is None
        else replace(one, half_width_95=None if one.name in nearer else one.half_width_95 * factors[one.name])
        for one in receipt.columns
    )
    return replace(receipt, notes=tuple(notes), columns=columns)


def _may_be_rows(order: RowOrder, found: ShownFrame) -> npt.NDArray[np.bool_]:
    """Return which shown groups are picked, or have the number of one that is: keys decide between these."""
    scores = order.scores(found.values, found.among)
    picked = scores[picked_places(order, found.values, found.among, np.arange(len(scores)))]
    may_be: npt.NDArray[np.bool_] = (scores >= picked.min(initial=np.inf)) & (scores <= picked.max(initial=-np.inf))
    return may_be


def _of_groups(factor: float | Floats, found: ShownFrame) -> Floats:
    """Return a factor for each shown group."""
    return np.broadcast_to(factor, (len(found.shown),)) if np.ndim(factor) == 0 else np.asarray(factor)[found.among]
