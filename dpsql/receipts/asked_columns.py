"""The noise of a query at the level that is asked for, whatever is stored: a function of text and policy."""

from __future__ import annotations

from dpsql.mechanism.calibrate import levels_of
from dpsql.mechanism.registry import histogram_of
from dpsql.mechanism.too_little import delta_for_threshold, fits_window
from dpsql.model.frame import Statistic
from dpsql.model.private_query import FrameQuery
from dpsql.receipts.offer_receipt import column_receipts
from dpsql.receipts.receipt import ColumnReceipt
from dpsql.release.estimates import noise_sigma


def asked_sigmas(query: FrameQuery) -> dict[Statistic, float]:
    """Return the standard deviation of the noise of each statistic of a query by rho, at the level asked for.

    Raises:
        CalibrationError: a level rounds to nothing, or its noise cannot be drawn.

    """
    levels, _ = levels_of(query, histogram_of(query.frame), query.request.rho or 0.0)
    return {level.statistic: level.sigma for level in levels}


def asked_columns(query: FrameQuery) -> tuple[ColumnReceipt, ...]:
    """Return the noise of every result column of a query by rho, as it is drawn at the level asked for.

    Raises:
        CalibrationError: as `asked_sigmas`.

    """
    histogram = histogram_of(query.frame)
    noise = {one: noise_sigma(one, sigma, histogram) for one, sigma in asked_sigmas(query).items()}
    return column_receipts(query, histogram, noise)


def may_have_threshold(query: FrameQuery) -> bool:
    """Return whether a query by rho needs no threshold at the level asked for, or its delta covers one.

    Raises:
        CalibrationError: as `asked_sigmas`.

    """
    histogram, window = histogram_of(query.frame), query.frame.window
    if not histogram.hides:
        return True
    levels, _ = levels_of(query, histogram, query.request.rho or 0.0)
    imprecisions = [level.noise_delta for level in levels]
    if window:
        return fits_window(imprecisions, window)
    return delta_for_threshold(imprecisions, query.request.delta) > 0.0
