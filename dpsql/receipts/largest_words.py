"""Sentences about questions for the largest counts; `words.py` has their rows."""

from __future__ import annotations

from dpsql.model.query_kinds import RelativeError
from dpsql.receipts import level_words, phrases, words


def within(count: int, limit: int | None, groups: int, target: RelativeError, *, of_rows: bool) -> str:
    """Say in a receipt that all rows of an answer that were asked for are within the error.

    Args:
        count: the number of rows.
        limit: of LIMIT; None without one.
        groups: the number of all groups.
        target: the error.
        of_rows: whether bounds may leave out rows, so that the counted ones are meant.

    >>> within(100, 100, 300, RelativeError(0.1, 1.0, 0.95), of_rows=False)
    'within 10 % (95 %): 100 of 100 rows'
    """
    asked = phrases.number_of(min(limit or groups, groups), "row" if limit else "group")
    terms = {"count": count, "asked": asked, "of": _of(of_rows=of_rows)}
    return words.LARGEST_ARE_WITHIN.format(**terms, percent=100.0 * target.error, confidence=100.0 * target.confidence)


def fewer(
    count: int, limit: int | None, groups: int, target: RelativeError, cap: tuple[str, float], *, of_rows: bool
) -> str:
    """Say in a receipt how many counts are within the error, if they are fewer than the question asked for.

    Args:
        count: the number of rows.
        limit: of LIMIT; None without one.
        groups: the number of all groups.
        target: the error.
        cap: name and value of the option that says the level.
        of_rows: as in `within`.

    >>> fewer(57, 100, 300, RelativeError(0.1, 1.0, 0.95), ("max_rho", 0.2), of_rows=False)
    'the target is not reached: 57 of the 100 largest groups by noisy counts are within 10 %; max_rho = 0.2 pays for \
no more, and other groups are not shown'
    """
    asked = f"{min(limit, groups):,} largest groups by noisy counts" if limit else phrases.number_of(groups, "group")
    terms = {"count": f"{count:,} of", "asked": asked, "are": "is" if count == 1 else "are"}
    shown = words.LARGEST_SHOWN.format(**terms, percent=100.0 * target.error, of=_of(of_rows=of_rows))
    why = words.PAYS_FOR_NO_MORE.format(cap=level_words.option(*cap))
    return words.NOT_REACHED.format(shown=shown, why=why)


def none_within(target: RelativeError, cap: tuple[str, float]) -> str:
    """Say why an answer has no row, and which level would return one.

    Args:
        target: the error.
        cap: name and value of the option that says the level that would.

    >>> none_within(RelativeError(0.1, 1.0, 0.95), ("max_rho", 0.8))
    'no count is within 10 %; by a forecast from these numbers, a question at max_rho = 0.8 would return one'
    """
    return words.NONE_WITHIN.format(percent=100.0 * target.error, cap=level_words.option(*cap))


def _of(*, of_rows: bool) -> str:
    """Return what a relative error is of, where that is not the number of a whole group."""
    return " of the rows that are counted" if of_rows else ""
