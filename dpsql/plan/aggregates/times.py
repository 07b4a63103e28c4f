"""Dates and timestamps as numbers: seconds since the beginning of 1970, in UTC, as DuckDB's ``epoch`` counts them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from sqlglot import exp

TIMES: Mapping[str, str] = {
    "DATE": "TIMESTAMP",
    "TIMESTAMP": "TIMESTAMP",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP WITH TIME ZONE",
}
"""DuckDB type of a moment among values, by the type of these."""

_LITERALS = ("DATE", "TIMESTAMP", "TIMESTAMPNTZ", "TIMESTAMPTZ")


def is_time_literal(node: exp.Expr) -> bool:
    """Whether a node is a text that is cast to a date or timestamp, as in ``DATE '2026-01-01'``."""
    return (
        isinstance(node, exp.Cast)
        and isinstance(node.this, exp.Literal)
        and node.this.is_string
        and node.to.this.name in _LITERALS
    )


def seconds_of(node: exp.Expr) -> float:
    """The moment that a date or timestamp stands for, in UTC where it names no zone; NaN where it is none."""
    try:
        moment = datetime.fromisoformat(node.name)
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def seconds_sql(value_sql: str) -> str:
    """SQL for the seconds of a date or timestamp; NULL where it is infinite, as where it is NULL."""
    return f"epoch({value_sql})"
