"""Exact draws from laws whose probabilities are known to any number of binary digits; integers only.

One uniform 64-bit word nearly always decides between the outcomes. Where it does not, because the word and a
border between two outcomes agree in all 64 digits, more digits of both are computed until they differ. So no
probability is ever rounded, and docs/proofs/cascade.md (Lemma 1) has nothing to add to delta.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import CalibrationError
from dpsql.mechanisms.entropy import Entropy

_WORD_BITS = 64
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

    def draw(self, count: int, entropy: Entropy) -> NDArray[np.int64]:
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


def _passed(borders: NDArray[np.uint64], words: NDArray[np.uint64]) -> NDArray[np.int64]:
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
    shares: list[Fraction] = []
    passed = Fraction(0)
    for weight in weights:
        passed += weight
        shares.append(passed / total)

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
        size = len(weights)
        least_total = sum(weights)
        most_total = least_total + size * size + 2 * size
        below, above, passed = [], [], 0
        for outcome, weight in enumerate(weights):
            passed += weight
            below.append((passed << digits) // most_total)
            above.append(-((-(passed + (outcome + 1) * size) << digits) // least_total))
        whole = 1 << digits
        # The outcomes beyond the list share what is left: passing the last border is never certain.
        return below, [*(min(whole, border) for border in above[:-1]), whole]

    return RefinedTable(borders)


def _mode(ratio: Ratio) -> int:
    """Return the last n with ratio(n) >= 1, 0 if there is none."""

    def rises(n: int) -> bool:
        numerator, denominator = ratio(n)
        return numerator >= denominator

    high = 1
    while rises(high):
        high *= 2
        _require_narrow(high)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if rises(middle) else (low, middle)
    return low


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


class GeometricLaw:
    """The geometric law P(x) = (1 - ratio) ratio^x on 0, 1, 2, …; exact, also where the ratio is close to 1.

    *Source*: the binary digits of a geometric variate are independent, digit i set with chance
    r / (1 + r), r = ratio^(2^i), and what is above the last digit is geometric again (docs/proofs/cascade.md, Lemma 3).
    *Args*: `ratio`, a Fraction in [0, 1 - 2**-50].
    *Raises*: CalibrationError for any other.
    """

    def __init__(self, ratio: Fraction) -> None:
        if not 0 <= ratio <= 1 - Fraction(1, 1 << 50):
            raise CalibrationError("the ratio of a geometric law must be at least 0 and at most 1 - 2**-50")
        self._digits: list[RefinedTable] = []
        while _power(ratio, len(self._digits), _WORD_BITS)[1] > 1 << (_WORD_BITS - 1):
            self._digits.append(_digit(ratio, len(self._digits)))
        self._next = _power_coin(ratio, len(self._digits))

    def draw(self, count: int, entropy: Entropy) -> NDArray[np.int64]:
        """Return `count` independent draws. *Randomness*: about log2(1 / (1 - ratio)) + 2 words each."""
        drawn = np.zeros(count, dtype=np.int64)
        for place, digit in enumerate(self._digits):
            drawn |= digit.draw(count, entropy) << place
        alive = np.arange(count)
        while alive.size:
            alive = alive[self._next.draw(alive.size, entropy) == 1]
            drawn[alive] += 1 << len(self._digits)
        return drawn


@lru_cache(maxsize=256)
def geometric_law(ratio: Fraction) -> GeometricLaw:
    """Return the law, its tables made once."""
    return GeometricLaw(ratio)


def _power(ratio: Fraction, doublings: int, digits: int) -> tuple[int, int]:
    """Return integers around 2**digits ratio**(2**doublings)."""
    working = digits + doublings + 8
    below = (ratio.numerator << working) // ratio.denominator
    above = -((-ratio.numerator << working) // ratio.denominator)
    for _ in range(doublings):
        below, above = below * below >> working, -(-above * above >> working)
    return below >> working - digits, -(-above >> working - digits)


def _digit(ratio: Fraction, place: int) -> RefinedTable:
    def borders(digits: int) -> tuple[list[int], list[int]]:
        guarded = digits + _GUARD_BITS
        below, above = _power(ratio, place, guarded)
        one, whole = 1 << guarded, 1 << digits
        # 1 / (1 + r) is the chance of a digit 0.
        return [(one << digits) // (one + above), whole], [-((-one << digits) // (one + below)), whole]

    return RefinedTable(borders)


def _power_coin(ratio: Fraction, doublings: int) -> RefinedTable:
    def borders(digits: int) -> tuple[list[int], list[int]]:
        below, above = _power(ratio, doublings, digits)
        whole = 1 << digits
        return [whole - above, whole], [whole - below, whole]

    return RefinedTable(borders)
