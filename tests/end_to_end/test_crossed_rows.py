"""Joins with few public rows by ``<=``: answers are those of DuckDB, and what one row can cost is bounded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from dpsql.errors import UnsupportedQueryError
from dpsql.sql.source import join_rows
from tests.noise_sources import silence

TABLES = """
CREATE TABLE trip AS SELECT (i * 19 % 400)::INT AS rider, (i % 30)::INT AS pick, (5 + i % 45)::DOUBLE AS fare,
    TIMESTAMP '2024-04-01' + to_minutes((i * 7919 % 60000)::INT) AS started FROM range(4000) r(i);
CREATE TABLE rider AS SELECT i::INT AS rider, DATE '2024-04-01' + (i % 40)::INT AS joined FROM range(400) r(i);
CREATE TABLE zone AS SELECT i::INT AS id, ['Mitte', 'Nord'][1 + i % 2] AS district FROM range(30) r(i);
ALTER TABLE zone ADD PRIMARY KEY (id);
CREATE TABLE weather AS SELECT DATE '2024-04-01' + i::INT AS day, (i % 7) / 10.0 AS rain FROM range(60) r(i);
CREATE TABLE season AS SELECT DATE '2024-04-01' + 9 * i::INT AS a, DATE '2024-04-01' + 9 * (i + 1)::INT AS b
    FROM range(5) r(i);
