"""Notes and errors of an answer whose clauses pick rows by their noisy numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dpsql.answer import row_words
from dpsql.answer.offer import Offer
from dpsql.answer.phrases import listed
from dpsql.answer.points import shown_frame
from dpsql.answer.receipt import Receipt
from dpsql.answer.top_rows import row_order, selection_of, side_of, wider_of
from dpsql.state import SideTable


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
    rows = selection_of(order, found.values, found.among)
    estimates = {one.name: query.estimates[one.estimate] for one in query.finish.columns if one.estimate is not None}
    factors = {name: wider_of(order, estimate, rows) for name, estimate in estimates.items()}
    side = side_of(order.top)
    general = row_words.LIMIT_WIDENS.format(side=side)
    notes = [note for note in receipt.notes if note != general]
    for factor in sorted({factor for factor in factors.values() if factor > 1.0}):
        widened = [name for name, own in factors.items() if own == factor]
        notes.append(row_words.LIMIT_WIDENED.format(side=side, columns=listed(widened), factor=factor))
    columns = tuple(
        one if one.half_width_95 is None else replace(one, half_width_95=one.half_width_95 * factors[one.name])
        for one in receipt.columns
    )
    return replace(receipt, notes=tuple(notes), columns=columns)
