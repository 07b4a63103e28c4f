"""Entropy for tests only: seeded, or word for word as the test wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
from numpy.typing import NDArray


class SeededEntropy:
    """A reproducible stream of words; the same seed gives the same noise."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Philox(seed)

    def words(self, count: int) -> NDArray[np.uint64]:
        return np.asarray(self._generator.random_raw(count), dtype=np.uint64).reshape(count)


class ScriptedEntropy:
    """Hands out the given words in order; asking for more than there are fails the test."""

    def __init__(self, script: Iterable[int]) -> None:
        self._script = list(script)

    def words(self, count: int) -> NDArray[np.uint64]:
        assert count <= len(self._script), "the script of random words is too short"
        handed, self._script = self._script[:count], self._script[count:]
        return np.array(handed, dtype=np.uint64)

    @property
    def left(self) -> int:
        return len(self._script)


@contextmanager
def seeded_system(seed: int) -> Iterator[None]:
    """Replace the operating system's generator: each draw and salt of this process is then the same for one seed."""
    entropy = SeededEntropy(seed)

    def urandom(size: int) -> bytes:
        return entropy.words(-(-size // 8)).tobytes()[:size]

    with mock.patch("os.urandom", urandom):
        yield
