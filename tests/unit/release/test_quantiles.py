"""What is noised of a histogram moves by `unit_l2` at most; quantiles and their intervals are what they state."""

from __future__ import annotations

import numpy as np
import pytest

from dpsql.mechanism.calibrate import level_of
from dpsql.mechanism.histogram import unit_l2
from dpsql.model.cells import Cells
from dpsql.model.frame import Statistic
from dpsql.noise.running_totals import FractionalSum
from dpsql.release.estimates import quantile_interval, quantile_value
from tests.histograms import independent

CAP = 5
EQUAL = Cells(0.0, 256.0, finer=False)
CELLS, EDGES = EQUAL.count, EQUAL.edges
STATISTIC = Statistic("histogram", 0, CAP * 256, -8, limit=CAP, histogram=EQUAL)
SHIFT = STATISTIC.lattice_exponent - STATISTIC.noise_exponent


def moved(before: np.ndarray, unit: np.ndarray) -> float:
    """How far one unit moves what is noised, in rows."""
    sums = FractionalSum(CELLS)
    difference = sums.transform(before + unit, SHIFT) - sums.transform(before, SHIFT)
    return float(np.linalg.norm(difference)) * 2.0**STATISTIC.noise_exponent


def test_no_unit_moves_more_than_stated_and_one_attains_it() -> None:
    chance = np.random.default_rng(1)
    bound, most = unit_l2(STATISTIC), 0.0
    for _ in range(300):
        before = chance.integers(0, 10**6, CELLS)
        rows = chance.multinomial(CAP * 256, chance.dirichlet(np.full(CELLS, 0.02)))
        most = max(most, moved(before, rows))
    first = np.zeros(CELLS, dtype=np.int64)
    first[0] = CAP * 256
    assert most <= bound
    assert 0.999 * bound <= moved(np.zeros(CELLS, dtype=np.int64), first) <= bound
    assert bound < CAP * 1.7, "the square root of the totals has columns that are hardly longer than 1"
    # the planted fault: one row more
    assert moved(np.zeros(CELLS, dtype=np.int64), first + 256 * np.eye(1, CELLS, dtype=np.int64)[0]) > bound


def test_noise_is_for_the_whole_vector_and_not_for_each_cell() -> None:
    level = level_of(STATISTIC, 10**9, independent(4))
    assert level.sigma == pytest.approx(unit_l2(STATISTIC) * 2.0 / np.sqrt(2.0), rel=1e-9)


def test_a_quantile_is_where_its_share_of_rows_is_reached() -> None:
    cells = np.zeros((3, CELLS))
    cells[0, 10] = 4.0
    cells[1, [0, 255]] = 1.0
    assert quantile_value(cells, 0.25, EDGES)[:2].tolist() == [10.25, 0.5]
    assert quantile_value(cells, 0.75, EDGES)[:2].tolist() == [10.75, 255.5]
    assert quantile_value(cells, 0.5, np.linspace(-1.0, 1.0, CELLS + 1).tolist())[0] == pytest.approx(
        -1 + 2 * 10.5 / 256
    )
    assert np.isnan(quantile_value(cells, 0.5, EDGES)[2])
    assert np.isnan(quantile_value(-cells, 0.5, EDGES)).all()


def _by_brute_force(cells: list[float], edges: tuple[float, ...], place: int, share: float) -> float:
    """Where the share is reached in a cell whose density is a straight line, by adding up a million thin slices."""
    widths = np.diff(edges)
    density, middles = np.array(cells) / widths, np.array(edges[:-1]) + widths / 2
    left, right = np.diff(density)[place - 1 : place + 1] / np.diff(middles)[place - 1 : place + 1]
    slope = 0.0 if left * right <= 0 else min(left, right, key=abs)
    at = np.linspace(edges[place], edges[place + 1], 10**6)
    rows = np.cumsum(density[place] + slope * (at - middles[place])) * (at[1] - at[0])
    return float(at[np.searchsorted(rows, share * sum(cells) - sum(cells[:place]))])


@pytest.mark.parametrize("share", [0.11, 0.25, 0.39])
@pytest.mark.parametrize("cells", [[1.0, 3.0, 6.0], [8.0, 4.0, 2.0], [3.0, 4.0, 3.0]], ids=["rises", "falls", "turns"])
def test_within_a_cell_rows_are_as_dense_as_a_straight_line_says(cells: list[float], share: float) -> None:
    edges, wanted = (0.0, 1.0, 3.0, 4.5), (cells[0] + share * cells[1]) / sum(cells)
    (found,) = quantile_value(np.array([cells]), wanted, edges)
    assert found == pytest.approx(_by_brute_force(cells, edges, 1, wanted), abs=1e-4)
    # the planted fault: the same number of rows in every part of a cell
    level = edges[1] + share * 2.0
    assert (found == pytest.approx(level, abs=1e-9)) == (cells == [3.0, 4.0, 3.0])


def test_noise_never_leaves_the_bounds_or_turns_quantiles_round() -> None:
    cells = np.random.default_rng(2).normal(0.5, 5.0, (500, CELLS))
    shown = np.stack([quantile_value(cells, share, EDGES) for share in (0.1, 0.5, 0.9)])
    has_rows = cells.sum(axis=1) > 0
    assert np.isfinite(shown[:, has_rows]).all()
    assert ((shown[:, has_rows] >= 0) & (shown[:, has_rows] <= 256)).all()
    assert (np.diff(shown[:, has_rows], axis=0) >= 0).all()


def test_the_interval_is_the_cell_without_noise_and_all_cells_with_too_much() -> None:
    cells = np.zeros((1, CELLS))
    cells[0, [3, 10, 40]] = 1.0
    for share, cell in ((0.2, 3), (0.5, 10), (0.9, 40)):
        low, high = quantile_interval(cells, share, EDGES, 1e-9, 1.96)
        assert low[0] <= cell
        assert cell + 1 <= high[0] <= cell + 2
    assert [end[0] for end in quantile_interval(cells, 0.5, EDGES, 1e3, 1.96)] == [0.0, 256.0]
