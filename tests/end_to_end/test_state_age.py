"""A restored copy, a second state file and a swapped database: named, refused before a charge, accepted by a CALL."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

import dpsql
from dpsql.engine.age_table import AgeTable
from dpsql.errors import AccessError, DpsqlError, PolicyError, SchemaError, StateError
from dpsql.frontends import cli
from tests.end_to_end.shell_terminal import QUIET, Terminal, needs_shell
from tests.serving import door, in_background, request

PROTECT = (
    "CALL dp_protect('visits', coverage := FALSE, privacy_unit_column := 'patient', max_groups_contributed := 1, "
    "max_rows_per_group := 1, default_rho := 0.01, rho_budget := 10, delta_threshold := 0.5, delta_conversion := 1e-6)"
)
ROWS = "CREATE TABLE visits AS SELECT i AS patient, i % 3 AS ward FROM range(300) t(i)"
FRAME: Any = pd.DataFrame({"patient": range(300), "ward": [i % 3 for i in range(300)]})
"""The rows of the table."""
ACCEPT = "CALL dp_accept_state()"
TABLE = "dpsql_hidden.state_file"
RESTORED, SECOND, SWAPPED = "an old copy that was put back", "a second state file", "belongs to another database"


def question(number: int) -> str:
    """Return a question that has not been asked with another number."""
    return f"SELECT count(*) AS n FROM visits WHERE ward < {number}"


def state_of(database: Path) -> Path:
    return database.with_name(f"{database.name}.dpsql")


def charges(session: dpsql.Session) -> float:
    return float(session.sql("FROM dp_budget()").df()["rho_spent"][0])


def require_refusal(session: dpsql.Session, sentence: str, number: int) -> None:
    """Check that a new question is refused with this sentence and costs nothing. An analyst is not told why."""
    before = charges(session)
    with pytest.raises(StateError, match=sentence) as refused:
        session.sql(question(number))
    assert "CALL dp_accept_state()" in str(refused.value)
    with pytest.raises(StateError) as told:
        session.as_analyst("ana").sql(question(number))
    assert str(told.value) == "the curator has to look at the state file first; nothing was charged"
    assert charges(session) == before


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with a state file, and one charge."""
    path = tmp_path_factory.mktemp("prepared") / "clinic.duckdb"
    with dpsql.connect(path) as session:
        session.connection.execute(ROWS)
        session.sql(PROTECT)
        session.sql(question(1))
    return path


