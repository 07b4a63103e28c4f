"""Negative binomial variates as sums of a Poisson number of logarithmic variates; exact.

With p = e^-gamma and q = 1 - p, NB(r, p) is the sum of N independent logarithmic variates, Pr(k) = q^k / (k gamma)
for k = 1, 2, …, where N is a Poisson variate of mean r gamma. Both means are rational. Time grows with r gamma alone:
neither with the number of failures, nor with 1 / p.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache, partial
from itertools import accumulate

import numpy as np

from dpsql.noise.divisible.exponential_powers import failure_powers
from dpsql.noise.entropy import Entropy, Flags, Integers
from dpsql.noise.refined_table import LARGEST_MEAN, RefinedTable, poisson, power_coin

LARGEST_JUMPS = LARGEST_MEAN
# Jumps that are drawn at once.
_BLOCK = 1 << 18


def draw_compound_poisson(shape: Fraction, gamma: Fraction, count: int, entropy: Entropy) -> Integers:
    """Return `count` independent variates of NB(shape, e^-gamma); exact.

    *Source*: docs/proofs/divisible-noise.md (Quenouille 1949, "A relation between the logarithmic, Poisson, and
    negative binomial series").
    *Args*: shape * gamma is at most 2**20.
    *Randomness*: one word, and for each of about shape * gamma jumps about 4 + log2(jump) words.
    """
    jumps = poisson(shape * gamma, count, entropy)
    ends = np.cumsum(jumps)
    law = logarithmic_law(gamma)
    drawn, start, done = np.zeros(count, dtype=np.int64), 0, 0
    while start < count:
        stop = max(start + 1, int(np.searchsorted(ends, done + _BLOCK, side="right")))
        sizes = law.draw(int(ends[stop - 1]) - done, entropy)
        # The sum up to each key's last jump, less the sum up to the last jump of the key before.
        sums = np.append(0, np.cumsum(sizes))
        drawn[start:stop] = np.diff(sums[ends[start:stop] - done], prepend=0)
        start, done = stop, int(ends[stop - 1])
    return drawn


class LogarithmicLaw:
    """The logarithmic law Pr(k) = q^k / (k gamma) on 1, 2, …, where q = 1 - e^-gamma; exact.

    *Law*: k is proposed in two steps and accepted with the chance that is missing. Block j holds the numbers from
    2^j to 2^(j + 1) - 1 and is chosen with weight q^(2^j). Inside the block k is uniform, and it is accepted with
    chance (2^j / k) q^(k - 2^j). The product of the three is q^k / k for every k, up to one factor for all.
    """

    def __init__(self, gamma: Fraction) -> None:
        self._powers = partial(failure_powers, gamma)
        self._blocks = RefinedTable(self._block_borders)
        # Numbers beyond the last table's block are rarer than one in 2**64: their coins are made when met.
        self._coins = [power_coin(self._powers, place) for place in range(self._block_count(64))]

    def draw(self, count: int, entropy: Entropy) -> Integers:
        """Return `count` independent draws. *Shapes*: (count,)."""
        drawn = np.empty(count, dtype=np.int64)
        waiting = np.arange(count)
        while waiting.size:
            start = np.left_shift(np.int64(1), self._blocks.draw(waiting.size, entropy))
            inside = entropy.words(waiting.size).astype(np.int64) & (start - 1)
            # Cheapest first: 2^j / k is at least 1/2.
            kept = np.flatnonzero(_start_reached(start, start + inside, entropy))
            kept = kept[self._survives(inside[kept], entropy)]
            drawn[waiting[kept]] = (start + inside)[kept]
            waiting = np.delete(waiting, kept)
        return drawn

    def _survives(self, steps: Integers, entropy: Entropy) -> Integers:
        """Return the places whose coin of chance q^steps comes up: one coin for each binary digit that is set."""
        alive = np.arange(steps.size)
        for place in range(int(steps.max(initial=0)).bit_length()):
            if place == len(self._coins):
                self._coins.append(power_coin(self._powers, place))
            is_set = steps[alive] >> place & 1 == 1
            up = np.ones(alive.size, dtype=np.bool_)
            up[is_set] = self._coins[place].draw(int(np.count_nonzero(is_set)), entropy) == 1
            alive = alive[up]
        return alive

    def _block_count(self, digits: int) -> int:
        """Return the number of blocks whose weight is above 2**-digits."""
        count = 1
        while self._powers(count, digits)[1] > 1:
            count += 1
        return count

    def _block_borders(self, digits: int) -> tuple[list[int], list[int]]:
        """Return bounds on the chances that the block is at most j; see `Borders`."""
        guarded = digits + 64
        bounds = [self._powers(place, guarded) for place in range(self._block_count(guarded) + 1)]
        below, above = (list(accumulate(side)) for side in zip(*bounds, strict=True))
        # Each weight is at most the square of the one before, so all that are left out are at most twice the last.
        least, most = below[-1], above[-1] + 2 * bounds[-1][1]
        low = [(weight << digits) // most for weight in below]
        high = [min(1 << digits, -(-(weight << digits) // least)) for weight in above]
        return low, [*high[:-1], 1 << digits]


def _start_reached(start: Integers, chosen: Integers, entropy: Entropy) -> Flags:
    """Toss coins of chance start / chosen, for start = 2^j <= chosen < 2^(j + 1); exact.

    A uniform number below 2^(j + 1) is drawn until it is below `chosen`. The coin comes up if it is below `start`.
    """
    reached = np.ones(start.size, dtype=np.bool_)
    waiting = np.flatnonzero(chosen > start)
    while waiting.size:
        uniform = entropy.words(waiting.size).astype(np.int64) & (2 * start[waiting] - 1)
        decided = uniform < chosen[waiting]
        reached[waiting[decided]] = uniform[decided] < start[waiting[decided]]
        waiting = waiting[~decided]
    return reached


# The law with its tables made once.
logarithmic_law = lru_cache(maxsize=64)(LogarithmicLaw)
