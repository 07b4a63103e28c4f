"""The cells of quantiles: they cover the bounds, are no wider than a part of them, and fine where values are small."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dpsql.model.cells import Cells
from dpsql.plan.aggregates.lattice import representable

PARTS, PARTS_ELSEWHERE = 64, 256
NUMBERS = st.floats(-1e12, 1e12, allow_nan=False)


@given(NUMBERS, NUMBERS)
def test_cells_cover_the_bounds_and_are_at_most_a_part_of_them(low: float, high: float) -> None:
    assume(low < high and representable((low, high)))
    cells = Cells.of(low, high)
    widths = np.diff(cells.edges)
    assert (cells.edges[0], cells.edges[-1]) == (low, high)
    assert (widths > 0.0).all()
    assert widths.max() <= (high - low) / PARTS * (1 + 1e-9) + 2 * np.spacing(max(abs(low), abs(high)))
    assert len(widths) == cells.count <= max(PARTS + 1 + 2 * 224, PARTS_ELSEWHERE)


@pytest.mark.parametrize("bounds", [(0.0, 1e6), (-1e6, 1e6), (-3.0, 1e6), (-1e6, 0.0), (100.0, 1e6)])
def test_next_to_0_cells_are_narrow_beside_their_distance(bounds: tuple[float, float]) -> None:
    cells = Cells.of(*bounds)
    edges, part = np.array(cells.edges), (bounds[1] - bounds[0]) / PARTS
    middle = min(max(0.0, bounds[0]), bounds[1])
    distance = np.minimum(np.abs(edges[:-1] - middle), np.abs(edges[1:] - middle))
    is_fine = (distance >= 2.0 * part * 2.0**-14) & (distance <= 0.5 * part)
    assert is_fine.any()
    assert (np.diff(edges)[is_fine] <= 0.05 * distance[is_fine]).all()


def test_far_from_0_cells_are_equal() -> None:
    assert Cells.of(1000.0, 1128.0).edges == tuple(1000.0 + 0.5 * j for j in range(PARTS_ELSEWHERE + 1))
