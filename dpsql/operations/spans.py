"""Places in a text, by line and column."""

from __future__ import annotations

from dpsql.errors import Span


def span_at(text: str, start: int, end: int) -> Span:
    """The place of a range of characters."""
    before = text[:start]
    return Span(line=before.count("\n") + 1, column=start - (before.rfind("\n") + 1) + 1, start=start, end=end)
