"""Tables of Spark, without Spark: the engine, its tasks and its merge over a cluster in this process.

`make spark` asks the same of Spark (tests/spark).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dpsql
from dpsql.bound.partials import PartialRows
from dpsql.engine.parts.process import PROBE
from dpsql.engine.parts.transaction import Made, Reading
from dpsql.engine.spark import carrier, database, task
from dpsql.engine.spark.carrier import SparkCarrier
from dpsql.engine.spark.request import ADDED, DONE, OTHER, TaskRequest, few
from dpsql.engine.spark.tables import SparkTable, UnitTable
from dpsql.engine.spark.task import run_part
from dpsql.session.engines import TablesOfSpark
from dpsql.session.session import Session
from tests.end_to_end.test_parts import ASKED, PROTECTED, QUESTIONS, SMALL, TABLES, answered, declare, price_of_failure
from tests.fake_cluster import FakeCluster
from tests.noise_sources import silence

KEY = "ALTER TABLE people ADD PRIMARY KEY (patient);"
ASKED_HERE = ("rows", "links", "AUTO", "distinct values", "quantiles", "join", "one row")


def opened(cluster: FakeCluster, state: Path | None = None) -> Session:
    """Return a session on the tables of a cluster."""
    session = Session(duckdb.connect(), state, rows=TablesOfSpark(cluster, "500MB"))
    silence(session)
    return session


@pytest.fixture(scope="module")
def both() -> Iterator[list[dpsql.Session]]:
    """One database, and a cluster with the same rows."""
    with dpsql.connect() as whole:
        whole.connection.execute(TABLES.replace(KEY, "").format(rows=SMALL[0], people=SMALL[1]))
        cluster = FakeCluster(whole.connection.cursor(), 2)
        with opened(cluster) as session:
            yield [declare(whole), declare(session)]


@pytest.mark.parametrize("name", ASKED_HERE)
def test_tasks_answer_as_one_database(name: str, both: list[dpsql.Session]) -> None:
    whole, of_tasks = (answered(session, QUESTIONS[name]) for session in both)
    assert of_tasks == whole
    spent = [session.sql("FROM dp_budget()").fetchall() for session in both]
    assert spent[0] == spent[1]


@pytest.mark.parametrize("name", ["rows", "distinct values", "AUTO"])
def test_rows_that_are_many_are_added_up_before_the_driver(
    name: str, both: list[dpsql.Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal keys of all parts meet in a bucket; numbers and prices stay the same."""
    monkeypatch.setattr(database, "MOST_ROWS", 20)
    for session in both:
        session.sql("CALL dp_new_version('visits')")
    cluster = both[1]._runner.engine._cluster  # type: ignore[attr-defined]
    before = cluster.added
    whole, of_tasks = (answered(session, QUESTIONS[name]) for session in both)
    assert of_tasks == whole
    assert cluster.added > before


