"""Steps in which values are added up before any bound is known: so fine and so wide that few values are rounded."""

from __future__ import annotations

VALUE_EXPONENT = -30
"""Values are told apart down to 2**-30 …"""
VALUE_BITS = 90
"""… and up to 2**60: sums of 2**36 rows of 2**90 steps fit a HUGEINT."""
LARGEST_VALUE = 2.0 ** (VALUE_BITS + VALUE_EXPONENT)
_MOST = float(2**VALUE_BITS)


def value_steps(value: str) -> str:
    """Return SQL for a row's value in steps of 2**VALUE_EXPONENT, as a HUGEINT."""
    scaled = f"CAST({value} AS DOUBLE) * {2.0**-VALUE_EXPONENT!r}::DOUBLE"
    return f"CAST(round(least(greatest({scaled}, {-_MOST!r}::DOUBLE), {_MOST!r}::DOUBLE)) AS HUGEINT)"
