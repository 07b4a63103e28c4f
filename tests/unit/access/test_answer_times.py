"""Answers are shown at times that are known before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dpsql.access.limits import Limits


@given(first=st.floats(1e-3, 60), elapsed=st.floats(0, 1e6))
def test_a_time_is_the_first_of_the_doubling_ones_that_is_not_missed(first: float, elapsed: float) -> None:
    shown = Limits(first_answer_seconds=first).answer_time(elapsed)
    assert shown >= elapsed
    assert shown == first or shown / 2 < elapsed
    steps = shown / first
    assert steps == 2 ** (int(steps).bit_length() - 1)


@given(first=st.floats(1e-3, 60), elapsed=st.floats(0, 1e6))
def test_a_time_that_is_one_of_them_stays(first: float, elapsed: float) -> None:
    limits = Limits(first_answer_seconds=first)
    shown = limits.answer_time(elapsed)
    assert limits.answer_time(shown) == shown


def test_without_them_answers_are_shown_when_they_are_there() -> None:
    assert Limits(first_answer_seconds=0).answer_time(1.25) == 1.25
