"""The command line: what each command prints, in which format, and how it fails."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

import dpsql
from dpsql.frontends.cli import main
from dpsql.session import runner
from tests.deterministic_entropy import SeededEntropy
from tests.json_rows import plain_rows

RARE = "canary-of-one-patient"
COUNTS = "SELECT city, count(DISTINCT patient) AS patients FROM visits GROUP BY city ORDER BY city"
DECLARATIONS = (
    "CALL dp_unit('patient', epsilon_budget := 3, delta_budget := 1e-6)",
    "CALL dp_protect('visits', coverage := FALSE, unit := 'patient', privacy_unit_column := 'patient', "
    "max_groups_contributed := 2, max_rows_per_group := 3)",
    "CALL dp_domain('visits', 'cost', bounds := [0, 50])",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A protected database, declared through the command line itself."""
    folder = tmp_path_factory.mktemp("made")
    with duckdb.connect(folder / "clinic.duckdb") as connection:
        connection.execute(
            "CREATE TABLE visits AS SELECT i % 900 AS patient, ['north', 'south', 'west'][1 + i % 3] AS city, "
            "i % 40 AS cost FROM range(5000) rows(i)"
        )
        connection.execute("INSERT INTO visits VALUES (1, ?, 5)", [RARE])
        connection.execute("CREATE TABLE staff AS SELECT 1 AS id")
    for declaration in DECLARATIONS:
        assert main(["query", str(folder / "clinic.duckdb"), declaration]) == 0
    return folder


@pytest.fixture
def database(made: Path, tmp_path: Path) -> str:
    """A fresh copy: no budget spent."""
    shutil.copytree(made, tmp_path / "clinic")
    return str(tmp_path / "clinic" / "clinic.duckdb")


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, stdout and stderr of one command."""

    def run(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(argv)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def spent_rho(database: str) -> float:
    with dpsql.connect(":memory:", state=f"{database}.dpsql") as session:
        return float(session.sql("FROM dp_budget('patient')").arrow()["rho_spent"][0].as_py())


def charges(database: str) -> int:
    """Count the charges of the ledger."""
    with contextlib.closing(sqlite3.connect(f"{database}.dpsql")) as connection:
        ((count,),) = connection.execute("SELECT count(*) FROM charge")
    return int(count)


def files_below(folder: Path) -> set[str]:
    """All files but the locks that processes meet at and SQLite's own journals."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "dpsql-locks" not in str(path) and not path.name.endswith(("-wal", "-shm"))
    }


# What is printed


def test_a_long_query_says_how_far_it_is_to_the_curator_alone(
    database: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr.__class__, "isatty", lambda _: True, raising=False)
    monkeypatch.setattr("dpsql.frontends.outputs._TICK_SECONDS", 0.001)
    monkeypatch.setattr(dpsql.Session, "progress", lambda _: 0.5)
    _, _, shown = run("query", database, COUNTS, "--rho", "0.01")
    assert re.search(r"answering … \d+ s,  50%", shown)
    _, _, shown = run("query", database, COUNTS, "--rho", "0.02", "--analyst", "ana")
    assert re.search(r"answering … \d+ s", shown)
    assert "%" not in shown


