"""A literal that is no value of the type it meets is refused for nothing, and one that is none of an ENUM never is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

import dpsql
from dpsql.errors import SchemaError, UnsupportedQueryError

COUNT = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.1) count(*) FROM visits WHERE "


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute(
            "CREATE TABLE visits (pid INTEGER, ward BIGINT, day DATE, cost DOUBLE, seen TIMESTAMP, small TINYINT, "
            "id UUID, open BOOLEAN, kind ENUM('flu', 'cold'), city VARCHAR)"
        )
        session.connection.execute("CREATE VIEW dear AS SELECT * FROM visits WHERE cost > 'abc'")
        session.sql("CALL dp_unit('person', rho_budget := 100, delta_threshold := 0.1, delta_conversion := 1e-6)")
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, unit := 'person', privacy_unit_column := 'pid', "
            "max_groups_contributed := 2, max_rows_per_group := 2)"
        )
        yield session


def refused(session: dpsql.Session, text: str, given: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return the code of each refusal and the text at its place; check that nothing was charged."""
    before = session.sql("FROM dp_budget()").fetchall()
    with pytest.raises(UnsupportedQueryError) as caught:
        session.sql(text, list(given) or None)
    assert session.sql("FROM dp_budget()").fetchall() == before
    spans = [one.span for one in caught.value.refusals]
    return [
        (one.code, text[span.start : span.end] if span else "")
        for one, span in zip(caught.value.refusals, spans, strict=True)
    ]


@pytest.mark.parametrize(
    ("condition", "literal"),
    [
        ("day > '2025-13-01'", "'2025-13-01'"),
        ("ward = 'cardiology'", "'cardiology'"),
        ("ward IN ('1', 2, 'cardiology')", "'cardiology'"),
        ("CASE WHEN open THEN 'x' ELSE cost END > 1", "'x'"),
        ("small = '300'", "'300'"),
        ("id = 'x'", "'x'"),
        ("day IN (5)", "5"),
        ("day = true", "true"),
        ("open AND 'maybe'", "'maybe'"),
        ("greatest(cost, 'x') > 1", "'x'"),
        ("cost + 'x' > 1", "'x'"),
        ("date_diff('day', day, '2025-13-01') > 1", "'2025-13-01'"),
        ("seen > day + INTERVAL 1 DAY AND day + INTERVAL 1 DAY > 'x'", "'x'"),
        ("seen > TIMESTAMP '2025-01-01 25:00'", "'2025-01-01 25:00'"),
        ("pid IN (SELECT pid FROM visits WHERE cost > 'abc')", "'abc'"),
        ("day + INTERVAL 'two' DAYS > DATE '2025-01-31'", "'two'"),
    ],
)
def test_a_literal_that_cannot_be_cast_is_refused(session: dpsql.Session, condition: str, literal: str) -> None:
    assert refused(session, COUNT + condition) == [("literal", literal)]


@pytest.mark.parametrize("given", ["", ", max_groups_contributed := 2", ", max_rows_per_group := 2"])
def test_a_literal_is_refused_where_bounds_are_left_to_auto(given: str) -> None:
    """Nothing else is wrong with the text, so no bound is asked for; with no level, the level is."""
    with dpsql.connect() as session:
        session.connection.execute("CREATE TABLE t (u INTEGER, shop VARCHAR, cost DOUBLE, hour TIME)")
        session.sql("CALL dp_unit('person', rho_budget := 1, delta_threshold := 1e-3, delta_conversion := 1e-6)")
        session.sql(f"CALL dp_protect('t', unit := 'person', privacy_unit_column := 'u'{given})")
        for text in (
            "SELECT count(*) FROM t WHERE cost > 'abc'",
            "SELECT shop, sum(cost + 'abc') FROM t GROUP BY shop",
            "SELECT shop, count(*) AS n FROM t GROUP BY shop HAVING count(*) > 'abc'",
        ):
            with pytest.raises(UnsupportedQueryError) as caught:
                session.sql(text)
            assert [one.code for one in caught.value.refusals] == ["privacy_level_missing", "literal"], text
            with pytest.raises(UnsupportedQueryError) as caught:
                session.sql(text, rho=0.1)
            assert [one.code for one in caught.value.refusals] == ["literal"], text
        with pytest.raises(UnsupportedQueryError) as caught:
            session.sql("SELECT count(*) FROM t WHERE hour > 'abc' AND cost > 'abc'", rho=0.1)
        assert [one.code for one in caught.value.refusals] == ["row_type", "literal"]
        with pytest.raises(SchemaError, match="No function matches"):
            session.sql("SELECT count(*) FROM t WHERE cost LIKE '1%'", rho=0.1)


@pytest.mark.parametrize("condition", ["day", "(seen)", "coalesce(day, DATE '2025-01-31')"])
def test_what_is_neither_true_nor_false_is_no_condition(session: dpsql.Session, condition: str) -> None:
    expected = [("row_type", condition.strip("()"))]
    assert refused(session, COUNT + condition) == expected
    assert refused(session, f"{COUNT}open OR NOT {condition}") == expected
    of_filter = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.1) count(*), count(*) FILTER (WHERE "
    assert refused(session, f"{of_filter}open AND {condition}) FROM visits") == expected
    session.sql(f"FROM dp_explain($${COUNT}open AND NOT (cost) AND ward AND day IS NOT NULL$$)")


def test_a_parameter_is_refused_at_its_place(session: dpsql.Session) -> None:
    assert refused(session, f"{COUNT}cost > ?", ["abc"]) == [("literal", "?")]


@pytest.mark.parametrize(
    "outside", ["WHERE n > 'abc'", "ORDER BY CASE WHEN n > 5 THEN n ELSE 'abc' END", "HAVING sum(n) > 'abc'"]
)
def test_around_a_private_query(session: dpsql.Session, outside: str) -> None:
    select = "sum(n)" if "HAVING" in outside else "*"
    inner = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.1) open, count(*) AS n FROM visits GROUP BY open"
    assert refused(session, f"SELECT {select} FROM ({inner}) AS t {outside}") == [("literal", "'abc'")]


def test_a_view_does_not_show_its_text(session: dpsql.Session) -> None:
    text = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.1) count(*) FROM dear"
    assert refused(session, text) == [("literal", "dear")]
    with pytest.raises(UnsupportedQueryError) as caught:
        session.sql(text)
    assert "abc" not in str(caught.value)


def test_what_a_refusal_shows_is_accepted(session: dpsql.Session) -> None:
    """The expression after "as in" is what was asked, with a literal that can be cast."""
    for condition in ("day > '2025-13-01'", "ward IN ('x', 1)", "id = 'x'", "seen > 'x'", "open = 'maybe'"):
        with pytest.raises(UnsupportedQueryError) as caught:
            session.sql(COUNT + condition)
        instead = caught.value.refusals[0].hint.partition(" as in ")[2].removesuffix(".")
        session.sql(f"FROM dp_explain($${COUNT}{instead}$$)")


def test_what_can_be_compared_is_answered(session: dpsql.Session) -> None:
    """Beside an ENUM any text is compared as one: its members are not public."""
    session.sql(
        f"{COUNT}kind = 'measles' AND kind IN ('flu', 'measles') AND coalesce(kind, 'measles') > 'x' AND ward = '5' "
        "AND small < 300 AND day > '2025-01-31' AND TRY_CAST('x' AS INTEGER) IS NULL AND cost < 'inf' AND city <> 'x' "
        "AND CASE kind WHEN 'measles' THEN 'a' ELSE city END = 'b' AND open = 'yes' AND seen > day"
    ).fetchall()
