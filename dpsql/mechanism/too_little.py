"""Refusals of a question whose level or delta is too little for its noise, in the words of the question."""

from __future__ import annotations

import math
from collections.abc import Iterable

from dpsql.errors import CalibrationError
from dpsql.mechanism.window import THRESHOLD_SHARE
from dpsql.model.frame import Window
from dpsql.model.private_query import Request


def too_little(request: Request, rho: float, count: int) -> CalibrationError:
    """Return the refusal of a level that is too small for a number of statistics, in the words of the question."""
    by_rho, amount = request.rho is not None, request.amount
    asked = f"{amount} = {rho:.3g}" if by_rho else f"epsilon = {request.asked_epsilon:.9g}"
    together = "" if by_rho else f" At delta = {request.delta:.3g} this epsilon is rho = {rho:.3g}."
    return _of_statistics(asked, count, together, amount if by_rho else "epsilon", amount)


def too_low_cap(name: str, value: float, count: int) -> CalibrationError:
    """Return the refusal of a highest level that is too small for a number of statistics.

    Args:
        name: of the option, max_rho or max_epsilon.
        value: of the option.
        count: of the statistics, with the histograms of AUTO.

    """
    return _of_statistics(f"{name} = {value:.9g}", count, "", name)


def too_low_for_two(name: str, value: float, least: float) -> CalibrationError:
    """Return the refusal of a level that is too small for two releases.

    Args:
        name: of the option, max_rho or max_epsilon.
        value: of the option.
        least: the smallest rho for both.

    """
    return CalibrationError(
        f"{name} = {value:.9g} is too small for two releases, which take at least rho = {least:.9g}. "
        f"Ask for more {name}."
    )


def _of_statistics(asked: str, count: int, together: str, name: str, amount: str = "rho") -> CalibrationError:
    return CalibrationError(
        f"{asked} is too small for {count} statistic{'s' * (count > 1)}: each takes {amount} = 1e-9 at least."
        f"{together} Ask for more {name}."
    )


def fits_window(imprecisions: Iterable[float], window: Window) -> bool:
    """Return whether the imprecision of the draws costs no more than a window leaves beside its thresholds."""
    return math.fsum(imprecisions) <= (1.0 - THRESHOLD_SHARE) * window.delta


def no_room_for_imprecision(name: str, value: float, delta: float, *, too_large: bool) -> CalibrationError:
    """Return the refusal of a level at whose delta nothing is left beside the imprecision of draws.

    That imprecision costs more where rho or epsilon is larger.

    Args:
        name: of the level, rho or epsilon.
        value: of the level.
        delta: that was asked for.
        too_large: whether a smaller level is granted at this delta.

    """
    if too_large:
        return CalibrationError(
            f"{name} = {value:.3g} is too large for delta = {delta:.3g}: there the finite precision of the noise alone "
            f"costs more delta; ask for less {name}"
        )
    return CalibrationError(f"delta = {delta:.3g} is below what the precision of the noise allows")
