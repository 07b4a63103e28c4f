"""The largest groups of a table without max_groups: pre-selection, floor, frozen histogram, sums and sketches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpsql
from dpsql.bound.aggregation import bounded_sql
from dpsql.cascade.reader import CURATOR, Reader
from dpsql.engine import DuckDBEngine, Sandbox
from dpsql.model.frame import PRESENCE
from dpsql.model.private_query import PrivateQuery
from dpsql.plan.environment.policy_view import environment
from dpsql.plan.planner import plan_query
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end.prepared import with_own_rows
from tests.noise_sources import seeded_noise

SALT = bytes(16)
# visitors of each shop: 400, 350, …, 50, and a long tail of shops with one visitor
SHOPS = {f"shop {i}": 400 - 50 * i for i in range(8)}
LARGEST = "SELECT shop, count(DISTINCT visitor) AS visitors FROM visits GROUP BY shop ORDER BY visitors DESC LIMIT 2"
TOP_4 = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (top_k = 4) shop, {} FROM visits GROUP BY shop ORDER BY 2 DESC"


TABLES = """
CREATE TABLE visits (visitor INTEGER, shop VARCHAR, spent DOUBLE);
INSERT INTO visits SELECT u, 'shop ' || i, 10 FROM range(8) s(i), range(400) r(u) WHERE u < 400 - 50 * i;
INSERT INTO visits SELECT i, 'tail ' || i, 10 FROM range(300) t(i);
"""


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute(TABLES)
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "privacy_unit_column := 'visitor', max_rows_per_group := 1, rho_budget := 1000, "
            "delta_threshold := 0.01, delta_conversion := 1e-6)"
        )
        session.sql("CALL dp_domain('visits', 'spent', bounds := [0, 20])")
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_rows(prepared, TABLES) as session:
        session._runner.noise_source = seeded_noise(5)
        yield session


def receipt_of(answer: dpsql.Result) -> dpsql.Receipt:
    assert answer.receipt is not None
    return answer.receipt


def test_the_largest_groups_need_no_max_groups(session: dpsql.Session) -> None:
    answer = session.sql(LARGEST, rho=2.0, delta=1e-6)
    receipt = receipt_of(answer)
    # twice as many groups are pre-selected as rows are wanted
    assert (receipt.mechanism, receipt.max_groups, receipt.max_keys) == ("csh", None, 4)
    (column,) = receipt.columns
    assert column.sigma is not None
    found = dict(answer.fetchall())
    assert list(found) == ["shop 0", "shop 1"]
    assert all(abs(count - SHOPS[shop]) < 5 * column.sigma for shop, count in found.items())
    # on top of the fifth largest, 200, which a receipt does not tell
    assert receipt.threshold is not None
    assert 1 < receipt.threshold < 30
    assert all("tail" not in str(row) for row in session.sql(TOP_4.format("count(*)"), rho=1.0).fetchall())


def test_sums_beside_pre_selected_counts_are_true_up_to_their_noise(session: dpsql.Session) -> None:
    aggregates = "count(DISTINCT visitor) AS n, sum(spent) AS total, avg(spent) AS mean"
    answer = session.sql(TOP_4.format(aggregates), rho=20.0)
    sigmas = {column.name: column.sigma for column in receipt_of(answer).columns}
    assert sigmas["n"] is not None
    assert sigmas["total"] is not None
    for shop, count, total, mean in answer.fetchall():
        assert abs(count - SHOPS[shop]) < 5 * sigmas["n"]
        assert abs(total - 10 * SHOPS[shop]) < 5 * sigmas["total"]
        assert abs(mean - 10) < 2
    assert [row[0] for row in answer.fetchall()] == ["shop 0", "shop 1", "shop 2", "shop 3"]


def test_the_histogram_is_frozen_for_its_version(session: dpsql.Session) -> None:
    """A silent change of the data moves no later release of the frame, neither its counts nor its keys."""
    session.sql(TOP_4.format("count(DISTINCT visitor)"), rho=1.0)
    session.connection.execute("INSERT INTO visits SELECT i, 'fad', 10 FROM range(5000) t(i)")
    again = session.sql(TOP_4.format("count(DISTINCT visitor)"), rho=8.0)
    # what is shown tells of the noise that hidden keys share, so a higher level is a release of its own
    assert receipt_of(again).charged_rho == 8.0
    found = dict(again.fetchall())
    assert "fad" not in found
    assert found == {shop: pytest.approx(SHOPS[shop], abs=5) for shop in list(SHOPS)[:4]}

    session.sql("CALL dp_new_version('visits')")
    anew = dict(session.sql(TOP_4.format("count(DISTINCT visitor)"), rho=8.0).fetchall())
    assert anew["fad"] == pytest.approx(5000, abs=5)


def test_a_rise_of_the_counts_reads_no_data_and_sums_read_only_frozen_keys(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.sql(TOP_4.format("count(DISTINCT visitor)"), rho=1.0)
    read: list[pa.Table] = []
    real = DuckDBEngine.aggregate

    def watched(self: DuckDBEngine, sql: str, **arguments: object) -> object:
        table = real(self, sql, **arguments)  # type: ignore[arg-type]
        read.append(table.reveal())
        return table

    monkeypatch.setattr(DuckDBEngine, "aggregate", watched)
    session.sql(TOP_4.format("count(DISTINCT visitor)"), rho=2.0)
    assert read == []
    session.connection.execute("INSERT INTO visits SELECT i, 'fad', 10 FROM range(5000) t(i)")
    answer = session.sql(TOP_4.format("sum(spent) AS total"), rho=2.0)
    assert sorted(read[0].column("key_0").to_pylist()) == list(SHOPS)[:4]
    # the counts at 2.0 cover what this query asks of them: the sum alone is paid
    assert 0 < receipt_of(answer).charged_rho < 2.0


def test_fewer_groups_than_k_leave_nothing_out(session: dpsql.Session) -> None:
    text = TOP_4.replace("top_k = 4", "top_k = 5000").format("count(DISTINCT visitor)")
    answer = session.sql(text, rho=5.0, delta=1e-6)
    shown = set(dict(answer.fetchall()))
    assert {shop for shop, visitors in SHOPS.items() if visitors >= 150} <= shown <= set(SHOPS)
    threshold = receipt_of(answer).threshold
    assert threshold is not None
    assert threshold < 100


def test_an_empty_table_shows_nothing_and_looks_like_any_other(session: dpsql.Session) -> None:
    before = session.sql(f"FROM dp_explain($$ {LARGEST} $$, rho := 0.5)").fetchall()
    session.connection.execute("DELETE FROM visits")
    assert session.sql(f"FROM dp_explain($$ {LARGEST} $$, rho := 0.5)").fetchall() == before
    answer = session.sql(LARGEST, rho=0.5)
    assert len(answer) == 0
    assert receipt_of(answer).charged_rho == 0.5
    assert receipt_of(session.sql(LARGEST, rho=0.5)).reused


def test_a_readers_own_minimum_counts_units_and_not_what_is_left_of_them(session: dpsql.Session) -> None:
    text = TOP_4.format("count(DISTINCT visitor)").replace("top_k = 4", "top_k = 4, min_privacy_units_per_group = 320")
    answer = session.sql(text, rho=8.0)
    assert set(dict(answer.fetchall())) == {"shop 0", "shop 1"}
    # the same frame, and all of it for another reader
    whole = session.sql(TOP_4.format("count(DISTINCT visitor)"), rho=8.0)
    assert receipt_of(whole).reused
    assert len(whole) == 4


def test_a_sketch_never_counts_too_much_and_says_how_much_may_be_missing(session: dpsql.Session) -> None:
    text = (
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (mechanism = MISRA_GRIES, sketch_size = 6) shop, "
        "count(DISTINCT visitor) AS n, dp_interval_low(n) AS low, dp_interval_high(n) AS high FROM visits GROUP BY shop"
    )
    answer = session.sql(text, rho=8.0)
    assert receipt_of(answer).max_keys == 6
    rows = answer.fetchall()
    assert {"shop 0", "shop 1"} <= {row[0] for row in rows}
    for shop, count, low, high in rows:
        assert count <= SHOPS[shop] + 5
        assert low <= SHOPS[shop] <= high
    assert any(high - count > 20 for _, count, _, high in rows)
    assert receipt_of(session.sql(text, rho=8.0)).reused


class Tables:
    """Exact (histogram, floor) of tiny tables through DuckDB."""

    def __init__(self) -> None:
        self.session = dpsql.connect()
        self.session.connection.execute("CREATE TABLE t (unit INTEGER, key INTEGER)")
        self.session.sql(
            "CALL dp_protect('t', coverage := FALSE, privacy_unit_column := 'unit', rho_budget := 1, "
            "delta_threshold := 0, delta_conversion := 1e-6)"
        )
        self.engine, self.sandbox = DuckDBEngine(self.session.connection), Sandbox()

    def plan(self, k: int) -> PrivateQuery:
        policy = self.session._access.read().policy()
        statement = read_statement(
            f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (top_k = {k}) key, count(DISTINCT unit) FROM t GROUP BY key"
        )
        assert isinstance(statement, SelectStatement)
        return plan_query(statement, environment(policy, self.engine, self.sandbox, Reader(CURATOR)), {"rho": 1.0})

    def exact(self, rows: list[tuple[int, int]], query: PrivateQuery) -> tuple[dict[int, int], int]:
        self.session.connection.execute("DELETE FROM t")
        if rows:
            self.session.connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
        sql = bounded_sql(query.first.frame, (PRESENCE,), SALT)
        table = self.engine.aggregate(sql, listed_keys=None, timeout_seconds=None).reveal().to_pylist()
        floors = {row["floor"] for row in table}
        assert len(floors) == 1, "the floor is told even where no group is left"
        return {row["key_0"]: row["units"] for row in table if row["units"] is not None}, floors.pop()


@pytest.fixture(scope="module")
def tables() -> Iterator[Tables]:
    tables = Tables()
    yield tables
    tables.sandbox.close()
    tables.session.close()


@given(
    rows=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=25),
    removed=st.integers(0, 4),
    k=st.integers(1, 4),
)
@settings(max_examples=60)
def test_one_unit_moves_counts_one_way_or_counts_and_floor_the_other(
    tables: Tables, rows: list[tuple[int, int]], removed: int, k: int
) -> None:
    """Lemma 1 of docs/proofs/top-k.md, on what DuckDB returns."""
    query = tables.plan(k)
    counts, floor = tables.exact(rows, query)
    fewer, lower = tables.exact([row for row in rows if row[0] != removed], query)
    own = {key for unit, key in rows if unit == removed}
    assert len(counts) <= k
    assert all(count >= 1 for count in counts.values())
    moved = {key: counts.get(key, 0) - fewer.get(key, 0) for key in {*counts, *fewer}}
    changed = {key for key, step in moved.items() if step}
    if floor == lower:
        assert all(step in (0, 1) for step in moved.values())
        assert changed <= own
    else:
        assert floor == lower + 1
        assert all(step in (0, -1) for step in moved.values())
        assert not changed & own


def test_a_unit_with_one_key_moves_all_k_counts(tables: Tables) -> None:
    """Why max_groups bounds nothing after pre-selection: k keys of two units, and one more that the unit completes."""
    query = tables.plan(3)
    rows = [(unit, key) for unit, key in itertools.product((1, 2), range(3))] + [(1, 3)]
    before, after = tables.exact(rows, query), tables.exact([*rows, (9, 3)], query)
    assert before == ({0: 1, 1: 1, 2: 1}, 1)
    assert after == ({}, 2)


def test_pre_selection_does_not_depend_on_the_order_of_rows(tables: Tables) -> None:
    query = tables.plan(2)
    rows = [(unit, key) for unit in range(6) for key in range(unit % 4 + 1)]
    expected = tables.exact(rows, query)
    random = np.random.default_rng(1)
    for _ in range(5):
        assert tables.exact([rows[i] for i in random.permutation(len(rows))], query) == expected
