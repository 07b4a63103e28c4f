"""Phrases of receipts: functions that choose rows of the table in `words.py` by numbers, and fill them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from dpsql.pictures.tables import short
from dpsql.receipts import coverage_words, screen_words, words

TOLD_HIGH = 0.985
"""An upper end above it says nothing."""
LEAST_PART = 0.005
"""A smaller part beyond a size is not told."""
LEAST_DELTA = 1e-15
"""A smaller delta, the price of the precision of noise, is not told."""
_SCALES = ((1e12, " trillion"), (1e9, " billion"), (1e6, " million"))
_SAME_LEVEL = 5e-10
"""Levels are whole nano-rho: a smaller difference is a rounding of floats."""
_HIDDEN = words.HIDDEN_VALUES.format(columns="")
_MISSED, _NULL = words.NOT_REACHED.partition(":")[0], " is NULL, and not paid for"
_OF_ROWS, _OUTSIDE = " quantile of the rows, not the ", "; values outside "
_COVERS, _LESS = re.compile(r"\bcovers? the noise\b"), screen_words.LESS_FOR_SOME.partition("for")[0]
_PICKED = words.PICKED.partition("}")[2]


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


def rounded_down(number: float, *, is_whole: bool = True) -> str:
    """Return a number with two or three digits, never more than it is.

    >>> [rounded_down(number) for number in (43_917.0, 19_876.0, 7.9, 0.4, 2_569_000.0)]
    ['43,000', '19,800', '7', '0', '2.5 million']
    >>> rounded_down(0.0579, is_whole=False)
    '0.057'
    """
    return _digits(number, math.floor, is_whole=is_whole)


def rounded_to(number: float, *, is_whole: bool = True) -> str:
    """Return a number with two or three digits.

    >>> [rounded_to(number) for number in (57_431.0, 996.0, 1_004_000.0)]
    ['57,000', '1,000', '1.00 million']
    """
    return _digits(number, round, is_whole=is_whole)


def _digits(number: float, rounding: Callable[[float], int], *, is_whole: bool) -> str:
    """Return a number with two digits, or with three if the first one is 1."""
    if number <= 0.0 or not math.isfinite(number):
        return "0" if number <= 0.0 else str(number)
    scale, word = next(((scale, word) for scale, word in _SCALES if number >= scale), (1.0, ""))
    scaled = number / scale
    if scaled >= 1e4 and word:
        return f"{number:.3g}"
    magnitude = math.floor(math.log10(scaled))
    leading = scaled / 10.0**magnitude
    place = magnitude - (2 if leading < 2.0 else 1)
    if is_whole and not word:
        place = max(0, place)
    steps = rounding(scaled * 10.0**-place)
    return f"{steps * 10**place:,}{word}" if place >= 0 else f"{steps / 10**-place:,.{-place}f}{word}"


def number_of(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> number_of(1, "row"), number_of(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Return names as a list in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def between(low: float, high: float) -> str:
    """Return the ends of a share; an upper end that says nothing is left out.

    >>> between(0.69, 0.75), between(0.69, 1.0)
    ('at least 69 % and at most 75 %', 'at least 69 %')
    """
    return f"at least {at_least(low)}{f' and at most {at_most(high)}' if high <= TOLD_HIGH else ''}"


def counted(ends: str, of: str, measured: str, unit: str, size: float | None) -> str:
    """Say what part of a column is counted.

    >>> counted("at least 91 %", "rows", "rows", "patient", 64.0)
    'at least 91 % of rows are counted for units (patient) with up to 64 rows'
    >>> counted("at least 91 %", "sum(cost)", "totals", "", 4096.0)
    'sum(cost): at least 91 % of totals up to 4,096 per unit is counted'
    >>> counted("at least 91 %", "rows of avg(cost)", "rows", "patient", 1.0)
    'avg(cost): at least 91 % of its rows are counted for units (patient) with 1 of them'
    >>> counted("at least 91 %", "groups", "groups", "patient", None)
    'at least 91 % of all groups are counted'

    Args:
        ends: of the part.
        of: as in `CoverageReceipt`.
        measured: as in `CoverageReceipt`.
        unit: name of the privacy unit; empty to leave it out.
        size: largest size of the units that the part is about; None for all units.

    """
    is_number, of_unit = measured in ("rows", "groups"), f" ({unit})" if unit else ""
    nouns, sized = (measured, measured) if of == measured or not is_number else (f"its {measured}", "of them")
    if size is None:
        part = (coverage_words.ALL_OF_NUMBER if is_number else coverage_words.ALL_OF_TOTALS).format(
            nouns=nouns, unit=of_unit
        )
    elif not is_number:
        part = coverage_words.TOTALS_UP_TO.format(nouns=nouns, size=f"{size:,.9g}", unit=of_unit)
    elif size == 1.0:
        part = coverage_words.ONLY_ONE.format(nouns=nouns, unit=of_unit, sized=sized.removesuffix("s"))
    else:
        part = coverage_words.NUMBER_UP_TO.format(nouns=nouns, unit=of_unit, size=f"{size:,.9g}", sized=sized)
    name = "" if of == measured else coverage_words.OF_COLUMN.format(column=column_of(of))
    return coverage_words.COUNTED.format(column=name, ends=ends, part=part)


def column_of(of: str) -> str:
    """Return the columns that coverage is about, without the noun before them.

    >>> column_of("values of avg(cost)"), column_of("sum(cost)")
    ('avg(cost)', 'sum(cost)')
    """
    return of.removeprefix("values of ").removeprefix("rows of ")


def units_beyond(least: int, most: int, part: float) -> str:
    """Say how many units have more than a size, and what is known of the part that they have."""
    units = (coverage_words.SOME_BEYOND if least else coverage_words.MAYBE_BEYOND).format(least=least, most=most)
    if part < LEAST_PART:
        return coverage_words.PART_UNKNOWN.format(units=units)
    return coverage_words.PART_KNOWN.format(units=units, part=at_least(part))


def none_passed(unit: str, thresholds: Sequence[float], *, is_relative: bool) -> str:
    """Say that no noisy count passed the thresholds; a relative one counts from the largest group left out."""
    several = words.NONE_PASSED_ANY if len(thresholds) > 1 else words.NONE_PASSED
    sentence = words.NONE_EXCEEDED if is_relative else several
    return sentence.format(thresholds=listed([short(one, 4) for one in thresholds]), unit=unit)


def at_higher_level(level: str, threshold: float, *, is_open: bool, of_several: bool) -> str:
    """Say what the threshold would be at a higher level, and the other cures.

    If ``is_open``, AUTO may choose other bounds there.
    """
    return words.AT_HIGHER_LEVEL.format(
        level=level,
        subject="the lowest" if of_several else "it",
        threshold=short(threshold, 4),
        condition=words.SAME_BOUNDS if is_open else "",
    )


def all_left_out(clauses: Sequence[str], count: int, noun: str) -> str:
    """Say which clauses of a query left out all of the `count` rows or groups before them."""
    every = f"all {number_of(count, noun)}" if count > 1 else f"the only {noun}"
    return words.LEFT_OUT.format(clauses=listed(clauses), groups=every)


def interval_of(bounds: tuple[float, float], *, are_times: bool) -> str:
    """Return an interval of numbers, or of times in seconds since 1970, in brackets.

    >>> interval_of((0.0, 500.0), are_times=False), interval_of((0.0, 86400.0), are_times=True)
    ('[0, 500]', '[1970-01-01, 1970-01-02]')
    >>> interval_of((-math.inf, math.inf), are_times=False)
    'the number line'
    """
    if math.isinf(bounds[0]) and math.isinf(bounds[1]):
        return "the number line"
    if not are_times:
        return f"[{bounds[0]:,.9g}, {bounds[1]:,.9g}]"
    low, high = (str(np.datetime64(round(end), "s")).replace("T", " ").removesuffix(" 00:00:00") for end in bounds)
    return f"[{low}, {high}]"


def says_null(note: str) -> bool:
    """Check that a note says why a column is NULL.

    >>> says_null(without_bounds("sum(v)", "person", "few", "sum(v, contribution_bounds_per_row => (0, 500))"))
    True
    """
    return _NULL in note or note == words.HIDDEN_GROUPS or note.endswith(_HIDDEN)


def also_null(notes: Sequence[str], *, is_unknown: bool) -> str:
    """Return the reason of NULL, or that values are not shown, in a few words.

    >>> also_null([words.HIDDEN_GROUPS], is_unknown=False)
    'NULL may be a group that is not shown'

    Args:
        notes: reasons of NULL.
        is_unknown: whether numbers are NULL because their intervals say nothing.

    """
    if any(note.endswith(_HIDDEN) for note in notes):
        return screen_words.ALSO_HIDDEN_VALUES
    is_hidden = notes == [words.HIDDEN_GROUPS] and not is_unknown
    return screen_words.ALSO_HIDDEN if is_hidden else screen_words.ALSO_NULL


def says_missed(note: str) -> bool:
    """Check that a note says that an answer is not within its relative error."""
    return note.startswith(_MISSED)


def less_for(notes: Sequence[str]) -> str:
    """Say which rows intervals hold for less often, if one of the notes says that a clause picks them.

    >>> less_for([words.PICKED.format(clause="HAVING")])
    ', less for rows that HAVING picks'
    """
    clauses = [note.removesuffix(_PICKED) for note in notes if note.endswith(_PICKED)]
    return screen_words.LESS_FOR.format(clause=clauses[0]) if clauses else ""


def no_interval(notes: Sequence[str]) -> list[str]:
    """Return wordings of the columns of which no interval is known; none if no note says so.

    >>> no_interval([words.NO_INTERVAL.format(columns="ratio")])
    ['no interval for ratio', 'no interval for some']
    """
    begin, end = words.NO_INTERVAL.format(columns="\0").split("\0")
    columns = [note[len(begin) : -len(end)] for note in notes if note.startswith(begin) and note.endswith(end)]
    return [screen_words.NO_INTERVAL.format(columns=one) for one in (*columns, "some")] if columns else []


def with_others(known: Sequence[str], without: Sequence[str]) -> list[str]:
    """Return wordings of the coverage of intervals, with the columns without one.

    >>> with_others(["± covers the noise (95 %), not what bounds cut"], ["no interval for ratio"])[-1]
    '95 % intervals cover noise alone; none for some'
    """
    wordings = [f"{one}; {other}" for other in without for one in known]
    return [*wordings, _briefly(f"{known[-1]}; {screen_words.NONE_FOR_SOME}")]


def with_reason(wordings: Sequence[str], reason: str) -> list[str]:
    """Return wordings of the line of the error with the reason of NULL, which comes first in the short ones."""
    short: dict[str, str] = {
        screen_words.ALSO_HIDDEN: screen_words.HIDDEN_BRIEFLY,
        screen_words.ALSO_NULL: screen_words.NULL_BRIEFLY,
    }
    first, last = short.get(reason, reason), wordings[-1]
    brief = _briefly(last)
    return [
        *(f"{one}; {reason}" for one in wordings),
        *(f"{first}; {one}" for one in (*wordings, brief, brief.partition("; ")[0])),
        last,
    ]


def _briefly(wording: str) -> str:
    """Return a wording of the line of the error with the coverage of intervals in fewest words."""

    def short_clause(clause: str) -> str:
        if not _COVERS.search(clause):
            return clause
        less = screen_words.LESS_FOR_SOME if _LESS in clause else ""
        return f"{screen_words.COVER_BRIEFLY}{less}"

    return "; ".join(map(short_clause, wording.split("; ")))


def clauses_within(line: str, most: int) -> str:
    """Return the first clauses of a line that fit; a clause that is too long by itself is cut.

    >>> clauses_within("error   one; two; three", 20), clauses_within("error   a_long_name", 12)
    ('error   one; two', 'error   a_ …')
    """
    clauses = line.split("; ")
    fitting = [one for count in range(len(clauses), 0, -1) if len(one := "; ".join(clauses[:count])) <= most]
    return fitting[0] if fitting else f"{clauses[0][: most - 2]} …"


def extremes(notes: Sequence[str]) -> list[str]:
    """Return wordings of the columns that are quantiles in place of extremes; none if no note says so.

    >>> low = words.EXTREME.format(columns="low", quantile="1 %", extreme="minimum", bounds="[0, 9]")
    >>> extremes([low])[0]
    'low: 1 % quantile of the rows, not the minimum; values outside [0, 9] are cut'
    >>> extremes([low])[-1]
    '1 % quantile of the rows, not the minimum'
    """
    found = [note.partition(_OF_ROWS) for note in notes if _OF_ROWS in note]
    if not found:
        return []
    names = listed([end.partition(_OUTSIDE)[0] for _, _, end in found])
    cuts = listed(list(dict.fromkeys(end.partition(_OUTSIDE)[2].removesuffix(" are cut") for _, _, end in found)))
    shares = listed([begin.rpartition(": ")[2] for begin, _, _ in found])
    not_these = screen_words.EXTREMES.format(extremes=names)
    cut = f"{_OUTSIDE}{cuts} are cut"
    wordings = (f"{', '.join(begin for begin, _, _ in found)} {not_these}", f"{shares} {not_these}")
    return [f"{one}{end}" for one in wordings for end in (cut, "")]


def shortfall(note: str) -> str:
    """Return by how much a note says that a target is missed, without the words that it is."""
    return note.removeprefix(f"{_MISSED}: ")


def without_bounds(name: str, unit: str, reason: str, cure: str) -> str:
    """Say that a column is NULL because AUTO found no bounds, and what to write."""
    why = words.NOT_FOUND[reason].format(unit=unit)
    if reason == "noise":
        # bounds of values do not change how many rows a unit has
        return words.NOT_DRAWN.format(column=name, why=why)
    # a range that AUTO cannot tell it does not tell at another level either
    higher = "" if reason == "range" else words.OR_MORE_EPSILON
    return words.WITHOUT_BOUNDS.format(column=name, why=why, cure=cure, higher=higher)


def one_row(name: str, unit: str, reason: str, bounds: tuple[float, float]) -> str:
    """Say that a sum takes one row of a unit, because AUTO found nothing and its values have declared bounds."""
    low, high = bounds
    return words.ONE_ROW.format(column=name, low=low, high=high, why=words.NOT_FOUND[reason].format(unit=unit))


def served_at(served: str, level: float, asked: float | None, amount: str = "rho") -> str:
    """Add to what was served the level that was asked for, if that is lower by 1e-9 or more.

    >>> served_at("rho 0.2", 0.2, 0.2), served_at("rho 1", 1.0, 0.2), served_at("rho 0.2", 0.2, None)
    ('rho 0.2', 'rho 1; the question asked for rho 0.2', 'rho 0.2')
    """
    if asked is None or level - asked < _SAME_LEVEL:
        return served
    return words.SERVED_AT.format(served=served, asked=charged_amount(asked, 0.0, amount))


def charged_amount(level: float, delta: float, amount: str = "rho") -> str:
    """Say a level or what is charged, without a delta that is too small to be told.

    >>> charged_amount(0.05, 0.0), charged_amount(0.05, 1e-9), charged_amount(0.5, 0.0, "epsilon")
    ('rho 0.05', 'rho 0.05 and threshold delta 1e-09', 'epsilon 0.5')
    """
    sentence = words.CHARGED if delta >= LEAST_DELTA else words.LEVEL
    return sentence.format(amount=amount, level=f"{level:.6g}", delta=f"{delta:.3g}")


def is_level(rho: float, other: float) -> bool:
    """Check that two levels are one, up to the rounding of floats."""
    return abs(rho - other) < _SAME_LEVEL
