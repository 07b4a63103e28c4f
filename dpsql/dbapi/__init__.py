"""PEP 249: private answers for tools that speak Python's DB-API.

connection = dpsql.dbapi.connect("https://stats.example:8642", token="…", default_epsilon=0.1, spend_at_most=0.1)
pandas.read_sql("SELECT city, count(*) AS n FROM visits WHERE day >= ? GROUP BY city", connection, params=[day])
"""

from dpsql.dbapi.connection import Connection, connect
from dpsql.dbapi.cursor import Cursor
from dpsql.dbapi.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,  # noqa: A004 — PEP 249 has this name
)
from dpsql.dbapi.type_codes import (
    BINARY,
    DATETIME,
    NUMBER,
    ROWID,
    STRING,
    Binary,
    Date,
    DateFromTicks,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
)

apilevel = "2.0"
threadsafety = 2
"""Threads may share the module and connections."""
paramstyle = "qmark"
"""A mapping for ``$name`` is taken, too."""

__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]
