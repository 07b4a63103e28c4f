"""Functions of a row on ugly values: answers without noise are the rows that DuckDB gives, and no row fails aloud."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from dpsql.errors import UnsupportedQueryError
from tests.noise_sources import silence

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
