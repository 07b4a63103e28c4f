from __future__ import annotations

import decimal
import math
import time

import mpmath
import numpy as np
import pytest

from dpsql.errors import CalibrationError, EntropyError, ReleaseError
from dpsql.noise.entropy import SystemEntropy
from dpsql.noise.rounded_gaussian import RoundedGaussian, rounded_normal_table
from tests.deterministic_entropy import SeededEntropy

SCALES = (1e-6, 0.01, 0.3, 1.0, 2.5, 3.0, 17.3, math.nextafter(32.0, 0.0))


@pytest.mark.parametrize("sigma_steps", SCALES)
def test_table_is_the_rounded_normal_law(sigma_steps: float) -> None:
    thresholds = rounded_normal_table(sigma_steps).thresholds
    largest, odd = divmod(len(thresholds), 2)
    assert odd == 0
    with mpmath.workdps(60):
        scale = mpmath.mpf(sigma_steps)
        distance = mpmath.mpf(0)
        previous, previous_exact = 0, mpmath.mpf(0)
        for position, threshold in enumerate(thresholds):
            exact = mpmath.ncdf((position - largest + mpmath.mpf(1) / 2) / scale)
            assert abs(threshold - 2**128 * exact) <= 0.51
            # The probabilities themselves, to better than 2**-120.
            assert abs(mpmath.mpf(threshold - previous) / 2**128 - (exact - previous_exact)) < mpmath.mpf(2) ** -120
            distance += abs(mpmath.mpf(threshold) / 2**128 - exact)
            previous, previous_exact = threshold, exact
        tails = 2 * mpmath.ncdf(-(largest + mpmath.mpf(1) / 2) / scale)
        assert tails < mpmath.mpf(2) ** -127
        assert distance + tails <= RoundedGaussian.total_variation


def test_three_percent_off_is_not_the_law() -> None:
    right, wrong = rounded_normal_table(3.0).thresholds, rounded_normal_table(2.91).thresholds
    middle_right, middle_wrong = right[len(right) // 2], wrong[len(wrong) // 2]
    assert abs(middle_right - middle_wrong) > 1 << 119


@pytest.mark.parametrize("sigma_steps", SCALES)
def test_table_is_exactly_symmetric(sigma_steps: float) -> None:
    thresholds = rounded_normal_table(sigma_steps).thresholds
    assert [2**128 - threshold for threshold in reversed(thresholds)] == list(thresholds)


def test_table_does_not_depend_on_the_callers_decimal_context() -> None:
    expected = rounded_normal_table(2.75).thresholds
    rounded_normal_table.cache_clear()
    with decimal.localcontext() as context:
        context.prec = 4
        assert rounded_normal_table(2.75).thresholds == expected


def test_tables_are_cached() -> None:
    assert rounded_normal_table(3.25) is rounded_normal_table(3.25)


@pytest.mark.long
def test_the_largest_table_is_built_in_a_fifth_of_a_second() -> None:
    seconds = []
    for _ in range(5):
        rounded_normal_table.cache_clear()
        start = time.process_time()
        rounded_normal_table(31.9)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.2


@pytest.mark.parametrize("sigma_steps", [0.0, -1.0, math.nan, math.inf, -math.inf, 2.0**45 * (1 + 2**-52)])
def test_a_scale_without_a_law_is_refused(sigma_steps: float) -> None:
    with pytest.raises(CalibrationError):
        RoundedGaussian(sigma_steps)


@pytest.mark.parametrize("sigma_steps", [1e-300, 3.0, 31.9, 32.0, 1e7, 2.0**45])
@pytest.mark.parametrize("count", [0, 1, 31, 40_000])
def test_draws_have_the_shape_and_type_promised(sigma_steps: float, count: int) -> None:
    drawn = RoundedGaussian(sigma_steps).draw(count, SystemEntropy())
    assert drawn.shape == (count,)
    assert drawn.dtype == np.int64
    assert np.all(np.abs(drawn) <= 13.6 * sigma_steps)


def test_no_noise_is_only_what_the_scale_asks_for() -> None:
    assert not RoundedGaussian(1e-300).draw(1000, SystemEntropy()).any()
    assert RoundedGaussian(1.0).draw(1000, SystemEntropy()).any()


@pytest.mark.parametrize("sigma_steps", [30.0, 1e9])
def test_draws_of_the_system_never_repeat(sigma_steps: float) -> None:
    noise, entropy = RoundedGaussian(sigma_steps), SystemEntropy()
    assert noise.draw(200, entropy).tolist() != noise.draw(200, entropy).tolist()


def test_a_block_is_the_same_law_in_any_split() -> None:
    whole = RoundedGaussian(3.0).draw(100_000, SeededEntropy(3))
    entropy = SeededEntropy(3)
    parts = [RoundedGaussian(3.0).draw(count, entropy) for count in (1, 0, 32_768, 67_231)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ReleaseError):
        RoundedGaussian(3.0).draw(-1, SystemEntropy())


@pytest.mark.parametrize("sigma_steps", [3.0, 1e7])
def test_failing_entropy_gives_no_draw(monkeypatch: pytest.MonkeyPatch, sigma_steps: float) -> None:
    def fails(_: int) -> bytes:
        raise OSError

    monkeypatch.setattr("os.urandom", fails)
    with pytest.raises(EntropyError):
        RoundedGaussian(sigma_steps).draw(5, SystemEntropy())


def test_a_scale_is_frozen() -> None:
    with pytest.raises(AttributeError):
        RoundedGaussian(3.0).sigma_steps = 0.1  # type: ignore[misc]
