"""The discrete Gaussian, exactly: integers only, no floating point anywhere, many draws at once.

N_Z(0, variance) has P(x) proportional to exp(-x^2 / (2 variance)) on the integers. Every probability that is
needed on the way is a product of fractions of 64-bit integers, so a coin of that probability is a few uniform
integers, all of which must fall below their numerators. docs/proofs/discrete-gaussian.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, repeat

import numpy as np

from dpsql.accounting.profile import require_positive
from dpsql.errors import CalibrationError, ReleaseError
from dpsql.noise.correlated_gaussian import CorrelatedNoise
from dpsql.noise.entropy import Entropy, Flags, Integers, Words

# A coin for each proposal: the denominator of its chance, one for all of them, and the numerators.
Coin = tuple[int, Words]

# Of the numerator, and of the denominator times (floor(sqrt(variance)) + 1)^2.
_LARGEST = 1 << 56
# A proposal of less than this many scales keeps every product below 2**62.
_MOST_SCALES = 64
_SIGNIFICANT_BITS = 32
_BLOCK = 1 << 15


def rational_variance(sigma: float) -> Fraction:
    """Return the least variance of at most 32 significant binary digits that is no less than sigma^2.

    *Returns*: sigma^2, rounded up by a share of at most 2**-30. A threshold has to be calibrated for the
    variance that is returned: more noise shows more new keys.
    *Raises*: CalibrationError unless sigma is a positive finite number.

    >>> rational_variance(1.5)
    Fraction(9, 4)
    """
    exact = Fraction(require_positive("sigma", sigma)) ** 2
    digits = exact.numerator.bit_length() - exact.denominator.bit_length()
    unit = Fraction(2) ** (digits - _SIGNIFICANT_BITS + 1)
    return math.ceil(exact * Fraction(unit.denominator, unit.numerator)) * unit


@dataclass(frozen=True, slots=True)
class DiscreteGaussian:
    """Draw from N_Z(0, variance), exactly.

    *Guarantee*: draws are independent and have the law P(x) = exp(-x^2 / (2 variance)) / sum over all integers,
    without any error; nothing is added to delta for the draws.
    *Source*: Canonne, Kamath and Steinke 2020, Algorithms 1 to 3; how the coins are made of 64-bit integers:
    docs/proofs/discrete-gaussian.md.
    *Args*: `variance`, a Fraction above 0 in squared lattice steps, with numerator and denominator *
    (floor(sqrt(variance)) + 1)^2 at most 2**56.
    *Raises*: CalibrationError for any other.
    *Assumes*: words of the entropy are uniform and independent.
    *Timing*: no exact value enters, only noise is drawn. A proposal is dropped as a whole, but larger sizes need
    more coins, so the time of a release tells a little about the largest of all its draws.
    """

    variance: Fraction

    def __post_init__(self) -> None:
        if not isinstance(self.variance, Fraction) or self.variance <= 0:
            raise CalibrationError(f"the variance must be a Fraction above 0, got {self.variance!r}")
        if max(self.variance.numerator, self.variance.denominator * self._scale() ** 2) > _LARGEST:
            raise CalibrationError(f"the variance must fit in 56 bits, got {self.variance!r}")

    def draw(self, count: int, entropy: Entropy) -> Integers:
        """Return `count` independent draws.

        *Returns*: whole lattice steps. *Shapes*: (count,).
        *Raises*: ReleaseError for a negative count; EntropyError if the entropy fails.
        *Randomness*: about 15 words per draw, more where the variance is small (23 at 0.001).
        """
        if count < 0:
            raise ReleaseError(f"the number of noise draws cannot be negative, got {count}")
        drawn = np.empty(count, dtype=np.int64)
        filled = 0
        while filled < count:
            missing = count - filled
            # Of a hundred proposals of a wide law, 48 survive both rejections.
            proposals = min(_BLOCK, missing * 9 // 4 + 16)
            kept = self._proposed(proposals, entropy)[:missing]
            drawn[filled : filled + kept.size] = kept
            filled += kept.size
        return drawn

    def _scale(self) -> int:
        return math.isqrt(math.floor(self.variance)) + 1

    def _proposed(self, count: int, entropy: Entropy) -> Integers:
        proposed = discrete_laplace(self._scale(), count, entropy)
        near = np.abs(proposed) < _MOST_SCALES * self._scale()
        kept = np.zeros(proposed.size, dtype=np.bool_)
        kept[near] = self._accepted(np.abs(proposed[near]), entropy)
        for far in np.flatnonzero(~near).tolist():
            kept[far] = bernoulli_exp_exactly(self._exponent(abs(int(proposed[far]))), entropy)
        return proposed[kept]

    def _exponent(self, size: int) -> Fraction:
        above, below, scale = self.variance.numerator, self.variance.denominator, self._scale()
        return Fraction((size * below * scale - above) ** 2, 2 * above * below * scale**2)

    def _accepted(self, size: Integers, entropy: Entropy) -> Flags:
        """Toss a coin of probability exp(-(size - variance / scale)^2 / (2 variance)) for every proposal.

        With variance = p / q and d = |size q scale - p| the exponent is (d / p) (d / (q scale^2)) / 2. Whole parts
        and remainders of the two quotients are multiplied out: four products, each a number of equal coins.
        """
        first = self.variance.numerator
        second = self.variance.denominator * self._scale() ** 2
        distance = np.abs(size * (self.variance.denominator * self._scale()) - first)
        (times_one, rest_one), (times_other, rest_other) = np.divmod(distance, first), np.divmod(distance, second)
        once = np.ones(size.size, dtype=np.int64)
        half, one, other = (
            (2, once.astype(np.uint64)),
            (first, rest_one.astype(np.uint64)),
            (second, rest_other.astype(np.uint64)),
        )
        products = (
            (once, (half, one, other)),
            (times_one, (half, other)),
            (times_other, (half, one)),
            (times_one * times_other, (half,)),
        )
        return bernoulli_exp_of_sum(size.size, products, entropy)


@dataclass(frozen=True, slots=True)
class DiscreteCorrelatedGaussian:
    """Draw (Z_i + F) / 2 for integers Z_i of each key's own and one integer F for all: Algorithm 4 of the paper.

    *Guarantee*: `discrete_counts_delta` for the counts H_i + values / 2 of k public keys that one unit moves by 0 or
    1, all in one direction. If only keys with a unit, at most k, get noise, and only counts above 1 + tau, strictly,
    are shown: `discrete_delta`, for one query alone. Neighbours differ in all rows of one unit (add or remove).
    Nothing is added for the draws.
    *Source*: Lebeda and Retschmeier 2025, Algorithm 4 and Theorem 7.7; docs/proofs/discrete-gaussian.md.
    *Symbols*: `variance` is sigma^2; 1/correlation is lambda.
    *Args*: `variance` of a key's own noise in squared counts; `correlation`, the variance of the common noise over
    it; both Fractions above 0, and 4 variance and 4 variance correlation as `DiscreteGaussian` asks.
    *Raises*: CalibrationError for any other.
    *Timing*: as `DiscreteGaussian`.
    """

    variance: Fraction
    correlation: Fraction

    def __post_init__(self) -> None:
        self._terms()

    def draw(self, count: int, entropy: Entropy) -> CorrelatedNoise:
        """Return Z_i + F for `count` keys, and F.

        *Returns*: half counts, both. *Shapes*: (count,) and one integer.
        *Raises*: ReleaseError for a negative count; EntropyError if the entropy fails.
        *Randomness*: `count` + 1 draws of DiscreteGaussian.
        """
        own_law, common_law = self._terms()
        own = own_law.draw(count, entropy)
        common = int(common_law.draw(1, entropy)[0])
        return CorrelatedNoise(own + common, common)

    def _terms(self) -> tuple[DiscreteGaussian, DiscreteGaussian]:
        """Return the laws of a key's own term and of the common one, in half counts."""
        own = DiscreteGaussian(4 * self.variance)
        if not isinstance(self.correlation, Fraction):
            raise CalibrationError(f"the correlation must be a Fraction, got {self.correlation!r}")
        return own, DiscreteGaussian(4 * self.variance * self.correlation)


