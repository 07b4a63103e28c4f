"""Sessions on the tables of Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import duckdb

from dpsql.engine.spark.carrier import Cluster
from dpsql.errors import MissingPackageError
from dpsql.session.engines import TablesOfSpark
from dpsql.session.spilling import open_database

_MEMORY_LIMIT = "1GB"


def open_spark(
    spark: object, state_path: Path | None, duckdb_config: Mapping[str, object]
) -> tuple[duckdb.DuckDBPyConnection, Callable[[], None], TablesOfSpark]:
    """Open the current database of a Spark session.

    Args:
        spark: the Spark session.
        state_path: the state file; None for a state in memory.
        duckdb_config: settings of DuckDB. ``memory_limit`` is that of each task, too.

    Returns:
        The head of its tables, a function that closes the head, and the tables.

    Raises:
        MissingPackageError: pyspark is not there, or too old.
        PolicyError: it is no Spark session in this process, or has no checkpoint folder.

    """
    config = {name: str(value) for name, value in duckdb_config.items()}
    rows = TablesOfSpark(spark_cluster(spark, state_path), config.get("memory_limit", _MEMORY_LIMIT))
    return (*open_database(":memory:", state_path, config=config), rows)


def spark_cluster(session: object, state: Path | None) -> Cluster:
    """Return the current database of a Spark session.

    Args:
        session: the Spark session.
        state: the state file, beside which rows are kept while a question runs, if Spark has no folder for them.

    Raises:
        MissingPackageError: pyspark is not there, or too old.
        PolicyError: it is no Spark session in this process, or has no checkpoint folder.

    """
    try:
        from dpsql.engine.spark.cluster import PySparkCluster  # noqa: PLC0415 — it takes a second, and few need it
    except ImportError:
        raise MissingPackageError("pyspark 4 or later", "spark") from None
    return PySparkCluster(session, None if state is None else state.parent)
