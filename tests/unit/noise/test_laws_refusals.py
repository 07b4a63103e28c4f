"""What every law of lossless multiple release refuses: levels out of order, arrays that are no points, wild noise."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from dpsql.errors import CalibrationError, ReleaseError
from dpsql.noise.gaussian_laws import CorrelatedGaussianLaw, GaussianLaw
from dpsql.noise.laplace_laws import DiscreteLaplaceLaw, ExponentialLaw, LaplaceLaw
from dpsql.noise.law import Law
from dpsql.noise.laws import LAWS
from dpsql.noise.poisson_laws import PoissonLaw, SkellamLaw
from tests.deterministic_entropy import SeededEntropy

RHOS = (Fraction(1, 20), Fraction(1, 5), Fraction(1, 2))
EACH: dict[str, tuple[Law, tuple[Fraction, Fraction, Fraction]]] = {
    "gaussian": (GaussianLaw(Fraction(1000)), RHOS),
    "correlated gaussian": (CorrelatedGaussianLaw(Fraction(1000), Fraction(1, 3)), RHOS),
    "laplace": (LaplaceLaw(1000), RHOS),
    "discrete laplace": (DiscreteLaplaceLaw(1), (Fraction(3, 2), Fraction(2), Fraction(5))),
    "exponential": (ExponentialLaw(1000), RHOS),
    "poisson": (PoissonLaw(), RHOS),
    "skellam": (SkellamLaw(), RHOS),
}


def test_every_law_is_here() -> None:
    assert set(EACH) == set(LAWS)
    assert all(type(law) is LAWS[name] for name, (law, _) in EACH.items())


@pytest.mark.parametrize("name", EACH)
def test_levels_out_of_order_are_refused(name: str) -> None:
    law, (low, level, high) = EACH[name]
    values, entropy = np.arange(5), SeededEntropy(1)
    steps: list[Callable[[], object]] = [
        lambda: law.step_up(values, level, level, values, entropy),
        lambda: law.step_up(values, level, low, values, entropy),
        lambda: law.step_down(values, level, level, entropy),
        lambda: law.step_down(values, level, high, entropy),
        lambda: law.bridge(values, low, values, high, low, entropy),
        lambda: law.bridge(values, low, values, high, high, entropy),
        lambda: law.bridge(values, high, values, low, level, entropy),
        lambda: law.draw(values, Fraction(0), entropy),
        lambda: law.draw(values, Fraction(-1), entropy),
        lambda: law.draw(values, 0.5, entropy),  # type: ignore[arg-type]
        lambda: law.variance(Fraction(0)),
        lambda: law.mean(Fraction(0)),
    ]
    for step in steps:
        with pytest.raises(CalibrationError):
            step()


@pytest.mark.parametrize("name", EACH)
def test_arrays_of_another_length_or_type_are_refused(name: str) -> None:
    law, (low, level, high) = EACH[name]
    values, entropy = np.arange(5), SeededEntropy(1)
    steps: list[Callable[[], object]] = [
        lambda: law.step_up(values, level, high, values[:4], entropy),
        lambda: law.bridge(values, low, values[:1], high, level, entropy),
        lambda: law.draw(values.astype(np.int32), level, entropy),
        lambda: law.draw(values.reshape(5, 1), level, entropy),
    ]
    for step in steps:
        with pytest.raises(ReleaseError):
            step()


@pytest.mark.parametrize("name", EACH)
def test_no_keys_need_no_noise(name: str) -> None:
    law, (low, level, high) = EACH[name]
    none, entropy = np.empty(0, dtype=np.int64), SeededEntropy(1)
    assert law.draw(none, level, entropy).size == 0
    assert law.step_up(none, level, high, none, entropy).size == 0
    assert law.step_down(none, level, low, entropy).size == 0
    assert law.bridge(none, low, none, high, level, entropy).size == 0


@pytest.mark.parametrize("name", ["poisson", "exponential"])
def test_noise_that_never_falls_refuses_points_that_do(name: str) -> None:
    law, (low, level, high) = EACH[name]
    with pytest.raises(ReleaseError):
        law.bridge(np.array([3]), low, np.array([4]), high, level, SeededEntropy(1))


@pytest.mark.parametrize(
    "construct",
    [
        lambda: GaussianLaw(Fraction(0)),
        lambda: GaussianLaw(1.0),  # type: ignore[arg-type]
        lambda: CorrelatedGaussianLaw(Fraction(1), Fraction(0)),
        lambda: DiscreteLaplaceLaw(0),
        lambda: LaplaceLaw(Fraction(1)),  # type: ignore[arg-type]
        lambda: ExponentialLaw(True),
        lambda: DiscreteLaplaceLaw(1).variance(1 + Fraction(1, 1 << 46)),
        lambda: LaplaceLaw(1).variance(Fraction(65)),
        lambda: PoissonLaw().variance(Fraction(1, 1 << 21)),
        lambda: SkellamLaw().variance(Fraction(1, 1 << 17)),
        lambda: GaussianLaw(Fraction(10**400)).draw(np.arange(2), Fraction(1), SeededEntropy(1)),
        lambda: GaussianLaw(Fraction(1, 10**400)).draw(np.arange(2), Fraction(1), SeededEntropy(1)),
    ],
)
def test_what_no_law_covers_is_refused(construct: Callable[[], object]) -> None:
    with pytest.raises(CalibrationError):
        construct()
