"""Sentences on truth values about a target that are NULL, for columns whose rows left out have no number."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpsql.receipts import left_out_words, phrases, words


def lacks_people(column: str, most: float, unit: str, error: float) -> str:
    """Say that a number of people may lack too many.

    Args:
        column: its name.
        most: upper end of those whom one group lacks.
        unit: name of the privacy unit.
        error: the relative error that the question asks for.

    >>> lacks_people("people", 229.3, "patient", 0.1).partition(": ")[2]
    'one group of people may lack up to 230 patients, too many to be sure of 10 %'
    """
    most_said, units = f"{max(1, math.ceil(most)):,}", left_out_words.plural(unit)
    why = words.LACKS_PEOPLE.format(column=column, most=most_said, units=units, percent=100.0 * error)
    return words.WITHIN_UNKNOWN.format(why=why)


def may_cut_some(cut: str, columns: Sequence[str]) -> str:
    """Say that bounds may cut some of columns, and that nothing tells how much.

    Args:
        cut: ``rows``, ``values`` or both.
        columns: their names.

    >>> may_cut_some("rows or values", ["cost", "age"]).partition(": ")[2]
    'bounds may cut rows or values of cost and age, and how much of one group is not measured'
    """
    why = words.MAY_CUT_SOME.format(cut=cut, columns=phrases.listed(columns))
    return words.WITHIN_UNKNOWN.format(why=why)
