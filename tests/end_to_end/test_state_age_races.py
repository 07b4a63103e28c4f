"""Two state files at once, databases without a stamp, and stamps that cannot be read or written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dpsql
from dpsql.engine.age_table import AgeTable
from dpsql.errors import EngineError, StateError
from dpsql.state.age import Age
from tests.end_to_end.test_state_age import (
    ACCEPT,
    FRAME,
    PROTECT,
    RESTORED,
    ROWS,
    SECOND,
    SWAPPED,
    TABLE,
    as_format_12,
    name_a_second_file,
    question,
    require_refusal,
    restore_a_copy,
    state_of,
    swap_the_database,
)

NOTHING = [("nothing contradicts the state file; nothing was changed",)]
OTHER_ROWS = "CREATE TABLE visits AS SELECT i AS patient, i % 7 AS ward FROM range(900) t(i)"


def new_database(path: Path, *, read_only: bool, charges: int = 1) -> Path:
    """Return a database with a state file and some charges."""
    path.parent.mkdir()
    with dpsql.connect(path) as session:
        session.connection.execute(ROWS)
        session.sql(PROTECT)
    ask(path, *range(1, charges + 1), read_only=read_only)
    return path


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    """Return a database with one charge that was writable."""
    return new_database(tmp_path / "clinic" / "clinic.duckdb", read_only=False)


@pytest.fixture
def unstamped(tmp_path: Path) -> Path:
    """Return a database with one charge that was opened read-only for it."""
    return new_database(tmp_path / "unstamped" / "clinic.duckdb", read_only=True)


def unknown_database(path: Path) -> Path:
    """Return another database that no session has opened."""
    with contextlib.closing(duckdb.connect(str(path))) as connection:
        connection.execute(OTHER_ROWS)
    return path


def ask(database: Path, *numbers: int, state: Path | None = None, read_only: bool = False) -> None:
    """Ask questions in one session."""
    with dpsql.connect(database, state=state, read_only=read_only) as session:
        for number in numbers:
            session.sql(question(number))


def copied_state(database: Path) -> Path:
    """Return a copy of the state file, made while it may be open."""
    copy = database.with_name("copy.dpsql")
    with (
        contextlib.closing(sqlite3.connect(state_of(database))) as connection,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        connection.backup(target)
    return copy


def age_of(database: Path) -> Path:
    return database.with_name(f"{database.name}.dpsql-locks") / "age"


def test_a_session_is_refused_after_its_first_charge_beside_a_copy_that_was_charged_further(unstamped: Path) -> None:
    with dpsql.connect(unstamped, read_only=True) as session:
        session.sql(question(2))
        ask(unstamped, 11, 12, 13, state=copied_state(unstamped), read_only=True)
        session.sql(question(3))
        require_refusal(session, RESTORED, 4)


def test_a_session_is_refused_after_its_first_charge_beside_a_file_that_was_accepted(unstamped: Path) -> None:
    other = name_a_second_file(unstamped)
    with dpsql.connect(unstamped, read_only=True) as session:
        session.sql(question(2))
        with dpsql.connect(unstamped, state=other, read_only=True) as second:
            second.sql(ACCEPT)
        session.sql(question(3))
        require_refusal(session, SECOND, 4)
    ask(unstamped, 5, 6, state=other, read_only=True)


def test_two_sessions_on_one_connection_with_two_state_files(clinic: Path) -> None:
    with contextlib.closing(duckdb.connect(str(clinic))) as connection:
        first = dpsql.Session(connection, state_of(clinic))
        first.sql(question(2))
        copy = copied_state(clinic)
        second = dpsql.Session(connection, copy)
        second.sql(question(3))
        first.sql(question(4))
        require_refusal(first, RESTORED, 5)
        second.sql(question(6))


def test_a_state_file_that_was_accepted_without_a_charge_is_in_force(clinic: Path) -> None:
    other = name_a_second_file(clinic)
    with dpsql.connect(clinic, state=other) as session:
        session.sql(ACCEPT)
        assert session.sql(ACCEPT).fetchall() == NOTHING
    with dpsql.connect(clinic) as session:
        require_refusal(session, SECOND, 3)
    ask(clinic, 4, state=other)


def test_another_database_is_named_below_a_file_that_was_charged_read_only(unstamped: Path) -> None:
    swap_the_database(unstamped)
    for read_only in (True, False):
        with dpsql.connect(unstamped, read_only=read_only) as session:
            require_refusal(session, SWAPPED, 3)
            with pytest.raises(StateError, match=SWAPPED):
                session.sql(question(1))


def test_copies_and_moves_of_a_folder_that_was_charged_read_only_are_no_alarm(unstamped: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(unstamped.parent, tmp_path / "copied")) / unstamped.name
    ask(copied, 2, read_only=True)
    moved = copied.parent.rename(tmp_path / "moved") / copied.name
    ask(moved, 3, read_only=True)
    ask(moved, 4)
    ask(moved, 5, read_only=True)


def test_a_database_that_was_accepted_read_only_is_no_excuse_for_others(clinic: Path) -> None:
    state = state_of(clinic)
    accepted, unknown = (unknown_database(clinic.with_name(name)) for name in ("prod.duckdb", "unknown.duckdb"))
    with dpsql.connect(accepted, state=state, read_only=True) as session:
        session.sql(ACCEPT)
        session.sql(question(2))
    for read_only in (True, False):
        with dpsql.connect(unknown, state=state, read_only=read_only) as session:
            require_refusal(session, SWAPPED, 3)
    ask(accepted, 4, state=state)
    ask(accepted, 5, state=state, read_only=True)
    ask(clinic, 6)


def test_a_state_in_memory_is_no_excuse_for_files(clinic: Path) -> None:
    with dpsql.connect(state=state_of(clinic)) as session:
        session.connection.execute(ROWS)
        session.sql(ACCEPT)
        session.sql(question(2))
    with dpsql.connect(unknown_database(clinic.with_name("unknown.duckdb")), state=state_of(clinic)) as session:
        require_refusal(session, SWAPPED, 3)


def test_an_accepted_copy_is_asked_by_data_frames_and_by_its_database(unstamped: Path) -> None:
    restore_a_copy(unstamped, read_only=True)
    with dpsql.connect(unstamped, read_only=True) as session:
        session.sql(ACCEPT)
    FRAME.dp.groupby("ward", unit=dpsql.unit("visits", source="visits", state=state_of(unstamped))).size()
    ask(unstamped, 3)


def test_a_kill_after_the_stamp_of_an_accepted_database_is_no_alarm(
    clinic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted = unknown_database(clinic.with_name("prod.duckdb"))
    with dpsql.connect(accepted, state=state_of(clinic), read_only=True) as session:
        session.sql(ACCEPT)
    with monkeypatch.context() as patched, dpsql.connect(accepted, state=state_of(clinic)) as session:
        patched.setattr(Age, "_write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            session.sql(question(2))
    ask(accepted, 3, state=state_of(clinic))


def test_all_kinds_are_named_and_accepted_together(clinic: Path) -> None:
    shutil.copy(state_of(clinic), clinic.with_name("old"))
    ask(clinic, 2, 3, read_only=True)
    state = swap_the_database(clinic)
    clinic.with_name("old").replace(state)
    with dpsql.connect(clinic) as session:
        require_refusal(session, f"{SWAPPED}.*{RESTORED}: charge 3 .*Put the newest file back.*up to number 3", 4)
        (said,) = session.sql(ACCEPT).fetchall()[0]
        assert "belongs to the open database" in said
        assert "charges that it lacks (up to number 3) are forgotten" in said
        session.sql(question(4))


def test_the_cure_comes_before_the_acceptance(clinic: Path) -> None:
    for state, cure in ((restore_a_copy(clinic), "newest file back"), (name_a_second_file(clinic), "first state file")):
        with dpsql.connect(clinic, state=state) as session, pytest.raises(StateError) as refused:
            session.sql(question(5))
        before, _, after = str(refused.value).partition("Only if that is lost: CALL dp_accept_state(), and ")
        assert cure in before
        assert after.endswith("(up to number 2) are forgotten")


def test_copies_that_were_accepted_for_two_databases_stay_accepted(clinic: Path) -> None:
    state, old, other = state_of(clinic), clinic.with_name("old"), clinic.with_name("other.duckdb")
    with dpsql.connect(other, state=state) as session:
        session.connection.execute(ROWS)
        session.sql(ACCEPT)
        session.sql(question(2))
    shutil.copy(state, old)
    for number, database in enumerate((clinic, other), start=3):
        ask(database, number, state=state)
    old.replace(state)
    for folder in clinic.parent.glob("*-locks"):
        shutil.rmtree(folder)
    for database in (clinic, other):
        with dpsql.connect(database, state=state, read_only=True) as session:
            session.sql(ACCEPT)
    for number, database in enumerate((clinic, other, clinic), start=5):
        ask(database, number, state=state, read_only=True)


def test_a_charge_without_a_stamp_is_an_engine_error_and_pays_for_asking_again(
    unstamped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with dpsql.connect(unstamped, read_only=True) as session:
        ana = session.as_analyst("ana")
        with monkeypatch.context() as patched:
            patched.setattr("dpsql.state.stamps.os.fsync", full)
            with pytest.raises(EngineError, match=r"dpsql-locks cannot be written\. Any charge stays and pays"):
                session.sql(question(2))
            with pytest.raises(EngineError, match="the query has no answer"):
                ana.sql(question(3))
        spent = session.sql("FROM dp_budget()").df()["rho_spent"][0]
        session.sql(question(2))
        assert session.sql("FROM dp_budget()").df()["rho_spent"][0] == spent


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"charge": "5"}', '{"charge": null}'])
def test_a_damaged_stamp_is_named_to_the_curator_alone(unstamped: Path, text: str) -> None:
    fields: dict[str, Any] = json.loads(age_of(unstamped).read_text())
    age_of(unstamped).write_text(json.dumps(fields | json.loads(text)) if text.startswith('{"') else text)
    with dpsql.connect(unstamped, read_only=True) as session:
        with pytest.raises(StateError, match=r"age is damaged.* Put it back\."):
            session.sql(question(2))
        with pytest.raises(StateError, match=r"^the curator has to look at the state file first; nothing was charged$"):
            session.as_analyst("ana").sql(question(2))


def test_a_stamp_of_a_newer_version_may_have_more_fields(unstamped: Path) -> None:
    fields: dict[str, Any] = json.loads(age_of(unstamped).read_text())
    age_of(unstamped).write_text(json.dumps(fields | {"newer": 1}))
    ask(unstamped, 2, read_only=True)


@pytest.mark.parametrize(
    "change",
    [
        f"ALTER TABLE {TABLE} DROP COLUMN mark",
        f"ALTER TABLE {TABLE} ALTER charge TYPE VARCHAR USING 'many'",
        f"UPDATE {TABLE} SET charge = NULL",
        f"DELETE FROM {TABLE}",
        f"DROP TABLE {TABLE}",
    ],
)
def test_a_table_that_the_curator_changed_is_accepted_and_written_anew(clinic: Path, change: str) -> None:
    with contextlib.closing(duckdb.connect(str(clinic))) as connection:
        connection.execute(change)
    with dpsql.connect(clinic) as session:
        require_refusal(session, SWAPPED, 2)
        session.sql(ACCEPT)
        session.sql(question(2))
        assert session.connection.execute(f"SELECT charge FROM {TABLE}").fetchall() == [(2,)]
    ask(clinic, 3)


def test_an_import_into_a_database_with_a_charge_needs_the_schema_dropped(clinic: Path, tmp_path: Path) -> None:
    target = new_database(tmp_path / "target" / "clinic.duckdb", read_only=False)
    with contextlib.closing(duckdb.connect(str(clinic))) as connection:
        connection.execute(f"EXPORT DATABASE '{tmp_path / 'exported'}'")
    with contextlib.closing(duckdb.connect(str(target))) as connection:
        connection.execute("DROP TABLE visits")
        with pytest.raises(duckdb.CatalogException, match="dpsql_hidden"):
            connection.execute(f"IMPORT DATABASE '{tmp_path / 'exported'}'")
        connection.execute("DROP SCHEMA dpsql_hidden CASCADE")
        connection.execute(f"IMPORT DATABASE '{tmp_path / 'exported'}'")
    with dpsql.connect(target) as session:
        session.sql(ACCEPT)
        session.sql(question(2))


def test_a_macro_does_not_hide_the_table(clinic: Path) -> None:
    with contextlib.closing(duckdb.connect(str(clinic))) as connection:
        connection.execute(
            "CREATE MACRO duckdb_tables() AS TABLE "
            "SELECT '' AS database_name, '' AS schema_name, '' AS table_name WHERE FALSE"
        )
    with dpsql.connect(clinic, state=name_a_second_file(clinic)) as session:
        require_refusal(session, SECOND, 2)


@pytest.mark.parametrize("read_only", [False, True])
def test_an_old_format_with_charges_is_paired_when_a_stored_answer_is_read(clinic: Path, read_only: bool) -> None:
    with contextlib.closing(duckdb.connect(str(clinic))) as connection:
        connection.execute("DROP SCHEMA dpsql_hidden CASCADE")
    as_format_12(clinic)
    ask(clinic, 1, read_only=read_only)
    with dpsql.connect(clinic, state=name_a_second_file(clinic)) as session:
        require_refusal(session, SECOND, 1)


def test_a_stored_answer_raises_the_stamp_in_the_database_to_charges_that_were_read_only(clinic: Path) -> None:
    copy = Path(shutil.copy(state_of(clinic), clinic.with_name("old")))
    ask(clinic, 2, read_only=True)
    ask(clinic, 2)
    shutil.rmtree(age_of(clinic).parent)
    copy.replace(state_of(clinic))
    with dpsql.connect(clinic) as session:
        require_refusal(session, RESTORED, 3)


def test_a_session_that_begins_stamps_the_lock_folder_for_a_database_that_is_built_anew(clinic: Path) -> None:
    copy = Path(shutil.copy(state_of(clinic), clinic.with_name("old")))
    ask(clinic, 2)
    ask(clinic, 3)
    copy.replace(swap_the_database(clinic))
    with dpsql.connect(clinic) as session:
        require_refusal(session, f"{SWAPPED}.*{RESTORED}: charge 2", 3)


@pytest.mark.skipif(os.geteuid() != 0, reason="another owner of a file is set by root")
def test_a_stamp_that_root_writes_has_the_owner_of_the_folder(unstamped: Path) -> None:
    os.chown(age_of(unstamped).parent, 65534, 65534)
    ask(unstamped, 2, read_only=True)
    assert age_of(unstamped).stat().st_uid == 65534


def test_a_thread_that_pairs_during_a_look_is_no_other_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look reads the database before another thread stamps it, and the file after."""
    with dpsql.connect(tmp_path / "clinic.duckdb") as session:
        session.connection.execute(ROWS)
        session.sql(PROTECT)
        age, find = session._access.read().ledger._age, AgeTable.read
        looks: list[Any] = []
        assert age is not None

        def overtaken(beside: AgeTable, home: Any) -> Any:
            row = find(beside, home)
            looks.append(row)
            if len(looks) == 1:
                age.require()
            return row

        monkeypatch.setattr(AgeTable, "read", overtaken)
        age.require()
        assert looks[0] is None
        assert looks[-1] is not None
