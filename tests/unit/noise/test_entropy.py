from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dpsql.errors import EntropyError
from dpsql.noise.entropy import SystemEntropy

FORK_SCRIPT = """
import os
from dpsql.noise.entropy import SystemEntropy
entropy = SystemEntropy()
entropy.words(3)
child = os.fork()
words = " ".join(map(str, entropy.words(40)))
if child:
    os.waitpid(child, 0)
print(words, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("count", [0, 1, 7, (1 << 15) - 1, 1 << 15, (1 << 15) + 1, 200_000])
def test_gives_as_many_words_as_asked_for(count: int) -> None:
    words = SystemEntropy().words(count)
    assert words.shape == (count,)
    assert words.dtype == np.uint64


def test_words_never_repeat_within_or_between_calls() -> None:
    # 400,000 uniform words hold an equal pair with probability 4e-9.
    entropy = SystemEntropy()
    words = np.concatenate([entropy.words(100_000), entropy.words(100_000), SystemEntropy().words(200_000)])
    assert np.unique(words).size == words.size


def test_every_bit_is_fair() -> None:
    words = SystemEntropy().words(1 << 16)
    ones = np.array([np.count_nonzero(words >> np.uint64(bit) & np.uint64(1)) for bit in range(64)])
    # 7 standard deviations of 2**7: all 64 bits pass with probability 1 - 2e-10.
    assert np.all(np.abs(ones - (1 << 15)) < 7 * (1 << 7))


def test_threads_never_share_words() -> None:
    entropy = SystemEntropy()
    with ThreadPoolExecutor(4) as pool:
        words = np.concatenate(list(pool.map(entropy.words, [5_000] * 16)))
    assert np.unique(words).size == words.size


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_parent_and_child_of_a_fork_never_share_words() -> None:
    answer = subprocess.run([sys.executable, "-c", FORK_SCRIPT], capture_output=True, text=True, check=True)
    words = answer.stdout.split()
    assert len(words) == 80
    assert len(set(words)) == 80


def _fails(_: int) -> bytes:
    raise OSError("no entropy device")


def _missing(_: int) -> bytes:
    raise NotImplementedError


def _short(size: int) -> bytes:
    return bytes(size - 1)


def _long(size: int) -> bytes:
    return bytes(size + 8)


@pytest.mark.parametrize("broken", [_fails, _missing, _short, _long])
def test_a_failing_system_is_an_entropy_error(monkeypatch: pytest.MonkeyPatch, broken: Callable[[int], bytes]) -> None:
    monkeypatch.setattr(os, "urandom", broken)
    with pytest.raises(EntropyError):
        SystemEntropy().words(4)


def test_a_failure_in_a_later_block_hands_out_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def second_block_fails(size: int) -> bytes:
        sizes.append(size)
        if len(sizes) == 2:
            raise OSError("gone")
        return bytes(size)

    monkeypatch.setattr(os, "urandom", second_block_fails)
    with pytest.raises(EntropyError):
        SystemEntropy().words(100_000)
    assert len(sizes) == 2


@pytest.mark.parametrize("short_block", [1, 2, 4])
def test_one_short_block_of_many_hands_out_nothing(monkeypatch: pytest.MonkeyPatch, short_block: int) -> None:
    sizes: list[int] = []

    def one_is_short(size: int) -> bytes:
        sizes.append(size)
        return bytes(size - 8 if len(sizes) == short_block else size)

    monkeypatch.setattr(os, "urandom", one_is_short)
    with pytest.raises(EntropyError):
        SystemEntropy().words(100_000)
    assert len(sizes) == 4


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(EntropyError):
        SystemEntropy().words(-1)