def test_every_format_shows_the_same_answer(database: str, run: Run, tmp_path: Path) -> None:
    asked = ("query", database, COUNTS, "--rho", "0.05")
    code, box, _ = run(*asked)
    assert code == 0
    _, text, receipt = run(*asked, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["city"] for row in rows] == ["north", "south", "west"]
    assert "nothing: served as stored" in receipt

    _, text, _ = run(*asked, "--format", "json")
    assert [{name: str(value) for name, value in row.items()} for row in plain_rows(json.loads(text))] == rows
    _, lines, receipt = run(*asked, "--format", "jsonl")
    assert [json.loads(line) for line in lines.splitlines()] == json.loads(text)["rows"]
    assert "nothing: served as stored" in receipt
    code, shown, _ = run(*asked, "--format", "parquet", "--output", str(tmp_path / "answer.parquet"))
    assert (code, shown) == (0, "")
    stored = pq.read_table(tmp_path / "answer.parquet").to_pylist()
    assert [{name: str(value) for name, value in row.items()} for row in stored] == rows
    for row in rows:
        assert row["city"] in box
        assert row["patients"] in box
    assert "\nprice   rho 0.05 and threshold delta " in box
    _, written, receipt = run(*asked, "--format", "markdown")
    cells = [re.split(r" *\| *", line)[1:-1] for line in written.splitlines() if line.startswith("|")]
    in_box = [[cell.strip() for cell in line.split("│")[1:-1]] for line in box.splitlines() if line.startswith("│")]
    assert [cells[0], *cells[2:]] == [in_box[0], *in_box[2:]]
    assert "\nprice   nothing: served as stored" in written
    assert receipt == ""
    assert "in the receipt (--receipt)\n" in box
    _, whole, _ = run(*asked, "--receipt")
    assert "privacy unit patient" in whole.removeprefix(box.split("price")[0])


def test_output_goes_to_a_file_in_every_format(database: str, run: Run, tmp_path: Path) -> None:
    for chosen in ("box", "csv", "json", "jsonl", "markdown", "parquet"):
        target = tmp_path / f"answer in {chosen}"
        target.write_text("what was there before")
        code, shown, _ = run("query", database, COUNTS, "--rho", "0.05", "--format", chosen, "--output", str(target))
        assert (code, shown) == (0, "")
        assert b"south" in target.read_bytes()
        assert b"before" not in target.read_bytes()


def test_texts_of_parts_have_a_receipt_and_free_texts_have_none(database: str, run: Run) -> None:
    with duckdb.connect(database) as connection:
        connection.execute("CREATE TABLE places AS SELECT unnest(['north', 'east']) AS city, unnest([2, 3]) AS people")
    assert run("query", database, "CALL dp_public('places', readable := true)")[0] == 0
    part = "SELECT city, count(DISTINCT patient) AS n FROM visits GROUP BY city"
    joined = f"SELECT p.city, n FROM places p -- all of them\nLEFT JOIN ({part}) v ON v.city = p.city ORDER BY 1;"
    both = "SELECT 'rows' AS c, count(*) AS n FROM visits UNION ALL SELECT 'dear', count(*) FROM visits WHERE cost > 9"
    for text, heads in ((joined, ["east", "north"]), (both, ["rows", "dear"])):
        for form in ("csv", "json"):
            code, shown, below = run("query", database, text, "--rho", "0.01", "--format", form, "--analyst", "ana")
            rows = plain_rows(json.loads(shown)) if form == "json" else csv.DictReader(io.StringIO(shown))
            assert (code, [next(iter(row.values())) for row in rows]) == (0, heads)
            assert "price" in below
        assert "privacy unit patient" in run("query", database, text, "--rho", "0.01", "--receipt")[1]
        assert "price" in run("explain", database, text, "--rho", "0.01")[1]
    charged = charges(database)
    for text, first in (("SELECT city FROM places ORDER BY people DESC", "east"), ("SELECT 1 UNION ALL SELECT 2", "1")):
        code, shown, below = run("query", database, text, "--format", "csv", "--receipt", "--analyst", "ana")
        assert (code, shown.splitlines()[1], below) == (0, first, "")
        assert "price" not in run("query", database, text)[1]
        assert "is free" in run("explain", database, text)[1]
    assert charges(database) == charged


def test_json_has_no_word_for_infinity(database: str, run: Run) -> None:
    query = "SELECT city, sum(cost) / (count(*) - count(*)) AS nothing FROM visits GROUP BY city"
    code, text, _ = run("query", database, query, "--rho", "0.05", "--format", "json")
    assert code == 0

    def refuse(word: str) -> object:
        raise AssertionError(f"{word} is not JSON")

    assert all(row["nothing"] is None for row in json.loads(text, parse_constant=refuse)["rows"])


