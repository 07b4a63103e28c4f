"""Columns that a join compares and that have no type in common: the refusal, and a comparison that is accepted."""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.model.refusals import Refusals
from dpsql.model.similar_names import as_written
from dpsql.operations.comparisons import compared_type
from dpsql.sql.source.seen_columns import Part, SeenColumn

_WIDER = (
    ("DATE", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP", "TIMESTAMP_NS"),
    (*(f"{sign}{kind}INT" for kind in ("TINY", "SMALL", "BIG", "HUGE") for sign in ("U", "")), "INTEGER", "VARCHAR"),
    ("DATE", "BOOLEAN", "UUID", "TIMESTAMP", "VARCHAR"),
)
"""Types that are compared in the one that stands last, because a cast to it fails on no value."""

_ASK_CURATOR = "A cast is never the unit or a key of it: let the curator give both columns one type."


def refuse_mismatches(
    parts: Sequence[Part], part: Part, equal: Sequence[tuple[SeenColumn, SeenColumn]], refusals: Refusals
) -> None:
    """Note a refusal for each two columns that a part is joined by and that are of two types."""
    for left, right in equal:
        if not compared_type(left.output.type, right.output.type):
            # a column of FULL JOIN … USING is of no part
            is_public = not part.relation.owner or (left.place >= 0 and not parts[left.place].relation.owner)
            refusals.add(
                "source",
                part.join,
                f"{_called(left)} is of type {left.output.type}, and {_called(right)} of type {right.output.type}.",
                _cast_cure(left, right) if is_public else _ASK_CURATOR,
            )


def _cast_cure(left: SeenColumn, right: SeenColumn) -> str:
    """Return how to compare two columns in one type that has the values of both."""
    kinds = left.output.type, right.output.type
    ordered = next((kinds_of_one for kinds_of_one in _WIDER if set(kinds) <= set(kinds_of_one)), ())
    if not ordered:
        return "Compare columns that hold values of one kind."
    widest = max(kinds, key=ordered.index)
    ends = [
        _called(seen) if seen.output.type == widest else f"CAST({_called(seen)} AS {widest})" for seen in (left, right)
    ]
    return f"Compare values of one type in ON, as in {' = '.join(ends)}."


def _called(seen: SeenColumn) -> str:
    """Return a column as a query names it, with the name of its table, or the expression that computes it."""
    if not seen.shown:
        return seen.declared
    return ".".join(as_written(name) for name in (seen.qualifier, seen.declared) if name)
