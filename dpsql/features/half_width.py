"""Questions by half width: the level that gives each count and sum a half width of noise, found without any data.

The noise of a count or a sum is a function of text, policy and level. So the smallest level is found by inversion, and
the question is an ordinary one at this level from then on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpsql.answer.estimates import Z_95
from dpsql.errors import CalibrationError
from dpsql.features.kinds import fixed_noise_kind_of
from dpsql.mechanism.calibrate import whole_nano
from dpsql.model.frame import NANO
from dpsql.model.private_query import HalfWidths, PrivateQuery

QUANTILES = {0.9: 1.6448536269514722, 0.95: Z_95, 0.99: 2.5758293035489004}
"""Half width of the normal law over its standard deviation, by confidence."""
_MOST_NANO = 10**15
"""The largest level of a query."""
_FIRST_NANO = 10**7
"""A level to begin with."""


@dataclass(frozen=True, slots=True)
class TargetQuery:
    """A query by half widths, not at its level yet.

    Attributes:
        query: the plan.
        target: the half widths.

    """

    query: PrivateQuery
    target: HalfWidths

    def at(self, rho_nano: int) -> PrivateQuery:
        """Return the query at a level."""
        return fixed_noise_kind_of(self.query).at(self.query, rho_nano / NANO)

    def widths(self, rho_nano: int) -> tuple[tuple[str, float, float], ...]:
        """Return name, half width and target of each column that has one, at a level.

        Raises:
            CalibrationError: the noise of this level cannot be drawn.

        """
        query, quantile = self.at(rho_nano), QUANTILES[self.target.confidence]
        shown = fixed_noise_kind_of(query).columns(query)
        columns = ((one.name, one.sigma, self.target.of(one.name)) for one in shown)
        return tuple((name, quantile * sigma, most) for name, sigma, most in columns if sigma is not None and most)

    def excess(self, rho_nano: int) -> float:
        """Return the largest half width over its target; infinite if the noise of this level cannot be drawn."""
        try:
            return max(width / most for _, width, most in self.widths(rho_nano))
        except CalibrationError:
            return math.inf

    def smallest_nano(self) -> int:
        """Return the smallest level at which no half width exceeds its target.

        Raises:
            CalibrationError: there is none.

        """
        if self.excess(_MOST_NANO) > 1.0:
            raise CalibrationError(self._too_narrow())
        return smallest_level(lambda nano: self.excess(nano) <= 1.0, self._guess())

    def _guess(self) -> int:
        """Return about the level: the square of a half width is a / rho + c, found from two levels."""
        near, far = self.excess(_FIRST_NANO) ** 2, self.excess(4 * _FIRST_NANO) ** 2
        constant = (4.0 * far - near) / 3.0
        if not (math.isfinite(near) and constant < 1.0):
            return _FIRST_NANO
        guess = (near - constant) * _FIRST_NANO / (1.0 - constant)
        return min(max(1, round(guess)), _MOST_NANO)

    def _too_narrow(self) -> str:
        """Return the sentence about a half width below what the noise's grid gives."""
        name, width, most = max(self.widths(_MOST_NANO), key=lambda one: one[1] / one[2])
        return (
            f"target_half_width = {most:.9g} is too small for column {name}: the smallest half width for this column "
            f"is {_up(width):.9g}"
        )


def smallest_level(is_enough: Callable[[int], bool], guess: int) -> int:
    """Return the smallest whole number from 1 on that is enough, which the largest one is.

    Args:
        is_enough: false below some number, and true from it on.
        guess: a number close to it.

    >>> [smallest_level(lambda nano: nano >= 137, guess) for guess in (1, 136, 137, 138, 10**9)]
    [137, 137, 137, 137, 137]
    """
    low, high, step = 0, _MOST_NANO, 1
    place = guess
    while high - low > 1:
        if is_enough(place):
            high = place
            ahead = high - step
        else:
            low = place
            ahead = low + step
        step *= 4
        place = ahead if low < ahead < high else (low + high) // 2
    return high


def at_target(query: PrivateQuery) -> PrivateQuery:
    """Return a query by half widths at its level.

    Raises:
        CalibrationError: no level has these half widths, or it is above max_rho.

    """
    target = query.whole_request.target
    if target is None:
        return query
    asked = TargetQuery(query, target)
    nano = asked.smallest_nano()
    if target.max_rho is not None and nano > whole_nano(target.max_rho):
        raise CalibrationError(
            f"this half width takes rho = {nano / NANO:.9g}, more than max_rho = {target.max_rho:.9g}; write a "
            f"target_half_width of at least {_up(asked.excess(whole_nano(target.max_rho))):.3g} times as much, or a "
            "larger max_rho"
        )
    return asked.at(nano)


def _up(number: float) -> float:
    """Return a number rounded up to three digits."""
    step = 10.0 ** (math.floor(math.log10(number)) - 2)
    return math.ceil(number / step * (1.0 - 1e-12)) * step
