"""Levels of a question by relative error: its cap, its window, and the grid that its steps are taken on.

All of it is a function of policy and text. One absolute grid makes questions of different caps meet at the same levels.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import replace
from fractions import Fraction

from dpsql.accounting.composition import CONVERSIONS
from dpsql.errors import CalibrationError
from dpsql.mechanism.calibrate import AUTO_PARTS, levels_of, part_for_auto, shares_of, whole_nano
from dpsql.mechanism.measure import FLOAT_SLACK, Level
from dpsql.mechanism.registry import histogram_of
from dpsql.mechanism.too_little import too_low_cap
from dpsql.mechanism.window import grid
from dpsql.model.frame import NANO, Window
from dpsql.model.private_query import FrameQuery
from dpsql.model.query_kinds import WithinTarget

STEPS_PER_DOUBLING = 8
"""Levels of the grid of public keys."""
DOUBLINGS = 20
"""The first level is so many doublings below the cap, where nothing is held."""
_WINDOW_BASE = 16
_WINDOW_DEPTH = 16
"""A window has so many doublings."""


def capped(query: WithinTarget) -> WithinTarget:
    """Return a query with its cap in rho and the window of its private keys, as it is planned by them.

    Args:
        query: as its text is planned, by ``max_rho`` or ``max_epsilon``.

    Raises:
        CalibrationError: the cap is too small for the statistics of the question.

    """
    cap = cap_nano(query.first)
    require_room(query.first, cap, query.cap)
    rho = cap / NANO

    def change(part: FrameQuery) -> FrameQuery:
        frame, *others = (part.frame, *part.alternatives)
        if frame.has_private_keys:
            window = window_of(frame.window, whole_nano(rho), part.request.delta)
            frame, *others = (replace(one, window=window) for one in (frame, *others))
        return replace(part, frame=frame, alternatives=tuple(others), request=part.request.at(rho))

    return query.mapped(change)


def cap_nano(part: FrameQuery) -> int:
    """Return the highest level that a question may take, in nano-rho: its max_rho, or that of its max_epsilon.

    Raises:
        CalibrationError: no level has so small an epsilon.

    """
    request = part.request
    if request.rho is not None:
        return whole_nano(request.rho)
    # what AUTO chooses by is converted by zCDP, as docs/proofs/auto.md has it
    conversion = CONVERSIONS["zcdp" if part.auto and not part.frame.has_private_keys else "gaussian"]
    found = math.floor(Fraction(conversion.rho(request.asked_epsilon, request.delta)) * NANO / Fraction(FLOAT_SLACK))
    if not found:
        raise CalibrationError(f"max_epsilon = {request.epsilon:g} allows no rho; ask for more max_epsilon")
    return found


def require_room(part: FrameQuery, most_nano: int, cap: tuple[str, float]) -> None:
    """Refuse a cap that leaves a statistic of a question without a level, before AUTO is charged.

    Args:
        part: the question, before AUTO has chosen.
        most_nano: the cap in nano-rho.
        cap: the option that says the cap, and its value.

    Raises:
        CalibrationError: in the words of that option.

    """
    level = most_nano - part_for_auto(most_nano, part) * len(part.auto) if part.auto else most_nano
    if min(shares_of(part, level)) < 1:
        raise too_low_cap(*cap, len(part.weights) + len(part.auto))


def window_of(own: Window | None, most_nano: int, delta: float) -> Window:
    """Return the window of private keys.

    That is the frame's own if it holds the cap. Otherwise its top is the cap rounded up to a power of 16, so that
    questions of different caps share a frame.

    >>> window_of(None, 500_000_000, 1e-6), window_of(None, 62_500_001, 1e-6).high
    (Window(low=15259, high=1000000000, delta=1e-06), 1000000000)
    >>> window_of(None, 1, 1e-6)
    Window(low=1, high=1, delta=1e-06)
    """
    if own is not None and own.low <= most_nano <= own.high:
        return own
    exponent = 0
    while _top(exponent) < most_nano:
        exponent += 1
    # no level is below one nano-rho
    while _top(exponent) > 1 and _top(exponent - 1) >= most_nano:
        exponent -= 1
    top = _top(exponent)
    return Window(max(1, -(-top // 2**_WINDOW_DEPTH)), top, delta)


def _top(exponent: int) -> int:
    """Return a power of 16 in nano-rho, rounded up."""
    return math.ceil(Fraction(_WINDOW_BASE) ** exponent * NANO)


def steps_up(part: FrameQuery) -> tuple[int, ...]:
    """Return the levels that the statistics of a question may have together, in nano-rho, lowest first.

    AUTO has its share of the cap beside them, whatever the step is.

    Args:
        part: capped, with the histograms of AUTO.

    Raises:
        CalibrationError: the noise of the highest level cannot be drawn, or the window begins above it.

    """
    levels = _grid(part, most_nano(part))
    levels_at(part, levels[-1])
    # the noise of low levels may be wider than can be drawn
    lowest = bisect.bisect_left(range(len(levels) - 1), True, key=lambda place: _can_be_drawn(part, levels[place]))
    return levels[lowest:]


def most_nano(part: FrameQuery) -> int:
    """Return the highest level that the statistics of a question may have together, in nano-rho."""
    return cap_nano(part) - sum(level.share_nano for level in part.auto_levels)


def highest_nano(part: FrameQuery) -> int:
    """Return the level that no outcome of a question exceeds, in nano-rho, the shares of AUTO included.

    In a window that is the highest level of the grid. With AUTO it is the cap, because the grid follows from what AUTO
    finds.
    """
    return cap_nano(part) if part.auto else steps_up(part)[-1]


def level_of_text(part: FrameQuery, level_nano: int) -> int:
    """Return the level that a question by rho names if its statistics shall have a level together.

    It leaves its own part for AUTO, whose choice is stored.
    """
    return -(-level_nano * AUTO_PARTS // (AUTO_PARTS - 1)) if part.auto else level_nano


def at_step(part: FrameQuery, level_nano: int) -> FrameQuery:
    """Return a question with its statistics at a level, all together."""
    beside = sum(level.share_nano for level in part.auto_levels)
    return replace(part, request=part.request.at((level_nano + beside) / NANO))


def levels_at(part: FrameQuery, level_nano: int) -> tuple[Level, ...]:
    """Return the level of each statistic of a question at a step.

    Raises:
        CalibrationError: a level rounds to nothing, or its noise cannot be drawn.

    """
    asked = at_step(part, level_nano)
    found, _ = levels_of(asked, histogram_of(part.frame), asked.request.rho or 0.0)
    return found


def absolute_grid(most_nano: int) -> tuple[int, ...]:
    """Return the levels of public keys up to a cap: eight to a doubling, the same for every cap, and the cap.

    >>> absolute_grid(1000)[-5:]
    (724, 789, 861, 939, 1000)
    """
    found, step = [], 0
    while (level := math.floor(2.0 ** (step / STEPS_PER_DOUBLING))) < most_nano:
        found.append(level)
        step += 1
    return tuple(dict.fromkeys((*found, most_nano)))


def _grid(part: FrameQuery, most_nano: int) -> tuple[int, ...]:
    """Return the grid of a question up to a level: with private keys, the lowest level at each one of the window."""
    window = part.frame.window
    if not part.frame.has_private_keys or window is None:
        lowest = max(1, most_nano >> DOUBLINGS)
        return tuple(level for level in absolute_grid(most_nano) if level >= lowest)
    share = Fraction(part.weights[0])
    levels = tuple(level for own in grid(window) if (level := math.ceil(own / share)) <= most_nano)
    if not levels:
        raise CalibrationError(
            f"the window of the count of units begins at rho = {window.low / NANO:.3g}, above its part of the "
            f"question's {most_nano / NANO:.3g}; ask for more max_rho"
        )
    return levels


def _can_be_drawn(part: FrameQuery, level_nano: int) -> bool:
    try:
        levels_at(part, level_nano)
    except CalibrationError:
        return False
    return True
