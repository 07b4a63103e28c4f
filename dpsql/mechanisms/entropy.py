"""Random 64-bit words from the operating system, behind the one protocol that tests may replace.

There is no seed and no switch that turns noise off. Nothing is kept between calls, so neither a fork nor a
second thread can ever meet a word that was handed out before.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import EntropyError

# Large enough to hide the cost of a system call, small enough to stay in the cache of one core.
_BLOCK_BYTES = 1 << 18
_WORD_BYTES = 8


class Entropy(Protocol):
    """A source of independent uniform 64-bit words."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return `count` fresh words, each uniform on [0, 2**64) and independent of all others."""
        ...


class SystemEntropy:
    """The operating system's cryptographic generator, read anew on every call."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return `count` fresh words.

        *Raises*: EntropyError if the system fails or gives too few bytes; then no word was handed out.
        """
        if count < 0:
            raise EntropyError(f"a count of random words cannot be negative, got {count}")
        size = count * _WORD_BYTES
        blocks = [_system_bytes(min(_BLOCK_BYTES, size - start)) for start in range(0, size, _BLOCK_BYTES)]
        return np.frombuffer(b"".join(blocks), dtype=np.uint64)


def _system_bytes(size: int) -> bytes:
    try:
        block = os.urandom(size)
    except (OSError, NotImplementedError) as error:
        raise EntropyError("the operating system's random generator failed; nothing was drawn") from error
    if len(block) != size:
        raise EntropyError("the operating system's random generator gave too few bytes; nothing was drawn")
    return block
