"""The step that follows a first round of key selection: more rounds, the numbers alone, or numbers with a threshold.

More rounds take most of what is left from the numbers. Where they would find few keys more, or where one threshold on
the numbers finds no fewer, the numbers get all that is left. The rule reads AUTO's histogram of units by their number
of groups and the keys that the first round selected, both released before; it is a public formula, and privacy needs
no property of it (docs/proofs/key-rounds.md, Theorem 5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from dpsql.cascade.reader import Reader
from dpsql.features.auto_choices import MEAN_NOISE, Floats, largest_size, sure_places
from dpsql.features.auto_histograms import Question
from dpsql.features.auto_norms import mean_norm
from dpsql.mechanism.registry import histogram_of
from dpsql.model.frame import PRESENCE, Bounding, Statistic
from dpsql.model.private_query import AutoBounds, AutoGroups, FrameQuery
from dpsql.model.query_kinds import KeysFirst
from dpsql.release.number_threshold import hiding_statistic, scale_of
from dpsql.release.round_keys import Found
from dpsql.state import State

_MISSED = 2.0
"""Weight that the first round did not find is taken for noise up to so many standard deviations."""
_FEW_FOUND = 4
"""So many found keys tell something of the sizes of others."""
_CLEARLY = 0.8
"""Numbers alone take the place of rounds if their error is so many times that of rounds."""
_THRESHOLD = 6.0
"""A threshold over the noise that it is for: of usual deltas and numbers of groups it is 5 to 7."""
_USUAL = 2.0
"""Sizes of keys are taken to fall as 1/rank with the weight of so many found keys."""
_CLOSE = 1e-6
_HALVINGS = 60


class Step(Enum):
    """The step that follows a first round."""

    ROUNDS = "rounds"
    NUMBERS = "numbers"
    THRESHOLD = "threshold"


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of units over their groups, by a noisy histogram of units by their number of groups.

    Attributes:
        weight: what all units spread in a round, each of n groups the weight sqrt(1 / n) in each.
        sigma: the noise in it.
        groups: the mean number of groups of a unit.
        in_round: the mean weight of a unit in one of its groups, in a round.
        in_numbers: likewise in the frame of the numbers.

    """

    weight: float
    sigma: float
    groups: float
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
    noise, mean = sigma * float(np.linalg.norm(weights)), pairs / float(units.sum())
    return Spread(weight, noise, mean, weight / pairs, float(units @ kept) / pairs)


@dataclass(frozen=True, slots=True)
class AfterFirst:
    """The rule by which a first round is followed by rounds, by numbers alone, or by numbers with a threshold.

    Attributes:
        spread: how units spread over their groups.
        size: l2 norm of a unit in a number, over what it adds to a key on average: noise in units that a key has.
        per_unit: likewise of the number that may show keys, over the root of its share in the numbers' level. None
            where no number may.
        first: level of the first round.
        second: level of the rounds that would follow.
        numbers: level of the numbers beside these.
        is_open: whether the numbers may get both where rounds would find more. Nobody names a mechanism, and the
            reader has no limit.

    """

    spread: Spread
    size: float
    per_unit: float | None
    first: float
    second: float
    numbers: float
    is_open: bool

    def step(self, found: Found) -> Step:
        """Return the step that follows a round which found this: that with the least predicted error.

        Where it found nearly all keys, no more rounds follow; a threshold shows what noise hides of the others. Where
        it found next to nothing, that tells nothing of sizes, and the step is the one that needs fewer units for a key.
        """
        if self.finds_nearly_all(found):
            return Step.THRESHOLD if self.is_open and self.per_unit is not None else Step.NUMBERS
        if not self.is_open:
            return Step.ROUNDS
        if found.keys < _FEW_FOUND:
            needs = self._needs(found)
            return Step.THRESHOLD if needs.threshold <= needs.second else Step.ROUNDS
        errors = self.errors(found)
        # without rounds or a threshold many groups are not shown at all
        errors[Step.NUMBERS] /= _CLEARLY
        return min(errors, key=errors.__getitem__)

    def finds_nearly_all(self, found: Found) -> bool:
        """Check whether a round found all the weight that units spread, as far as noise lets tell."""
        return self.spread.weight - found.weight <= _MISSED * math.hypot(self.spread.sigma, found.sigma)

    def _needs(self, found: Found) -> _Needs:
        """Return how many units a key needs to be found.

        Units whose found groups are out of the way have all their weight for those that are left.
        """
        left = min(max(self.spread.weight - found.weight, 0.0) / self.spread.weight, 1.0)
        first, second, whole = (
            _THRESHOLD * _noise(rho) for rho in (self.first, self.second, self.second + self.numbers)
        )
        in_round = self.spread.in_round
        by_threshold = math.inf if self.per_unit is None else whole * self.per_unit
        return _Needs(first / in_round, second * math.sqrt(left) / in_round, by_threshold)

    def errors(self, found: Found) -> dict[Step, float]:
        """Return the predicted sum of errors of each step over all keys, at most the truth of each, in units.

        A key is found if it has more units than the threshold of a step. The others are lost, with all their units;
        of those that are found the error is the noise. How many keys have how many units is a mean of two laws: sizes
        that fall as 1/rank, and as those of the found keys do (Hill 1975). Some keys were found.
        """
        needs, in_round = self._needs(found), self.spread.in_round
        missing = max(self.spread.weight - found.weight, 0.0) / in_round
        fall = (found.keys + _USUAL) / (max(found.logarithms, 0.0) + _USUAL)
        laws = (
            _Keys.by_rank(found.keys, found.weight / in_round, missing, needs.first),
            _Keys(found.keys, missing, needs.first, fall),
        )

        def error(threshold: float, rho: float) -> float:
            return math.fsum(keys.error(threshold, self.size * _noise(rho)) for keys in laws) / len(laws)

        whole = self.second + self.numbers
        errors = {Step.ROUNDS: error(needs.second, self.numbers), Step.NUMBERS: error(math.inf, whole)}
        if needs.threshold < needs.first:
            errors[Step.THRESHOLD] = error(needs.threshold, whole)
        return errors


