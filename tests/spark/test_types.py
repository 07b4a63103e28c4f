"""Types of Spark: keys, filters and sums of each type have the numbers that DuckDB has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from tests.end_to_end.test_parts import answered
from tests.noise_sources import silence
from tests.spark.conftest import to_spark

COLUMNS = {
    "yes": "i % 2 = 0",
    "tiny": "CAST(i % 5 - 2 AS TINYINT)",
    "small": "CAST(i % 5 * 1000 AS SMALLINT)",
    "number": "CAST(i % 7 AS INTEGER)",
    "big": "CAST(i % 3 AS BIGINT) * 5000000000",
    "real": "CAST(i % 4 AS FLOAT) / 3",
    "double": "CASE i % 5 WHEN 0 THEN 'nan'::DOUBLE WHEN 1 THEN -0.0 WHEN 2 THEN 0.0 WHEN 3 THEN 'inf' ELSE 0.1 END",
    "price": "CAST(i % 6 AS DECIMAL(10,2)) / 4",
    "wide": "CAST(i % 3 AS DECIMAL(38,10))",
    "text": "CASE WHEN i % 9 = 0 THEN NULL ELSE 'straße ' || i % 3 END",
    "bytes": "encode('a' || i % 3)",
    "day": "DATE '1999-12-30' + CAST(i % 4 AS INTEGER)",
    "moment": "TIMESTAMPTZ '2026-03-29 00:30:00+00' + INTERVAL 1 HOUR * (i % 4)",
    "clock": "TIMESTAMP '2026-03-29 00:30:00.123456' + INTERVAL 1 HOUR * (i % 4)",
}
MAKE = (
    "CREATE TABLE types AS SELECT CAST(i % 300 AS BIGINT) AS person, "
    + ", ".join(f"{sql} AS {name}" for name, sql in COLUMNS.items())
    + ", [i % 2] AS list FROM range(3000) t(i)"
)
POLICY = (
    "CALL dp_unit('person', rho_budget := 1000, delta_threshold := 0.5, delta_conversion := 1e-6)",
    "CALL dp_protect('types', unit := 'person', privacy_unit_column := 'person', max_groups_contributed := 4, "
    "max_rows_per_group := 3)",
)


@pytest.fixture(scope="module")
def both(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dpsql.Session]]:
    folder = tmp_path_factory.mktemp("types")
    with dpsql.connect() as whole:
        whole.connection.execute(MAKE)
        whole.connection.execute("SET TimeZone = 'UTC'")
        to_spark(whole.connection, spark, folder / "files", ["types"])
        with dpsql.connect(spark=spark, state=folder / "types.dpsql") as session:
            session.connection.execute("SET TimeZone = 'UTC'")
            for one in (whole, session):
                for statement in POLICY:
                    one.sql(statement)
                silence(one)
            yield [whole, session]


@pytest.mark.parametrize("column", COLUMNS)
def test_keys_of_each_type_are_the_same(column: str, both: list[dpsql.Session]) -> None:
    text = f"SELECT {column}, count(*) AS n FROM types GROUP BY {column}"
    # no NaN equals another one
    whole, of_spark = (str(answered(session, text)) for session in both)
    assert of_spark == whole


@pytest.mark.parametrize(
    "text",
    [
        "SELECT date_trunc('hour', moment) AS hour, count(*) AS n FROM types GROUP BY hour",
        "SELECT year(day) AS year, sum(price, contribution_bounds_per_row => (0, 2)) AS s FROM types GROUP BY year",
        "SELECT number, sum(double, contribution_bounds_per_row => (0, 1)) AS s FROM types GROUP BY number",
        "SELECT count(*) AS n FROM types WHERE text = 'straße 1' AND big > 1 AND wide < 2 AND yes",
        "SELECT number, count(DISTINCT text) AS n FROM types GROUP BY number",
    ],
)
def test_expressions_over_types_are_the_same(text: str, both: list[dpsql.Session]) -> None:
    whole, of_spark = (answered(session, text) for session in both)
    assert of_spark == whole


def test_a_column_of_another_type_is_not_there(both: list[dpsql.Session]) -> None:
    with pytest.raises(dpsql.SchemaError, match="list"):
        both[1].sql("SELECT list, count(*) FROM types GROUP BY list", rho=0.1)
