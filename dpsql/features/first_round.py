"""The step that follows a first round of key selection: more rounds, the numbers alone, or numbers with a threshold.

More rounds take most of what is left from the numbers. Where they would find few keys more, or where one threshold on
the count of units finds no fewer, the numbers get all that is left. The rule reads AUTO's
histogram of units by their number of groups and the keys that the first round selected, both released before; it is a
public formula, and privacy needs no property of it (docs/proofs/key-rounds.md, Theorem 5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from dpsql.features.auto_choices import Floats, sure_places
from dpsql.model.frame import Bounding

_MISSED = 2.0
"""Weight that the first round did not find is taken for noise up to so many standard deviations."""
_LOST = 0.5
"""Part of what is missing that is lost without more rounds: the larger of the missing keys would be found by either."""
_MEAN_ERROR = math.sqrt(2.0 / math.pi)
"""Mean size of Gaussian noise over its standard deviation."""
_LEAST_PRESENCE = 0.25
"""Share of the count of units in the numbers' level from which on one threshold may hide keys by it."""


class Step(Enum):
    """What follows a first round."""

    ROUNDS = "rounds"
    NUMBERS = "numbers"
    THRESHOLD = "threshold"


@dataclass(frozen=True, slots=True)
class Found:
    """What a round selected: the noisy sum of the weights of its keys, the noise in it, and how many keys."""

    weight: float
    sigma: float
    keys: int


@dataclass(frozen=True, slots=True)
class Spread:
    """How units spread over their groups, by a noisy histogram of units by their number of groups.

    Attributes:
        weight: what all units spread in a round, each of n groups the weight sqrt(1 / n) in each.
        sigma: the noise in it.
        in_round: the mean weight of a unit in one of its groups, in a round.
        in_numbers: likewise in the frame of the numbers.

    """

    weight: float
    sigma: float
    in_round: float
    in_numbers: float


def spread_of(noisy: Floats, sigma: float, ends: Sequence[int], most_keys: int, numbers: Bounding) -> Spread | None:
    """Return how units spread over their groups; None where no place surely holds units.

    Of places for several numbers the largest counts, so that the weight is rather too much. What lies beyond the last
    place that surely holds units is left out.

    Args:
        noisy: number of units in each place, in units.
        sigma: its noise.
        ends: last number of groups of each place.
        most_keys: in how many groups a unit has a weight at most, in a round.
        numbers: how the frame of the numbers bounds the groups of a unit.

    """
    sure = np.flatnonzero(sure_places(noisy, sigma, len(noisy)))
    if not sure.size:
        return None
    within = slice(int(sure[-1]) + 1)
    units, groups = noisy[within], np.asarray(ends, dtype=np.float64)[within]
    weights = np.sqrt(np.minimum(groups, most_keys))
    most = float(numbers.max_groups or 1)
    counted = np.minimum(groups, float(numbers.counted_groups or most))
    kept = np.where(groups <= most, groups, np.sqrt(most * counted))
    weight, pairs = float(units @ weights), float(units @ groups)
    if weight <= 0.0 or pairs <= 0.0:
        return None
    return Spread(weight, sigma * float(np.linalg.norm(weights)), weight / pairs, float(units @ kept) / pairs)


@dataclass(frozen=True, slots=True)
class AfterFirst:
    """The rule by which a first round is followed by rounds, by numbers alone, or by numbers with a threshold.

    Attributes:
        spread: how units spread over their groups.
        norm: l2 norm of a unit in the count of units beside the numbers: the root of its groups.
        presence: share of that count in the numbers' level.
        second: level of the rounds that would follow.
        numbers: level of the numbers beside these.
        is_open: whether the numbers may get both where rounds would find more. Nobody names a mechanism, and the
            reader has no limit.

    """

    spread: Spread
    norm: float
    presence: float
    second: float
    numbers: float
    is_open: bool

    def step(self, found: Found) -> Step:
        """Return the step that follows a round which found this.

        With no rounds the numbers' noise is sqrt((second + numbers) / numbers) times less. One threshold pays if it
        needs no more units for a key than rounds need once the found keys are out of the way; or if what it can lose
        is less than the noise that it saves.
        """
        if self.finds_nearly_all(found):
            return Step.NUMBERS
        missing = self.spread.weight - found.weight
        if not self.is_open:
            return Step.ROUNDS
        saved = found.keys * _MEAN_ERROR * self.norm * (_noise(self.numbers) - _noise(self.second + self.numbers))
        loses_little = _LOST * missing / self.spread.in_round < saved
        if self.presence >= _LEAST_PRESENCE and (loses_little or self._needs_no_more(missing)):
            return Step.THRESHOLD
        return Step.NUMBERS if loses_little else Step.ROUNDS

    def finds_nearly_all(self, found: Found) -> bool:
        """Check whether a round found all the weight that units spread, as far as noise lets tell."""
        return self.spread.weight - found.weight <= _MISSED * math.hypot(self.spread.sigma, found.sigma)

    def _needs_no_more(self, missing: float) -> bool:
        """Check whether one threshold needs no more units for a key than the rounds that would follow."""
        left = min(missing / self.spread.weight, 1.0)
        # a unit whose other groups are out of the way has all its weight for those that are left
        by_rounds = _noise(self.second) * math.sqrt(left) / self.spread.in_round
        alone = self.presence * (self.second + self.numbers)
        return _noise(alone) * self.norm / self.spread.in_numbers <= by_rounds


def _noise(rho: float) -> float:
    """Standard deviation of a sum at a level that one unit moves by 1."""
    return 1.0 / math.sqrt(2.0 * rho)
