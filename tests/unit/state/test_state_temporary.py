"""Temporary folders: private, of live processes alone, and never somebody else's."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import BaseFileLock

import dpsql.errors
from dpsql.state import State, TemporaryFolder
from dpsql.state import temporary_folder as folders

ROOT = Path(dpsql.errors.__file__).parents[1]

HOLD = """
import os, sys
from pathlib import Path
from dpsql.state import TemporaryFolder

folder = TemporaryFolder.beside(Path(sys.argv[1]))
folder.rows.mkdir()
(folder.rows / "spilled").write_text("Alice")
print("held", flush=True)
sys.stdin.readline()
"""


def names(place: Path) -> list[str]:
    return sorted(each.name for each in place.iterdir())


def created(state_path: Path | None) -> TemporaryFolder:
    folder = TemporaryFolder.beside(state_path)
    assert folder is not None
    return folder


@pytest.fixture
def state_path(tmp_path: Path) -> Path:
    return tmp_path / "clinic.duckdb.dpsql"


def test_nobody_but_its_owner_enters_a_folder(state_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = created(state_path)
    finally:
        os.umask(before)
    place = folder.rows.parent
    assert place.parent == state_path.parent
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert [stat.S_IMODE(each.stat().st_mode) for each in place.iterdir()] == [0o600]
    assert folder.remove()
    assert names(state_path.parent) == []


def test_a_folder_lies_beside_the_file_to_which_links_lead(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.dpsql"
    link.symlink_to(tmp_path / "real" / "clinic.dpsql")
    folder = created(link)
    assert folder.rows.parent.parent == tmp_path / "real"
    assert folder.rows.parent.name.startswith("clinic.dpsql-temporary-")
    assert folder.remove()


def test_without_a_state_file_it_lies_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = created(None)
    assert folder.rows.parent.parent == tmp_path
    assert folder.remove()
    assert names(tmp_path) == []


def test_a_folder_stays_while_the_engine_has_rows_in_it(state_path: Path) -> None:
    folder = created(state_path)
    folder.rows.mkdir()
    assert not folder.remove()
    folder.rows.rmdir()
    assert folder.remove()
    assert folder.remove()


def test_where_nothing_can_be_created_there_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert TemporaryFolder.beside(tmp_path / "file" / "clinic.dpsql") is None
    assert TemporaryFolder.beside(tmp_path / "missing" / "clinic.dpsql") is None


def test_where_no_lock_is_to_be_had_no_folder_stays(state_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def acquire(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(BaseFileLock, "acquire", acquire)
    assert TemporaryFolder.beside(state_path) is None
    assert names(state_path.parent) == []


def test_links_in_a_circle_are_no_obstacle(tmp_path: Path) -> None:
    circle = tmp_path / "clinic.dpsql"
    circle.symlink_to(circle)
    folders.remove_abandoned(circle)
    assert created(circle).remove()


@pytest.mark.parametrize("opens", ["a folder", "the state"])
def test_the_folder_of_a_process_stays_until_it_is_killed(state_path: Path, opens: str) -> None:
    def open_next() -> None:
        if opens == "a folder":
            assert created(state_path).remove()
        else:
            State.open(state_path, create=True)

    with subprocess.Popen(
        [sys.executable, "-c", HOLD, state_path], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        (left,) = state_path.parent.glob("*-temporary-*")
        open_next()
        assert (left / "rows" / "spilled").exists()
        holder.kill()
        holder.wait(timeout=300)
        assert (left / "rows" / "spilled").exists()
        open_next()
        assert not left.exists()


def test_a_process_that_ends_by_itself_leaves_nothing(state_path: Path) -> None:
    subprocess.run([sys.executable, "-c", HOLD, state_path], cwd=ROOT, input="\n", text=True, check=True)
    assert names(state_path.parent) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_removes_nothing_of_its_parent(state_path: Path) -> None:
    folder = created(state_path)
    child = os.fork()
    if child == 0:
        folder.remove()
        folder._remove_all()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    folders.remove_abandoned(state_path)
    assert folder.rows.parent.is_dir()
    assert folder.remove()


def test_a_folder_whose_process_was_killed_before_it_held_a_lock_is_removed(state_path: Path) -> None:
    Path(f"{state_path}-temporary-empty___").mkdir(mode=0o700)
    folders.remove_abandoned(state_path)
    assert names(state_path.parent) == []


def test_what_was_not_created_here_stays(
    state_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path_factory.mktemp("mine")
    mine.chmod(0o700)
    (mine / "rows").mkdir()
    (mine / "rows" / "thesis").write_text("")
    (mine / "lock").write_text("")
    planted = Path(f"{state_path}-temporary-link____")
    planted.symlink_to(mine)
    Path(f"{state_path}-temporary-file____").write_text("")
    # others may write in this one
    Path(f"{state_path}-temporary-open____").mkdir(mode=0o700)
    Path(f"{state_path}-temporary-open____").chmod(0o777)
    # this one has something else in it, and the rows in this one lie elsewhere
    full, elsewhere = Path(f"{state_path}-temporary-full____"), Path(f"{state_path}-temporary-rows____")
    for each in (full, elsewhere):
        each.mkdir(mode=0o700)
    (full / "other").write_text("")
    (elsewhere / "rows").symlink_to(mine / "rows")
    (elsewhere / "lock").write_text("")
    # this one has the beginning of the name, and is the user's own
    saved = Path(f"{state_path}-temporary-saved")
    saved.mkdir(mode=0o700)
    (saved / "rows").mkdir()
    (saved / "rows" / "thesis").write_text("")
    (saved / "lock").write_text("mine")
    before = names(state_path.parent)
    folders.remove_abandoned(state_path)
    assert names(state_path.parent) == before
    assert (mine / "rows" / "thesis").exists()
    assert (saved / "rows" / "thesis").exists()
    assert (saved / "lock").read_text() == "mine"

    if hasattr(os, "geteuid"):
        Path(f"{state_path}-temporary-other___").mkdir(mode=0o700)
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)
        folders.remove_abandoned(state_path)
        assert Path(f"{state_path}-temporary-other___").exists()


def test_a_folder_that_another_process_takes_for_an_abandoned_one_is_created_again(
    state_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = folders._lock_in
    taken: list[Path] = []

    def lock_late(path: Path) -> BaseFileLock:
        if len(taken) < 2:
            taken.append(path)
            if len(taken) == 2:
                # opened and not yet held
                (path / "lock").touch()
            monkeypatch.setattr(folders, "_lock_in", whole)
            folders.remove_abandoned(state_path)
            monkeypatch.setattr(folders, "_lock_in", lock_late)
        return whole(path)

    monkeypatch.setattr(folders, "_lock_in", lock_late)
    before = os.umask(0o022)
    try:
        folder = created(state_path)
    finally:
        os.umask(before)
    assert len(taken) == 2
    assert folder.rows.parent not in taken
    assert names(state_path.parent) == [folder.rows.parent.name]
    assert folder.remove()