def test_epsilon_and_delta_reach_the_query(database: str, run: Run) -> None:
    code, _, receipt = run(
        "query", database, COUNTS, "--epsilon", "0.5", "--delta", "1e-8", "--format", "csv", "--timeout", "60"
    )
    assert code == 0
    assert "epsilon 0.5 at delta 1e-08; spent: " in receipt


def test_explain_spends_nothing(database: str, run: Run) -> None:
    code, text, _ = run("explain", database, COUNTS + " -- it's $$ quoted", "--rho", "0.05")
    assert code == 0
    assert "noisy count of units exceeds" in " ".join(text.split())
    code, table, _ = run("explain", database, COUNTS, "--epsilon", "0.5", "--delta", "1e-8", "--format", "csv")
    assert code == 0
    rows = {(row["section"], row["name"]): row["value"] for row in csv.DictReader(io.StringIO(table))}
    assert rows["frame", "max_groups"] == "2"
    assert spent_rho(database) == 0


def test_the_budget_shrinks_by_the_price(database: str, run: Run) -> None:
    run("query", database, COUNTS, "--rho", "0.05")
    code, text, _ = run("budget", database, "patient")
    assert code == 0
    (spent,) = (line.split()[1] for line in text.splitlines() if line.split()[:1] == ["rho_spent"])
    assert float(spent) == 0.05
    _, table, _ = run("budget", database, "--format", "json")
    (row,) = json.loads(table)["rows"]
    assert row["unit"] == "patient"
    assert row["rho_left"] == pytest.approx(row["rho_budget"] - 0.05, abs=1e-12)


def test_analysts_see_their_own_releases(database: str, run: Run) -> None:
    for name, rho in (("ana", "0.01"), ("ben", "0.02")):
        assert run("query", database, COUNTS, "--rho", rho, "--analyst", name)[0] == 0

    def readers(*options: str) -> list[str]:
        code, text, _ = run("releases", database, "--format", "csv", *options)
        assert code == 0
        return [row["analyst"] for row in csv.DictReader(io.StringIO(text))]

    code, box, _ = run("releases", database)
    assert code == 0
    assert "ana" in box
    assert "ben" in box
    assert readers() == ["ana", "ben"]
    assert readers("--analyst", "ben") == ["ben"]
    assert readers("--analyst", "cleo") == []


def test_the_policy_is_what_was_declared(database: str, run: Run) -> None:
    code, text, _ = run("policy", database, "--format", "csv")
    assert code == 0
    settings = {(row["name"], row["setting"]): row["value"] for row in csv.DictReader(io.StringIO(text))}
    assert settings["main.visits", "max_groups_contributed"] == "2"
    assert settings["main.visits.cost", "bounds"] == "[0, 50]"


def test_another_state_file_is_another_policy(database: str, run: Run, tmp_path: Path) -> None:
    other = str(tmp_path / "other.state")
    code, _, message = run("query", database, COUNTS, "--state", other)
    assert code == 2
    assert "not protected" in message
    assert not Path(other).exists()
    assert run("query", database, DECLARATIONS[0], "--state", other)[0] == 0
    code, text, _ = run("policy", database, "--state", other, "--format", "csv")
    assert code == 0
    assert "visits" not in text


def test_the_database_file_itself_is_never_written(database: str, run: Run) -> None:
    before = Path(database).read_bytes()
    assert run("query", database, "CALL dp_new_version('visits', version := '2026-11')")[0] == 0
    assert run("query", database, COUNTS, "--rho", "0.01")[0] == 0
    assert Path(database).read_bytes() == before


def test_logging_is_asked_for_and_names_no_key(database: str, run: Run) -> None:
    code, text, log = run("query", database, COUNTS, "--rho", "0.01", "--format", "csv")
    assert code == 0
    assert "dpsql: private query" not in log
    for argv in (("-v", "query", database, COUNTS), ("query", database, COUNTS, "--verbose")):
        _, text, log = run(*argv, "--rho", "0.01", "--format", "csv")
        assert "dpsql: private query" in log
        assert "south" in text
        assert "south" not in log
        assert RARE not in text + log


# How it fails


