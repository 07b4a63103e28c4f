"""Caps of charges whose level released numbers choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpsql.mechanism.calibrate import Level
from dpsql.model.identity import in_question
from dpsql.release.offer import Offer


def with_caps(offer: Offer, levels: Sequence[Level]) -> Offer:
    """Return an offer whose charges store their caps, because released numbers chose its level.

    Args:
        offer: at the level that was chosen.
        levels: the statistics at the highest level that could have been chosen.

    """
    at_cap = {in_question(level.statistic): level for level in levels}
    served = ((one.pin.statistic_hash, at_cap.get(in_question(one.level.statistic))) for one in offer.servings)
    caps = {name: level.rho_nano for name, level in served if level}
    items = (replace(item, cap_nano=caps.get(item.statistic_hash)) for item in offer.items)
    asked = tuple(at_cap.get(in_question(level.statistic), level) for level in offer.asked)
    return replace(offer, items=tuple(items), asked=asked)
