"""``as_of`` leads to every combination of versions that was ever released: of tables, parents and public tables."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import dpsql
from dpsql.errors import ReleaseError, SchemaError, UnsupportedQueryError
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

TABLES = """
CREATE TABLE customer (c_id INTEGER PRIMARY KEY, c_nation VARCHAR);
CREATE TABLE orders (o_id BIGINT PRIMARY KEY, o_customer INTEGER, o_status VARCHAR, o_day INTEGER);
CREATE TABLE line (l_order BIGINT, l_flag VARCHAR, l_many INTEGER);
CREATE TABLE status (s_name VARCHAR PRIMARY KEY, s_class VARCHAR);
INSERT INTO customer SELECT i, 'nation ' || i % 3 FROM range(300) t(i);
INSERT INTO orders SELECT i, i % 300, 'status ' || i % 4, i % 5 FROM range(600) t(i);
INSERT INTO line SELECT i % 600, 'flag ' || i % 3, i % 7 FROM range(1200) t(i);
INSERT INTO status SELECT 'status ' || i, 'class ' || i % 2 FROM range(4) t(i);
CREATE VIEW flagged AS SELECT l_flag, l_order FROM line WHERE l_many > 1;
"""
RULES = "max_groups_contributed := 2, max_rows_per_group := 3, default_delta := 1e-6"
DECLARATIONS = (
    "CALL dp_unit('customer', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)",
    f"CALL dp_protect('customer', coverage := FALSE, unit := 'customer', privacy_unit_column := 'c_id', {RULES})",
    f"CALL dp_link('orders', 'o_customer', coverage := FALSE, parent := 'customer.c_id', {RULES})",
    f"CALL dp_link('line', 'l_order', coverage := FALSE, parent := 'orders.o_id', {RULES})",
    "CALL dp_public('status')",
    "CALL dp_domain('orders', 'o_day', keys := [0, 1, 2, 3, 4])",
)
COUNT = "SELECT l_flag, count(*) AS n FROM line GROUP BY l_flag"
BOUNDS = "contribution_bounds_per_group => (0, 20)"
QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "linked": (COUNT, {}),
    "sum": (f"SELECT l_flag, sum(l_many, {BOUNDS}) AS q FROM line WHERE o_customer > 5 GROUP BY l_flag", {}),
    "parent": ("SELECT o_status, count(DISTINCT o_customer) AS n FROM orders GROUP BY o_status", {}),
    "public keys": ("SELECT o_day, count(*) AS n FROM orders GROUP BY o_day ORDER BY o_day", {}),
    "public table": (
        "SELECT s_class, count(*) AS n FROM orders JOIN status ON o_status = s_name GROUP BY s_class", {},
    ),
    "three tables": (
        "SELECT s_class, l_flag, count(*) AS n FROM line JOIN orders ON l_order = o_id "
        "JOIN status ON o_status = s_name GROUP BY ALL", {},
    ),
    "view": (
        "SELECT l_flag, o_status, count(*) AS n FROM flagged JOIN orders ON l_order = o_id GROUP BY ALL", {},
    ),
    "subquery": (
        "WITH line AS (SELECT l_flag, o_customer FROM line WHERE l_many > 1) "
        "SELECT l_flag, count(*) AS n FROM (SELECT * FROM line) GROUP BY l_flag", {},
    ),
    "in": (
        "SELECT o_day, count(*) AS n FROM orders WHERE o_status IN (SELECT s_name FROM status) GROUP BY o_day", {},
    ),
    "grouping sets": ("SELECT l_flag, count(*) AS n FROM line GROUP BY ROLLUP (l_flag)", {}),
    "top k": ("SELECT l_flag, count(*) AS n FROM line GROUP BY l_flag", {"mechanism": "CSH", "top_k": 2}),
    "window": (COUNT, {"rho_window": (0.1, 4.0)}),
    "ceiling": (COUNT, {"rho_ceiling": 4.0}),
    "auto": (COUNT, {"max_groups_contributed": "AUTO"}),
    "other group": ("SELECT o_status, count(*) AS n FROM orders GROUP BY o_status", {"other_group": "other"}),
    "around": ("SELECT max(n) FROM (SELECT l_flag, count(*) AS n FROM line GROUP BY l_flag)", {}),
}  # fmt: skip
CHANGES = {
    "customer": "UPDATE customer SET c_nation = c_nation || '!'",
    "orders": "DELETE FROM orders WHERE o_id % 10 = {}",
    "line": "UPDATE line SET l_flag = 'flag ' || (l_order + {}) % 4",
    "status": "UPDATE status SET s_class = 'class ' || {}",
}


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with opened() as session:
        yield session


@pytest.fixture(scope="module")
def unasked() -> Iterator[dpsql.Session]:
    """For what is refused."""
    with opened() as session:
        yield session


@contextlib.contextmanager
def opened() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute(TABLES)
        for declaration in DECLARATIONS:
            session.sql(declaration)
        session._runner.noise_source = seeded_noise(13)
        yield session


def now() -> str:
    return dt.datetime.now(dt.UTC).isoformat()


def versions_of_last(session: dpsql.Session) -> str:
    """What the books show under ``versions`` of the last release."""
    return str(session.sql("FROM dp_releases()").df()["versions"].iloc[-1])


def spent(session: dpsql.Session) -> object:
    return session._access.read().ledger.spent("customer")


@dataclass(frozen=True)
class Asked:
    """A question that was answered, and what leads back to the answer."""

    name: str
    answer: list[tuple[object, ...]]
    query_hash: str
    moment: str
    versions: str

    def require_again(self, session: dpsql.Session, as_of: str) -> None:
        text, options = QUESTIONS[self.name]
        again = session.sql(text, rho=1.0, as_of=as_of, **options)
        assert again.fetchall() == self.answer, (self.name, as_of)
        receipt = receipt_of(again)
        assert (receipt.charged_rho, receipt.charged_delta) == (0, 0)
        assert (receipt.query_hash, receipt.reused) == (self.query_hash, True)


def ask(session: dpsql.Session, name: str) -> Asked:
    text, options = QUESTIONS[name]
    answer = session.sql(text, rho=1.0, **options)
    return Asked(name, answer.fetchall(), receipt_of(answer).query_hash, now(), versions_of_last(session))


def change(session: dpsql.Session, table: str, number: int) -> None:
    session.connection.execute(CHANGES[table].format(number))
    session.sql(f"CALL dp_new_version('{table}')")


def require_all_again(session: dpsql.Session, asked: list[Asked]) -> None:
    before = spent(session)
    for place, one in enumerate(asked):
        # both ways lead there; each answer takes one of them, and random histories each in turn
        one.require_again(session, one.versions if place % 2 else one.moment)
    assert spent(session) == before


@pytest.mark.parametrize(
    "table", ["orders", *(pytest.param(table, marks=pytest.mark.long) for table in ("customer", "line", "status"))]
)
def test_every_kind_of_answer_outlives_a_new_version_of_any_table(session: dpsql.Session, table: str) -> None:
    asked = [ask(session, name) for name in QUESTIONS]
    change(session, table, 1)
    asked += [ask(session, name) for name in ("linked", "view", "public table")]
    change(session, "line", 2)
    change(session, "status", 3)
    require_all_again(session, asked)


def test_a_linked_table_finds_the_parents_of_that_time(session: dpsql.Session) -> None:
    first = ask(session, "linked")
    assert first.versions == "main.line @ 1, main.orders @ 1"
    change(session, "orders", 1)
    second = ask(session, "linked")
    assert second.versions == "main.line @ 1, main.orders @ 2"
    change(session, "line", 1)
    third = ask(session, "linked")
    assert len({one.query_hash for one in (first, second, third)}) == 3
    require_all_again(session, [first, second, third])
    # a name means the last moment of that version
    second.require_again(session, "1")
    third.require_again(session, "2")


def histories(count: int) -> list[object]:
    return [pytest.param(seed, marks=pytest.mark.long if seed else ()) for seed in range(count)]


@pytest.mark.parametrize("seed", histories(40))
def test_every_answer_of_a_random_history_can_be_had_again(session: dpsql.Session, seed: int) -> None:
    chance = random.Random(seed)
    asked: list[Asked] = []
    for number in range(8):
        if chance.random() < 0.5:
            change(session, chance.choice(list(CHANGES)), number)
        asked.append(ask(session, chance.choice(list(QUESTIONS))))
    require_all_again(session, asked)


def test_a_combination_that_was_never_released_is_refused_and_costs_nothing(session: dpsql.Session) -> None:
    ask(session, "linked")
    change(session, "orders", 1)
    change(session, "line", 1)
    before = spent(session)
    with pytest.raises(ReleaseError, match="gone"):
        # line was at 1 and orders at 2 for a while, and nobody asked
        session.sql(COUNT, rho=1.0, as_of="1")
    with pytest.raises(ReleaseError, match="gone"):
        session.sql(COUNT, rho=1.0, as_of="main.line @ 2, main.orders @ 1")
    assert spent(session) == before


def test_a_sum_of_earlier_parents_does_not_rise(session: dpsql.Session) -> None:
    """The table itself is as it was; the rows that lead to its units are not."""
    asked = ask(session, "sum")
    change(session, "orders", 1)
    before = spent(session)
    text, _ = QUESTIONS["sum"]
    with pytest.raises(ReleaseError, match=r"main\.orders @ 1"):
        session.sql(text, rho=2.0, as_of=asked.versions)
    assert spent(session) == before
    # at a lower level it costs nothing
    assert receipt_of(session.sql(text, rho=0.4, as_of=asked.versions)).charged_rho == 0


@pytest.mark.parametrize("as_of", ["main.line @ 1", "main.line @ 1, main.orders @ 9", "main.orders @ 1", "@", "", "0"])
def test_a_list_names_every_table(unasked: dpsql.Session, as_of: str) -> None:
    with pytest.raises(UnsupportedQueryError, match="names no version"):
        unasked.sql(COUNT, rho=1.0, as_of=as_of)


def test_an_earlier_parent_cannot_be_refreshed(session: dpsql.Session) -> None:
    asked = ask(session, "linked")
    change(session, "orders", 1)
    with pytest.raises(UnsupportedQueryError, match="refreshed"):
        session.sql(COUNT, rho=1.0, as_of=asked.versions, refresh=True)
    change(session, "status", 1)
    text, _ = QUESTIONS["public table"]
    with pytest.raises(UnsupportedQueryError, match="refreshed"):
        session.sql(text, rho=1.0, as_of="main.orders @ 2, main.status @ 1", refresh=True)


def test_a_name_goes_for_each_table_that_has_it(session: dpsql.Session) -> None:
    """Of two protected tables that are joined, one may never have had a version of this name."""
    first = ask(session, "view")
    session.sql("CALL dp_new_version('line', version := 'b')")
    second = ask(session, "view")
    session.sql("CALL dp_new_version('orders', version := 'c')")
    third = ask(session, "view")
    session.sql("CALL dp_new_version('line', version := 'd')")
    first.require_again(session, "1")
    second.require_again(session, second.versions)
    # line was at b until the last declaration, and orders at c by then
    third.require_again(session, "b")
    fourth = ask(session, "view")
    for current in ("c", "d"):
        fourth.require_again(session, current)


def test_a_version_may_be_called_like_a_list_or_a_day(session: dpsql.Session) -> None:
    first = ask(session, "linked")
    session.sql("CALL dp_new_version('line', version := '2001-01-01')")
    second = ask(session, "linked")
    session.sql("CALL dp_new_version('line', version := '1, main.orders @ 7')")
    third = ask(session, "linked")
    session.sql("CALL dp_new_version('line')")
    for asked in (first, second, third):
        asked.require_again(session, asked.versions)
    second.require_again(session, "2001-01-01")
    third.require_again(session, "1, main.orders @ 7")


def test_a_parent_that_is_gone_is_not_needed_for_what_is_stored(session: dpsql.Session) -> None:
    asked = [ask(session, "linked"), ask(session, "window")]
    session.connection.execute("CREATE OR REPLACE TABLE orders AS FROM orders")
    session.sql("CALL dp_new_version('orders')")
    with pytest.raises(SchemaError, match="constraint"):
        session.sql(COUNT, rho=1.0)
    require_all_again(session, asked)
    session.connection.execute("DROP TABLE orders")
    require_all_again(session, asked)


def test_public_lists_of_keys_are_those_of_that_time(session: dpsql.Session) -> None:
    """Of a list that was declared again, and of one that is a public table."""
    session.sql("CALL dp_domain('orders', 'o_status', keys_from := 'status.s_name')")
    sets = "SELECT o_day, o_status, count(*) AS n FROM orders GROUP BY ROLLUP (o_day, o_status) ORDER BY ALL"
    questions = (QUESTIONS["public keys"][0], QUESTIONS["parent"][0], sets)
    asked: list[tuple[str, dpsql.Result, str, str]] = []

    def ask_all() -> None:
        for text in questions:
            answer = session.sql(text, rho=1.0)
            asked.append((text, answer, now(), versions_of_last(session)))

    ask_all()
    session.connection.execute("INSERT INTO status VALUES ('status 7', 'class 1')")
    session.sql("CALL dp_new_version('status')")
    change(session, "orders", 1)
    ask_all()
    session.sql("CALL dp_domain('orders', 'o_day', keys := [0, 1, 2])")
    ask_all()
    change(session, "orders", 2)
    ask_all()
    session.sql("CALL dp_domain('orders', 'o_day', keys := [0, 1, 2, 3, 4])")
    session.connection.execute("DROP TABLE status")
    before = spent(session)
    for text, answer, moment, _ in asked[:-3]:
        again = session.sql(text, rho=1.0, as_of=moment)
        assert again.fetchall() == answer.fetchall()
        assert receipt_of(again).query_hash == receipt_of(answer).query_hash
    # one combination of versions had two lists: its last answer is found by its name
    for text, answer, _, versions in (*asked[:3], *asked[6:9]):
        assert session.sql(text, rho=1.0, as_of=versions).fetchall() == answer.fetchall()
    assert spent(session) == before


def test_the_present_has_the_lists_of_now(session: dpsql.Session) -> None:
    text, _ = QUESTIONS["public keys"]
    session.sql(text, rho=1.0)
    session.sql("CALL dp_domain('orders', 'o_day', keys := [0, 1])")
    for as_of in ("1", "2126-01-01"):
        assert len(session.sql(text, rho=1.0, as_of=as_of).fetchall()) == 2


def test_columns_are_those_of_that_version(session: dpsql.Session) -> None:
    """Types are part of what was released, and so are columns that are not there any more."""
    names = ("parent", "public keys", "linked")
    asked = [ask(session, name) for name in names]
    session.connection.execute(
        "CREATE OR REPLACE TABLE orders (o_id BIGINT PRIMARY KEY, o_customer INTEGER, o_day BIGINT, more VARCHAR)"
    )
    session.connection.execute("CREATE OR REPLACE TABLE line AS SELECT l_order, l_many FROM line")
    for table in ("orders", "line"):
        session.sql(f"CALL dp_new_version('{table}')")
    asked.append(ask(session, "public keys"))
    change(session, "customer", 1)
    require_all_again(session, asked)


def test_an_analyst_goes_back_as_well(session: dpsql.Session) -> None:
    session.sql("CALL dp_analyst('ana', rho_limit := 1.5)")
    ana = session.as_analyst("ana")
    first = ana.sql(COUNT, rho=1.0)
    own = str(ana.sql("FROM dp_releases()").df()["versions"].iloc[-1])
    change(session, "orders", 1)
    again = ana.sql(COUNT, rho=1.0, as_of=own)
    assert again.fetchall() == first.fetchall()
    assert receipt_of(again).charged_rho == 0
