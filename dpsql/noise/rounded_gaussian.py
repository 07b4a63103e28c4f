"""The noise of every Gaussian release: a continuous normal variate rounded to the integers, drawn in bulk.

Contributions are whole numbers of lattice steps, so adding this noise equals adding continuous noise and
rounding the sum: post-processing. Every analysis of the continuous mechanism holds as it stands; what the
imperfect draws add to delta is `slack_delta`. Proofs: docs/proofs/rounded-gaussian.md.

Below 32 lattice steps the law is one table. On a wider lattice a coarse cell comes from a table, a uniform point in it
from a word, and an exact coin decides. In units of one cell the absolute value of the variate is a + y, with
a = 0, 1, ... the cell and 0 <= y < 1 the place in it; its density is proportional to exp(-(a + y)^2 / (2 ratio^2)). A
proposal takes cell a with probability proportional to exp(-a^2 / (2 ratio^2)), y uniform, and is kept with probability
exp(-y (2a + y) / (2 ratio^2)). A proposal that is not kept is dropped as a whole, cell included, so how many proposals
were needed says nothing about the value.

Tables are cumulative, of 128 bits, and inverted. `decimal` rounds every operation, its exponential included, correctly
in the last digit: on that the error bounds of docs/proofs/rounded-gaussian.md and docs/proofs/sparse-gradual.md rest.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import ClassVar

import numpy as np

from dpsql.accounting.profile import UP
from dpsql.errors import CalibrationError, ReleaseError
from dpsql.noise.entropy import Entropy, Flags, Integers, Words

_MAX_SIGMA_STEPS = 2.0**45
# Blocks keep the intermediate arrays in the cache.
_BLOCK = 1 << 15
# Up to here the slack of a release is that of Theorem 5, as it was always charged; what is beyond matters.
_SMALL_SLACK = 2.0**-50
# A normal variate exceeds this with a probability above 2**-117; shifts up to the second number are covered.
_SCORE = 12.461963
_LARGEST_SHIFT = 12.3

# The standard deviation in cells lies in [_MIN_RATIO, 2 * _MIN_RATIO).
_MIN_RATIO = 32
_TAIL_IN_SIGMAS = 13.5
# Ten more than other numbers in tables have: products of hundreds of factors err by more than one exponential.
_WEIGHT_DIGITS = 70
_PLACE_BITS = 63
_COIN_BITS = 64
_TAYLOR = tuple(1.0 / math.factorial(power) for power in range(10))
# Float64 and the Taylor remainder together err by less than 2**-34 (docs/proofs/rounded-gaussian.md).
_DOUBT = 2.0**-30

# Cumulative tables have as many bits, drawn as two words.
TABLE_BITS = 128
_LIMB_BITS = 64
_DIGITS = 60
# 1 / sqrt(2 pi), cut after 70 digits.
_DENSITY_AT_ZERO = Decimal("0.3989422804014326779399460599343818684758586311649346576659258296706579")
# The terms of the normal distribution function that are left out add up to less than this share.
_LEAST_TERM = Decimal("1e-50")
# The mass above 16 is 6.4e-58, far below the error that is promised anyway.
_CDF_IS_ONE_ABOVE = 16


@dataclass(frozen=True, slots=True)
class RoundedGaussian:
    """Draw round(sigma_steps * Z), Z standard normal, as whole lattice steps.

    *Guarantee*: draws are independent, and each is within `total_variation` of the law
    P(x) = Phi((x + 1/2) / sigma_steps) - Phi((x - 1/2) / sigma_steps) on the integers. Added to
    contributions that are whole numbers of steps, this is the continuous Gaussian mechanism, post-processed,
    for neighbours that differ in all rows of one unit (add or remove), up to `slack_delta`.
    *Source*: table inversion and rejection (von Neumann 1951); bounds in docs/proofs/rounded-gaussian.md.
    *Args*: `sigma_steps`, the standard deviation before rounding, in lattice steps, in (0, 2**45].
    *Raises*: CalibrationError for any other sigma_steps, NaN included.
    *Assumes*: words of the entropy are uniform and independent.
    *Timing*: no exact value enters, only noise is drawn. The number of rejected proposals is independent of
    the values returned; what is left are caches and branch prediction of one binary search per draw.
    """

    total_variation: ClassVar[float] = 2.0**-117
    sigma_steps: float

    def __post_init__(self) -> None:
        if not 0 < self.sigma_steps <= _MAX_SIGMA_STEPS:
            raise CalibrationError(f"the noise scale must be in (0, 2**45] lattice steps, got {self.sigma_steps!r}")

    def draw(self, count: int, entropy: Entropy) -> Integers:
        """Return `count` independent draws.

        *Returns*: whole lattice steps. *Shapes*: (count,).
        *Raises*: ReleaseError for a negative count; EntropyError if the entropy fails.
        *Randomness*: one 64-bit word per draw below 32 steps, about three from there on.
        """
        if count < 0:
            raise ReleaseError(f"the number of noise draws cannot be negative, got {count}")
        drawn = np.empty(count, dtype=np.int64)
        if self.sigma_steps < _MIN_RATIO:
            table = rounded_normal_table(self.sigma_steps)
            for start in range(0, count, _BLOCK):
                block = drawn[start : start + _BLOCK]
                block[:] = table.outcomes(entropy.words(block.size), entropy) - len(table.thresholds) // 2
            return drawn
        mantissa, exponent = math.frexp(self.sigma_steps)
        ratio, width_bits = mantissa * (2 * _MIN_RATIO), exponent - (2 * _MIN_RATIO).bit_length() + 1
        # without a draw, too: the time of a first table would show that there is no group
        cell_table(ratio)
        filled = 0
        while filled < count:
            missing = count - filled
            # Fewer than one proposal in 41 is rejected on average, so one round is nearly always enough.
            kept = rounded_proposals(ratio, width_bits, min(_BLOCK, missing + missing // 32 + 8), entropy)[:missing]
            drawn[filled : filled + kept.size] = kept
            filled += kept.size
        return drawn


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

    def outcomes(self, high_words: Words, entropy: Entropy) -> Integers:
        """Return one outcome per high word.

        *Shapes*: (count,) -> (count,). *Randomness*: one more word per tie, about n * 2**-64 per draw.
        """
        position = np.searchsorted(self._high_limbs, high_words, side="right") - 1
        ties = np.flatnonzero(self._high_limbs[position] == high_words)
        for tie in ties.tolist():
            uniform = int(high_words[tie]) << _LIMB_BITS | int(entropy.words(1)[0])
            position[tie] = bisect_right(self.thresholds, uniform)
        return position.astype(np.int64, copy=False)


def table_of_weights(weights: Iterable[Decimal]) -> tuple[int, CumulativeTable]:
    """Return the least outcome that can be drawn, and the law of what is drawn beyond it, from weights of 0, 1, 2, ….

    The caller's decimal context rounds. Outcomes that would round to nothing at either end cannot be drawn at all.
    """
    sums = list(accumulate(weights))
    thresholds = [round(below / sums[-1] * (1 << TABLE_BITS)) for below in sums]
    return thresholds.count(0), CumulativeTable(below for below in thresholds if 0 < below < 1 << TABLE_BITS)


@lru_cache(maxsize=64)
def rounded_normal_table(sigma_steps: float) -> CumulativeTable:
    """Return the law of largest + round(sigma_steps * Z), exactly symmetric, for sigma_steps below 32.

    *Returns*: 2 * largest thresholds, each within 0.51 * 2**-128 of the normal distribution function; the
    mass above `largest` is below 2**-128 and goes to it.
    """
    variate_scale = 2 * Fraction(sigma_steps)
    context = working_context()
    upper: list[int] = []
    while True:
        cdf = normal_cdf((2 * len(upper) + 1) / variate_scale)
        threshold = round(context.multiply(cdf, 1 << TABLE_BITS))
        if threshold >= 1 << TABLE_BITS:
            return CumulativeTable([(1 << TABLE_BITS) - above for above in reversed(upper)] + upper)
        upper.append(threshold)


@lru_cache(maxsize=64)
def cell_table(ratio: float) -> CumulativeTable:
    """Return the law of the proposed cell, for a standard deviation of `ratio` cells in [32, 64)."""
    with localcontext(working_context(_WEIGHT_DIGITS)) as context:
        # neighbours differ by a factor that is an odd power of the first: one exponential gives all weights
        factor = context.exp(Decimal(-1) / (2 * Decimal(ratio) * Decimal(ratio)))
        square, weights = factor * factor, [Decimal(1)]
        for _ in range(math.ceil(_TAIL_IN_SIGMAS * ratio)):
            weights.append(weights[-1] * factor)
            factor *= square
        return table_of_weights(weights)[1]


def rounded_proposals(ratio: float, width_bits: int, count: int, entropy: Entropy) -> Integers:
    """Return the kept ones of `count` proposals, rounded to the lattice.

    *Law*: independent draws of round(2**width_bits * ratio * Z), Z standard normal, up to the error of the
    cell table.
    *Args*: `ratio` in cells, in [32, 64); a cell is 2**width_bits lattice steps wide, width_bits in 0..40.
    *Shapes*: (m,) with m <= count, in the order of proposing. *Randomness*: 3 words per proposal.
    """
    words = entropy.words(3 * count).reshape(3, count)
    cell = cell_table(ratio).outcomes(words[0], entropy)
    sign = (words[1] & np.uint64(1)).astype(np.int64)
    place = words[1] >> np.uint64(1)
    kept = _keep(ratio, cell, place, words[2], entropy)
    # The first bit of y below one lattice step decides which way the absolute value rounds.
    step = (place >> np.uint64(_PLACE_BITS - 1 - width_bits)).astype(np.int64) + 1 >> 1
    magnitude = (cell << width_bits) + step
    return np.asarray(((magnitude ^ -sign) + sign)[kept], dtype=np.int64)


def _keep(
    ratio: float,
    cell: Integers,
    place: Words,
    coin: Words,
    entropy: Entropy,
) -> Flags:
    y = place * 2.0**-_PLACE_BITS
    minus_exponent = y * (2 * cell + y) * (-0.5 / (ratio * ratio))
    # Horner's rule in place: `polyval` makes two arrays for each coefficient.
    chance = np.full(cell.shape, _TAYLOR[-1])
    for coefficient in reversed(_TAYLOR[:-1]):
        chance *= minus_exponent
        chance += coefficient
    surplus = chance - coin * 2.0**-_COIN_BITS
    kept: Flags = surplus > 0
    for doubtful in np.flatnonzero(np.abs(surplus) <= _DOUBT).tolist():
        kept[doubtful] = keeps_exactly(
            Fraction(ratio), int(cell[doubtful]), int(place[doubtful]), int(coin[doubtful]), entropy
        )
    return kept


def keeps_exactly(ratio: Fraction, cell: int, place: int, coin: int, entropy: Entropy) -> bool:
    """Return whether a uniform coin lies below exp(-y (2 cell + y) / (2 ratio^2)), decided without any error.

    *Args*: `place` and `coin` are the first 63 and 64 bits of y and of the coin; both go on for ever.
    *Randomness*: two words for every 64 further bits that the decision needs; almost surely it ends.
    """
    place_bits, coin_bits = _PLACE_BITS, _COIN_BITS
    while True:
        low, high = Fraction(place, 1 << place_bits), Fraction(place + 1, 1 << place_bits)
        digits = coin_bits // 3 + 10
        chance_below, _ = exp_bounds(high * (2 * cell + high) / (2 * ratio**2), digits)
        _, chance_above = exp_bounds(low * (2 * cell + low) / (2 * ratio**2), digits)
        if Fraction(coin + 1, 1 << coin_bits) <= chance_below:
            return True
        if Fraction(coin, 1 << coin_bits) >= chance_above:
            return False
        more_place, more_coin = entropy.words(2).tolist()
        place, place_bits = place << 64 | more_place, place_bits + 64
        coin, coin_bits = coin << 64 | more_coin, coin_bits + 64


def slack_delta(draws: int, epsilon: float) -> float:
    """Return what imperfect draws add to the delta of an (epsilon, delta) guarantee.

    *Guarantee*: if the mechanism with perfect noise is (epsilon, delta)-DP for neighbours that differ in all
    rows of one unit (add or remove), the real one is (epsilon, delta + slack)-DP.
    *Source*: docs/proofs/rounded-gaussian.md, Theorem 4: (1 + e^epsilon) * draws * total_variation.
    *Args*: `draws`, how many noise draws land on coordinates whose exact value the unit can change (every
    draw of the release where coordinates share a noise term); `epsilon` >= 0.
    *Returns*: a probability, rounded up, at most 1.
    *Raises*: CalibrationError for a negative, NaN or infinite argument.

    >>> slack_delta(10, 1.0) < 1e-33
    True
    """
    distance = _distance(draws, "epsilon", epsilon)
    # e^700 times the smallest distance already exceeds 1.
    return min(1.0, (1 + math.exp(min(epsilon, 700.0))) * distance * UP)


def slack_delta_zcdp(draws: int, rho: float) -> float:
    """Return what imperfect draws add to the delta that the ledger charges for a release at rho, rho unchanged.

    *Guarantee*: in the ledger's sum, for neighbours that differ in all rows of one unit (add or remove), a release with
    these draws costs no more than one with perfect noise and this delta beside it. Up to `_SMALL_SLACK` the real
    mechanism is also (delta + slack)-approximate rho-zCDP where the one with perfect noise is delta-approximate
    rho-zCDP with delta <= 1/2.
    *Source*: docs/proofs/rounded-gaussian.md, Theorem 5 up to `_SMALL_SLACK`: u / (e^-rho / 2 - u) with
    t = 2 * draws * total_variation and u = t + exp(-(sqrt(ln 1/t) - sqrt(rho))^2); beyond it Theorem 6, which is less.
    *Args*: `draws` as in `slack_delta`, `rho` >= 0, the level of the one release that these draws belong to.
    *Returns*: a probability, rounded up, at most 1 (also where the bound says nothing).
    *Raises*: CalibrationError for a negative, NaN or infinite argument.

    >>> slack_delta_zcdp(10, 0.1) < 1e-27, slack_delta_zcdp(10, 20.0) < 1e-8
    (True, True)
    """
    distance = _distance(draws, "rho", rho)
    if distance == 0:
        return 0.0
    mixed, doubled = 1.0, 2 * distance
    if doubled < 1 and -math.log(doubled) > rho:
        # Theorem 5, for draws that are within half of t = `doubled`
        gap = math.sqrt(-math.log(doubled)) - math.sqrt(rho)
        moved = (doubled + math.exp(-gap * gap)) * UP
        overlap = math.exp(-rho) / 2 - moved
        mixed = min(1.0, moved / overlap * UP) if overlap > 0 else 1.0
    if mixed <= _SMALL_SLACK:
        return mixed
    shift = math.sqrt(2 * rho)
    if shift > _LARGEST_SHIFT:
        return 1.0
    # Theorem 6, for draws that are within `distance` together, each within `total_variation`
    tail = 0.5 * math.erfc((_SCORE - shift) * math.sqrt(0.5))
    return max(_SMALL_SLACK, min(1.0, (4 * distance + tail) * UP))


def _distance(draws: int, name: str, value: float) -> float:
    """Return the total variation of all draws together, once the two arguments are checked."""
    if draws < 0:
        raise CalibrationError(f"the number of draws cannot be negative, got {draws}")
    if not 0 <= value < math.inf:
        raise CalibrationError(f"{name} must be finite and not negative, got {value!r}")
    # Cut before the product: an integer beyond the float64 range would raise.
    return min(draws, 1 << 117) * RoundedGaussian.total_variation


def working_context(digits: int = _DIGITS, rounding: str = ROUND_HALF_EVEN) -> Context:
    """Return a decimal context that owes nothing to the caller's global settings."""
    return Context(prec=digits, rounding=rounding, Emin=-999_999, Emax=999_999, capitals=1, clamp=0)


