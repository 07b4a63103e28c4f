"""The command split: which tables it takes, and what it prints."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.engine.parts.manifest import HEAD, read_manifest
from dpsql.frontends.cli import main
from dpsql.session import state_beside

DECLARATIONS = (
    "CALL dp_unit('patient', epsilon_budget := 3, delta_budget := 1e-6)",
    "CALL dp_protect('patients', unit := 'patient', privacy_unit_column := 'patient_id')",
    "CALL dp_link('visits', 'patient_id', parent := 'patients.patient_id')",
    "CALL dp_link('lines', 'visit_id', parent := 'visits.visit_id')",
    "CALL dp_public('cities')",
    "CALL dp_unit('doctor', epsilon_budget := 3, delta_budget := 1e-6)",
    "CALL dp_protect('staff', unit := 'doctor', privacy_unit_column := 'doctor_id', separate_people := true)",
)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # a database with declarations, and its tables as files
    folder = tmp_path_factory.mktemp("made")
    with dpsql.connect(folder / "clinic.duckdb") as session:
        session.connection.execute(
            "CREATE TABLE patients AS SELECT i AS patient_id, 'c' || i % 3 AS city FROM range(60) rows(i);"
            "ALTER TABLE patients ADD PRIMARY KEY (patient_id);"
            "CREATE TABLE visits(visit_id INTEGER PRIMARY KEY, patient_id BIGINT);"
            "INSERT INTO visits SELECT i, i % 60 FROM range(200) rows(i);"
            "CREATE TABLE lines AS SELECT i % 200 AS visit_id, 'x' AS code FROM range(500) rows(i);"
            "CREATE TABLE cities AS SELECT 'c' || i AS city FROM range(3) rows(i);"
            "CREATE TABLE staff AS SELECT 1 AS doctor_id;"
            "CREATE VIEW seen AS SELECT * FROM visits JOIN patients USING (patient_id);"
            f"COPY visits TO '{folder / 'visits.parquet'}'; COPY patients TO '{folder / 'patients.csv'}';"
            f"COPY cities TO '{folder / 'cities.csv'}'"
        )
        for declaration in DECLARATIONS:
            session.sql(declaration)
    return folder


@pytest.fixture
def run(made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Exit code, stdout and stderr of dpsql split, in a folder with files and a database."""
    monkeypatch.chdir(made)

    def run(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["split", *argv])
        return code, *capsys.readouterr()

    yield run
    shutil.rmtree(made / "parts", ignore_errors=True)


def test_files_are_split_and_checked(run: Run) -> None:
    code, out, error = run(
        "visits.parquet",
        "patients.csv",
        "--by",
        "patient_id",
        "--public",
        "cities.csv",
        "--parts",
        "3",
        "--out",
        "parts",
    )
    assert (code, error) == (0, "")
    assert out.splitlines() == [
        "main.visits, main.patients, main.cities in 3 parts: parts",
        "declare the privacy unit (choose its name and budget) and each table:",
        "  dpsql query parts \"CALL dp_unit('patient', epsilon_budget := 3, delta_budget := 1e-6)\"",
        "  dpsql query parts \"CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient_id')\"",
        "  dpsql query parts \"CALL dp_protect('patients', unit := 'patient', privacy_unit_column := 'patient_id')\"",
        "  dpsql query parts \"CALL dp_public('cities')\"",
    ]
    assert run("--check", "parts") == (0, "parts: no privacy unit is in two of the 3 parts\n", "")
    assert state_beside("parts") == Path.cwd() / "parts" / f"{HEAD}.dpsql"
    again = ("visits.parquet", "--by", "visits=patient_id", "--parts", "1", "--out", "parts")
    code, out, error = run(*again)
    assert out.splitlines()[:3] == [
        "main.visits in 1 part: parts",
        "no longer in parts: main.patients, main.cities; if one of them is declared, all questions fail",
        "declare the privacy unit (choose its name and budget) and each table:",
    ]
    with dpsql.connect("parts") as session:
        session.sql(DECLARATIONS[0])
    code, out, error = run(*again)
    assert out.splitlines()[1:] == [
        "declare the new version of each table whose rows changed:",
        "  dpsql query parts \"CALL dp_new_version('visits')\"",
    ]
    assert not list(Path.cwd().glob("parts-*"))
    (Path("parts") / read_manifest(Path("parts")).parts[0].name).unlink()
    code, out, error = run("--check", "parts")
    assert (code, out) == (2, "")
    assert "is missing" in error


