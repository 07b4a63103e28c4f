"""The sum that is noised against exact arithmetic, and its sensitivity against brute force over all neighbours."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import toeplitz

from dpsql.errors import CalibrationError, ReleaseError
from dpsql.noise.running_totals import (
    FRACTION_BITS,
    MOST_BUCKETS,
    MOST_SHIFT,
    FractionalSum,
    best_power,
    totals_error,
)

POWERS = range(9)
ONE = 1 << FRACTION_BITS
FEW = st.builds(FractionalSum, st.integers(1, 9), st.sampled_from(POWERS))


def exact_coefficients(total: FractionalSum) -> list[Fraction]:
    power, coefficients = Fraction(total.sixteenths, 16), [Fraction(1)]
    for k in range(1, total.length):
        coefficients.append(coefficients[-1] * (k - 1 + power) / k)
    return coefficients


def column(total: FractionalSum) -> list[int]:
    """First column of R in 2**-19, by what `transform` makes of a first bucket of 1."""
    first = np.eye(1, total.length, dtype=np.int64)[0]
    return [int(entry) for entry in total.transform(first, FRACTION_BITS)]


def matrix(total: FractionalSum) -> NDArray[np.float64]:
    coefficients = np.array(column(total)) / ONE
    return np.asarray(toeplitz(coefficients, np.zeros(total.length)), dtype=np.float64)


def transformed(total: FractionalSum, exact: list[int], shift: int) -> list[int]:
    """The definition, in integers of any size."""
    r = [round_half_up(c * ONE) for c in exact_coefficients(total)]
    sums = [sum(r[i - j] * exact[j] for j in range(i + 1)) for i in range(total.length)]
    return [round_half_up(Fraction(one << shift, ONE)) for one in sums]


def round_half_up(number: Fraction) -> int:
    return math.floor(number + Fraction(1, 2))


def prefix_squares(coefficients: NDArray[np.int64]) -> list[int]:
    """Squared norm of the sum of the first m columns, in 4**-19, for every m from 0."""
    dense = toeplitz(coefficients, np.zeros_like(coefficients)).astype(object)
    return [sum(entry**2 for entry in dense[:, :m].sum(axis=1)) for m in range(len(coefficients) + 1)]


@pytest.mark.parametrize("sixteenths", POWERS)
def test_coefficients_are_the_nearest_integers_and_never_rise(sixteenths: int) -> None:
    total = FractionalSum(300, sixteenths)
    assert column(total) == [round_half_up(c * ONE) for c in exact_coefficients(total)]
    longest = column(FractionalSum(MOST_BUCKETS, sixteenths))
    assert longest[:300] == column(total)
    assert longest[0] == ONE
    assert longest == sorted(longest, reverse=True)
    assert longest[-1] > 0 or sixteenths == 0


def test_the_square_root_is_binomial() -> None:
    coefficients = exact_coefficients(FractionalSum(200))
    assert coefficients == [Fraction(math.comb(2 * k, k), 4**k) for k in range(200)]


@pytest.mark.parametrize(("sixteenths", "power"), [(8, 2), (4, 4), (2, 8), (1, 16)])
def test_its_power_is_the_running_total(sixteenths: int, power: int) -> None:
    repeated = np.linalg.matrix_power(matrix(FractionalSum(365, sixteenths)), power)
    assert np.abs(repeated - np.tri(365)).max() < 2e-5 * power


@given(FEW, st.data(), st.integers(0, 21))
def test_transform_is_exact(total: FractionalSum, data: st.DataObject, shift: int) -> None:
    largest = total.clamp(shift)
    entries = st.sampled_from([-largest, largest, 0, 1, -1, 2**31, -(2**31) - 1]) | st.integers(-largest, largest)
    exact = data.draw(st.lists(entries, min_size=total.length, max_size=total.length))
    exact = [max(-largest, min(entry, largest)) for entry in exact]
    assert total.transform(np.array(exact, dtype=np.int64), shift).tolist() == transformed(total, exact, shift)


@pytest.mark.parametrize("shift", [0, 1, 18, 19, 20, MOST_SHIFT])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("length", [1, 1000])
def test_the_largest_entries_fit(length: int, sign: int, shift: int) -> None:
    total = FractionalSum(length)
    largest = total.clamp(shift)
    last = int(total.transform(np.full(length, sign * largest), shift)[-1])
    assert last == round_half_up(Fraction(sign * largest * sum(column(total)) << shift, ONE))
    assert 2**61 - 2 ** (shift + 8) < abs(last) < 2**61
    assert (largest + 1) * sum(column(total)) << shift >= (2**61 - 1) * ONE


@pytest.mark.parametrize("length", [512, 513, 3218, 3766, MOST_BUCKETS])
@pytest.mark.parametrize("shift", [0, 7])
def test_sums_of_long_rows_fit_a_double(length: int, shift: int) -> None:
    """Rows at both clamps, rows with the largest lower parts, and a row of any entries: to the last bit."""
    total = FractionalSum(length)
    largest, low = total.clamp(shift), (1 << 34) - 1
    chance = np.random.default_rng(length)
    rows = chance.integers(-largest, largest, (25, length))
    rows[0], rows[1], rows[2] = (largest & ~low) - 1, -(low + 2), low >> 1
    # at the clamp, with odd sums of upper parts in some of them
    rows[3:13], rows[13:23] = -largest, largest
    for row in range(3, 23):
        rows[row, chance.integers(0, length)] += (1 if row < 13 else -1) << 27
    r = column(total)
    for exact, made in zip(rows, total.transform(rows, shift), strict=True):
        for i in (length - 1, length // 2, 1):
            one = sum(c * int(entry) for c, entry in zip(r, exact[i::-1], strict=False))
            assert made[i] == round_half_up(Fraction(one << shift, ONE))


@pytest.mark.parametrize("beyond", [2**63 - 1, -(2**63), 2**62])
@pytest.mark.parametrize("shift", [0, 19, MOST_SHIFT])
def test_entries_beyond_are_cut(beyond: int, shift: int) -> None:
    total = FractionalSum(5)
    edge = total.clamp(shift) if beyond > 0 else -total.clamp(shift)
    cut = total.transform(np.array([3, beyond, -7, beyond, 0]), shift)
    assert cut.tolist() == transformed(total, [3, edge, -7, edge, 0], shift)


def test_rows_are_independent_sequences() -> None:
    total, exact = FractionalSum(6), np.arange(24).reshape(2, 2, 6) * 10**9
    rows = total.transform(exact, 5)
    assert rows.shape == (2, 2, 6)
    assert rows[1, 0].tolist() == total.transform(exact[1, 0], 5).tolist()
    assert total.transform(np.zeros((0, 6), dtype=np.int64), 5).shape == (0, 6)
    assert np.allclose(total.totals(rows.astype(np.float64))[1, 0], total.totals(rows[1, 0].astype(np.float64)))


@pytest.mark.parametrize("sixteenths", [0, 1, 5, 8])
@pytest.mark.parametrize("length", range(1, 6))
def test_sensitivity_is_attained_by_the_worst_neighbours(length: int, sixteenths: int) -> None:
    """All signs and supports, entries of 0 and 1 in size: the norm is convex, so those between are no worse."""
    total = FractionalSum(length, sixteenths)
    moves = np.array(list(itertools.product([-1, 0, 1], repeat=length)))
    norms = np.linalg.norm(moves @ matrix(total).T, axis=1)
    for most in range(1, length + 2):
        worst = norms[np.count_nonzero(moves, axis=1) <= most].max()
        assert worst <= total.sensitivity(most) < worst * (1 + 1e-11)


@pytest.mark.parametrize(("length", "sequences"), [(1, 5), (2, 5), (3, 4), (4, 3), (6, 2)])
@pytest.mark.parametrize("sixteenths", [0, 1, 5, 8])
def test_sensitivity_over_sequences_is_attained(length: int, sequences: int, sixteenths: int) -> None:
    total = FractionalSum(length, sixteenths)
    moves = np.array(list(itertools.product([0, 1], repeat=length * sequences)))
    norms = np.linalg.norm(moves @ np.kron(np.eye(sequences), matrix(total)).T, axis=1)
    for most in range(1, length * sequences + 2):
        worst = norms[moves.sum(axis=1) <= most].max()
        assert worst <= total.sensitivity(most, sequences) < worst * (1 + 1e-11)


@pytest.mark.parametrize(("length", "sixteenths"), [(7, 8), (12, 8), (30, 8), (30, 3), (30, 0)])
def test_no_split_over_sequences_is_worse(length: int, sixteenths: int) -> None:
    total = FractionalSum(length, sixteenths)
    squares = prefix_squares(np.array(column(total)))
    worst = [0] * (3 * length + 1)
    for sequences in range(1, 6):
        worst = [
            max(worst[most - part] + squares[part] for part in range(min(most, length) + 1))
            for most in range(3 * length + 1)
        ]
        for most in range(1, 3 * length + 1):
            exact = math.sqrt(worst[most]) / ONE
            assert exact <= total.sensitivity(most, sequences) < exact * (1 + 1e-11)


def test_filling_one_sequence_after_the_other_is_too_little() -> None:
    total = FractionalSum(12)
    greedy = math.hypot(total.sensitivity(12), total.sensitivity(6))
    assert greedy < 0.98 * total.sensitivity(18, 2)


@pytest.mark.parametrize("sixteenths", POWERS)
def test_further_buckets_add_more_and_then_less(sixteenths: int) -> None:
    """Lemma 2 of the proof: for every length that is allowed, in integers."""
    sums = np.concatenate([[0], np.cumsum(column(FractionalSum(MOST_BUCKETS, sixteenths)))])
    before, added_before = np.zeros(MOST_BUCKETS, dtype=np.int64), np.zeros(MOST_BUCKETS, dtype=np.int64)
    falls = np.zeros(MOST_BUCKETS, dtype=np.bool_)
    for most in range(1, MOST_BUCKETS + 1):
        entries = sums[1:].copy()
        entries[most:] -= sums[1 : MOST_BUCKETS + 1 - most]
        # the squared norm for each length, of which those from `most` on are used
        squares = np.cumsum(entries * entries)
        added = squares - before
        assert not (falls & (added > added_before))[most - 1 :].any()
        falls |= added < added_before
        falls[: most - 1] = False
        before, added_before = squares, added
    assert 0 < squares[-1] < 2**62


@pytest.mark.parametrize("most", [2, 7, 30])
def test_roots_of_one_bucket_and_the_last_buckets_are_too_little(most: int) -> None:
    """Planted faults: the first buckets together move more than independent ones, and more than the last."""
    total, first, last = FractionalSum(365), np.zeros(365, dtype=np.int64), np.zeros(365, dtype=np.int64)
    first[:most] = last[-most:] = 1
    moved, moved_last = (np.linalg.norm(total.transform(one, FRACTION_BITS)) / ONE for one in (first, last))
    assert moved <= total.sensitivity(most) < moved * (1 + 1e-11)
    assert math.sqrt(most) * total.sensitivity(1) < 0.95 * moved
    assert moved_last < 0.95 * moved
    assert total.sensitivity(most) < 0.95 * most * total.sensitivity(1)


@given(
    st.builds(FractionalSum, st.integers(1, 12), st.sampled_from([1, 4, 8])),
    st.integers(1, 3),
    st.integers(0, 22),
    st.integers(1, 40),
    st.integers(1, 14),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_no_neighbours_are_further_apart_rounding_and_cutting_included(
    total: FractionalSum, sequences: int, shift: int, radius: int, unit_groups: int, at_the_edge: bool, seed: int
) -> None:
    random, size = np.random.default_rng(seed), sequences * total.length
    exact = random.integers(-100, 100, (sequences, total.length))
    exact += total.clamp(shift) * random.integers(-1, 2, exact.shape) if at_the_edge else 0
    moves = np.zeros(size, dtype=np.int64)
    places = random.permutation(size)[:unit_groups] if seed % 2 else np.arange(size)[:unit_groups]
    moves[places] = random.choice([-radius, radius], len(places)) if seed % 3 else radius
    moved = total.transform(exact + moves.reshape(exact.shape), shift) - total.transform(exact, shift)
    assert np.count_nonzero(moved) <= total.touched(unit_groups, sequences)
    assert np.linalg.norm(moved.astype(np.float64)) <= total.sensitivity_steps(radius, unit_groups, shift, sequences)


def test_rounding_moves_neighbours_apart() -> None:
    """Without the allowance the declared sensitivity is exceeded; with it, it is nearly attained."""
    total, random = FractionalSum(40), np.random.default_rng(4)
    norms = []
    for _ in range(2000):
        exact = random.integers(-3, 4, 40)
        moved = exact + np.eye(1, 40, dtype=np.int64)[0]
        norms.append(float(np.linalg.norm(total.transform(moved, 0) - total.transform(exact, 0))))
    assert max(norms) > 1.5 * total.sensitivity(1)
    assert max(norms) <= total.sensitivity_steps(1, 1, 0)
    assert total.sensitivity_steps(1, 1, 18) > 2**18 * total.sensitivity(1) + 6.3
    assert total.sensitivity_steps(1, 1, 19) == pytest.approx(2**19 * total.sensitivity(1), rel=1e-11)
    assert FractionalSum(40, 0).sensitivity_steps(3, 4, 2) == pytest.approx(24.0)


@pytest.mark.parametrize("sixteenths", [0, 1, 5, 8])
@pytest.mark.parametrize("length", [1, 2, 365, 1500])
def test_values_and_totals_come_back(length: int, sixteenths: int) -> None:
    total = FractionalSum(length, sixteenths)
    exact = np.random.default_rng(length).integers(-(2**40), 2**40, (2, length))
    noisy = total.transform(exact, 8).astype(np.float64) / 256
    assert np.abs(total.values(noisy) - exact).max() < 2**40 * 1e-9
    sums = np.cumsum(exact, axis=1)
    assert np.abs(total.totals(noisy) - sums).max() < 2**40 * 1e-9
    sums[:, 7:] -= sums[:, :-7].copy()
    assert np.abs(total.totals(noisy, 7) - sums).max() < 2**40 * 1e-9


@pytest.mark.parametrize("sixteenths", [0, 1, 5, 8])
@pytest.mark.parametrize("span", [None, 1, 7, 59, 60, 1000])
def test_norms_are_those_of_dense_matrices(span: int | None, sixteenths: int) -> None:
    total = FractionalSum(60, sixteenths)
    inverse = np.linalg.inv(matrix(total))
    windows = np.tri(60) - (np.tri(60, k=-span) if span else 0.0)
    assert np.allclose(total.value_norms(), np.linalg.norm(inverse, axis=1), rtol=1e-12)
    assert np.allclose(total.total_norms(span), np.linalg.norm(windows @ inverse, axis=1), rtol=1e-11)
    weights = np.random.default_rng(2).normal(size=(2, 3, 60))
    assert np.allclose(total.subset_norms(weights), np.linalg.norm(weights @ inverse, axis=-1), rtol=1e-11)
    assert np.allclose(total.subset_norms(windows), total.total_norms(span), rtol=1e-11)


@pytest.mark.parametrize("span", [None, 1, 30, 400])
@pytest.mark.parametrize("most", [1, 7, 400])
def test_power_0_is_plain_noise(most: int, span: int | None) -> None:
    buckets = np.minimum(np.arange(1, 366), span or 365)
    expected = math.sqrt(min(most, 365) * buckets.mean())
    assert totals_error(FractionalSum(365, 0), most, span) == pytest.approx(expected)


def test_a_year_of_running_totals() -> None:
    """The figures of docs/proofs/running-totals.md."""
    plain = {most: totals_error(FractionalSum(365, 0), most) for most in (1, 7)}
    ratios = {most: totals_error(FractionalSum(365), most) / plain[most] for most in plain}
    assert ratios[1] == pytest.approx(0.2056, abs=5e-5)
    assert ratios[7] == pytest.approx(0.4682, abs=5e-5)
    best = best_power(365, 7)
    assert best.sixteenths == 6
    assert totals_error(best, 7) / plain[7] == pytest.approx(0.4366, abs=5e-5)


@pytest.mark.parametrize(("most", "span"), [(1, None), (7, None), (50, None), (1, 7), (7, 7), (3, 30)])
def test_the_best_power_is_at_least_as_good_as_both_ends(most: int, span: int | None) -> None:
    best = totals_error(best_power(100, most, span), most, span)
    assert best <= min(totals_error(FractionalSum(100, sixteenths), most, span) for sixteenths in (0, 8))


@pytest.mark.parametrize(("length", "sixteenths"), [(0, 8), (-1, 8), (MOST_BUCKETS + 1, 8), (5, -1), (5, 9)])
def test_wrong_shapes_are_refused(length: int, sixteenths: int) -> None:
    with pytest.raises(CalibrationError):
        FractionalSum(length, sixteenths)


def test_wrong_arguments_are_refused() -> None:
    total = FractionalSum(4)
    for shift in (-1, MOST_SHIFT + 1):
        with pytest.raises(CalibrationError):
            total.transform(np.zeros(4, dtype=np.int64), shift)
        with pytest.raises(CalibrationError):
            total.sensitivity_steps(1, 1, shift)
    for exact in (
        np.zeros(5, dtype=np.int64),
        np.zeros(4),
        np.zeros((4, 1), dtype=np.int64),
        np.int64(3) * np.ones(()),
    ):
        with pytest.raises(ReleaseError):
            total.transform(exact, 3)  # type: ignore[arg-type]
    for unit_groups, sequences in ((0, 1), (1, 0), (10**6 + 1, 1)):
        with pytest.raises(CalibrationError):
            total.sensitivity(unit_groups, sequences)
    with pytest.raises(CalibrationError):
        total.totals(np.zeros(4), 0)


@pytest.mark.parametrize("sixteenths", [0, 5, 8])
def test_the_layout_of_an_array_in_memory_changes_nothing(sixteenths: int) -> None:
    """Rows of a transposed array are copies where they are reshaped; what was written to them was lost once."""
    total = FractionalSum(4, sixteenths)
    exact = np.arange(60, dtype=np.int64).reshape(5, 3, 4)
    expected = total.transform(exact, 19)
    layouts = {
        "transposed": np.ascontiguousarray(np.moveaxis(exact, -1, 0)),
        "middle": np.ascontiguousarray(np.moveaxis(exact, -1, 1)),
    }
    assert (total.transform(np.moveaxis(layouts["transposed"], 0, -1), 19) == expected).all()
    assert (total.transform(np.moveaxis(layouts["middle"], 1, -1), 19) == expected).all()
    assert (total.transform(exact[:, ::-1][:, ::-1], 19) == expected).all()
    assert (total.transform(np.asfortranarray(exact), 19) == expected).all()
    assert (total.transform(exact[..., ::-1].copy()[..., ::-1], 19) == expected).all()
