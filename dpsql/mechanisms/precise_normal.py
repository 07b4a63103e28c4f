"""The normal distribution to about 50 digits, from the standard library alone.

Error bounds are derived in docs/proofs/rounded-gaussian.md; they rest on one fact: `decimal` rounds every
operation, its exponential included, correctly in the last digit.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, localcontext
from fractions import Fraction

# 1 / sqrt(2 pi), cut after 70 digits.
_DENSITY_AT_ZERO = Decimal("0.3989422804014326779399460599343818684758586311649346576659258296706579")
_DIGITS = 60
_NEGLIGIBLE = Decimal("1e-50")
# The mass above 16 is 6.4e-58, far below the error that is promised anyway.
_CDF_IS_ONE_ABOVE = 16


def working_context(digits: int = _DIGITS, rounding: str = ROUND_HALF_EVEN) -> Context:
    """Return a decimal context that owes nothing to the caller's global settings."""
    return Context(prec=digits, rounding=rounding, Emin=-999_999, Emax=999_999, capitals=1, clamp=0)


def normal_cdf(point: Fraction) -> Decimal:
    """Return Phi(point) for point >= 0, with an absolute error of at most 1e-49.

    *Source*: Phi(x) = 1/2 + phi(x) * (x + x^3/3 + x^5/(3*5) + x^7/(3*5*7) + ...) (Marsaglia 2004, "Evaluating
    the Normal Distribution"). All terms are positive, so nothing cancels.
    *Args*: `point` >= 0, in standard deviations.
    """
    if point > _CDF_IS_ONE_ABOVE:
        return Decimal(1)
    with localcontext(working_context()) as context:
        x = Decimal(point.numerator) / Decimal(point.denominator)
        square = x * x
        term = total = x
        divisor = 1
        # Beyond divisor = 2 x^2 each term is at most half the one before: the rest is less than the last.
        while term > total * _NEGLIGIBLE or divisor < 2 * square:
            divisor += 2
            term = term * square / divisor
            total += term
        return Decimal("0.5") + _DENSITY_AT_ZERO * context.exp(-square / 2) * total


def exp_bounds(exponent: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Return rationals (below, above) around exp(-exponent), about 10**(1 - digits) apart, for exponent >= 0.

    *Returns*: below <= exp(-exponent) <= above, always.
    """
    numerator, denominator = Decimal(-exponent.numerator), Decimal(exponent.denominator)
    down, up = working_context(digits, ROUND_FLOOR), working_context(digits, ROUND_CEILING)
    below = down.next_minus(down.exp(down.divide(numerator, denominator)))
    above = up.next_plus(up.exp(up.divide(numerator, denominator)))
    return Fraction(below), Fraction(above)
