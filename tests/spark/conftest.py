"""A Spark of two cores for the tests of `make spark`; they are no part of `make test-all`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

# workers take the Python of the tests, which has dpsql
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[2]))

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
    "spark.dpsql.parts": "3",
}


def started(master: str, folder: Path, **settings: str) -> Any:
    """Return a Spark session in place of one that may be there."""
    from pyspark.sql import SparkSession

    if before := SparkSession.getActiveSession():
        before.stop()
    builder = SparkSession.builder.master(master).config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def to_spark(connection: duckdb.DuckDBPyConnection, session: Any, folder: Path, tables: list[str]) -> None:
    """Write tables of DuckDB as Parquet, and make tables of Spark of the files."""
    folder.mkdir(exist_ok=True)
    for table in tables:
        connection.execute(f"COPY {table} TO '{folder / table}.parquet'")
        session.sql(f"DROP TABLE IF EXISTS {table}")
        session.sql(f"CREATE TABLE {table} USING parquet LOCATION '{folder / table}.parquet'")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Spark in this process, with two cores; a task may fail three times."""
    session = started("local[2,4]", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
