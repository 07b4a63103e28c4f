"""Vectors of stored points that were decoded or drawn a moment ago, so that serving them again does not decode them."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Name = tuple[str, int, str]
"""Statistic, level, and when the point was made: a file that was restored may hold another point in its place."""

_MOST_BYTES = 2**28


class Decoded:
    """The vectors that were used last, up to a quarter of a gigabyte; threads share it.

    A point's vector never changes once it is stored, so what is here under its name is what the file holds.
    """

    def __init__(self) -> None:
        self._vectors: OrderedDict[Name, Integers] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, name: Name) -> Integers | None:
        """The vector of a stored point; None where it is not at hand."""
        with self._lock:
            found = self._vectors.get(name)
            if found is not None:
                self._vectors.move_to_end(name)
            return found

    def put(self, name: Name, vector: Integers) -> None:
        """Keep a read-only copy of what is stored, and let go of what was used longest ago."""
        if vector.flags.writeable:
            vector = vector.copy()
            vector.setflags(write=False)
        with self._lock:
            before = self._vectors.pop(name, None)
            self._vectors[name] = vector
            self._bytes += vector.nbytes - (0 if before is None else before.nbytes)
            while self._bytes > _MOST_BYTES:
                self._bytes -= self._vectors.popitem(last=False)[1].nbytes
