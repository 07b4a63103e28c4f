"""Type objects of PEP 249: each equals the type codes of ``Cursor.description`` that it stands for."""

from __future__ import annotations

import datetime as dt
import re


class TypeCodes:
    """A set of types: it equals a DuckDB type with one of its names, as ``NUMBER == "DECIMAL(9,2)"``."""

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return re.split(r"[ (\[]", other, maxsplit=1)[0] in self._names and not other.endswith("]")
        return self is other

    def __hash__(self) -> int:
        return hash(self._names)

    def __repr__(self) -> str:
        return f"TypeCodes({', '.join(sorted(self._names))})"


STRING = TypeCodes("VARCHAR", "UUID")
BINARY = TypeCodes("BLOB")
NUMBER = TypeCodes(
    *(f"{sign}{size}" for sign in ("", "U") for size in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")),
    "FLOAT",
    "DOUBLE",
    "DECIMAL",
    "BOOLEAN",
)
DATETIME = TypeCodes("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "INTERVAL")
ROWID = TypeCodes()

Date = dt.date
Time = dt.time
Timestamp = dt.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> dt.date:  # noqa: N802 — PEP 249 has this name
    """Return the local date of a time in seconds since 1970."""
    return dt.datetime.fromtimestamp(ticks).date()


def TimeFromTicks(ticks: float) -> dt.time:  # noqa: N802 — PEP 249 has this name
    """Return the local time of day of a time in seconds since 1970."""
    return dt.datetime.fromtimestamp(ticks).time()


def TimestampFromTicks(ticks: float) -> dt.datetime:  # noqa: N802 — PEP 249 has this name
    """Return the local date and time of a time in seconds since 1970."""
    return dt.datetime.fromtimestamp(ticks)
