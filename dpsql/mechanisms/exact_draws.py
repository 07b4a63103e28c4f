"""Binomial and Poisson variates, exactly: integers only, many at once."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import CalibrationError, ReleaseError
from dpsql.mechanisms.entropy import Entropy
from dpsql.mechanisms.refined_table import RefinedTable, by_ratios

_WORD_BITS = 64
# Words that are held at once.
_BLOCK = 1 << 18
LARGEST_MEAN = 1 << 20


def thinned(counts: NDArray[np.int64], chance: Fraction, entropy: Entropy) -> NDArray[np.int64]:
    """Return how many of `counts` items each survive, every item with this chance, independently; exact.

    Every item holds a uniform real number and survives if it is below `chance`. Digit by digit, both in binary,
    the items whose digit differs are decided; the others, about half, go on to the next digit.

    *Args*: `counts` at least 0; `chance` a Fraction in [0, 1].
    *Shapes*: (count,) -> (count,).
    *Raises*: ReleaseError for a negative count, CalibrationError for any other chance.
    *Randomness*: about counts / 32 + 2 log2(counts) words; time grows with them.
    *Timing*: depends on `counts` and on the outcome.
    """
    if not 0 <= chance <= 1:
        raise CalibrationError(f"a chance must lie between 0 and 1, got {chance!r}")
    if counts.size and int(counts.min()) < 0:
        raise ReleaseError("a negative number of items cannot be thinned: the points are not of one cascade")
    if chance == 1:
        return counts.copy()
    survived, undecided, rest = np.zeros_like(counts), counts.copy(), chance
    while rest and undecided.any():
        rest *= 2
        differs = _fair(undecided, entropy)
        undecided -= differs
        if rest >= 1:
            rest -= 1
            survived += differs
    return survived


def _fair(counts: NDArray[np.int64], entropy: Entropy) -> NDArray[np.int64]:
    """Return binomial variates of chance 1/2: the set bits among `counts` fair bits."""
    heads = np.zeros_like(counts)
    some = np.flatnonzero(counts)
    ends = np.cumsum(-(-counts[some] // _WORD_BITS))
    start = 0
    while start < some.size:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _BLOCK, side="right")))
        heads[some[start:stop]] = _fair_block(counts[some[start:stop]], ends[start:stop] - before, entropy)
        start = stop
    return heads


def _fair_block(counts: NDArray[np.int64], ends: NDArray[np.int64], entropy: Entropy) -> NDArray[np.int64]:
    words = entropy.words(int(ends[-1])).copy()
    # The last word of each item gives up the bits beyond its count.
    words[ends - 1] >>= (-counts % _WORD_BITS).astype(np.uint64)
    starts = np.concatenate([[0], ends[:-1]])
    sums: NDArray[np.int64] = np.add.reduceat(np.bitwise_count(words).astype(np.int64), starts)
    return sums


def poisson(mean: Fraction, count: int, entropy: Entropy) -> NDArray[np.int64]:
    """Return `count` independent Poisson variates; exact.

    *Args*: `mean`, a Fraction in [0, 2**20].
    *Raises*: CalibrationError for any other; ReleaseError for a negative count.
    *Randomness*: one word each. A table of about mean + 13 sqrt(mean) entries is made once.
    """
    if not 0 <= mean <= LARGEST_MEAN:
        raise CalibrationError(f"the mean of Poisson noise must be at least 0 and at most 2**20, got {mean!r}")
    if count < 0:
        raise ReleaseError(f"the number of noise draws cannot be negative, got {count}")
    if mean == 0:
        return np.zeros(count, dtype=np.int64)
    return _poisson_table(mean).draw(count, entropy)


@lru_cache(maxsize=64)
def _poisson_table(mean: Fraction) -> RefinedTable:
    return by_ratios(lambda n: (mean.numerator, mean.denominator * n))


def smaller_of_pair(differences: NDArray[np.int64], mean: Fraction, entropy: Entropy) -> NDArray[np.int64]:
    """Return the smaller of two independent Poisson variates of equal mean, given the size of their difference; exact.

    *Law*: the Bessel law P(n) proportional to mean^(2n + difference) / (n! (n + difference)!).
    *Source*: Yuan and Kalbfleisch 2000, "On the Bessel distribution and related problems".
    *Args*: `differences` at least 0; `mean`, a Fraction above 0.
    *Randomness*: one word each. One table of about 13 sqrt(mean) + mean entries for each different difference.
    *Timing*: depends on how many different differences there are.
    """
    square = mean * mean
    drawn = np.empty_like(differences)
    sizes, index = np.unique(differences, return_inverse=True)
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(sizes.size + 1))
    for place, size in enumerate(sizes.tolist()):
        chosen = order[starts[place] : starts[place + 1]]
        drawn[chosen] = _bessel_table(square, size).draw(chosen.size, entropy)
    return drawn


@lru_cache(maxsize=4096)
def _bessel_table(square: Fraction, difference: int) -> RefinedTable:
    return by_ratios(lambda n: (square.numerator, square.denominator * n * (n + difference)))