def normal_cdf(point: Fraction) -> Decimal:
    """Return Phi(point) for point >= 0, with an absolute error of at most 1e-49.

    *Source*: Phi(x) = 1/2 + phi(x) * (x + x^3/3 + x^5/(3*5) + x^7/(3*5*7) + ...) (Marsaglia 2004, "Evaluating
    the Normal Distribution"). All terms are positive, so nothing cancels.
    *Args*: `point` >= 0, in standard deviations.
    """
    if point > _CDF_IS_ONE_ABOVE:
        return Decimal(1)
    with localcontext(working_context()) as context:
        x = Decimal(point.numerator) / Decimal(point.denominator)
        square = x * x
        term = total = x
        divisor = 1
        # Beyond divisor = 2 x^2 each term is at most half the one before: the rest is less than the last.
        while term > total * _LEAST_TERM or divisor < 2 * square:
            divisor += 2
            term = term * square / divisor
            total += term
        return Decimal("0.5") + _DENSITY_AT_ZERO * context.exp(-square / 2) * total


def exp_bounds(exponent: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Return rationals (below, above) around exp(-exponent), about 10**(1 - digits) apart, for exponent >= 0.

    *Returns*: below <= exp(-exponent) <= above, always.
    """
    numerator, denominator = Decimal(-exponent.numerator), Decimal(exponent.denominator)
    down, up = working_context(digits, ROUND_FLOOR), working_context(digits, ROUND_CEILING)
    below = down.next_minus(down.exp(down.divide(numerator, denominator)))
    above = up.next_plus(up.exp(up.divide(numerator, denominator)))
    return Fraction(below), Fraction(above)
