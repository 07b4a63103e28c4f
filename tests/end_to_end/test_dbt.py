"""A real dbt project with private models, built by dbt itself: what it charges, what it leaves, what it says."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dpsql
from dpsql.frontends.cli import main
from dpsql.frontends.dbt.project import PACKAGE, write_project_files
from tests.documents.page_numbers import check_listed
from tests.parts import split_of

ROOT = Path(__file__).parents[2]
STEPS = Path(__file__).with_name("dbt_steps.py")
PRIVATE = ("diagnoses", "visits_by_city")
DIAGNOSES = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.02, delta = 1e-9) diagnosis, "
    "count(DISTINCT patient_id) AS patients FROM visits GROUP BY diagnosis"
)
CITIES = "select city, count(*) as visits from {{ ref('visits') }} group by city"
VERSION = "models/schema.yml"
DIAGNOSES_MODEL = "models/diagnoses.sql"
CITIES_MODEL = "models/visits_by_city.sql"
CANARY = "CANARY-77"


@dataclasses.dataclass(frozen=True)
class Ran:
    """What came of the steps, and the folder in which they ran."""

    steps: list[dict[str, Any]]
    folder: Path

    def spent(self, step: int) -> float:
        return float(self.steps[step]["spent"]["patient"])

    def private(self, step: int) -> dict[str, Any]:
        return {name: self.steps[step]["tables"][name] for name in PRIVATE}

    def printed(self, step: int) -> str:
        return str(self.steps[step]["printed"])


LOOKS_LIKE_PATIENT = "p\u0430tient: {epsilon_budget: 1, delta_budget: 1e-6}"
"""A unit whose name has a Cyrillic letter."""


def project(folder: Path) -> Path:
    """The project with its database; the package stands where ``dbt deps`` would put it."""
    shutil.copytree(Path(__file__).with_name("dbt_project"), folder)
    write_project_files(folder, "clinic.duckdb")
    (folder / "dbt_packages").mkdir()
    (folder / "dbt_packages" / "dpsql").symlink_to(PACKAGE)
    stays = [f"{patient},{1 + patient % 3}" for patient in range(3000)]
    (folder / "stays.csv").write_text("\n".join(["patient,ward", *stays]), encoding="utf-8")
    data = ROOT / "sample_data" / "clinic"
    with duckdb.connect(str(folder / "clinic.duckdb")) as connection:
        connection.execute(f"CREATE TABLE raw_visits AS FROM '{data / 'visits.parquet'}'")
        connection.execute(f"CREATE TABLE cities AS FROM '{data / 'cities.parquet'}'")
        connection.execute(
            f"INSERT INTO raw_visits SELECT 10000001, 999983, DATE '2025-01-01', 'Junipermouth', '{CANARY}', 1, FALSE"
        )
    return folder


def run(folder: Path, *steps: object) -> Ran:
    script = folder / "steps.json"
    script.write_text(json.dumps(steps), encoding="utf-8")
    finished = subprocess.run(
        [sys.executable, STEPS, script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return Ran(json.loads(finished.stdout.splitlines()[-1]), folder)


def test_a_project_is_built_again_and_again(tmp_path: Path) -> None:
    """One dbt process and one test, because its start is what takes time."""
    built = run(
        project(tmp_path / "clinic"),
        ["build"],
        {"sql": "DELETE FROM raw_visits WHERE visit_id % 2 = 0"},
        ["build"],
        {"ask": DIAGNOSES, "options": {}},
        {"change": [VERSION, "version: first", "version: second"]},
        ["compile", "--select", "diagnoses"],
        {
            "change": [
                VERSION,
                "patient: {",
                "p\u0430tient: {epsilon_budget: 1, delta_budget: 1e-6}\n            patient: {",
            ]
        },
        ["run"],
        {"change": [DIAGNOSES_MODEL, "rho = 0.02", "rho = 9"]},
        {"change": [CITIES_MODEL, "count(*)", "min(cost)"]},
        {"write": ["models/misspelled.sql", "{{ config(materialized='private_table', epsilo=1) }} " + CITIES]},
        ["run", "--select", *PRIVATE, "misspelled"],
        ["show", "--select", "visits_by_city"],
    )
    a_build_runs_models_and_tests_and_charges_once(built)
    after_a_change_that_is_not_declared_a_build_charges_nothing_and_leaves_identical_tables(built)
    the_same_question_in_python_is_paid_already(built)
    compiling_shows_the_plan_and_spends_nothing(built)
    a_version_that_is_declared_new_is_charged_again(built)
    a_unit_that_looks_like_another_is_warned_of_once(built)
    receipts_and_budgets_are_in_target_and_nothing_private_is(built)
    cannot_be_and_leaves_the_old_table(
        built,
        FAILED,
        "the budget of privacy unit 'patient' does not cover this query",
        "[aggregate] line 3, column 14: min() has no private form: one row decides it.",
        "model 'misspelled' has the config word 'epsilo': write 'epsilon', or put a word of your own below meta",
    )
    cannot_be_and_leaves_the_old_table(
        built, SHOWN, "would run the text of a private model as it stands, without noise."
    )


STAYS = 0.000995975 + 0.000493374
"""The rho of a half width of 90 stays, and of a relative error that the highest level does not reach."""
FIRST, AGAIN, ASKED, COMPILED, NEW_VERSION, FAILED, SHOWN = 0, 2, 3, 5, 7, 11, 12


def a_build_runs_models_and_tests_and_charges_once(built: Ran) -> None:
    assert built.steps[FIRST]["success"], built.printed(FIRST)
    assert "PASS=12 WARN=0 ERROR=0 SKIP=0" in built.printed(FIRST)
    printed = built.printed(FIRST).partition("Finished running")[0]
    told = [line.partition("dpsql adapter: ")[2] for line in printed.splitlines() if "dpsql adapter: " in line]
    assert sorted(line.partition(":")[0] for line in told) == [
        "diagnoses",
        "odd_stays",
        "stays_by_wing",
        "visits_by_city",
    ]
    assert any(re.match(r"visits_by_city: too low: (visits|cost): at least [\d.,]+", line) for line in told)
    assert [line for line in told if line.startswith("odd_stays: missed: ") and "within 1 %" in line], told
    assert [line for line in printed.splitlines() if len(line) > 120] == []
    assert built.spent(FIRST) == pytest.approx(0.02 + 0.00439 + STAYS, abs=1e-5)
    # a seed has INTEGER where a table made of a CSV file has BIGINT
    north, south = built.steps[FIRST]["tables"]["stays_by_wing"]
    assert (north[0], south[0]) == ("north", "south")
    assert north[1] == pytest.approx(2000, abs=500)
    cities = built.steps[FIRST]["tables"]["visits_by_city"]
    assert len(cities) == 48
    assert built.steps[FIRST]["tables"]["busiest_cities"]


def after_a_change_that_is_not_declared_a_build_charges_nothing_and_leaves_identical_tables(built: Ran) -> None:
    assert built.steps[AGAIN]["success"]
    assert built.spent(AGAIN) == built.spent(FIRST)
    assert built.steps[AGAIN]["tables"] == built.steps[FIRST]["tables"]
    assert built.printed(AGAIN).count("[as stored, rho 0 in") == 4


def the_same_question_in_python_is_paid_already(built: Ran) -> None:
    assert built.steps[ASKED]["charged_rho"] == 0
    assert built.steps[ASKED]["rows"] == sorted(built.private(FIRST)["diagnoses"], key=lambda row: str(tuple(row)))


def compiling_shows_the_plan_and_spends_nothing(built: Ran) -> None:
    assert built.steps[COMPILED]["success"]
    printed = built.printed(COMPILED)
    # the version is new, so it will be paid: that is said, and not yet declared
    assert "-- price of the next run, rho: 0.02" in printed
    assert "Gaussian sparse histogram" in printed
    assert built.spent(COMPILED) == built.spent(FIRST)


def a_version_that_is_declared_new_is_charged_again(built: Ran) -> None:
    assert built.steps[NEW_VERSION]["success"]
    assert built.spent(NEW_VERSION) == pytest.approx(2 * built.spent(FIRST) - STAYS)
    after, before = (dict(built.private(step)["visits_by_city"][i][:2] for i in range(48)) for step in (NEW_VERSION, 0))
    assert sum(after.values()) == pytest.approx(0.6 * sum(before.values()), rel=0.2)


def a_unit_that_looks_like_another_is_warned_of_once(built: Ran) -> None:
    warning = "the name of this unit looks like that of unit 'patient'"
    assert [built.printed(step).count(warning) for step in (COMPILED, NEW_VERSION, FAILED)] == [0, 1, 0]


def cannot_be_and_leaves_the_old_table(built: Ran, step: int, *messages: str) -> None:
    assert not built.steps[step]["success"]
    assert [message for message in messages if message not in built.printed(step)] == []
    assert "Traceback" not in built.printed(step)
    assert built.spent(step) == built.spent(NEW_VERSION)
    assert built.steps[step]["tables"] == built.steps[NEW_VERSION]["tables"]


def receipts_and_budgets_are_in_target_and_nothing_private_is(built: Ran) -> None:
    papers = built.folder / "target" / "dpsql"
    receipt = json.loads((papers / "receipts" / "model.clinic.diagnoses.json").read_text(encoding="utf-8"))
    assert receipt["receipt"]["charged_rho"] == pytest.approx(0.02)
    assert receipt["receipt"]["version"] == "second"
    budget = json.loads((papers / "budgets.json").read_text(encoding="utf-8"))[0]
    assert budget["rho_spent"] == pytest.approx(built.spent(NEW_VERSION))
    plan = json.loads((papers / "plans" / "model.clinic.diagnoses.json").read_text(encoding="utf-8"))
    assert {"section": "price", "name": "rho", "value": "0.02"} in plan["plan"]
    written = [path for folder in ("target", "logs") for path in (built.folder / folder).rglob("*") if path.is_file()]
    assert len(written) > 20
    with duckdb.connect(str(built.folder / "clinic.duckdb"), read_only=True) as connection:
        assert connection.execute(f"SELECT count(*) FROM visits WHERE diagnosis = '{CANARY}'").fetchall() == [(1,)]
    # the bounded SQL would hold the secret by which it hashes units
    with contextlib.closing(sqlite3.connect(built.folder / "clinic.duckdb.dpsql")) as books:
        salts = [salt.hex().encode() for (salt,) in books.execute("SELECT salt FROM frame")]
    assert len(salts) == 10
    # a number alone: dbt writes clocks and random names, whose digits may be any
    unit = re.compile(rb"(?<![\w.])999983(?!\w)")
    assert unit.search(b"patient_id = 999983")
    for path in written:
        content = path.read_bytes()
        assert not unit.search(content), path
        for private in (CANARY.encode(), *salts):
            assert private not in content, (path, private)


@pytest.mark.thorough
def test_a_model_may_have_several_private_parts_and_has_one_at_least(tmp_path: Path) -> None:
    both = (
        "{{ config(materialized='private_table', rho=0.02) }}\n-- two parts, and a public table\n"
        "select c.name, v.n, (select count(*) from {{ ref('visits') }} where cost > 100) as dear\n"
        "from {{ source('clinic', 'cities') }} c join (\n"
        "  select city, count(*) as n from {{ ref('visits') }} group by city -- each city\n) v on v.city = c.name"
    )
    names = "{{ config(materialized='private_table') }} select name from {{ source('clinic', 'cities') }}"
    ran = run(
        project(tmp_path / "clinic"),
        {"write": ["models/both.sql", both]},
        {"write": ["models/names.sql", names]},
        ["compile", "--select", "visits", "both"],
        ["run", "--select", "visits", "both"],
        ["compile", "--select", "both"],
        ["run", "--select", "names"],
    )
    *_, built, compiled, refused = range(len(ran.steps))
    assert ran.steps[built]["success"], ran.printed(built)
    assert ran.spent(built) == pytest.approx(0.02)
    assert len(ran.steps[built]["tables"]["both"]) == 48
    papers = ran.folder / "target" / "dpsql" / "receipts"
    receipt = json.loads((papers / "model.clinic.both.json").read_text(encoding="utf-8"))["receipt"]
    assert receipt["charged_rho"] == pytest.approx(0.02)
    assert len(receipt["sets"]) == 2
    assert "plan of both" in ran.printed(compiled)
    assert not ran.steps[refused]["success"]
    assert "model 'names' reads public tables alone" in ran.printed(refused)
    assert "names" not in ran.steps[refused]["tables"]


@pytest.mark.long
def test_whatever_dbt_does_it_pays_once(tmp_path: Path) -> None:
    folder = project(tmp_path / "clinic")
    text = (folder / DIAGNOSES_MODEL).read_text(encoding="utf-8").partition("\n")[2]
    contract = [VERSION, "data_type: bigint", "data_type: hugeint"]
    hook = [DIAGNOSES_MODEL, "differential_privacy", "differential_privacy {{ config(post_hook='select gone') }}"]
    call = [DIAGNOSES_MODEL, text, "call dp_public('visits')"]
    memory = ["profiles.yml", '"clinic.duckdb"', '":memory:"']

    def undone(change: list[str]) -> dict[str, list[str]]:
        return {"change": [change[0], change[2], change[1]]}

    steps: dict[str, object] = {
        "compile before anything is built": ["compile"],
        "build": ["build", "--threads", "4"],
        "full refresh": ["run", "--full-refresh", "--threads", "4"],
        "version": {"change": [VERSION, "version: first", "version: second"]},
        "contract": {"change": contract},
        "broken contract": ["run", "--select", "visits_by_city"],
        "no contract": undone(contract),
        "retried with the contract": ["retry"],
        "hook": {"change": hook},
        "failing hook": ["run", "--select", "diagnoses"],
        "no hook": undone(hook),
        "retried without the hook": ["retry"],
        "call": {"change": call},
        "a model that is no question": ["run", "--select", "diagnoses"],
        "no call": undone(call),
        "compile alone": ["compile", "--no-introspect", "--select", "diagnoses"],
        "empty": ["run", "--empty", "--select", "diagnoses"],
        "memory": {"change": memory},
        "no file": ["compile"],
        "no memory": undone(memory),
        "docs": ["docs", "generate"],
        "schema": {"change": ["profiles.yml", 'path: "clinic.duckdb"', 'path: "clinic.duckdb"\n      schema: other']},
        "deferred": ["run", "--select", "diagnoses", "--defer", "--state", "target", "--target-path", "elsewhere"],
    }
    ran = run(folder, *steps.values())
    at = {name: i for i, name in enumerate(steps)}
    failed = {name for name, step in zip(steps, ran.steps, strict=True) if not step.get("success", True)}
    assert failed == {"broken contract", "failing hook", "a model that is no question", "empty", "no file"}
    assert not any("Traceback" in step.get("printed", "") for step in ran.steps)

    assert "diagnoses has no plan: there is no table" in ran.printed(at["compile before anything is built"])
    assert ran.steps[at["compile before anything is built"]]["spent"] is None
    assert ran.steps[at["full refresh"]] | {"printed": ""} == ran.steps[at["build"]] | {"printed": ""}

    # a contract is held against the plan, so nothing was charged; retried, it is charged once
    assert "This model has an enforced contract that failed." in ran.printed(at["broken contract"])
    assert ran.spent(at["broken contract"]) == ran.spent(at["build"])
    by_city = ran.spent(at["retried with the contract"]) - ran.spent(at["build"])
    assert by_city == pytest.approx(0.00439, abs=1e-4)

    # the charge stays when dbt's own transaction does not, the old table too, and the next run has it for nothing
    before, hooked, retried = at["retried with the contract"], at["failing hook"], at["retried without the hook"]
    assert ran.spent(hooked) == pytest.approx(ran.spent(before) + 0.02)
    assert ran.private(hooked) == ran.private(before)
    assert ran.spent(retried) == ran.spent(hooked)
    assert ran.private(retried)["diagnoses"] != ran.private(hooked)["diagnoses"]
    assert ran.private(retried)["visits_by_city"] == ran.private(hooked)["visits_by_city"]

    assert "a private_table is a SELECT" in ran.printed(at["a model that is no question"])
    assert "dpsql:" not in ran.printed(at["compile alone"])
    assert "--empty asks for a table without rows" in ran.printed(at["empty"])
    assert "name one in the profile" in ran.printed(at["no file"])
    assert ran.spent(at["docs"]) == ran.spent(retried)
    manifest = json.loads((ran.folder / "target" / "manifest.json").read_text(encoding="utf-8"))
    assert "price" in manifest["nodes"]["model.clinic.diagnoses"]["description"]
    assert "- target, stopped: at rho = 0.000493374" in manifest["nodes"]["model.clinic.odd_stays"]["description"]

    # the other schema has no visits, so those of the first are read, and their answer is stored
    assert ran.spent(at["deferred"]) == ran.spent(retried)
    assert "other.diagnoses" in ran.printed(at["deferred"])


@pytest.mark.long
def test_the_tutorial_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "dbt.md").read_text(encoding="utf-8").partition("## What is charged")[0]
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    for name, content in re.findall(
        r"`([\w/]+\.(?:yml|sql))`[^\n]*\n```\w+\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE
    ):
        Path(name).write_text(content, encoding="utf-8")
    with duckdb.connect("clinic.duckdb") as connection:
        connection.execute(f"CREATE TABLE visits AS FROM '{ROOT / 'sample_data' / 'clinic' / 'visits.parquet'}'")
    commands, expected = [], []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        if language == "sh":
            for program, *arguments in map(shlex.split, block.splitlines()):
                if program == "dpsql":
                    assert main(arguments) == 0
                elif program == "dbt":
                    commands.append(arguments)
                    expected.append("")
        elif language == "":
            expected[-1] = block
    ran = run(tmp_path, *commands)
    assert len(commands) == 5
    for i, block in enumerate(expected):
        assert ran.steps[i]["success"], ran.printed(i)
        printed = _without_numbers(ran.printed(i))
        assert all(line in printed for line in _without_numbers(block)), (block, ran.printed(i))
    check_listed("docs/dbt.md", "".join(expected))


def _without_numbers(text: str) -> list[str]:
    """Return lines without times and numbers, except those of a plan, and a table's frame."""
    lines = [re.sub(r"^\d\d:\d\d:\d\d +", "", line) for line in text.splitlines()]
    rows = [
        line.strip() if line.startswith("-- ") else re.sub(r"[\d.]+(e-\d+)?|…|s\\]$", "#", line.strip())
        for line in lines
        if not line.startswith("| ") or "city" in line
    ]
    return [re.sub(r"[ -]*\|[ -]*", "|", row) for row in rows if row]


