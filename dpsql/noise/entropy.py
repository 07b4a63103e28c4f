"""Random 64-bit words from the operating system, and the source that draws the noise of every release from them.

There is no seed and no switch that turns noise off: `NoiseSource` is the one place that tests replace, with classes
of their own. Nothing is kept between calls, so neither a fork nor a second thread can ever meet a word that was
handed out before.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import EntropyError

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Large enough to hide the cost of a system call, small enough to stay in the cache of one core.
_BLOCK_BYTES = 1 << 18
_WORD_BYTES = 8

Drawn = TypeVar("Drawn")
Drawn_co = TypeVar("Drawn_co", covariant=True)


class Entropy(Protocol):
    """A source of independent uniform 64-bit words."""

    def words(self, count: int) -> Words:
        """Return `count` fresh words, each uniform on [0, 2**64) and independent of all others."""


class SystemEntropy:
    """The operating system's cryptographic generator, read anew on every call."""

    def words(self, count: int) -> Words:
        """Return `count` fresh words.

        *Raises*: EntropyError if the system fails or gives too few bytes; then no word was handed out.
        """
        if count < 0:
            raise EntropyError(f"a count of random words cannot be negative, got {count}")
        size = count * _WORD_BYTES
        try:
            drawn = b"".join(os.urandom(min(_BLOCK_BYTES, size - start)) for start in range(0, size, _BLOCK_BYTES))
        except (OSError, NotImplementedError) as error:
            raise EntropyError("the operating system's random generator failed; nothing was drawn") from error
        if len(drawn) != size:
            raise EntropyError("the operating system's random generator gave too few bytes; nothing was drawn")
        return np.frombuffer(drawn, dtype=np.uint64)


class Distribution(Protocol[Drawn_co]):
    """A law of noise, with its scale."""

    def draw(self, count: int, entropy: Entropy) -> Drawn_co:
        """Return the noise of `count` values."""


@dataclass(frozen=True)
class NoiseSource:
    """The source of all noise that a release draws; what is drawn is for the distribution to say."""

    entropy: Entropy

    def draw(self, distribution: Distribution[Drawn], count: int) -> Drawn:
        """Return the noise of `count` values, drawn anew."""
        return distribution.draw(count, self.entropy)
