"""The file itself: creation, permissions, formats, migrations, damage, transactions, forks.

The migrations of these tests come after the real ones, however many those are. What the real ones do is tested on files
that the programs of their day wrote (``format_1.sql``, …).
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpsql
import dpsql.errors
from dpsql.errors import StateError
from dpsql.state import (
    Additions,
    ChargeItem,
    Domain,
    Point,
    Policy,
    ProtectedTable,
    PublicTable,
    Release,
    Snapshot,
    State,
    TableVersion,
    Unit,
)
from dpsql.state.database import Database
from dpsql.state.state_file import APPLICATION_ID, MIGRATIONS
from dpsql.state.table_definitions import APPEND_ONLY
from tests.unit.state.stored_points import top_point

ROOT = Path(dpsql.errors.__file__).parents[1]
FORMATS = {number: Path(__file__).with_name(f"format_{number}.sql") for number in (1, 2, 3, 13, 14)}
FORMATS[4] = Path(__file__).parents[2] / "fixtures" / "plain.sql"
NEWEST = 1 + len(MIGRATIONS)


def new_file(tmp_path: Path) -> Path:
    path = tmp_path / "clinic.duckdb.dpsql"
    with State.open(path, create=True) as state:
        state.declare_unit(Unit("patient", 1000, 50, 1e-6))
        state.ledger.charge("patient", [ChargeItem("s", 7, 3)], "ana")
    return path


def open_with(path: Path, *migrations: object) -> Database:
    """Open the file with a program that knows more formats than the real one."""
    chain = (*MIGRATIONS, *migrations)
    return Database.open(path, create=False, busy_timeout_seconds=5.0, migrations=chain)  # type: ignore[arg-type]


def raw(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement).fetchall()


def add_note(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE unit ADD COLUMN note TEXT")
    connection.execute("UPDATE unit SET note = 'noted'")


def add_color(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE unit ADD COLUMN color TEXT")


def fail_halfway(connection: sqlite3.Connection) -> None:
    add_note(connection)
    raise sqlite3.OperationalError("planted")


def break_a_reference(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM unit")


def end_the_transaction(connection: sqlite3.Connection) -> None:
    connection.execute("COMMIT")


def test_a_missing_file_is_only_created_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "none.dpsql"
    with pytest.raises(StateError):
        State.open(path, create=False)
    assert not path.exists()
    with pytest.raises(StateError):
        State.open(tmp_path / "no folder" / "none.dpsql", create=True)


def test_a_file_opens_again_with_what_it_held(tmp_path: Path) -> None:
    path = new_file(tmp_path)
    for create in (False, True):
        with State.open(str(path), create=create) as state:
            assert state.path == path
            assert state.ledger.spent("patient").rho_nano == 7


def test_nobody_else_can_read_the_file_or_its_companions(tmp_path: Path) -> None:
    path = new_file(tmp_path)
    path.chmod(0o644)
    with State.open(path, create=False) as state, state.locks.exclusive("frame"):
        state.ledger.charge("patient", [ChargeItem("s", 9, 3)], "ana")
        files = [file for file in tmp_path.rglob("*") if file.is_file()]
        assert {file.name.removeprefix(path.name) for file in files} > {"", "-wal", "-shm"}
        for file in files:
            assert file.stat().st_mode & 0o777 == 0o600, file
        assert (tmp_path / f"{path.name}-locks").stat().st_mode & 0o777 == 0o700


def test_links_to_one_file_share_its_locks(tmp_path: Path) -> None:
    path = new_file(tmp_path)
    link = tmp_path / "link.dpsql"
    link.symlink_to(path)
    with State.open(link, create=False) as state, state.locks.exclusive("frame"):
        assert state.path == path
    assert [folder.name for folder in tmp_path.iterdir() if folder.is_dir()] == [f"{path.name}-locks"]


def test_every_connection_is_durable_and_checks_references(tmp_path: Path) -> None:
    with State.open(new_file(tmp_path), create=False) as state:
        database = state._database
        with database.read() as first, database.read() as second:
            assert first is not second
            for connection in (first, second):
                assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
                assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
                assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)


def test_a_newer_format_is_refused_with_both_numbers_and_left_alone(tmp_path: Path) -> None:
    path = new_file(tmp_path)
    raw(path, f"PRAGMA user_version = {NEWEST + 1}")
    before = path.read_bytes()
    with pytest.raises(StateError, match=rf"format {NEWEST + 1}\b.*format {NEWEST}\b"):
        State.open(path, create=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"this is no database" * 100, b"SQLite format 3\x00" + b"\xff" * 4096])
def test_a_file_that_is_not_ours_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.dpsql"
    path.write_bytes(content)
    with pytest.raises(StateError):
        State.open(path, create=True)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.dpsql"
    raw(path, "CREATE TABLE unit (name TEXT)")
    with pytest.raises(StateError, match="not a dpsql state file"):
        State.open(path, create=True)
    raw(path, f"PRAGMA application_id = {APPLICATION_ID}")
    with pytest.raises(StateError, match="damaged"):
        State.open(path, create=True)
    with pytest.raises(StateError):
        State.open(tmp_path, create=True)


def test_damaged_pages_are_an_error_of_the_state(tmp_path: Path) -> None:
    path = new_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\x5a" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StateError), State.open(path, create=False) as state:
        state.ledger.spent("patient")


def test_an_older_format_is_migrated_step_by_step_after_a_backup(tmp_path: Path) -> None:
    path = new_file(tmp_path)
    with closing(open_with(path, add_note, add_color)) as database, database.read() as connection:
        assert connection.execute("SELECT name, note, color FROM unit").fetchall() == [("patient", "noted", None)]
        assert connection.execute("PRAGMA user_version").fetchone() == (NEWEST + 2,)
        assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)
    backup = tmp_path / f"{path.name}.backup-{NEWEST}"
    assert backup.stat().st_mode & 0o777 == 0o600
    with State.open(backup, create=False) as state:
        assert state.ledger.spent("patient").rho_nano == 7
    with closing(open_with(path, add_note, add_color)):
        assert not backup.with_name(f"{backup.name}.1").exists()


def test_a_backup_never_replaces_an_earlier_one(tmp_path: Path) -> None:
    path = new_file(tmp_path)
    earlier = tmp_path / f"{path.name}.backup-{NEWEST}"
    earlier.write_bytes(b"earlier")
    open_with(path, add_note).close()
    assert earlier.read_bytes() == b"earlier"
    with State.open(tmp_path / f"{earlier.name}.1", create=False) as state:
        assert state.ledger.spent("patient").rho_nano == 7


@pytest.mark.parametrize("fault", [fail_halfway, break_a_reference])
def test_a_migration_that_fails_changes_nothing(tmp_path: Path, fault: object) -> None:
    path = new_file(tmp_path)
    with pytest.raises(StateError):
        open_with(path, add_color, fault)
    with State.open(path, create=False) as state:
        assert state.ledger.spent("patient").rho_nano == 7
        with state._database.read() as connection:
            assert "color" not in str(connection.execute("SELECT sql FROM sqlite_schema").fetchall())
    assert list(tmp_path.glob("*.backup-*")) == []


def test_a_migration_that_ends_its_transaction_is_caught_and_keeps_the_backup(tmp_path: Path) -> None:
    path = new_file(tmp_path)
    with pytest.raises(StateError, match=f"backup-{NEWEST}"):
        open_with(path, end_the_transaction)
    assert (tmp_path / f"{path.name}.backup-{NEWEST}").exists()


def test_a_program_that_is_overtaken_by_a_migration_stops(tmp_path: Path) -> None:
    path = new_file(tmp_path)
    with State.open(path, create=False) as old:
        open_with(path, add_note).close()
        with pytest.raises(StateError, match=f"format {NEWEST + 1}"):
            old.ledger.charge("patient", [ChargeItem("t", 1, 0)], "ana")
        with pytest.raises(StateError, match=f"format {NEWEST + 1}"):
            old.policy()


def old_file(tmp_path: Path, number: int) -> Path:
    path = tmp_path / "old.dpsql"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(FORMATS[number].read_text(encoding="utf-8"))
    return path


def schema_of(path: Path) -> dict[str, object]:
    """Return tables as their columns, references and indexes, indexes as their columns, and triggers as their text."""
    with closing(sqlite3.connect(path)) as connection:
        found: dict[str, object] = {
            f"trigger {name}": sql
            for name, sql in connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")
        }
        for schema, name, kind, *rest in connection.execute("PRAGMA table_list").fetchall():
            if schema == "main" and name != "sqlite_schema":
                found[f"{kind} {name}"] = (
                    rest,
                    connection.execute(f"PRAGMA table_info({name})").fetchall(),
                    connection.execute(f"PRAGMA foreign_key_list({name})").fetchall(),
                    sorted(
                        (*index, *connection.execute(f"PRAGMA index_info({index[1]})").fetchall())
                        for index in connection.execute(f"PRAGMA index_list({name})").fetchall()
                    ),
                )
        return found


@pytest.mark.parametrize("number", FORMATS)
def test_a_migrated_file_has_the_schema_of_a_new_one(tmp_path: Path, number: int) -> None:
    path = old_file(tmp_path, number)
    new = schema_of(new_file(tmp_path))
    assert schema_of(path) != new
    State.open(path, create=False).close()
    assert schema_of(path) == new
    assert raw(path, "PRAGMA user_version") == [(NEWEST,)]
    assert {f"trigger {table}_no_{event}" for table in APPEND_ONLY for event in ("update", "delete")} <= set(new)


@pytest.mark.parametrize(
    "fault",
    [
        "DROP TRIGGER snapshot_no_update",
        "ALTER TABLE point DROP COLUMN floor",
        "ALTER TABLE protected_table RENAME COLUMN min_units TO least_units",
        "ALTER TABLE release DROP COLUMN levels",
        "ALTER TABLE release DROP COLUMN changed",
        "DROP TABLE version_mark",
        "DROP TABLE key_list",
        "DROP TABLE version_columns",
        "DROP TRIGGER version_mark_no_update",
        "DROP TABLE point_tail",
        "DROP TRIGGER point_tail_no_delete",
        "DROP TABLE analyst",
        "DROP TABLE stop",
        "DROP TRIGGER stop_no_update",
        "DROP TABLE measured_groups",
        "DROP TRIGGER measured_groups_no_delete",
        "ALTER TABLE unit DROP COLUMN composition",
        "ALTER TABLE unit DROP COLUMN thresholds",
        "ALTER TABLE analyst DROP COLUMN budget_part",
        "ALTER TABLE public_table DROP COLUMN readable",
        "DROP INDEX charge_of_unit; CREATE INDEX charge_of_unit ON charge (unit, rho_nano, delta_units)",
        "DROP TABLE snapshot; CREATE TABLE snapshot (frame_hash, value_count, floor, exact_values)",
    ],
)
def test_a_forgotten_part_of_a_migration_is_another_schema(tmp_path: Path, fault: str) -> None:
    path = new_file(tmp_path)
    new = schema_of(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(fault)
    assert schema_of(path) != new


def test_a_file_of_format_1_holds_what_it_held(tmp_path: Path) -> None:
    path = old_file(tmp_path, 1)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    with State.open(path, create=False) as state:
        visits = ProtectedTable("main.visits", "patient", "patient_id", 4, 5, 300, None, 1e-9, version="1")
        assert state.policy() == Policy(
            units=(Unit("patient", 1000, 2**90, 1e-6, "zcdp"),),
            tables=(visits,),
            public=(PublicTable("main.cities", "1"),),
            domains=(Domain("main.visits", "cost", bounds=(0.0, 500.5)),),
            versions=(TableVersion("main.cities", "1", at), TableVersion("main.visits", "1", at)),
        )
        table = state.side_table
        assert table.frame_salt("frame", "patient", ["main.visits"]) == bytes(range(16))
        keys, point = table.frame_keys("frame"), top_point(table, "a")
        assert keys is not None
        assert keys.to_pydict() == {"city": ["Ulm", None, "Bonn"]}
        assert point is not None
        assert point.values.tolist() == [41, -3, 7]
        assert (point.rho_nano, point.frame_hash, point.lattice_exponent) == (300, "frame", -1)
        assert (point.sigma, point.tau, point.threshold_delta_units) == (2.5, 7.0, 2**80 + 1)
        assert point.created_at == at
        assert (point.correlation, point.floor, point.floor_correlation) == (0.0, 0, None)
        assert table.snapshot("frame") is None
        versions = (("main.visits", "1"),)
        assert state.history.releases() == (
            Release("ana", "query", at, ("a",), (), "gshm", 300, 0.25, 1e-9, 300, 2**80 + 1, False, versions),
        )
        spent = state.ledger.spent("patient")
        assert (spent.rho_nano, spent.delta_units) == (340, 2**80 + 1)


def test_a_file_of_format_1_goes_on_in_the_newest_format(tmp_path: Path) -> None:
    path = old_file(tmp_path, 1)
    with State.open(path, create=False) as state:
        # one charge of the old program is open still, and pays; the closed one does not pay again
        assert state.ledger.charge("patient", [ChargeItem("b", 40, 0)], "ana").rho_nano == 0
        rise = state.ledger.charge("patient", [ChargeItem("a", 100, 0)], "ana")
        assert rise.rho_nano == 100
        values = np.array([1, 2, 3], np.int64)
        raised = Point("a", 400, "frame", values, 0, 2.0, 5.0, 0, correlation=0.25, floor=19, floor_correlation=0.125)
        state.side_table.store("frame", Additions(None, [raised], rise.charge_ids, snapshot=Snapshot(values, 19)))
        top = top_point(state.side_table, "a")
        assert top is not None
        assert (top.correlation, top.floor, top.floor_correlation) == (0.25, 19, 0.125)
        state.declare_protected(ProtectedTable("main.visits", "patient", "patient_id", min_units=20))
        assert state.policy().tables[0].min_units == 20
    for change in ("UPDATE snapshot SET floor = 0", "DELETE FROM snapshot"):
        with pytest.raises(sqlite3.IntegrityError, match="never changed"):
            raw(path, change)
    # the backup is the old file, and an old program would find it so
    backup = tmp_path / f"{path.name}.backup-1"
    assert raw(backup, "PRAGMA user_version") == [(1,)]
    assert raw(backup, "SELECT name FROM sqlite_schema WHERE name = 'snapshot'") == []


def test_a_file_of_format_2_holds_what_it_held(tmp_path: Path) -> None:
    path = old_file(tmp_path, 2)
    with State.open(path, create=False) as state:
        visits = ProtectedTable("main.visits", "patient", "patient_id", 4, 5, 300, None, 1e-9, 20, version="1")
        assert state.policy().tables == (visits,)
        high, low = state.side_table.levels("a")
        # what was made of another point knows of which
        assert (high.rho_nano, high.source_rho_nano, low.rho_nano, low.source_rho_nano) == (300, None, 100, 300)
        stored = state.side_table.point("a", 100)
        assert stored is not None
        assert (stored.values.tolist(), stored.source_rho_nano, stored.tau) == ([40, -5, 9], 300, None)
        snapshot = state.side_table.snapshot("frame")
        assert snapshot is not None
        assert (snapshot.values.tolist(), snapshot.floor) == ([41, 0, 7], 3)
        # levels were not recorded: of each statistic the whole rho counts, or the highest level that shows keys
        assert state.history.held("patient", ["ana"]) == 300
        assert state.history.held("patient", ["bob"]) == 300 + 120
        assert state.history.held("patient") == 420
        assert state.side_table.generation("frame") == 0


FORMAT_3_ANSWERS = json.loads(Path(__file__).with_name("format_3_answers.json").read_text(encoding="utf-8"))


def test_a_file_of_format_3_holds_what_it_held(tmp_path: Path) -> None:
    path = old_file(tmp_path, 3)
    tables = (
        "unit",
        "protected_table",
        "public_table",
        "link",
        "analyst",
        "domain",
        "remembered_table",
        "table_version",
        "policy_log",
        "charge",
        "closed_charge",
        "frame",
        "key_chunk",
        "point",
        "snapshot",
        "release",
    )
    columns = {table: [str(row[1]) for row in raw(path, f"PRAGMA table_info({table})")] for table in tables}
    held = {table: raw(path, f"SELECT {', '.join(columns[table])} FROM {table}") for table in tables}
    assert all(held.values())
    with State.open(path, create=False) as state:
        spent = state.ledger.spent("patient")
        assert [spent.rho_nano, str(spent.delta_units)] == FORMAT_3_ANSWERS["spent"]
    for table in tables:
        assert raw(path, f"SELECT {', '.join(columns[table])} FROM {table}") == held[table], table


def test_what_a_program_of_format_3_answered_costs_nothing_and_stays_the_same(tmp_path: Path) -> None:
    """Plain and private keys, rises, lower points, own thresholds, windows, ceilings, top-k, AUTO, sets, links, …"""
    path = old_file(tmp_path, 3)
    with dpsql.connect(state=path) as session:
        session.connection.execute(Path(__file__).with_name("format_3_tables.sql").read_text(encoding="utf-8"))
        # what is stored needs no rows
        session.connection.execute("DELETE FROM visits; DELETE FROM meals")
        for asked in FORMAT_3_ANSWERS["asked"]:
            door = session if asked["reader"] == "curator" else session.as_analyst(asked["reader"])
            # the last question was asked of a new version, and all others before it
            as_of: dict[str, Any] = {}
            if asked["name"] != "new version":
                as_of["as_of"] = BEFORE_B[asked["name"] == "link"]
            again = door.sql(asked["text"], **asked["options"], **as_of)
            assert again.receipt is not None
            assert [list(row) for row in again.fetchall()] == asked["rows"], asked["name"]
            assert again.receipt.query_hash == asked["query_hash"], asked["name"]
            assert (again.receipt.charged_rho, again.receipt.charged_delta) == (0, 0), asked["name"]


BEFORE_B = ("main.visits @ 1, main.cities @ 1", "main.meals @ 1, main.visits @ 1")


def held_in(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return the rows of each table of a state file."""
    names = raw(path, "SELECT name FROM sqlite_schema WHERE type = 'table'")
    return {str(name): raw(path, f"SELECT * FROM {name}") for (name,) in names}


