"""Views that join, parentheses around tables, and joins by an expression: answers without noise are DuckDB's rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.errors import UnsupportedQueryError
from dpsql.operations.row_sql import with_salt
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import silence

TABLES = """
CREATE TABLE people AS SELECT i::INT pid, (i % 3)::INT g FROM range(300) r(i);
ALTER TABLE people ADD PRIMARY KEY (pid);
CREATE TABLE visits AS SELECT (i % 300)::INT pid, (i % 20)::INT city, (i % 5)::INT d, DATE '2024-01-01' + (i % 30)::INT
  AS day, TIMESTAMP '2024-01-01' + to_hours((i % 720)::INT) AS seen FROM range(3000) r(i);
CREATE TABLE cities AS SELECT i::INT city, (i % 4)::INT region, 'C' || i AS name FROM range(18) r(i);
ALTER TABLE cities ADD PRIMARY KEY (city);
CREATE TABLE regions AS SELECT i::INT region, 'R' || i AS called FROM range(3) r(i);
ALTER TABLE regions ADD PRIMARY KEY (region);
CREATE TABLE calendar AS SELECT DATE '2024-01-01' + i::INT AS day, (i % 3)::INT w FROM range(25) r(i);
ALTER TABLE calendar ADD PRIMARY KEY (day);
CREATE TABLE numbers AS SELECT i::INT number FROM range(4000) r(i);
ALTER TABLE numbers ADD PRIMARY KEY (number);
CREATE TABLE hours AS SELECT (i % 2)::INT half, DATE '2023-12-01' + (i // 2)::INT AS day FROM range(3000) r(i);
"""
BOUNDS = "unit := 'person', max_groups_contributed := 60, max_rows_per_group := 100"
POLICY = (
    "CALL dp_unit('person', rho_budget := 9e9, delta_threshold := 0.4, delta_conversion := 0.1)",
    *(f"CALL dp_protect('{table}', privacy_unit_column := 'pid', {BOUNDS})" for table in ("people", "visits")),
    *(f"CALL dp_public('{table}')" for table in ("cities", "regions", "calendar", "numbers", "hours")),
)
LEVEL: dict[str, Any] = {"rho": 30.0, "delta": 1e-3}


def _session(tables: str, policy: tuple[str, ...]) -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(tables)
        for text in policy:
            session.sql(text)
        silence(session)
        yield session


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    yield from _session(TABLES, POLICY)


# what stands after FROM: what is selected
FORMS = {
    "(visits v JOIN cities ON v.city = cities.city)": "region AS a",
    "(visits JOIN cities USING (city))": "city AS a",
    "(visits NATURAL JOIN cities)": "city AS a",
    "((visits JOIN cities USING (city)) JOIN regions USING (region))": "called AS a",
    "visits v LEFT JOIN cities c ON v.city = c.city LEFT JOIN regions r ON c.region = r.region": "called AS a",
    "visits v JOIN (cities c JOIN regions r USING (region)) ON v.city = c.city": "called AS a, region AS b",
    "visits v JOIN (cities c LEFT JOIN regions r USING (region)) USING (city)": "called AS a",
    "visits v LEFT JOIN (cities c JOIN regions r ON c.region = r.region) ON v.city = c.city": "r.called AS a",
    "((VALUES (1, 'a'), (2, 'b')) t(city, z) JOIN visits USING (city))": "z AS a",
    "visits v JOIN cities c JOIN regions USING (region) ON v.city = c.city": "called AS a",
    "(people JOIN visits USING (pid)) JOIN (cities JOIN regions USING (region)) USING (city)": "g AS a, called AS b",
    "people p LEFT JOIN (visits v JOIN cities c USING (city)) ON v.pid = p.pid": "g AS a, region AS b",
    "people p LEFT JOIN (visits v RIGHT JOIN cities c USING (city)) ON v.pid = p.pid": "c.city AS a",
    "people p JOIN (visits v FULL JOIN cities c USING (city)) ON v.pid = p.pid": "city AS a",
    "people p SEMI JOIN (visits v JOIN cities c USING (city)) ON v.pid = p.pid": "g AS a",
    "people p, (visits v JOIN cities c ON v.city = c.city) WHERE p.pid = v.pid": "g AS a, region AS b",
    "visits v, (cities c JOIN regions USING (region)) WHERE v.city = c.city": "called AS a",
    "(visits v JOIN cities c USING (city)) AS q": "q.region AS a, q.city AS b",
    "(visits v JOIN cities c USING (city)) AS q(x, y) JOIN regions r ON r.region = q.region": "q.y AS a, r.called AS b",
    "main.visits JOIN (main.cities JOIN main.regions ON main.cities.region = main.regions.region) "
    "ON main.cities.city = main.visits.city": "main.regions.called AS a",
    "visits v JOIN calendar c ON v.seen::DATE = c.day": "c.w AS a",
    "visits v LEFT JOIN calendar c ON v.seen::DATE = c.day": "c.w AS a",
    "visits v RIGHT JOIN calendar c ON v.day + 0 = c.day": "c.w AS a",
    "visits v FULL JOIN calendar c ON c.day - 0 = v.day": "c.w AS a",
    "visits v ANTI JOIN calendar c ON v.seen::DATE = c.day": "d AS a",
    "visits v, calendar c WHERE v.day + 1 = c.day": "c.w AS a",
    "calendar c, cities, visits v WHERE v.day + 1 = c.day AND v.city - 0 = cities.city": "c.w AS a, region AS b",
    "visits v LEFT JOIN cities c USING (city) LEFT JOIN regions r ON c.region + 1 = r.region": "called AS a",
    "visits v LEFT JOIN people p ON v.pid = p.pid AND v.d + 1 = p.g": "g AS a",
    "visits v JOIN cities c USING (city) JOIN regions r ON c.region % 2 = r.region AND v.d > 1": "called AS a",
    # half a day has 1,500 rows, and a day two
    "visits v JOIN hours h ON v.d = h.half AND v.seen::DATE = h.day": "h.half AS a",
    "visits WHERE seen::DATE IN (SELECT day FROM calendar)": "d AS a",
    "visits WHERE seen::DATE NOT IN (SELECT day + 1 FROM calendar WHERE w = 1)": "d AS a",
    "visits v WHERE EXISTS (SELECT 1 FROM calendar c WHERE c.day + 1 = v.seen::DATE AND c.w > v.d)": "d AS a",
    "people p WHERE EXISTS (SELECT 1 FROM visits v WHERE v.pid = p.pid AND v.d + 1 = p.g)": "g AS a",
    "visits WHERE extract(epoch FROM seen - day) BETWEEN 3600 AND 40000": "d AS a",
    "visits WHERE seen - INTERVAL '3 hours' > TIMESTAMP '2024-01-20' AND seen < seen + INTERVAL 1 WEEK": "d AS a",
    "visits WHERE (d, city) IN (SELECT region, city FROM cities)": "d AS a",
}


@pytest.mark.parametrize(("source", "selected"), FORMS.items(), ids=FORMS.keys())
def test_a_form_and_its_view_have_the_rows_of_duckdb(session: dpsql.Session, source: str, selected: str) -> None:
    rows = f"SELECT {selected} FROM {source}"
    session.connection.execute(f"CREATE OR REPLACE VIEW form AS {rows}")
    exact = sorted(session.connection.execute("SELECT *, count(*) FROM form GROUP BY ALL").fetchall(), key=repr)
    keys = ", ".join(re.findall(r"AS ([ab])\b", selected))
    for text in (f"({rows})", "form"):
        shown = session.sql(f"SELECT {keys}, count(*) FROM {text} GROUP BY ALL", **LEVEL).fetchall()
        assert sorted(shown, key=repr) == exact


def test_parentheses_that_say_nothing_change_no_hash(session: dpsql.Session) -> None:
    texts = (
        "visits v JOIN cities c ON v.city = c.city LEFT JOIN regions r ON c.region = r.region",
        "(visits v JOIN cities c ON ((v.city = c.city))) LEFT JOIN regions r ON c.region = r.region",
        "((visits v JOIN cities c ON v.city = c.city) LEFT JOIN (regions) AS r ON c.region = r.region)",
    )
    answers = [session.sql(f"SELECT called, count(*) FROM {text} GROUP BY called", **LEVEL) for text in texts]
    assert len({receipt_of(answer).query_hash for answer in answers}) == 1


REFUSED = {
    "SELECT count(*) FROM visits v LEFT JOIN cities c USING (city) LEFT JOIN regions r ON coalesce(c.region, 0) = "
    "r.region": "where an outer join leaves its table out",
    # an expression is never the unit
    "SELECT count(*) FROM visits v JOIN people p ON v.pid + 0 = p.pid": "whose their rows are",
    "SELECT count(*) FROM people WHERE pid + 0 IN (SELECT pid FROM visits)": "rows of other units",
    "SELECT count(*) FROM people p WHERE EXISTS (SELECT 1 FROM visits v WHERE v.pid + 0 = p.pid)": "of other units",
    "SELECT count(*) FROM people p JOIN numbers n ON p.pid = n.number + 0 JOIN visits v ON n.number + 0 = v.pid": (
        "whose their rows are"
    ),
    # an expression of a unique column is not unique
    "SELECT count(*) FROM visits v JOIN numbers n ON v.d = n.number // 2000": "may make 2,000 rows",
    "SELECT count(*) FROM visits v JOIN calendar c ON v.seen = c.day": r"as in v.seen = CAST\(c.day AS TIMESTAMP\)",
    "SELECT count(*) FROM visits v JOIN calendar c ON v.d::VARCHAR = c.w": r"CAST\(c.w AS VARCHAR\)",
    "SELECT count(*) FROM visits v JOIN calendar c ON v.d = c.day": "values of one kind",
    "SELECT count(*) FROM people p JOIN visits v ON p.pid::VARCHAR = v.pid": "let the curator give both columns one",
    "SELECT count(*) FROM visits v JOIN (cities JOIN visits USING (city)) USING (city)": "whose their rows are",
    "SELECT count(*) FROM visits JOIN (cities JOIN cities USING (city)) USING (city)": "two tables have one name",
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items(), ids=REFUSED.keys())
def test_a_refusal_says_why(session: dpsql.Session, text: str, message: str) -> None:
    with pytest.raises(UnsupportedQueryError, match=message):
        session.sql(text, **LEVEL)


def test_a_refused_view_sends_the_curator_to_a_text_that_is_refused_too(session: dpsql.Session) -> None:
    session.connection.execute("CREATE OR REPLACE VIEW first AS SELECT * FROM visits LIMIT 10")
    with pytest.raises(UnsupportedQueryError, match=r"the text that duckdb_views\(\) shows for it as a subquery"):
        session.sql("SELECT count(*) FROM first", **LEVEL)
    ((text,),) = session.connection.execute("SELECT sql FROM duckdb_views() WHERE view_name = 'first'").fetchall()
    with pytest.raises(UnsupportedQueryError, match="LIMIT"):
        session.sql(f"SELECT count(*) FROM ({text.partition(' AS ')[2].strip('; ')})", **LEVEL)


COMPARED = (
    "visits v JOIN calendar c ON v.seen::DATE = c.day",
    "visits v LEFT JOIN people p ON v.pid = p.pid AND v.d + 1 = p.g",
    "people p LEFT JOIN (visits v JOIN calendar c ON v.day + 1 = c.day) ON v.pid = p.pid",
    "visits v WHERE EXISTS (SELECT 1 FROM visits w WHERE w.pid = v.pid AND w.d + 0 = v.d AND w.seen::DATE > v.day)",
)


@pytest.mark.parametrize("source", COMPARED)
@pytest.mark.usefixtures("plans_each_time")
def test_rows_of_others_stay_if_one_unit_leaves(session: dpsql.Session, source: str) -> None:
    connection = session.connection
    statement = read_statement(f"SELECT count(*) FROM {source}")
    assert isinstance(statement, SelectStatement)
    query, _, _ = session._runner.plan(statement, LEVEL, CURATOR)
    frame = query.first.frame
    unit, relation = frame.rows.unit_column.sql, with_salt(frame.rows_sql.relation, bytes(16))
    rows = f"SELECT {unit} AS unit, rows::VARCHAR FROM {relation} AS rows WHERE {unit} IS NOT NULL ORDER BY ALL"
    before = connection.execute(rows).fetchall()
    connection.execute("BEGIN; DELETE FROM people WHERE pid = 7; DELETE FROM visits WHERE pid = 7")
    after = connection.execute(rows).fetchall()
    connection.execute("ROLLBACK")
    assert after == [row for row in before if row[0] != 7]
    assert 0 < len(before) - len(after) < 1_000
