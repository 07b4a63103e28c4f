"""The aggregates in C by themselves: what they count, add up, keep and refuse, from one thread and from several."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from dpsql.assets import native_library
from dpsql.bound import formulations
from dpsql.engine import DuckDBEngine
from tests.unit.bound.exact_runs import needs_native

pytestmark = needs_native


@pytest.fixture
def native() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"allow_unsigned_extensions": True}) as connection:
        assert DuckDBEngine(connection, native_library()).has_native, "the library is of another version: make native"
        yield connection


def test_the_native_aggregate_counts_what_is_there(native: duckdb.DuckDBPyConnection) -> None:
    """NULL arguments count for nothing, sums are exact beyond BIGINT, and ties of priorities go to the least code."""
    (found,) = native.execute(
        "SELECT list_sort(dpsql_keep_2(2::INTEGER, p::UBIGINT, c::BIGINT, f, v::BIGINT)) FROM (VALUES "
        f"(5, 1, true, {2**63 - 1}), (5, 1, NULL, {2**63 - 1}), (5, 1, false, NULL), (5, 9, true, 1), "
        f"(5, 2, true, {-(2**63)}), (5, 2, true, {-(2**63)}), (6, 0, true, 1), (NULL, 0, true, 1)) t(p, c, f, v)"
    ).fetchall()[0]
    assert found == [
        {"code": 1, "true_0": 1, "count_0": 2, "sum_0": 2**64 - 2},
        {"code": 2, "true_0": 2, "count_0": 2, "sum_0": -(2**64)},
    ]
    assert native.execute("SELECT dpsql_keep_1(1::INTEGER, NULL::UBIGINT, 1::BIGINT)").fetchall() == [([],)]


@pytest.mark.parametrize("most", [0, -1, 3])
def test_the_native_aggregate_refuses_what_it_cannot_keep(native: duckdb.DuckDBPyConnection, most: int) -> None:
    with pytest.raises(duckdb.Error, match="number of groups to keep is out of range"):
        native.execute(f"SELECT dpsql_keep_2({most}::INTEGER, 1::UBIGINT, 1::BIGINT)").fetchall()


def test_the_native_aggregate_keeps_one_number_of_groups_a_state(native: duckdb.DuckDBPyConnection) -> None:
    """With fewer of them after more, groups would be written behind the last place."""
    for most in ("CASE WHEN i < 4 THEN 4 ELSE 1 END", "1 + i % 4"):
        with pytest.raises(duckdb.Error, match="must be the same in all rows"):
            native.execute(
                f"SELECT dpsql_keep_4(({most})::INTEGER, hash(i), i) FROM range(100000) r(i) GROUP BY i % 7"
            ).fetchall()


def test_the_last_group_that_is_kept(native: duckdb.DuckDBPyConnection) -> None:
    """NULL where the next one has its priority, the largest number where none is next."""
    listed = (
        "FROM (VALUES (1, 5), (1, 9), (1, 7), (1, NULL), (2, 3), (2, 7), (2, 7), (3, 8), (3, 8), (4, NULL)) t(g, p)"
    )
    found = native.execute(
        f"SELECT g, unnest(dpsql_unit_4(2::INTEGER, p::UINTEGER)) {listed} GROUP BY g ORDER BY g"
    ).fetchall()
    assert found == [(1, 4, 7), (2, 3, None), (3, 2, 2**32 - 1), (4, 1, 2**32 - 1)]
    with pytest.raises(duckdb.Error, match="number of groups to keep is out of range"):
        native.execute("SELECT dpsql_unit_2(3::INTEGER, 1::UINTEGER)").fetchall()
    with pytest.raises(duckdb.Error, match="must be the same in all rows"):
        native.execute("SELECT dpsql_unit_4((1 + i % 4)::INTEGER, i::UINTEGER) FROM range(9) r(i)").fetchall()


def test_sizes_and_losses_are_exact_beyond_bigint(native: duckdb.DuckDBPyConnection) -> None:
    """Distances from 0 and from the bounded value; a NULL counts for nothing of what it is needed for."""
    listed = (
        f"(VALUES (1, {2**100}, {2**63 - 1}), (1, {-(2**100)}, {-(2**63)}), (1, 5, 5), (1, 7, NULL), (1, NULL, 3), "
        f"(2, -3, 4), (2, 4, -3), (3, NULL, NULL), (4, {2**64}, 0)) t(g, whole, bounded)"
    )
    given = "1::UINTEGER, whole::HUGEINT, bounded::BIGINT, (-whole)::HUGEINT, bounded::BIGINT"
    found = native.execute(
        f"SELECT g, unnest(dpsql_unit_1(1::INTEGER, {given})) FROM {listed} GROUP BY g ORDER BY g"
    ).fetchall()
    assert [row[3:] for row in found] == [
        (2**101 + 12, 2**101 - 2**64 + 1, 2**101 + 12, 2**101 + 2**64 - 1 + 10),
        (7, 14, 7, 2),
        (0, 0, 0, 0),
        (2**64,) * 4,
    ]


def test_sums_are_exact_beyond_bigint(native: duckdb.DuckDBPyConnection) -> None:
    """Rows are counted that have a clamped value and fulfil the filter; there is a sum of no rows, which is 0."""
    most, least = 2**63 - 1, -(2**63)
    listed = (
        f"(VALUES (1, {most}, {least}, true), (1, {most}, {least}, true), (1, 1, NULL, true), (1, NULL, 5, true), "
        f"(1, 9, 9, false), (2, -1, 0, true), (2, 1, -1, true), (3, {least}, {most}, false), (4, NULL, NULL, true)"
        ") t(g, clamped, whole, f)"
    )
    found = native.execute(
        "SELECT g, unnest(dpsql_sums(clamped::BIGINT, whole::BIGINT) FILTER (WHERE f)) "
        f"FROM {listed} GROUP BY g ORDER BY g"
    ).fetchall()
    assert found == [(1, 3, 2 * most + 1, 2 * least + 5), (2, 2, 0, -1), (3, 0, 0, 0), (4, 0, 0, 0)]


@pytest.fixture(scope="module")
def rows_of_threads() -> Iterator[duckdb.DuckDBPyConnection]:
    """A table that several threads group, so that states with rows are combined. One thread reads a range() alone."""
    with duckdb.connect(config={"allow_unsigned_extensions": True, "threads": 4}) as connection:
        assert DuckDBEngine(connection, native_library()).has_native
        connection.execute(
            "CREATE TABLE listed AS SELECT hash(i) % 30000 AS g, "
            # a third of the groups have equal priorities
            "CAST((hash(hash(i, 1)) >> 32) % CASE hash(i) % 3 WHEN 0 THEN 16 ELSE 4294967296 END AS UINTEGER) AS p, "
            "CASE WHEN i % 11 > 0 THEN (hash(i, 2) % 2000)::HUGEINT - 1000 END AS a, "
            "CASE WHEN i % 7 > 0 THEN ((hash(i, 3) % 3)::BIGINT - 1) * i END AS b FROM range(500000) r(i)"
        )
        yield connection


def _differs(connection: duckdb.DuckDBPyConnection, capacity: int, order: str = "") -> tuple[int, int]:
    """Return the number of groups, and of those whose numbers are not those of DuckDB's own functions."""
    sums = capacity.bit_length() % (formulations.MOST_SUMS + 1)
    aggregate = f"dpsql_unit_{capacity}({capacity}::INTEGER, p{', a, b' * sums}{order})"
    last = f"nullif(min(p, {capacity + 1})[{capacity}], min(p, {capacity + 1})[{capacity + 1}])"
    last = f"CASE WHEN count(*) <= {capacity} THEN 4294967295 ELSE {last} END"
    compared = {"groups": "count(*)", "last": last}
    for sum_ in range(sums):
        compared |= {f"size_{sum_}": "coalesce(sum(abs(a)), 0)", f"lost_{sum_}": "coalesce(sum(abs(a - b)), 0)"}
    differs = " OR ".join(f"({aggregate}).{name} IS DISTINCT FROM {sql}" for name, sql in compared.items())
    both = f"dpsql_sums(a::BIGINT, b{order})"
    totals = {"count": "count(a)", "clamped": "coalesce(sum(a), 0)", "whole": "coalesce(sum(b), 0)"}
    differs += "".join(f" OR ({both}).{name} IS DISTINCT FROM {sql}" for name, sql in totals.items())
    counted = f"SELECT count(*), count(*) FILTER (WHERE d) FROM (SELECT {differs} AS d FROM listed GROUP BY g)"
    ((groups, wrong),) = connection.execute(counted).fetchall()
    return groups, wrong


