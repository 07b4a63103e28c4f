"""Keys of a public list that a join keeps: all of them are shown, without a threshold, whoever has rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from dpsql.errors import ReleaseError, SchemaError, UnsupportedQueryError
from dpsql.release import exact
from dpsql.release.public_lists import PublicLists
from tests.noise_sources import silence

TABLES = """
CREATE TABLE stores (id INTEGER PRIMARY KEY, name VARCHAR, state VARCHAR, space INTEGER);
INSERT INTO stores VALUES (1, 'a', 'TX', 100), (2, 'b', 'TX', 400), (3, 'c', NULL, 500), (4, 'd', 'OH', 600);
CREATE TABLE sales AS SELECT i AS person, 1 + i % 3 AS store, i % 10 AS amount FROM range(90) t(i);
INSERT INTO sales SELECT i, 1 + i % 3, 5 FROM range(5) t(i);
"""
DECLARATIONS = (
    "CALL dp_unit('person', rho_budget := 1e6, delta_threshold := 0.1, delta_conversion := 1e-6)",
    "CALL dp_protect('sales', unit := 'person', privacy_unit_column := 'person', coverage := false, "
    "max_groups_contributed := 2, max_rows_per_group := 2, default_delta := 1e-6)",
    "CALL dp_domain('sales', 'amount', bounds := [0, 10])",
    "CALL dp_public('stores')",
    "CALL dp_analyst('bob')",
)
RIGHT = (
    "SELECT store, count(person) AS n FROM sales "
    "RIGHT JOIN (SELECT DISTINCT id AS store FROM stores WHERE space > 300) AS large USING (store) GROUP BY store"
)
LEFT = (
    "SELECT s.id, s.name, count(x.person) AS n FROM stores s LEFT JOIN sales x ON x.store = s.id GROUP BY s.id, s.name"
)
BY_LIST = (
    RIGHT,
    LEFT,
    # a condition about the list, and one that decides which rows meet it
    "SELECT s.id, count(x.person) AS n FROM stores s LEFT JOIN sales x ON x.store = s.id AND x.amount > 100 "
    "WHERE s.space < 500 GROUP BY s.id",
    # NULL is a key of the list
    "SELECT s.state, count(x.person) AS n FROM stores s LEFT JOIN sales x ON x.store = s.id GROUP BY s.state",
    "SELECT upper(s.name) AS u, count(x.amount) AS n FROM sales x RIGHT JOIN stores s ON x.store = s.id GROUP BY u",
    "SELECT k, count(person) AS n FROM (VALUES (1), (7), (NULL)) AS t(k) LEFT JOIN sales ON store = k GROUP BY k",
    # public tables before the rows are one list
    "SELECT s.id, t.name, count(x.person) AS n FROM stores s JOIN stores t ON t.id = s.id "
    "LEFT JOIN sales x ON x.store = s.id GROUP BY ALL",
    "WITH large AS (SELECT id FROM stores WHERE space > 300) "
    "SELECT id, count(person) AS n FROM large LEFT JOIN sales ON store = id GROUP BY id",
    "SELECT s.state, s.id, count(x.person) AS n FROM stores s LEFT JOIN sales x ON x.store = s.id "
    "GROUP BY ROLLUP (s.state, s.id)",
    "SELECT s.id, count(x.person) AS n FROM stores s LEFT JOIN sales x ON x.store = s.id WHERE s.space > 900 "
    "GROUP BY s.id",
)
PRIVATE = (
    # a condition about rows drops keys without a row
    "SELECT s.id, count(*) FROM stores s LEFT JOIN sales x ON x.store = s.id WHERE x.amount >= 0 GROUP BY s.id",
    "SELECT x.store, count(*) FROM stores s LEFT JOIN sales x ON x.store = s.id GROUP BY x.store",
    "SELECT s.id, count(*) FROM sales x JOIN stores s ON x.store = s.id GROUP BY s.id",
    "SELECT s.id, count(*) FROM sales x LEFT JOIN stores s ON x.store = s.id GROUP BY s.id",
    "SELECT s.id, count(*) FROM sales x FULL JOIN stores s ON x.store = s.id GROUP BY s.id",
    "SELECT s.id, x.amount, count(*) FROM sales x RIGHT JOIN stores s ON x.store = s.id GROUP BY ALL",
    "SELECT k, count(*) FROM (SELECT s.id AS k FROM sales x RIGHT JOIN stores s ON x.store = s.id) GROUP BY k",
    "SELECT s.id, count(*) FROM stores s LEFT JOIN sales x ON x.store = s.id WHERE s.id IN (SELECT id FROM stores) "
    "GROUP BY s.id",
)
PRIVATE_BY_OPTION = (
    "group_selection_strategy = GAUSSIAN_THRESHOLD", "mechanism = GSHM", "top_k = 3", "own_threshold = true"
)  # fmt: skip


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute(TABLES)
        for declaration in DECLARATIONS:
            session.sql(declaration)
        silence(session)
        yield session


def rows(session: dpsql.Session, text: str, **given: Any) -> list[tuple[Any, ...]]:
    """Return the rows of an answer, in an order of their own."""
    return sorted(session.sql(text, **({"rho": 10.0} | given)).fetchall(), key=repr)


@pytest.mark.parametrize("text", BY_LIST)
def test_each_key_of_the_list_is_shown_as_duckdb_shows_it(session: dpsql.Session, text: str) -> None:
    answer = session.sql(text, rho=10.0)
    right = session.connection.execute(text).fetchall()
    assert sorted(answer.fetchall(), key=repr) == sorted(right, key=repr)
    assert answer.receipt
    assert answer.receipt.threshold is None


def test_no_delta_is_charged_for_a_threshold(session: dpsql.Session) -> None:
    by_list, private = (session.sql(text, rho=10.0).receipt for text in (RIGHT, PRIVATE[0]))
    assert by_list
    assert private
    assert by_list.charged_delta < 1e-12
    assert private.charged_delta == pytest.approx(1e-6)


@pytest.mark.parametrize("text", PRIVATE)
def test_other_keys_and_conditions_have_a_threshold(session: dpsql.Session, text: str) -> None:
    receipt = session.sql(text, rho=10.0).receipt
    assert receipt
    assert receipt.threshold is not None


@pytest.mark.parametrize("option", PRIVATE_BY_OPTION)
def test_an_option_asks_for_private_keys(session: dpsql.Session, option: str) -> None:
    text = RIGHT.replace("SELECT", f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({option})", 1)
    assert [key for key, _ in rows(session, text)] == [2, 3]


def test_a_key_without_a_person_has_no_rows_and_sum_zero(session: dpsql.Session) -> None:
    text = "SELECT id, count(*) AS n, sum(amount) AS total FROM sales RIGHT JOIN stores ON store = id GROUP BY id"
    assert rows(session, text)[-1] == (4, 0, 0)


def test_an_analyst_sees_the_keys_of_a_table_that_is_readable(session: dpsql.Session) -> None:
    bob = session.as_analyst("bob")
    assert {key for key, _ in bob.sql(RIGHT, rho=1.0).fetchall()} == {2, 3}
    values = "SELECT k, count(*) FROM (VALUES (1), (9)) AS t(k) LEFT JOIN sales ON store = k GROUP BY k"
    assert {key for key, _ in bob.sql(values, rho=1.0).fetchall()} == {1, 9}
    session.sql("CALL dp_public('stores', readable := true)")
    assert {key for key, _ in bob.sql(RIGHT, rho=1.0).fetchall()} == {2, 3, 4}


def test_one_more_person_changes_no_key(session: dpsql.Session) -> None:
    before = [key for key, _ in rows(session, RIGHT)]
    session.connection.execute("INSERT INTO sales VALUES (500, 77, 1), (500, 4, 1), (501, NULL, 1)")
    session.sql("CALL dp_new_version('sales', version := '2')")
    after = rows(session, RIGHT)
    assert [key for key, _ in after] == before == [2, 3, 4]
    assert after[-1] == (4, 1)


def test_a_declared_list_stays_the_list_of_its_column(session: dpsql.Session) -> None:
    session.sql("CALL dp_domain('stores', 'id', keys := [1, 2, 9])")
    assert [key for key, _ in rows(session, RIGHT)] == [1, 2, 9]


def test_another_list_is_another_answer_and_the_same_list_is_free(session: dpsql.Session) -> None:
    first = session.sql(RIGHT, rho=10.0)
    again = session.sql(RIGHT, rho=10.0)
    session.connection.execute("INSERT INTO stores VALUES (5, 'e', 'OH', 700)")
    other = session.sql(RIGHT, rho=10.0)
    assert first.receipt
    assert again.receipt
    assert other.receipt
    assert again.receipt.charged_rho == 0.0 < other.receipt.charged_rho
    assert first.receipt.query_hash == again.receipt.query_hash != other.receipt.query_hash
    assert [key for key, _ in sorted(other.fetchall())] == [2, 3, 4, 5]


def test_a_list_that_changes_after_the_plan_is_refused(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    class Changed(PublicLists):
        def public_key_table(self, *given: Any) -> Any:
            session.connection.execute("DELETE FROM stores WHERE id = 4")
            return super().public_key_table(*given)

    before = session.sql("FROM dp_budget()").fetchall()
    monkeypatch.setattr(exact, "PublicLists", Changed)
    with pytest.raises(ReleaseError, match="public keys changed"):
        session.sql(RIGHT, rho=10.0)
    assert session.sql("FROM dp_budget()").fetchall() == before


def test_as_of_leads_to_the_list_of_then(session: dpsql.Session) -> None:
    first = rows(session, LEFT)
    session.connection.execute("INSERT INTO stores VALUES (5, 'e', 'OH', 700)")
    session.sql("CALL dp_new_version('sales', version := '2')")
    session.sql("CALL dp_new_version('stores', version := '2')")
    assert [key for key, *_ in rows(session, LEFT)] == [1, 2, 3, 4, 5]
    assert rows(session, LEFT, as_of="1") == first
    with pytest.raises((UnsupportedQueryError, ReleaseError, SchemaError)):
        rows(session, RIGHT, as_of="1")


def test_running_totals_go_along_one_key_of_a_list(session: dpsql.Session) -> None:
    text = LEFT.replace(", s.name", "").replace("AS n", "AS n, sum(count(x.person)) OVER (ORDER BY s.id) AS total")
    assert [total for *_, total in rows(session, text)] == [32, 64, 95, 95]
    with pytest.raises(UnsupportedQueryError, match="combinations"):
        rows(
            session,
            text.replace("GROUP BY s.id", "GROUP BY s.id, s.name").replace(
                "ORDER BY s.id", "PARTITION BY s.name ORDER BY s.id"
            ),
        )


def test_bounds_that_nobody_names_are_left_to_auto(session: dpsql.Session) -> None:
    session.connection.execute("CREATE TABLE trips AS SELECT * FROM sales")
    session.sql("CALL dp_protect('trips', unit := 'person', privacy_unit_column := 'person', default_delta := 1e-6)")
    text = RIGHT.replace("FROM sales", "FROM trips")
    assert [key for key, _ in rows(session, text, rho=1.0)] == [2, 3, 4]


def test_a_unit_without_thresholds_has_keys_of_a_list(session: dpsql.Session) -> None:
    session.connection.execute("CREATE TABLE votes AS SELECT person AS voter, store FROM sales")
    session.sql("CALL dp_unit('voter', epsilon_budget := 3, delta_budget := 1e-6, thresholds := false)")
    session.sql(
        "CALL dp_protect('votes', unit := 'voter', privacy_unit_column := 'voter', max_groups_contributed := 1, "
        "max_rows_per_group := 2)"
    )
    text = RIGHT.replace("FROM sales", "FROM votes").replace("count(person)", "count(voter)")
    assert [key for key, _ in rows(session, text, rho=0.1)] == [2, 3, 4]