@dataclass(frozen=True, slots=True)
class _Needs:
    """Units that a key needs to be found: by the first round, by the second, and by a threshold on the numbers."""

    first: float
    second: float
    threshold: float


@dataclass(frozen=True, slots=True)
class _Keys:
    """The law of sizes: ``found`` (largest / x)^fall keys have more than x units, for x up to the largest missed one.

    Attributes:
        found: keys that the round selected.
        missing: units of all other keys, added up.
        largest: units that a key has at most that the round did not select.
        fall: the exponent, 1 where sizes fall as 1/rank, and large where all keys are about equally large.

    """

    found: int
    missing: float
    largest: float
    fall: float

    @classmethod
    def by_rank(cls, found: int, units: float, missing: float, largest: float) -> _Keys:
        """Return the law by which the key of rank r has c / r units; found keys have so many units together."""
        return cls(found, missing, min(largest_size(units, units, found) / found, largest), 1.0)

    def error(self, threshold: float, noise: float) -> float:
        """Return the units of keys below a threshold, and the noise on all others, at most the units of each."""
        error = MEAN_NOISE * noise
        threshold = min(max(threshold, error, self._least()), self.largest)
        shown = self.found * math.pow(self.largest / threshold, self.fall)
        return max(self.missing - self._units(threshold), 0.0) + shown * error

    def _units(self, least: float) -> float:
        """Return the units of missed keys that have more than so many."""
        if abs(self.fall - 1.0) < _CLOSE:
            return self.found * self.largest * math.log(self.largest / least)
        rest = self.fall - 1.0
        return self.found * self.largest * self.fall / rest * (math.pow(self.largest / least, rest) - 1.0)

    def _least(self) -> float:
        """Return the size at which all missing units are in keys that are no smaller; 1 where there are more units."""
        low, high = 1.0, self.largest
        if high <= low or self._units(low) <= self.missing:
            return min(low, high)
        for _ in range(_HALVINGS):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self._units(middle) > self.missing else (low, middle)
        return high


def _noise(rho: float) -> float:
    """Standard deviation of a sum at a level that one unit moves by 1."""
    return 1.0 / math.sqrt(2.0 * rho)


def after_first(
    asked: KeysFirst, state: State, first: float, second: float, numbers_rho: float, reader: Reader
) -> AfterFirst | None:
    """Return the rule for the step after the first round, by AUTO's histogram of groups; None without one."""
    numbers, selection = asked.parts
    groups = next(((one, level) for one, level in zip(numbers.auto, numbers.auto_levels, strict=False)), None)
    most_keys = selection.frame.bounding.counted_groups
    if groups is None or not isinstance(groups[0], AutoGroups) or not groups[1].is_stored or not most_keys:
        return None
    point = Question(groups[0]).point(state.side_table, groups[1].rho_nano)
    is_open, hiding = asked.may_hide and not reader.has_limit, hiding_statistic(numbers)
    spread = spread_of(point.noisy_values, point.sigma, groups[0].candidates, most_keys, numbers.frame.bounding)
    if not spread:
        return None
    per_unit = _per_unit(numbers, hiding, spread, state) if is_open and hiding else None
    size = math.sqrt(numbers.frame.unit_groups) / spread.in_numbers
    if per_unit is not None and math.isfinite(per_unit):
        size = per_unit
    return AfterFirst(spread, size, per_unit, first, second, numbers_rho, is_open)


def _per_unit(numbers: FrameQuery, hiding: Statistic, spread: Spread, state: State) -> float:
    """Return the l2 norm of a unit in a statistic over what it adds to a key on average, and the root of its share.

    A count of rows of norm v in g groups has v / sqrt(g) in each. Return infinity where AUTO's histogram does not tell
    its norms, so that a threshold takes the place of no rounds.
    """
    share = numbers.weights[numbers.statistics.index(hiding)]
    if hiding == PRESENCE:
        return math.sqrt(numbers.frame.unit_groups / share) / spread.in_numbers
    for asked, level in zip(numbers.auto, numbers.auto_levels, strict=True):
        if isinstance(asked, AutoBounds) and asked.statistic.kind == "rows_norm" and level.is_stored:
            point = Question(asked).point(state.side_table, level.rho_nano)
            norm = mean_norm(point.noisy_values, point.sigma)
            scale = scale_of(hiding, histogram_of(numbers.frame))
            return scale * math.sqrt(spread.groups / share) / norm if norm else math.inf
    return math.inf
