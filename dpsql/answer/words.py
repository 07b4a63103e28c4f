"""Sentences of receipts, and of the lines below a table: one function or constant for each.

The module reads nothing and computes nothing but the form of its numbers, so that all wording can be read in one place.
"""

from __future__ import annotations

COVERAGE_GONE = (
    "coverage unknown: it was not measured while the rows were available; ask the current version of the table"
)
"""A note where rows of an old version are gone, and coverage of a number was never stored."""
