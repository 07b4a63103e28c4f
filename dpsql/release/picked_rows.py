"""Notes and errors of an answer whose clauses pick rows by their noisy numbers."""

from __future__ import annotations

from dpsql.release.estimates import Floats
from dpsql.release.offer import Offer, shown_threshold
from dpsql.release.points import ShownFrame
from dpsql.release.top_rows import (
    Selection,
    row_order,
    selection_of,
    wider_of,
)


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
