"""Cities with so many patients each, questions about them, and the books after an answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import dpsql
from dpsql.state import Level
from tests.noise_sources import seeded_noise

ORDER = (0.05, 0.5, 0.2, 1.0)
CHARGED = (0.05, 0.5, 1.0)

WITH = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS"
COUNT = "city, count(DISTINCT patient) AS n FROM visits GROUP BY city"
BY_THRESHOLD = f"SELECT {COUNT}"
BY_TOP_K = f"{WITH} (top_k = 60) {COUNT}"
PRIVATE = {"gshm": BY_THRESHOLD, "top_k": BY_TOP_K}
CORRELATED = "CORRELATED_GAUSSIAN"
PUBLIC = {
    mechanism: f"{WITH} (mechanism = {mechanism}) {COUNT}"
    for mechanism in ("GAUSSIAN", CORRELATED, f"DISCRETE_{CORRELATED}")
}
SUM = "SELECT city, sum(cost) AS n FROM visits GROUP BY city"


@contextlib.contextmanager
def open_session(sizes: Sequence[int], *, max_groups: int = 1, public: bool = False) -> Iterator[dpsql.Session]:
    """City i has so many patients; each is in one city, and costs 0."""
    with dpsql.connect() as session:
        session.connection.execute("CREATE TABLE visits (patient VARCHAR, city INTEGER, cost DOUBLE NOT NULL)")
        add_cities(session, 0, sizes)
        # discrete noise needs the composition of any noise
        session.sql(
            "CALL dp_unit('patient', rho_budget := 1e5, delta_threshold := 0.99, delta_conversion := 1e-6, "
            f"composition := '{'zcdp' if public else 'gaussian'}')"
        )
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, unit := 'patient', privacy_unit_column := 'patient', "
            f"max_groups_contributed := {max_groups}, max_rows_per_group := 1, default_delta := 1e-6)"
        )
        session.sql("CALL dp_domain('visits', 'cost', bounds := [-10, 10])")
        if public:
            session.sql(f"CALL dp_domain('visits', 'city', keys := {list(range(len(sizes)))})")
        session._runner.noise_source = seeded_noise(11)
        yield session


def add_cities(session: dpsql.Session, first: int, sizes: Sequence[int]) -> None:
    rows = ", ".join(f"({first + i}, {size})" for i, size in enumerate(sizes))
    session.connection.execute(
        "INSERT INTO visits SELECT concat_ws(' ', city, u), city, 0 "
        f"FROM (VALUES {rows}) c(city, size), LATERAL (SELECT unnest(range(size)) AS u)"
    )


def ask(session: dpsql.Session, text: str, rho: float, **options: Any) -> tuple[dict[int, float], dpsql.Receipt]:
    answer = session.sql(text, rho=rho, **options)
    assert answer.receipt is not None
    return {city: float(n) for city, n in answer.fetchall()}, answer.receipt


def spent(session: dpsql.Session) -> tuple[int, int]:
    """Nano-rho and delta units in the ledger."""
    total = session._access.read().ledger.spent("patient")
    return total.rho_nano, total.delta_units


def presence_levels(session: dpsql.Session) -> tuple[Level, ...]:
    """The levels of the only statistic there is, highest first."""
    state = session._access.read()
    with state._database.read() as connection:
        ((statistic_hash,),) = connection.execute("SELECT DISTINCT statistic_hash FROM point").fetchall()
    return state.side_table.levels(statistic_hash)
