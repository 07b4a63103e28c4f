"""The guarantee of several frames that are released for one answer, and the columns that its receipt states."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpsql.cascade.serving import Draw
from dpsql.mechanism.calibrate import MOST_DRAWN, calibrate
from dpsql.mechanism.joint import ShownFrame, joint_guarantee
from dpsql.mechanism.registry import histogram_of
from dpsql.mechanism.window import charged_delta
from dpsql.model.private_query import FrameQuery, Request
from dpsql.receipts.receipt import ColumnReceipt
from dpsql.release.offer import Offer


def joint_guarantee_of(request: Request, offers: Sequence[Offer]) -> tuple[float, float]:
    """Return (epsilon, delta) of several frames together, both rounded up."""
    shown = [
        ShownFrame(
            part.histogram,
            sum(serving.guaranteed_nano for serving in part.servings),
            _threshold_delta(part),
            tuple(serving.level.statistic for serving in part.servings),
            1 if all(serving.is_single_draw for serving in part.servings) else MOST_DRAWN,
            part.auto_nano,
        )
        for part in offers
    ]
    return joint_guarantee(shown, request)


def asked_guarantee(request: Request, parts: Sequence[FrameQuery]) -> tuple[float, float]:
    """Return (epsilon, delta) of several frames together at the levels asked for, whatever is stored.

    Raises:
        CalibrationError: a level rounds to nothing, its noise cannot be drawn, or no threshold has its delta.

    """
    shown = []
    for part in parts:
        calibration = calibrate(part, histogram_of(part.frame))
        levels, delta = calibration.rho_nano, calibration.cut.delta
        shown.append(ShownFrame(calibration.histogram, levels, delta, part.statistics, 1))
    return joint_guarantee(shown, request)


def _threshold_delta(part: Offer) -> float:
    """Return the delta of the thresholds that the shown keys have passed, and of a ceiling that is paid for now."""
    if part.query.frame.window is not None:
        return charged_delta(part.histogram, part.query.frame.window)
    # keys that are selected first may be shown by another number than the count of units
    serving = next((one for one in part.servings if one.keys_from), part.presence)
    levels = {keys.rho_nano for keys in serving.keys_from}
    unseen = (
        step.delta for step in serving.priced_steps if isinstance(step, Draw) and step.level.rho_nano not in levels
    )
    return math.fsum([serving.keys_delta, *unseen])


def largest_columns(parts: Sequence[tuple[ColumnReceipt, ...]]) -> tuple[ColumnReceipt, ...]:
    """Return each column from the part in which it has the most noise."""
    return tuple(max(one, key=lambda column: column.sigma or 0.0) for one in zip(*parts, strict=True))