def test_a_file_of_format_13_holds_what_it_held(tmp_path: Path) -> None:
    """Keys, points, coverage, pins, a claim and a stop, with and without a limit."""
    path = old_file(tmp_path, 13)
    before = held_in(path)
    assert all(before[table] for table in ("point", "pin", "stop", "auto_choice", "closed_charge", "identity"))
    State.open(path, create=False).close()
    after = held_in(path)
    assert after.pop("measured_groups") == []
    assert after.pop("public_table") == [(*row, 0) for row in before.pop("public_table")]
    assert after == before


FORMAT_13_ANSWERS = json.loads(Path(__file__).with_name("format_13_answers.json").read_text(encoding="utf-8"))
FORMAT_13_TABLES = Path(__file__).parents[2] / "fixtures" / "tables.sql"


def test_what_a_program_of_format_13_answered_costs_nothing_and_stays_the_same(tmp_path: Path) -> None:
    """Estimates by coverage stay for those who got them; AUTO, and a question by relative error."""
    path = old_file(tmp_path, 13)
    with dpsql.connect(state=path) as session:
        session.connection.execute(FORMAT_13_TABLES.read_text(encoding="utf-8"))
        for asked in FORMAT_13_ANSWERS:
            door = session.as_analyst(asked["reader"]) if asked["reader"] else session
            again = door.sql(asked["text"], **asked["options"])
            assert again.receipt is not None
            assert [list(row) for row in again.fetchall()] == asked["rows"], asked["text"]
            assert again.receipt.query_hash == asked["query_hash"], asked["text"]
            assert (again.receipt.charged_rho, again.receipt.charged_delta) == (0, 0), asked["text"]


