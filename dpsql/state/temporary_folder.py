"""Folders for rows that an engine puts on disk: beside the state file, for its owner alone.

A folder belongs to the process that created it, which holds a lock in it. The operating system frees the lock when the
process ends, however it ends. Whoever opens the state file or creates a folder next removes the folders without a
process.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock

_IN_MEMORY = ".dpsql"
"""Name that stands for the state file where there is none."""
_LOCK = "lock"
_ROWS = "rows"
_TRIES = 100
_ENDING = re.compile("[a-z0-9_]{8}")
"""The end of a name that ``mkdtemp`` makes."""


class TemporaryFolder:
    """A folder of this process that nobody but its owner may enter, whatever the rights of the files in it.

    Attributes:
        rows: a folder in it that does not exist yet. The engine creates it when it first needs it, and removes it when
            it ends.

    """

    def __init__(self, path: Path, lock: BaseFileLock) -> None:
        self.rows = path / _ROWS
        self._path = path
        self._lock = lock
        self._process_id = os.getpid()
        # at the end of the process no engine reads its rows any more
        atexit.register(self._remove_all)

    @classmethod
    def beside(cls, state_path: Path | None) -> TemporaryFolder | None:
        """Create a folder beside a state file, after the folders of dead processes are removed.

        Args:
            state_path: the state file, which need not exist; None for a state in memory, whose folders lie in the
                working folder.

        Return None if nothing can be created there.

        """
        remove_abandoned(state_path)
        for _ in range(_TRIES):
            try:
                place, beginning = _names(state_path)
                # only its owner may read, write or enter it
                path = Path(tempfile.mkdtemp(prefix=beginning, dir=place))
            except OSError:
                return None
            lock = _lock_in(path)
            try:
                lock.acquire(timeout=0)
                # the lock creates a missing folder again, for everybody
                if _is_private(path.lstat()):
                    return cls(path, lock)
                _remove_locked(path, lock)
            except (FileNotFoundError, TimeoutError):
                # another process took the folder for an abandoned one before the lock was held, and removes it
                continue
            except OSError:
                # no lock is to be had here, which the next folder would not change
                with suppress(OSError):
                    (path / _LOCK).unlink(missing_ok=True)
                    path.rmdir()
                return None
        return None

    def remove(self) -> bool:
        """Remove the folder, and return whether it is gone.

        It stays if the engine, of which another connection may be open, still has its rows there. Then it is removed
        when the process ends.
        """
        if self._process_id == os.getpid() and not self.rows.exists():
            self._remove_all()
        return not self._path.exists()

    def _remove_all(self) -> None:
        # a fork has a copy of this object, and not the folder
        if self._process_id == os.getpid():
            with suppress(OSError):
                _remove_locked(self._path, self._lock)
            atexit.unregister(self._remove_all)


def remove_abandoned(state_path: Path | None) -> None:
    """Remove the temporary folders beside a state file whose processes have ended; those of live processes stay.

    A folder of another user, with another ending or that others may enter, and a link, were not created here, and stay
    as they are.
    """
    with suppress(OSError):
        place, beginning = _names(state_path)
        with os.scandir(place) as entries:
            found = [
                one for one in entries if one.name.startswith(beginning) and _ENDING.fullmatch(one.name, len(beginning))
            ]
        for one in found:
            with suppress(OSError):
                if one.is_dir(follow_symlinks=False) and _is_private(one.stat(follow_symlinks=False)):
                    _remove_unlocked(Path(one.path))


def _names(state_path: Path | None) -> tuple[Path, str]:
    """Return where temporary folders lie, and how their names begin."""
    # one file has one name, whatever links lead to it
    # and links in a circle are for the state file to complain of
    path = Path.cwd() / _IN_MEMORY if state_path is None else Path(os.path.realpath(state_path))
    return path.parent, f"{path.name}-temporary-"


def _is_private(status: os.stat_result) -> bool:
    """Return whether a folder belongs to this user, and others may not enter it."""
    # Windows has neither
    return not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o077)


def _lock_in(path: Path) -> BaseFileLock:
    return FileLock(path / _LOCK, mode=0o600, thread_local=False)


def _remove_unlocked(path: Path) -> None:
    """Remove a folder that no process holds.

    Raises:
        OSError: a process holds it, or it has something else in it.

    """
    if os.path.lexists(path / _LOCK):
        lock = _lock_in(path)
        lock.acquire(timeout=0)
        _remove_locked(path, lock)
    else:
        # empty: its process was killed, or has yet to create the lock, and then creates another folder
        path.rmdir()


def _remove_locked(path: Path, lock: BaseFileLock) -> None:
    """Remove a folder whose lock this process holds.

    Raises:
        OSError: it has something else in it.

    """
    shutil.rmtree(path / _ROWS, ignore_errors=True)
    # Windows removes no file that is open
    with suppress(PermissionError):
        (path / _LOCK).unlink(missing_ok=True)
    lock.release()
    (path / _LOCK).unlink(missing_ok=True)
    path.rmdir()
