"""The macros for when a private query reaches plain DuckDB: each fails, and says what to write."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from dpsql.assets import asset
from dpsql.sql.clauses import INTERVAL_FUNCTIONS, PRIVATE_AGGREGATES


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute(asset("udfs", "dp_functions.sql").read_text(encoding="utf-8"))
        connection.execute(
            "CREATE TABLE visits AS SELECT i AS patient_id, 'Lund' AS city, 1.5 AS cost FROM range(9) t(i)"
        )
        connection.execute("CREATE TABLE nothing AS SELECT * FROM visits WHERE false")
        yield connection


def test_there_is_a_macro_for_each_private_function(connection: duckdb.DuckDBPyConnection) -> None:
    names = connection.sql(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_name LIKE 'dp!_%' ESCAPE '!'"
    )
    assert {row[0] for row in names.fetchall()} == {*PRIVATE_AGGREGATES, *INTERVAL_FUNCTIONS}


CALLS = (
    "dp_count(*)",
    "dp_count()",
    "dp_count(cost)",
    "dp_sum(cost, 0, 500)",
    "dp_avg(cost, 0, 500)",
    "1 + dp_count(*)",
)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "text",
    [
        "SELECT {} FROM visits",
        "SELECT {} FROM nothing",
        "SELECT {} FROM visits WHERE false",
        "SELECT city, {} FROM visits GROUP BY city",
        "SELECT city FROM visits GROUP BY city HAVING {} > 0",
        "SELECT city FROM visits GROUP BY city ORDER BY {}",
        "SELECT {} OVER () FROM visits",
    ],
)
def test_a_private_aggregate_fails_and_says_what_to_write(
    text: str, call: str, connection: duckdb.DuckDBPyConnection
) -> None:
    if "OVER" in text and "+" in call:
        call = call.removeprefix("1 + ")
    with pytest.raises(duckdb.Error, match=r"is private: run it through dpsql, as in FROM dp_query\(\$\$ SELECT"):
        connection.sql(text.format(call)).fetchall()


@pytest.mark.parametrize("name", INTERVAL_FUNCTIONS)
def test_an_interval_fails_and_says_what_to_write(name: str, connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(duckdb.Error, match=f"{name}.* takes the alias of an aggregate inside a private query"):
        connection.sql(f"SELECT count(*) AS n, {name}(n) FROM visits").fetchall()


@pytest.mark.parametrize(
    "call", ["dp_count(DISTINCT patient_id)", "dp_count(*) FILTER (WHERE cost > 1)", "dp_sum(DISTINCT cost, 0, 1)"]
)
def test_duckdb_refuses_distinct_and_filter_on_a_macro_itself(call: str, connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(duckdb.Error, match="is a Macro Function"):
        connection.sql(f"SELECT {call} FROM visits").fetchall()
