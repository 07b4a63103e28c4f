"""Noise that stays or jumps: the step from one level to a lower one is 0 with some chance, else a fresh variate.

This is the structure of Laplace noise (a lazy Markov process) and of exponential noise; here it is on the integers,
where every chance is rational and every draw exact. P(x) is proportional to ratio^|x| on all integers (two-sided:
discrete Laplace) or on 0, 1, 2, … (one-sided: geometric). A smaller ratio is less noise; ratio 0 is none. Proofs:
docs/proofs/cascade.md, Theorems 4 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import numpy as np

from dpsql.errors import ReleaseError
from dpsql.noise.entropy import Entropy
from dpsql.noise.law import StepLaw, Values
from dpsql.noise.refined_table import RefinedTable, choice, coin, geometric_law

# Where the first part of a sum that is split can lie.
_AT_ZERO, _AT_WHOLE, _BELOW, _INSIDE, _BEYOND = range(5)


@dataclass(frozen=True, slots=True)
class SplitWeights:
    """Weights of the five places for the first part x of a sum k >= 0, in the order zero, whole, below, inside, beyond.

    The place has the law of `far` with chance 1 - q^k and of `near` with chance q^k, where q = middle / high; for
    k = 0 it is `at_zero`. Both `far` and `near` add up to the same total.
    """

    far: tuple[Fraction, ...]
    near: tuple[Fraction, ...]
    at_zero: tuple[Fraction, ...]


def stay_chance(low: Fraction, high: Fraction, *, two_sided: bool) -> Fraction:
    """Return the chance that the noise of ratio `low` needs no jump to become noise of ratio `high`.

    *Source*: two-sided: docs/proofs/cascade.md, Theorem 4, the lattice form of Claim F.3 of Andersson et al. 2025;
    one-sided: the lattice form of their Claim F.7.

    >>> stay_chance(Fraction(1, 3), Fraction(1, 2), two_sided=True)
    Fraction(3, 8)
    """
    shrink = (1 - high) / (1 - low)
    return (shrink**2 if two_sided else shrink) * low / high


def split_weights(low: Fraction, middle: Fraction, high: Fraction, *, two_sided: bool) -> SplitWeights:
    """Return the law of x, the step from `low` to `middle`, given the step k >= 0 from `low` to `high`.

    *Source*: docs/proofs/cascade.md, Theorem 5: the corrected Lemma F.5 of Andersson et al. 2025, on the integers.
    *Args*: 0 <= low < middle < high < 1.
    """
    stay_first = stay_chance(low, middle, two_sided=two_sided)
    stay_second = stay_chance(middle, high, two_sided=two_sided)
    jump_first, jump_second = 1 - stay_first, 1 - stay_second
    q, r = middle / high, middle * high
    both = jump_first * jump_second * _mass_at_zero(middle, two_sided) * _mass_at_zero(high, two_sided)
    zero = stay_first * jump_second * _mass_at_zero(high, two_sided)
    whole = jump_first * stay_second * _mass_at_zero(middle, two_sided)
    outside = both * r / (1 - r) if two_sided else Fraction(0)
    far = (zero, Fraction(0), outside, both / (1 - q), Fraction(0))
    near = (zero, whole, outside, both, outside)
    return SplitWeights(far, near, (zero + stay_first * stay_second, *near[1:]))


@dataclass(frozen=True, slots=True)
class LazyJumps(StepLaw):
    """The exact draws of one of the two families; the size of a level's noise is its ratio.

    *Randomness*: two words per key and two geometric variates, about log2(1 / (1 - ratio)) words each, for a split.
    *Timing*: depends on the values that are drawn and split.
    """

    _two_sided: ClassVar[bool] = True

    def _step(self, low: Fraction, high: Fraction, count: int, entropy: Entropy) -> Values:
        """Return what has to be added to noise of ratio `low` to make it noise of ratio `high`."""
        if low:
            jumps = np.flatnonzero(_stay_coin(low, high, self._two_sided).draw(count, entropy) == 0)
            steps = np.zeros(count, dtype=np.int64)
            steps[jumps] = self._step(Fraction(0), high, jumps.size, entropy)
            return steps
        law = geometric_law(high)
        drawn = law.draw(count, entropy)
        # The difference of two geometric variates is a discrete Laplace variate.
        return drawn - law.draw(count, entropy) if self._two_sided else drawn

    def _part(self, steps: Values, low: Fraction, middle: Fraction, high: Fraction, entropy: Entropy) -> Values:
        """Return the steps from `low` to `middle` inside the `steps` from `low` to `high`.

        *Raises*: ReleaseError for a negative sum of one-sided steps.
        """
        if not self._two_sided and steps.size and int(steps.min()) < 0:
            raise ReleaseError("one-sided noise never falls: the points are not of one cascade")
        size, q, r = np.abs(steps), middle / high, middle * high
        far, near, at_zero = _place_tables(low, middle, high, self._two_sided)
        # A geometric variate reaches k with chance q^k.
        is_near = geometric_law(q).draw(size.size, entropy) >= size
        place = np.empty_like(size)
        for chosen, table in ((~is_near, far), (is_near & (size > 0), near), (size == 0, at_zero)):
            place[chosen] = table.draw(int(np.count_nonzero(chosen)), entropy)
        part = np.where(place == _AT_WHOLE, size, 0)
        inside = np.flatnonzero(place == _INSIDE)
        part[inside] = geometric_law(q).draw(inside.size, entropy) % (size[inside] + 1)
        outside = np.flatnonzero((place == _BELOW) | (place == _BEYOND))
        over = 1 + geometric_law(r).draw(outside.size, entropy)
        part[outside] = np.where(place[outside] == _BELOW, -over, size[outside] + over)
        return np.where(steps < 0, -part, part)


def _mass_at_zero(ratio: Fraction, two_sided: bool) -> Fraction:
    return (1 - ratio) / (1 + ratio) if two_sided else 1 - ratio


@lru_cache(maxsize=256)
def _stay_coin(low: Fraction, high: Fraction, two_sided: bool) -> RefinedTable:
    return coin(stay_chance(low, high, two_sided=two_sided))


@lru_cache(maxsize=256)
def _place_tables(
    low: Fraction, middle: Fraction, high: Fraction, two_sided: bool
) -> tuple[RefinedTable, RefinedTable, RefinedTable]:
    weights = split_weights(low, middle, high, two_sided=two_sided)
    return choice(weights.far), choice(weights.near), choice(weights.at_zero)