def failures(database: str) -> list[tuple[Sequence[str], int, str]]:
    """Commands that fail, the exit code, and a word of the message."""
    folder = str(Path(database).parent)
    ask = ("query", database)
    return [
        (("query", f"{folder}/nowhere.duckdb", COUNTS), 1, "does not exist"),
        (("explain", f"{folder}/nowhere.duckdb", COUNTS), 1, "does not exist"),
        (("budget", f"{folder}/nowhere.duckdb"), 1, "does not exist"),
        (("query", ":memory:", COUNTS), 1, "does not exist"),
        (("policy", folder), 1, "a folder without parts.json"),
        (("query", f"{database}.dpsql", COUNTS), 1, "not a DuckDB database"),
        (("query", database, COUNTS, "--state", database), 1, "clinic.duckdb"),
        (("releases", database, "--state", f"{folder}/nowhere.state"), 1, "no state file"),
        ((*ask, "SELECT (city FROM visits"), 2, "not valid SQL"),
        ((*ask, "DROP TABLE visits"), 2, "SELECT"),
        ((*ask, "SELECT count(*) FROM staff", "--rho", "0.1"), 2, "not protected"),
        ((*ask, "SELECT city, max(cost) FROM visits GROUP BY city", "--rho", "0.1"), 2, "max"),
        ((*ask, COUNTS), 2, "how private"),
        ((*ask, COUNTS, "--rho", "nan"), 2, "rho"),
        ((*ask, COUNTS, "--rho", "0.1", "--timeout", "-1"), 2, "timeout"),
        ((*ask, COUNTS, "--rho", "1e-12"), 2, "rho"),
        (
            (*ask, "CALL dp_protect('visits', coverage := FALSE, unit := 'nobody', privacy_unit_column := 'patient')"),
            2,
            "nobody",
        ),
        ((*ask, "CALL dp_public('staff')", "--analyst", "ana"), 2, "curator"),
        ((*ask, "CALL dp_public('staff')", "--rho", "0.1"), 2, "options"),
        ((*ask, COUNTS, "--rho", "0.1", "--analyst", ""), 2, "name"),
        (("explain", database, "FROM dp_policy()"), 2, "SELECT"),
        (("budget", database, "it's"), 2, "it's"),
        ((*ask, COUNTS, "--rho", "5"), 3, "budget"),
        ((*ask, COUNTS, "--rho", "0.1", "--output", f"{folder}/nowhere/answer.csv"), 1, "nowhere"),
        ((*ask, COUNTS, "--rho", "0.1", "--output", folder), 1, "clinic"),
        ((*ask, COUNTS, "--rho", "0.1", "--output", database), 2, "overwrite"),
        ((*ask, COUNTS, "--rho", "5", "--output", f"{folder}/answer.csv"), 3, "budget"),
    ]


