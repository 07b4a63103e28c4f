"""Values of rows, and salts, are in no log, event or error of Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CANARY = "canary-5e1f0a"
LOGS = """
rootLogger.level = {level}
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {folder}/spark.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c %m%n%ex
"""
PROGRAM = """
import os, sys
from dataclasses import replace
from pathlib import Path
from unittest import mock
import duckdb
os.environ["PYSPARK_PYTHON"] = sys.executable
from tests.spark.conftest import started, to_spark
import dpsql
from dpsql.bound.partials import PartialRows
from dpsql.engine.parts.transaction import PartsTransaction
from dpsql.engine.spark import cluster

folder, leaks = Path(sys.argv[1]), sys.argv[2] == "leaks"
spark = started("local[2]", folder, **{{
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={{folder}}/log4j2.properties",
    "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false",
    "spark.eventLog.dir": str(folder / "events")}})
with duckdb.connect() as connection:
    connection.execute("CREATE TABLE visits AS SELECT i % 50 AS patient, '{canary}-' || i % 3 AS code, "
                       "'{canary}-' || i AS note FROM range(900) t(i)")
    to_spark(connection, spark, folder / "files", ["visits"])
session = dpsql.connect(spark=spark, state=folder / "clinic.dpsql")
session.sql("CALL dp_protect('visits', privacy_unit_column := 'patient', max_groups_contributed := 2, "
            "epsilon_budget := 50, delta_budget := 1e-4)")
salts = []
urandom = os.urandom
def remembered(size):
    found = urandom(size)
    salts.append(found.hex())
    return found
if leaks:
    def leaking(frame, request):
        def part(batches):
            raise ValueError(str([batch.to_pylist()[:3] for batch in batches]))
            yield
        return frame.mapInArrow(part, cluster._OUTPUT)
    mapped, cluster.mapped = cluster.mapped, lambda frame, request: (
        leaking(frame, request) if request.tables else mapped(frame, request))
with mock.patch("dpsql.state.side_table.os.urandom", remembered):
    try:
        rows = session.sql("SELECT code, count(*) AS n, count(DISTINCT note) AS d FROM visits GROUP BY code", rho=1)
        print(len(rows.fetchall()))
    except dpsql.EngineError as error:
        print(error)
read = PartsTransaction.read
wrong = (PartialRows("SELECT CAST(note AS INTEGER) AS n FROM memory.main.visits", (), ()),)
PartsTransaction.read = lambda own, asked, *of: read(own, replace(asked, texts=wrong), *of)
session.sql("CALL dp_new_version('visits')")
try:
    session.sql("SELECT code, count(*) AS n FROM visits GROUP BY code", rho=1)
except dpsql.EngineError as error:
    print(error)
(folder / "salts").write_text("\\n".join(salts))
session.close()
spark.stop()
"""


def run(folder: Path, *, leaks: bool, level: str) -> tuple[str, str]:
    """Return what a program prints, and all that Spark logs of it."""
    (folder / "events").mkdir()
    (folder / "log4j2.properties").write_text(LOGS.format(level=level, folder=folder))
    program = folder / "program.py"
    program.write_text(PROGRAM.format(canary=CANARY))
    ran = subprocess.run(
        [sys.executable, str(program), str(folder), "leaks" if leaks else ""],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
    )
    assert ran.returncode == 0, ran.stderr
    logged = (folder / "spark.log").read_text() + ran.stderr
    logged += "".join(path.read_text(errors="replace") for path in (folder / "events").rglob("*") if path.is_file())
    assert "MapInArrow" in logged
    return ran.stdout, logged


@pytest.mark.parametrize("level", ["info", "debug"])
def test_no_log_has_a_value_or_a_salt(level: str, tmp_path: Path) -> None:
    printed, logged = run(tmp_path, leaks=False, level=level)
    first, second = printed.splitlines()
    assert first == "3"
    assert "a task of Spark could not read its rows" in second
    assert CANARY not in logged + printed
    salts = (tmp_path / "salts").read_text().split()
    assert salts
    assert not any(salt in logged for salt in salts)


def test_an_error_with_values_would_be_found(tmp_path: Path) -> None:
    """The broken twin: a task that raises an error of its own."""
    printed, logged = run(tmp_path, leaks=True, level="info")
    assert CANARY in logged
    assert CANARY not in printed
