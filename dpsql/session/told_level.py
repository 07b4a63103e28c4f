"""A level as a question asks for it, and as a refusal tells it: a number of two digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpsql.errors import DpsqlError
from dpsql.receipts import level_words
from dpsql.sql.levels import Level

MANTISSAS = 90
"""Numbers of two digits in each power of ten, as which levels are told."""


class TwoDigits:
    """Numbers of two digits in their order, which are the levels that are told."""

    def level(self, place: int) -> float:
        """Return the number at a place, 10 at place 0."""
        return float(f"{10 + place % MANTISSAS}e{place // MANTISSAS}")

    def place_up(self, number: float) -> int:
        """Return the place of the lowest number that is at least `number`."""
        place = MANTISSAS * (math.floor(math.log10(number)) - 2)
        while self.level(place) < number:
            place += 1
        return place

    def place_of(self, number: float, least: int) -> int:
        """Return the place of the highest number that is at most `number`, or the least place."""
        if number <= self.level(least):
            return least
        place = self.place_up(number)
        # a number that has two digits but for rounding stays what it is
        return place if self.level(place) <= number * (1.0 + 1e-9) else place - 1


TWO_DIGITS = TwoDigits()


@dataclass(frozen=True, slots=True)
class AskedLevel:
    """The level of a query in the words of its text or its policy.

    Attributes:
        name: the option: epsilon, rho, max_epsilon or max_rho.
        value: the level; a higher one costs more.
        numbers: the levels that are told.

    """

    name: str
    value: float
    numbers: TwoDigits

    @property
    def _is_epsilon(self) -> bool:
        return self.name in {"epsilon", "max_epsilon"}

    def option(self, value: float) -> Level:
        """Return a value of the level as an option takes it."""
        return value

    def shown(self, value: float) -> str:
        """Return a value of the level as it is written in a query."""
        return f"{self.name} = {value:.9g}"

    def part(self, value: float, requested: float, left: float, *, wider: float) -> float:
        """Return about the level that costs what is granted, from another level and what it costs.

        Args:
            value: a level.
            requested: the amount that it costs.
            left: the amount that is granted.
            wider: logarithm of how much smaller the delta is that is granted.

        """
        if not 0.0 < left < requested:
            return 0.0 if left <= 0.0 < requested else value
        return self._part(value, requested, left, wider)

    def _part(self, value: float, requested: float, left: float, wider: float) -> float:
        """Return about the level that costs less than another one.

        Epsilon is about rho + 2 sqrt(rho c), where c is about log(1 / delta).
        """
        if not self._is_epsilon:
            return value * left / requested
        c = max(value - requested, 0.0) ** 2 / (4.0 * requested) + wider
        return min(value, left + 2.0 * math.sqrt(left * c))

    def refusal(self, error: DpsqlError, most: float | None, beside: Sequence[str]) -> DpsqlError:
        """Return a refusal with the level that was asked for, and the most that is granted.

        Args:
            error: of a budget, a clearance or a ceiling.
            most: the highest level that is granted; None if none is.
            beside: other options that it is granted with.

        """
        cure = level_words.NO_LOWER_LEVEL if most is None else level_words.ask_with(self.shown(most), *beside)
        refused = error.at_level(level_words.level_refused(error, self.shown(self.value), cure))
        if self._is_epsilon:
            refused.requested_epsilon, refused.remaining_epsilon = self.value, most or 0.0
        return refused
