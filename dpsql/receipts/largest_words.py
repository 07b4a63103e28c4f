"""Sentences about questions for the largest counts; `words.py` has their rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dpsql.model.query_kinds import LargestWithin
from dpsql.receipts import level_words, phrases, words
from dpsql.receipts.left_out_words import plural


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of an answer.

    Attributes:
        count: their number, above 0.
        smallest: the smallest shown count.
        most: the most that a group has that is not shown, at 95 %; None if all groups are shown.
        of_rows: whether bounds may leave out rows, so that the counted ones are meant.
        hidden: whether a smallest number of units hides counts that are within the error.

    """

    count: int
    smallest: float
    most: float | None
    of_rows: bool
    hidden: bool


def notes_of(query: LargestWithin, rows: Rows) -> Iterator[str]:
    """Yield how many rows are within the error, of how many, and how large a group may be that is not shown."""
    groups, limit = query.first.frame.key_count or 1, query.limit
    is_all = rows.count >= (limit or groups)
    if not is_all:
        yield _fewer(query, rows, f"{limit:,} largest groups by noisy counts" if limit else f"{groups:,} groups")
    count = _all(query, rows) if is_all else ""
    if rows.most is not None:
        sentence = words.LARGER_MAY_BE_MISSING if rows.most > rows.smallest else words.SMALLER_ARE_MISSING
        missing = sentence.format(most=int(rows.most), units=_units(query))
        yield words.LARGEST_ARE_WITHIN.format(count=count or "rows are ", missing=missing)
    elif count:
        yield words.LARGEST_ARE_WITHIN.format(count=count, missing="all groups are shown")
    yield words.LARGEST_ERROR


def none_within(query: LargestWithin, count: float, level: float | None) -> str:
    """Say why an answer has no row, and which level returns one.

    Args:
        query: the question.
        count: about the largest count.
        level: value of the option of the level that returns it; None if the numbers do not tell.

    """
    percent = 100.0 * query.target.error
    if level is None:
        return words.NONE_WITHIN_UNKNOWN.format(percent=percent)
    cap = level_words.option(query.cap[0], level)
    return words.NONE_WITHIN.format(percent=percent, count=round(count), cap=cap)


def _all(query: LargestWithin, rows: Rows) -> str:
    """Say that as many rows are within the error as the question asks for."""
    number = phrases.number_of(rows.count, "row" if query.limit else "group")
    are = "the row is" if rows.count == 1 else f"all {number} are"
    target = query.target
    confidence = f"({100.0 * target.confidence:.0f} %)"
    return f"{are} within {100.0 * target.error:g} %{_of(rows)} {confidence}, "


def _fewer(query: LargestWithin, rows: Rows, asked: str) -> str:
    """Say how many counts are within the error, if they are fewer than the question asks for."""
    target = query.target
    shown = words.LARGEST_SHOWN.format(
        count=f"{rows.count:,} of",
        asked=asked,
        are="is" if rows.count == 1 else "are",
        percent=100.0 * target.error,
        of=_of(rows),
        confidence=100.0 * target.confidence,
    )
    why = words.NO_OTHER_WITHIN.format(cap=level_words.option(*query.cap))
    if rows.hidden:
        part = query.first
        why = words.HIDDEN_BY_MINIMUM.format(minimum=part.request.min_units, unit=part.frame.rows.unit)
    return words.NOT_REACHED.format(shown=shown, why=why)


def _of(rows: Rows) -> str:
    """Return what a relative error is of, where that is not the number of a whole group."""
    return " of counted rows" if rows.of_rows else ""


def _units(query: LargestWithin) -> str:
    """Return the plural of what is counted."""
    frame = query.first.frame
    counted = frame.largest and frame.largest.counted
    return "rows" if counted and counted.kind == "rows" else plural(frame.rows.unit)
