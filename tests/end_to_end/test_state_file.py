"""The state file behind a session: formats, places, timeouts, and what a curator does to their own connection."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.errors import EngineError, PolicyError, SchemaError, StateError
from dpsql.session import session as session_module
from dpsql.state import state_file

QUERY = "SELECT ward, count(*) AS n, sum(cost) AS s FROM visits GROUP BY ward"


def create_tables(session: dpsql.Session, rows: int = 3000) -> None:
    session.connection.execute(
        "CREATE TABLE visits AS SELECT u % 1000 AS patient, u % 3 AS ward, (u % 90)::DOUBLE AS cost "
        f"FROM range({rows}) t(u)"
    )


def declare(session: dpsql.Session) -> None:
    session.sql(
        "CALL dp_protect('visits', coverage := FALSE, privacy_unit_column := 'patient', max_groups_contributed := 4, "
        "max_rows_per_group := 3, default_rho := 0.5, rho_budget := 10, delta_threshold := 1e-2, "
        "delta_conversion := 1e-6)"
    )
    session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 100])")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prepared") / "clinic.duckdb"
    with dpsql.connect(path) as session:
        create_tables(session)
        declare(session)
    return path


@pytest.fixture
def clinic(prepared: Path, tmp_path: Path) -> Path:
    """Return a copy of a database and its state file."""
    shutil.copy(books(prepared), tmp_path)
    return Path(shutil.copy(prepared, tmp_path))


def books(path: Path) -> Path:
    return path.with_name(f"{path.name}.dpsql")


def spent(session: dpsql.Session) -> float:
    return float(session.sql("FROM dp_budget()").df()["rho_spent"][0])


def add_a_column(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE unit ADD COLUMN remark TEXT")


def test_an_older_format_is_migrated_when_a_session_opens_it(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dpsql.connect(clinic) as session:
        before = session.sql(QUERY).fetchall()
    newest = 1 + len(state_file.MIGRATIONS)
    monkeypatch.setattr(state_file, "MIGRATIONS", (*state_file.MIGRATIONS, add_a_column))
    with dpsql.connect(clinic) as session:
        again = session.sql(QUERY)
        assert again.fetchall() == before
        assert again.receipt is not None
        assert again.receipt.reused
        assert spent(session) == 0.5
    backup = Path(f"{books(clinic)}.backup-{newest}")
    for path, number in ((books(clinic), newest + 1), (backup, newest)):
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (number,)


def test_a_newer_format_is_refused_by_a_session_with_both_numbers(clinic: Path) -> None:
    newest = 1 + len(state_file.MIGRATIONS)
    with closing(sqlite3.connect(books(clinic))) as connection:
        connection.execute(f"PRAGMA user_version = {newest + 1}")
    content = books(clinic).read_bytes()
    with dpsql.connect(clinic) as session:
        for text in (QUERY, "FROM dp_budget()", "CALL dp_new_version('visits')"):
            with pytest.raises(StateError, match=rf"format {newest + 1}\b.* format {newest}\b"):
                session.sql(text)
    assert books(clinic).read_bytes() == content


def _with_another_format(clinic: Path) -> None:
    with closing(sqlite3.connect(books(clinic))) as connection:
        connection.execute("PRAGMA user_version = 999")


def _with_another_content(clinic: Path) -> None:
    books(clinic).write_bytes(b"no state " * 1000)


def _without_a_folder_of_locks(clinic: Path) -> None:
    folder = books(clinic).with_name(f"{books(clinic).name}-locks")
    shutil.rmtree(folder, ignore_errors=True)
    folder.write_bytes(b"")


def _without_a_table(clinic: Path) -> None:
    with closing(sqlite3.connect(books(clinic))) as connection:
        connection.execute("DROP TABLE snapshot")


@pytest.mark.parametrize("opened", [False, True], ids=["before it is opened", "while it is open"])
@pytest.mark.parametrize(
    "damage", [_with_another_format, _with_another_content, _without_a_folder_of_locks, _without_a_table]
)
def test_an_analyst_is_not_told_where_the_state_file_is(
    clinic: Path, damage: Callable[[Path], None], opened: bool
) -> None:
    with dpsql.connect(clinic) as session:
        if opened:
            session.sql("FROM dp_policy()")
        damage(clinic)
        for ask in (session.as_analyst("ana").sql, session.sql):
            with pytest.raises(StateError) as caught:
                ask(QUERY)
            is_told = clinic.name in repr(caught.value)
            assert is_told == (ask == session.sql)
            assert is_told or "the state file" in str(caught.value)
            assert (str(clinic.parent) in str(caught.value)) == is_told


def test_a_timeout_keeps_its_charge_and_asking_again_uses_it_up(clinic: Path) -> None:
    with dpsql.connect(clinic) as session:
        session.connection.execute("INSERT INTO visits SELECT u % 90_000, u % 3, u % 90 FROM range(2_000_000) t(u)")
        # the first comes before DuckDB starts, the second while it runs
        for timeout_seconds in (1e-6, 0.02):
            started = time.perf_counter()
            with pytest.raises(EngineError, match="ran out of time"):
                session.sql(QUERY, timeout_seconds=timeout_seconds)
            assert time.perf_counter() - started < 60
            assert spent(session) == 0.5
            assert len(session.sql("FROM dp_releases()")) == 0
        answer = session.sql(QUERY, timeout_seconds=600)
        assert answer.receipt is not None
        assert (answer.receipt.charged_rho, answer.receipt.charged_delta, answer.receipt.reused) == (0, 0, False)
        assert spent(session) == 0.5
        assert len(answer) == 3
        # what is stored needs no raw data, hence no time to read it
        assert session.sql(QUERY, timeout_seconds=1e-6).fetchall() == answer.fetchall()


def test_an_open_charge_pays_for_a_larger_request_in_part(clinic: Path) -> None:
    with dpsql.connect(clinic) as session:
        with pytest.raises(EngineError):
            session.sql(QUERY, timeout_seconds=1e-9)
        answer = session.sql(QUERY, rho=0.75)
        assert answer.receipt is not None
        assert answer.receipt.charged_rho == pytest.approx(0.25)
        assert spent(session) == 0.75


@pytest.mark.parametrize("timeout_seconds", [0, -1, float("nan"), "5"])
def test_a_timeout_is_a_positive_number(clinic: Path, timeout_seconds: float) -> None:
    with dpsql.connect(clinic) as session:
        with pytest.raises(PolicyError):
            session.sql(QUERY, timeout_seconds=timeout_seconds)
        assert spent(session) == 0


def test_a_rollback_of_the_curator_takes_back_no_charge(clinic: Path) -> None:
    with dpsql.connect(clinic) as session:
        session.connection.begin()
        session.connection.execute("INSERT INTO visits SELECT 5000 + u, 9, 1 FROM range(999) t(u)")
        inside = session.sql(QUERY)
        session.connection.rollback()
        assert spent(session) == 0.5
        assert 9 not in {row[0] for row in inside.fetchall()}, "what is not committed is not there"
        assert session.sql(QUERY).fetchall() == inside.fetchall()


def test_a_read_only_database_is_charged_too(clinic: Path) -> None:
    with dpsql.connect(clinic, read_only=True) as first, dpsql.connect(clinic, read_only=True) as second:
        with pytest.raises(duckdb.Error):
            first.connection.execute("CREATE TABLE t AS SELECT 1")
        answer = first.sql(QUERY)
        assert second.sql(QUERY).fetchall() == answer.fetchall()
        assert spent(first) == spent(second) == 0.5


def test_without_a_state_file_nothing_can_be_queried(tmp_path: Path) -> None:
    path = tmp_path / "clinic.duckdb"
    with dpsql.connect(path) as session:
        create_tables(session)
        for reader in (session, session.as_analyst("ana")):
            with pytest.raises(SchemaError):
                reader.sql(QUERY, rho=0.1)
            assert len(reader.sql("FROM dp_budget()")) == 0
        assert not books(path).exists(), "asking creates nothing"
        declare(session)
        assert len(session.sql(QUERY)) == 3
        assert stat.S_IMODE(books(path).stat().st_mode) == 0o600


def test_a_session_sees_the_state_file_that_another_creates(tmp_path: Path) -> None:
    path = tmp_path / "clinic.duckdb"
    with dpsql.connect(path) as session:
        create_tables(session)
        # within one process DuckDB shares the instance
        with dpsql.connect(path) as waiting:
            with pytest.raises(SchemaError):
                waiting.sql(QUERY)
            declare(session)
            answer = session.sql(QUERY)
            assert waiting.sql(QUERY).fetchall() == answer.fetchall()


def test_a_lost_state_file_is_a_closed_door(clinic: Path) -> None:
    with dpsql.connect(clinic) as session:
        session.sql(QUERY)
    for path in clinic.parent.glob("*.dpsql*"):
        if path.is_file():
            path.unlink()
    with dpsql.connect(clinic) as session, pytest.raises(SchemaError):
        session.sql(QUERY)


def test_a_connection_is_no_path_and_makes_no_file_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with duckdb.connect() as connection, pytest.raises(PolicyError, match="was given a DuckDBPyConnection"):
        dpsql.connect(connection)  # type: ignore[arg-type]  # the mistake
    assert not list(tmp_path.iterdir())


def test_a_state_file_is_named_by_a_text_or_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Named(os.PathLike[str]):
        def __init__(self, name: str) -> None:
            self._name = name

        def __fspath__(self) -> str:
            return self._name

    monkeypatch.chdir(tmp_path)
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE visits AS SELECT i AS pid FROM range(9) t(i)")
        paths: list[str | os.PathLike[str]] = ["own.dpsql", Path("own.dpsql"), Named("own.dpsql")]
        for number, named in enumerate(paths):
            session = dpsql.Session(connection.cursor(), named)
            session.sql(f"CALL dp_unit('patient', epsilon_budget := {3 - number}, delta_budget := 1e-6)")
            assert session._access.read().path == tmp_path / "own.dpsql"
            session.close()
        with dpsql.connect(Named("own.duckdb"), state=Named("own.dpsql")) as session:
            assert session._access.read().path == tmp_path / "own.dpsql"
        for wrong in (5, b"own.dpsql", ""):
            with pytest.raises(PolicyError, match="a state file is named by its path"):
                dpsql.Session(connection, wrong)  # type: ignore[arg-type]


def test_the_state_can_live_elsewhere(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "clinic.duckdb", tmp_path / "books" / "clinic.state"
    elsewhere.parent.mkdir()
    with dpsql.connect(path, state=elsewhere) as session:
        create_tables(session)
        declare(session)
        first = session.sql(QUERY).fetchall()
    assert elsewhere.exists()
    assert not books(path).exists()
    with dpsql.connect(path, state=str(elsewhere)) as session:
        assert session.sql(QUERY).fetchall() == first
        assert spent(session) == 0.5
    with dpsql.connect(path) as session, pytest.raises(SchemaError):
        session.sql(QUERY)


def test_every_way_to_a_file_leads_to_one_budget(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = clinic.parent / "folder"
    folder.symlink_to(clinic.parent)
    link = clinic.with_name("link.duckdb")
    link.symlink_to(clinic.name)
    monkeypatch.chdir(clinic.parent)
    monkeypatch.setenv("HOME", str(clinic.parent))
    for way in (link, folder / clinic.name, Path(clinic.name), f"~/{clinic.name}"):
        with dpsql.connect(way) as session:
            assert len(session.sql("FROM dp_budget()")) == 1, way
    assert not list(clinic.parent.glob("link.duckdb.*"))


def test_a_database_in_memory_says_once_that_its_budget_ends(caplog: pytest.LogCaptureFixture) -> None:
    session_module._say_that_the_budget_ends.cache_clear()
    for _ in range(2):
        with dpsql.connect() as session:
            create_tables(session)
            with pytest.raises(SchemaError):
                session.sql(QUERY)
            declare(session)
            session.sql(QUERY)
            assert spent(session) == 0.5
    assert [record.getMessage() for record in caplog.records if "ends with this process" in record.getMessage()] == [
        "the budget of a database in memory ends with this process; name a state file to keep it"
    ]


def test_a_state_file_keeps_the_budget_of_a_database_in_memory(tmp_path: Path) -> None:
    for total in (0.5, 1.0):
        with dpsql.connect(state=tmp_path / "books") as session:
            create_tables(session)
            declare(session)
            session.sql("CALL dp_new_version('visits')")
            session.sql(QUERY)
            assert spent(session) == total


@pytest.mark.parametrize(
    "text",
    [
        "CALL dp_unit('patient', epsilon_budget := -1, delta_budget := 1e-6)",
        "CALL dp_protect('visits', coverage := FALSE, unit := 'nobody', privacy_unit_column := 'patient')",
        "CALL dp_protect('visits', coverage := FALSE, privacy_unit_column := 'patient')",
        "CALL dp_domain('visits', 'patient', bounds := [0, 1])",
        "CALL dp_new_version('visits')",
        "SELECT count(*) FROM visits",
    ],
)
def test_a_refused_first_statement_leaves_no_state_file(tmp_path: Path, text: str) -> None:
    with dpsql.connect(tmp_path / "clinic.duckdb") as session:
        session.connection.execute("CREATE TABLE visits (patient INTEGER)")
        with pytest.raises(dpsql.DpsqlError):
            session.sql(text)
    assert [path.name for path in tmp_path.iterdir()] == ["clinic.duckdb"]