def test_a_bucket_that_is_lost_is_noticed(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MOST_ROWS", 1)
    cluster.disturb = lambda found: found.filter(pc.not_equal(found["name"], ADDED))
    with opened(cluster) as session:
        session.sql(PROTECTED)
        price_of_failure(session, dpsql.EngineError, "each part once")


MADE = [
    Made(
        "kept",
        "SELECT patient AS unit, count(*) AS n FROM memory.main.visits GROUP BY ALL",
        ("main.visits",),
        None,
        False,
    ),
    Made("lost", "SELECT * FROM temp.main.kept WHERE n > 17 AND unit < 10", ("kept",), None),
]


def carrier_of(cluster: FakeCluster) -> SparkCarrier:
    (probe,) = cluster.tables.sql(PROBE).fetchall()
    request = TaskRequest(probe, has_native=False, memory_limit="500MB")
    visits = SparkTable("visits", (("patient", "BIGINT"), ("code", "BIGINT")))
    read = UnitTable(visits, ("patient", "code"), "patient")
    return SparkCarrier(cluster, request, lambda _reads, _texts: ([read], ()))


def rows_of(carried: SparkCarrier, name: str) -> int:
    """Return the number of rows of a table, of those that were made or of the source."""
    table, place = ("main.visits", "memory.main.visits") if name == "rows" else (name, f"temp.main.{name}")
    text = PartialRows(f"SELECT count(*) AS n FROM {place}", (), ("n",))
    (tables,) = carried.read(MADE, Reading((text,), (table,)), None)
    return sum(one["n"].to_pylist()[0] for one in tables)


@pytest.mark.parametrize("few_units", [-1, 1_000])
@pytest.mark.parametrize(
    ("order", "runs"), [("kept lost kept rows", 3), ("lost kept rows lost", 3), ("rows lost kept kept", 4)]
)
def test_tables_of_a_question_are_read_in_any_order(
    order: str, runs: int, few_units: int, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that tasks do not hand on is made again, from the rows that the first task read.

    The driver reads a small table itself.
    """
    monkeypatch.setattr(carrier, "FEW_UNITS", few_units)
    carried = carrier_of(cluster)
    counts = []
    for name in order.split():
        counts.append(rows_of(carried, name))
        # a second reading of the source would see this row
        cluster.tables.execute("INSERT INTO visits VALUES (1, 1)")
    carried.end()
    assert cluster.runs == (runs if few_units > 0 else len(counts))
    assert counts == [{"rows": 900, "kept": 50, "lost": 10}[name] for name in order.split()]


def test_one_person_does_not_decide_what_the_driver_reads(cluster: FakeCluster) -> None:
    """A person with many groups brings many rows, and no task."""
    runs = []
    for groups in (3, 20_000):
        cluster.tables.execute(f"INSERT INTO visits SELECT 7, i FROM range({groups}) r(i)")
        asked = FakeCluster(cluster.tables.cursor(), 3)
        with opened(asked) as session:
            session.sql("CALL dp_unit('patient', rho_budget := 1000, delta_threshold := 0.5, delta_conversion := 1e-6)")
            session.sql("CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient')")
            session.sql("SELECT code, count(*) AS n FROM visits GROUP BY code", rho=0.1, delta=1e-6)
        runs.append(asked.runs)
    assert runs[0] == runs[1]


def test_each_small_table_comes_to_the_driver_once(cluster: FakeCluster) -> None:
    cluster.disturb = lambda found: pa.concat_tables([found, found.filter(pc.equal(found["name"], few("lost")))])
    with pytest.raises(dpsql.EngineError, match="each part once"):
        rows_of(carrier_of(cluster), "kept")


@pytest.fixture
def cluster() -> FakeCluster:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE visits AS SELECT i % 50 AS patient, i % 3 AS code FROM range(900) t(i)")
    return FakeCluster(connection, 3)


def test_each_part_counts_once(cluster: FakeCluster) -> None:
    """A second run of a task, and a part without its last row, are no answers."""
    with opened(cluster) as session:
        session.sql(PROTECTED)
        cluster.disturb = lambda found: pa.concat_tables([found, found])
        assert price_of_failure(session, dpsql.EngineError, "each part once") > 0
        cluster.disturb = lambda found: found.slice(0, found.num_rows - 1)
        price_of_failure(session, dpsql.EngineError, "each part once")
        cluster.disturb = lambda found: found
        spent = session._access.read().ledger.spent(session._access.read().policy().units[0].name).rho_nano
        assert len(session.sql(ASKED, rho=0.1, delta=1e-6).fetchall()) == 3
        assert spent <= 10**8
        assert cluster.dropped > 0


def test_a_task_that_fails_shows_nothing(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(cluster) as session:
        session.sql(PROTECTED)
        session.sql("SELECT count(*) AS n FROM visits", rho=0.1, delta=1e-6)
        monkeypatch.setattr(task, "HOME", "memory.nowhere")
        assert price_of_failure(session, dpsql.EngineError, "a task of Spark could not read its rows") > 0


def test_tables_have_to_be_those_of_the_policy(cluster: FakeCluster) -> None:
    with opened(cluster) as session:
        session.sql(PROTECTED)
        cluster.tables.execute("ALTER TABLE visits ALTER patient TYPE DOUBLE")
        assert price_of_failure(session, dpsql.PolicyError, "'patient' .* has the type DOUBLE") == 0
        cluster.tables.execute("DROP TABLE visits")
        assert price_of_failure(session, dpsql.PolicyError, "is no table of fake.default in Spark") == 0
        session.connection.execute("CREATE TABLE visits AS SELECT 1 AS patient, 1 AS code")
        assert price_of_failure(session, dpsql.PolicyError, "is no table of fake.default in Spark") == 0


def test_a_state_file_belongs_to_one_database_of_spark(cluster: FakeCluster, tmp_path: Path) -> None:
    with opened(cluster, tmp_path / "state.dpsql") as session:
        session.sql(PROTECTED)
        session.sql(ASKED, rho=0.1, delta=1e-6)
        other = FakeCluster(cluster.tables.cursor(), 3, "fake.other")
        with (
            opened(other, tmp_path / "state.dpsql") as second,
            pytest.raises(dpsql.StateError, match="another database"),
        ):
            second.sql(ASKED, rho=0.2, delta=1e-6)


def test_a_session_without_pyspark_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.delitem(sys.modules, "dpsql.engine.spark.cluster", raising=False)
    with pytest.raises(dpsql.MissingPackageError, match=r"dpsql\[spark\]"):
        dpsql.connect(spark=object())


def test_an_error_in_a_task_is_a_word() -> None:
    request = TaskRequest(("no version", "no hash"), has_native=False, memory_limit="100MB")
    (row,) = [batch.to_pylist()[0] for batch in run_part(request, 0, 1, [])]
    assert (row["name"], row["failure"], json.loads(row["rows"])) == (DONE, OTHER, {})
