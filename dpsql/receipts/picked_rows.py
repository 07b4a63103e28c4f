"""Notes and errors of an answer whose clauses pick rows by their noisy numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dpsql.receipts import words
from dpsql.receipts.phrases import listed
from dpsql.receipts.receipt import Receipt
from dpsql.release.estimates import Floats
from dpsql.release.offer import Offer
from dpsql.release.points import ShownFrame
from dpsql.release.top_rows import (
    RowOrder,
    order_factor,
    picked_places,
    row_order,
    row_threshold,
    selected_rows,
    side_of,
    wider_of,
)

_MUCH = 1.01
"""Factors that exceed that of the order by no more are not named."""


def with_picked_rows(receipt: Receipt, offer: Offer, found: ShownFrame) -> Receipt:
    """Return a receipt with the errors of the rows that LIMIT picks.

    Args:
        receipt: of an answer; its errors are those of groups that are named beforehand.
        offer: how its numbers are served; all of it is stored.
        found: its values and shown groups.

    """
    query, order = offer.query, row_order(offer.query)
    if order is None:
        return receipt
    rows, (threshold, _) = selected_rows(offer, found), row_threshold(offer)
    estimates = {one.name: query.estimates[one.estimate] for one in query.finish.columns if one.estimate is not None}
    factors = {name: order_factor(order, estimate, rows) for name, estimate in estimates.items()}
    side = side_of(order.top)
    general = words.LIMIT_WIDENS.format(side=side)
    notes = [note for note in receipt.notes if note != general]
    for factor in sorted({factor for factor in factors.values() if factor > 1.0}):
        widened = [name for name, own in factors.items() if own == factor]
        notes.append(words.LIMIT_WIDENED.format(side=side, columns=listed(widened), factor=factor))
    if query.request.target and max(factors.values(), default=1.0) > 1.0:
        notes.append(words.ASKED_OF_ONE)
    may_be_rows = _may_be_rows(order, found)
    most = {
        name: np.max(_of_groups(wider_of(order, one, rows), found)[may_be_rows], initial=1.0)
        for name, one in estimates.items()
    }
    if nearer := [name for name, factor in most.items() if factor > _MUCH * factors[name]]:
        told = {"columns": listed(nearer), "factor": max(most.values()), "threshold": threshold or 0.0}
        notes.append(words.NEAR_THRESHOLD.format(**told))
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