def test_declared_tables_are_split_by_their_unit(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = run("clinic.duckdb", "--parts", "2", "--out", "parts")
    assert (code, out) == (2, "")
    assert "tables of patient, doctor: name one with --unit" in error
    code, out, error = run("clinic.duckdb", "--parts", "2", "--out", "parts", "--unit", "Patient")
    assert (code, error) == (0, "")
    assert out.splitlines() == [
        "left out, though declared: main.staff",
        "main.lines, main.patients, main.visits, main.cities in 2 parts: parts",
        "the rows keep their budget: move the state file (a copy is a second budget), and accept it:",
        f"  mv {Path.cwd() / 'clinic.duckdb.dpsql'} parts/head.duckdb.dpsql",
        '  dpsql query parts "CALL dp_accept_state()"',
        "ask the folder alone from now on; a later split of the database takes --state parts/head.duckdb.dpsql",
    ]
    split = read_manifest(Path("parts"))
    assert [(one.table, one.unit_column, one.links) for one in split.tables] == [
        ("main.lines", "patient_id", ((("visit_id",), "main.visits", ("visit_id",)),)),
        ("main.patients", "patient_id", ()),
        ("main.visits", "patient_id", ()),
        ("main.cities", "", ()),
    ]
    assert run("--check", "parts")[0] == 0
    with duckdb.connect(Path("parts", split.parts[0].name), read_only=True) as part:
        ((seen, visits),) = part.execute("SELECT (SELECT count(*) FROM seen), (SELECT count(*) FROM visits)").fetchall()
    assert seen == visits > 0
    shutil.copy("clinic.duckdb.dpsql", Path("parts", f"{HEAD}.dpsql"))
    # the books of a folder are read by its name
    assert main(["budget", "parts", "patient"]) == 0
    assert "patient" in capsys.readouterr().out
    assert main(["policy", "parts", "--format", "csv", "--output", "parts/head.duckdb"]) == 2


def test_named_tables_of_a_database_are_split(run: Run) -> None:
    named = ("--table", "visits", "--table", "main.patients", "--by", "patient_id", "--public", "cities")
    code, out, _ = run("clinic.duckdb", *named, "--parts", "2", "--out", "parts")
    assert code == 0
    warned, *lines = out.splitlines()
    assert "clinic.duckdb.dpsql has a budget for tables of this database" in warned
    assert lines[0] == "main.visits, main.patients, main.cities in 2 parts: parts"
    assert lines[1].startswith("declare the privacy unit")
    assert run("--check", "parts")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--out parts", "needs files or a DuckDB database"),
        ("visits.parquet --by patient_id", "--out FOLDER is missing: dpsql split"),
        ("visits.parquet --out parts", "--by visits=COLUMN"),
        ("visits.parquet --by patient --out parts", "no column 'patient'"),
        ("visits.parquet --by visits=patient_id,stays=x --out parts", "'stays', which is no table"),
        ("visits.parquet --by patient_id --by visit_id --out parts", "two unit columns of all tables"),
        ("visits.parquet --by patient_id --out none/parts", "there is no folder"),
        ("visits.parquet --by patient_id --out .", "is not empty"),
        ("visits.parquet --by patient_id --out cities.csv", "is a file"),
        ("visits.parquet --by patient_id --parts 0 --out parts", "1 to 1024 parts"),
        ("visits.parquet visits.parquet --by patient_id --out parts", "is twice"),
        ("clinic.duckdb visits.parquet --by patient_id --out parts", "one DuckDB database"),
        ("clinic.duckdb --by patient_id --out parts", "need --table"),
        ("clinic.duckdb --state none.dpsql --out parts", "no state file none.dpsql"),
        ("clinic.duckdb --unit nobody --out parts", "no table is protected for the privacy unit 'nobody'"),
        ("clinic.duckdb --table nothing --by patient_id --out parts", "no table 'nothing'"),
        ("nothing.parquet --by patient_id --out parts", "does not exist"),
        ("visits.parquet --unit patient --by patient_id --out parts", "are for a DuckDB database"),
        ("--check none", "no folder of parts"),
        ("--check clinic.duckdb", "is a file"),
        ("--check none --out parts", "takes no other arguments"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(run: Run, arguments: str, message: str) -> None:
    before = sorted(Path.cwd().rglob("*"))
    code, out, error = run(*arguments.split())
    assert (code, out) == (2, "")
    assert message in error
    assert sorted(Path.cwd().rglob("*")) == before


def test_an_interrupted_split_leaves_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        # DuckDB's error if a signal comes while it works
        raise RuntimeError("Query interrupted")

    monkeypatch.setattr("dpsql.engine.parts.split.create_tables", interrupted)
    before = sorted(Path.cwd().rglob("*"))
    code, out, error = run("visits.parquet", "--by", "patient_id", "--out", "parts")
    assert (code, out) == (130, "")
    assert "interrupted" in error
    assert sorted(Path.cwd().rglob("*")) == before
