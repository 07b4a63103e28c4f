"""Sentences of receipts, and of the lines below a table: one function or constant for each.

The module reads nothing and computes nothing but the form of its numbers, so that all wording can be read in one place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpsql.answer.sentence import Sentence
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


TOLD_HIGH = 0.985
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
    ends = f"at least {at_least(low)}{f' and at most {at_most(high)}' if high <= TOLD_HIGH else ''}"
    return f"bounds keep {ends} of {of} of units ({unit}) with up to {size} each"


def kept_of_all(of: str, high: float) -> str:
    """Say what bounds keep of all units together at most; empty if the end says nothing."""
    return f"bounds keep at most {at_most(high)} of all {of}" if high <= TOLD_HIGH else ""


def units_beyond(least: int, most: int, part: float) -> str:
    """Say how many units have more than a size, and what is known of the part that they have."""
    units = f"{f'at least {least:,} and ' if least else ''}at most {most:,} units have more"
    if part < LEAST_PART:
        return f"{units}, and it is unknown what share of all is theirs"
    return f"{units}: at least {at_least(part)} of all is theirs, and it is unknown what bounds keep of it"


LEAST_PART = 0.005
"""A smaller part beyond a size is not told."""
LEAST_DELTA = 1e-15
"""A smaller delta, the price of the precision of noise, is not told."""
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


EPSILONS_DO_NOT_ADD_UP = (
    "epsilon_spent and epsilon_next do not add up to epsilon_budget: epsilon grows like the square root of rho, and "
    "rho adds up"
)
"""Note of a budget."""


# Lines below a printed answer.

HALF_WIDTHS = Sentence("±")
"""How a half width is printed beside its number."""
ENDS = Sentence("low … high")
"""How the ends of an interval are printed beside its number."""
END_COLUMNS = Sentence("columns with ends")
"""Columns that the question asks for as ends of intervals."""
COVERS = Sentence("{intervals} covers the noise with 95 % probability", intervals="±")
COVER = Sentence("{intervals} cover the noise with 95 % probability", intervals="low and high")
WIDTH = Sentence("± {half_width} for {column}", half_width="18.7", column="aircraft")
WIDTHS = Sentence("the noise is {widths} with 95 % probability", widths="± 18.7 for aircraft")
NOT_BOUNDS = Sentence(", not what bounds leave out")
ALSO_NULL = Sentence("NULL: no value is known")
UNKNOWN_IN = Sentence("NULL in {columns}: the 95 % intervals cover all possible values", columns="mean and spread")
KEEP_RANGE = Sentence("keep {low} to {high} of all {of}", low="91 %", high="98 %", of="rows")
KEEP_ALL = Sentence("keep at least {low} of all {of}", low="91 %", of="rows")
KEEP_UP_TO = Sentence("keep at least {low} of {of} of units with up to {size} each", low="91 %", of="rows", size="64")
KEEP_SHORT = Sentence("keep at least {low} up to {size} a unit", low="91 %", size="64")
MORE_THAN_THAT = Sentence("at least {count:,} units have more", count=646)
MAY_HAVE_MORE = Sentence("at most {count:,} units have more", count=921)
THEIRS = Sentence(", with at least {part} of all; bounds keep an unknown part of it", part="34 %")
THEIRS_SHORT = Sentence(", with at least {part} of all", part="34 %")
THEIRS_UNKNOWN = Sentence(", with an unknown part of all")
UNKNOWN = Sentence("keep an unknown part of {of}: {why}", of="rows", why="see answer.receipt")
ONE_COLUMN = Sentence("one column")
SEE = Sentence("see {receipt_at}", receipt_at="answer.receipt")
MORE = Sentence("{count} more in {receipt_at}", count=2, receipt_at="answer.receipt")
NOTHING = Sentence("no group is shown; {receipt_at} says why", receipt_at="answer.receipt")
MISSED = Sentence("the target is not reached; {receipt_at} says why", receipt_at="answer.receipt")
NULLS = Sentence("NULL in some columns; {receipt_at} says why", receipt_at="answer.receipt")
GUARANTEE = Sentence("epsilon {epsilon} at delta {delta}", epsilon="1", delta="1e-08")
RHO = Sentence("rho {rho}", rho="0.0175")
CHARGED = Sentence("rho {rho} and threshold delta {delta}", rho="0.0175", delta="2.5e-09")
CHARGED_FOR = Sentence("{charged}, for an answer with {level}", charged="rho 0.01", level="rho 0.0175")
STORED = Sentence("nothing: served as stored, with {level}", level="rho 0.0175")
SPENT = Sentence("spent so far: {level} {spent} of {budget}", level="epsilon", spent="0.80", budget="3")
QUESTIONS_LEFT = Sentence("{count:,} more such questions", count=10)
ONE_QUESTION_LEFT = Sentence("1 more such question")
NO_QUESTION_LEFT = Sentence("no more such question")
NOTES = Sentence("{count} notes in {receipt_at}", count=2, receipt_at="answer.receipt")
NOTES_ALONE = Sentence("{count}, in {receipt_at}", count=2, receipt_at="answer.receipt")
ONE_NOTE = Sentence("1 note in {receipt_at}", receipt_at="answer.receipt")
KEYS_ABOVE = Sentence("shown if the noisy count of units exceeds {threshold}", threshold="57.68")
KEYS_ABOVE_LARGEST = Sentence(
    "shown if the noisy count of units exceeds the largest left out by {threshold}", threshold="57.68"
)
