"""The place of a secret salt in SQL that is written before the salt is known.

The rows that a frame reads are written while it is planned, and its salt is looked up where they are read. Until then
``SALT`` stands in the text. It is no expression that DuckDB can bind, so a query in which it was left does not run.
"""

from __future__ import annotations

SALT = "dpsql_salt('of', \"frame\")"
"""Holds both kinds of quotes: a literal that had it would double one of them, a name the other; and no expression of a
query calls a function of this name. So no text of anybody else is taken for it."""

STAND_IN_SALT = bytes(16)
"""For a query that is tried on empty tables alone."""


def with_salt(sql: str, salt: bytes) -> str:
    """The SQL with the salt, as a literal, in its place."""
    return sql.replace(SALT, f"'{salt.hex()}'")
