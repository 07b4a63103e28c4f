"""Arithmetic of intervals that hold every value of an expression.

The arithmetic is that of Moore 1966, *Interval Analysis*, on exact fractions, with ends that may be infinite. Ends are
rounded outward where fractions grow too long (`tidied`) and when they become floats (`Interval.floats`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

End = Fraction | float
"""A finite end is a fraction; an infinite one a float."""

MOST_PLACES = 64
"""Largest number of decimal places, and largest power, of interval arithmetic."""

_LARGEST = Fraction(2**300)
_MOST_BITS = 400
_HALF = Fraction(1, 2)


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers from ``low`` to ``high``, each of them included where it is finite."""

    low: End
    high: End

    @property
    def is_finite(self) -> bool:
        """Whether both ends are."""
        return isinstance(self.low, Fraction) and isinstance(self.high, Fraction)

    @property
    def holds_zero(self) -> bool:
        """Whether 0 is in it."""
        return self.low <= 0 <= self.high

    def floats(self) -> tuple[float, float]:
        """The ends as floats: one that is the shortest decimal of a float is that float, others go outward."""
        return _float(self.low, -math.inf), _float(self.high, math.inf)


UNKNOWN = Interval(-math.inf, math.inf)


def between(low: float, high: float) -> Interval:
    """The interval between two floats, each read as the shortest decimal that names it: 0.1 is a tenth.

    >>> between(0.1, 0.25).floats()
    (0.1, 0.25)
    """
    return Interval(_decimal(low), _decimal(high))


def hull(parts: Iterable[Interval]) -> Interval:
    """The least interval that holds all others; everything where there are none."""
    found = list(parts)
    return Interval(min([one.low for one in found]), max([one.high for one in found])) if found else UNKNOWN


def total(a: Interval, b: Interval) -> Interval:
    """Sums."""
    return Interval(a.low + b.low, a.high + b.high)


def negative(a: Interval) -> Interval:
    """The other sign."""
    return Interval(-a.high, -a.low)


def absolute(a: Interval) -> Interval:
    """Sizes."""
    sizes = [max(a.low, -a.low), max(a.high, -a.high)]
    return Interval(Fraction(0) if a.holds_zero else min(sizes), max(sizes))


def product(a: Interval, b: Interval) -> Interval:
    """Products."""
    ends: list[End] = [_times(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return Interval(min(ends), max(ends))


def quotient(a: Interval, b: Interval) -> Interval:
    """Quotients; everything where the divisor may be 0."""
    if b.holds_zero:
        return UNKNOWN
    ends = [Fraction(0) if isinstance(end, float) else 1 / end for end in (b.high, b.low)]
    return product(a, Interval(ends[0], ends[1]))


def remainder(a: Interval, b: Interval) -> Interval:
    """Remainders, which have the sign of what is divided and are smaller than the divisor."""
    most = absolute(b).high
    low = Fraction(0) if a.low >= 0 else max([a.low, -most])
    high = Fraction(0) if a.high <= 0 else min([a.high, most])
    return Interval(low, high)


def power(a: Interval, exponent: int) -> Interval:
    """Whole powers, from 1 to `MOST_PLACES`."""
    ends: list[End] = [a.low**exponent, a.high**exponent]
    return Interval(Fraction(0) if exponent % 2 == 0 and a.holds_zero else min(ends), max(ends))


def rounded(a: Interval, places: int) -> Interval:
    """Rounded to decimal places, ties to whichever side is further out: DuckDB has several rules for them."""
    scale = Fraction(10) ** places
    low = a.low if isinstance(a.low, float) else math.ceil(a.low * scale - _HALF) / scale
    high = a.high if isinstance(a.high, float) else math.floor(a.high * scale + _HALF) / scale
    return Interval(low, high)


def whole(a: Interval, low: Callable[[Fraction], int], high: Callable[[Fraction], int]) -> Interval:
    """Both ends made whole by functions that rise."""
    return Interval(
        a.low if isinstance(a.low, float) else Fraction(low(a.low)),
        a.high if isinstance(a.high, float) else Fraction(high(a.high)),
    )


def single_precision(a: Interval) -> Interval:
    """Numbers as single precision has them: rounding rises, so values between go between."""
    ends = []
    for end in a.floats():
        try:
            ends.append(struct.unpack("f", struct.pack("f", end))[0])
        except OverflowError:
            ends.append(math.copysign(math.inf, end))
    return between(ends[0], ends[1])


def risen(a: Interval, function: Callable[[float], float], start: float, at_start: float) -> Interval:
    """Values of a function that rises from ``start`` on, where it is ``at_start``."""
    ends = []
    for end, outward in zip(a.floats(), (-1, 1), strict=True):
        try:
            image = function(end) if end > start else at_start
        except OverflowError:
            image = math.inf
        # the library's functions are right to a digit or two
        ends.append(image + outward * 4 * math.ulp(image) if math.isfinite(image) and image != at_start else image)
    return between(max(ends[0], at_start), ends[1])


def cut(a: Interval, low: int, high: int) -> Interval:
    """What is known of the numbers of ``a`` from ``low`` to ``high``; infinite ends stay."""
    ends = Interval(
        a.low if isinstance(a.low, float) else max(a.low, Fraction(low)),
        a.high if isinstance(a.high, float) else min(a.high, Fraction(high)),
    )
    return ends if ends.low <= ends.high else UNKNOWN


def tidied(a: Interval) -> Interval:
    """Ends of usual size and length: huge ones are infinite, long ones are rounded outward."""
    return Interval(_tidy(a.low, math.floor), _tidy(a.high, math.ceil))


def _tidy(end: End, outward: Callable[[Fraction], int]) -> End:
    if isinstance(end, float) or abs(end) > _LARGEST:
        return math.copysign(math.inf, end)
    return Fraction(outward(end * 2**_MOST_BITS), 2**_MOST_BITS) if end.denominator.bit_length() > _MOST_BITS else end


def _times(x: End, y: End) -> End:
    # 0 times what is unknown is 0, because values are finite, whatever they are
    return Fraction(0) if not x or not y else x * y


def _decimal(end: float) -> End:
    return Fraction(repr(end)) if math.isfinite(end) else end


def _float(end: End, outward: float) -> float:
    nearest = float(end)
    if isinstance(end, float) or Fraction(repr(nearest)) == end:
        return nearest
    is_outside = Fraction(nearest) <= end if outward < 0 else Fraction(nearest) >= end
    return nearest if is_outside else math.nextafter(nearest, outward)
