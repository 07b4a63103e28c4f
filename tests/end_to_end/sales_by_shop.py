"""A table of purchases whose shops are private keys: three that all people go to, and many that few go to."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import dpsql
from dpsql.noise.entropy import NoiseSource
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

BUDGET = 20.0
DELTA = 1e-6
LIMITS = {"curator": None, "ana": 0.05, "bob": 0.3, "eve": 1.2}
"""Readers of a random history, and the rho that each may be shown."""


def fill(session: dpsql.Session) -> None:
    """Create people with a purchase in one of the three large shops and in up to eight of 400 others."""
    session.connection.execute(
        "CREATE OR REPLACE TABLE sales AS SELECT i % 2000 AS person, i // 2000 AS place, "
        "CASE WHEN i < 2000 THEN 'big ' || i % 3 ELSE 'small ' || (i * 7919 % 400)**2 // 400 END AS shop, "
        "i % 97 AS cost FROM range(18000) t(i) WHERE i // 2000 <= i % 9"
    )


def declare(session: dpsql.Session) -> None:
    """Declare the table, its unit and the unit's budget."""
    session.sql(
        "CALL dp_protect('sales', coverage := FALSE, "
        f"privacy_unit_column := 'person', rho_budget := {BUDGET}, delta_threshold := 1e-3, "
        f"delta_conversion := 1e-6, default_rho := 0.1, default_delta := {DELTA})"
    )


@functools.cache
def _prepared() -> dpsql.Session:
    """Return a session with everything declared, which stays open until the process ends."""
    session = dpsql.connect(threads=1)
    fill(session)
    declare(session)
    for name, limit in LIMITS.items():
        if limit is not None:
            session.sql(f"CALL dp_analyst('{name}', rho_limit := {limit})")
    return session


@contextmanager
def open_session(noise: NoiseSource | None = None) -> Iterator[dpsql.Session]:
    """Open a session over new rows with a ledger of its own, and the readers of `LIMITS`."""
    with with_own_state(_prepared()) as session:
        fill(session)
        session._runner.noise_source = noise or seeded_noise(5)
        yield session


def spent(session: dpsql.Session) -> float:
    """Return the rho in the ledger."""
    return float(session.sql("FROM dp_budget()").df()["rho_spent"][0])


def levels_of(answer: dpsql.Result) -> list[float]:
    """Return the level of each part of an answer: the rounds, and last the numbers if there are any."""
    return [one.receipt.rho for one in receipt_of(answer).sets]


def stored(session: dpsql.Session, sql: str, *values: object) -> list[tuple[str, int]]:
    """Return rows (name, level) of a query on the side table."""
    rows = session._access.read().side_table._database.rows(sql, *values)
    return [(str(row["name"]), int(row["level"])) for row in rows]
