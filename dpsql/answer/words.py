"""Sentences of receipts, and of the lines below a table: one function or constant for each.

The module reads nothing and computes nothing but the form of its numbers, so that all wording can be read in one place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpsql.errors import AccessError, BudgetError, CalibrationError, DpsqlError
from dpsql.model.private_query import HalfWidths
from dpsql.pictures.tables import short

COVERAGE_GONE = "it was not measured while the rows were available; ask about the current version of the table"
"""Why coverage is unknown if rows of an old version are gone, and it was never stored."""
TOO_FEW = "noise hides the units at this level; ask with more epsilon or rho, or for fewer columns"
"""Why coverage is unknown if there are too few units."""
COVERAGE_OFF = "the query says coverage = FALSE; leave it out"
"""Why coverage is unknown if nobody wants to know."""
COVERAGE_OF_SETS = "the grouping sets are added up from groups by more keys; ask about each set by itself"
"""Why coverage of grouping sets that add up is unknown."""
COVERAGE_OF_LARGEST = "what top_k leaves out depends on all units together; leave top_k out"
"""Why coverage of the largest groups is unknown."""
COVERAGE_AT_CEILING = "rho_ceiling draws each number once, at the ceiling; leave rho_ceiling out"
"""Why coverage at a ceiling is unknown."""
COVERAGE_OF_CUT_UNITS = (
    "max_rows_per_unit cuts the rows of a unit; the curator can declare the table with max_rows_per_unit := NULL"
)
"""Why coverage is unknown if not all rows of a unit are read."""
COVERAGE_OF_JOINS = (
    "a join cuts the rows of a unit; declare PRIMARY KEY for the compared columns, which a note names, on the table "
    "that has one row for each"
)
"""Why coverage is unknown if a join multiplies rows."""


def read_from_cells(quantiles: Sequence[str], cells: int, widths: str) -> str:
    """Say from how many cells of a histogram quantiles of one value are read, and how wide these are."""
    return f"{', '.join(dict.fromkeys(quantiles))}: read from {cells} cells, {widths}"


def bounds_raise(form: str, high: float) -> str:
    """Say why coverage is unknown if bounds of a ``group`` or a ``row`` begin above 0, and which ones have a share.

    >>> bounds_raise("group", 1024.0)
    'its bounds begin above 0, and raise what is less; write contribution_bounds_per_group => (0, 1024)'
    """
    return f"its bounds begin above 0, and raise what is less; write contribution_bounds_per_{form} => (0, {high:.9g})"


_TOLD_HIGH = 0.985
"""An upper end above it says nothing."""


def at_least(share: float) -> str:
    """Return a share in per cent, rounded down, never 100.

    >>> at_least(0.917), at_least(0.9987), at_least(1.0), at_least(0.0291), at_least(0.00047)
    ('91 %', '99.8 %', '99.9 %', '2.9 %', '0.04 %')
    """
    percent = min(100.0 * share, 99.9)
    digits = 2 if percent < 1.0 else 1 if percent < 10.0 or percent >= 99.0 else 0
    return f"{math.floor(percent * 10**digits) / 10**digits:.{digits}f} %"


def at_most(share: float) -> str:
    """Return a share in per cent, rounded up, never 0.

    >>> at_most(0.917), at_most(0.0291), at_most(0.0)
    ('92 %', '3.0 %', '0.01 %')
    """
    percent = max(100.0 * share, 0.01)
    digits = 2 if percent < 1.0 else 1 if percent < 10.0 else 0
    return f"{math.ceil(percent * 10**digits) / 10**digits:.{digits}f} %"


def coverage_unknown(of: str, why: str) -> str:
    """Say that it is unknown what bounds keep of a number, and why."""
    return f"it is unknown what bounds keep of {of}: {why}"


def kept_up_to(of: str, unit: str, size: str, low: float, high: float) -> str:
    """Say what bounds keep of units up to a size."""
    ends = f"at least {at_least(low)}{f' and at most {at_most(high)}' if high <= _TOLD_HIGH else ''}"
    return f"bounds keep {ends} of {of} of units ({unit}) with up to {size} each"


def kept_of_all(of: str, high: float) -> str:
    """Say what bounds keep of all units together at most; empty if the end says nothing."""
    return f"bounds keep at most {at_most(high)} of all {of}" if high <= _TOLD_HIGH else ""


def units_beyond(least: int, most: int, part: float) -> str:
    """Say how many units have more than a size, and what is known of the part that they have."""
    units = f"{f'at least {least:,} and ' if least else ''}at most {most:,} units have more"
    if part < _LEAST_PART:
        return f"{units}, and it is unknown what share of all is theirs"
    return f"{units}: at least {at_least(part)} of all is theirs, and it is unknown what bounds keep of it"


_LEAST_PART = 0.005
"""A smaller part beyond a size is not told."""
LARGER_BOUNDS = "larger bounds keep more, with more noise"
"""Advice if no single bound can be named."""


def more_groups(groups: int, noise: float) -> str:
    """Say which number of groups keeps most, and what it costs."""
    return f"OPTIONS (max_groups_contributed = {groups}) {_keeps_much(noise)}"


def more_rows(counted: str, rows: int, noise: float) -> str:
    """Say which count keeps most rows, and what it costs."""
    return f"count({counted}, contribution_bounds_per_group => (0, {rows})) {_keeps_much(noise)}"


def _keeps_much(noise: float) -> str:
    return f"keeps about 95 % of what is measured, with {noise:.2g} times the noise"


def none_passed(unit: str, thresholds: Sequence[float], *, is_relative: bool) -> str:
    """Say that no noisy count passed the thresholds; a relative one counts from the largest group left out."""
    *others, last = (short(one, 4) for one in thresholds)
    listed = f"{', '.join(others)} and {last}" if others else last
    if is_relative:
        return f"no noisy count exceeded the largest group left out by more than {listed} units ({unit})"
    return f"no noisy count passed the threshold{'s' * bool(others)} of {listed} units ({unit})"


def below_minimum(unit: str, minimum: int) -> str:
    """Say that no noisy count passed the minimum that the query or its table asks for."""
    return f"no noisy count passed min_privacy_units_per_group = {minimum:,} units ({unit}); coarser keys help"


NO_LISTED_KEY = "the list of public keys is empty"
"""Why an answer with public keys has no rows, if nothing else left them out."""

OTHER_KEYS = "coarser keys or public keys help"
"""A cure for thresholds that no higher level lowers."""


def at_higher_level(level: str, threshold: float, *, is_open: bool, of_several: bool) -> str:
    """Say what the threshold would be at a higher level, and the other cures.

    If ``is_open``, AUTO may choose other bounds there.
    """
    condition = ", if AUTO chose the same bounds again" if is_open else ""
    subject = "the lowest" if of_several else "it"
    return f"at {level} {subject} would be {short(threshold, 4)}{condition}; {OTHER_KEYS}, too"


def of_sets(sets: Sequence[Sequence[str]], sentence: str) -> str:
    """Say which grouping sets, by their keys, a sentence is about."""
    *others, last = (f"({', '.join(keys)})" for keys in sets)
    named = f"{', '.join(others)} and {last}" if others else last
    return f"groups by {named}: {sentence}"


def all_left_out(clauses: Sequence[str], count: int, noun: str) -> str:
    """Say which clauses of a query left out all of the `count` rows or groups before them."""
    every = f"all {count:,} {noun}s" if count > 1 else f"the only {noun}"
    *others, last = clauses
    named = f"{', '.join(others)} and {last}" if others else last
    return f"{named} left out {every}"


def interval_of(bounds: tuple[float, float], *, are_times: bool) -> str:
    """Return an interval of numbers, or of times in seconds since 1970, in brackets.

    >>> interval_of((0.0, 500.0), are_times=False), interval_of((0.0, 86400.0), are_times=True)
    ('[0, 500]', '[1970-01-01, 1970-01-02]')
    """
    if not are_times:
        return f"[{bounds[0]:,.9g}, {bounds[1]:,.9g}]"
    low, high = (str(np.datetime64(round(end), "s")).replace("T", " ").removesuffix(" 00:00:00") for end in bounds)
    return f"[{low}, {high}]"


def unknown_in(column: str, domain: str) -> str:
    """Say why numbers of a column are printed as NULL."""
    return f"NULL in {column}: the 95 % interval covers all of {domain}"


_NOT_FOUND = {
    "few": "too few units ({unit}) have values of one size",
    "zeros": "nearly all units ({unit}) have values that add up to 0",
    "range": "its values are out of the range that AUTO can tell",
    "noise": "units ({unit}) have so many rows that the noise cannot be drawn at this level",
}
"""Why AUTO found no bounds, by `NotFound.reason`."""


_IS_NULL = "is NULL, and not paid for"


def says_null(note: str) -> bool:
    """Check that a note says why a column is NULL.

    >>> says_null(without_bounds("sum(v)", "person", "few", "sum(v, contribution_bounds_per_row => (0, 500))"))
    True
    """
    return _IS_NULL in note


NOT_REACHED = "the target is not reached"


def says_missed(note: str) -> bool:
    """Check that a note says that an answer is not within its relative error."""
    return note.startswith(NOT_REACHED)


def without_bounds(name: str, unit: str, reason: str, cure: str) -> str:
    """Say that a column is NULL because AUTO found no bounds, and what to write."""
    why = _NOT_FOUND[reason].format(unit=unit)
    if reason == "noise":
        # bounds of values do not change how many rows a unit has
        return f"{name} {_IS_NULL}: {why}; ask with more epsilon or rho"
    # what AUTO cannot tell it does not tell at another level either
    higher = "" if reason == "range" else ", or ask with more epsilon or rho"
    return f"{name} {_IS_NULL}: AUTO found no bounds, because {why}; write {cure}{higher}"


def one_row(name: str, unit: str, reason: str, bounds: tuple[float, float]) -> str:
    """Say that a sum takes one row of a unit, because AUTO found nothing and its values have declared bounds."""
    why = _NOT_FOUND[reason].format(unit=unit)
    return (
        f"{name} takes as much of a unit as one row may have within the bounds [{bounds[0]:.9g}, {bounds[1]:.9g}] of "
        f"its values, because {why}"
    )


def clock_of(zone: str) -> str:
    """Say on which clock days and hours are read of timestamps with a zone, if the query does not name it."""
    return f"days and hours of TIMESTAMPTZ values are those of time zone {zone}"


def rows_scaled(most: int) -> str:
    """Say how many rows of a unit count in a group."""
    return f"rows of one unit in one group beyond {most:,} are scaled down to that number"


def rows_by_auto(most: float, at: str) -> str:
    """Say how many rows of a unit count in a group by AUTO, and at which level it was asked."""
    return (
        f"AUTO lets at most {math.ceil(most):,} rows of a unit count in a group, by a noisy histogram of units by the "
        f"norm of their numbers of rows in all groups, {at}"
    )


def served_at(rho: float, asked_rho: float | None) -> str:
    """Say the level of an answer, and the one that was asked for if that is lower by a nano-rho or more.

    >>> served_at(0.2, 0.2), served_at(1.0, 0.2), served_at(0.2, None)
    ('rho = 0.2', 'served at rho = 1 (asked for: rho = 0.2)', 'rho = 0.2')
    """
    if asked_rho is None or rho - asked_rho < _HALF_NANO:
        return f"rho = {rho:.6g}"
    return f"served at rho = {rho:.6g} (asked for: rho = {asked_rho:.6g})"


_HALF_NANO = 5e-10
"""Levels are whole nano-rho: less is a rounding of floats."""


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
                "FROM dp_releases() lists what is answered again for nothing."
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


EPSILONS_DO_NOT_ADD_UP = (
    "epsilon_spent and epsilon_next do not add up to epsilon_budget: epsilon grows like the square root of rho, and "
    "rho adds up"
)
"""Note of a budget."""
