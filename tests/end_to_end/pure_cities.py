"""Cities of a pure unit, each with 400 people, and the books after an answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import dpsql

KEYS = 50
TABLES = """
CREATE TABLE v AS
    SELECT i AS person, i % 50 AS city, (i // 50) % 11 AS nights, (i // 50) % 3 - 1 AS move, i % 3 = 0 AS often,
        i % 2 AS day
    FROM range(20000) t(i);
CREATE TABLE g AS SELECT i AS pid, i % 5 AS city FROM range(100) t(i);
CREATE TABLE z AS SELECT i AS zid, i % 5 AS city FROM range(100) t(i);
"""
ONE = "max_groups_contributed := 1, max_rows_per_group := 1"
DECLARED = (
    f"CALL dp_protect('v', unit := 'person', privacy_unit_column := 'person', {ONE})",
    "CALL dp_domain('v', 'nights', bounds := [0, 10])",
    "CALL dp_domain('v', 'move', bounds := [-1, 1])",
    f"CALL dp_domain('v', 'city', keys := {list(range(KEYS))})",
    "CALL dp_domain('v', 'day', keys := [0, 1])",
    "CALL dp_unit('pid', epsilon_budget := 3, delta_budget := 1e-6)",
    f"CALL dp_protect('g', unit := 'pid', privacy_unit_column := 'pid', {ONE})",
    "CALL dp_domain('g', 'city', keys := [0, 1, 2, 3, 4])",
    "CALL dp_unit('zid', epsilon_budget := 3, delta_budget := 1e-6, composition := 'zcdp')",
    f"CALL dp_protect('z', unit := 'zid', privacy_unit_column := 'zid', {ONE})",
    "CALL dp_domain('z', 'city', keys := [0, 1, 2, 3, 4])",
)
FROM = "FROM v GROUP BY city ORDER BY city"
COUNT = f"SELECT city, count(*) AS n {FROM}"


def declare(session: dpsql.Session, epsilon: float) -> None:
    session.sql(f"CALL dp_unit('person', epsilon_budget := {epsilon}, composition := 'pure')")
    for statement in DECLARED:
        session.sql(statement)


@contextmanager
def declared_cities() -> Iterator[dpsql.Session]:
    """Lend a session with the tables, whose unit has an epsilon of 1."""
    with dpsql.connect(threads=1) as session:
        session.connection.execute(TABLES)
        declare(session, 1.0)
        yield session


def spent(session: dpsql.Session) -> tuple[int, int]:
    total = session._access.read().ledger.spent("person")
    return total.rho_nano, total.delta_units


def told(receipt: dpsql.Receipt) -> tuple[object, float]:
    """Return the guarantee of an answer; an epsilon may be rounded up by its last bit."""
    return pytest.approx(receipt.epsilon, rel=1e-15), receipt.delta