PARTS_PROFILE = """clinic:
  target: dev
  outputs:
    dev: {{type: duckdb, path: models.duckdb, plugins: [{{module: dpsql.frontends.dbt.plugin, config: {{parts: {}}}}}]}}
"""
PARTS_PROJECT = "name: clinic\nversion: '1.0'\nprofile: clinic\nflags: {send_anonymous_usage_stats: false}\n"
PARTS_SOURCE = """sources:
  - {name: clinic, database: head, schema: main, tables: [{name: raw_visits, meta: {dp: {unit: patient,
      privacy_unit_column: patient_id, max_groups_contributed: 2, units: {patient: {epsilon_budget: 3,
      delta_budget: 1e-6}}}}}]}
"""


@pytest.mark.long
def test_a_private_model_of_a_table_in_parts(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / "models").mkdir(parents=True)
    (folder / "dbt_packages").mkdir()
    (folder / "dbt_packages" / "dpsql").symlink_to(PACKAGE)
    (folder / "packages.yml").write_text(f"packages:\n  - local: {json.dumps(str(PACKAGE))}\n", encoding="utf-8")
    (folder / "dbt_project.yml").write_text(PARTS_PROJECT, encoding="utf-8")
    (folder / "profiles.yml").write_text(PARTS_PROFILE.format("parts"), encoding="utf-8")
    (folder / "models" / "schema.yml").write_text(PARTS_SOURCE, encoding="utf-8")
    (folder / "models" / "by_city.sql").write_text(
        "{{ config(materialized='private_table', rho=0.02) }} select city, count(*) as n "
        "from {{ source('clinic', 'raw_visits') }} group by city",
        encoding="utf-8",
    )
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE raw_visits AS FROM '{ROOT / 'sample_data' / 'clinic' / 'visits.parquet'}'")
        split_of(connection, folder / "parts", 3, units={"raw_visits": "patient_id"})
    found = run(folder, ["run"])
    assert found.steps[0]["success"], found.printed(0)
    with duckdb.connect(str(folder / "models.duckdb")) as connection:
        assert connection.sql("SELECT count(*), min(n) FROM by_city").fetchall()[0] > (2, 100)
    with dpsql.connect(parts=folder / "parts") as session:
        assert session.sql("FROM dp_budget()").arrow().column("rho_spent").to_pylist() == [0.02]
