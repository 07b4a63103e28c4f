"""The lattice of a sum, from its public bounds alone."""

from __future__ import annotations

import math
from fractions import Fraction

from dpsql.query.private_query import SUM_LATTICE_BITS

_LARGEST_BOUND = 2.0**100
_ROW_CAP_BITS = 8


def representable(bounds: tuple[float, float]) -> bool:
    """Whether a lattice of 2**24 or more steps over the bounds has steps that floating point counts exactly."""
    low, high = bounds
    largest = max(abs(low), abs(high))
    return low < high and largest <= _LARGEST_BOUND and high - low >= largest * 2.0**-20 and high - low >= 2.0**-60


def sum_exponent(bounds: tuple[float, float], row_cap: int) -> int:
    """Lattice of a sum: 2**24 steps over the bounds, up to 2**32 over what row_cap rows may reach.

    Rows are rounded to it one by one, so it follows the bounds of a row; where many rows count, it coarsens before
    the sum over all units could leave 64 bits.
    """
    coarser = max(0, math.ceil(math.log2(row_cap)) - _ROW_CAP_BITS)
    return math.floor(math.log2(bounds[1] - bounds[0])) - SUM_LATTICE_BITS + coarser


def lattice_steps(bounds: tuple[float, float], exponent: int) -> tuple[int, int]:
    """Bounds in lattice steps, each rounded to the nearest."""
    step = Fraction(2) ** exponent
    return round(Fraction(bounds[0]) / step), round(Fraction(bounds[1]) / step)