def test_public_tables_of_a_file_of_format_14_are_not_readable(tmp_path: Path) -> None:
    path = old_file(tmp_path, 14)
    before = held_in(path)
    assert all(before[table] for table in ("point", "measured_groups", "closed_charge", "identity"))
    cities = PublicTable("main.cities", "1")
    with State.open(path, create=False) as state:
        assert state.policy().public == (cities, PublicTable("main.staff", "1", "numbers of test persons"))
        after = held_in(path)
        state.declare_public(replace(cities, readable=True))
        assert state.policy().public_table("main.cities") == replace(cities, readable=True)
    assert after.pop("public_table") == [(*row, 0) for row in before.pop("public_table")]
    assert after == before


def interrupt_a_write(database: Database) -> None:
    with database.write() as connection:
        connection.execute("UPDATE unit SET rho_budget = 1")
        raise KeyboardInterrupt


def test_an_error_inside_a_transaction_undoes_it_and_frees_the_connection(tmp_path: Path) -> None:
    with State.open(new_file(tmp_path), create=False) as state:
        database = state._database
        with pytest.raises(KeyboardInterrupt):
            interrupt_a_write(database)
        assert state.policy().units[0].rho_budget == 1000
        state.declare_unit(Unit("patient", 2000, 50, 1e-6))


