"""Locks that let one release of a frame happen at a time, across threads and processes."""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from dpsql.errors import StateError

_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class _Shard:
    """One of 256 locks: a thread lock, and for a state file a lock of the operating system behind it."""

    file_lock: BaseFileLock | None
    thread_lock: threading.RLock = field(default_factory=threading.RLock)


@dataclass(frozen=True, slots=True)
class _Shards:
    """The shards that this process has used."""

    process_id: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    by_name: dict[str, _Shard] = field(default_factory=dict)


def _shard_name(frame_hash: str) -> str:
    return hashlib.sha256(frame_hash.encode()).hexdigest()[:2]


class Locks:
    """The locks of one state; ``folder`` is where processes meet, None for a state in memory.

    The operating system frees a lock when its process ends, however it ends. Frames share 256 locks, so a
    thread may enter a lock that it holds: two frames that it nests may be the same lock.
    """

    def __init__(self, folder: Path | None, *, timeout_seconds: float) -> None:
        self._folder = folder
        self._timeout_seconds = timeout_seconds
        self._shards = _Shards()

    def _shards_of_this_process(self) -> _Shards:
        shards = self._shards
        if shards.process_id == os.getpid():
            return shards
        # Freeing an inherited file lock would unlock the parent's: one reference that nobody gives back.
        for shard in shards.by_name.values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(shard.file_lock))
        self._shards = fresh = _Shards()
        return fresh

    def _shard(self, shards: _Shards, frame_hash: str) -> _Shard:
        name = _shard_name(frame_hash)
        with shards.lock:
            if name not in shards.by_name:
                file_lock = None
                if self._folder is not None:
                    self._folder.mkdir(mode=0o700, exist_ok=True)
                    file_lock = FileLock(self._folder / f"{name}.lock", mode=0o600, thread_local=False)
                shards.by_name[name] = _Shard(file_lock)
            return shards.by_name[name]

    @contextmanager
    def all_exclusive(self, frame_hashes: Iterable[str]) -> Iterator[None]:
        """Hold the locks of several frames; in one order for everybody, so that no two wait for each other.

        Raises:
            StateError: others held one of them for longer than the timeout, or the lock folder cannot be used.

        """
        with ExitStack() as held:
            for frame_hash in sorted(set(frame_hashes), key=_shard_name):
                held.enter_context(self.exclusive(frame_hash))
            yield

    @contextmanager
    def exclusive(self, frame_hash: str) -> Iterator[None]:
        """Hold the lock of a frame: nobody else releases from it meanwhile.

        Raises:
            StateError: others held it for longer than the timeout, or the lock folder cannot be used.

        """
        busy = "another query on the same data is still running; ask again when it has finished"
        deadline = time.monotonic() + self._timeout_seconds
        try:
            shards = self._shards_of_this_process()
            shard = self._shard(shards, frame_hash)
            if not shard.thread_lock.acquire(timeout=self._timeout_seconds):
                raise StateError(busy)
            try:
                if shard.file_lock is not None:
                    left = max(0.0, deadline - time.monotonic())
                    shard.file_lock.acquire(timeout=left, poll_interval=_POLL_SECONDS)
            except BaseException:
                shard.thread_lock.release()
                raise
        except Timeout as error:
            raise StateError(busy) from error
        except OSError as error:
            raise StateError(f"{self._folder}: {error.strerror}") from error
        try:
            yield
        finally:
            # A child that was forked inside the block leaves it without touching what belongs to its parent.
            if shards.process_id == os.getpid():
                if shard.file_lock is not None:
                    shard.file_lock.release()
                shard.thread_lock.release()
