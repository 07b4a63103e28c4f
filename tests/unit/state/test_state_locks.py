"""One release of a frame at a time: among threads, among processes, and after a process was killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dpsql.errors
from dpsql.errors import StateError
from dpsql.state import Locks

ROOT = Path(dpsql.errors.__file__).parents[1]

HOLD = """
import sys
from pathlib import Path
from dpsql.state import Locks

with Locks(Path(sys.argv[1]), timeout_seconds=60.0).exclusive("frame"):
    print("held", flush=True)
    sys.stdin.readline()
"""

COUNT_UP = """
import sys, time
from pathlib import Path
from dpsql.state import Locks

locks, counter = Locks(Path(sys.argv[1]), timeout_seconds=600.0), Path(sys.argv[2])
for _ in range(20):
    with locks.exclusive("frame"):
        value = int(counter.read_text())
        time.sleep(0.001)
        counter.write_text(str(value + 1))
"""


def entered(locks: Locks, frame_hash: str) -> bool:
    try:
        with locks.exclusive(frame_hash):
            return True
    except StateError:
        return False


@pytest.mark.parametrize("in_memory", [True, False])
def test_threads_take_turns(tmp_path: Path, in_memory: bool) -> None:
    locks = Locks(None if in_memory else tmp_path / "locks", timeout_seconds=300.0)
    inside = 0
    seen = []

    def enter(_: int) -> None:
        nonlocal inside
        with locks.exclusive("frame"):
            inside += 1
            seen.append(inside)
            threading.Event().wait(0.001)
            inside -= 1

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(enter, range(30)))
    assert seen == [1] * 30


def test_another_thread_gives_up_after_the_timeout_and_another_frame_is_free() -> None:
    locks = Locks(None, timeout_seconds=0.05)
    with ThreadPoolExecutor(1) as thread, locks.exclusive("frame"):
        assert not thread.submit(entered, locks, "frame").result()
        assert thread.submit(entered, locks, "another frame").result()
    assert entered(locks, "frame")


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_thread_may_enter_again_what_it_holds(tmp_path: Path, in_memory: bool) -> None:
    locks = Locks(None if in_memory else tmp_path / "locks", timeout_seconds=0.05)
    with ThreadPoolExecutor(1) as thread, locks.exclusive("frame"):
        with locks.exclusive("frame"):
            pass
        assert not thread.submit(entered, locks, "frame").result()


def test_an_error_inside_frees_the_lock(tmp_path: Path) -> None:
    locks = Locks(tmp_path / "locks", timeout_seconds=0.05)
    with pytest.raises(KeyboardInterrupt), locks.exclusive("frame"):
        raise KeyboardInterrupt
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(entered, locks, "frame").result()


def test_a_process_keeps_others_out_until_it_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    locks = Locks(folder, timeout_seconds=0.05)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, folder],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert not entered(locks, "frame")
        assert entered(locks, "another frame")
        holder.kill()
        holder.wait(timeout=300)
        assert entered(locks, "frame")


@pytest.mark.parametrize("processes", [2, pytest.param(10, marks=pytest.mark.long)])
def test_processes_take_turns(tmp_path: Path, processes: int) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    arguments = [sys.executable, "-c", COUNT_UP, str(tmp_path / "locks"), str(counter)]
    counters = [subprocess.Popen(arguments, cwd=ROOT) for _ in range(processes)]
    assert [process.wait(timeout=600) for process in counters] == [0] * processes
    assert counter.read_text() == str(20 * processes)


def test_a_folder_that_cannot_be_used_is_an_error_of_the_state(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not entered(Locks(tmp_path / "file" / "locks", timeout_seconds=0.05), "frame")
    assert not entered(Locks(tmp_path / "file", timeout_seconds=0.05), "frame")
