"""Which groups a unit keeps is chance with a fair coin; what is summed depends on no order, thread or storage."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from scipy.stats import chisquare

from dpsql.bound.aggregation import bounded_sql
from dpsql.model.frame import PRESENCE
from tests.unit.bound.exact_runs import SALT, ExactTable, Laboratory, read_exact

P_VALUE_BOUND = 1e-6
"""A fair choice fails the chi-square check of a subset test with this probability, over all fixed seeds."""

_QUERY = (
    "SELECT city, count(*), count(DISTINCT pid) FILTER (WHERE x > 0), avg(x, contribution_bounds_per_row => (-1, 2)), "
    "count(DISTINCT x, contribution_bounds_per_group => (0, 2)), "
    "sum(x, contribution_bounds_per_group => (-5, 500)), sum(x / 3, contribution_bounds_per_row => (0.1, 0.7)) "
    "FROM {table} WHERE x IS NOT NULL GROUP BY city"
)
_ROW_COUNT = 150_000


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    opened = Laboratory()
    yield opened
    opened.close()


def _subsets(laboratory: Laboratory, *, planted: bool) -> Counter[tuple[int, ...]]:
    """How many of 24,000 units with ten groups keep which three."""
    connection = laboratory.session.connection
    connection.execute("CREATE OR REPLACE TABLE tens AS SELECT u AS pid, k FROM range(24000) us(u), range(10) ks(k)")
    laboratory.session.sql("CALL dp_protect('tens', coverage := FALSE, unit := 'u', privacy_unit_column := 'pid')")
    frame = laboratory.plan("SELECT k, count(DISTINCT pid) FROM tens GROUP BY k", max_groups_contributed=3).first.frame
    sql = bounded_sql(frame, (PRESENCE,), SALT)
    if planted:
        # with the key as its last argument a single hash is the exclusive or of two hashes
        sound = f"hash(hash(unit, key_0, '{SALT.hex()}'))"
        assert sql.count(sound) == 1
        sql = sql.replace(sound, f"hash(unit, '{SALT.hex()}', key_0)")
    listing, place, _ = sql.rpartition("\nSELECT ")
    assert place
    kept = laboratory.engine.aggregate(
        f"{listing}\nSELECT list_sort(list(key_0)) AS groups FROM kept GROUP BY unit",
        listed_keys=None,
        timeout_seconds=None,
    ).reveal()
    return Counter(tuple(groups) for groups in kept.column("groups").to_pylist())


def _p_value(found: Counter[tuple[int, ...]]) -> float:
    every = list(itertools.combinations(range(10), 3))
    assert len(every) == 120
    assert set(found) <= set(every)
    return float(chisquare([found[subset] for subset in every]).pvalue)


@pytest.mark.statistical
def test_every_subset_of_groups_is_kept_equally_often(laboratory: Laboratory) -> None:
    found = _subsets(laboratory, planted=False)
    assert sum(found.values()) == 24_000
    assert _p_value(found) > P_VALUE_BOUND


@pytest.mark.statistical
def test_the_subset_check_catches_a_single_hash(laboratory: Laboratory) -> None:
    found = _subsets(laboratory, planted=True)
    assert len(found) < 30
    assert _p_value(found) < P_VALUE_BOUND


@pytest.fixture(scope="module")
def visits(laboratory: Laboratory, tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    """One content as a table, two permutations of it, a view, and a view on a Parquet file."""
    connection = laboratory.session.connection
    connection.execute(
        "CREATE TABLE visits AS SELECT (hash(i) % 2000)::INTEGER AS pid, 'c' || (hash(i, 1) % 40) AS city, "
        "CASE hash(i, 2) % 6 WHEN 0 THEN 1e16 WHEN 1 THEN -1e16 WHEN 2 THEN NULL WHEN 3 THEN 0.1 ELSE (i % 97) / 97 "
        f"END AS x FROM range({_ROW_COUNT}) r(i)"
    )
    connection.execute("CREATE TABLE reversed AS SELECT * FROM visits ORDER BY rowid DESC")
    connection.execute("CREATE TABLE shuffled AS SELECT * FROM visits ORDER BY hash(rowid, 'shuffle')")
    connection.execute("CREATE VIEW viewed AS SELECT * FROM visits")
    path: Path = tmp_path_factory.mktemp("stored") / "visits.parquet"
    connection.execute(f"COPY shuffled TO '{path}' (ROW_GROUP_SIZE 20000)")
    connection.execute(f"CREATE VIEW stored AS SELECT * FROM read_parquet('{path}')")
    for table in ("visits", "reversed", "shuffled", "viewed", "stored"):
        laboratory.session.sql(
            f"CALL dp_protect('{table}', coverage := FALSE, unit := 'u', privacy_unit_column := 'pid', "
            "max_groups_contributed := 5, max_rows_per_group := 3)"
        )
    return laboratory


def _exact(laboratory: Laboratory, table: str) -> ExactTable:
    query = laboratory.plan(_QUERY.format(table=table))
    sql = bounded_sql(query.first.frame, query.first.statistics, SALT)
    return read_exact(laboratory.engine.aggregate(sql, listed_keys=None, timeout_seconds=None).reveal(), 1)


@pytest.fixture(scope="module")
def expected(visits: Laboratory) -> ExactTable:
    exact = _exact(visits, "visits")
    assert len(exact) == 40
    assert len(exact["c1",]) == 8
    return exact


@pytest.mark.parametrize("table", ["reversed", "shuffled", "viewed", "stored"])
def test_order_and_storage_change_no_bit(visits: Laboratory, expected: ExactTable, table: str) -> None:
    assert _exact(visits, table) == expected


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_change_no_bit(visits: Laboratory, expected: ExactTable, threads: int) -> None:
    connection = visits.session.connection
    connection.execute(f"SET threads = {threads}")
    try:
        assert all(_exact(visits, table) == expected for table in ("visits", "shuffled"))
    finally:
        connection.execute("RESET threads")


def test_plain_sums_of_the_same_data_do_differ(visits: Laboratory) -> None:
    """The twin of the tests above: without the lattice the order of rows is seen."""
    sums = {
        visits.session.connection.execute(f"SELECT sum(x) FROM {table} WHERE abs(x) < 1").fetchall()[0][0]
        for table in ("visits", "reversed", "shuffled")
    }
    assert len(sums) > 1


def test_a_curators_default_order_changes_no_bit(visits: Laboratory, expected: ExactTable) -> None:
    connection = visits.session.connection
    connection.execute("SET default_order = 'DESC'; SET default_null_order = 'NULLS FIRST'")
    try:
        assert _exact(visits, "visits") == expected
    finally:
        connection.execute("RESET default_order; RESET default_null_order")


def test_another_salt_keeps_other_groups(visits: Laboratory, expected: ExactTable) -> None:
    query = visits.plan(_QUERY.format(table="visits"))
    sql = bounded_sql(query.first.frame, query.first.statistics, bytes(16))
    other = read_exact(visits.engine.aggregate(sql, listed_keys=None, timeout_seconds=None).reveal(), 1)
    assert other != expected
    assert sum(row[0] for row in other.values()) == sum(row[0] for row in expected.values())
