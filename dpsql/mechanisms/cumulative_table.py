"""Draws from a finite law whose probabilities are multiples of 2**-128, by inverting its cumulative table."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import CalibrationError
from dpsql.mechanisms.entropy import Entropy

TABLE_BITS = 128
_LIMB_BITS = 64


class CumulativeTable:
    """The law on 0..n with P(outcome <= i) = thresholds[i] / 2**128, for n thresholds.

    *Law*: exact. The outcome is the number of thresholds that do not exceed one uniform 128-bit integer,
    whose low 64 bits are drawn only where the high 64 do not decide.
    *Args*: `thresholds`, non-decreasing integers strictly between 0 and 2**128.
    *Raises*: CalibrationError if they are not.
    """

    def __init__(self, thresholds: Iterable[int]) -> None:
        self.thresholds = tuple(thresholds)
        inside = all(0 < threshold < 1 << TABLE_BITS for threshold in self.thresholds)
        if not inside or any(left > right for left, right in pairwise(self.thresholds)):
            raise CalibrationError("cumulative thresholds must rise and lie strictly between 0 and 2**128")
        # The leading 0 makes every position below valid, also for a table without thresholds.
        high_limbs = [0, *(threshold >> _LIMB_BITS for threshold in self.thresholds)]
        self._high_limbs = np.array(high_limbs, dtype=np.uint64)
        self._high_limbs.setflags(write=False)

    def outcomes(self, high_words: NDArray[np.uint64], entropy: Entropy) -> NDArray[np.int64]:
        """Return one outcome per high word.

        *Shapes*: (count,) -> (count,). *Randomness*: one more word per tie, about n * 2**-64 per draw.
        """
        position = np.searchsorted(self._high_limbs, high_words, side="right") - 1
        ties = np.flatnonzero(self._high_limbs[position] == high_words)
        for tie in ties.tolist():
            uniform = int(high_words[tie]) << _LIMB_BITS | int(entropy.words(1)[0])
            position[tie] = bisect_right(self.thresholds, uniform)
        return position.astype(np.int64, copy=False)
