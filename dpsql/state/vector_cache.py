"""The vectors of stored points that were decoded last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
# Statistic, levels, when the point was made, and how many values it has: a file that was restored may hold another
# point in its place, and a damaged one fewer values.
VectorName = tuple[str, int, int, datetime, int]

_MOST_BYTES = 2**28


class Decoded:
    """The vectors that were used last, up to a quarter of a gigabyte; threads share it.

    A point's vector never changes once it is stored, so what is here under its name is what the file holds.
    """

    def __init__(self) -> None:
        self._vectors: OrderedDict[VectorName, Integers] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def vector(self, name: VectorName, read: Callable[[], Integers]) -> Integers:
        """The vector of a stored point, read-only.

        Where it is not at hand it is read, as an array of its own, and kept; what was used longest ago is let go.
        """
        with self._lock:
            if name in self._vectors:
                self._vectors.move_to_end(name)
                return self._vectors[name]
        vector = read()
        vector.setflags(write=False)
        with self._lock:
            # another thread may have read it meanwhile
            if name not in self._vectors:
                self._bytes += vector.nbytes
            self._vectors[name] = vector
            while self._bytes > _MOST_BYTES:
                self._bytes -= self._vectors.popitem(last=False)[1].nbytes
        return vector
