"""Shops with many or few visitors, and two readers who may be shown answers up to levels of their own."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from tests.end_to_end.prepared import with_own_rows
from tests.noise_sources import seeded_noise

COUNT = "SELECT shop, count(DISTINCT visitor) AS n FROM visits GROUP BY shop"
BOTH = "SELECT shop, count(DISTINCT visitor) AS n, sum(cost) AS s FROM visits GROUP BY shop"
WITH = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS"
TOP_K = f"{WITH} (top_k = 50) {COUNT.removeprefix('SELECT ')}"
# large ones are shown at every level; small ones at rho = 0.5 but hardly ever at 0.02
LARGE, SMALL = range(5), range(5, 35)


TABLES = "CREATE TABLE visits (visitor VARCHAR, shop INTEGER, cost DOUBLE NOT NULL);" + "".join(
    f"INSERT INTO visits SELECT concat_ws(' ', s, u), s, 7 FROM range({shops.start}, {shops.stop}) s(s), "
    f"range({visitors}) u(u);"
    for shops, visitors in ((LARGE, 900), (SMALL, 14))
)


@functools.cache
def _prepared() -> dpsql.Session:
    """Return a session with everything declared, which stays open until the process ends."""
    session = dpsql.connect()
    session.connection.execute(TABLES)
    session.sql("CALL dp_unit('visitor', rho_budget := 100, delta_threshold := 0.1, delta_conversion := 1e-6)")
    session.sql(
        "CALL dp_protect('visits', coverage := FALSE, "
        "unit := 'visitor', privacy_unit_column := 'visitor', default_rho := 0.5, "
        "max_groups_contributed := 1, max_rows_per_group := 1, default_delta := 1e-6)"
    )
    session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 10])")
    session.sql("CALL dp_analyst('ana', rho_limit := 0.02)")
    session.sql("CALL dp_analyst('bob', rho_limit := 0.5)")
    return session


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with with_own_rows(_prepared(), TABLES) as session:
        session._runner.noise_source = seeded_noise(5)
        yield session


def ask(session: dpsql.Session, name: str, text: str = COUNT, **options: Any) -> tuple[dict[int, float], dpsql.Receipt]:
    answer = session.as_analyst(name).sql(text, **options)
    assert answer.receipt is not None
    return {row[0]: row[-1] for row in answer.fetchall()}, answer.receipt


def held(session: dpsql.Session, *analysts: str) -> float:
    listed = f"analysts := {list(analysts)}" if analysts else ""
    return float(session.sql(f"FROM dp_budget('visitor', {listed})".replace(", )", ")")).df()["rho_held"][0])


def spent(session: dpsql.Session) -> tuple[int, int]:
    total = session._access.read().ledger.spent("visitor")
    return total.rho_nano, total.delta_units
