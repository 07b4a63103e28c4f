"""Tables and sessions of Spark that are refused: a clear error, and no charge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyspark
import pytest

import dpsql
from dpsql.engine.spark import carrier, cluster, database
from dpsql.engine.spark.cluster import PySparkCluster
from tests.noise_sources import silence

BUDGET = "epsilon_budget := 50, delta_budget := 1e-4"
PROTECTED = f"CALL dp_protect('visits', privacy_unit_column := 'patient', max_groups_contributed := 2, {BUDGET})"
ASKED = "SELECT code, count(*) AS n FROM visits GROUP BY code"


def make(spark: Any, table: str, select: str) -> None:
    """Make a table of Spark."""
    spark.sql(f"DROP TABLE IF EXISTS {table}")
    spark.sql(f"CREATE TABLE {table} USING parquet AS {select}")


@pytest.fixture
def session(spark: Any, tmp_path: Path) -> Any:
    make(spark, "visits", "SELECT id % 50 AS patient, id % 3 AS code FROM range(900)")
    with dpsql.connect(spark=spark, state=tmp_path / "clinic.dpsql") as opened:
        # groups of few people are shown or not by chance otherwise
        silence(opened)
        yield opened
    for table in ("visits", "stays", "meals"):
        spark.sql(f"DROP TABLE IF EXISTS {table}")


def price_of_failure(session: dpsql.Session, error: type[dpsql.DpsqlError], match: str, asked: str = ASKED) -> int:
    """Return what a question that fails has cost."""
    with pytest.raises(error, match=match):
        session.sql(asked, rho=0.1, delta=1e-6)
    (unit,) = session._access.read().policy().units
    return session._access.read().ledger.spent(unit.name).rho_nano


@pytest.mark.parametrize("kind", ["double", "float"])
def test_units_that_are_fractions_are_refused(kind: str, session: dpsql.Session, spark: Any) -> None:
    make(spark, "visits", f"SELECT CAST(id % 50 AS {kind}) AS patient, id % 3 AS code FROM range(900)")
    session.sql(PROTECTED)
    assert price_of_failure(session, dpsql.PolicyError, "privacy unit column 'patient' .* may differ in Spark") == 0


def test_views_are_refused_by_name(session: dpsql.Session, spark: Any) -> None:
    spark.sql("CREATE OR REPLACE VIEW seen AS SELECT * FROM visits")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW passing AS SELECT * FROM visits")
    for name in ("seen", "passing"):
        with pytest.raises(dpsql.PolicyError, match=f"'{name}' is a view of Spark.*USING parquet"):
            session.sql(PROTECTED.replace("visits", name))
    spark.sql("DROP VIEW seen")
    session.sql(PROTECTED)
    spark.sql("DROP TABLE visits")
    spark.sql("CREATE VIEW visits AS SELECT 1 AS patient, 1 AS code")
    assert price_of_failure(session, dpsql.PolicyError, "'visits' is a view") == 0
    spark.sql("DROP VIEW visits")


def test_a_table_that_is_gone_is_refused(session: dpsql.Session, spark: Any) -> None:
    session.sql(PROTECTED)
    spark.sql("DROP TABLE visits")
    assert price_of_failure(session, dpsql.PolicyError, "'main.visits' is declared, and is no table of") == 0


def test_a_table_that_changes_after_the_charge_shows_nothing(
    session: dpsql.Session, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.sql(PROTECTED)
    snapshot = PySparkCluster.snapshot

    def changed(own: PySparkCluster, *of: Any) -> Any:
        make(spark, "visits", "SELECT id % 50 AS patient, id AS other FROM range(900)")
        return snapshot(own, *of)

    monkeypatch.setattr(PySparkCluster, "snapshot", changed)
    assert price_of_failure(session, dpsql.EngineError, "created anew or altered") > 0


def test_rows_that_come_later_are_of_no_question_that_runs(
    session: dpsql.Session, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All readings of a question see one snapshot."""
    monkeypatch.setattr(carrier, "FEW_UNITS", -1)
    session.sql(PROTECTED.replace(" max_groups_contributed := 2,", ""))
    session.sql(ASKED, rho=10, delta=1e-6)
    read = cluster.SparkRows.read
    session.sql("CALL dp_new_version('visits')")
    texts = []

    def reading(own: cluster.SparkRows, *of: Any) -> Any:
        texts.append(of)
        make(spark, "visits", "SELECT id % 50 AS patient, 100 + id % 3 AS code FROM range(900)")
        return read(own, *of)

    monkeypatch.setattr(cluster.SparkRows, "read", reading)
    answer = session.sql(ASKED, rho=10, delta=1e-6)
    assert texts
    assert sorted(row[0] for row in answer.fetchall()) == [0, 1, 2]


