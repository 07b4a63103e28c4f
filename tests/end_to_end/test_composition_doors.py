"""Texts of several private parts and of public tables alone, by each door of one process; limits of what is free."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import dpsql
from dpsql.engine import limits
from dpsql.errors import ReleaseError, UnsupportedQueryError
from tests.end_to_end.prepared import with_own_state
from tests.noise_sources import silence

BOTH = "SELECT 'one' AS c, count(*) AS n FROM visits WHERE k < 5 UNION ALL SELECT 'two', count(*) FROM stays"
JOINED = (
    "-- each name\nSELECT name, n -- of visits\nFROM names\nLEFT JOIN (SELECT k, count(*) AS n FROM visits /* all */ "
    "GROUP BY k) v ON v.k = names.k\nWHERE names.k < 2 ORDER BY name;"
)
PUBLIC = "/* public\n*/ SELECT count(*) AS n FROM names WHERE k > 7"
CONSTANTS = "SELECT 1 AS x UNION ALL SELECT 2"
PAID = ((BOTH, [("one", 1500), ("two", 2000)]), (JOINED, [("n0", 300), ("n1", 300)]))
FREE = ((PUBLIC, [(4,)]), (CONSTANTS, [(1,), (2,)]))
Reader = dpsql.Session | dpsql.Analyst


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        for table, rows in (("visits", 3000), ("stays", 2000)):
            session.connection.execute(
                f"CREATE TABLE {table} AS SELECT i AS person, i % 10 AS k FROM range({rows}) r(i)"
            )
        session.connection.execute("CREATE TABLE names AS SELECT i AS k, 'n' || i AS name FROM range(12) r(i)")
        session.sql("CALL dp_unit('person', rho_budget := 100, delta_threshold := 1e-3, delta_conversion := 1e-6)")
        for table in ("visits", "stays"):
            session.sql(
                f"CALL dp_protect('{table}', coverage := FALSE, unit := 'person', privacy_unit_column := 'person', "
                "max_groups_contributed := 1, max_rows_per_group := 1, default_rho := 1)"
            )
        session.sql("CALL dp_public('names', readable := true)")
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        silence(session)
        yield session


def spent(session: dpsql.Session) -> float:
    return float(session.sql("FROM dp_budget()").df()["rho_spent"][0])


@pytest.mark.parametrize("reader", [lambda session: session, lambda session: session.as_analyst("ana")])
def test_every_door_of_a_session_answers(session: dpsql.Session, reader: Callable[[dpsql.Session], Reader]) -> None:
    asks = reader(session)
    for text, rows in (*PAID, *FREE):
        for statement in (text, f"FROM dp_query($$ {text} $$)"):
            answer = asks.sql(statement)
            assert answer.fetchall() == rows
            assert (answer.receipt is None) == ((text, rows) in FREE)
        described = asks.sql(f"FROM dp_describe($$ {text} $$)").fetchall()
        assert [name for name, _ in described] == answer.columns
        assert ("is free" in str(asks.sql(f"FROM dp_explain($$ {text} $$)").fetchall())) == ((text, rows) in FREE)
    assert spent(session) == pytest.approx(2.0)


def test_texts_of_parts_are_rehearsed(session: dpsql.Session) -> None:
    for text, _ in PAID:
        declared = "CALL dp_protect('visits', default_rho := 0.5)"
        plan = session.rehearse([declared], text).plan.fetchall()
        assert [value for section, name, value in plan if (section, name) == ("all parts of unit person", "rho")]
    for text, _ in FREE:
        assert session.rehearse([], text).plan.fetchall()[0] == ("price", "rho", "0")
    assert spent(session) == 0.0


@pytest.mark.parametrize(
    ("text", "params", "rows"),
    [
        ("SELECT ? AS c, count(*) AS n FROM visits WHERE k < ? UNION ALL SELECT ?, count(*) FROM stays WHERE k < ?",
         ["a", 2, "b", 3], [("a", 600), ("b", 600)]),
        ("SELECT name, n * $f AS m FROM names JOIN (SELECT k, count(*) AS n FROM visits WHERE k < $k GROUP BY k) v "
         "ON v.k = names.k WHERE names.k >= $k - 1", {"f": 2, "k": 4}, [("n3", 600)]),
        ("SELECT name, n FROM names JOIN (SELECT k, count(*) AS n FROM visits WHERE k < ? GROUP BY k) v "
         "ON v.k = names.k ORDER BY name DESC LIMIT ?", [4, 1], [("n3", 300)]),
        ("SELECT name FROM names WHERE k = ?", [11], [("n11",)]),
        ("SELECT name FROM names WHERE k = $k AND name <> '' AND name <> 'it''s'", {"k": 11}, [("n11",)]),
        ("SELECT ? AS x UNION ALL SELECT ?", [1, 2], [(1,), (2,)]),
    ],
)  # fmt: skip
def test_parameters_stand_in_parts_and_around_them(
    session: dpsql.Session, text: str, params: list[int] | dict[str, int], rows: list[tuple[object, ...]]
) -> None:
    assert session.sql(text, params).fetchall() == rows


def test_what_is_free_has_limits_and_costs_nothing(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    series = ", ".join(f"generate_series(1, 10000) s{i}(s{i})" for i in range(3))
    ana = session.as_analyst("ana")
    with pytest.raises(ReleaseError, match=r"has more than 1,000,000 rows; it cost nothing\. Group them, or add LIMIT"):
        ana.sql(f"SELECT name FROM names, {series}")
    monkeypatch.setattr(limits, "MOST_SECONDS", 0.3)
    with pytest.raises(ReleaseError, match="takes more than 20 s; it cost nothing"):
        ana.sql(f"SELECT count(*) AS n FROM names, {series} WHERE k + length(name) = s0 + s1 + s2")
    monkeypatch.undo()
    monkeypatch.setattr(limits, "MOST_MEMORY", 10**8)
    with pytest.raises(ReleaseError, match="needs more than 1 GB of memory; it cost nothing"):
        ana.sql(f"SELECT name FROM names, {series} ORDER BY name || k")
    assert ana.sql(PUBLIC).fetchall() == [(4,)]
    assert spent(session) == 0.0


ANSWER = "(SELECT k, count(*) AS n FROM visits GROUP BY k)"


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        (f"SELECT v.n / 'abc' AS x FROM {ANSWER} v JOIN names ON names.k = v.k", "'abc'"),
        (f"SELECT name FROM names JOIN {ANSWER} v ON v.k = names.k AND n > 'few'", "'few'"),
        (f"SELECT name, n FROM names LEFT JOIN {ANSWER} v ON v.k = names.k ORDER BY coalesce(n, '')", "''"),
        ("SELECT (SELECT count(*) FROM visits) / 'abc' AS x, (SELECT count(*) FROM stays) AS y", "'abc'"),
        (f"WITH a AS (SELECT n FROM {ANSWER} JOIN names USING (k)) SELECT max(n - 'z') AS m FROM a", "'z'"),
        (f"SELECT n FROM {ANSWER} UNION ALL SELECT count(*) + 'q' FROM stays", "'q'"),
    ],
)
def test_a_literal_around_answers_is_refused_before_the_charge(session: dpsql.Session, text: str, literal: str) -> None:
    with pytest.raises(UnsupportedQueryError) as caught:
        session.sql(text)
    (refusal,) = caught.value.refusals
    assert refusal.code == "literal"
    assert refusal.span is not None
    assert text[refusal.span.start : refusal.span.end] == literal
    assert spent(session) == 0.0


def test_literals_around_answers_that_can_be_cast_are_answered(session: dpsql.Session) -> None:
    text = (
        f"SELECT 'a', n / '2' AS x, coalesce(name, 'none') AS y FROM {ANSWER} v LEFT JOIN names ON names.k = v.k AND "
        f"name <> 'n3' WHERE v.k < '2' UNION ALL SELECT 'b', TRY_CAST('abc' AS INTEGER), 'c' FROM {ANSWER} WHERE k = 1"
    )
    assert sorted(session.sql(text).fetchall(), key=str) == [
        ("a", 150.0, "n0"),
        ("a", 150.0, "n1"),
        ("b", None, "c"),
    ]


def test_what_stands_around_answers_has_the_limits_and_the_answers_stay(session: dpsql.Session) -> None:
    around = f"SELECT v.k FROM {ANSWER} v, generate_series(1, 10000) s, names, names m"
    with pytest.raises(ReleaseError, match="the answer is paid for and stored, and costs nothing asked for alone"):
        session.sql(around)
    assert spent(session) == pytest.approx(1.0)
    again = session.sql("SELECT k, count(*) AS n FROM visits GROUP BY k")
    assert again.receipt is not None
    assert again.receipt.charged_rho == 0.0