@pytest.mark.parametrize("capacity", formulations._CAPACITIES)
def test_many_units_and_threads(rows_of_threads: duckdb.DuckDBPyConnection, capacity: int) -> None:
    """States of several threads are combined, whatever the order of the rows. DuckDB's own functions give the same."""
    assert _differs(rows_of_threads, capacity) == (30000, 0)


def test_results_that_do_not_begin_at_the_first_row(rows_of_threads: duckdb.DuckDBPyConnection) -> None:
    """DuckDB gives ordered aggregates a place in the result for each group."""
    assert _differs(rows_of_threads, 8, " ORDER BY p") == (30000, 0)


def test_states_of_threads_have_one_number_of_groups(rows_of_threads: duckdb.DuckDBPyConnection) -> None:
    """States without a priority fit any other; states with another number are refused."""
    call = "SELECT dpsql_unit_4(({most})::INTEGER, {p}).last AS last FROM listed GROUP BY g"
    few = call.format(most="CASE WHEN b < 250000 THEN 2 ELSE 3 END", p="CASE WHEN b < 250000 THEN p END")
    assert len(rows_of_threads.execute(few).fetchall()) == 30000
    with pytest.raises(duckdb.Error, match="must be the same in all rows"):
        rows_of_threads.execute(call.format(most="CASE WHEN b < 250000 THEN 2 ELSE 3 END", p="p")).fetchall()


def test_the_library_has_every_shape_that_python_asks_for(native: duckdb.DuckDBPyConnection) -> None:
    for capacity in formulations._CAPACITIES:
        for flags in range(formulations._MOST_FLAGS + 1):
            for sums in range(formulations.MOST_SUMS + 1):
                arguments = ["1::INTEGER", "0::UBIGINT", "7::BIGINT", *["true"] * flags, *["5::BIGINT"] * sums]
                call = f"SELECT unnest(dpsql_keep_{capacity}({', '.join(arguments)}), recursive := true)"
                assert native.execute(call).fetchall() == [(7, *(1,) * flags, *(1, 5) * sums)]
        for sums in range(formulations.MOST_SUMS + 1):
            call = f"SELECT unnest(dpsql_unit_{capacity}(1::INTEGER, 7::UINTEGER{', -5::HUGEINT, 3::BIGINT' * sums}))"
            assert native.execute(call).fetchall() == [(1, 2**32 - 1, *(5, 8) * sums)]
