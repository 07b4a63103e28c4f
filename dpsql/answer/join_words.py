"""Sentences of receipts about joins that take a part of the rows of a unit; `words.py` has all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpsql.answer.phrases import listed

_MARK, _FROM = "a join takes one row of each unit", " from "
_MISSING = "if a unit has more there, an unknown part is missing"


def single_row(unit: str, tables: str) -> str:
    """Say of which tables a join takes one row of each unit.

    >>> single_row("person", "main.people")
    'a join takes one row of each unit (person) from main.people; if a unit has more there, an unknown part is missing'
    """
    return f"{_MARK} ({unit}){_FROM}{tables}; {_MISSING}"


def says_single_row(note: str) -> bool:
    """Check that a note says of which tables a join takes one row of each unit.

    >>> says_single_row(single_row("patient", "main.patients"))
    True
    """
    return note.startswith(_MARK)


def before_coverage(notes: Sequence[str], wordings: Sequence[str]) -> Iterator[str]:
    """Yield wordings of the line of bounds that begin with the rows that a join may leave out.

    >>> notes = [single_row("person", "main.people")]
    >>> list(before_coverage(notes, ["at least 97 % of rows are counted"]))[1]
    'only 1 row of a unit joins from main.people; at least 97 % of rows are counted'

    Args:
        notes: the notes about such joins, at least one.
        wordings: wordings of the part that bounds keep; empty if nothing is known of it.

    """
    tables = listed([note.partition(_FROM)[2].partition(";")[0] for note in notes])
    leads = ["; ".join(notes), f"only 1 row of a unit joins from {tables}"]
    # what is known of all rows is not shortened for the rest of a sentence about some tables
    yield from (f"{lead}; {one}" for one in wordings for lead in leads)
    yield from leads


def why_cut(cuts: Sequence[str]) -> str:
    """Say why coverage of a join is not measured, and the cure if a constraint may be one."""
    key = "; if a table has one row for each of the compared values, a PRIMARY KEY on them keeps all rows"
    return f"a join cuts the rows of a unit{key if any('PRIMARY KEY' in cut for cut in cuts) else ''}"
