"""The in-memory cascade: points in any order under any law, one array a level, and a ceiling that forgets."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from dpsql.cascade import LAWS, Cascade
from dpsql.errors import CalibrationError, ReleaseError
from dpsql.noise.law import Law
from tests.deterministic_entropy import SeededEntropy

EXACT = np.array([0, 5, 1000, 12], dtype=np.int64)
MADE: dict[str, Law] = {
    "gaussian": LAWS["gaussian"](Fraction(64)),
    "correlated gaussian": LAWS["correlated gaussian"](Fraction(64), Fraction(1, 2)),
    "laplace": LAWS["laplace"](16),
    "discrete laplace": LAWS["discrete laplace"](3),
    "exponential": LAWS["exponential"](16),
    "poisson": LAWS["poisson"](),
    "skellam": LAWS["skellam"](),
}
LEVELS = {
    "discrete laplace": (Fraction(9, 8), Fraction(5, 4), Fraction(3, 2)),
    "poisson": (Fraction(1, 400), Fraction(1, 100), Fraction(1, 25)),
    "skellam": (Fraction(1, 400), Fraction(1, 100), Fraction(1, 25)),
}
USUAL = (Fraction(1, 10), Fraction(1, 2), Fraction(2))


def test_every_law_has_a_case_here() -> None:
    assert set(MADE) == set(LAWS)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_levels_come_in_any_order_and_stay(name: str, order: tuple[int, ...]) -> None:
    levels = LEVELS.get(name, USUAL)
    cascade = Cascade(MADE[name], EXACT, entropy=SeededEntropy(4))
    first = {levels[i]: cascade.release(levels[i]).copy() for i in order}
    assert tuple(cascade.points) == levels
    for level in levels:
        assert cascade.release(level).tolist() == first[level].tolist()
        assert cascade.release(level).shape == EXACT.shape


@pytest.mark.parametrize("name", LAWS)
def test_a_ceiling_forgets_the_exact_values(name: str) -> None:
    low, middle, high = LEVELS.get(name, USUAL)
    exact = EXACT.copy()
    cascade = Cascade(MADE[name], exact, ceiling=middle, entropy=SeededEntropy(4))
    exact[:] = -(10**6)
    assert cascade.release(low).shape == EXACT.shape
    with pytest.raises(ReleaseError):
        cascade.release(high)
    assert "1000" not in repr(cascade)


def test_points_are_read_only_and_a_rise_moves_towards_the_exact_values() -> None:
    cascade = Cascade(MADE["gaussian"], EXACT << 20, entropy=SeededEntropy(4))
    cascade.release(Fraction(1, 1000))
    far = cascade.release(Fraction(10**6))
    assert np.abs((far >> 20) - EXACT).max() <= 1
    with pytest.raises(ValueError, match="read-only"):
        far[0] = 1
    with pytest.raises(CalibrationError):
        cascade.release(Fraction(0))
