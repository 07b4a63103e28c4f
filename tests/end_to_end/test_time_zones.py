"""Time zones: AT TIME ZONE in a query, and the zone that a policy names."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest

import dpsql
from dpsql.errors import PolicyError, UnsupportedQueryError
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


@pytest.fixture
def zoned(session: dpsql.Session) -> dpsql.Session:
    session.sql("CALL dp_protect('stays', time_zone := 'America/New_York', replace := TRUE)")
    return session


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


CLOCKS = (
    "CAST(booked AS DATE)",
    "hour(booked)",
    "extract(dow FROM booked)",
    "date_part('epoch', booked) > 1767225600",
    "strftime(booked, '%Y-%m-%d %H')",
    "date_trunc('day', booked)",
    "date_trunc('hour', booked)",
    "booked >= DATE '2026-01-05'",
    "booked BETWEEN '2026-01-03' AND TIMESTAMP '2026-01-09 12:00:00'",
    "booked >= '2026-01-05 00:00:00+00'",
    "date_diff('day', TIMESTAMPTZ '2026-01-01', booked)",
    "date_diff('hour', TIMESTAMPTZ '2026-01-01', booked) // 24",
    "CAST(booked + INTERVAL 1 DAY AS DATE)",
    "CAST(date_trunc('day', booked) - INTERVAL 1 MONTH AS DATE)",
    "CAST(CAST(local AS TIMESTAMPTZ) AS DATE)",
    "hour(coalesce(booked, local))",
    "hour(if(pid % 2 = 0, booked, local))",
    "CASE booked WHEN TIMESTAMP '2026-01-01 14:30:00' THEN 1 ELSE 0 END",
    "booked >= '2026/1/5'",
    "hour(INTERVAL 6 MONTH + booked)",
)


@pytest.mark.parametrize("key", CLOCKS)
def test_a_zone_of_the_policy_gives_what_duckdb_gives_in_it(zoned: dpsql.Session, key: str) -> None:
    text = f"SELECT {key} AS k, count(*) AS n FROM stays GROUP BY 1 ORDER BY 1"
    shown = zoned.sql(text)
    assert shown.fetchall() == in_duckdb(zoned, text)
    assert shown.receipt is not None
    is_told = "days and hours of TIMESTAMPTZ values are those of time zone America/New_York" in shown.receipt.notes
    assert is_told != ("epoch" in key or "+00" in key)


def test_a_zone_of_the_policy_reaches_into_subqueries_and_conditions(zoned: dpsql.Session) -> None:
    text = (
        "SELECT CAST(day AS DATE) AS k, count(*) FROM (SELECT pid, date_trunc('day', booked) AS day FROM stays "
        "WHERE booked < '2026-01-08') GROUP BY 1 ORDER BY 1"
    )
    assert asked(zoned, text) == in_duckdb(zoned, text)


def test_a_zone_of_the_policy_reaches_into_what_a_unit_has(zoned: dpsql.Session) -> None:
    least = "(SELECT pid, min(booked) AS first FROM stays GROUP BY pid)"
    text = f"SELECT CAST(first AS DATE) AS k, count(*) FROM {least} GROUP BY 1 ORDER BY 1"
    assert asked(zoned, text) == in_duckdb(zoned, text)


@pytest.mark.parametrize(
    "around",
    [
        "SELECT CAST(k AS DATE), count(*) FROM {} GROUP BY 1 ORDER BY 1",
        "SELECT hour(t) FROM (SELECT k AS t, n FROM {}) WHERE t >= '2026-01-05' ORDER BY t",
        "WITH a AS {} SELECT *, hour(k) FROM a ORDER BY k",
    ],
)
def test_a_zone_of_the_policy_holds_around_a_private_query(zoned: dpsql.Session, around: str) -> None:
    text = around.format("(SELECT booked AS k, count(*) AS n FROM stays GROUP BY 1)")
    found = zoned.sql(text)
    assert found.fetchall() == in_duckdb(zoned, text)
    assert not any("timezone" in name for name in found.arrow().column_names)


@pytest.mark.parametrize(
    "key",
    [
        "left(CAST(booked AS VARCHAR), 10)",
        "concat(booked, '')",
        "booked || ''",
        "CAST(CAST(local AS VARCHAR) AS TIMESTAMPTZ) > booked",
    ],
)
def test_texts_of_timestamps_are_not_read_on_another_clock(zoned: dpsql.Session, key: str) -> None:
    with pytest.raises(UnsupportedQueryError, match="has its text in UTC, and the time zone of the table is America"):
        zoned.sql(f"SELECT {key} AS k, count(*) FROM stays GROUP BY 1")


def test_today_is_the_date_in_the_zone_of_the_policy(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = dt.datetime(2026, 1, 5, 2, 0, tzinfo=dt.UTC)
    monkeypatch.setattr(dt, "datetime", type("Clock", (dt.datetime,), {"now": staticmethod(lambda tz=None: moment)}))
    text = "SELECT count(*) FROM stays WHERE CAST(booked AS DATE) = current_date"
    for zone, day in (("America/New_York", "2026-01-04"), ("Asia/Tokyo", "2026-01-05")):
        session.sql(f"CALL dp_protect('stays', time_zone := '{zone}', replace := TRUE)")
        on_day = f"SELECT count(*) FROM stays WHERE CAST(booked AS DATE) = DATE '{day}'"
        session.sql(text)
        receipt = session.sql(on_day).receipt
        assert receipt is not None
        assert receipt.charged_rho == 0, zone
    session.sql("CALL dp_protect('stays', time_zone := 'PST', replace := TRUE)")
    with pytest.raises(UnsupportedQueryError, match="has no date that is known in PST"):
        session.sql(text)


def test_without_a_zone_days_are_those_of_utc_and_the_receipt_says_so(session: dpsql.Session) -> None:
    shown = session.sql("SELECT CAST(booked AS DATE) AS k, count(*) FROM stays GROUP BY 1 ORDER BY 1")
    in_utc = "SELECT CAST(booked AT TIME ZONE 'UTC' AS DATE) AS k, count(*) FROM stays GROUP BY 1 ORDER BY 1"
    assert shown.fetchall() == in_duckdb(session, in_utc)
    assert shown.receipt is not None
    assert "days and hours of TIMESTAMPTZ values are those of time zone UTC" in shown.receipt.notes


def test_far_values_are_answered_in_a_zone_of_the_policy(session: dpsql.Session) -> None:
    session.sql("CALL dp_protect('far', time_zone := 'America/New_York', replace := TRUE)")
    key = "CAST(CAST(booked AS DATE) AS VARCHAR)"
    inside = "(SELECT booked, count(*) AS n FROM far GROUP BY booked)"
    for rows in ("far", inside):
        found = asked(session, f"SELECT {key} AS k, count(*) FROM {rows} GROUP BY 1 ORDER BY 1")
        assert {key for key, _ in found} == {"2025-12-31", "294247-01-09", "infinity", None}


def test_a_repeated_declaration_changes_no_zone(session: dpsql.Session) -> None:
    with pytest.raises(PolicyError, match="replace := true"):
        session.sql("CALL dp_protect('stays', time_zone := 'Europe/Berlin')")
    session.sql("CALL dp_protect('stays', time_zone := 'Europe/Berlin', replace := TRUE)")
    session.sql("CALL dp_protect('stays', max_rows_per_group := 60)")
    session.sql("CALL dp_protect('stays', time_zone := 'Europe/Berlin')")
    with pytest.raises(PolicyError, match="replace := true"):
        session.sql("CALL dp_protect('stays', time_zone := NULL)")
    assert [row[-1] for row in asked(session, "FROM dp_policy()") if "time_zone" in row] == ["Europe/Berlin"]


def test_a_zone_that_is_not_known_is_not_declared(session: dpsql.Session) -> None:
    with pytest.raises(PolicyError, match=r"no time zone 'Europe/Berln'\. Did you mean 'Europe/Berlin'"):
        session.sql("CALL dp_protect('stays', time_zone := 'Europe/Berln')")


def test_two_zones_in_one_operation_are_refused(session: dpsql.Session) -> None:
    session.sql("CALL dp_unit('both', rho_budget := 100, delta_threshold := 0.9, delta_conversion := 1e-6)")
    for table, zone in (("one", "Europe/Berlin"), ("other", "Asia/Tokyo")):
        session.connection.execute(f"CREATE OR REPLACE TABLE {table} AS SELECT pid, booked FROM stays LIMIT 40")
        session.sql(
            f"CALL dp_protect('{table}', unit := 'both', privacy_unit_column := 'pid', separate_people := TRUE, "
            f"max_groups_contributed := 9, max_rows_per_group := 9, default_rho := 1, time_zone := '{zone}')"
        )
    joined = "FROM one a JOIN other b ON a.pid = b.pid WHERE"
    session.sql(f"SELECT count(*) {joined} hour(a.booked) = hour(b.booked)")
    with pytest.raises(UnsupportedQueryError, match="two time zones, Asia/Tokyo and Europe/Berlin"):
        session.sql(f"SELECT count(*) {joined} date_diff('day', a.booked, b.booked) = 0")
    both = "(SELECT pid, booked FROM one UNION ALL SELECT pid, booked FROM other)"
    session.sql(f"SELECT count(*) FROM {both}")
    with pytest.raises(UnsupportedQueryError, match="two time zones, Asia/Tokyo and Europe/Berlin"):
        session.sql(f"SELECT hour(booked), count(*) FROM {both} GROUP BY 1")


def test_duckdb_knows_every_zone(session: dpsql.Session) -> None:
    """DuckDB fails outside TRY where it does not know a zone."""
    known = {name for (name,) in in_duckdb(session, "SELECT DISTINCT name FROM pg_timezone_names()")}
    assert known >= ZONES


def test_a_declaration_warns_where_the_session_has_another_zone(session: dpsql.Session) -> None:
    ((told,),) = session.sql(f"CALL dp_protect('stays', {RULES})").fetchall()
    assert "this session has America/New_York: add time_zone := 'America/New_York', replace := true" in told
    ((told,),) = session.sql("CALL dp_protect('stays', time_zone := 'America/New_York', replace := true)").fetchall()
    assert "this session" not in told
    session.connection.execute(
        "CREATE OR REPLACE TABLE days AS SELECT i AS pid, DATE '2026-01-01' AS day FROM range(3) r(i)"
    )
    ((told,),) = session.sql("CALL dp_protect('days', privacy_unit_column := 'pid', unit := 'stays')").fetchall()
    assert "this session" not in told
