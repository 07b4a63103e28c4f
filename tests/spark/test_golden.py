"""The golden records of exact rows, over the tiny tables in Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

import dpsql
from tests.spark.conftest import to_spark
from tests.sql.golden_records import POLICY, TABLES, Clinic, Record, records

RECORDS = [record for record in records() if record.directive == "exact"]
VIEW = "visits_view"
"""A view of DuckDB, which Spark does not have."""
ALL = ["visits", "bills", "cities", "kinds", "drafts", "stays", "meals"]


@pytest.fixture(scope="module")
def clinic(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    folder = tmp_path_factory.mktemp("golden")
    with duckdb.connect() as connection:
        connection.execute(TABLES)
        to_spark(connection, spark, folder / "files", ALL)
    opened = Clinic(*POLICY, session=dpsql.connect(spark=spark, state=folder / "clinic.dpsql"))
    yield opened
    opened.close()


@pytest.mark.parametrize("record", RECORDS, ids=str)
def test_spark_gives_the_rows_of_the_record(record: Record, clinic: Clinic) -> None:
    if VIEW in record.sql:
        with pytest.raises(dpsql.SchemaError, match="is not protected"):
            clinic.outcome(record)
    else:
        assert clinic.outcome(record) == record.expected
