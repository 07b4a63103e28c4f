"""Functions of a row on ugly values: answers without noise are the rows that DuckDB gives, and no row fails aloud."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from dpsql.errors import UnsupportedQueryError
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import silence
from tests.pattern_texts import EXPONENTIAL

VALUES: dict[str, tuple[str, ...]] = {
    "d": (
        "infinity", "-infinity", "5881580-07-10", "5877642-06-25 (BC)", "0001-12-31 (BC)", "2000-02-29", "2026-03-01",
    ),
    "e": ("2001-02-28", "2024-02-29", "infinity", "9999-12-31", "1999-03-01"),
    "ts": (
        "infinity", "-infinity", "294247-01-10 04:00:54.775806", "290309-12-22 (BC) 00:00:00", "2024-12-30 23:59:59.5",
        "1996-02-29 12:00:00", "2027-01-01 00:00:00",
    ),
    "te": ("2001-02-28 11:59:59.9", "2001-02-28 12:00:00", "-infinity", "0001-01-01 00:00:00", "1969-12-31 23:59:59"),
    "tz": ("infinity", "294247-01-10 04:00:54.775806+00", "2024-03-31 01:30:00+00", "290309-12-22 (BC) 00:00:00+00"),
    "s": ("", "a", "Straße|日本|", "e\u0301|a|a", "|||", "a\nb", "x\u0000y", "aaaaaaaaab", "A.b-C_d 12"),
}  # fmt: skip
"""Values of each column, beside NULL; a table has each of them on many rows of many people."""

KINDS = {"d": "DATE", "e": "DATE", "ts": "TIMESTAMP", "te": "TIMESTAMP", "tz": "TIMESTAMPTZ", "s": "VARCHAR"}

EXPRESSIONS = (
    "strlen(s)",
    "strftime(d, '%G-W%V-%u')",
    "strftime(ts, '%G%V')",
    "time_bucket(INTERVAL 1 WEEK, d)",
    "time_bucket(INTERVAL '15 minutes', ts)",
    "time_bucket(INTERVAL 3 MONTHS, ts, TIMESTAMP '2024-02-01')",
    "time_bucket(INTERVAL 1000 YEARS, d, DATE '1700-01-01')",
    "time_bucket(INTERVAL 2 DAYS, tz)",
    "date_part('year', age(d, e))",
    "date_part('year', age(e, d))",
    "year(age(ts, te))",
    "extract(year FROM age(te, ts))",
    "year(age(d, te))",
    "year(age(e))",
    "date_diff('year', d, e)",
    "date_sub('year', ts, te)",
    "epoch(least(greatest(ts, TIMESTAMP '1900-01-01'), TIMESTAMP '2100-01-01') - te)",
    "epoch(tz - tz)",
    "replace(s, 'a', 'bbb')",
    "replace(replace(s, '|', ''), 'aa', 'é')",
    "regexp_matches(s, '^[^a]*$')",
    "regexp_matches(s, 'STRA.E', 'i')",
    "s ~ '日'",
    "regexp_full_match(s, '(a|\\|)*')",
    "regexp_extract(s, '^([^|]+)\\|(.*)$', 2)",
    "regexp_extract(s, '[\\d.]+')",
    "regexp_extract(s, 'a.b', 0, 's')",
    "regexp_replace(s, 'a+', '|')",
)

REFUSED = {
    "time_bucket(INTERVAL 0 DAY, ts)": "width above 0",
    "time_bucket(INTERVAL 1001 YEARS, ts)": "width above 0",
    "time_bucket(INTERVAL (-1) DAY, ts)": "width above 0",
    "time_bucket(INTERVAL 1 DAY, ts, te)": "width above 0",
    "time_bucket(INTERVAL 1 DAY, ts, INTERVAL 1 HOUR)": "width above 0",
    "time_bucket(INTERVAL 1 DAY, ts, TIMESTAMP '294247-01-10')": "width above 0",
    "time_bucket(INTERVAL 1 DAY, tz, 'Europe/Berlin')": "width above 0",
    "strftime(d, '%U')": "format of strftime",
    "month(age(d, e))": "age",
    "replace(s, '', 'a')": "not empty",
    "replace(s, s, 'a')": "text literals",
    "replace(replace(s, 'a', 'aaaaaaaa'), 'a', 'aaaaaaaa')": "times as long",
    "concat(replace(s, 'a', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'), s)": "joined into one text",
    "regexp_matches(s, s)": "text literal",
    "regexp_matches(s, 'a', 'g')": "options",
    "regexp_matches(s, '(')": "without a \\)",
    "regexp_matches(s, '[ab]*a[ab]{20}c')": "1,000 states",
    "regexp_replace(s, '(a)', '\\1')": "literal without",
    "regexp_extract(s, '(a)', 2)": "number of a group",
    "regexp_extract(s, '(a*)(a*)', 1)": "does not always decide",
}
"""Calls, with words of their refusals."""


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        columns = []
        for place, (name, values) in enumerate(VALUES.items()):
            listed = ", ".join([*(f"'{value}'" for value in values), "NULL"])
            columns.append(f"([{listed}])[1 + (hash(i, {place}) % {len(values) + 1})::BIGINT]::{KINDS[name]} AS {name}")
        session.connection.execute(
            f"CREATE TABLE ugly AS SELECT p.i AS u, v.* FROM (SELECT {', '.join(columns)} FROM range(60) r(i)) v, "
            "range(100) p(i)"
        )
        session.sql("CALL dp_unit('unit', rho_budget := 9e9, delta_threshold := 0.4, delta_conversion := 0.1)")
        session.sql(
            "CALL dp_protect('ugly', unit := 'unit', privacy_unit_column := 'u', max_groups_contributed := 60, "
            "max_rows_per_group := 60)"
        )
        silence(session)
        yield session


def rows(found: list[tuple[object, ...]]) -> list[str]:
    return sorted(map(repr, found))


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_answers_are_those_of_duckdb(session: dpsql.Session, expression: str) -> None:
    text = "SELECT CAST({} AS VARCHAR) AS k, count(*) FROM ugly GROUP BY k"
    found = session.sql(text.format(expression), rho=2.0, delta=1e-3).fetchall()
    assert len(found) > 1
    assert rows(found) == rows(session.connection.execute(text.format(f"TRY({expression})")).fetchall())


@pytest.mark.parametrize(("expression", "words"), REFUSED.items())
def test_calls_that_are_not_total_are_refused_free(session: dpsql.Session, expression: str, words: str) -> None:
    before = session.sql("FROM dp_budget()").fetchall()
    with pytest.raises(UnsupportedQueryError, match=words):
        session.sql(f"SELECT count(*) FROM ugly WHERE ({expression}) IS NOT NULL")
    assert session.sql("FROM dp_budget()").fetchall() == before


def test_exponential_automata_are_refused_free(session: dpsql.Session) -> None:
    before = session.sql("FROM dp_budget()").fetchall()
    for pattern in EXPONENTIAL:
        with pytest.raises(UnsupportedQueryError, match="1,000 states"):
            session.sql(f"SELECT count(*) FROM ugly WHERE regexp_matches(s, '{pattern}')", rho=2.0, delta=1e-3)
    assert session.sql("FROM dp_budget()").fetchall() == before


SPLIT = {
    "in the select list": "SELECT part, count(*) FROM (SELECT unnest(string_split(s, '|')) AS part FROM ugly) "
    "GROUP BY part",
    "of an expression, beside other columns": "SELECT part, d > e AS later, count(*) FROM (SELECT *, "
    "unnest(str_split(upper(s), 'A')) AS part FROM ugly WHERE s <> '') GROUP BY ALL",
    "in FROM": "SELECT part, count(*) FROM ugly, unnest(string_split(s, '|')) AS p(part) WHERE part <> '' "
    "GROUP BY part",
    "of a subquery": "SELECT p.part, count(*) FROM (SELECT * FROM ugly WHERE e IS NOT NULL) q CROSS JOIN "
    "unnest(string_to_array(q.s, '|')) AS p(part) GROUP BY 1",
    "in WITH": "WITH parts AS (SELECT u, unnest(string_split(s, '|')) AS part FROM ugly) SELECT part, "
    "count(DISTINCT u) FROM parts GROUP BY part",
}


@pytest.mark.parametrize("name", SPLIT)
def test_split_texts_are_rows_as_in_duckdb(session: dpsql.Session, name: str) -> None:
    found = session.sql(SPLIT[name], rho=2.0, delta=1e-3).fetchall()
    assert len(found) > 1
    assert rows(found) == rows(session.connection.execute(SPLIT[name]).fetchall())


def test_a_long_text_is_few_rows_and_moves_an_answer_by_no_more_than_the_bounds() -> None:
    text = "SELECT part, count(*) AS n FROM (SELECT unnest(string_split(s, ',')) AS part FROM lists) GROUP BY part"
    keys = ["a", *map(str, range(40))]
    with dpsql.connect(threads=1) as session:
        session.connection.execute(
            "CREATE TABLE lists AS SELECT i AS u, 'a,' || i % 40 || ',a' AS s FROM range(4000) r(i)"
        )
        session.sql("CALL dp_unit('person', rho_budget := 9e9, delta_threshold := 0.4, delta_conversion := 0.1)")
        session.sql(
            "CALL dp_protect('lists', unit := 'person', privacy_unit_column := 'u', max_groups_contributed := 5, "
            "max_rows_per_group := 3)"
        )
        silence(session)
        before = dict(session.sql(text, rho=2.0, delta=1e-3).fetchall())
        long = ",".join(map(str, range(40))) + ",0" * 2_000
        session.connection.execute("INSERT INTO lists VALUES (9999, $1), (NULL, $1)", [long])
        session.sql("CALL dp_new_version('lists')")
        answer = session.sql(text, rho=2.0, delta=1e-3)
        after = dict(answer.fetchall())
        assert before["a"] == 8_000
        moved = {key: after[key] - before[key] for key in keys if after[key] != before[key]}
        assert 0 < len(moved) <= 5
        assert max(moved.values()) <= 3
        # parts after the 32nd are no rows
        assert all(int(key) < 32 for key in moved)
        assert "at most 32 parts of its first 1,000 characters" in str(receipt_of(answer))
