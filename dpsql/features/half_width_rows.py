"""Rows of ``dp_explain`` for a question by half widths: what it takes, and how many such questions are left.

A question about other data, by another filter or of another version, has nothing stored. Its price is what the same
text would pay on a frame of which nothing is stored yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpsql.cascade.reader import Reader
from dpsql.features.joint_release import joint_guarantee_of
from dpsql.features.kinds import kind_of
from dpsql.model.private_query import FrameQuery, HalfWidths, PrivateQuery
from dpsql.receipts import level_words, words
from dpsql.receipts.plan_rows import Row
from dpsql.release.offer import Offer
from dpsql.state import DELTA_UNITS_PER_ONE, NANO_PER_RHO, Spent, State


def target_rows(query: PrivateQuery, target: HalfWidths, state: State, reader: Reader) -> list[Row]:
    """Return the rows of the target; they read and spend nothing.

    Args:
        query: at the level of its half widths, on current generations.
        target: the half widths.
        state: the state file.
        reader: who asks.

    Raises:
        AccessError, CalibrationError: the reader, or the precision of the noise, does not allow the level.

    """
    fresh = query.mapped(_with_nothing_stored)
    offers = kind_of(fresh).offers(fresh, state, reader)
    price = _price(offers)
    # other data have bounds of their own
    by_auto = sum(level.share_nano for level in query.first.auto_levels)
    price = replace(price, rho_nano=price.rho_nano + by_auto)
    epsilon, delta = _guarantee(query, offers)
    unit = query.first.frame.rows.unit
    left: Spent | None = state.ledger.left(unit, reader.name)
    if reader.has_limit:
        _, left = state.ledger.own(unit, reader.name)
    return [
        ("target", "half width", level_words.half_widths(target)),
        ("target", "rho", f"{(sum(part.asked_nano for part in offers) + by_auto) / NANO_PER_RHO:.9g}"),
        ("target", "epsilon", f"{epsilon:.6g}"),
        ("target", "delta", f"{delta:.6g}"),
        (
            "target",
            "full price",
            level_words.full_price(price.rho_nano / NANO_PER_RHO, price.delta_units / DELTA_UNITS_PER_ONE),
        ),
        ("target", "questions left", f"{left.times(price)}" if left else words.NOT_SHOWN),
    ]


def _price(offers: Sequence[Offer]) -> Spent:
    """Return what all offers cost together."""
    items = [item for offer in offers for item in offer.items]
    return Spent(sum(item.rho_nano for item in items), sum(item.delta_units for item in items))


def _with_nothing_stored(part: FrameQuery) -> FrameQuery:
    """Return a part on the generation after the last one, of which nothing is stored."""
    return replace(part, frame=replace(part.frame, generation=part.frame.generation + 1))


def _guarantee(query: PrivateQuery, offers: Sequence[Offer]) -> tuple[float, float]:
    """Return (epsilon, delta) of the question alone, both rounded up."""
    if len(offers) > 1:
        return joint_guarantee_of(query.whole_request, offers)
    return offers[0].epsilon, offers[0].delta
