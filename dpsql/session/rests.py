"""Rests of budgets: what one reader can still spend, and the epsilon of amounts of rho."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_UP, Context

from dpsql.accounting.composition import CONVERSIONS
from dpsql.noise.kept_delta import converted_delta, kept_delta
from dpsql.state import NANO_PER_RHO, PaidQuestion, Spent, Unit, amount_of, rho_from_nano

_TOLD_DIGITS = Context(prec=3, rounding=ROUND_DOWN)
_DIGITS_UP = Context(prec=3, rounding=ROUND_UP)


@dataclass(frozen=True, slots=True)
class Rest:
    """The rest of a unit's budget that one reader can still spend.

    Attributes:
        unit: the privacy unit.
        left: rho and threshold delta that are left for the reader.
        rho_limit: highest level in nano-rho of one question of the reader; None for any level.

    """

    unit: Unit
    left: Spent
    rho_limit: int | None

    @property
    def epsilon_next(self) -> float:
        """Return the largest epsilon of one more question over public keys, at the unit's default delta.

        It is rounded down to three digits, and 0 if nothing is left. One question alone is one Gaussian release in
        every unit, so the composition of the unit plays no part.
        """
        rho_nano, delta = self._rho_nano, self.unit.default_delta
        if amount_of(self.unit.composition) == "epsilon":
            return float(_TOLD_DIGITS.create_decimal(max(0, rho_nano)).scaleb(-9))
        if rho_nano <= 0 or self.left.delta_units <= 0 or delta <= 0.0:
            return 0.0
        rho = rho_from_nano(rho_nano)
        if not self.unit.thresholds and self.unit.composition == "gaussian":
            # such a question keeps a part of its delta for the imprecision of draws
            delta = converted_delta(delta, kept_delta(delta, rho))
        # the conversion rounds up
        epsilon = CONVERSIONS["gaussian"].epsilon(delta, rho) * (1.0 - 1e-9)
        return float(_TOLD_DIGITS.create_decimal(epsilon))

    def times(self, question: PaidQuestion) -> int:
        """Return how often a question can be asked again of other data."""
        if self.rho_limit is not None and question.asked_nano > self.rho_limit:
            return 0
        return self.left.times(question.price)

    def half_width_factor(self, question: PaidQuestion) -> float | None:
        """Return what the half widths of a question are multiplied by if it takes all that is left.

        A half width is about one over the square root of rho, or one over epsilon where a unit counts that. The factor
        is rounded up to three digits. None if nothing is left, or if a ceiling fixes the noise of the question.
        """
        has_delta = self.left.delta_units > 0 or not question.delta_units
        if self._rho_nano <= 0 or not has_delta or question.rho_nano > question.asked_nano:
            return None
        if amount_of(self.unit.composition) == "epsilon":
            return float(_DIGITS_UP.divide(question.rho_nano, self._rho_nano))
        return float(_DIGITS_UP.create_decimal(math.sqrt(question.rho_nano / self._rho_nano)))

    @property
    def _rho_nano(self) -> int:
        """The most nano-rho of one question of the reader."""
        return self.left.rho_nano if self.rho_limit is None else min(self.left.rho_nano, self.rho_limit)


def epsilon_of(unit: Unit, rho_nano: int) -> float:
    """Return the epsilon of levels of a unit that add up to rho, by its composition."""
    if not rho_nano:
        return 0.0
    return CONVERSIONS[unit.composition].epsilon(unit.delta_conversion, rho_nano / NANO_PER_RHO)
