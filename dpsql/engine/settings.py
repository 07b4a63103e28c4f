"""Settings that the value of an expression depends on."""

from __future__ import annotations

SETTINGS: tuple[tuple[str, str], ...] = (
    ("TimeZone", "UTC"),
    ("Calendar", "gregorian"),
    ("integer_division", "false"),
    ("ieee_floating_point_ops", "true"),
)
"""Settings that the value of an expression depends on: pinned for every internal query and part of every hash.

All of them are a cursor's own. default_collation is not: it belongs to the whole instance, hence to the curator, so it
is left alone, its value is part of every hash, and under one that is not bytewise nothing is answered.
"""

BYTEWISE = frozenset({"", "binary", "c", "posix"})
"""Names, in lower case, of the collation that holds no two texts equal."""
