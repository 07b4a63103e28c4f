"""Keys of one unit alone on the walks of a question by relative error: a window's delta bounds that any is shown.

Each level is a rise by composition: a fresh draw, averaged with what is held. The thresholds are those of the product.
The bound leaves 4.5 standard deviations beside the delta, which a true share of it exceeds once in 290,000 seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from dpsql.features.target_levels import window_of
from dpsql.features.target_rule import is_met, next_place
from dpsql.mechanism.histogram import Histogram
from dpsql.mechanism.registry import histogram_of
from dpsql.mechanism.window import grid, window_taus
from dpsql.model.frame import NANO, PRESENCE, Window
from dpsql.model.query_kinds import RelativeError
from tests.target_walks import counts
from tests.unit.mechanism.key_frames import frame

pytestmark = pytest.mark.statistical

Floats = npt.NDArray[np.float64]
Truths = npt.NDArray[np.bool_]
Taus = tuple[float, ...]

DELTA = 0.02
GROUPS = 2
"""Groups that the unit has to itself; the noise of a count is 1 at rho = 1."""
CAP = NANO // 2
WINDOW = window_of(None, CAP, DELTA)
LEVELS = tuple(level for level in grid(WINDOW) if level <= CAP)
HISTOGRAM = histogram_of(frame("gshm", max_groups=GROUPS))
OTHERS = 4_000.0 / np.arange(1, 13)
TARGET = RelativeError(0.2, 0.8, 0.95)


def taus_of_each_level(histogram: Histogram, window: Window) -> Taus:
    """Return thresholds of a broken product: each level has one of the window's whole delta."""
    found = (histogram.threshold(window.delta, histogram.sigma(level / NANO)) for level in grid(window))
    return tuple(tau for tau in found if tau is not None)


class Risen:
    """Noisy counts of independent keys, at a level that rises."""

    def __init__(self, exact: Floats, rng: np.random.Generator) -> None:
        self.exact, self.rng, self.level = exact, rng, 0
        self.noisy = np.zeros_like(exact)

    def to(self, level: int) -> Floats:
        """Return the counts at a level, averaged with a fresh draw at the difference."""
        fresh = self.exact + self.rng.normal(0.0, HISTOGRAM.sigma((level - self.level) / NANO), self.exact.shape)
        self.noisy = (self.level * self.noisy + (level - self.level) * fresh) / level
        self.level = level
        return self.noisy


@cache
def walks_of_the_rule(taus: Taus, walks: int = 40) -> Truths:
    """Return at which levels the rule asks, one row for each draw of the other keys."""
    rng, asked = np.random.default_rng(1), np.zeros((walks, len(LEVELS)), dtype=np.bool_)
    for walk in range(walks):
        others, place, taken, is_last = Risen(OTHERS, rng), 0, 1, False
        while not is_last:
            asked[walk, place] = True
            noisy = others.to(LEVELS[place])
            shown = noisy[noisy > 1.0 + taus[place]]
            step = counts(*shown).step(LEVELS[place], {PRESENCE: shown})
            is_last = is_met(step, TARGET) or place == len(LEVELS) - 1
            place = place if is_last else next_place(step, LEVELS, place, taken, TARGET)
            taken += 1
    return asked


Asks = Callable[[int], Truths]
"""Say which walks ask for the level at a place; it is called once for each place, lowest first."""


def by_the_rule(taus: Taus, units: int) -> Asks:
    """Return who asks by the rule: it reads the other keys, and stops by them."""
    asked = walks_of_the_rule(taus)
    return lambda place: asked[np.arange(units) % len(asked), place]


def to_the_cap(_taus: Taus, units: int) -> Asks:
    """Return who asks for every level."""
    return lambda _place: np.ones(units, dtype=np.bool_)


def by_an_adversary(_taus: Taus, units: int) -> Asks:
    """Return who asks for the next level if another key's number fell, else for one up to twice as high."""
    rng = np.random.default_rng(3)
    other, before, due = Risen(np.full(units, 300.0), rng), np.full(units, math.inf), np.zeros(units, dtype=np.int64)

    def asks(place: int) -> Truths:
        now, asked = other.to(LEVELS[place]), due <= place
        due[asked] = place + np.where(now < before, 1, rng.integers(1, 5, units))[asked]
        before[asked] = now[asked]
        return asked

    return asks


def share_shown(taus: Taus, units: int, asks: Asks) -> float:
    """Return the share of units of which any key is shown at a level that is asked for; each unit has a walk.

    Nobody stops because nothing is shown, and what comes after a key is shown does not count.
    """
    lone = Risen(np.ones((GROUPS, units)), np.random.default_rng(2))
    shown = np.zeros(units, dtype=np.bool_)
    for place, level in enumerate(LEVELS):
        shown |= asks(place) & (lone.to(level) > 1.0 + taus[place]).any(axis=0)
    return float(shown.mean())


@pytest.mark.parametrize("units", [15_000, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("rule", [by_the_rule, to_the_cap, by_an_adversary])
def test_a_windows_delta_bounds_that_a_unit_alone_is_shown(rule: Callable[[Taus, int], Asks], units: int) -> None:
    taus, broken = window_taus(HISTOGRAM, WINDOW), taus_of_each_level(HISTOGRAM, WINDOW)
    most = DELTA + 4.5 * math.sqrt(DELTA * (1.0 - DELTA) / units)
    assert units < 100_000 or most <= 0.022
    share = share_shown(taus, units, rule(taus, units))
    assert share <= most
    # who asks for all levels up to half the window's top comes near its delta
    assert rule is not to_the_cap or share > 0.8 * DELTA
    assert share_shown(broken, units, rule(broken, units)) > 2 * most