def test_a_key_that_is_there_twice_is_refused(session: dpsql.Session, spark: Any) -> None:
    make(spark, "stays", "SELECT id AS stay, id % 50 AS patient FROM range(100)")
    make(spark, "meals", "SELECT id % 100 AS stay, id % 3 AS code FROM range(900)")
    session.sql(PROTECTED.replace("visits", "stays"))
    session.sql("CALL dp_link('meals', 'stay', parent := 'stays.stay', max_groups_contributed := 2)")
    asked = ASKED.replace("visits", "meals")
    assert len(session.sql(asked, rho=0.1, delta=1e-6).fetchall()) == 3
    spent = price_of_failure(session, dpsql.SchemaError, "no_such", "SELECT no_such, count(*) FROM meals GROUP BY 1")
    make(spark, "stays", "SELECT id AS stay, id % 50 AS patient FROM range(100) UNION ALL SELECT 7, 1")
    session.sql("CALL dp_new_version('meals')")
    for text in (asked, "SELECT count(*) AS n FROM stays"):
        assert price_of_failure(session, dpsql.EngineError, "there twice", text) > spent


def test_machines_of_another_duckdb_are_refused(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    session.sql(PROTECTED)
    monkeypatch.setattr(database, "PROBE", "SELECT 'v0.9', hash(hash(8))::VARCHAR")
    assert price_of_failure(session, dpsql.EngineError, "another version of DuckDB") == 0


def test_the_time_of_a_question_is_limited(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    session.sql(PROTECTED)
    session.sql(ASKED, rho=0.1, delta=1e-6)
    session.sql("CALL dp_new_version('visits')")
    with pytest.raises(dpsql.EngineError, match="ran out of time"):
        session.sql(ASKED, rho=0.1, delta=1e-6, timeout_seconds=0.02)
    assert len(session.sql(ASKED, rho=0.1, delta=1e-6).fetchall()) == 3
    (unit,) = session._access.read().policy().units
    assert session._access.read().ledger.spent(unit.name).rho_nano == 2 * 10**8


def test_a_state_file_of_another_database_is_refused(session: dpsql.Session, spark: Any, tmp_path: Path) -> None:
    session.sql(PROTECTED)
    session.sql(ASKED, rho=0.1, delta=1e-6)
    spark.sql("CREATE DATABASE IF NOT EXISTS others")
    spark.sql("USE others")
    try:
        make(spark, "visits", "SELECT id % 50 AS patient, id % 3 AS code FROM range(900)")
        with (
            dpsql.connect(spark=spark, state=tmp_path / "clinic.dpsql") as other,
            pytest.raises(dpsql.StateError, match="belongs to another database"),
        ):
            other.sql(ASKED, rho=0.2, delta=1e-6)
        spark.sql("DROP TABLE visits")
    finally:
        spark.sql("USE default")


@pytest.mark.parametrize(
    ("named", "error", "match"),
    [
        ({"spark": "local"}, dpsql.PolicyError, "was given a str"),
        ({"path": "a.duckdb"}, dpsql.PolicyError, "not both"),
        ({"parts": "folder"}, dpsql.PolicyError, "not both"),
        ({"processes": 2}, dpsql.PolicyError, "not both"),
    ],
)
def test_other_things_are_no_sessions(named: Any, error: type[Exception], match: str, spark: Any) -> None:
    with pytest.raises(error, match=match):
        dpsql.connect(**{"spark": spark, **named})


def test_an_old_pyspark_is_refused(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    with pytest.raises(dpsql.MissingPackageError, match=r"pyspark 4 or later in place of 3\.5\.1"):
        dpsql.connect(spark=spark)


def test_a_public_table_that_is_too_large_is_refused(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MOST_PUBLIC_BYTES", 1000)
    session.sql("CALL dp_public('visits')")
    with pytest.raises(dpsql.PolicyError, match=r"public table 'visits' has .* each task takes all of it"):
        session.sql("FROM visits")
