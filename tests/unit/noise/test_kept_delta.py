"""The parts of a delta: the one for conversion is rounded down to a float, so that the parts never exceed the whole."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest

from dpsql.noise.kept_delta import converted_delta, kept_delta


def splits() -> Iterator[tuple[float, float]]:
    """Yield deltas with kept parts: small ones, usual ones, and ones above the half."""
    drawn = random.Random(47)
    for _ in range(500):
        delta = 10.0 ** drawn.uniform(-12, -1)
        yield delta, kept_delta(delta, 10.0 ** drawn.uniform(-6, 2))
        yield delta, math.ldexp(math.ceil(math.ldexp(delta * 2.0 ** drawn.uniform(-40, 0), 100)), -100)
    yield from ((2.0**-20, 2.0**-40), (2.0**-20, 1.0), (0.5, 2.0**-100))


def is_largest_float_below_rest(delta: float, kept: float, converted: float) -> bool:
    """Return whether a part is the largest float that does not exceed what the kept part leaves, and half at least."""
    rest = max(Fraction(delta) - Fraction(kept), Fraction(delta) / 2)
    return Fraction(converted) <= rest < Fraction(math.nextafter(converted, 1.0))


def test_the_part_for_conversion_is_rounded_down_and_no_further() -> None:
    for delta, kept in splits():
        converted = converted_delta(delta, kept)
        assert is_largest_float_below_rest(delta, kept, converted), (delta, kept)
        if kept <= delta / 2:
            assert Fraction(converted) + Fraction(kept) <= Fraction(delta)


@pytest.mark.parametrize(
    "rounded",
    [
        pytest.param(float, id="to_the_nearest"),
        pytest.param(lambda rest: math.nextafter(float(rest), 1.0) if float(rest) < rest else float(rest), id="up"),
        pytest.param(lambda rest: math.nextafter(float(rest), 0.0), id="down_twice"),
    ],
)
def test_a_part_that_is_rounded_otherwise_is_caught(rounded: Callable[[Fraction], float]) -> None:
    def is_right(delta: float, kept: float) -> bool:
        rest = max(Fraction(delta) - Fraction(kept), Fraction(delta) / 2)
        return is_largest_float_below_rest(delta, kept, rounded(rest))

    assert sum(not is_right(*split) for split in splits()) > 100


def test_the_kept_part_is_rounded_up_to_units_of_the_ledger() -> None:
    for delta, rho in ((1e-6, 0.2), (1e-12, 4.0), (3e-9, 1e-3)):
        kept = kept_delta(delta, rho)
        assert Fraction(kept) * 2**100 == math.floor(Fraction(kept) * 2**100)
        assert Fraction(kept) >= Fraction(delta) / 2**40
