"""Small queries of foreign tools: answers without noise are the rows that DuckDB gives, and refusals are free."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from dpsql.errors import SchemaError, UnsupportedQueryError
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import silence

LOGS = tuple(f"log{month:02}" for month in range(1, 13))
"""Tables that are alike, one for each month."""
BOUNDS = "unit := 'guest', privacy_unit_column := 'guest', max_groups_contributed := 60, max_rows_per_group := 60"
TABLES = (
    "CREATE TYPE mood AS ENUM ('low', 'mid', 'high')",
    "CREATE TABLE stay AS SELECT (i % 500)::INT guest, (i % 4)::INT hotel, (i % 100)::INT paid, "
    "DATE '2024-01-01' + (i % 300)::INT arrived, (['low', 'mid', 'high'][1 + i % 3])::mood mood, "
    "TIMESTAMPTZ '2024-03-01 01:30:00+00' + to_days((i % 5)::INT) booked FROM range(4000) r(i)",
    "CREATE TABLE hotel AS SELECT i::INT id, 'H' || i AS name, (10 + i)::INT rooms, (i % 3)::INT paid "
    "FROM range(4) r(i)",
    "ALTER TABLE hotel ADD PRIMARY KEY (id)",
    "CREATE TABLE card AS SELECT i::HUGEINT guest, (i % 4)::UTINYINT level FROM range(400, 700) r(i)",
    "CREATE TABLE wide AS SELECT i::INT id, (i % 3)::INT g FROM range(4000) r(i)",
    "ALTER TABLE wide ADD PRIMARY KEY (id)",
    *(
        f"CREATE TABLE {log} AS SELECT (i % 500)::INT guest, 'k' || (i % 3) AS k, (i % 10)::INT v FROM range(1000) r(i)"
        for log in LOGS
    ),
)
POLICY = (
    "CALL dp_unit('guest', rho_budget := 9e9, delta_threshold := 0.4, delta_conversion := 0.1)",
    *(f"CALL dp_protect('{table}', {BOUNDS})" for table in ("stay", "card", *LOGS)),
    "CALL dp_domain('stay', 'paid', bounds := [0, 100])",
    "CALL dp_domain('stay', 'mood', ordered := true)",
    *(f"CALL dp_domain('{log}', 'v', bounds := [0, 10])" for log in LOGS[:2]),
    "CALL dp_public('hotel')",
    "CALL dp_public('wide')",
)
LEVEL: dict[str, Any] = {"rho": 1.0, "delta": 1e-3}
ALL_LOGS = " UNION ALL ".join(f"SELECT guest, k FROM {log}" for log in LOGS)


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        for text in TABLES:
            session.connection.execute(text)
        for text in POLICY:
            session.sql(text)
        silence(session)
        yield session


EQUAL = {
    "A1 columns with their schema": "SELECT main.stay.hotel, count(*) FROM main.stay WHERE main.stay.paid > 5 "
    "GROUP BY main.stay.hotel",
    "A1 columns with their database": "SELECT memory.main.stay.hotel, count(*) FROM stay GROUP BY ALL",
    "A1 a join as BI tools write it": 'SELECT "main"."hotel"."name" AS "name", count(*) FROM "main"."stay" JOIN '
    '"main"."hotel" ON "main"."stay"."hotel" = "main"."hotel"."id" GROUP BY "main"."hotel"."name"',
    "A1 a comma": "SELECT count(*) FROM main.stay, main.hotel WHERE main.stay.hotel = main.hotel.id",
    "A1 the row outside": "SELECT count(*) FROM main.stay WHERE EXISTS (SELECT 1 FROM main.log01 WHERE "
    "main.log01.guest = main.stay.guest AND main.log01.v > main.stay.hotel)",
    "A24 whole numbers of two widths": "SELECT h.name, count(*) FROM stay JOIN (SELECT id::BIGINT AS id, name FROM "
    "hotel) h ON stay.hotel = h.id GROUP BY h.name",
    "A24 in WHERE": "SELECT count(*) FROM stay, (SELECT id::UTINYINT AS id FROM hotel) h WHERE stay.hotel = h.id",
    "A24 units": "SELECT count(*), count(DISTINCT guest) FROM stay FULL JOIN card USING (guest)",
    "A24 IN": "SELECT count(*) FROM stay WHERE guest IN (SELECT guest FROM card WHERE level > 1)",
    "A24 NOT IN": "SELECT count(*) FROM stay WHERE hotel NOT IN (SELECT b FROM (SELECT id::UINTEGER b FROM hotel) h)",
    "A24 EXISTS": "SELECT count(*) FROM stay WHERE EXISTS (SELECT 1 FROM card WHERE card.guest = stay.guest AND "
    "level > hotel)",
    "A2b a zone in the text": "SELECT (booked AT TIME ZONE 'America/New_York')::DATE AS day, count(*) FROM stay "
    "GROUP BY day",
    "A14 a number of a public table": "SELECT avg(b.paid) FROM stay a JOIN hotel b ON a.hotel = b.id",
    "A21 an ENUM's order": "SELECT mood, count(*) AS n FROM stay GROUP BY mood ORDER BY mood LIMIT 1",
    "A20 two lookups of one table, compared with each other": "SELECT count(*) FROM stay, wide a, wide b WHERE "
    "stay.paid = a.id AND stay.hotel = b.id AND a.g = b.g",
    "A20 with the table last": "SELECT count(*) FROM wide a, wide b, stay WHERE stay.paid = a.id AND stay.hotel = b.id "
    "AND a.g = b.g",
    "A20 in ON": "SELECT count(*) FROM stay JOIN wide a ON stay.paid = a.id JOIN wide b ON stay.hotel = b.id AND "
    "a.g = b.g LEFT JOIN hotel ON hotel.id = b.id",
    "A5 twelve tables in UNION ALL": f"SELECT k, count(*) FROM ({ALL_LOGS}) GROUP BY k",
    "B3 HAVING by an alias that is a column": "SELECT hotel, sum(paid) AS paid FROM stay GROUP BY hotel "
    "HAVING paid > 49500",
    "B6 bounds through UNION ALL": "SELECT k, sum(v) FROM (SELECT guest, k, v FROM log01 UNION ALL "
    "SELECT guest, k, v FROM log02) GROUP BY k",
    "B13 FETCH FIRST": "SELECT hotel, count(*) AS n FROM stay GROUP BY hotel ORDER BY n DESC, hotel "
    "FETCH FIRST 3 ROWS ONLY",
    "B15 back quotes": "SELECT `hotel`, count(*) FROM `stay` GROUP BY `hotel`",
    "B17 VALUES": "SELECT z.city, count(*) FROM stay JOIN (VALUES (0, 'Ulm'), (1, 'Bonn')) z(h, city) "
    "ON z.h = stay.hotel GROUP BY z.city",
    "B18 sum of distinct values": "SELECT hotel, sum(DISTINCT paid) FROM stay GROUP BY hotel",
    "bounds of a public column from its rows": "SELECT sum(hotel.rooms * stay.paid) FROM stay JOIN hotel "
    "ON stay.hotel = hotel.id",
    "INTERVAL of a number in parentheses": "SELECT count(*) FROM stay WHERE arrived > DATE '2024-12-01' + "
    "INTERVAL (-180) DAY",
}


@pytest.mark.parametrize("text", EQUAL.values(), ids=EQUAL.keys())
def test_an_answer_has_the_rows_of_duckdb(session: dpsql.Session, text: str) -> None:
    shown = session.sql(text, **LEVEL).fetchall()
    assert sorted(shown) == sorted(session.connection.execute(text).fetchall())


REFUSED = {
    "A22 no date": ("literal", "SELECT count(*) FROM stay WHERE arrived > '2025-13-01'"),
    "A23 a word beside a number": ("literal", "SELECT count(*) FROM stay WHERE hotel = 'ritz'"),
    "A4b a window in a subquery": (
        "window",
        "SELECT hotel, count(*) FROM (SELECT guest, hotel, row_number() OVER (PARTITION BY guest ORDER BY arrived) AS "
        "rn FROM stay) WHERE rn = 1 GROUP BY hotel",
    ),
    "A4b a window over rows": ("window", "SELECT hotel FROM stay QUALIFY row_number() OVER (PARTITION BY guest) = 1"),
}


@pytest.mark.parametrize(("code", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refusal_has_one_reason_and_is_free(session: dpsql.Session, code: str, text: str) -> None:
    before = session.sql("FROM dp_budget()").fetchall()
    with pytest.raises(UnsupportedQueryError) as caught:
        session.sql(text, **LEVEL)
    assert [one.code for one in caught.value.refusals] == [code]
    assert session.sql("FROM dp_budget()").fetchall() == before


def test_a_column_is_of_the_table_that_its_name_says(session: dpsql.Session) -> None:
    session.connection.execute("CREATE SCHEMA IF NOT EXISTS old; CREATE OR REPLACE TABLE old.stay AS FROM main.stay")
    for text in (
        "SELECT old.stay.hotel, count(*) FROM stay GROUP BY ALL",
        "SELECT main.stay.hotel, count(*) FROM main.stay s GROUP BY ALL",
        "SELECT count(*) FROM stay, hotel WHERE old.stay.hotel = hotel.id AND stay.hotel = hotel.id",
        "SELECT count(*) FROM stay JOIN hotel ON old.stay.hotel = hotel.id",
        "WITH stay AS (SELECT guest, hotel FROM main.stay) SELECT main.stay.hotel, count(*) FROM stay GROUP BY ALL",
        "SELECT count(*) FROM stay WHERE EXISTS (SELECT 1 FROM log01 stay WHERE stay.guest = main.stay.guest)",
    ):
        with pytest.raises(SchemaError, match=r"'(old|main)\.stay'|old.stay.hotel is not there"):
            session.sql(text, **LEVEL)


def test_the_schema_of_a_column_is_no_part_of_the_hash(session: dpsql.Session) -> None:
    short = session.sql("SELECT stay.paid, count(*) FROM stay GROUP BY ALL", **LEVEL)
    full = session.sql("SELECT main.stay.paid, count(*) FROM main.stay GROUP BY ALL", **LEVEL)
    assert receipt_of(full).query_hash == receipt_of(short).query_hash
    assert receipt_of(full).charged_rho == 0


def test_an_equality_that_does_not_join_is_a_filter_whatever_its_types(session: dpsql.Session) -> None:
    wide = "(SELECT id, paid::BIGINT AS paid FROM hotel) h"
    beside = session.sql(f"SELECT count(*) FROM stay, {wide} WHERE hotel = id AND stay.paid = h.paid", **LEVEL)
    joined = session.sql(f"SELECT count(*) FROM stay JOIN {wide} ON hotel = id WHERE stay.paid = h.paid", **LEVEL)
    assert receipt_of(beside).query_hash == receipt_of(joined).query_hash


def test_unusual_numbers_of_public_rows_are_left_to_auto(session: dpsql.Session) -> None:
    listed = "JOIN (VALUES (0, 1e-300), (1, 0)) v(h, x) ON stay.hotel = v.h"
    for text in (
        "SELECT avg(hotel.rooms + 1e9) FROM stay JOIN hotel ON stay.hotel = hotel.id",
        f"SELECT sum(v.x) FROM stay {listed}",
    ):
        ((shown,),), ((exact,),) = session.sql(text, **LEVEL).fetchall(), session.connection.execute(text).fetchall()
        assert shown == pytest.approx(exact, rel=1e-6, abs=1e-6)


def test_a_comma_and_on_are_one_query(session: dpsql.Session) -> None:
    sides = "stay.paid = a.id", "stay.hotel = b.id", "a.g = b.g"
    texts = (
        f"SELECT count(*) FROM stay, wide a, wide b WHERE {' AND '.join(sides)}",
        f"SELECT count(*) FROM stay JOIN wide a ON {sides[0]} JOIN wide b ON {sides[1]} AND {sides[2]}",
        f"SELECT count(*) FROM stay JOIN wide a ON {sides[0]} JOIN wide b ON {sides[1]} WHERE {sides[2]}",
    )
    assert len({receipt_of(session.sql(text, **LEVEL)).query_hash for text in texts}) == 1


def test_a_join_on_what_many_rows_share_is_still_refused(session: dpsql.Session) -> None:
    for text in (
        "SELECT count(*) FROM stay, wide a, wide b WHERE stay.paid = a.id AND a.g = b.g",
        "SELECT count(*) FROM stay JOIN wide a ON stay.paid = a.id JOIN wide b ON a.g = b.g JOIN hotel h "
        "ON h.id = b.id AND h.id = stay.hotel",
    ):
        with pytest.raises(UnsupportedQueryError, match="public tables may make"):
            session.sql(text, **LEVEL)
