"""Attacks on subqueries and joins: rows of two people that come together, costs and errors that tell of one row."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.errors import UnsupportedQueryError
from dpsql.sql.statements import SelectStatement, read_statement


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect() as opened:
        opened.connection.execute(
            "CREATE TABLE a AS SELECT i % 5 AS pid, i % 3 AS z, 'text' AS s FROM range(20) r(i);"
            "CREATE TABLE b AS SELECT * FROM a;"
            "CREATE TABLE w AS SELECT pid::VARCHAR AS pid, z FROM a;"
            "CREATE TABLE p AS SELECT i % 2 AS k, i AS m FROM range(4000) r(i);"
            "CREATE TABLE q AS SELECT i AS k FROM range(3) r(i)"
        )
        opened.sql("CALL dp_unit('u', rho_budget := 100, delta_threshold := 0.5, delta_conversion := 1e-6)")
        for table in "abw":
            opened.sql(
                f"CALL dp_protect('{table}', coverage := FALSE, unit := 'u', privacy_unit_column := 'pid', "
                "max_groups_contributed := 5, max_rows_per_group := 5, default_rho := 0.1)"
            )
        opened.sql("CALL dp_public('p')")
        opened.sql("CALL dp_public('q')")
        yield opened


def plan(session: dpsql.Session, text: str) -> None:
    statement = read_statement(text)
    assert isinstance(statement, SelectStatement)
    session._runner.plan(statement, {}, CURATOR)


def is_refused(session: dpsql.Session, text: str) -> bool:
    try:
        plan(session, text)
    except UnsupportedQueryError:
        return True
    return False


@pytest.mark.parametrize(
    "text",
    [
        # in a row of an outer join that met none, z is not the unit
        "FROM a LEFT JOIN b ON a.pid = b.pid AND a.z = b.pid JOIN b c ON c.pid = a.z",
        "FROM a LEFT JOIN q ON a.pid = q.k AND a.z = q.k JOIN b c ON c.pid = a.z",
        "FROM b RIGHT JOIN a ON a.pid = b.pid AND a.z = b.pid JOIN b c ON c.pid = a.z",
        "FROM b FULL JOIN a ON a.pid = b.pid AND a.z = b.pid JOIN b c ON c.pid = a.z",
        "FROM (SELECT a.z FROM a LEFT JOIN b ON a.pid = b.pid AND a.z = b.pid) x JOIN b c ON c.pid = x.z",
        "FROM a LEFT JOIN b ON a.pid = b.pid AND a.z = b.pid WHERE EXISTS (SELECT 1 FROM b c WHERE c.pid = a.z)",
        # DuckDB would cast units of two types to one
        "FROM (SELECT z FROM a UNION ALL SELECT z FROM w)",
        "FROM (SELECT z FROM a UNION SELECT z FROM w)",
    ],
)
def test_rows_of_two_units_do_not_come_together(session: dpsql.Session, text: str) -> None:
    assert is_refused(session, f"SELECT count(*) {text}")


def test_what_an_inner_join_compares_with_the_unit_is_the_unit(session: dpsql.Session) -> None:
    for on in ("a.pid = b.pid AND a.z = b.pid", "a.z = b.pid AND a.pid = b.pid"):
        plan(session, f"SELECT count(*) FROM a JOIN b ON {on} JOIN b c ON c.pid = a.z")
        plan(session, f"SELECT count(*) FROM a JOIN q ON {on.replace('b.pid', 'q.k')} JOIN b c ON c.pid = a.z")


def _nested(value: str, word: str, times: int, levels: int, tail: str = "") -> str:
    text = f"SELECT {value} AS x, pid FROM a"
    for _ in range(levels):
        x = word.join(["x"] * times)
        text = f"SELECT {f'max({x})' if tail else x} AS x, pid FROM ({text}){tail}"
    return f"SELECT count(*) FROM ({text}) WHERE x IS NULL"


@pytest.mark.parametrize("tail", ["", " GROUP BY pid"])
def test_texts_do_not_grow_from_subquery_to_subquery(session: dpsql.Session, tail: str) -> None:
    assert not is_refused(session, _nested("s", " || ", 5, 2, tail))
    assert is_refused(session, _nested("s", " || ", 6, 2, tail))
    assert is_refused(
        session, f"SELECT count(*) FILTER (WHERE x || x <> '') FROM (SELECT {'||'.join('s' * 17)} AS x FROM a)"
    )


def test_an_expression_does_not_grow_from_subquery_to_subquery(session: dpsql.Session) -> None:
    """DuckDB writes a filter out in terms of the tables, before it reads a row."""
    assert not is_refused(session, _nested("z > 1", " AND ", 10, 3))
    assert is_refused(session, _nested("z > 1", " AND ", 30, 6))


@pytest.mark.parametrize(
    "text",
    [
        "FROM a JOIN p ON a.z = p.k",
        "FROM a WHERE EXISTS (SELECT 1 FROM p WHERE p.k = a.z AND p.m > a.pid)",
        "FROM a WHERE z NOT IN (SELECT k FROM p WHERE p.m <> a.pid)",
        "FROM a SEMI JOIN (SELECT x.m FROM p x JOIN p y USING (k) JOIN p z USING (k)) t ON t.m = a.z",
    ],
)
def test_public_rows_that_meet_one_row_are_limited(session: dpsql.Session, text: str) -> None:
    assert is_refused(session, f"SELECT count(*) {text}")


def test_public_tables_are_joined_whichever_comes_first(session: dpsql.Session) -> None:
    names = "(SELECT DISTINCT k FROM p) n"
    for joined in (f"p JOIN {names} USING (k)", f"{names} JOIN p USING (k)"):
        plan(session, f"SELECT count(*) FROM a SEMI JOIN (SELECT m FROM {joined}) t ON t.m = a.z")
    plan(session, "SELECT count(*) FROM a WHERE EXISTS (SELECT 1 FROM p WHERE p.k = a.z)")


def test_a_refusal_does_not_quote_a_view(session: dpsql.Session) -> None:
    session.connection.execute(
        "CREATE OR REPLACE VIEW quoted AS SELECT a.* FROM a LEFT JOIN q ON a.z = q.k AND (a.s <> 'Alice' OR q.k > 1)"
    )
    with pytest.raises(UnsupportedQueryError) as caught:
        plan(session, "SELECT count(*) FROM quoted")
    assert "Alice" not in str(caught.value)
    assert [(refusal.code, str(refusal.span)) for refusal in caught.value.refusals] == [("source", "line 1, column 22")]
