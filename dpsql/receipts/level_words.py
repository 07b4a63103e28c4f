"""Sentences of refusals of a level, and options as they are written in a query; `words.py` has those of receipts."""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.errors import AccessError, BudgetError, CalibrationError, DpsqlError
from dpsql.model.private_query import HalfWidths

NO_LOWER_LEVEL = "No lower level is granted either."
"""A cure of a level that is refused, where nothing that the text may ask for is left."""


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
            return (
                f"{error.limit} does not cover this query at {asked} (it {costs} "
                f"rho = {error.requested_rho:.6g} and threshold delta = {error.requested_delta:.6g}; left are "
                f"rho = {error.remaining_rho:.6g} and delta = {error.remaining_delta:.6g}). {cure} "
                "FROM dp_releases() lists what is free."
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
