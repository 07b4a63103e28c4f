"""The grid of free levels: few levels, none above what is asked, and less than one step below it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dpsql.mechanism.histogram import MOST_DRAWN
from dpsql.mechanism.window import FREE_LEVELS, free_level, is_free_level
from dpsql.state.policy import MAX_RHO_NANO


@given(st.integers(1, MAX_RHO_NANO))
def test_it_is_not_above_and_less_than_one_step_below(rho_nano: int) -> None:
    found = free_level(rho_nano)
    assert found <= rho_nano
    assert is_free_level(found)
    assert not any(found < level <= rho_nano for level in FREE_LEVELS)


def test_the_levels_that_people_ask_for_are_served_as_they_are() -> None:
    for power in range(3, 11):
        for digits in (10, 12, 15, 18, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90):
            assert is_free_level(digits * 10**power // 10)


def test_a_histogram_that_rises_once_in_each_step_is_drawn_seldom_enough() -> None:
    """docs/proofs/auto.md, Theorem 2 (e)."""
    assert sum(level <= 2**33 for level in FREE_LEVELS) == 106 < MOST_DRAWN
