"""Sessions over rows that are made once, each with a state of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import duckdb

import dpsql
from dpsql.engine import DuckDBEngine
from dpsql.session.plan_cache import PlanCache


@contextmanager
def with_own_state(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    """Open a session on the database of a prepared one, with a copy of its state.

    It begins with what is declared and charged in the prepared session, and declares and charges for itself alone.
    Rows are shared: a test that changes them makes the table again, or prepares a session of its own. Opening a
    database and declaring a policy takes twenty times as long.
    """
    session = copy.copy(prepared)
    session._runner = copy.copy(prepared._runner)
    session._access = session._runner.access = prepared._access.copied()
    session._runner._plans = PlanCache()
    try:
        yield session
    finally:
        session._access.close()


@contextmanager
def with_declarations(tables: str, declarations: Iterable[str]) -> Iterator[dpsql.Session]:
    """Open a session on a new database with tables that SQL makes, and with what statements declare."""
    with dpsql.connect(threads=1) as session:
        session.connection.execute(tables)
        for statement in declarations:
            session.sql(statement)
        yield session


@contextmanager
def with_own_rows(prepared: dpsql.Session, tables: str) -> Iterator[dpsql.Session]:
    """Open a session on a new database with tables that SQL makes, and with a copy of the state of a prepared one."""
    with duckdb.connect(config={"threads": "1"}) as connection, with_own_state(prepared) as session:
        connection.execute(tables)
        session.connection = connection
        session._runner.engine = DuckDBEngine(connection)
        yield session
