"""The part of a unit: a hash of its text, so that every table and every version puts a unit into one part."""

from __future__ import annotations

import re

from dpsql.engine.catalog import is_enum
from dpsql.errors import PolicyError
from dpsql.operations.row_sql import one_spelling

MOST_PARTS = 1024
"""Limit of the number of parts of a split."""
_WHOLE = "whole number"
_WHOLE_TYPES = frozenset(f"{sign}{width}INT" for sign in ("", "U") for width in ("TINY", "SMALL", "BIG", "HUGE")) | {
    "INTEGER",
    "UINTEGER",
}
_ONE_TEXT = frozenset(
    {
        *("BOOLEAN", "VARCHAR", "BLOB", "UUID", "FLOAT", "DOUBLE", "INTERVAL", "DATE", "TIME", "TIMESTAMP"),
        *("TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"),
    }
)
"""Types of which equal values have equal texts, once `one_spelling` has been there."""
_DECIMAL = re.compile(r"DECIMAL\(\d+,\d+\)")


class SplitError(PolicyError):
    """A split that cannot be made, or a folder of parts that is not what its manifest says."""


def unit_kind(unit_type: str) -> str | None:
    """Return the kind of a unit column: two columns of one kind name units alike. Return None if no kind is known.

    Integers of all widths are one kind, and an ENUM is read as text.

    >>> unit_kind("BIGINT") == unit_kind("UTINYINT"), unit_kind("ENUM('a')"), unit_kind("STRUCT(a INTEGER)")
    (True, 'VARCHAR', None)
    """
    if unit_type in _WHOLE_TYPES:
        return _WHOLE
    if is_enum(unit_type):
        return "VARCHAR"
    return unit_type if unit_type in _ONE_TEXT or _DECIMAL.fullmatch(unit_type) else None


def part_sql(unit: str, unit_type: str, parts: int) -> str:
    """Return SQL for the number of the part of a unit, from 0 on; rows without a unit are in part 0.

    It is a function of the unit's text: of no version of DuckDB, of no width of an integer and of no other row.

    Args:
        unit: the unit as SQL.
        unit_type: its DuckDB type, of a known `unit_kind`.
        parts: number of parts.

    >>> part_sql("pid", "INTEGER", 16)
    "CAST(coalesce(CAST('0x' || left(md5(CAST(pid AS VARCHAR)), 8) AS UINTEGER) % 16, 0) AS USMALLINT)"
    """
    text = f"CAST({one_spelling(unit, unit_type)} AS VARCHAR)"
    return f"CAST(coalesce(CAST('0x' || left(md5({text}), 8) AS UINTEGER) % {parts:d}, 0) AS USMALLINT)"
