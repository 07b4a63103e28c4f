"""Folders that sessions on tables of Spark make."""

from __future__ import annotations

from pathlib import Path

import duckdb

import dpsql
from tests.end_to_end.test_parts import QUESTIONS, SMALL, TABLES, declare
from tests.spark.conftest import started, to_spark
from tests.spark.test_answers import ALL


def test_nothing_is_left_when_the_last_session_ends(tmp_path: Path) -> None:
    """Sessions of a driver share a folder that only its owner may enter; a later one makes another."""
    spark = started("local[2]", tmp_path)
    with duckdb.connect() as connection:
        connection.execute(TABLES.format(rows=SMALL[0], people=SMALL[1]))
        to_spark(connection, spark, tmp_path / "files", ALL)
    for _ in range(2):
        with dpsql.connect(spark=spark, state=tmp_path / "a.dpsql") as session:
            with dpsql.connect(spark=spark, state=tmp_path / "b.dpsql"):
                (folder,) = tmp_path.glob("dpsql-spark-*")
                assert folder.stat().st_mode & 0o777 == 0o700
            declare(session)
            session.sql("CALL dp_new_version('visits')")
            session.sql(QUESTIONS["links"], rho=0.5, delta=1e-6)
            assert not [path for path in folder.rglob("*") if path.is_file()]
        assert not list(tmp_path.glob("dpsql-spark-*"))
    spark.stop()
