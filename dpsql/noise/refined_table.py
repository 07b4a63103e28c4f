"""Exact draws from laws whose probabilities are known to any number of binary digits; integers only, many at once.

One uniform 64-bit word nearly always decides between the outcomes. Where it does not, because the word and a
border between two outcomes agree in all 64 digits, more digits of both are computed until they differ. So no
probability is ever rounded, and docs/proofs/cascade.md (Lemma 1) has nothing to add to delta.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from itertools import accumulate

import numpy as np

from dpsql.errors import CalibrationError, ReleaseError
from dpsql.noise.entropy import Entropy, Integers, Words

LARGEST_MEAN = 1 << 20

_WORD_BITS = 64
# Words that are held at once.
_BLOCK = 1 << 18
# Weights carry this many digits more than the borders that are made of them.
_GUARD_BITS = 64
# Up to here comparing is faster than searching.
_FEW_BORDERS = 6
# Wider laws would need tables of millions of entries.
_MOST_OUTCOMES = 1 << 21

# From a number of digits to integers (below, above), one pair for every outcome i of the table:
# below[i] <= 2**digits P(outcome <= i) <= above[i], both non-decreasing, and the last of above is 2**digits.
Borders = Callable[[int], tuple[list[int], list[int]]]
# Numerator and denominator of P(n) / P(n - 1), for n >= 1, falling in n and reaching 1/2.
Ratio = Callable[[int], tuple[int, int]]
# From i and a number of digits to integers (below, above) around 2**digits ratio**(2**i).
Powers = Callable[[int, int], tuple[int, int]]


class RefinedTable:
    """A law on 0, 1, 2, … given by bounds on its cumulative probabilities that can be made as tight as needed.

    *Law*: exact. The outcome is the number of borders P(outcome <= i) that do not exceed one uniform real
    number, whose binary digits are drawn 64 at a time, and only as many as decide.
    *Args*: `borders`, see `Borders`; the outcomes beyond its list are those above its last border.
    *Raises*: CalibrationError if the last border could be passed without doubt.
    """

    def __init__(self, borders: Borders) -> None:
        self._borders = borders
        below, above = borders(_WORD_BITS)
        if not above or above[-1] < 1 << _WORD_BITS:
            raise CalibrationError("the table of a law must end where no word lies beyond it")
        # A border of 2**64 is above every word, and does not fit into one.
        self._below = np.array([border for border in below if border < 1 << _WORD_BITS], dtype=np.uint64)
        self._above = np.array([border for border in above if border < 1 << _WORD_BITS], dtype=np.uint64)

    def draw(self, count: int, entropy: Entropy) -> Integers:
        """Return `count` independent draws. *Randomness*: one word each, and one more per 2**64 / len draws."""
        words = entropy.words(count)
        surely, possibly = _passed(self._above, words), _passed(self._below, words)
        for doubtful in np.flatnonzero(surely != possibly).tolist():
            surely[doubtful] = self._refined(int(words[doubtful]), entropy)
        return surely

    def _refined(self, uniform: int, entropy: Entropy) -> int:
        digits = _WORD_BITS
        while True:
            digits += _WORD_BITS
            uniform = uniform << _WORD_BITS | int(entropy.words(1)[0])
            below, above = self._borders(digits)
            surely = bisect_right(above, uniform)
            if surely == bisect_right(below, uniform):
                return surely


def _passed(borders: Words, words: Words) -> Integers:
    """Return how many of the borders, which do not fall, each word has reached."""
    if borders.size > _FEW_BORDERS:
        return np.searchsorted(borders, words, side="right").astype(np.int64, copy=False)
    reached = np.zeros(words.size, dtype=np.int64)
    for border in borders:
        reached += words >= border
    return reached


def choice(weights: Sequence[Fraction]) -> RefinedTable:
    """Return the law on 0 … len - 1 with probabilities proportional to rational `weights`; exact.

    *Raises*: CalibrationError for a negative weight, or if all are 0.
    """
    total = sum(weights, Fraction(0))
    if total <= 0 or min(weights) < 0:
        raise CalibrationError("weights of a choice must not be negative, and one must be above 0")
    shares = [passed / total for passed in accumulate(weights)]

    def borders(digits: int) -> tuple[list[int], list[int]]:
        scaled = [(share.numerator << digits, share.denominator) for share in shares]
        return [above // below for above, below in scaled], [-(-above // below) for above, below in scaled]

    return RefinedTable(borders)


def coin(chance: Fraction) -> RefinedTable:
    """Return the law of 1 with this chance, 0 otherwise; exact."""
    return choice([1 - chance, chance])


def by_ratios(ratio: Ratio) -> RefinedTable:
    """Return the law on 0, 1, 2, … with P(n) / P(n - 1) = ratio(n); exact.

    *Source*: docs/proofs/cascade.md, Lemma 2: weights are multiplied outwards from the mode, where every factor
    is at most 1, and cut; each errs by less than one unit per step, and what is left out by two per step.
    *Raises*: CalibrationError where more than 2**21 outcomes have a weight.
    """
    mode = _mode(ratio)

    def borders(digits: int) -> tuple[list[int], list[int]]:
        weights = _weights(ratio, mode, digits + _GUARD_BITS)
        size, passed, whole = len(weights), list(accumulate(weights)), 1 << digits
        least_total, most_total = passed[-1], passed[-1] + size * size + 2 * size
        below = [(mass << digits) // most_total for mass in passed]
        above = [-((-(mass + n * size) << digits) // least_total) for n, mass in enumerate(passed[:-1], start=1)]
        # The outcomes beyond the list share what is left: passing the last border is never certain.
        return below, [*(min(whole, border) for border in above), whole]

    return RefinedTable(borders)


def _mode(ratio: Ratio) -> int:
    """Return the last n with ratio(n) >= 1, 0 if there is none."""

    def falls(n: int) -> bool:
        numerator, denominator = ratio(n)
        return numerator < denominator

    # A law with a mode beyond half of all outcomes is too wide.
    mode = bisect_left(range(1, _MOST_OUTCOMES // 2 + 1), True, key=falls)
    _require_narrow(2 * mode)
    return mode


def _weights(ratio: Ratio, mode: int, digits: int) -> list[int]:
    """Return weights of 0, 1, …, relative to 2**digits at the mode, each rounded down once per step from there."""
    weight, falling = 1 << digits, [0] * mode
    for n in range(mode, 0, -1):
        numerator, denominator = ratio(n)
        weight = weight * denominator // numerator
        if weight == 0:
            break
        falling[n - 1] = weight
    weight, rising, n = 1 << digits, [1 << digits], mode
    while True:
        n += 1
        numerator, denominator = ratio(n)
        weight = weight * numerator // denominator
        if weight == 0 and 2 * numerator <= denominator:
            return falling + rising
        rising.append(weight)
        _require_narrow(n)


def _require_narrow(outcome: int) -> None:
    if outcome >= _MOST_OUTCOMES:
        raise CalibrationError("the law is too wide for a table of exact probabilities")


class GeometricByDigits:
    """The geometric law P(x) = (1 - ratio) ratio^x on 0, 1, 2, …; exact, also where the ratio is close to 1.

    *Source*: the binary digits of a geometric variate are independent. Digit i is set with chance r / (1 + r),
    r = ratio^(2^i). The rest above the last digit is geometric again (docs/proofs/cascade.md, Lemma 3).
    *Args*: `powers` of the ratio, see `Powers`; the ratio is at most 1 - 2**-50 and need not be rational.
    """

    def __init__(self, powers: Powers) -> None:
        self._digits: list[RefinedTable] = []
        while powers(len(self._digits), _WORD_BITS)[1] > 1 << (_WORD_BITS - 1):
            self._digits.append(RefinedTable(partial(_digit_borders, powers, len(self._digits))))
        self._next = power_coin(powers, len(self._digits))

    def draw(self, count: int, entropy: Entropy) -> Integers:
        """Return `count` independent draws. *Randomness*: about log2(1 / (1 - ratio)) + 2 words each."""
        drawn = np.zeros(count, dtype=np.int64)
        for place, digit in enumerate(self._digits):
            drawn |= digit.draw(count, entropy) << place
        alive = np.arange(count)
        while alive.size:
            alive = alive[self._next.draw(alive.size, entropy) == 1]
            drawn[alive] += 1 << len(self._digits)
        return drawn


class GeometricLaw(GeometricByDigits):
    """The geometric law of a rational ratio; exact.

    *Args*: `ratio`, a Fraction in [0, 1 - 2**-50].
    *Raises*: CalibrationError for any other.
    """

    def __init__(self, ratio: Fraction) -> None:
        if not 0 <= ratio <= 1 - Fraction(1, 1 << 50):
            raise CalibrationError("the ratio of a geometric law must be at least 0 and at most 1 - 2**-50")
        super().__init__(partial(_power, ratio))


# The law with its tables made once.
geometric_law = lru_cache(maxsize=256)(GeometricLaw)


def power_coin(powers: Powers, doublings: int) -> RefinedTable:
    """Return the law of 1 with chance ratio**(2**doublings), 0 otherwise; exact."""
    return RefinedTable(partial(_power_borders, powers, doublings))


def _power(ratio: Fraction, doublings: int, digits: int) -> tuple[int, int]:
    """Return integers around 2**digits ratio**(2**doublings)."""
    working = digits + doublings + 8
    below = (ratio.numerator << working) // ratio.denominator
    above = -((-ratio.numerator << working) // ratio.denominator)
    for _ in range(doublings):
        below, above = below * below >> working, -(-above * above >> working)
    return below >> working - digits, -(-above >> working - digits)


def _digit_borders(powers: Powers, place: int, digits: int) -> tuple[list[int], list[int]]:
    """Borders of binary digit `place` of a geometric variate: it is 0 with chance 1 / (1 + r)."""
    guarded = digits + _GUARD_BITS
    below, above = powers(place, guarded)
    one, whole = 1 << guarded, 1 << digits
    return [(one << digits) // (one + above), whole], [-((-one << digits) // (one + below)), whole]


def _power_borders(powers: Powers, doublings: int, digits: int) -> tuple[list[int], list[int]]:
    """Borders of the law of 1 with chance ratio**(2**doublings), 0 otherwise."""
    below, above = powers(doublings, digits)
    whole = 1 << digits
    return [whole - above, whole], [whole - below, whole]


def thinned(counts: Integers, chance: Fraction, entropy: Entropy) -> Integers:
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


def _fair(counts: Integers, entropy: Entropy) -> Integers:
    """Return binomial variates of chance 1/2: the set bits among `counts` fair bits."""
    heads = np.zeros_like(counts)
    some = np.flatnonzero(counts)
    ends = np.cumsum(-(-counts[some] // _WORD_BITS))
    start = 0
    while start < some.size:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _BLOCK, side="right")))
        block, lasts = some[start:stop], ends[start:stop] - before - 1
        words = entropy.words(int(lasts[-1]) + 1).copy()
        # The last word of each item gives up the bits beyond its count.
        words[lasts] >>= (-counts[block] % _WORD_BITS).astype(np.uint64)
        heads[block] = np.add.reduceat(np.bitwise_count(words).astype(np.int64), np.append(0, lasts[:-1] + 1))
        start = stop
    return heads


def poisson(mean: Fraction, count: int, entropy: Entropy) -> Integers:
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


def smaller_of_pair(differences: Integers, mean: Fraction, entropy: Entropy) -> Integers:
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
