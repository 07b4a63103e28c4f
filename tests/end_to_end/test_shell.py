"""The stock DuckDB shell: the real ``duckdb`` program at a pseudo-terminal, with the extension and its helper."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dpsql
from dpsql.assets import native_library
from dpsql.errors import EngineError
from dpsql.frontends.shell import launch
from dpsql.frontends.shell.launch import install_extension
from dpsql.model.private_query import OPTION_NAMES
from dpsql.session.declare import ARGUMENTS
from dpsql.sql.statements import DECLARATIONS, TABLE_FUNCTIONS
from tests.documents.page_numbers import check_listed
from tests.end_to_end.shell_story import NEARBY, PROGRAM, QUESTION, play
from tests.end_to_end.shell_terminal import QUIET, SHELL, Terminal, needs_shell
from tests.serving import door, in_background, token_of

pytestmark = needs_shell


def in_shell(script: str, *, environment: dict[str, str] | None = None) -> tuple[str, str]:
    """What the shell, started as by a person with the line in their rc file, writes to a script; and to stderr."""
    assert SHELL is not None
    variables = os.environ | {"DPSQL_HELPER": PROGRAM} | (environment or {})
    run = subprocess.run(
        [SHELL, "-unsigned", "-csv", "-cmd", f"LOAD '{native_library()}'"],
        input=script,
        capture_output=True,
        text=True,
        env=variables,
        timeout=600,
        check=False,
    )
    return run.stdout, run.stderr


def test_a_session_at_the_prompt_and_its_ledger_in_python(tmp_path: Path) -> None:
    database = tmp_path / "clinic.duckdb"
    answer = play(database)
    with dpsql.connect(database) as session:
        again = session.sql(QUESTION, rho=0.02)
        assert again.receipt is not None
        assert again.receipt.charged_rho == 0
        assert [[row[0], str(row[1])] for row in again.fetchall()] == [row[:2] for row in answer]


def test_functions_and_their_arguments_are_those_of_the_session() -> None:
    with duckdb.connect(config={"allow_unsigned_extensions": True}) as connection:
        connection.execute(f"LOAD '{native_library()}'")
        known = dict(
            connection.execute(
                "SELECT function_name, list_filter(parameters, lambda p: NOT starts_with(p, 'col')) "
                "FROM duckdb_functions() WHERE function_name LIKE 'dp\\_%' ESCAPE '\\' AND function_type = 'table'"
            ).fetchall()
        )
    arguments = {name: set(listed) for name, listed in known.items()}
    assert set(arguments) == set(DECLARATIONS) | set(TABLE_FUNCTIONS) | {"dp_server", "dp_receipt"}
    assert arguments["dp_query"] == arguments["dp_explain"] == arguments["dp_describe"] == set(OPTION_NAMES)
    assert {name: arguments[name] for name in DECLARATIONS} == {name: set(ARGUMENTS[name]) for name in DECLARATIONS}


def test_the_wheel_loads_the_same_file(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DPSQL_HELPER", PROGRAM)
    with duckdb.connect(config={"allow_unsigned_extensions": True}) as connection:
        connection.execute(f"LOAD '{native_library()}'")
        connection.execute(
            "CREATE TABLE stays AS SELECT i AS guest, DATE '2026-01-01' + (i % 2)::INTEGER AS day, "
            "(i % 3)::DECIMAL(5, 1) AS price, i % 2 = 0 AS paid, '12:00'::TIME AS noon FROM range(2000) t(i)"
        )
        # with one row, a guest counts in all of their groups
        connection.execute("ALTER TABLE stays ADD PRIMARY KEY (guest)")
        unit = "CALL dp_unit('guest', epsilon_budget := 9, delta_budget := 1e-5, {})"
        for terms in ("composition := 'zcdp', thresholds := FALSE", "thresholds := TRUE"):
            connection.execute(unit.format(terms)).fetchall()
        protect = (
            "CALL dp_protect('stays', coverage := FALSE, "
            "unit := 'guest', privacy_unit_column := 'guest', max_groups_contributed := 1)"
        )
        connection.execute(protect).fetchall()
        query = "SELECT day, price, paid, noon, count(DISTINCT guest) AS n FROM stays GROUP BY ALL ORDER BY ALL"
        for width in ("40", "{'n': 40}", "{n: 4e1}"):
            by_width = f"FROM dp_explain($${query}$$, target_half_width := {width})"
            ((error,),) = connection.execute(f"SELECT value {by_width} WHERE name = 'n'").fetchall()
            assert "95 % half width = 39.9999" in error
        in_steps = f"FROM dp_explain($${query}$$, target_relative_error := 0.05, max_rho := 0.2, at_least := 0.8)"
        ((asked,),) = connection.execute(f"SELECT value {in_steps} WHERE name = 'relative error'").fetchall()
        assert asked.startswith("at most 5 % for each count, sum and average, in at least 80 % of the groups")
        marked = "SELECT paid, count(DISTINCT guest) AS n, dp_within_target(n) FROM stays GROUP BY paid"
        in_steps = f"FROM dp_query($${marked}$$, target_relative_error := 0.1, max_rho := 0.2, at_least := 1)"
        assert [row[2] for row in connection.execute(in_steps).fetchall()] == [True, True]
        ((taken,),) = connection.execute("SELECT rho_spent FROM dp_budget()").fetchall()
        assert 0.0 < taken < 0.2
        relation = connection.sql(f"FROM dp_query($${query}$$, epsilon := 4, delta := 1e-6)")
        assert [str(kind) for kind in relation.types] == ["DATE", "DECIMAL(5,1)", "BOOLEAN", "TIME", "BIGINT"]
        plain = connection.execute(query).fetchall()
        spent = []
        for _ in range(2):
            # a relation runs at every reading
            noisy = relation.fetchall()
            assert [row[:-1] for row in noisy] == [row[:-1] for row in plain]
            spent.append(connection.execute("SELECT rho_spent FROM dp_budget()").fetchall())
        assert spent[0] == spent[1] != [(taken,)]
        hidden = "FROM dp_query($$SELECT price, count(*) FROM stays GROUP BY price$$, epsilon := 0.01, delta := 1e-9)"
        assert connection.execute(hidden).fetchall() == []
        assert "no noisy count passed the threshold of" in capfd.readouterr().err
        unbounded = "FROM dp_query($$SELECT avg(price) FROM stays$$, epsilon := 0.01, delta := 1e-9)"
        assert connection.execute(unbounded).fetchall() == [(None,)]
        assert "avg(price) is NULL, and not paid for: AUTO found no bounds" in capfd.readouterr().err


def test_every_type_of_key_reaches_the_prompt() -> None:
    """Types that are not flat are texts there; NULL, empty texts, letters beyond ASCII and odd names come through."""
    out, err = in_shell(
        "CREATE TABLE t AS SELECT i AS \"p?\", ['', 'å🜂', NULL][1 + i % 3] AS name, "
        "'00000000-0000-0000-0000-00000000000a'::UUID AS id, [1, i % 2] AS list, INTERVAL 3 DAY AS gap, "
        "'\\xAA'::BLOB AS raw, TIMESTAMPTZ '2026-01-02 03:04:05+00' AS at FROM range(3000) r(i);\n"
        "CALL dp_unit('p', epsilon_budget := 9, delta_budget := 1e-5);\n"
        "CALL dp_protect('t', coverage := FALSE, "
        "unit := 'p', privacy_unit_column := 'p?', max_groups_contributed := 1);\n"
        'SELECT * EXCLUDE n FROM dp_query($$ SELECT name, id, list, gap, raw, at, count(DISTINCT "p?") AS n FROM t '
        "GROUP BY ALL $$, epsilon := 3, delta := 1e-6) WHERE list = '[1, 0]' ORDER BY ALL;\n"
    )
    assert "Error" not in err
    *_, first, second, third = out.strip().splitlines()
    for line, name in ((first, ""), (second, '"å🜂"'), (third, "NULL")):
        assert line.startswith(f'{name},00000000-0000-0000-0000-00000000000a,"[1, 0]",3 days,\\xAA,2026-01-02')


def test_keys_that_a_frame_holds_reach_the_shells_database() -> None:
    """The second release of a frame reads on the keys of the first: they travel to a temporary table."""
    out, err = in_shell(
        "CREATE TABLE t AS SELECT i AS p, 'k' || i % 3000 AS k, i % 7 AS v FROM range(300000) r(i);\n"
        "CALL dp_unit('p', epsilon_budget := 50, delta_budget := 1e-3);\n"
        "CALL dp_protect('t', coverage := FALSE, unit := 'p', privacy_unit_column := 'p', max_groups_contributed := 1, "
        "max_rows_per_group := 1);\n"
        "CALL dp_domain('t', 'v', bounds := [0, 7]);\n"
        "SELECT count(*) AS c FROM dp_query($$ SELECT k, count(DISTINCT p) AS n FROM t GROUP BY k $$, "
        "epsilon := 4, delta := 1e-6);\n"
        "SELECT count(*) AS c, count(s) AS sums FROM dp_query($$ SELECT k, sum(v) AS s FROM t GROUP BY k $$, "
        "epsilon := 4, delta := 1e-6);\n"
    )
    assert "Error" not in err
    assert out.strip().splitlines()[-3:] == ["3000", "c,sums", "3000,3000"]


def test_a_shell_without_the_data_asks_a_server(tmp_path: Path) -> None:
    with dpsql.connect(tmp_path / "clinic.duckdb") as session:
        session.connection.execute("CREATE TABLE t AS SELECT i AS p, i % 2 AS k FROM range(2000) r(i)")
        session.sql("CALL dp_unit('p', epsilon_budget := 9, delta_budget := 1e-5)")
        session.sql(
            "CALL dp_protect('t', coverage := FALSE, "
            "unit := 'p', privacy_unit_column := 'p', max_groups_contributed := 1)"
        )
        session.sql("CALL dp_analyst('ana', rho_limit := 0.5)")
        query = "SELECT k, count(DISTINCT p) AS n FROM t GROUP BY k"
        with in_background(session, door("ana")) as urls:
            out, err = in_shell(
                f"CALL dp_server('{urls.analysts}');\n"
                f"CREATE VIEW v AS FROM dp_query($$ {query} $$, rho := 0.1, delta := 1e-6);\n"
                "SELECT k, n BETWEEN 900 AND 1100 AS near FROM v ORDER BY k;\n"
                f"FROM dp_query($$ {query} $$, rho := 0.7, delta := 1e-6);\n"
                "SELECT heading FROM dp_receipt() WHERE heading = 'price';\n"
                "CALL dp_public('t');\n"
                "CREATE TABLE kept AS FROM dp_check('t', by := 'k');\n"
                "FROM kept;\n"
                "FROM t;\n"
                "CALL dp_server(NULL);\n"
                "FROM dp_query($$ SELECT count(*) FROM t $$, rho := 0.1);\n",
                environment={"DPSQL_TOKEN": token_of("ana")},
            )
        assert len(session.sql("FROM dp_releases()")) == 1
    assert out.splitlines() == [
        "answers come from",
        f'"{urls.analysts}, for analyst ana"',
        "k,near",
        "0,true",
        "1,true",
        "heading",
        "price",
        "answers come from",
        '"the shell\'s own database"',
    ]
    for said in (
        "0.5",
        "dp_public is for the curator",
        "Table with name t does not exist",
        "table 't' is not protected",
    ):
        assert said in err


def test_a_private_query_cannot_read_another_ones_answer() -> None:
    """The inner one would wait for the helper, which waits for the outer one."""
    _, err = in_shell(
        "CREATE TABLE t AS SELECT i AS p, i % 3 AS k FROM range(30) r(i);\n"
        "CALL dp_unit('p', epsilon_budget := 9, delta_budget := 1e-5);\n"
        "CALL dp_protect('t', coverage := FALSE, "
        "unit := 'p', privacy_unit_column := 'p', max_groups_contributed := 1);\n"
        "CREATE VIEW v AS FROM dp_query($$ SELECT k, count(DISTINCT p) AS p FROM t GROUP BY k $$, rho := 1, "
        "delta := 1e-6);\n"
        "CALL dp_protect('v', coverage := FALSE, "
        "unit := 'p', privacy_unit_column := 'p', max_groups_contributed := 1);\n"
        "FROM dp_query($$ SELECT k, count(DISTINCT p) FROM v GROUP BY k $$, rho := 1, delta := 1e-6);\n"
    )
    assert "could not read column 'p'" in err
    assert "reads its tables in a way that has no private form" in err


def test_the_rc_file_is_read_and_what_follows_is_passed_on(tmp_path: Path) -> None:
    (tmp_path / ".duckdbrc").write_text(".print the rc file was read\n")
    run = subprocess.run(
        [PROGRAM, "shell", ":memory:", "-csv", "-c", "SELECT 42 AS answer"],
        capture_output=True,
        text=True,
        env=os.environ | {"HOME": str(tmp_path)},
        timeout=600,
        check=False,
    )
    assert "the rc file was read" in run.stdout + run.stderr
    assert run.stdout.endswith("answer\n42\n")


@pytest.mark.thorough
def test_new_files_of_sessions_open_in_the_shell_and_a_newer_one_is_told_how(tmp_path: Path) -> None:
    """The copy that the message advises keeps state file, tables and types."""
    ours, other = tmp_path / "ours.duckdb", tmp_path / "it's.duckdb"

    def in_the_shell(database: Path) -> subprocess.CompletedProcess[str]:
        statement = ["-csv", "-noheader", "-c", "SELECT mood, (SELECT count(*) FROM dp_policy()) > 0 FROM v"]
        return subprocess.run(
            [PROGRAM, "shell", str(database), *statement], capture_output=True, text=True, timeout=600, check=False
        )

    for path, version in ((ours, None), (other, "latest")):
        settings: dict[str, Any] = {"storage_compatibility_version": version} if version else {}
        with dpsql.connect(path, **settings) as session:
            session.connection.execute(
                "CREATE TYPE moods AS ENUM ('low', 'high'); CREATE TABLE stays (mood moods); "
                "INSERT INTO stays VALUES ('low'); CREATE VIEW v AS FROM stays"
            )
            session.sql("CALL dp_unit('guest', epsilon_budget := 9, delta_budget := 1e-5)")
    assert in_the_shell(ours).stdout == "low,true\n"
    refused = in_the_shell(other)
    assert (refused.returncode, refused.stdout) == (1, "")
    sentence, cure = refused.stderr.strip().split(" with: ")
    assert f"{other} has a format that this shell" in sentence
    subprocess.run(["/bin/sh", "-c", cure], check=True)
    assert in_the_shell(other).stdout == "low,true\n"


@pytest.mark.thorough
def test_a_helper_that_dies_is_one_sentence_and_the_next_question_has_another() -> None:
    with Terminal([PROGRAM, "shell", ":memory:", *QUIET]) as terminal:
        terminal.ask("FROM dp_policy();")
        os.kill(_helper_of(terminal), signal.SIGKILL)
        assert "dpsql's helper ended before it answered" in terminal.ask("FROM dp_policy();")
        assert "rror" not in terminal.ask("FROM dp_policy();")
        helper = Path("/proc", str(_helper_of(terminal)))
        assert helper.exists()
        (shell,) = _children(terminal.process) or [terminal.process]
        os.kill(shell, signal.SIGKILL)
        ends = time.monotonic() + 120
        while helper.exists() and time.monotonic() < ends:
            time.sleep(0.05)
        assert not helper.exists(), "the helper outlives its shell"


def _children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children")
    if not listed.exists():
        pytest.skip("this system does not say which processes the shell started")
    return [int(child) for child in listed.read_text().split()]


def _helper_of(terminal: Terminal) -> int:
    """The last in the line of processes: a launcher of the shell, the shell, its helper."""
    process = terminal.process
    while children := _children(process):
        (process,) = children
    return process


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("/nowhere/dpsql", "helper could not be started: /nowhere/dpsql: No such file or directory; install dpsql"),
        ("/bin/true", "helper ended before it answered"),
        ("OLD", "are of different versions; run: dpsql install-extension"),
    ],
)
def test_no_helper_is_one_sentence(tmp_path: Path, program: str, said: str) -> None:
    if program == "OLD":
        old = tmp_path / "old"
        old.write_text("#!/bin/sh\nprintf 'V\\004\\000\\000\\000\\377\\000\\000\\000' >&0\nsleep 1\n")
        old.chmod(0o755)
        program = str(old)
    _, err = in_shell("FROM dp_policy();\n", environment={"DPSQL_HELPER": program})
    assert said in err


@pytest.mark.parametrize(
    "columns",
    [b"\xff\xff\xff\xff" + 7 * b"\0", b"\1\0\0\0\1\0\0\0c\xff\0\0", b"\1\0\0\0\1\0\0\0c\x13\x63\0", b"\1\0\0\0\1\0"],
    ids=["more columns than bytes", "no type", "no decimal", "cut off"],
)
def test_what_is_no_table_is_one_sentence(tmp_path: Path, columns: bytes) -> None:
    program = tmp_path / "confused"
    program.write_text(
        f"#!{sys.executable}\n"
        "import os\n"
        "os.write(0, b'V\\4\\0\\0\\0\\1\\0\\0\\0')\n"
        "os.read(0, 65536)\n"
        f"os.write(0, b'S' + len({columns!r}).to_bytes(4, 'little') + {columns!r})\n"
        "os.read(0, 65536)\n"
    )
    program.chmod(0o755)
    out, err = in_shell("FROM dp_policy();\nSELECT 42;\n", environment={"DPSQL_HELPER": str(program)})
    assert "dpsql's helper sent what is no table" in err
    assert out.endswith("42\n")


def test_an_installed_extension_finds_its_helper(tmp_path: Path) -> None:
    line = install_extension(tmp_path)
    assert SHELL is not None
    variables = {name: value for name, value in os.environ.items() if name != "DPSQL_HELPER"} | {
        "PATH": "/usr/bin:/bin"
    }
    rc = tmp_path / "rc"
    rc.write_text(f"{line}\n")
    run = subprocess.run(
        [SHELL, "-unsigned", "-csv", "-init", str(rc), "-c", f"FROM dp('{NEARBY}')"],
        capture_output=True,
        text=True,
        env=variables,
        timeout=600,
        check=False,
    )
    assert "table 'visits' is not protected" in run.stderr


def test_two_environments_keep_a_helper_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two venvs of one name, one home: each line starts the dpsql of the environment that printed it."""
    home = tmp_path / "home"
    lines: dict[str, str] = {}
    for name in ("first", "second", "first"):
        programs = tmp_path / name / "venv" / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        program = programs / "dpsql"
        program.write_text(f"#!/bin/sh\necho ran >> {tmp_path / name}/started\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(programs / "python"))
        line = install_extension(home)
        assert lines.setdefault(name, line) == line, "the line of an environment stays the same"
    assert lines["first"] != lines["second"]
    assert len(list(home.glob("venv-*/*.duckdb_extension"))) == 2
    assert SHELL is not None
    variables = {name: value for name, value in os.environ.items() if name != "DPSQL_HELPER"}
    for name, line in lines.items():
        run = subprocess.run(
            [SHELL, "-unsigned", "-csv", "-cmd", line.split(";")[0], "-c", "FROM dp_policy()"],
            capture_output=True,
            text=True,
            env=variables,
            timeout=600,
            check=False,
        )
        assert "helper ended before it answered" in run.stderr
        assert (tmp_path / name / "started").read_text() == "ran\n"


def test_the_page_about_the_shell_runs_as_it_is_written() -> None:
    page = (Path(__file__).parents[2] / "docs" / "shell.md").read_text(encoding="utf-8")
    statements = "".join(re.findall(r"^```sql\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    out, err = in_shell(f"CREATE TEMP MACRO dp(query) AS TABLE FROM dp_query(query);\n{statements}")
    assert "Error" not in err
    assert out.count("Aarhus,") == 3
    assert "mechanism" in out
    # on every answer; which column bounds keep least of, and in how many words, depends on noise
    lines = [line for line in err.splitlines() if re.match(r"(error|bounds|price|groups|notes) ", line)]
    heads = [line.split()[0] for line in lines]
    (printed,) = re.findall(r"^```\n(error .*?)^┌", page, re.MULTILINE | re.DOTALL)
    assert re.findall(r"^\w+", printed, re.MULTILINE) == heads[:3] == ["error", "bounds", "price"]
    # error and price do not depend on noise, but for the number of notes
    (priced,) = re.findall(r"^price .*(?=;)", printed, re.MULTILINE)
    assert lines[0] == printed.splitlines()[0]
    assert lines[2].startswith(f"{priced};")
    check_listed("docs/shell.md", printed)
    assert heads.count("price") == 3
    assert max(map(len, err.splitlines())) <= 100
    # the receipt of the last answer before it
    assert {line.partition(",")[0] for line in out.splitlines()} >= {"price", "privacy", "keys", "error", "bounds"}
    assert "rho 0.0192" in out.partition("\nsentence\n")[2]


def test_without_a_compiler_the_extension_cannot_be_built_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "native_library", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(EngineError, match="needs a C compiler"):
        install_extension(tmp_path / "there")
    assert not (tmp_path / "there").exists()
    with pytest.raises(EngineError, match="is not built: dpsql install-extension"):
        launch.run_shell(None, None, ())


def test_arguments_of_every_kind_arrive() -> None:
    out, err = in_shell(
        "CREATE TABLE t AS SELECT 1 AS p, DATE '2026-01-01' AS day, 'it''s' AS k;\n"
        "CALL dp_unit('p', epsilon_budget := 1, delta_budget := 1e-6);\n"
        "CALL dp_protect('t', coverage := FALSE, "
        "unit := 'p', privacy_unit_column := 'p', max_groups_contributed := 2::TINYINT);\n"
        "CALL dp_domain('t', 'day', keys := [DATE '2026-01-01', '2026-01-02']);\n"
        "CALL dp_domain('t', 'k', keys := ['it''s', NULL]);\n"
        "CALL dp_analyst('ana', rho_limit := 0.5);\n"
        "SELECT value FROM dp_policy() WHERE value LIKE '%2026%' OR value LIKE '%it%s%NULL%';\n"
        "CALL dp_analyst('bob', rho_limit := 'much');\n"
        "CALL dp_analyst('ana', rho_limit := NULL);\n"
        "CALL dp_protect('t', coverage := FALSE, max_groups := 3);\n"
        "FROM dp_receipt();\n"
    )
    assert "2026-01-02" in out
    assert "'it''s', NULL" in out
    assert "rho_limit takes a number" in err
    assert "rho_limit from 0.5 to none" in err
    assert "max_groups" in err
    assert "no private answer was asked for in this shell" in err


def test_texts_of_parts_and_public_tables_at_the_prompt() -> None:
    """Their comments and lines arrive; what is free has no line below it, and leaves the last receipt."""
    out, err = in_shell(
        "CREATE TABLE t AS SELECT i AS p, i % 3 AS k FROM range(3000) r(i);\n"
        "CREATE TABLE names AS SELECT i AS k, 'n' || i AS name, i * 1.5 AS d FROM range(4) r(i);\n"
        "CALL dp_unit('p', epsilon_budget := 9, delta_budget := 1e-5);\n"
        "CALL dp_protect('t', coverage := FALSE, unit := 'p', privacy_unit_column := 'p', max_groups_contributed := 1, "
        "max_rows_per_group := 1);\n"
        "CALL dp_public('names', readable := true);\n"
        "FROM dp_query($$ SELECT 'low' AS c, count(*) > 9 AS many FROM t WHERE k = 0\n"
        "UNION ALL SELECT 'none', count(*) > 900 FROM t WHERE k = 7 $$, rho := 0.5);\n"
        "FROM dp_query($$ SELECT name, n > 9 AS many -- of each\n"
        "FROM names LEFT JOIN (SELECT k, count(*) AS n FROM t GROUP BY k) x ON x.k = names.k /* all */\n"
        "ORDER BY name $$, rho := 0.5);\n"
        "FROM dp_query($$ SELECT name, d FROM names ORDER BY d DESC LIMIT 1 $$);\n"
        "FROM dp_query($$ SELECT 1 AS x UNION ALL SELECT 2 $$);\n"
        "SELECT value FROM dp_explain($$ SELECT 1 AS x UNION ALL SELECT 2 $$);\n"
        "SELECT count(*) > 3 AS receipt FROM dp_receipt();\n"
    )
    assert "Error" not in err
    assert err.count("price ") == 2
    *_, answers = out.partition("c,many\n")
    assert answers.splitlines() == [
        *("low,true", "none,false"),
        *("name,many", "n0,true", "n1,true", "n2,true", "n3,NULL"),
        *("name,d", "n3,4.5"),
        *("x", "1", "2"),
        *("value", "0", "this text reads public tables alone and is free"),
        *("receipt", "true"),
    ]
