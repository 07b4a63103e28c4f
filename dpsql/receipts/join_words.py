"""Sentences of receipts about joins that take a part of the rows of a unit; `words.py` has all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpsql.receipts.phrases import listed

SINGLE_ROW = "a join takes one row of each unit"
"""Beginning of a note about a join that takes one row of each unit from some tables."""
_FROM = " from "
_MISSING = "if a unit has more there, an unknown part is missing"


def single_row(unit: str, tables: str) -> str:
    """Say of which tables a join takes one row of each unit.

    >>> single_row("person", "main.people")
    'a join takes one row of each unit (person) from main.people; if a unit has more there, an unknown part is missing'
    """
    return f"{SINGLE_ROW} ({unit}){_FROM}{tables}; {_MISSING}"


def with_coverage(notes: Sequence[str], wordings: Sequence[str], *, warns: bool) -> Iterator[str]:
    """Yield wordings of the line of bounds that also say which rows a join may leave out.

    >>> notes = [single_row("person", "main.people")]
    >>> list(with_coverage(notes, ["at least 97 % of rows are counted"], warns=False))[1]
    'only 1 row of a unit joins from main.people (the rest is unknown); at least 97 % of rows are counted'

    Args:
        notes: the notes of a receipt, at least one of them about such a join.
        wordings: wordings of the part that bounds keep; empty if nothing is known of it.
        warns: the wordings warn that bounds leave out much. Then they come first, and are shortened for nothing else.

    """
    single = [note for note in notes if note.startswith(SINGLE_ROW)]
    tables = listed([note.partition(_FROM)[2].partition(";")[0] for note in single])
    short = f"only 1 row of a unit joins from {tables}"
    leads = ["; ".join(single), f"{short} (the rest is unknown)", short]
    if warns:
        yield from (f"{wordings[0]}; {lead}" for lead in leads)
        yield from wordings
    yield from (f"{lead}; {one}" for one in wordings for lead in leads)
    yield from leads


def why_cut(cuts: Sequence[str]) -> str:
    """Say why coverage of a join is not measured, and the cure if a constraint may be one.

    >>> why_cut(["of one unit a join keeps at most 31 rows of main.visits; which ones is chosen by a secret hash"])
    'a join keeps a limited number of rows of a unit'
    """
    key = "; if the compared columns are unique in a table, declare its PRIMARY KEY: then the join drops no row"
    return f"a join keeps a limited number of rows of a unit{key if any('PRIMARY KEY' in cut for cut in cuts) else ''}"
