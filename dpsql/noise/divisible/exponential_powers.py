"""Bounds on powers of e^-gamma and of 1 - e^-gamma, as tight as an exact draw needs them."""

from __future__ import annotations

import math
from fractions import Fraction

from dpsql.errors import CalibrationError
from dpsql.noise.rounded_gaussian import exp_bounds

LEAST_GAMMA = Fraction(1, 1 << 50)
LARGEST_GAMMA = Fraction(34)
_DECIMALS_PER_BIT = math.log10(2.0)
_GUARD_BITS = 16


def require_gamma(gamma: object) -> Fraction:
    """Return gamma, or raise CalibrationError unless it is a Fraction in [2**-50, 34]."""
    if not isinstance(gamma, Fraction) or not LEAST_GAMMA <= gamma <= LARGEST_GAMMA:
        raise CalibrationError(f"gamma must be a Fraction from 2**-50 to 34, got {gamma!r}")
    return gamma


def success_powers(gamma: Fraction, doublings: int, digits: int) -> tuple[int, int]:
    """Return integers (below, above) around 2**digits p**(2**doublings), where p = e^-gamma."""
    below, above = exp_bounds(gamma * (1 << doublings), math.ceil(digits * _DECIMALS_PER_BIT) + 4)
    return math.floor(below * (1 << digits)), math.ceil(above * (1 << digits))


def failure_powers(gamma: Fraction, doublings: int, digits: int) -> tuple[int, int]:
    """Return integers (below, above) around 2**digits q**(2**doublings), where q = 1 - e^-gamma."""
    working = digits + doublings + _GUARD_BITS
    rarely, often = success_powers(gamma, 0, working)
    below, above = (1 << working) - often, (1 << working) - rarely
    for _ in range(doublings):
        below, above = below * below >> working, -(-above * above >> working)
    spare = working - digits
    return below >> spare, -(-above >> spare)
