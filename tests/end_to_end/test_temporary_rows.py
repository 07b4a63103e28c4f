"""Rows that memory does not hold lie beside the state file, for the curator alone, and go with the session."""

from __future__ import annotations

import gc
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

import dpsql
from dpsql.engine.connection import LocalConnection
from dpsql.release.held_pairs import HeldPairs
from tests.end_to_end.asking import DYING, ROOT, ledger

MEMORY = "30MB"
QUERY = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (max_groups_contributed = AUTO) ward, count(*) FROM visits "
    "WHERE ward <> {} GROUP BY ward"
)

# Asks with little memory, and dies once the table of pairs is made.
ASK = (
    DYING
    + f"""
import sys
import dpsql
from dpsql.release.held_pairs import HeldPairs

die_after(HeldPairs, "_begin")
with dpsql.connect(sys.argv[1], read_only=True, memory_limit={MEMORY!r}, threads=1) as session:
    session.sql({QUERY.format(1)!r}, rho=0.1)
"""
)


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose pairs of a unit and a group do not fit in ``MEMORY``."""
    database = tmp_path_factory.mktemp("temporary") / "clinic.duckdb"
    with dpsql.connect(database) as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT 'patient number ' || i // 4 AS patient, i % 97 AS ward "
            "FROM range(700_000) t(i)"
        )
        session.sql(
            "CALL dp_protect('visits', privacy_unit_column := 'patient', max_rows_per_group := 3, "
            "rho_budget := 100, delta_threshold := 0.1, delta_conversion := 1e-6)"
        )
    assert folders_of(database) == []
    return database


def folders_of(database: Path) -> list[Path]:
    """Folders beside a database, but for those of locks."""
    return [each for each in database.parent.iterdir() if each.is_dir() and not each.name.endswith("-locks")]


def place_of(connection: duckdb.DuckDBPyConnection) -> str:
    ((place,),) = connection.execute("SELECT current_setting('temp_directory')").fetchall()
    return str(place)


def put_rows_on_disk(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute(f"SET threads = 1; SET memory_limit = '{MEMORY}'")
    connection.execute("CREATE OR REPLACE TEMP TABLE large AS SELECT i, hash(i) FROM range(3_000_000) t(i)")


def test_a_question_puts_rows_into_a_folder_of_the_owner_alone(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Path] = []
    whole = HeldPairs._begin

    def begin(*arguments: object) -> object:
        transaction = whole(*arguments)  # type: ignore[arg-type]
        found.extend(folders_of(clinic))
        assert any((found[0] / "rows").glob("duckdb_temp_*.tmp"))
        assert stat.S_IMODE(found[0].stat().st_mode) == 0o700
        return transaction

    monkeypatch.setattr(HeldPairs, "_begin", begin)
    with dpsql.connect(clinic, read_only=True, memory_limit=MEMORY, threads=1) as session:
        assert session.sql(QUERY.format(2), rho=0.01).fetchall()
        assert folders_of(clinic) == found
    assert len(found) == 1
    assert folders_of(clinic) == []


def test_what_a_killed_process_left_is_removed_by_the_next_session_and_nothing_of_a_live_one(clinic: Path) -> None:
    with dpsql.connect(clinic, read_only=True) as lives:
        (live,) = folders_of(clinic)
        charges = ledger(clinic)[2]
        killed = subprocess.run([sys.executable, "-c", ASK, clinic], cwd=ROOT, timeout=600, check=False)
        assert killed.returncode == -signal.SIGKILL
        (left,) = set(folders_of(clinic)) - {live}
        assert any((left / "rows").glob("duckdb_temp_*.tmp"))
        assert ledger(clinic)[2] == charges + 1
        dpsql.connect(state=f"{clinic}.dpsql").close()
        assert folders_of(clinic) == [live]
        put_rows_on_disk(lives.connection)
        assert any((live / "rows").iterdir())
    assert folders_of(clinic) == []


def test_sessions_of_one_process_share_the_folder_of_their_database(clinic: Path) -> None:
    first = dpsql.connect(clinic, read_only=True)
    second = dpsql.connect(clinic, read_only=True)
    other = duckdb.connect(str(clinic), read_only=True)
    (folder,) = folders_of(clinic)
    assert place_of(first.connection) == place_of(second.connection) == str(folder / "rows")
    first.close()
    first.close()
    put_rows_on_disk(second.connection)
    second.close()
    # rows may be there as long as the database is open
    assert folders_of(clinic) == [folder]
    with dpsql.connect(clinic, read_only=True) as third:
        assert place_of(third.connection) == str(folder / "rows")
    other.close()
    dpsql.connect(clinic, read_only=True).close()
    assert folders_of(clinic) == []


def test_a_connection_that_outlives_the_session_has_its_own_folder_again(clinic: Path) -> None:
    with duckdb.connect(str(clinic), read_only=True) as other:
        own = place_of(other)
        with dpsql.connect(clinic, read_only=True) as session:
            assert place_of(other) == place_of(session.connection) != own
        assert place_of(other) == own
        assert folders_of(clinic) == []
        with dpsql.connect(clinic, read_only=True) as session:
            session.connection.execute("SET temp_directory = 'named later'")
        assert place_of(other) == "named later"
        assert folders_of(clinic) == []


def test_a_forgotten_session_leaves_no_folder(clinic: Path) -> None:
    session = dpsql.connect(clinic, read_only=True)
    assert len(folders_of(clinic)) == 1
    del session
    gc.collect()
    assert folders_of(clinic) == []


@pytest.mark.parametrize("end", ["forgotten", "closed in a transaction that failed"])
def test_a_connection_that_stays_open_can_put_rows_on_disk(clinic: Path, end: str) -> None:
    session = dpsql.connect(clinic, read_only=True)
    with duckdb.connect(str(clinic), read_only=True) as other:
        if end == "forgotten":
            del session
            gc.collect()
        else:
            session.connection.execute("BEGIN")
            with pytest.raises(duckdb.InvalidInputException):
                session.connection.execute("SELECT error('failed')").fetchall()
            session.close()
        assert place_of(other) == f"{clinic}.tmp"
        put_rows_on_disk(other)
    assert folders_of(clinic) == []


def test_access_to_files_is_not_taken_from_another_session(clinic: Path) -> None:
    with dpsql.connect(clinic, read_only=True) as session:
        with pytest.raises(duckdb.ConnectionException, match="close the other sessions first"):
            dpsql.connect(clinic, read_only=True, enable_external_access=False)
        session.connection.execute("SELECT * FROM glob('*')").fetchall()
    with dpsql.connect(clinic, read_only=True, enable_external_access=False):
        assert len(folders_of(clinic)) == 1
    assert folders_of(clinic) == []


def test_a_folder_that_the_curator_names_is_used(clinic: Path, tmp_path: Path) -> None:
    named = tmp_path / "named"
    with dpsql.connect(clinic, read_only=True, temp_directory=named) as session:
        assert place_of(session.connection) == str(named)
        # a second session is opened as the first one
        with dpsql.connect(clinic, read_only=True, TEMP_DIRECTORY=named) as again:
            assert place_of(again.connection) == str(named)
        assert folders_of(clinic) == []
    with duckdb.connect(str(clinic), read_only=True) as other:
        other.execute(f"SET temp_directory = '{named}'")
        with dpsql.connect(clinic, read_only=True) as session:
            assert place_of(session.connection) == str(named)
        assert place_of(other) == str(named)


def test_a_connection_that_the_curator_hands_over_keeps_its_folder(clinic: Path) -> None:
    with duckdb.connect(str(clinic), read_only=True) as connection:
        own = place_of(connection)
        with dpsql.Session(connection, Path(f"{clinic}.dpsql")) as session:
            session.sql("FROM dp_policy()").fetchall()
            assert place_of(connection) == own
            assert folders_of(clinic) == []


def test_a_database_without_access_to_files_has_the_folder_too(clinic: Path) -> None:
    with dpsql.connect(clinic, read_only=True, enable_external_access=False) as session:
        (folder,) = folders_of(clinic)
        assert place_of(session.connection) == str(folder / "rows")
        put_rows_on_disk(session.connection)
        assert any((folder / "rows").iterdir())
        with pytest.raises(duckdb.PermissionException):
            session.connection.execute("SELECT * FROM read_csv('other.csv')")
        with dpsql.connect(clinic, read_only=True, enable_external_access=False) as second:
            assert place_of(second.connection) == str(folder / "rows")
    assert folders_of(clinic) == []


def test_a_folder_without_room_for_files_leaves_the_setting(clinic: Path, tmp_path: Path) -> None:
    with dpsql.connect(clinic, state=tmp_path / "missing" / "state", read_only=True) as session:
        assert place_of(session.connection) == f"{clinic}.tmp"


def test_rows_of_frames_lie_beside_the_state_file_of_their_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[str] = []
    whole = LocalConnection.home

    def home(self: LocalConnection) -> tuple[str, str]:
        places.append(place_of(self._connection))
        return whole(self)

    monkeypatch.setattr(LocalConnection, "home", home)
    frame: Any = pd.DataFrame({"patient": range(50), "ward": [1, 2] * 25})
    unit = dpsql.unit(
        "patient",
        state=tmp_path / "books.dpsql",
        source="visits",
        epsilon_budget=3,
        delta_budget=1e-6,
        column="patient",
    )
    frame.dp.groupby("ward", unit=unit, rho=0.1, public_keys={"ward": [1, 2]}, max_groups=1).size()
    assert places
    assert all(place.startswith(str(tmp_path / "books.dpsql-temporary-")) for place in places)
    assert [each for each in tmp_path.iterdir() if "temporary" in each.name] == []
