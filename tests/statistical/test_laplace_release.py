"""Noise of pure units as releases draw it, at fixed seeds, against exact probabilities, with planted faults.

With the right law a check fails with probability 1e-4 a seed; the faults fall below 1e-9.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpsql.mechanism import laplace
from dpsql.mechanism.laplace import LAPLACE_MEASURE, LaplaceHistogram
from dpsql.mechanism.measure import Floats, Grid, NoisyHistogram, Placed
from dpsql.model.frame import COUNT_LATTICE_EXPONENT, NANO, PRESENCE, Statistic
from dpsql.noise import lazy_jumps
from dpsql.noise.refined_table import geometric_law
from dpsql.release.points import noisy_values
from tests.noise_sources import seeded_noise

pytestmark = pytest.mark.statistical

ACCEPTED, CAUGHT = 1e-4, 1e-9
DRAWS = 250_000
"""Of each of four laws: a million together."""
_ROWS = Statistic(kind="rows", low_steps=2, high_steps=6, lattice_exponent=COUNT_LATTICE_EXPONENT)
_SUM = Statistic(kind="sum", low_steps=0, high_steps=2**5, lattice_exponent=-3)
LAWS = ((PRESENCE, 1.0, 1), (PRESENCE, 2.5, 2), (_ROWS, 1.5, 1), (_SUM, 4.0, 1))
"""Statistics, their levels, and the groups of a unit."""
HIGH, MIDDLE, LOW = 3.0, 1.5, 0.9
Values = NDArray[np.int64]


def _epsilon(statistic: Statistic, level: float, groups: int) -> float:
    return level / (groups * statistic.radius_steps)


def _drawn(statistic: Statistic, level: float, groups: int, draws: int, seed: int) -> Values:
    """Return noise in steps of the values, as a release of so many keys draws it."""
    histogram = LaplaceHistogram(name="laplace", unit_groups=groups, draws=0, sum_draws=0)
    exact, source = np.arange(draws) % 1_000, seeded_noise(seed)
    if statistic == PRESENCE:
        released = histogram.draw(exact, 0, histogram.sigma(level), source).values
    else:
        released = noisy_values(exact, statistic, histogram.sum_sigma(statistic, level), histogram, source)
    shift = statistic.lattice_exponent - statistic.noise_exponent
    noise = released - (exact << shift)
    assert not (noise % (1 << shift)).any(), "noise that is no whole number of steps"
    return noise >> shift


def _law(epsilon: float, most: int) -> Floats:
    """Return the probabilities of -most … most, with all that is beyond in the first and the last."""
    ratio, places = math.exp(-epsilon), np.abs(np.arange(-most, most + 1))
    found = (1.0 - ratio) / (1.0 + ratio) * ratio**places
    found[[0, -1]] = ratio**most / (1.0 + ratio)
    return np.asarray(found, dtype=np.float64)


def _most(epsilon: float) -> int:
    """Return a size that each of 5,000 draws exceeds less than once."""
    return max(1, math.floor(math.log(5_000) / epsilon))


def _p_value(drawn: Values, epsilon: float) -> float:
    most = _most(epsilon)
    seen = np.bincount(np.clip(drawn, -most, most) + most, minlength=2 * most + 1)
    return float(stats.chisquare(seen, len(drawn) * _law(epsilon, most)).pvalue)


@pytest.mark.parametrize("law", LAWS)
def test_a_release_has_its_law(law: tuple[Statistic, float, int]) -> None:
    assert _p_value(_drawn(*law, DRAWS, 1), _epsilon(*law)) > ACCEPTED


@pytest.mark.parametrize("law", LAWS)
def test_a_draw_does_not_depend_on_others(law: tuple[Statistic, float, int]) -> None:
    drawn = _drawn(*law, DRAWS, 2)
    # neighbours among a thousand keys of one release, by the signs of both
    table = np.zeros((3, 3))
    np.add.at(table, (np.sign(drawn[:-1:2]) + 1, np.sign(drawn[1::2]) + 1), 1)
    assert stats.chi2_contingency(table).pvalue > ACCEPTED


@pytest.mark.parametrize("part", [0.98, 1.02])
def test_a_scale_that_is_off_by_a_fiftieth_is_caught(part: float, monkeypatch: pytest.MonkeyPatch) -> None:
    step_epsilon = laplace.step_epsilon
    monkeypatch.setattr(laplace, "step_epsilon", lambda *of: step_epsilon(*of) * round(part * 50) / 50)
    found = math.prod(_p_value(_drawn(*law, DRAWS, 3), _epsilon(*law)) for law in LAWS)
    assert found < CAUGHT


def test_two_zeros_of_which_none_is_rejected_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A size and a sign, of which -0 has to be drawn again."""

    def with_both_zeros(law: object, low: object, high: object, count: int, entropy: object) -> Values:
        sizes = geometric_law(high).draw(count, entropy)  # type: ignore[arg-type]
        signs = 1 - 2 * (np.arange(count) % 2)
        return np.asarray(sizes * signs, dtype=np.int64)

    monkeypatch.setattr(lazy_jumps.LazyJumps, "_step", with_both_zeros)
    assert _p_value(_drawn(PRESENCE, 1.0, 1, DRAWS // 10, 4), 1.0) < CAUGHT


def _cascade(seed: int, draws: int = DRAWS) -> tuple[Values, Values, Values]:
    """Return the noise in steps of a release, and of two lower levels that are made of it."""
    histogram, source = LaplaceHistogram(name="laplace", unit_groups=1, draws=0, sum_draws=0), seeded_noise(seed)
    grid, exact = Grid(PRESENCE.noise_exponent, PRESENCE.lattice_exponent), np.arange(draws) % 1_000
    sigma = histogram.sigma(HIGH)
    high = Placed(round(HIGH * NANO), sigma, histogram.draw(exact, 0, sigma, source))
    middle, low = (
        LAPLACE_MEASURE.lowered(grid, high, None, round(one * NANO), histogram.sigma(one), source)
        for one in (MIDDLE, LOW)
    )
    noises = [((one.values >> grid.shift) - exact).astype(np.int64) for one in (high.noisy, middle, low)]
    return noises[0], noises[1], noises[2]


def _p_of_steps(before: Values, after: Values, levels: tuple[float, float]) -> float:
    """Compare noise and what a lower level adds to it with their joint law: both are independent.

    What is added is 0 if the noise stays, else noise of the lower level.
    """
    most = 3
    ratios = [math.exp(-one) for one in levels]
    stay = ((1 - ratios[1]) / (1 - ratios[0])) ** 2 * ratios[0] / ratios[1]
    added = (1.0 - stay) * _law(levels[1], most)
    added[most] += stay
    expected = np.outer(_law(levels[0], most), added).ravel() * len(before)
    cells = [np.clip(one, -most, most) + most for one in (before, after - before)]
    seen = np.bincount(cells[0] * (2 * most + 1) + cells[1], minlength=len(expected))
    return float(stats.chisquare(seen, expected).pvalue)


def _cascade_p_values(seed: int) -> list[float]:
    """Return the p-values of each level's law, and of each step from the release to a lower level."""
    noises, levels = _cascade(seed), (HIGH, MIDDLE, LOW)
    own = [_p_value(one, level) for one, level in zip(noises, levels, strict=True)]
    return [*own, *(_p_of_steps(noises[0], noises[place], (HIGH, levels[place])) for place in (1, 2))]


def test_lower_levels_have_the_law_of_fresh_releases_and_of_steps_down() -> None:
    assert min(_cascade_p_values(5)) > ACCEPTED


def test_noise_that_never_stays_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    step = lazy_jumps.LazyJumps._step

    def always(law: lazy_jumps.LazyJumps, low: object, high: object, count: int, entropy: object) -> Values:
        return step(law, type(high)(0), high, count, entropy)  # type: ignore[call-arg, arg-type]

    monkeypatch.setattr(lazy_jumps.LazyJumps, "_step", always)
    _, _, low = _cascade(6)
    assert _p_value(low, LOW) < CAUGHT


def test_a_step_down_by_a_wrong_level_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = laplace.LaplaceMeasure.lowered

    def off(measure: laplace.LaplaceMeasure, grid: Grid, high: Placed, low: Placed | None, *of: Any) -> NoisyHistogram:
        rho_nano, sigma, source = of
        return lowered(measure, grid, high, low, rho_nano, sigma * 1.02, source)

    monkeypatch.setattr(laplace.LaplaceMeasure, "lowered", off)
    assert min(_cascade_p_values(8)) < CAUGHT


def test_a_lower_level_that_is_drawn_afresh_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the right law by itself, and with the release it tells more than both levels say."""
    measure = laplace.LaplaceMeasure

    def afresh(own: laplace.LaplaceMeasure, grid: Grid, high: Placed, _: Placed | None, *of: Any) -> NoisyHistogram:
        _, sigma, source = of
        exact = np.arange(len(high.noisy.values)) % 1_000 << grid.shift
        return NoisyHistogram(exact + measure.draw(own, grid, sigma, len(exact), source).values, 0)

    monkeypatch.setattr(measure, "lowered", afresh)
    high, _, low = _cascade(7)
    assert _p_value(low, LOW) > ACCEPTED
    assert _p_of_steps(high, low, (HIGH, LOW)) < CAUGHT
