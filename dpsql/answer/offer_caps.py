"""Caps of charges whose level released numbers choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpsql.answer.offer import Offer
from dpsql.mechanism.calibrate import Level
from dpsql.model.identity import statistic_hash


def with_caps(offer: Offer, levels: Sequence[Level]) -> Offer:
    """Return an offer whose charges store their caps, because released numbers chose its level.

    Args:
        offer: at the level that was chosen.
        levels: the statistics at the highest level that could have been chosen.

    """
    caps = {statistic_hash(level.statistic, offer.query.frame): level.rho_nano for level in levels}
    items = (replace(item, cap_nano=caps.get(item.statistic_hash)) for item in offer.items)
    at_cap = {level.statistic: level for level in levels}
    asked = tuple(at_cap.get(level.statistic, level) for level in offer.asked)
    return replace(offer, items=tuple(items), asked=asked)
