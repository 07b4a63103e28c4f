"""The same question from the DuckDB shell, Python, pandas and dbt, on one file: one release, one charge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dpsql
from dpsql.assets import asset, native_library
from dpsql.frontends.dbt.project import PACKAGE, write_project_files
from tests.end_to_end.shell_story import PROGRAM
from tests.end_to_end.shell_terminal import SHELL, needs_shell

QUESTION = "SELECT diagnosis, count(DISTINCT patient_id) AS patients FROM visits GROUP BY diagnosis"
OPTIONS = "rho := 0.02, delta := 1e-9"
RHO, DELTA = 0.02, 1e-9
MODEL = f"{{{{ config(materialized='private_table', rho={RHO}, delta={DELTA}) }}}}\n" + QUESTION.replace(
    "FROM visits", "FROM {{ source('clinic', 'visits') }}"
)
SOURCES = "sources:\n  - name: clinic\n    schema: main\n    tables: [{name: visits}]\n"
PROJECT = "name: clinic\nversion: '1.0'\nprofile: clinic\nflags: {send_anonymous_usage_stats: false}\n"


def spent(folder: Path) -> float:
    with dpsql.connect(folder / "clinic.duckdb", read_only=True) as session:
        return float(session.sql("FROM dp_budget('patient')").arrow().to_pylist()[0]["rho_spent"])


def in_python(folder: Path) -> dict[str, int]:
    with dpsql.connect(folder / "clinic.duckdb", read_only=True) as session:
        return by_diagnosis(session.sql(QUESTION, rho=RHO, delta=DELTA).arrow().to_pylist())


def in_pandas(folder: Path) -> dict[str, int]:
    with duckdb.connect(str(folder / "clinic.duckdb"), read_only=True) as connection:
        visits = connection.sql("FROM visits").df()
    patient = dpsql.unit("patient", state=folder / "clinic.duckdb.dpsql", source="visits")
    answer = visits.dp.groupby("diagnosis", unit=patient, rho=RHO, delta=DELTA).agg(patients=("patient_id", "nunique"))
    return {str(key): int(value) for key, value in answer["patients"].items()}


def in_dbt(folder: Path) -> dict[str, int]:
    (folder / "dbt_project.yml").write_text(PROJECT, encoding="utf-8")
    write_project_files(folder, "clinic.duckdb")
    (folder / "dbt_packages").mkdir()
    (folder / "dbt_packages" / "dpsql").symlink_to(PACKAGE)
    models = folder / "models"
    models.mkdir()
    (models / "sources.yml").write_text(SOURCES, encoding="utf-8")
    (models / "by_diagnosis.sql").write_text(MODEL, encoding="utf-8")
    run = subprocess.run(
        [Path(sys.executable).with_name("dbt"), "run"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    with duckdb.connect(str(folder / "clinic.duckdb"), read_only=True) as connection:
        return by_diagnosis(connection.sql("FROM by_diagnosis").to_arrow_table().to_pylist())


def by_diagnosis(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Patients by diagnosis, without those who have none, whom pandas leaves out."""
    return {row["diagnosis"]: row["patients"] for row in rows if row["diagnosis"] is not None}


def in_shell(folder: Path, statements: str) -> str:
    assert SHELL is not None
    run = subprocess.run(
        [SHELL, "-unsigned", "-json", "-cmd", f"LOAD '{native_library()}'", str(folder / "clinic.duckdb")],
        input=statements,
        capture_output=True,
        text=True,
        env=os.environ | {"DPSQL_HELPER": PROGRAM},
        check=True,
    )
    assert not run.stderr
    return run.stdout


@pytest.mark.long
@needs_shell
def test_one_question_costs_once_wherever_it_is_asked(tmp_path: Path) -> None:
    # a file that the shell, which is older than the wheel, can open
    with dpsql.connect(tmp_path / "clinic.duckdb") as session:
        session.connection.execute(f"CREATE TABLE visits AS FROM '{asset('sample_data', 'clinic')}/visits.parquet'")
    in_shell(
        tmp_path,
        "CALL dp_unit('patient', epsilon_budget := 3, delta_budget := 1e-6);\n"
        "CALL dp_protect('visits', coverage := FALSE, unit := 'patient', privacy_unit_column := 'patient_id', "
        "max_groups_contributed := 4);\n",
    )
    answer = by_diagnosis(json.loads(in_shell(tmp_path, f"FROM dp_query($$ {QUESTION} $$, {OPTIONS});\n")))
    once = spent(tmp_path)
    assert 0 < once <= RHO
    for ask in (in_python, in_pandas, in_dbt):
        assert ask(tmp_path) == answer
        assert spent(tmp_path) == once
