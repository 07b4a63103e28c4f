"""Time zones: AT TIME ZONE in a query, and the zone that a policy names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from dpsql.errors import UnsupportedQueryError
from dpsql.sql.zone_names import ZONES
from tests.end_to_end.prepared import with_own_state
from tests.noise_sources import silence

RULES = (
    "privacy_unit_column := 'pid', max_groups_contributed := 50, max_rows_per_group := 50, coverage := FALSE, "
    "default_rho := 10, rho_budget := 100000, delta_threshold := 0.9, delta_conversion := 1e-6"
)
NEAR = "TIMESTAMPTZ '2026-01-01 03:00:00+00'"
FAR = (
    "TIMESTAMPTZ 'infinity'",
    "TIMESTAMPTZ '294247-01-10 04:00:54+00'",
    "TIMESTAMPTZ '290309-12-22 (BC) 00:00:00+00'",
    "NULL",
)


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute("SET TimeZone = 'America/New_York'")
        session.connection.execute(
            "CREATE TABLE stays AS SELECT i % 400 AS pid, "
            "TIMESTAMPTZ '2026-01-01 00:30:00+00' + to_hours((i % 40) * 7) AS booked, "
            "TIMESTAMP '2026-07-01 00:30:00' + to_hours((i % 40) * 7) AS local FROM range(1200) r(i)"
        )
        session.connection.execute(
            f"CREATE TABLE far AS SELECT i AS pid, [{NEAR}, {', '.join(FAR)}][1 + i % {1 + len(FAR)}] AS booked "
            "FROM range(100) r(i)"
        )
        session.sql(f"CALL dp_protect('stays', {RULES})")
        session.sql(f"CALL dp_protect('far', {RULES}, separate_people := TRUE)")
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as own:
        silence(own)
        yield own


def asked(session: dpsql.Session, text: str) -> list[tuple[object, ...]]:
    return session.sql(text).fetchall()


def in_duckdb(session: dpsql.Session, text: str) -> list[tuple[object, ...]]:
    return session.connection.execute(text).fetchall()


@pytest.mark.parametrize(
    "key",
    [
        "CAST(booked AT TIME ZONE 'America/New_York' AS DATE)",
        "hour(timezone('Asia/Kolkata', booked))",
        "date_trunc('day', booked AT TIME ZONE 'Europe/Berlin')",
        "hour((local AT TIME ZONE 'UTC') AT TIME ZONE 'Europe/Berlin')",
    ],
)
def test_a_zone_of_the_query_gives_what_duckdb_gives(session: dpsql.Session, key: str) -> None:
    text = f"SELECT {key} AS k, count(*) AS n FROM stays GROUP BY 1 ORDER BY 1"
    assert asked(session, text) == in_duckdb(session, text)


def test_both_spellings_of_a_zone_are_one_release(session: dpsql.Session) -> None:
    asked(session, "SELECT hour(booked AT TIME ZONE 'Asia/Tokyo') AS k, count(*) FROM stays GROUP BY 1")
    again = session.sql("SELECT hour(timezone('Asia/Tokyo', booked)) AS k, count(*) FROM stays GROUP BY 1")
    assert again.receipt is not None
    assert again.receipt.charged_rho == 0


def test_far_values_are_the_null_key(session: dpsql.Session) -> None:
    key = "CAST(booked AT TIME ZONE 'America/New_York' AS DATE)"
    found = asked(session, f"SELECT CAST({key} AS VARCHAR) AS k, count(*) FROM far GROUP BY 1 ORDER BY 1")
    assert {key for key, _ in found} == {"2025-12-31", "294247-01-09", "infinity", None}
    assert sum(count for _, count in found) == 100  # type: ignore[misc]


@pytest.mark.parametrize(
    ("zone", "said"),
    [
        ("'America/NewYork'", "no time zone 'America/NewYork'. Did you mean 'America/New_York'"),
        ("'berlin'", "no time zone 'berlin'. Zones are named as"),
        ("'+02:00'", "no time zone '+02:00'"),
        (f"'{'x' * 100}'", "no time zone of this name"),
        ("CAST(pid AS VARCHAR)", "takes a time zone as a literal"),
    ],
)
def test_no_zone_is_refused_by_its_name(session: dpsql.Session, zone: str, said: str) -> None:
    with pytest.raises(UnsupportedQueryError, match="zone") as refused:
        session.sql(f"SELECT count(*) FROM stays WHERE hour(booked AT TIME ZONE {zone}) = 3")
    assert said in str(refused.value)


def test_duckdb_knows_every_zone(session: dpsql.Session) -> None:
    """DuckDB fails outside TRY where it does not know a zone."""
    known = {name for (name,) in in_duckdb(session, "SELECT DISTINCT name FROM pg_timezone_names()")}
    assert known >= ZONES
