"""Questions by half width: the level that gives each count and sum a half width of noise, found without any data.

The noise of a count or a sum is a function of text, policy and level. So the smallest level is found by inversion, and
the question is an ordinary one at this level from then on. A plan says how many such questions are left. A question
about other data, by another filter or of another version, has nothing stored. Its price is what the same text would pay
on a frame of which nothing is stored yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from typing import Any

from dpsql.cascade.reader import Reader
from dpsql.errors import CalibrationError
from dpsql.features.joint_release import joint_guarantee_of, last_of_frame, of_last_stages
from dpsql.features.query_kind import QueryKind
from dpsql.mechanism.calibrate import whole_nano
from dpsql.mechanism.measure import miss_of
from dpsql.model.frame import NANO
from dpsql.model.half_widths import HalfWidths
from dpsql.model.private_query import FrameQuery, PrivateQuery
from dpsql.model.query_kinds import AutoHalfWidths
from dpsql.receipts import level_words, words
from dpsql.receipts.offer_receipt import may_have_threshold
from dpsql.receipts.plan_rows import Row
from dpsql.release.offer import Offer, amounts_of
from dpsql.state import DELTA_UNITS_PER_ONE, NANO_PER_RHO, Spent, State

_MOST_NANO = 10**15
"""The largest level of a query."""
LARGEST_WIDTH = 1e300
"""The largest half width that a query may ask for."""
_FIRST_NANO = 10**7
"""A level to begin with."""


@dataclass(frozen=True, slots=True)
class TargetQuery:
    """A query by half widths, not at its level yet.

    Attributes:
        kind: that of the query.
        query: the plan.
        target: the half widths.

    """

    kind: QueryKind[Any]
    query: PrivateQuery
    target: HalfWidths

    def at(self, rho_nano: int) -> PrivateQuery:
        """Return the query at a level."""
        query: PrivateQuery = self.kind.at(self.query, rho_nano / NANO)
        return query

    def up_to(self, most_nano: int) -> PrivateQuery:
        """Return the query at the smallest level at which no half width exceeds its target, but at most at a level.

        If no column is left that has a half width, that is the smallest level whose noise can be drawn.

        Args:
            most_nano: the highest level.

        """
        if self.excess(most_nano) > 1.0:
            return self.at(most_nano)
        guess = min(self._guess(), most_nano)
        return self.at(smallest_level(lambda nano: nano >= most_nano or self.excess(nano) <= 1.0, guess))

    def widths(self, rho_nano: int) -> tuple[tuple[str, float, float], ...]:
        """Return name, half width and target of each column that has one, at a level.

        Raises:
            CalibrationError: the noise of this level cannot be drawn.

        """
        found = self.kind.columns(self.at(rho_nano), miss_of(self.target.confidence))
        widths = ((one.name, one.half_width_95, self.target.of(one.name)) for one in found)
        return tuple((name, width, most) for name, width, most in widths if width is not None and most)

    def excess(self, rho_nano: int) -> float:
        """Return the largest half width over its target; infinite if the noise of this level cannot be drawn."""
        try:
            return max((width / most for _, width, most in self.widths(rho_nano)), default=0.0)
        except CalibrationError:
            return math.inf

    def smallest_nano(self) -> int:
        """Return the smallest level at which no half width exceeds its target.

        Raises:
            CalibrationError: there is none.

        """
        is_possible = self.excess(_MOST_NANO) <= 1.0
        found = smallest_level(lambda nano: self.excess(nano) <= 1.0, self._guess()) if is_possible else _MOST_NANO
        if self._may_have_thresholds(found):
            if is_possible:
                return found
            raise CalibrationError(self._too_narrow(found))
        most = smallest_level(lambda nano: nano >= found or not self._may_have_thresholds(nano), found // 2) - 1
        raise CalibrationError(self._too_narrow(most))

    def _may_have_thresholds(self, rho_nano: int) -> bool:
        """Return whether delta covers the thresholds of private keys at a level, or there are none."""
        try:
            return all(map(may_have_threshold, self.at(rho_nano).parts))
        except CalibrationError:
            # the level is too small
            return True

    def _guess(self) -> int:
        """Return about the level: the square of a half width is a / rho + c, found from two levels."""
        near, far = self.excess(_FIRST_NANO) ** 2, self.excess(4 * _FIRST_NANO) ** 2
        constant = (4.0 * far - near) / 3.0
        if not (math.isfinite(near) and constant < 1.0):
            return _FIRST_NANO
        guess = (near - constant) * _FIRST_NANO / (1.0 - constant)
        return min(max(1, round(guess)), _MOST_NANO)

    def _too_narrow(self, most_nano: int) -> str:
        """Return the sentence about a half width below what the noise's grid gives, or what delta allows.

        Args:
            most_nano: the largest level that the query may have.

        """
        name, width, most = max(self.widths(most_nano), key=lambda one: one[1] / one[2])
        return (
            f"target_half_width = {most:.9g} is too small for column {name}: the smallest half width for this column "
            f"is {up(width):.9g}"
        )

    def epsilon(self, rho_nano: int) -> float:
        """Return the epsilon that the question guarantees at a level.

        Raises:
            CalibrationError: the noise of this level cannot be drawn, or no threshold has its delta.

        """
        return self.kind.guarantee(self.at(rho_nano))[0]

    def _exceeds(self, rho_nano: int, epsilon: float) -> bool:
        """Check whether a level has more than an epsilon; a level whose noise cannot be drawn has too little."""
        try:
            return self.epsilon(rho_nano) > epsilon
        except CalibrationError:
            return False

    def nano_within(self, epsilon: float, above: int) -> int:
        """Return the largest level whose epsilon is at most a number; 0 if there is none.

        Args:
            epsilon: the number.
            above: a level that has more.

        """
        return smallest_level(lambda nano: nano >= above or self._exceeds(nano, epsilon), above // 2) - 1

    def too_much(self, name: str, level: float, most: str, within: int) -> CalibrationError:
        """Return the refusal of half widths that take more than the question allows.

        Args:
            name: rho or epsilon.
            level: what they take.
            most: the option that says how much is allowed.
            within: the largest level that is allowed, in nano-rho; 0 if there is none.

        """
        factor = self.excess(within) if within else math.inf
        cures = [level_words.half_width_option(self._wider(factor))] if factor * self._widest() <= LARGEST_WIDTH else []
        cures.append(level_words.option(f"max_{name}", up(level)))
        return CalibrationError(
            level_words.takes_too_much(level_words.half_width_option(self.target), name, level, most, cures)
        )

    def _widest(self) -> float:
        """Return the largest of the half widths."""
        widths = self.target.widths
        return max(width for _, width in widths) if isinstance(widths, tuple) else widths

    def _wider(self, factor: float) -> HalfWidths:
        """Return the half widths multiplied by a factor, each rounded up to three digits."""
        return self.target.mapped(lambda width: up(width * factor))


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


def up(number: float) -> float:
    """Return a positive number rounded up to three digits.

    >>> up(55.61), up(0.001), up(12345.0), up(1e-300)
    (55.7, 0.001, 12400.0, 1e-300)
    """
    exact = Decimal(repr(number))
    step = Decimal(1).scaleb(exact.adjusted() - 2)
    return float((exact / step).to_integral_value(ROUND_CEILING) * step)


def at_target(kind: QueryKind[Any], query: PrivateQuery) -> PrivateQuery:
    """Return a query by half widths at its level, or at its cap if AUTO is yet to choose what the level follows from.

    Raises:
        CalibrationError: no level has these half widths, or the level is above max_rho or max_epsilon.

    """
    target = query.whole_request.target
    if target is None:
        return query
    asked = TargetQuery(kind, query, target)
    if isinstance(query, AutoHalfWidths):
        # what AUTO is yet to choose decides the level
        return query if query.first.is_open else asked.up_to(query.most_nano)
    nano = asked.smallest_nano()
    if target.max_rho is not None and nano > whole_nano(target.max_rho):
        most = level_words.option("max_rho", target.max_rho)
        raise asked.too_much("rho", nano / NANO, most, whole_nano(target.max_rho))
    if target.max_epsilon is not None and (epsilon := asked.epsilon(nano)) > target.max_epsilon:
        most = level_words.option("max_epsilon", target.max_epsilon)
        raise asked.too_much("epsilon", epsilon, most, asked.nano_within(target.max_epsilon, nano))
    return asked.at(nano)


def target_rows(kind: QueryKind[Any], query: PrivateQuery, state: State, reader: Reader) -> list[Row]:
    """Return the rows of the target; they read and spend nothing.

    Args:
        kind: that of the query.
        query: at the level of its half widths, on current generations.
        state: the state file.
        reader: who asks.

    Raises:
        AccessError, CalibrationError: the reader, or the precision of the noise, does not allow the level.

    """
    target = query.whole_request.target
    if target is None:
        return []
    offers = kind.offers(query.mapped(_with_nothing_stored), state, reader)
    # other data have bounds of their own
    by_auto = sum(level.share_nano for level in query.first.auto_levels)
    rho_nano, delta_units = amounts_of(offers)
    price = Spent(rho_nano + by_auto, delta_units)
    epsilon, delta = _guarantee(query, offers)
    unit = query.first.frame.rows.unit
    left: Spent | None = state.ledger.left(unit, reader.name)
    if reader.has_limit:
        _, left = state.ledger.own(unit, reader.name)
    amount = offers[0].histogram.measure.amount
    level = f"{(sum(part.asked_nano for part in of_last_stages(offers)) + by_auto) / NANO_PER_RHO:.9g}"
    return [
        ("target", "half width", level_words.half_widths(target)),
        *([("target", "rho", level)] if amount == "rho" else []),
        ("target", "epsilon", f"{epsilon:.6g}"),
        ("target", "delta", f"{delta:.6g}"),
        (
            "target",
            "full price",
            level_words.full_price(price.rho_nano / NANO_PER_RHO, price.delta_units / DELTA_UNITS_PER_ONE, amount),
        ),
        ("target", "questions left", f"{left.times(price)}" if left else words.NOT_SHOWN),
    ]


def _with_nothing_stored(part: FrameQuery) -> FrameQuery:
    """Return a part on the generation after the last one, of which nothing is stored."""
    return replace(part, frame=replace(part.frame, generation=part.frame.generation + 1))


def _guarantee(query: PrivateQuery, offers: Sequence[Offer]) -> tuple[float, float]:
    """Return (epsilon, delta) of the question alone, both rounded up."""
    if len(of_last_stages(offers)) > 1:
        return joint_guarantee_of(query.whole_request, offers)
    last = last_of_frame(offers)
    return last.epsilon, last.delta
