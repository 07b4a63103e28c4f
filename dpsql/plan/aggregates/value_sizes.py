"""Values that a type of DuckDB has, of which a histogram of AUTO has no others."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from dpsql.model.estimates import ValueBounds

_BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}
_INTEGER = re.compile(r"(U?)(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)")
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")


def with_sizes(bounds: ValueBounds, value_type: str) -> ValueBounds:
    """Return bounds of values with the range and the least size that their type says.

    Totals of a unit have no range but a sign, and are whole numbers if all values are.

    >>> found = with_sizes(ValueBounds("row", (0.0, 1.0), None), "UTINYINT")
    >>> found.possible, found.least_size
    ((0.0, 256.0), 1.0)

    Args:
        bounds: of the value of a row, or of the total of a unit in a group.
        value_type: the type of the value of a row.

    """
    integer, decimal = _INTEGER.fullmatch(value_type), _DECIMAL.fullmatch(value_type)
    if integer:
        high = 2.0 ** (_BITS[integer[2]] - (0 if integer[1] else 1))
        low, least = 0.0 if integer[1] else -high, 1.0
    elif decimal:
        digits, scale = int(decimal[1]), int(decimal[2])
        high = 10.0 ** (digits - scale)
        low, least = -high, 10.0**-scale
    else:
        return bounds
    if bounds.form != "row":
        # rounded parts of a total may add up to less than its least digit
        low, high, least = low and -math.inf, math.inf, least if least == 1.0 else 0.0
    return replace(bounds, possible=(low, high), least_size=least)
