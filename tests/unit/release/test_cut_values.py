"""Tests of the share of units with cut values: one end holds for all bounds at once, an end for one pair does not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from dpsql.bound.unit_histograms import NORM_PLACES
from dpsql.bound.value_steps import VALUE_EXPONENT
from dpsql.features.auto_choices import found_bounds
from dpsql.mechanism.gaussian_measure import GAUSSIAN
from dpsql.model.estimates import ValueBounds
from dpsql.release import cut_values
from dpsql.release.cut_values import VALUE_PLACES, last_norm, share_cut, value_range
from tests.other_laws import LAPLACE

Floats = npt.NDArray[np.float64]
SIGMA = 40.0
RELEASES = 100


def _place(value: Floats) -> npt.NDArray[np.int64]:
    """Return the bin of each value, as the SQL of AUTO places it."""
    steps = np.round(value * 2.0**-VALUE_EXPONENT)
    size = np.ceil(np.log2(np.maximum(np.abs(steps), 1.0))).astype(np.int64) + 1
    return np.sign(steps).astype(np.int64) * size + VALUE_PLACES // 2


def _units() -> tuple[Floats, Floats]:
    """Return the largest and the smallest value of 20,000 units, with a heavy tail on both sides."""
    random = np.random.default_rng(5)
    first, second = (random.choice([-1.0, 1.0], 20_000) * random.pareto(0.7, 20_000) for _ in range(2))
    return np.maximum(first, second), np.minimum(first, second)


def _exact() -> Floats:
    counts = [np.bincount(_place(values), minlength=VALUE_PLACES) for values in _units()]
    return np.concatenate(counts).astype(np.float64)


def _bounds() -> list[ValueBounds]:
    """Return bounds from each end of a bin to each other one, where there are units."""
    ends = [*(-(2.0**power) for power in range(21, -4, -3)), 0.0, *(2.0**power for power in range(-3, 22, 3))]
    pairs = [(low, high) for low in ends for high in ends if low < high]
    return [ValueBounds("row", pair, None) for pair in pairs]


def _held() -> int:
    """Count the releases in which what is said is true for all bounds."""
    (largest, smallest), exact, random, held = _units(), _exact(), np.random.default_rng(6), 0
    all_bounds = _bounds()
    truth = [float(np.mean((largest > b.bounds[1]) | (smallest < b.bounds[0]))) for b in all_bounds]
    for _ in range(RELEASES):
        noisy = exact + random.normal(0.0, SIGMA, len(exact))
        said = [share_cut(noisy, SIGMA, bounds, GAUSSIAN) for bounds in all_bounds]
        held += all(end is None or share <= end for share, end in zip(truth, said, strict=True))
    return held


def test_the_end_holds_for_all_bounds_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer than 88 of 100 true ends have probability 0.002 if each is true with 0.95. One end for each pair fails."""
    assert _held() >= 88
    monkeypatch.setattr(cut_values, "_factor", lambda measure, cuts, statements: 1.6449)
    assert _held() < 80


def test_the_end_says_something() -> None:
    noisy = _exact() + np.random.default_rng(1).normal(0.0, SIGMA, 2 * VALUE_PLACES)
    bounds = found_bounds(noisy, SIGMA)
    assert bounds
    largest, smallest = _units()
    truth = float(np.mean((largest > bounds[1]) | (smallest < bounds[0])))
    end = share_cut(noisy, SIGMA, ValueBounds("row", bounds, None), GAUSSIAN)
    assert end
    assert truth < end < truth + 0.2
    # noise with longer tails leaves more of it open
    longer = share_cut(noisy, SIGMA, ValueBounds("row", bounds, None), LAPLACE)
    assert longer is None or longer > end
    # a type of fewer values has fewer bins with noise
    narrow = share_cut(
        noisy, SIGMA, ValueBounds("row", bounds, None, possible=(-(2.0**31), 2.0**31), least_size=2**-10), GAUSSIAN
    )
    assert narrow
    assert narrow < end
    # nothing is said of noise alone, or if all may be cut
    assert share_cut(noisy - _exact(), SIGMA, ValueBounds("row", bounds, None), GAUSSIAN) is None
    assert share_cut(noisy, SIGMA, ValueBounds("row", (0.0, 2.0**-20), None), GAUSSIAN) is None


@pytest.mark.parametrize("value", [0.0, 1.0, 0.75, -1.0, -0.75, 3.0, -4.0, 2.0**-30])
def test_bounds_hold_the_bins_whose_values_they_hold(value: float) -> None:
    place = int(_place(np.array([value]))[0])
    for low, high in [(-4.0, 4.0), (0.0, 1.0), (-1.0, 0.0), (-0.5, 0.5), (0.5, 3.0), (-(2.0**-30), 2.0**-30)]:
        first, last = value_range((low, high))
        if first <= place <= last:
            assert low <= value <= high
    first, last = value_range((-4.0, 4.0))
    assert first <= place <= last
    assert last_norm(2.0**VALUE_EXPONENT) == 1
    assert last_norm(1e300) == NORM_PLACES - 2
    assert last_norm(2.0 ** (VALUE_EXPONENT - 1)) == 0
