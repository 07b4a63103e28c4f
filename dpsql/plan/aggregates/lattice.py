"""The lattices of counts and sums: which steps they have, and public bounds in them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

from dpsql.model.frame import SUM_LATTICE_BITS, Statistic

Bounds = tuple[float, float]
MOST_ROWS = 10**9
"""Most rows of one unit in one group: twice as many steps of a half keep below the 2**33 steps that sums keep to."""

SMALLEST_NORM = 2.0**-60
"""Smallest norm of a sum."""

_Number = TypeVar("_Number", int, float)

_LARGEST_BOUND = 2.0**100
_MOST_ROW_BITS = 8


@dataclass(frozen=True, slots=True)
class SumSteps:
    """The lattice of a sum and its public bounds on it, in steps.

    Attributes:
        exponent: a step is 2**exponent.
        low, high: the final interval: what one unit can add to one group, all rules applied.
        row: clamp of each row; None where only the unit's total is clamped.
        group: clamp of the unit's total; None where its rows are clamped and capped.

    """

    exponent: int
    low: int
    high: int
    row: tuple[int, int] | None
    group: tuple[int, int] | None


def representable(bounds: Bounds) -> bool:
    """Whether bounds have a usual size, and a usual distance from 0 for their width."""
    low, high = bounds
    largest = max(abs(low), abs(high))
    return low < high and largest <= _LARGEST_BOUND and high - low >= largest * 2.0**-20 and high - low >= 2.0**-60


def representable_together(per_group: Bounds, per_row: Bounds) -> bool:
    """Whether rows, counted on the lattice of their group's total, have steps that floating point counts exactly."""
    return max(abs(per_row[0]), abs(per_row[1])) <= (per_group[1] - per_group[0]) * 2.0**28


def sum_steps(per_group: Bounds | None, per_row: Bounds | None, row_cap: int | None, *, missing: bool) -> SumSteps:
    """Lattice and bounds of a sum.

    The lattice follows the final interval. Were it to follow the bounds of a row, those far from 0 for their width
    would be many more steps away from 0 than they span, and noise and totals would leave what can be drawn and held.
    Rows are rounded one by one, so where several are added it is finer, by up to 2**8. No unit moves a group by more
    than 2**33 steps, and no bound is 2**53 steps from 0.

    Args:
        per_group: clamp of a unit's total in a group; representable.
        per_row: clamp of a row; representable, and together with ``per_group``.
        row_cap: most rows of one unit that count in one group; applies where there is no ``per_group``.
        missing: whether a unit that is present may have no value, which adds 0.

    Raises:
        ValueError: there are no bounds at all.

    """
    bounds = per_group or per_row
    if bounds is None:
        raise ValueError("a sum needs bounds")
    cap = 1 if per_group else row_cap or 1
    low, high = _widened(*bounds, cap, missing=missing)
    finer = SUM_LATTICE_BITS + min(_MOST_ROW_BITS, (cap - 1).bit_length())
    # frexp's mantissa is in [1/2, 1), so this is floor(log2(width)), with no logarithm to be rounded
    exponent = math.frexp(high - low)[1] - 1 - finer
    row = in_steps(per_row, exponent) if per_row else None
    group = in_steps(per_group, exponent) if per_group else None
    low_steps, high_steps = _widened(*in_steps(bounds, exponent), cap, missing=missing)
    return SumSteps(exponent, low_steps, high_steps, row, group)


def _widened(low: _Number, high: _Number, cap: int, *, missing: bool) -> tuple[_Number, _Number]:
    """What one to ``cap`` rows within bounds add up to, and 0 where a unit may have no value."""
    low, high = min(low, cap * low), max(high, cap * high)
    return (min(low, 0), max(high, 0)) if missing else (low, high)


def in_steps(bounds: Bounds, exponent: int) -> tuple[int, int]:
    """Bounds in lattice steps, each rounded to the nearest."""
    return steps_of(bounds[0], exponent), steps_of(bounds[1], exponent)


def steps_of(number: float, exponent: int) -> int:
    """A number in steps of 2**exponent, rounded to the nearest."""
    return round(Fraction(number) / Fraction(2) ** exponent)


def around_zero(statistic: Statistic) -> Statistic:
    """The same with 0 in the middle of its interval: for values that are not recentred by units."""
    most = max(-statistic.low_steps, statistic.high_steps)
    return replace(statistic, low_steps=-most, high_steps=most)


def norm_exponent(norm: float) -> int:
    """The lattice of a sum that is bounded by its norm over a unit's groups, which is 2**32 to 2**33 steps."""
    return math.frexp(norm)[1] - 1 - SUM_LATTICE_BITS - _MOST_ROW_BITS
