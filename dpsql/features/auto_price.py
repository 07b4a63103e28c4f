"""Prices of queries that leave something to AUTO, before AUTO has chosen, and stand-ins for what it is yet to find."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpsql.cascade.reader import Reader
from dpsql.features.auto_histograms import questions
from dpsql.mechanism.calibrate import Calibration, calibrate, unasked_nano
from dpsql.mechanism.ceiling import require_below_ceiling
from dpsql.mechanism.registry import choose_frame, histogram_of
from dpsql.model.estimates import NotFound
from dpsql.model.frame import Frame
from dpsql.model.private_query import AutoBounds, AutoGroups, FrameQuery
from dpsql.plan.features.auto import with_max_groups
from dpsql.release.offer import draw_price
from dpsql.state import DELTA_UNITS_PER_ONE, ChargeItem, delta_units_up


@dataclass(frozen=True, slots=True)
class OpenTerms:
    """The terms of a query before AUTO has chosen.

    Attributes:
        epsilon, delta: guarantee of the answer with the histograms of AUTO.
        total_nano: levels of answer and histograms together.
        rho_nano, delta_units: the most that the answer costs, without the histograms.

    """

    epsilon: float
    delta: float
    total_nano: int
    rho_nano: int
    delta_units: int


def may_come(query: FrameQuery) -> tuple[FrameQuery, ...]:
    """Return the query with some of the numbers that AUTO may choose, the least and the largest among them."""
    asked = query.auto[0]
    if not isinstance(asked, AutoGroups):
        return (choose_frame(query),)
    some = [number for number in asked.candidates if number.bit_count() == 1 or number == asked.candidates[-1]]
    return tuple(choose_frame(with_max_groups(query, asked, number)) for number in some)


def open_price(query: FrameQuery) -> tuple[ChargeItem, ...]:
    """Return the price of the histograms that are not stored yet: the rise of each, and the precision of its draw."""
    due = ((question, level.due_nano) for question, level in questions(query) if level.due_nano)
    return tuple(draw_price(question.statistic_hash, question.level(due_nano)) for question, due_nano in due)


def asked_nano(query: FrameQuery, calibration: Calibration) -> int:
    """Return the level in nano-rho of all that a query asks for, of AUTO and of columns without bounds, too."""
    shares = sum(level.share_nano for level in query.auto_levels)
    return calibration.rho_nano + unasked_nano(query, calibration) + shares


def answer_delta_units(calibration: Calibration) -> int:
    """Return the delta units that the answer costs beside AUTO: the precision of its noise, and its thresholds."""
    return sum(delta_units_up(level.noise_delta) for level in calibration.levels) + delta_units_up(
        calibration.cut.delta
    )


def open_terms_of(query: FrameQuery, first: Calibration, price: tuple[int, int], reader: Reader) -> OpenTerms:
    """Return the terms of a query by one set of keys: those of its least number of groups, which hold for all.

    Args:
        query: the plan.
        first: its calibration with the least number of groups.
        price: the most nano-rho and delta units that the answer costs, with all of its stages.
        reader: who asks.

    Raises:
        AccessError: the query asks for more than the reader may be shown.

    """
    reader.require(asked_nano(query, first))
    rho_nano, delta_units = price
    # delta covers the thresholds of earlier stages, too
    more = max(0, delta_units - _price_of(query, first, reader)[1]) / DELTA_UNITS_PER_ONE
    total_nano = first.rho_nano + first.auto_nano
    return OpenTerms(first.epsilon, min(1.0, first.delta + more), total_nano, rho_nano, delta_units)


def price_of_parts(parts: Sequence[FrameQuery], reader: Reader) -> tuple[int, int]:
    """Return the most nano-rho and delta units of frames that are released one after the other; nothing is stored.

    A frame that is released several times costs its highest level, and the thresholds of all of them.

    Raises:
        AccessError, CalibrationError: one could not be answered for the reader.

    """
    found: dict[Frame, tuple[int, int]] = {}
    for part in parts:
        calibration = calibrate(part, histogram_of(part.frame))
        reader.require(asked_nano(part, calibration))
        (most_nano, units), price = found.get(part.frame, (0, 0)), _price_of(part, calibration, reader)
        found[part.frame] = max(most_nano, price[0]), units + price[1]
    return sum(rho_nano for rho_nano, _ in found.values()), sum(units for _, units in found.values())


def _price_of(query: FrameQuery, calibration: Calibration, reader: Reader) -> tuple[int, int]:
    """Return the most nano-rho and delta units that the answer costs beside AUTO.

    Raises:
        CalibrationError: a level is above the ceiling of the frame.

    """
    ceiling, delta_units = query.frame.ceiling, answer_delta_units(calibration)
    if ceiling is None:
        return calibration.rho_nano, delta_units
    for level in calibration.levels:
        require_below_ceiling(level.rho_nano, ceiling)
    # every statistic is drawn at the ceiling; who may not see it has a threshold of their own beside
    return ceiling * len(calibration.levels), delta_units * (1 if reader.may_see(ceiling) else 2)


_LARGEST = math.nextafter(2.0, 0.0)
"""A lattice has as many steps for a bound as it can have if the bound is just below a power of two."""
STAND_INS = ((-_LARGEST, _LARGEST), (0.0, _LARGEST), (1.0, 2.0))
"""Bounds on both sides of 0, on one side, and away from it; shares of rho are the least for the last."""
USUAL_ROWS = 256.0
"""A norm of rows that is priced before AUTO is charged: noise for it can be drawn, or the query is refused."""
ROWS = (-USUAL_ROWS, USUAL_ROWS)
"""A norm of numbers of rows: the lattice of a sum has as many steps for so many rows of a unit as it can have. If AUTO
finds more, noise can be drawn for it, or the column is NULL (`auto_undrawable`)."""
TOO_WIDE = NotFound("noise")
"""A norm of rows that is too large for a level, so that its column is NULL."""


def has_unknown_bounds(part: FrameQuery) -> bool:
    """Check whether AUTO may find a larger bound than the plan has: it is not found yet, or a stand-in for one."""
    # a norm for ratios follows from the histogram of groups, too
    waits = part.is_open and any(isinstance(asked, AutoBounds) and asked.is_norm for asked in part.auto)
    return waits or any(
        isinstance(asked, AutoBounds) and (not level.is_stored or asked.bounds in (ROWS, TOO_WIDE))
        for asked, level in zip(part.auto, part.auto_levels, strict=True)
    )
