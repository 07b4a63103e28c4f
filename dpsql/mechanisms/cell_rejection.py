"""A normal variate on a wide lattice: a coarse cell from a table, a uniform point in it, an exact coin.

In units of one cell the absolute value of the variate is a + y, with a = 0, 1, ... the cell and 0 <= y < 1
the place in it; its density is proportional to exp(-(a + y)^2 / (2 ratio^2)). A proposal takes cell a with
probability proportional to exp(-a^2 / (2 ratio^2)), y uniform, and is kept with probability exp(-y (2a + y)
/ (2 ratio^2)). A proposal that is not kept is dropped as a whole, cell included, so how many proposals were
needed says nothing about the value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpsql.mechanisms.cumulative_table import TABLE_BITS, CumulativeTable
from dpsql.mechanisms.entropy import Entropy
from dpsql.mechanisms.precise_normal import exp_bounds, working_context

# The standard deviation in cells lies in [MIN_RATIO, 2 * MIN_RATIO).
MIN_RATIO = 32
_TAIL_IN_SIGMAS = 13.5
# Ten more than other numbers in tables have: products of hundreds of factors err by more than one exponential.
_WEIGHT_DIGITS = 70
_PLACE_BITS = 63
_COIN_BITS = 64
_TAYLOR = tuple(1.0 / math.factorial(power) for power in range(10))
# Float64 and the Taylor remainder together err by less than 2**-34 (docs/proofs/rounded-gaussian.md).
_DOUBT = 2.0**-30


@lru_cache(maxsize=64)
def cell_table(ratio: float) -> CumulativeTable:
    """Return the law of the proposed cell, for a standard deviation of `ratio` cells in [32, 64)."""
    return CumulativeTable(_cell_thresholds(ratio))


def _cell_thresholds(ratio: float) -> Iterator[int]:
    with localcontext(working_context(_WEIGHT_DIGITS)) as context:
        # neighbours differ by a factor that is an odd power of the first: one exponential gives all weights
        first = context.exp(Decimal(-1) / (2 * Decimal(ratio) * Decimal(ratio)))
        square = first * first
        weights, factor = [Decimal(1)], first
        for _ in range(math.ceil(_TAIL_IN_SIGMAS * ratio)):
            weights.append(weights[-1] * factor)
            factor *= square
        total = sum(weights, Decimal(0))
        thresholds = []
        below = Decimal(0)
        for weight in weights:
            below += weight
            thresholds.append(round(below / total * (1 << TABLE_BITS)))
    return (threshold for threshold in thresholds if threshold < 1 << TABLE_BITS)


def rounded_proposals(ratio: float, width_bits: int, count: int, entropy: Entropy) -> NDArray[np.int64]:
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
    rounded: NDArray[np.int64] = (magnitude ^ -sign) + sign
    return rounded[kept]


def _keep(
    ratio: float,
    cell: NDArray[np.int64],
    place: NDArray[np.uint64],
    coin: NDArray[np.uint64],
    entropy: Entropy,
) -> NDArray[np.bool_]:
    y = place * 2.0**-_PLACE_BITS
    minus_exponent = y * (2 * cell + y) * (-0.5 / (ratio * ratio))
    chance = np.full(cell.shape, _TAYLOR[-1])
    for coefficient in reversed(_TAYLOR[:-1]):
        chance *= minus_exponent
        chance += coefficient
    surplus = chance - coin * 2.0**-_COIN_BITS
    kept: NDArray[np.bool_] = surplus > 0
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