@pytest.fixture
def clinic(prepared: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder of a database."""
    return Path(shutil.copytree(prepared.parent, tmp_path / "clinic")) / prepared.name


def restore_a_copy(clinic: Path, *, read_only: bool = False) -> Path:
    """Put back a copy of the state file that lacks one charge; return its path."""
    copy = Path(shutil.copy(state_of(clinic), clinic.with_name("copy")))
    with dpsql.connect(clinic, read_only=read_only) as session:
        session.sql(question(2))
    return Path(copy.replace(state_of(clinic)))


def name_a_second_file(clinic: Path) -> Path:
    """Return the path of another state file with a policy and no charge."""
    other = clinic.with_name("other.dpsql")
    with dpsql.connect(clinic, state=other) as session:
        session.sql(PROTECT)
    return other


def swap_the_database(clinic: Path) -> Path:
    """Put another database in its place; return the path of the state file."""
    clinic.unlink()
    with contextlib.closing(duckdb.connect(str(clinic))) as connection:
        connection.execute(ROWS)
    return state_of(clinic)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [(restore_a_copy, RESTORED), (name_a_second_file, SECOND), (swap_the_database, SWAPPED)],
)
def test_each_kind_is_named_and_refused_until_it_is_accepted(
    clinic: Path, change: Callable[[Path], Path], sentence: str, read_only: bool
) -> None:
    state = change(clinic)
    for _ in range(2):
        with dpsql.connect(clinic, state=state, read_only=read_only) as session:
            require_refusal(session, sentence, 3)
    with dpsql.connect(clinic, state=state, read_only=read_only) as session:
        (said,) = session.sql(ACCEPT).fetchall()[0]
        assert "from now on" in said
        session.sql(question(3))
    with dpsql.connect(clinic, state=state, read_only=read_only) as session:
        session.sql(question(4))
        assert session.sql(ACCEPT).fetchall() == [("nothing contradicts the state file; nothing was changed",)]


def test_a_copy_from_before_an_accepted_copy_is_named_again(clinic: Path) -> None:
    state = restore_a_copy(clinic)
    before = Path(shutil.copy(state, clinic.with_name("before")))
    with dpsql.connect(clinic) as session:
        session.sql(ACCEPT)
        session.sql(question(3))
    before.replace(state)
    with dpsql.connect(clinic) as session:
        require_refusal(session, RESTORED, 3)


def test_a_copy_is_named_that_was_charged_without_its_database_as_often_as_it_forgot(clinic: Path) -> None:
    restore_a_copy(clinic)
    for _ in range(2):
        FRAME.dp.groupby("ward", unit=dpsql.unit("visits", source="visits", state=state_of(clinic))).size()
    with dpsql.connect(clinic) as session:
        require_refusal(session, RESTORED, 3)


def test_the_first_state_file_is_named_after_another_one_was_accepted_and_charged(clinic: Path) -> None:
    with dpsql.connect(clinic, state=name_a_second_file(clinic)) as session:
        session.sql(ACCEPT)
        session.sql(question(1))
    with dpsql.connect(clinic) as session:
        require_refusal(session, SECOND, 3)


def test_a_second_file_is_named_where_the_database_was_never_written(tmp_path: Path) -> None:
    clinic = tmp_path / "clinic.duckdb"
    with contextlib.closing(duckdb.connect(str(clinic))) as connection:
        connection.execute(ROWS)
    for state, sentence in ((None, None), (tmp_path / "other.dpsql", SECOND)):
        with dpsql.connect(clinic, state=state, read_only=True) as session:
            session.sql(PROTECT)
            if sentence is None:
                session.sql(question(1))
            else:
                require_refusal(session, sentence, 1)


def test_a_state_file_without_a_charge_stops_no_other_one(tmp_path: Path) -> None:
    clinic = tmp_path / "clinic.duckdb"
    with dpsql.connect(clinic) as session:
        session.connection.execute(ROWS)
        session.sql(PROTECT)
    with dpsql.connect(clinic, state=name_a_second_file(clinic)) as session:
        session.sql(question(1))


def begin_anew(clinic: Path) -> None:
    """Remove the state file, and declare the policy again."""
    for ending in ("", "-wal", "-shm"):
        clinic.with_name(f"{state_of(clinic).name}{ending}").unlink(missing_ok=True)
    with dpsql.connect(clinic) as session:
        session.sql(PROTECT)


def as_format_12(clinic: Path) -> None:
    """Make the state file one of the last program without stamps."""
    with contextlib.closing(sqlite3.connect(state_of(clinic))) as connection:
        for table in ("measured_groups", "identity"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("ALTER TABLE public_table DROP COLUMN readable")
        connection.execute("PRAGMA user_version = 12")


def test_a_state_file_that_was_removed_has_a_second_one_in_its_place(clinic: Path) -> None:
    begin_anew(clinic)
    with dpsql.connect(clinic) as session:
        require_refusal(session, SECOND, 1)


def test_a_file_of_an_older_format_is_paired_at_its_next_charge(clinic: Path) -> None:
    with contextlib.closing(duckdb.connect(str(clinic))) as connection:
        connection.execute("DROP SCHEMA dpsql_hidden CASCADE")
    as_format_12(clinic)
    for number in (5, 6):
        with dpsql.connect(clinic) as session:
            session.sql(question(number))
    restore_a_copy(clinic)
    with dpsql.connect(clinic) as session:
        require_refusal(session, RESTORED, 4)


def test_a_backup_of_an_older_format_is_a_second_file(clinic: Path) -> None:
    as_format_12(clinic)
    with dpsql.connect(clinic) as session:
        require_refusal(session, SECOND, 2)


def test_a_session_that_was_refused_goes_on_once_another_one_accepted(clinic: Path) -> None:
    restore_a_copy(clinic)
    with dpsql.connect(clinic, read_only=True) as session:
        require_refusal(session, RESTORED, 3)
        with dpsql.connect(clinic, read_only=True) as other:
            other.sql(ACCEPT)
        session.sql(question(3))


def test_a_stamp_that_does_not_fit_beside_the_database_is_beside_the_state_file(clinic: Path, tmp_path: Path) -> None:
    beside = clinic.with_name(f"{clinic.name}.dpsql-locks")
    shutil.rmtree(beside)
    beside.write_bytes(b"")
    state = Path(shutil.move(state_of(clinic), tmp_path / "elsewhere"))
    copy = Path(shutil.copy(state, tmp_path / "copy"))
    with dpsql.connect(clinic, state=state, read_only=True) as session:
        session.sql(question(2))
    copy.replace(state)
    with dpsql.connect(clinic, state=state, read_only=True) as session:
        require_refusal(session, RESTORED, 3)


def test_a_state_file_of_two_databases_is_accepted_once(clinic: Path) -> None:
    other = clinic.with_name("other.duckdb")
    with dpsql.connect(other, state=state_of(clinic)) as session:
        session.connection.execute(ROWS)
        require_refusal(session, SWAPPED, 2)
        session.sql(ACCEPT)
    for number, database in enumerate([other, clinic, other, clinic], start=2):
        with dpsql.connect(database, state=state_of(clinic)) as session:
            session.sql(question(number))
    with dpsql.connect(clinic.with_name("third.duckdb"), state=state_of(clinic)) as session:
        session.connection.execute(ROWS)
        require_refusal(session, SWAPPED, 6)


def test_a_kill_while_a_file_is_accepted_leaves_it_refused_or_accepted(
    clinic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore_a_copy(clinic)
    with dpsql.connect(clinic) as session, monkeypatch.context() as patched:
        patched.setattr(AgeTable, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            session.sql(ACCEPT)
    with dpsql.connect(clinic) as session:
        session.sql(question(3))


def test_a_rehearsal_leaves_no_stamp(clinic: Path) -> None:
    with dpsql.connect(clinic, read_only=True) as session:
        session.rehearse([ACCEPT], question(5))
    assert not clinic.with_name(f"{clinic.name}.dpsql-locks").joinpath("age").exists()


def test_stored_answers_are_served_from_a_restored_copy_and_not_to_another_database(clinic: Path) -> None:
    restore_a_copy(clinic)
    with dpsql.connect(clinic) as session:
        assert session.sql(question(1)).receipt is not None
    swap_the_database(clinic)
    with dpsql.connect(clinic) as session, pytest.raises(StateError, match=SWAPPED):
        session.sql(question(1))


def test_only_the_curator_accepts_and_without_arguments(clinic: Path) -> None:
    with dpsql.connect(clinic) as session:
        with pytest.raises(AccessError, match="for the curator"):
            session.as_analyst("ana").sql(ACCEPT)
        for text in ("CALL dp_accept_state('visits')", "CALL dp_accept_state(replace := TRUE)"):
            with pytest.raises(PolicyError, match="no argument"):
                session.sql(text)


def test_a_state_in_memory_has_nothing_to_accept() -> None:
    with dpsql.connect() as session:
        assert session.sql(ACCEPT).fetchall() == [("nothing contradicts the state file; nothing was changed",)]


def test_no_listing_shows_the_table_and_nobody_can_ask_it(clinic: Path) -> None:
    with dpsql.connect(clinic) as session:
        assert session.connection.execute(f"SELECT count(*) FROM {TABLE}").fetchall() == [(1,)]
        assert session.connection.execute("SHOW TABLES").fetchall() == [("visits",)]
        for text in ("SHOW TABLES", "FROM dp_tables()", "FROM dp_policy()"):
            assert "state_file" not in str(session.sql(text).fetchall())
        for text in (
            f"CALL dp_protect('{TABLE}', privacy_unit_column := 'state_id')",
            f"CALL dp_public('{TABLE}')",
            f"SELECT count(*) FROM {TABLE}",
            f"DESCRIBE {TABLE}",
        ):
            with pytest.raises(DpsqlError) as refused:
                session.sql(text)
            assert isinstance(refused.value, PolicyError | SchemaError)


def test_marks_do_not_see_that_the_table_changes(clinic: Path) -> None:
    with dpsql.connect(clinic) as session:
        for number in range(2, 5):
            session.sql(question(number))
        assert session.warnings == ()


def test_an_open_transaction_of_the_curator_takes_no_stamp_back(clinic: Path) -> None:
    with contextlib.closing(duckdb.connect(str(clinic))) as connection:
        session = dpsql.Session(connection, state_of(clinic))
        connection.execute("BEGIN")
        connection.execute("INSERT INTO visits VALUES (1000, 0)")
        session.sql(question(2))
        connection.execute("ROLLBACK")
        assert connection.execute(f"SELECT charge FROM {TABLE}").fetchall() == [(2,)]


@needs_shell
def test_the_command_line_and_the_shell_name_it_and_accept_it(clinic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    restore_a_copy(clinic, read_only=True)
    assert cli.main(["query", str(clinic), question(3)]) != 0
    assert RESTORED in capsys.readouterr().err
    with Terminal([str(Path(sys.executable).with_name("dpsql")), "shell", str(clinic), *QUIET]) as terminal:
        assert RESTORED in terminal.ask(f"FROM dp_query($$ {question(3)} $$);")
        assert "from now on" in terminal.ask(f"{ACCEPT};")
        assert "│   n   │" in terminal.ask(f"FROM dp_query($$ {question(3)} $$);")
    assert cli.main(["query", str(clinic), question(4)]) == 0


@needs_shell
def test_a_charge_from_the_shell_is_stamped(clinic: Path) -> None:
    with Terminal([str(Path(sys.executable).with_name("dpsql")), "shell", str(clinic), *QUIET]) as terminal:
        assert "│   n   │" in terminal.ask(f"FROM dp_query($$ {question(2)} $$);")
    with contextlib.closing(duckdb.connect(str(clinic))) as connection:
        assert connection.execute(f"SELECT charge FROM {TABLE}").fetchall() == [(2,)]


def test_frames_with_a_state_file_name_a_restored_copy(clinic: Path) -> None:
    restore_a_copy(clinic, read_only=True)
    patients = dpsql.unit("visits", source="visits", state=state_of(clinic))
    with pytest.raises(StateError, match=RESTORED):
        FRAME.dp.groupby("ward", unit=patients).size()


def test_a_server_does_not_begin(clinic: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    restore_a_copy(clinic)
    assert cli.main(["serve", str(clinic), "--listen", "127.0.0.1:0", "--analysts", str(tmp_path)]) != 0
    assert RESTORED in capsys.readouterr().err


def test_a_server_tells_the_curator_alone(clinic: Path) -> None:
    restore_a_copy(clinic)
    with dpsql.connect(clinic) as session:
        session.sql("CALL dp_analyst('ana')")
    with (
        dpsql.connect(clinic, read_only=True) as session,
        in_background(session, door("ana"), door("curator")) as urls,
    ):
        body = {"sql": question(3), "timeout_seconds": 2}
        assert request(urls.analysts, "POST", "/v1/queries?wait=60", name="ana", body=body).status == 410
        seen = request(urls.curator or "", "GET", "/v1/queries", name="curator").everything
    assert '"error":"StateError"' in seen