def uniform_below(limit: int, count: int, entropy: Entropy) -> Words:
    """Return `count` independent uniform integers from 0 to limit - 1, for limit in 1..2**63; exact.

    *Randomness*: one word each, and one more for every word in the incomplete last block of `limit` (less than
    half of all; none for a power of two, and no words at all for limit 1).
    """
    if limit == 1:
        return np.zeros(count, dtype=np.uint64)
    words = entropy.words(count).copy()
    if limit & (limit - 1) == 0:
        return words & np.uint64(limit - 1)
    whole_blocks = np.uint64((1 << 64) - (1 << 64) % limit)
    outside = np.flatnonzero(words >= whole_blocks)
    while outside.size:
        words[outside] = entropy.words(outside.size)
        outside = outside[words[outside] >= whole_blocks]
    return words % np.uint64(limit)


def bernoulli_exp(count: int, coins: tuple[Coin, ...], entropy: Entropy) -> Flags:
    """Toss coins of probability exp(-g), g the chance that all of `coins` come up; exact.

    *Source*: Canonne, Kamath and Steinke 2020, Algorithm 1 (von Neumann): count the rounds until an event of chance
    g / round fails to happen; it fails first in an odd round with probability 1 - g + g^2/2 - ... = exp(-g).
    *Args*: `coins`, with `count` numerators each; they are tossed anew every time.
    *Shapes*: (count,). *Randomness*: on average exp(g) rounds.
    """
    odd, alive, turn = np.zeros(count, dtype=np.bool_), np.arange(count), 1
    while alive.size:
        happened = uniform_below(turn, alive.size, entropy) == 0
        for denominator, numerators in coins:
            # A coin that no longer matters is not tossed.
            matters = np.flatnonzero(happened)
            happened[matters] = uniform_below(denominator, matters.size, entropy) < numerators[alive[matters]]
        odd[alive[~happened]] = turn % 2 == 1
        alive = alive[happened]
        turn += 1
    return odd


