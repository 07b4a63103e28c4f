"""The points of one array in memory at many levels: the top rises by composition, all below is post-processing.

Points of a state file are made by the `Measure` of their frame, in the same way.
"""

from __future__ import annotations

from fractions import Fraction
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from dpsql.errors import ReleaseError
from dpsql.noise.entropy import Entropy, SystemEntropy
from dpsql.noise.law import Law

Integers = npt.NDArray[np.int64]


class Cascade:
    """The points (level, noisy values) of one statistic under one law.

    *Guarantee*: all points together cost what their highest level costs under the law, when all rows of one unit are
    added or removed; the caller charges each rise before asking for it.
    *Source*: Andersson, Retschmeier, Nelson and Pagh, Algorithm 1 and Lemma A.2 (``ceiling``); docs/proofs/cascade.md.
    *Assumes*: exact values that stay what they are; a law's docstring says what its levels mean.

    Args:
        law: the noise.
        exact: int64 in lattice steps, one per key.
        ceiling: draw once at this level and forget the exact values; no level above it can be had then.
        entropy: where noise comes from.

    """

    def __init__(
        self, law: Law, exact: Integers, *, ceiling: Fraction | None = None, entropy: Entropy | None = None
    ) -> None:
        self._law = law
        self._entropy = entropy or SystemEntropy()
        self._points: dict[Fraction, Integers] = {}
        self._exact: Integers | None = exact.copy()
        if ceiling is not None:
            self.release(ceiling)
            self._exact = None

    def __repr__(self) -> str:
        return f"Cascade({self._law!r}, levels={[str(level) for level in self.points]})"

    @property
    def points(self) -> MappingProxyType[Fraction, Integers]:
        """Every point, most private first."""
        return MappingProxyType(dict(sorted(self._points.items())))

    def release(self, level: Fraction) -> Integers:
        """The point at a level: stored, between its neighbours, below the lowest, or risen above the highest.

        *Returns*: int64 in lattice steps; the same array for the same level.
        *Raises*: ReleaseError above a ceiling; CalibrationError for a level that the law has not.
        """
        if level not in self._points:
            made = self._made(level)
            made.setflags(write=False)
            self._points[level] = made
        return self._points[level]

    def _made(self, level: Fraction) -> Integers:
        # the next ones, with their levels
        above = [(self._points[known], known) for known in sorted(self._points) if known > level][:1]
        below = [(self._points[known], known) for known in sorted(self._points) if known < level][-1:]
        if above and below:
            return self._law.bridge(*below[0], *above[0], level, self._entropy)
        if above:
            return self._law.step_down(*above[0], level, self._entropy)
        if self._exact is None:
            raise ReleaseError("this cascade was drawn at its ceiling, and its exact values are forgotten")
        if below:
            return self._law.step_up(*below[0], level, self._exact, self._entropy)
        return self._law.draw(self._exact, level, self._entropy)
