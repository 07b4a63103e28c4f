from __future__ import annotations

import decimal
from decimal import Decimal
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.noise.rounded_gaussian import exp_bounds, normal_cdf

points = st.fractions(min_value=0, max_value=17, max_denominator=1 << 60)


def exact(value: Fraction | Decimal) -> mpmath.mpf:
    numerator, denominator = value.as_integer_ratio()
    return mpmath.mpf(numerator) / denominator


@settings(max_examples=60)
@given(points)
def test_cdf_has_49_correct_digits(point: Fraction) -> None:
    with mpmath.workdps(80):
        assert abs(exact(normal_cdf(point)) - mpmath.ncdf(exact(point))) <= mpmath.mpf("1e-49")


@pytest.mark.parametrize(
    "point",
    [
        Fraction(0),
        Fraction(1, 10**30),
        Fraction(1),
        Fraction(29, 2),
        Fraction(16),
        Fraction(160001, 10000),
        Fraction(10**300),
    ],
)
def test_cdf_at_the_ends(point: Fraction) -> None:
    with mpmath.workdps(80):
        assert abs(exact(normal_cdf(point)) - mpmath.ncdf(exact(point))) <= mpmath.mpf("1e-49")


@settings(max_examples=60)
@given(st.fractions(min_value=0, max_value=200, max_denominator=1 << 130), st.integers(10, 90))
def test_exp_bounds_enclose_the_exponential_tightly(exponent: Fraction, digits: int) -> None:
    below, above = exp_bounds(exponent, digits)
    with mpmath.workdps(250):
        value = mpmath.exp(-exact(exponent))
        assert exact(below) <= value <= exact(above)
        # The exponent is rounded to `digits` digits first, which the exponential multiplies by its size.
        assert exact(above - below) <= value * (exact(exponent) + 5) * mpmath.mpf(10) ** (1 - digits)


def test_the_callers_decimal_context_does_not_matter() -> None:
    expected = normal_cdf(Fraction(7, 3)), exp_bounds(Fraction(7, 3), 40)
    with decimal.localcontext() as context:
        context.prec = 3
        context.rounding = decimal.ROUND_UP
        context.Emin = -2
        assert (normal_cdf(Fraction(7, 3)), exp_bounds(Fraction(7, 3), 40)) == expected