CREATE TABLE thousand AS SELECT DATE '2022-01-01' + i::INT AS day FROM range(1000) r(i);
CREATE TABLE more AS SELECT DATE '2022-01-01' + i::INT AS day FROM range(1001) r(i);
"""
BOUNDS = "max_groups_contributed := 60, max_rows_per_group := 60, privacy_unit_column := 'rider'"
POLICY = (
    "CALL dp_unit('rider', rho_budget := 9e9, delta_threshold := 0.4, delta_conversion := 0.1)",
    f"CALL dp_protect('trip', unit := 'rider', {BOUNDS})",
    f"CALL dp_protect('rider', unit := 'rider', {BOUNDS})",
    "CALL dp_domain('trip', 'fare', bounds := [0, 60])",
    *(f"CALL dp_public('{name}')" for name in ("zone", "weather", "season", "thousand", "more")),
)
EQUAL = (
    "SELECT w.day, sum(t.fare) FROM weather w INNER JOIN trip t ON t.started::DATE <= w.day "
    "WHERE w.day < DATE '2024-04-08' GROUP BY w.day",
    "SELECT w.day, count(*) FROM trip t JOIN weather w ON t.started::DATE <= w.day AND w.rain > 0.5 GROUP BY w.day",
    "SELECT w.day, count(*) FROM trip t, weather w WHERE w.day > t.started::DATE AND w.day < DATE '2024-04-20' "
    "GROUP BY ALL",
    "SELECT w.day, count(*) FROM trip t CROSS JOIN weather w WHERE t.started::DATE BETWEEN w.day - 3 AND w.day "
    "AND w.rain < 0.2 GROUP BY ALL",
    "SELECT s.a, count(*) FROM trip t JOIN season s ON t.started >= s.a AND t.started < s.b GROUP BY s.a",
    "SELECT s.a, count(*) FROM trip t JOIN season s ON t.started::DATE BETWEEN s.a AND s.b GROUP BY s.a",
    "SELECT s.a, z.district, count(*) FROM trip t JOIN zone z ON z.id = t.pick JOIN season s ON t.started < s.b "
    "GROUP BY ALL",
    "SELECT s.a, z.district, avg(fare) FROM trip t JOIN season s ON t.started < s.b JOIN zone z ON z.id = t.pick "
    "GROUP BY ALL",
    "SELECT s.a, count(DISTINCT t.rider) FROM trip t JOIN rider r ON r.rider = t.rider JOIN season s "
    "ON r.joined <= s.a AND t.started >= s.a AND s.a > DATE '2024-04-05' GROUP BY s.a",
    "SELECT k.a, count(*) FROM trip t JOIN (SELECT s.a FROM season s JOIN weather w ON w.day = s.a WHERE rain < 0.5) k "
    "ON t.started <= k.a WHERE k.a > DATE '2024-04-05' GROUP BY 1",
    "SELECT count(*) FROM trip t JOIN season s ON t.started < s.a OR t.pick = 3",
    "WITH first AS (SELECT rider, min(started) AS at FROM trip GROUP BY rider) SELECT s.a, count(*) FROM first f "
    "JOIN season s ON f.at < s.a GROUP BY s.a",
)
REFUSED = {
    "trip t LEFT JOIN season s ON t.started < s.a": "JOIN in place of LEFT JOIN",
    "season s LEFT JOIN trip t ON t.started < s.a": "JOIN in place of LEFT JOIN",
    "trip t FULL JOIN season s ON t.started < s.a": "JOIN in place of FULL JOIN",
    "trip t SEMI JOIN season s ON t.started < s.a": "by = in ON",
    "trip t JOIN trip u ON t.started < u.started": "by =",
    "trip t JOIN season s ON s.a < DATE '2024-04-08'": "by =",
    "trip t, season s": "WHERE a.x = b.y",
}
TOO_MANY = (
    "trip t JOIN more m ON t.started <= m.day",
    "more m JOIN trip t ON t.started <= m.day",
    "trip t, more m WHERE t.started <= m.day",
    "trip t JOIN weather w ON t.started <= w.day JOIN weather v ON t.started > v.day",
    # the engine may compare no day with another before it crosses the rows
    "weather v JOIN weather w ON v.day = w.day JOIN trip t ON t.started <= v.day",
    "trip t JOIN more m ON t.started <= m.day JOIN rider r ON r.rider = t.rider AND r.joined = m.day",
    "trip t CROSS JOIN (VALUES (1), (2)) v(x) JOIN more m ON m.day <= t.started AND v.x < 3",
    "trip t CROSS JOIN (VALUES (1), (2)) v(x) JOIN (SELECT 1 AS y, day FROM more) m ON m.y = v.x",
)


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(TABLES)
        for text in POLICY:
            session.sql(text)
        silence(session)
        yield session


@pytest.mark.parametrize("text", [*EQUAL[:6], *(pytest.param(text, marks=pytest.mark.long) for text in EQUAL[6:])])
def test_without_noise_the_answer_is_that_of_duckdb(session: dpsql.Session, text: str) -> None:
    found = session.sql(text, rho=10.0, delta=1e-2).fetchall()
    assert sorted(found) == sorted(session.connection.execute(text).fetchall())


@pytest.mark.parametrize(("source", "hint"), REFUSED.items())
def test_what_is_refused_says_what_to_write(session: dpsql.Session, source: str, hint: str) -> None:
    with pytest.raises(UnsupportedQueryError) as refused:
        session.sql(f"SELECT count(*) FROM {source}", rho=1.0)
    assert hint in refused.value.refusals[0].hint
    assert len(refused.value.refusals) == 1 or "SEMI" in source


@pytest.mark.parametrize("source", TOO_MANY)
def test_a_row_meets_at_most_a_thousand_public_rows(session: dpsql.Session, source: str) -> None:
    before = session.sql("FROM dp_budget()").fetchall()
    with pytest.raises(UnsupportedQueryError, match="a join without = meets all rows"):
        session.sql(f"SELECT count(*) FROM {source}", rho=1.0)
    assert session.sql("FROM dp_budget()").fetchall() == before


def test_a_thousand_rows_are_joined_and_a_subquery_selects_them(session: dpsql.Session) -> None:
    few = "(SELECT * FROM more WHERE day >= DATE '2024-01-01')"
    for days in ("thousand", few):
        text = f"SELECT count(*) FROM trip t JOIN {days} d ON d.day BETWEEN t.started::DATE AND t.started::DATE + 3"
        assert session.sql(text, rho=1.0).fetchall() == session.connection.execute(text).fetchall()


def test_the_count_of_crossed_rows_is_seen_if_it_is_left_out(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_rows, "most_matches", lambda *_: 1)
    assert len(session.sql(f"SELECT count(*) FROM {TOO_MANY[0]} WHERE m.day < DATE '2022-01-01'", rho=1.0)) == 1


def test_rows_that_came_since_are_counted(session: dpsql.Session) -> None:
    session.connection.execute("CREATE TABLE grows AS SELECT * FROM thousand")
    session.sql("CALL dp_public('grows')")
    text = "SELECT count(*) FROM trip t JOIN grows g ON t.started::DATE <= g.day"
    assert len(session.sql(text, rho=1.0)) == 1
    session.connection.execute("INSERT INTO grows VALUES (DATE '2030-01-01')")
    with pytest.raises(UnsupportedQueryError, match="1,001 rows"):
        session.sql(text, rho=2.0)


def test_public_keys_of_a_calendar_have_zeros(session: dpsql.Session) -> None:
    session.sql("CALL dp_domain('season', 'b', keys_from := 'season.b')")
    text = "SELECT s.b, count(*) AS n FROM trip t JOIN season s ON {} AND t.started < DATE '2024-04-09' GROUP BY s.b"
    listed = session.connection.execute("SELECT b FROM season ORDER BY b").fetchall()
    for condition in ("t.started::DATE + 5 = s.b", "t.started >= s.a AND t.started < s.b"):
        answer = session.sql(text.format(condition), rho=1.0).fetchall()
        assert [(day,) for day, _ in sorted(answer)] == listed
