"""Refusals of a question by half widths, in half widths: what was asked, and the smallest ones that are granted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpsql.errors import CalibrationError, DpsqlError
from dpsql.features.half_width import TargetQuery
from dpsql.features.kinds import kind_of
from dpsql.model.half_widths import HalfWidths
from dpsql.model.private_query import PrivateQuery
from dpsql.receipts import level_words
from dpsql.session.told_level import TWO_DIGITS, AskedLevel, TwoDigits
from dpsql.sql.levels import Level

_ROUNDING = 1e-9
"""A number that has two digits but for this part of it is one."""


class InverseWidths(TwoDigits):
    """One over each half width of two digits, in their order."""

    def level(self, place: int) -> float:
        """Return the number at a place."""
        return 1.0 / TWO_DIGITS.level(-place)

    def place_up(self, number: float) -> int:
        """Return the place of the lowest number that is at least `number`: of the next half width below."""
        return -TWO_DIGITS.place_of(1.0 / number, TWO_DIGITS.place_up(0.5 / number))

    def place_of(self, number: float, least: int) -> int:
        """Return the place of the highest number that is at most `number`, or the least place."""
        if number <= self.level(least):
            return least
        return -TWO_DIGITS.place_up((1.0 - _ROUNDING) / number)


INVERSE_WIDTHS = InverseWidths()


@dataclass(frozen=True, slots=True)
class AskedHalfWidths(AskedLevel):
    """The half widths of a question as a level, which is one over the first of them.

    Attributes:
        target: the half widths.

    """

    target: HalfWidths

    @classmethod
    def of(cls, target: HalfWidths) -> AskedHalfWidths:
        """Return the half widths as a level."""
        return cls("target_half_width", 1.0 / _first(target), INVERSE_WIDTHS, target)

    def option(self, value: float) -> Level:
        """Return the half widths of a level as an option takes them."""
        widths = self._at(value).widths
        return dict(widths) if isinstance(widths, tuple) else widths

    def shown(self, value: float) -> str:
        """Return the half widths of a level as they are written in a query."""
        return level_words.half_width_option(self._at(value))

    def _part(self, value: float, requested: float, left: float, wider: float) -> float:  # noqa: ARG002 — a delta changes no half width
        """Return about the level that costs less: the square of a half width is about one over rho."""
        return value * math.sqrt(left / requested)

    def refusal(self, error: DpsqlError, most: float | None, beside: Sequence[str]) -> DpsqlError:
        """Return a refusal with the half widths that were asked for, and the smallest that are granted.

        Args:
            error: of a budget, a clearance or a ceiling.
            most: the highest level that is granted; None if none is.
            beside: other options that it is granted with.

        """
        cure = level_words.NO_LARGER if most is None else level_words.write_half_widths(self.shown(most), *beside)
        return error.at_level(level_words.half_widths_refused(error, self.shown(self.value), cure))

    def _at(self, value: float) -> HalfWidths:
        """Return the half widths of a level: scaled by one factor, and rounded up to two digits."""
        factor = self.value / value
        if value == self.value:
            return self.target
        return self.target.mapped(lambda width: _up(factor * width))


@dataclass(frozen=True, slots=True)
class EpsilonHalfWidths(AskedHalfWidths):
    """The half widths of a question in a unit that counts epsilon, as a level.

    Attributes:
        query: the plan, which can be put at other levels.
        are_whole: whether all columns have noise in whole steps, so that a half width is a whole number.

    """

    query: PrivateQuery
    are_whole: bool

    @classmethod
    def of_query(cls, query: PrivateQuery, target: HalfWidths) -> EpsilonHalfWidths:
        """Return the half widths of a query at their level.

        Raises:
            CalibrationError: the noise of that level cannot be drawn.

        """
        columns = kind_of(query).columns(query)
        steps = [one.lattice for one in columns if one.half_width_95 is not None]
        are_whole = all(step is not None and step % 1.0 == 0.0 for step in steps)
        return cls("target_half_width", 1.0 / _first(target), INVERSE_WIDTHS, target, query, are_whole)

    def _part(self, value: float, requested: float, left: float, wider: float) -> float:  # noqa: ARG002
        """Return the level of the half widths that an epsilon gives: prices are about proportional to levels."""
        asked = TargetQuery(kind_of(self.query), self.query, self._at(value))
        try:
            factor = asked.excess(max(1, round(asked.smallest_nano() * left / requested)))
        except CalibrationError:
            return 0.0
        return min(value, 1.0 / (_first(asked.target) * factor)) if factor > 0.0 else value

    def _at(self, value: float) -> HalfWidths:
        """Return the half widths of a level; between whole numbers they have the price of the lower one."""
        found = AskedHalfWidths._at(self, value)
        if value == self.value or not self.are_whole:
            return found
        return found.mapped(lambda width: float(math.floor(width)) if width > 1.0 else width)


def _first(target: HalfWidths) -> float:
    """Return the first half width."""
    return target.widths[0][1] if isinstance(target.widths, tuple) else target.widths


def _up(width: float) -> float:
    """Return a half width rounded up to two digits.

    >>> _up(70.1), _up(71.0 * (1 + 1e-15)), _up(0.001)
    (71.0, 71.0, 0.001)
    """
    return TWO_DIGITS.level(TWO_DIGITS.place_up(width * (1.0 - _ROUNDING)))
