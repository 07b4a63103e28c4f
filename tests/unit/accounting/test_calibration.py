from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.accounting import calibration
from dpsql.errors import CalibrationError


@given(bound=st.floats(1e-100, 1e100), start=st.floats(1e-100, 1e100))
def test_both_searches_end_on_the_safe_side_of_any_bound(bound: float, start: float) -> None:
    above = calibration.smallest_safe(lambda x: x >= bound, start)
    assert bound <= above <= bound * (1 + 1e-13)
    below = calibration.largest_safe(lambda x: x <= bound, start)
    assert bound * (1 - 1e-13) <= below <= bound


def test_a_search_without_a_safe_number_raises() -> None:
    with pytest.raises(CalibrationError):
        calibration.smallest_safe(lambda _: False, 1.0)
    with pytest.raises(CalibrationError):
        calibration.largest_safe(lambda _: False, 1.0)


def test_a_search_where_all_is_safe_ends() -> None:
    assert calibration.smallest_safe(lambda _: True, 1.0) < 1e-300
    assert calibration.largest_safe(lambda _: True, 1.0) > 1e300


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, True, "1", None])
def test_no_number_that_is_not_one_passes(value: float) -> None:
    with pytest.raises(CalibrationError):
        calibration.require_finite("epsilon", value, least=0.0)
    with pytest.raises(CalibrationError):
        calibration.require_positive("sigma", value)
    with pytest.raises(CalibrationError):
        calibration.require_delta(value)
    with pytest.raises(CalibrationError):
        calibration.require_max_groups(value)


@pytest.mark.parametrize("value", [0, -3, 1.0, 2.5, 10**7])
def test_max_groups_is_a_whole_number_in_range(value: float) -> None:
    with pytest.raises(CalibrationError):
        calibration.require_max_groups(value)


@pytest.mark.parametrize("value", [0.0, 1.0, 1.5])
def test_delta_lies_strictly_inside_the_unit_interval(value: float) -> None:
    with pytest.raises(CalibrationError):
        calibration.require_delta(value)