def bernoulli_exp_of_sum(count: int, products: Iterable[tuple[Integers, tuple[Coin, ...]]], entropy: Entropy) -> Flags:
    """Toss coins of probability exp(-sum of times * chance that all coins come up, over the products); exact.

    *Args*: `products`, each with how many times it counts, a whole number of at least 0 per proposal, and its coins.
    *Shapes*: (count,). *Randomness*: as `bernoulli_exp`, once for each time that is still in doubt.
    """
    kept = np.ones(count, dtype=np.bool_)
    for times, coins in products:
        left = times.copy()
        while (alive := np.flatnonzero(kept & (left > 0))).size:
            of_alive = tuple((denominator, numerators[alive]) for denominator, numerators in coins)
            kept[alive] = bernoulli_exp(alive.size, of_alive, entropy)
            left[alive] -= 1
    return kept


def discrete_laplace(scale: int, count: int, entropy: Entropy) -> Integers:
    """Return the kept ones of `count` proposals of the discrete Laplace law of an integer scale; exact.

    *Law*: P(x) proportional to exp(-|x| / scale). *Source*: Canonne, Kamath and Steinke 2020, Algorithm 2 with s = 1.
    *Shapes*: (m,) with m <= count; about 63 of 100 are kept for a wide law.
    """
    offset = uniform_below(scale, count, entropy)
    offset = offset[bernoulli_exp(count, ((scale, offset),), entropy)]
    scales, alive = np.zeros(offset.size, dtype=np.int64), np.arange(offset.size)
    while alive.size:
        alive = alive[bernoulli_exp(alive.size, (), entropy)]
        scales[alive] += 1
    size = scales * scale + offset.astype(np.int64)
    negative = uniform_below(2, size.size, entropy) == 0
    # Zero would be proposed twice, once with each sign.
    kept: Integers = np.where(negative, -size, size)[~(negative & (size == 0))]
    return kept


def bernoulli_exp_exactly(exponent: Fraction, entropy: Entropy) -> bool:
    """Toss one coin of probability exp(-exponent), exponent at least 0 and of any size; exact."""
    whole = math.floor(exponent)
    parts = chain(repeat(Fraction(1), whole), [exponent - whole])
    return all(_one_bernoulli_exp(part, entropy) for part in parts)


def _one_bernoulli_exp(exponent: Fraction, entropy: Entropy) -> bool:
    """Toss one coin of probability exp(-exponent), exponent from 0 to 1."""
    turn = 1
    while _one_uniform_below(exponent.denominator * turn, entropy) < exponent.numerator:
        turn += 1
    return turn % 2 == 1


def _one_uniform_below(limit: int, entropy: Entropy) -> int:
    """Return one uniform integer from 0 to limit - 1, for a limit of any size."""
    bits = (limit - 1).bit_length()
    words = -(-bits // 64)
    while True:
        uniform = int.from_bytes(entropy.words(words).astype(">u8").tobytes(), "big") >> (64 * words - bits)
        if uniform < limit:
            return uniform
