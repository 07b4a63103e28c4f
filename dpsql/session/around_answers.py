"""Statements around private answers: they run in an empty DuckDB over released numbers and public rows."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from dpsql.engine.limits import Failure, run_limited
from dpsql.errors import ReleaseError


def computed(sql: str, tables: Mapping[str, pa.Table], answers: int) -> pa.Table:
    """Return what is computed of answers; whether that fails is a fact of numbers that the reader is shown anyway.

    Args:
        sql: the statement.
        tables: what it reads.
        answers: how many of these are answers, which are paid for; the others are public tables.

    Raises:
        ReleaseError: it fails on a value, or needs too much time or memory, or has too many rows.

    """
    found = run_limited(sql, tables)
    if isinstance(found, pa.Table):
        return found
    raise ReleaseError(_said(found, answers))


def _said(failure: Failure, answers: int) -> str:
    """Return the words of a failure."""
    if not answers:
        return f"this text reads public tables alone, and {failure.reason}; it cost nothing. {failure.hint}"
    paid = "answer is paid for and stored, and costs" if answers == 1 else "answers are paid for and stored, and cost"
    return f"the text around the private query {failure.reason}; the {paid} nothing asked for alone. {failure.hint}"
