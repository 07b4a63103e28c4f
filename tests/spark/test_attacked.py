"""Tables of Spark under attack: empty ones, texts that are none, keys that nothing counts, files that stay or come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dpsql
from dpsql.engine.spark.cluster import PySparkCluster
from tests.noise_sources import silence
from tests.spark.conftest import started
from tests.spark.test_bad_input import ASKED, PROTECTED, make, price_of_failure

VISITS = "SELECT id % 50 AS patient, id % 3 AS code, id AS visit FROM range(900)"


@pytest.fixture
def session(spark: Any, tmp_path: Path) -> Any:
    make(spark, "visits", VISITS)
    with dpsql.connect(spark=spark, state=tmp_path / "clinic.dpsql") as opened:
        # groups of few people are shown or not by chance otherwise
        silence(opened)
        opened.sql(PROTECTED)
        yield opened
    for table in ("visits", "bills", "`9lives`"):
        spark.sql(f"DROP TABLE IF EXISTS {table}")


def test_a_key_counts_as_unique_only_while_it_is_counted(session: dpsql.Session, spark: Any) -> None:
    """A join by a key that is there many times would multiply what one person adds."""
    make(spark, "bills", "SELECT id AS bill, id % 900 AS visit FROM range(100)")
    session.sql("CALL dp_link('bills', 'visit', parent := 'visits.visit', max_groups_contributed := 2)")
    asked = "SELECT count(*) AS n FROM visits a JOIN visits b ON a.visit = b.visit WHERE b.code = 1"
    assert len(session.sql(asked, rho=0.1, delta=1e-6).fetchall()) == 1
    make(spark, "visits", "SELECT id % 50 AS patient, id % 3 AS code, 7L AS visit FROM range(900)")
    session.sql("CALL dp_new_version('visits')")
    with pytest.raises(dpsql.EngineError, match="there twice"):
        session.sql(asked, rho=0.1, delta=1e-6)
    session.sql("CALL dp_unprotect('bills')")
    with pytest.raises(dpsql.QueryError):
        session.sql(asked, rho=0.1, delta=1e-6)
    assert len(session.sql(ASKED, rho=0.1, delta=1e-6).fetchall()) == 3


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_no_rows_are_answered_as_few_are(adaptive: str, session: dpsql.Session, spark: Any) -> None:
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        spent = []
        for rows in (0, 1):
            make(spark, "visits", f"{VISITS.replace('900', str(rows))}")
            session.sql("CALL dp_new_version('visits')")
            before = session._access.read().ledger.spent("visits").rho_nano
            assert session.sql("SELECT count(*) AS n FROM visits", rho=0.1, delta=1e-6).fetchall() == [(rows,)]
            assert session.sql(ASKED, rho=0.1, delta=1e-6).fetchall() == []
            spent.append(session._access.read().ledger.spent("visits").rho_nano - before)
        assert spent[0] == spent[1]
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")


def test_texts_with_any_bytes_are_answered(session: dpsql.Session, spark: Any) -> None:
    """One row would decide between an answer and an error."""
    make(
        spark,
        "visits",
        "SELECT id % 50 AS patient, CASE WHEN id = 7 THEN CAST(X'FF41' AS STRING) ELSE concat('c', id % 3) END AS code "
        "FROM range(900)",
    )
    session.sql("CALL dp_new_version('visits')")
    assert sorted(session.sql(ASKED, rho=1, delta=1e-6).fetchall())[0][0] == "c0"


def test_a_question_reads_the_columns_that_it_names(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others name in a plan that is free does not matter."""
    session.sql("FROM dp_explain($$ SELECT visit, count(*) FROM visits GROUP BY visit $$, rho := 0.1)")
    seen: list[tuple[str, ...]] = []
    snapshot = PySparkCluster.snapshot

    def remembered(own: PySparkCluster, tables: Any, *of: Any) -> Any:
        seen.extend(one.columns for one in tables)
        return snapshot(own, tables, *of)

    monkeypatch.setattr(PySparkCluster, "snapshot", remembered)
    session.sql(ASKED, rho=0.1, delta=1e-6)
    assert set(seen) == {("patient", "code")}


def test_files_that_come_later_are_of_the_next_version(session: dpsql.Session, spark: Any, tmp_path: Path) -> None:
    place = tmp_path / "files"
    spark.range(100).selectExpr("id AS patient", "1 AS code").write.parquet(str(place))
    spark.sql("DROP TABLE visits")
    spark.sql(f"CREATE TABLE visits USING parquet LOCATION '{place}'")
    counts = []
    for _ in range(2):
        session.sql("CALL dp_new_version('visits')")
        counts.append(session.sql("SELECT count(*) AS n FROM visits", rho=0.1, delta=1e-6).fetchall()[0][0])
        more = tmp_path / "more"
        spark.range(100, 150).selectExpr("id AS patient", "1 AS code").coalesce(1).write.mode("overwrite").parquet(
            str(more)
        )
        for path in more.glob("*.parquet"):
            (place / path.name).write_bytes(path.read_bytes())
    assert counts == [100, 150]


def test_parents_with_any_name_are_found(session: dpsql.Session, spark: Any) -> None:
    make(spark, "`9lives`", "SELECT id AS life, id % 50 AS patient FROM range(100)")
    make(spark, "bills", "SELECT id % 100 AS life, id % 3 AS code FROM range(900)")
    session.sql(
        "CALL dp_protect('\"9lives\"', unit := 'visits', privacy_unit_column := 'patient', max_groups_contributed := 2)"
    )
    session.sql("CALL dp_link('bills', 'life', parent := '\"9lives\".life', max_groups_contributed := 2)")
    assert len(session.sql(ASKED.replace("visits", "bills"), rho=0.5, delta=1e-6).fetchall()) == 3


def test_no_row_stays_on_disk_after_a_failure(tmp_path: Path) -> None:
    spark = started("local[2]", tmp_path)
    spark.sparkContext.setCheckpointDir(str(tmp_path / "named"))
    make(spark, "visits", VISITS.replace("id AS visit", "1 AS visit"))
    make(spark, "bills", "SELECT id AS bill, 1 AS visit, id % 3 AS code FROM range(100)")
    with dpsql.connect(spark=spark, state=tmp_path / "clinic.dpsql") as session:
        session.sql(PROTECTED)
        session.sql("CALL dp_link('bills', 'visit', parent := 'visits.visit', max_groups_contributed := 2)")
        assert price_of_failure(session, dpsql.EngineError, "there twice", ASKED.replace("visits", "bills")) > 0
    assert not [path for path in (tmp_path / "named").rglob("*") if path.is_file()]
    spark.stop()
    with pytest.raises(dpsql.PolicyError, match="was stopped"):
        dpsql.connect(spark=spark)


@pytest.mark.parametrize("said", ["0", "-1", "abc", "2.5"])
def test_a_number_of_parts_is_a_number(said: str, tmp_path: Path) -> None:
    spark = started("local[2]", tmp_path, **{"spark.dpsql.parts": said})
    with pytest.raises(dpsql.PolicyError, match=r"spark\.dpsql\.parts is the number of parts"):
        dpsql.connect(spark=spark)
    spark.stop()
