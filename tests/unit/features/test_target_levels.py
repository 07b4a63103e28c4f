"""Levels of a question by relative error: its grid, its window and its cap."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from dpsql.accounting.composition import CONVERSIONS
from dpsql.errors import CalibrationError
from dpsql.features.target_levels import DOUBLINGS, absolute_grid, at_step, cap_nano, steps_up, window_of
from dpsql.mechanism.window import MOST_LEVELS, grid
from dpsql.model.estimates import UNITS, Estimate
from dpsql.model.frame import NANO, PRESENCE, Frame, Window
from dpsql.model.private_query import EachKey, Finish, FrameQuery, Request
from tests.unit.mechanism.key_frames import frame


def asked(of: Frame, request: Request) -> FrameQuery:
    return FrameQuery(of, (), (PRESENCE,), (1.0,), (Estimate("n", UNITS, "BIGINT"),), Finish(()), request, EachKey())


PUBLIC = frame("gaussian", listed=3, max_groups=1)
EPSILONS = (0.01, 1.0, 7.5)


def test_grids_of_all_caps_have_the_same_levels() -> None:
    largest = absolute_grid(10 * NANO)
    for most in (1, 2, 7, 1_000, 123_456_789, NANO, 9_999_999_999):
        levels = absolute_grid(most)
        assert list(levels) == sorted(set(levels))
        assert levels[-1] == most
        assert set(levels[:-1]) <= set(largest)
        # none is left out
        assert set(levels[:-1]) == {level for level in largest if level < most}
    # a power of 2 is a level, and 8 steps double a level
    assert {2**exponent for exponent in range(34)} <= set(largest)
    above = [level for level in largest[:-1] if level > 10_000]
    assert all(later / level == pytest.approx(2.0 ** (1 / 8), rel=1e-3) for level, later in itertools.pairwise(above))


@pytest.mark.parametrize("rho", [1e-6, 0.001, 0.5, 37.0])
def test_steps_over_public_keys_begin_twenty_doublings_below_the_cap(rho: float) -> None:
    levels = steps_up(asked(PUBLIC, Request(rho, None, 1e-6)))
    cap = math.floor(Fraction(rho) * NANO)
    assert levels[-1] in (cap, cap + 1)
    assert max(1, levels[-1] >> DOUBLINGS) <= levels[0] <= max(2, 1.1 * levels[-1] / 2**DOUBLINGS)
    assert levels == tuple(level for level in absolute_grid(levels[-1]) if level >= levels[0])


def test_levels_whose_noise_cannot_be_drawn_are_left_out() -> None:
    """A unit in 10^14 groups has noise that is too wide at low levels, but not at the cap."""
    wide = asked(frame("gaussian", listed=10**14, max_groups=10**14), Request(1.0, None, 1e-6))
    narrow = steps_up(asked(PUBLIC, Request(1.0, None, 1e-6)))
    levels = steps_up(wide)
    assert levels[-1] == narrow[-1]
    assert levels[0] > narrow[0]
    with pytest.raises(CalibrationError):
        steps_up(at_step(wide, levels[0] // 2))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_cap_by_epsilon_is_the_highest_level_that_has_it(epsilon: float) -> None:
    level = cap_nano(asked(PUBLIC, Request(None, epsilon, 1e-6)))
    conversion = CONVERSIONS["gaussian"]
    assert conversion.epsilon(1e-6, level / NANO) <= epsilon
    assert conversion.epsilon(1e-6, (level + 1) / NANO) > epsilon * (1.0 - 1e-11)


def test_a_cap_by_rho_is_that_rho_and_needs_a_level() -> None:
    assert cap_nano(asked(PUBLIC, Request(0.5, None, 1e-6))) == NANO // 2
    with pytest.raises(CalibrationError):
        cap_nano(asked(PUBLIC, Request(None, None, 1e-6)))
    with pytest.raises(CalibrationError, match="ask for more max_epsilon"):
        cap_nano(asked(PUBLIC, Request(None, 1e-6, 1e-6)))


def test_a_window_is_the_own_one_if_it_holds_the_cap() -> None:
    own = Window(1_000, NANO, 1e-7)
    assert window_of(own, 1_000, 1e-6) is own
    assert window_of(own, NANO, 1e-6) is own
    for cap in (999, NANO + 1):
        assert window_of(own, cap, 1e-6).delta == 1e-6


def test_windows_have_tops_at_powers_of_sixteen_and_sixteen_doublings() -> None:
    random = np.random.default_rng(2)
    tops = {16**exponent * NANO for exponent in range(4)} | {math.ceil(NANO / 16**exponent) for exponent in range(9)}
    caps = {int(cap) for cap in 2.0 ** random.uniform(0.0, 40.0, 60)} | tops | {top + 1 for top in tops}
    for cap in sorted(caps - {16**3 * NANO + 1}):
        window = window_of(None, cap, 1e-6)
        assert window.high in tops
        assert cap <= window.high < max(16.001 * cap, 16)
        assert window.low == max(1, math.ceil(Fraction(window.high, 2**16)))
        assert len(grid(window)) <= 65 < MOST_LEVELS


def test_private_keys_take_the_levels_of_their_window() -> None:
    window = window_of(None, NANO // 2, 1e-6)
    private = Frame(
        PUBLIC.rows, PUBLIC.rows_sql, keys=PUBLIC.keys, public_keys=None, bounding=PUBLIC.bounding, window=window
    )
    levels = steps_up(asked(private, Request(0.5, None, 1e-6)))
    assert levels == tuple(level for level in grid(window) if level <= NANO // 2)
    with pytest.raises(CalibrationError, match="ask for more max_rho"):
        steps_up(asked(private, Request(window.low / NANO / 2, None, 1e-6)))
