"""The screen of dp_check: rows of section, name and value, the warning and the cure first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dpsql.pictures.tables import short
from dpsql.release.bound_errors import PEOPLE, ROWS

Row = tuple[str, str, str]

WORTH_IT = 1.1
"""Other bounds are named if they make errors so many times smaller."""
_TOO_LARGE = 0.8
"""From this mean error on no bounds are named: smaller ones leave out nearly all, and so have less error."""
_BAR = 40


@dataclass(frozen=True, slots=True)
class Spread:
    """The place of numbers of units, or of values of a column.

    Attributes:
        name: of what they are.
        value: share that a bound keeps, and the ends of the numbers, in words.

    """

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one number of a grouping, as shares; None if they are not known.

    Attributes:
        declared: under the declared bounds.
        nothing: with no bound declared.
        better: under the best bounds of the grid.

    """

    declared: float | None
    nothing: float | None
    better: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Errors of a grouping for each number of a bound.

    Attributes:
        bound: the name of the bound.
        grouping: the grouped columns.
        errors: by the number.
        marks: words at some numbers.

    """

    bound: str
    grouping: str
    errors: Mapping[int, float]
    marks: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class BoundReport:
    """The findings of dp_check.

    Attributes:
        level: the level that errors are of, in words.
        is_declared: whether a bound is declared.
        better: how many times smaller errors are under the best bounds of the grid than now.
        kept: share of the rows that the best bounds keep by one grouping, and the declared ones, in words.
        least: the geometric mean of the errors under the best bounds of the grid.
        without: how many times smaller errors are with no bound declared than now.
        calls: declarations of the best bounds, by table and column.
        undo: the declarations that leave all bounds to AUTO.
        bounds: the bounds, each with spreads.
        errors: by grouping and number.
        share: share of the units that was read.
        curves: errors against bounds.

    """

    level: str
    is_declared: bool
    better: float
    kept: str
    least: float
    without: float
    calls: Sequence[tuple[str, str]]
    undo: Sequence[tuple[str, str]]
    bounds: Mapping[str, Sequence[Spread]]
    errors: Mapping[str, Mapping[str, Errors]]
    share: float = 1.0
    curves: Sequence[Curve] = field(default_factory=tuple)

    @property
    def is_compared(self) -> bool:
        """Return whether an error is known as it is now."""
        errors = (one for of_grouping in self.errors.values() for one in of_grouping.values())
        return any((one.declared if self.is_declared else one.nothing) is not None for one in errors)


def report_rows(report: BoundReport, *, plot: bool) -> list[Row]:
    """Return the rows of the screen."""
    rows: list[Row] = [
        (
            "for the curator alone",
            "raw rows",
            "These numbers come from raw rows, without noise. Show them to nobody. Nothing is charged or stored.",
        ),
        *_result(report),
    ]
    rows += [(bound, one.name, one.value) for bound, spreads in report.bounds.items() for one in spreads]
    for grouping, errors in report.errors.items():
        rows += [
            (f"error by {grouping}", _number_words(number), _error_words(one, report)) for number, one in errors.items()
        ]
    rows += _notes(report)
    if plot:
        rows += [row for curve in report.curves for row in _plotted(curve)]
    return rows


def _result(report: BoundReport) -> Iterator[Row]:
    """Yield the conclusion, and the declarations that follow from it."""
    if report.least >= _TOO_LARGE:
        yield (
            "result",
            "level",
            "No bounds help: errors are nearly as large as the numbers. Ask with more epsilon or rho, or by a column "
            "with fewer values.",
        )
        return
    before = "the declared bounds" if report.is_declared else "no bound declared"
    if not report.is_compared:
        yield (
            "result",
            "best bounds",
            f"These bounds are the best of the grid 1, 2, 5, 10, … They keep {report.kept}. Errors with {before} are "
            "not known, because AUTO finds missing bounds: write auto := true to compare them.",
        )
        yield from (("declare", place, call) for place, call in report.calls)
        return
    is_auto_better = report.is_declared and report.without >= max(report.better, WORTH_IT)
    if is_auto_better:
        yield (
            "result",
            "no bounds",
            f"With no bound declared, errors are {_smaller(report.without)} than with {before}.",
        )
        yield from (("declare", place, call) for place, call in report.undo)
    if report.better >= WORTH_IT:
        smaller = f"With these bounds, errors are {_smaller(report.better)} than with {before}."
        yield "result", "best bounds", f"{smaller} They keep {report.kept}."
        yield from (("or declare" if is_auto_better else "declare", place, call) for place, call in report.calls)
    elif not is_auto_better:
        yield "result", "bounds", f"No bounds of the grid 1, 2, 5, 10, … make errors 10 % smaller than {before}."


def _smaller(factor: float) -> str:
    return f"on average {short(factor, 2)} times smaller"


def _number_words(number: str) -> str:
    """Return the words for a number: people, rows, or the sum of a column."""
    return {PEOPLE: "units", ROWS: "rows"}.get(number, f"sum({number})")


def _error_words(errors: Errors, report: BoundReport) -> str:
    """Return the errors of one number as a sentence."""
    shown = [(errors.declared, "as declared")] * report.is_declared
    shown.append((errors.nothing, "with no bound"))
    if (report.better >= WORTH_IT or not report.is_compared) and report.least < _TOO_LARGE:
        shown.append((errors.better, "with the best bounds"))
    return ", ".join(f"{percent(error)} {words}" for error, words in shown if error is not None)


def _notes(report: BoundReport) -> Iterator[Row]:
    """Yield the explanations."""
    yield (
        "how to read it",
        "error",
        "The expected errors of all groups are added up, as a share of the sum of all groups. They are noise, rows "
        "that bounds leave out, and groups that are not shown."
        + " With no bound, they are those of one answer by AUTO." * any(one.nothing for one in _every(report))
        + " An average of errors is their geometric mean.",
    )
    yield "how to read it", "level", f"Each question asks for one number at {report.level}."
    if report.share < 1.0:
        yield "how to read it", "sample", f"The table is large, so {percent(report.share)} of the units were read."
    if not any(one.nothing for one in _every(report)):
        yield "how to read it", "no bound", "auto := true also compares with the errors if no bound is declared."
    yield (
        "how to read it",
        "privacy",
        "Bounds are public, and the privacy promise does not cover how you choose them. Round them up.",
    )


def _every(report: BoundReport) -> list[Errors]:
    """Return the errors of all groupings and numbers."""
    return [one for errors in report.errors.values() for one in errors.values()]


def _plotted(curve: Curve) -> Iterator[Row]:
    """Yield a bar for each number of a bound."""
    most = max(curve.errors.values())
    for number, error in curve.errors.items():
        bar = "█" * max(1, round(_BAR * error / most)) if most > 0.0 else ""
        mark = f"  {curve.marks[number]}" if number in curve.marks else ""
        yield f"{curve.bound} by {curve.grouping}", f"{number:,}", f"{bar} {percent(error)}{mark}"


def percent(share: float | None) -> str:
    """Return a share in percent with two digits, or two digits of what it lacks of 100 %.

    >>> percent(0.0623), percent(0.4), percent(0.9985), percent(0.99999), percent(None), percent(12.3456)
    ('6.2 %', '40 %', '99.85 %', 'nearly 100 %', 'unknown', '1,235 %')
    """
    if share is None or not math.isfinite(share):
        return "unknown"
    number = 100.0 * share
    if number == 100.0:
        return "100 %"
    if 99.99 < number < 100.0:
        return "nearly 100 %"
    missing = 100.0 - number if 90.0 < number < 100.0 else number
    digits = max(0, min(3, 1 - math.floor(math.log10(abs(missing))))) if missing else 0
    return f"{number:,.{digits}f} %" if number < 10.0 or number > 90.0 else f"{number:,.0f} %"


def kept_words(shares: Mapping[str, float]) -> str:
    """Return the shares of the rows that a bound keeps, by each grouping, the least first."""
    ordered = sorted(shares.items(), key=lambda one: one[1])
    (first, least), *others = ordered
    rest = "".join(f", {percent(share)} by {name}" for name, share in others)
    return f"{percent(least)} of the rows by {first}{rest}"


def kept_by_best(best: float, declared: float | None, grouping: str) -> str:
    """Return the shares of the rows that the best bounds keep by a grouping, and the declared bounds if any.

    >>> kept_by_best(0.712, 0.3845, "city")
    '71 % of the rows by city, the declared bounds 38 %'
    """
    return f"{percent(best)} of the rows by {grouping}" + (
        "" if declared is None else f", the declared bounds {percent(declared)}"
    )


def groups_words(nearly_all: int, most: int, unit: str) -> str:
    """Return the numbers of groups of units: that of 99 of 100 units or less, and the largest."""
    return f"99 % of the units ({unit}) are in {_up_to(nearly_all, 'group')}; the largest is in {most:,}"


def rows_words(nearly_all: int, most: int, unit: str) -> str:
    """Return the numbers of rows of units in a group: that of 99 of 100 units or less, and the largest."""
    return f"99 % of the units ({unit}) have {_up_to(nearly_all, 'row')} in each group; the largest has {most:,} in one"


def _up_to(number: int, noun: str) -> str:
    return f"{number:,} {noun}s or fewer" if number > 1 else f"1 {noun}"


def values_words(inside: float, kept: float, ends: tuple[float, float, float, float], column: str) -> str:
    """Return the share of the values within bounds, the part of their sum that is kept, and where the values lie.

    Args:
        inside: share of the values within the bounds.
        kept: share of their sum that is kept.
        ends: the least value, the ends of the middle 98 %, and the largest value.
        column: its name.

    """
    low, first, last, high = map(short, ends)
    return (
        f"keeps {percent(kept)} of sum({column}); {percent(inside)} of the values are inside. 98 % are from {first} to "
        f"{last}, all from {low} to {high}"
    )


def keys_words(share: float, listed: int, empty: int) -> str:
    """Return the share of the rows whose key is listed, and the number of listed keys without rows."""
    without = f", and {empty:,} of the {listed:,} keys have no row" if empty else ""
    return f"{percent(share)} of the rows have a listed key{without}"