def test_a_failure_is_one_message_and_leaves_nothing(database: str, run: Run) -> None:
    folder = Path(database).parent
    files, content = files_below(folder), Path(database).read_bytes()
    for argv, expected, word in failures(database):
        code, shown, message = run(*argv)
        assert (code, shown) == (expected, ""), (argv, message)
        assert message.startswith("dpsql: "), argv
        assert word in message, argv
        assert "Traceback" not in message, argv
        assert RARE not in message, argv
        assert files_below(folder) == files, argv
        assert Path(database).read_bytes() == content, argv
        assert charges(database) == 0, argv
    assert spent_rho(database) == 0


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("guess",),
        ("query", "clinic.duckdb"),
        ("query", "clinic.duckdb", COUNTS, "--rho", "0.1", "--epsilon", "1"),
        ("query", "clinic.duckdb", COUNTS, "--rho", "much"),
        ("query", "clinic.duckdb", COUNTS, "--format", "xml"),
        ("query", "clinic.duckdb", COUNTS, "--format", "parquet"),
    ],
)
def test_arguments_that_make_no_sense(argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert "usage: dpsql" in capsys.readouterr().err


def test_a_query_that_runs_out_of_time_keeps_its_charge(database: str, run: Run) -> None:
    code, shown, message = run("query", database, COUNTS, "--rho", "0.05", "--timeout", "1e-6")
    assert (code, shown) == (1, "")
    assert "out of time" in message
    assert spent_rho(database) == 0.05
    assert run("query", database, COUNTS, "--rho", "0.05")[0] == 0
    assert spent_rho(database) == 0.05


def test_an_interruption_is_said_and_leaves_no_file(
    database: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dpsql.Session, "sql", interrupt)
    code, _, message = run("query", database, COUNTS, "--rho", "0.05", "--output", str(tmp_path / "answer"))
    assert code == 130
    assert "interrupted" in message
    assert not (tmp_path / "answer").exists()


def test_the_engine_never_speaks_for_itself(database: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise duckdb.ConversionException(f"Could not convert string '{RARE}'")

    monkeypatch.setattr(dpsql.Session, "sql", fail)
    code, shown, message = run("query", database, COUNTS, "--rho", "0.05")
    assert (code, shown) == (1, "")
    assert "withheld" in message
    assert RARE not in message


def test_a_database_that_another_program_holds(database: str, run: Run) -> None:
    hold = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, database], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        code, shown, message = run("query", database, COUNTS, "--rho", "0.05")
        assert (code, shown) == (1, "")
        assert f"another program (process {holder.pid})" in message
        # the books need no lock on the data
        assert run("budget", database)[0] == 0
        holder.communicate("")
    assert run("query", database, COUNTS, "--rho", "0.05")[0] == 0


# As a program


def module(*argv: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dpsql", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | variables,
        text=True,
    )


def test_the_module_is_the_command(database: str) -> None:
    """A terminal that lacks the letters of a box is no reason to lose the answer."""
    with module("policy", database, PYTHONIOENCODING="ascii") as process:
        shown, message = process.communicate()
    assert (process.returncode, message) == (0, "")
    assert "main.visits" in shown


def test_a_reader_that_has_seen_enough(database: str) -> None:
    with module("policy", database, "--format", "csv") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0


@pytest.mark.parametrize("command", ["", "demo", "query", "explain", "budget", "releases", "policy"])
def test_help_and_version(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"] if command else ["--version"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: dpsql {command}" if command else f"dpsql {dpsql.__version__}")


def test_the_demo(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fits a screen and a half, leaves nothing, asks again for free, and shows both refusals."""
    monkeypatch.chdir(tmp_path)
    # a noisy number may be the true one by chance
    monkeypatch.setattr(runner, "SystemEntropy", lambda: SeededEntropy(1))
    opened: list[str] = []

    def open_in_browser(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", open_in_browser)
    code, text, message = run("demo", "--html", "tour.html", "--open")
    assert (code, message) == (0, "")
    assert list(tmp_path.iterdir()) == [tmp_path / "tour.html"]
    assert opened == [(tmp_path / "tour.html").as_uri()]
    page = (tmp_path / "tour.html").read_text(encoding="utf-8")
    assert page.count("<svg") == page.count("<h2>") == 4
    # one page alone: nothing is fetched, nothing runs, and no true number is in it
    assert not re.search(r"<script|<link|<img|(src|href)=\"(?!#)", page)
    assert not re.search(r"\b(336,776|211\.79)", page)
    assert "The pictures are shown, and in tour.html" in text
    assert max(len(line) for line in text.splitlines()) <= 100
    assert len(text.splitlines()) <= 55
    assert "Identical numbers: yes. Price: rho = 0." in text
    assert "no private answer is defined for this query" in text
    assert "does not cover this query" in text
    # a large airline, beside the true values
    assert re.search(r"  UA +\d+ .* 620 │ .* 212\n", text)
    # the sharper answer costs the difference
    (numbers,) = re.findall(
        r"is rho = (\S+), and rho = (\S+) was paid before\. Price: rho = (\S+);", " ".join(text.split())
    )
    level, paid, price = map(float, numbers)
    assert price == pytest.approx(level - paid, abs=2e-4)
