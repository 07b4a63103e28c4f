"""Linked tables: a row belongs to the unit of the parent row whose key it holds, through chains of parents."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import dpsql
from dpsql.errors import PolicyError, SchemaError
from tests.end_to_end.prepared import with_own_rows
from tests.end_to_end.receipts import of_the_text, receipt_of
from tests.noise_sources import seeded_noise, silence

TABLES = """
CREATE TABLE customer (c_custkey INTEGER PRIMARY KEY, c_nation VARCHAR);
CREATE TABLE orders (o_orderkey BIGINT PRIMARY KEY, o_custkey INTEGER, o_status VARCHAR, o_total DOUBLE);
CREATE TABLE lineitem (l_orderkey BIGINT, l_quantity INTEGER, l_flag VARCHAR);
INSERT INTO customer SELECT i, 'nation ' || i % 3 FROM range(300) t(i);
INSERT INTO orders SELECT i, i * 7 % 300, 'status ' || i % 2, i % 50 FROM range(900) t(i);
INSERT INTO lineitem SELECT i * 11 % 900, i % 9, 'flag ' || i % 2 FROM range(3000) t(i);
-- rows that lead nowhere
INSERT INTO orders VALUES (5000, NULL, 'status 0', 9);
INSERT INTO lineitem VALUES (7777, 3, 'flag 0'), (NULL, 3, 'flag 0'), (5000, 3, 'flag 1');
CREATE TABLE region (r_one INTEGER, r_two VARCHAR, owner INTEGER, UNIQUE (r_one, r_two));
CREATE TABLE place (p_one INTEGER, p_two VARCHAR, size INTEGER);
"""
UNIT = "CALL dp_unit('customer', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)"
CUSTOMER = (
    "CALL dp_protect('customer', coverage := FALSE, "
    "unit := 'customer', privacy_unit_column := 'c_custkey', max_groups_contributed := 1)"
)
ORDERS = (
    "CALL dp_link('orders', 'o_custkey', coverage := FALSE, "
    "parent := 'customer.c_custkey', max_groups_contributed := 2, "
    "max_rows_per_group := 9)"
)
LINES = (
    "CALL dp_link('lineitem', 'l_orderkey', coverage := FALSE, "
    "parent := 'orders.o_orderkey', max_groups_contributed := 2, "
    "max_rows_per_group := 40)"
)
COUNT = (
    "SELECT l_flag, count(DISTINCT o_custkey) AS c, count(*) AS n, "
    "sum(l_quantity, contribution_bounds_per_group => (0, 400)) AS q FROM lineitem GROUP BY l_flag"
)
EXACT = """
SELECT l_flag, count(DISTINCT o_custkey), count(*), sum(l_quantity)
FROM lineitem JOIN orders ON l_orderkey = o_orderkey WHERE o_custkey IS NOT NULL GROUP BY l_flag
"""


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute(TABLES)
        for declaration in (UNIT, CUSTOMER, ORDERS, LINES):
            session.sql(declaration)
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_rows(prepared, TABLES) as session:
        session._runner.noise_source = seeded_noise(3)
        yield session


def test_rows_count_for_the_unit_at_the_end_of_the_chain(session: dpsql.Session) -> None:
    silence(session)
    ours = sorted(session.sql(COUNT, rho=5).fetchall())
    assert ours == [(*row[:3], float(row[3])) for row in sorted(session.connection.execute(EXACT).fetchall())]


def test_one_link_needs_no_join(session: dpsql.Session) -> None:
    """The link of orders holds the unit itself; an order whose customer is gone belongs to it all the same."""
    silence(session)
    text = "SELECT o_status, count(DISTINCT o_custkey) AS c FROM orders GROUP BY o_status"
    before = dict(session.sql(text, rho=5).fetchall())
    assert before == dict(session.connection.execute(text).fetchall())
    session.connection.execute("INSERT INTO orders SELECT 9000 + i, 9000 + i, 'status 0', 1 FROM range(5) t(i)")
    assert dict(session.sql(text, rho=5, refresh=True).fetchall())["status 0"] == before["status 0"] + 5


def test_all_tables_share_the_budget_of_the_unit(session: dpsql.Session) -> None:
    for text in (
        COUNT,
        "SELECT o_status, count(*) FROM orders GROUP BY 1",
        "SELECT c_nation, count(DISTINCT c_custkey) FROM customer GROUP BY 1",
    ):
        assert receipt_of(session.sql(text, rho=0.5)).unit == "customer"
    assert session.sql("FROM dp_budget('customer')").df()["rho_spent"][0] == pytest.approx(1.5)


def test_one_customer_moves_no_more_than_is_declared(session: dpsql.Session) -> None:
    """All rows of one customer, in all three tables, are taken away."""
    silence(session)
    whole = {row[0]: row[1:] for row in session.sql(COUNT, rho=5).fetchall()}
    for customer in (0, 7, 42):
        session.connection.execute(
            f"DELETE FROM lineitem WHERE l_orderkey IN (SELECT o_orderkey FROM orders WHERE o_custkey = {customer})"
        )
        session.connection.execute(f"DELETE FROM orders WHERE o_custkey = {customer}")
        session.connection.execute(f"DELETE FROM customer WHERE c_custkey = {customer}")
        less = {row[0]: row[1:] for row in session.sql(COUNT, rho=5, refresh=True).fetchall()}
        moved = np.array([np.subtract(whole[flag], less[flag]) for flag in whole])
        assert (moved >= 0).all()
        assert (moved[:, 0] <= 1).all()
        assert (moved[:, 1] <= 40).all()
        assert (moved[:, 2] <= 400).all()
        whole = less


def test_the_parents_version_is_part_of_the_answer(session: dpsql.Session) -> None:
    first = receipt_of(session.sql(COUNT, rho=0.5))
    assert receipt_of(session.sql(COUNT, rho=0.5)).charged_rho == 0
    session.sql("CALL dp_new_version('orders', version := 'b')")
    second = receipt_of(session.sql(COUNT, rho=0.5))
    assert second.charged_rho == pytest.approx(0.5)
    assert second.query_hash != first.query_hash
    assert session.sql("FROM dp_releases()").df()["versions"].tolist()[-1] == "main.lineitem @ 1, main.orders @ b"
    # orders find their unit by themselves, so a new version of their parent is none of theirs
    orders = "SELECT o_status, count(*) FROM orders GROUP BY o_status"
    session.sql(orders, rho=0.5)
    session.sql("CALL dp_new_version('customer')")
    assert receipt_of(session.sql(orders, rho=0.5)).charged_rho == 0


def test_keys_of_several_columns(session: dpsql.Session) -> None:
    silence(session)
    session.connection.execute("INSERT INTO region SELECT i % 20, 'r' || i // 20, i % 150 FROM range(200) t(i)")
    session.connection.execute("INSERT INTO place SELECT i % 20, 'r' || i % 11, i FROM range(700) t(i)")
    declared = "max_groups_contributed := 2"
    session.sql(
        f"CALL dp_protect('region', coverage := FALSE, unit := 'customer', privacy_unit_column := 'owner', {declared})"
    )
    key = "['region.r_one', 'region.r_two']"
    session.sql(f"CALL dp_link('place', ['p_one', 'p_two'], coverage := FALSE, parent := {key}, {declared})")
    text = "SELECT p_two, count(DISTINCT owner) AS n FROM {} GROUP BY p_two"
    ours = session.sql(text.format("place"), rho=5)
    joined = "place JOIN region ON p_one = r_one AND p_two = r_two"
    exact = session.connection.execute(text.format(joined)).fetchall()
    shown = dict(ours.fetchall())
    assert shown == {key: count for key, count in exact if key in shown}
    assert len(shown) > 5
    rows = [row for row in session.sql("FROM dp_policy()").fetchall() if row[1:3] == ("main.place", "linked_by")]
    assert rows[0][3] == "p_one = main.region.r_one, p_two = main.region.r_two"


def test_the_lent_unit_column_is_there_for_conditions_and_counts(session: dpsql.Session) -> None:
    answer = session.sql("SELECT count(DISTINCT o_custkey) AS n FROM lineitem WHERE o_custkey < 100", rho=5)
    assert answer.fetchall()[0][0] == pytest.approx(100, abs=3)


def test_settings_of_a_link_are_changed_by_the_same_call(session: dpsql.Session) -> None:
    session.sql(ORDERS.replace("max_rows_per_group := 9", "max_rows_per_group := 12"))
    policy = {row[2]: row[3] for row in session.sql("FROM dp_policy()").fetchall() if row[1] == "main.orders"}
    assert (policy["max_rows_per_group"], policy["linked_by"]) == ("12", "o_custkey = main.customer.c_custkey")


REFUSED = {
    "no constraint keeps the key unique": "CALL dp_link('place', 'p_one', coverage := FALSE, "
    "parent := 'orders.o_custkey')",
    "half of a key": "CALL dp_link('place', 'p_one', coverage := FALSE, parent := 'region.r_one')",
    "types differ": "CALL dp_link('place', 'p_two', coverage := FALSE, parent := 'orders.o_orderkey')",
    "an unprotected parent": "CALL dp_link('place', ['p_one', 'p_two'], coverage := FALSE, "
    "parent := ['region.r_one', 'region.r_two'])",
    "another way to the unit": "CALL dp_link('lineitem', 'l_quantity', coverage := FALSE, "
    "parent := 'customer.c_custkey')",
    "protected by itself": "CALL dp_link('customer', 'c_custkey', coverage := FALSE, parent := 'orders.o_orderkey')",
    "itself": "CALL dp_link('orders', 'o_orderkey', coverage := FALSE, parent := 'orders.o_orderkey')",
    "no parent": "CALL dp_link('place', 'p_one')",
    "two parents": "CALL dp_link('place', ['p_one', 'p_two'], coverage := FALSE, "
    "parent := ['customer.c_custkey', 'orders.o_orderkey'])",
    "too few columns": "CALL dp_link('place', ['p_one', 'size'], coverage := FALSE, parent := 'customer.c_custkey')",
    "no such column": "CALL dp_link('place', 'nothing', coverage := FALSE, parent := 'customer.c_custkey')",
    "no such table": "CALL dp_link('nothing', 'p_one', coverage := FALSE, parent := 'customer.c_custkey')",
    "no list": "CALL dp_link('place', 3, coverage := FALSE, parent := 'customer.c_custkey')",
    "a unit of its own": "CALL dp_link('place', 'p_one', coverage := FALSE, "
    "parent := 'customer.c_custkey', unit := 'other')",
    "protecting what is linked": "CALL dp_protect('orders', coverage := FALSE, "
    "unit := 'customer', privacy_unit_column := 'o_orderkey')",
    "public": "CALL dp_public('orders')",
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_leads_to_no_unit_is_refused(prepared: dpsql.Session, call: str) -> None:
    before = prepared.sql("FROM dp_policy()").fetchall()
    with pytest.raises(PolicyError):
        prepared.sql(call)
    assert prepared.sql("FROM dp_policy()").fetchall() == before


def test_keys_of_whole_numbers_link_whatever_their_widths(session: dpsql.Session) -> None:
    session.connection.execute("CREATE TABLE bill AS SELECT i::UTINYINT AS order_number FROM range(200) t(i)")
    session.sql("CALL dp_link('bill', 'order_number', coverage := FALSE, parent := 'orders.o_orderkey')")
    silence(session)
    text = "SELECT count(*) FROM bill JOIN orders ON order_number = o_orderkey"
    assert session.sql(text, rho=1).fetchall() == session.sql("SELECT count(*) FROM bill", rho=1).fetchall() == [(200,)]


def test_a_column_of_the_same_name_as_the_unit_is_refused(session: dpsql.Session) -> None:
    session.connection.execute("CREATE TABLE part (key BIGINT, o_custkey INTEGER)")
    with pytest.raises(PolicyError, match="of its own"):
        session.sql("CALL dp_link('part', 'key', coverage := FALSE, parent := 'orders.o_orderkey')")
    session.connection.execute("ALTER TABLE lineitem ADD COLUMN o_custkey INTEGER")
    with pytest.raises(SchemaError, match="lends"):
        session.sql(COUNT, rho=1)


def test_a_collation_that_holds_two_keys_equal_is_refused(session: dpsql.Session) -> None:
    session.connection.execute("CREATE TABLE shop (name VARCHAR PRIMARY KEY)")
    session.connection.execute("CREATE TABLE sale (shop VARCHAR COLLATE NOCASE)")
    session.sql("CALL dp_protect('shop', coverage := FALSE, unit := 'customer', privacy_unit_column := 'name')")
    with pytest.raises(PolicyError, match="collation"):
        session.sql("CALL dp_link('sale', 'shop', coverage := FALSE, parent := 'shop.name')")


def test_a_parent_that_is_gone_is_named_and_nothing_is_charged(session: dpsql.Session) -> None:
    session.sql("SELECT o_status, count(*) FROM orders GROUP BY 1", rho=0.1)
    before = session.sql("FROM dp_budget()").fetchall()
    session.connection.execute("DROP TABLE orders")
    with pytest.raises(SchemaError, match=r"main\.orders"):
        session.sql(COUNT, rho=1)
    assert session.sql("FROM dp_budget()").fetchall() == before


def test_stored_answers_outlive_all_tables_of_the_chain(session: dpsql.Session) -> None:
    first = session.sql(COUNT, rho=1)
    session.connection.execute("DROP TABLE lineitem")
    session.connection.execute("DROP TABLE orders")
    assert session.sql(COUNT, rho=1).fetchall() == first.fetchall()
    assert receipt_of(session.sql(COUNT, rho=0.3)).charged_rho == 0


def test_receipts_and_prices_do_not_depend_on_the_parents_rows(prepared: dpsql.Session, session: dpsql.Session) -> None:
    full = (
        of_the_text(session.sql(COUNT, rho=0.5)),
        session.sql(f"FROM dp_explain($$ {COUNT} $$, rho := 1)").fetchall(),
    )
    without_rows = ";".join(statement for statement in TABLES.split(";") if "INSERT" not in statement)
    with with_own_rows(prepared, without_rows) as empty:
        assert (
            of_the_text(empty.sql(COUNT, rho=0.5)),
            empty.sql(f"FROM dp_explain($$ {COUNT} $$, rho := 1)").fetchall(),
        ) == full


def test_a_parent_key_with_a_collation_is_refused(session: dpsql.Session) -> None:
    """UNIQUE keeps bytes apart, and = under a collation does not: one row would meet several parents."""
    session.connection.execute("CREATE TABLE p (k VARCHAR COLLATE NOCASE PRIMARY KEY, pid INTEGER)")
    session.connection.execute("CREATE TABLE ch (k VARCHAR)")
    session.sql("CALL dp_protect('p', coverage := FALSE, unit := 'customer', privacy_unit_column := 'pid')")
    with pytest.raises(PolicyError, match="collation"):
        session.sql("CALL dp_link('ch', 'k', coverage := FALSE, parent := 'p.k')")


def test_keys_are_compared_by_their_bytes_whatever_the_columns_become(session: dpsql.Session) -> None:
    silence(session)
    session.connection.execute("CREATE TABLE p (k VARCHAR PRIMARY KEY, pid INTEGER)")
    session.connection.execute("INSERT INTO p VALUES ('ab', 1), ('aB', 2), ('Ab', 3)")
    session.connection.execute("CREATE TABLE ch AS SELECT 'ab' AS k")
    session.sql("CALL dp_protect('p', coverage := FALSE, unit := 'customer', privacy_unit_column := 'pid')")
    session.sql("CALL dp_link('ch', 'k', coverage := FALSE, parent := 'p.k', max_rows_per_group := 5)")
    session.connection.execute("CREATE OR REPLACE TABLE ch (k VARCHAR COLLATE NOCASE)")
    session.connection.execute("INSERT INTO ch VALUES ('ab')")
    assert session.sql("SELECT count(DISTINCT pid) AS u, count(*) AS n FROM ch", rho=5).fetchall() == [(1, 1)]


def test_a_parent_that_lost_its_constraint_leads_nowhere(session: dpsql.Session) -> None:
    session.connection.execute("CREATE OR REPLACE TABLE orders AS FROM orders")
    before = session.sql("FROM dp_budget()").fetchall()
    with pytest.raises(SchemaError, match="lost the constraint"):
        session.sql(COUNT, rho=1)
    with pytest.raises(SchemaError, match="lost the constraint"):
        session.sql("CALL dp_new_version('lineitem')")
    assert session.sql("FROM dp_budget()").fetchall() == before
