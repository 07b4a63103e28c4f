"""Sentences about levels and half widths: in plans and refusals, and as options of a query.

`words.py` has those of receipts.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.errors import AccessError, BudgetError, CalibrationError, DpsqlError
from dpsql.model.half_widths import HalfWidths
from dpsql.receipts import phrases

NO_LOWER_LEVEL = "No lower level is granted either."
"""A cure of a level that is refused, where nothing that the text may ask for is left."""
NO_LARGER = "No larger half width is granted either."
"""A cure of half widths that are refused, where nothing that the text may ask for is left."""


def ask_with(*levels: str) -> str:
    """Say which levels are granted, as they are written in a query."""
    return f"Ask with {', '.join(levels)}."


def level_refused(error: DpsqlError, asked: str, cure: str) -> str:
    """Say that a level is refused, in the words of the question; rho stands in brackets.

    Args:
        error: of a budget, a clearance or a ceiling.
        asked: the level, as it is written in a query.
        cure: what is granted.

    """
    match error:
        case BudgetError():
            costs = "may cost" if asked.startswith("max_") else "costs"
            left = _remaining(error)
            return (
                f"{error.limit} does not cover this query at {asked} (it {costs} {_requested(error)}; left "
                f"{'are' if ' and ' in left else 'is'} {left}). {cure} FROM dp_releases() lists what is free."
            )
        case AccessError():
            return (
                f"{error.reader!r} may not be shown this answer at {asked} (it is rho = {error.requested_rho:.6g}, and "
                f"the limit is rho = {error.limit_rho:.6g}). {cure}"
            )
        case CalibrationError():
            most = f"its numbers are drawn once, at rho = {error.limit_rho:.6g}"
            return (
                f"{asked} is above the ceiling of this query (it is rho = {error.requested_rho:.6g} for one "
                f"statistic; {most}). {cure}"
            )
    return str(error)


def _requested(error: BudgetError) -> str:
    """Return the price that a budget does not cover."""
    return error.told(error.requested_rho, error.requested_delta, "threshold ")


def _remaining(error: BudgetError) -> str:
    """Return what remains of the budget."""
    return error.told(error.remaining_rho, error.remaining_delta)


def option(name: str, value: float) -> str:
    """Return an option with a number, as it is written in a query."""
    return f"{name} = {value:.9g}"


def half_width_option(target: HalfWidths) -> str:
    """Return the option of half widths, as it is written in a query.

    >>> half_width_option(HalfWidths(50.0))
    'target_half_width = 50'
    >>> half_width_option(HalfWidths((("visits", 50.0), ("ana's", 5000.0))))
    "target_half_width = {'visits': 50, 'ana''s': 5000}"
    """
    if not isinstance(target.widths, tuple):
        return option("target_half_width", target.widths)
    quoted = ((name.replace("'", "''"), width) for name, width in target.widths)
    listed = ", ".join(f"'{name}': {width:.9g}" for name, width in quoted)
    return f"target_half_width = {{{listed}}}"


def takes_too_much(asked: str, name: str, level: float, most: str, cures: Sequence[str]) -> str:
    """Say that half widths take more than the question allows, and what to write.

    >>> takes_too_much("target_half_width = 50", "rho", 0.0418, "max_rho = 0.01", ["max_rho = 0.0418"])
    'target_half_width = 50 takes rho = 0.0418, and the question allows max_rho = 0.01. Write max_rho = 0.0418'
    """
    return f"{asked} takes {option(name, level)}, and the question allows {most}. Write {' or '.join(cures)}"


def half_widths(target: HalfWidths) -> str:
    """Say which half widths a question asks for.

    >>> half_widths(HalfWidths(50.0))
    'at most 50 for each count and sum (95 %)'
    >>> half_widths(HalfWidths((("visits", 50.0), ("cost", 5000.0)), 0.99))
    'at most 50 for visits and 5,000 for cost (99 %)'
    """
    share = f"({100.0 * target.confidence:.0f} %)"
    if not isinstance(target.widths, tuple):
        return f"at most {target.widths:,.9g} for each count and sum {share}"
    widths = [f"{width:,.9g} for {name}" for name, width in target.widths]
    return f"at most {phrases.listed(widths)} {share}"


def write_half_widths(option: str, *beside: str) -> str:
    """Say which half widths are granted, as they are written in a query, with other options.

    >>> write_half_widths("target_half_width = 71"), write_half_widths("target_half_width = 50", "delta = 1e-07")
    ('Write target_half_width = 71, the smallest that is granted.', 'Write target_half_width = 50, delta = 1e-07.')
    """
    return f"Write {', '.join((option, *beside))}{'' if beside else ', the smallest that is granted'}."


def half_widths_refused(error: DpsqlError, asked: str, cure: str) -> str:
    """Say that half widths are refused, with the rho that they take.

    Args:
        error: of a budget, a clearance or a ceiling.
        asked: the half widths, as they are written in a query.
        cure: what is granted.

    """
    match error:
        case BudgetError():
            return (
                f"{asked} takes {_requested(error)}, and {error.limit} has {_remaining(error)} left. "
                f"{cure} FROM dp_releases() lists what is free."
            )
        case AccessError():
            return (
                f"{asked} takes rho = {error.requested_rho:.6g}, and {error.reader!r} may be shown answers up to "
                f"rho = {error.limit_rho:.6g}. {cure}"
            )
        case CalibrationError():
            return (
                f"{asked} takes rho = {error.requested_rho:.6g} for one statistic, and the ceiling of this query is "
                f"rho = {error.limit_rho:.6g}. {cure}"
            )
    return str(error)


def full_price(level: float, delta: float, amount: str = "rho") -> str:
    """Return the price of a question of which nothing is stored.

    >>> full_price(0.5, 0.0), full_price(0.5, 0.0, "epsilon")
    ('rho = 0.5 and threshold delta = 0, if nothing of it is stored', 'epsilon = 0.5, if nothing of it is stored')
    """
    thresholds = f" and threshold delta = {delta:.6g}" if amount == "rho" or delta else ""
    return f"{amount} = {level:.9g}{thresholds}, if nothing of it is stored"


def wider(column: str, width: float, most: float) -> str:
    """Say which half width a column has in place of the one that was asked for.

    >>> wider("visits", 77.4, 50.0)
    'visits has a half width of 77.4 in place of 50'
    """
    return f"{column} has a half width of {width:,.9g} in place of {most:,.9g}"


def why_wider(cap: str, enough: float | None) -> str:
    """Say that the cap is too low for half widths, and which one is not.

    Args:
        cap: as it is written in a query.
        enough: the smallest max_rho that is not too low; None if there is none.

    >>> why_wider("max_rho = 0.01", 0.0242)
    'for the bounds that AUTO found, max_rho = 0.01 is too low; write max_rho = 0.0242'
    >>> why_wider("max_epsilon = 1", None)
    'for the bounds that AUTO found, no level is high enough'
    """
    if enough is None:
        return "for the bounds that AUTO found, no level is high enough"
    in_place = "" if cap.startswith("max_rho") else " in its place"
    return f"for the bounds that AUTO found, {cap} is too low; write max_rho = {enough:.9g}{in_place}"


def dearest(rho: float, delta: float) -> str:
    """Say in a plan what the dearest of all bounds costs that AUTO may find.

    >>> dearest(0.5, 1e-7)
    'rho = 0.5 and threshold delta = 1e-07, AUTO included; less if AUTO finds smaller bounds'
    """
    return f"rho = {rho:.9g} and threshold delta = {delta:.6g}, AUTO included; less if AUTO finds smaller bounds"