def test_a_busy_file_is_an_error_after_the_timeout(tmp_path: Path) -> None:
    path = new_file(tmp_path)
    with (
        State.open(path, create=False) as holder,
        State.open(path, create=False, busy_timeout_seconds=0.05) as waiter,
        holder._database.write(),
        pytest.raises(StateError, match="locked"),
    ):
        waiter.ledger.charge("patient", [ChargeItem("t", 1, 0)], "ana")


def test_a_closed_state_cannot_be_used(tmp_path: Path) -> None:
    for path in (None, tmp_path / "closed.dpsql"):
        state = State.open(path, create=True)
        state.close()
        with pytest.raises(StateError, match="closed"):
            state.policy()


@pytest.mark.parametrize("table", APPEND_ONLY)
def test_the_file_guards_every_append_only_table(tmp_path: Path, table: str) -> None:
    path = new_file(tmp_path)
    triggers = raw(path, f"SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = '{table}'")
    assert sorted(triggers) == [(f"{table}_no_delete",), (f"{table}_no_update",)]


FORK = """
import os, subprocess, sys
from dpsql.errors import StateError
from dpsql.state import ChargeItem, State

path, enter = sys.argv[1:]
other = subprocess.Popen(
    [sys.executable, "-c", enter, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)


def enters_elsewhere():
    print(file=other.stdin, flush=True)
    return other.stdout.readline()


state = State.open(path, create=False, lock_timeout_seconds=0.1)
memory = State.open(None, create=True)
inherited = {id(connection) for connection in state._database._pool.opened}
with state.locks.exclusive("held by the parent"):
    child = os.fork()
    if child == 0:
        with state._database.read() as connection:
            assert id(connection) not in inherited
        state.ledger.charge("patient", [ChargeItem("of the child", 5, 0)], "ana")
        for forbidden in (memory.policy, state.locks.exclusive("held by the parent").__enter__):
            try:
                forbidden()
            except StateError:
                continue
            raise AssertionError(forbidden)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    # The child ended as a whole interpreter; this process still has its lock and its connections.
    assert enters_elsewhere() == "kept out\\n"
    state.ledger.charge("patient", [ChargeItem("of the parent", 6, 0)], "ana")
assert enters_elsewhere() == "entered\\n"
other.stdin.close()
assert other.wait() == 0
assert state.ledger.spent("patient").rho_nano == 7 + 5 + 6
print("ok")
"""

ENTER = """
import sys
from dpsql.errors import StateError
from dpsql.state import State

state = State.open(sys.argv[1], create=False, lock_timeout_seconds=0.1)
for _ in sys.stdin:
    try:
        with state.locks.exclusive("held by the parent"):
            print("entered", flush=True)
    except StateError:
        print("kept out", flush=True)
"""


def test_a_forked_child_uses_nothing_that_its_parent_opened(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, new_file(tmp_path), ENTER],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.stdout == "ok\n", run.stderr
