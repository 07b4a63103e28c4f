"""Quantiles of noisy histograms, and intervals that cover them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpsql.mechanisms.running_totals import FractionalSum

Floats = npt.NDArray[np.float64]


def quantile_value(cells: Floats, share: float, bounds: tuple[float, float]) -> Floats:
    """Where the noisy number of rows below reaches its share, in a straight line within a cell; NaN without rows.

    *Shapes*: ``cells`` (keys, cells), the result (keys,).
    """
    # rows below a value cannot become fewer as it rises, and are not below 0
    below = np.maximum(np.maximum.accumulate(np.cumsum(cells, axis=1), axis=1), 0.0)
    rows = np.cumsum(cells, axis=1)[:, -1]
    wanted = share * rows
    place = np.argmax(below >= wanted[:, None], axis=1)
    keys = np.arange(len(cells))
    before = np.where(place > 0, below[keys, place - 1], 0.0)
    step = below[keys, place] - before
    within = np.clip((wanted - before) / np.where(step > 0.0, step, 1.0), 0.0, 1.0)
    return np.where(rows > 0.0, _edge(place + within, cells.shape[1], bounds), np.nan)


def quantile_interval(
    cells: Floats, share: float, bounds: tuple[float, float], noise: float, z: float
) -> tuple[Floats, Floats]:
    """An interval that covers the cell of the exact quantile as often as z says of a normal variable's size.

    *Guarantee*: let D_j be the rows up to cell j less the share of all, and the quantile's cell be the first with
    D_j >= 0. It is left out only if the noisy D_j is more than z standard deviations below 0, though D_j >= 0, or the
    noisy D_(j-1) more than z above 0, though D_(j-1) < 0: each with half the probability that z leaves. What is shown
    is the least interval that holds all cells that are not left out, and the bounds where there are none.
    *Args*: ``noise``, standard deviation of what was noised. *Shapes*: (keys, cells) to (keys,) twice.
    """
    count = cells.shape[1]
    weights = np.tril(np.ones((count, count))) - share
    doubt = z * noise * FractionalSum(count).subset_norms(weights)
    ahead = np.cumsum(cells, axis=1) - share * cells.sum(axis=1, keepdims=True)
    possible = ahead + doubt >= 0.0
    possible[:, 1:] &= (ahead - doubt)[:, :-1] <= 0.0
    some = possible.any(axis=1)
    first = np.where(some, np.argmax(possible, axis=1), 0)
    last = np.where(some, count - 1 - np.argmax(possible[:, ::-1], axis=1), count - 1)
    return _edge(first, count, bounds), _edge(last + 1, count, bounds)


def _edge(place: npt.NDArray[np.generic], count: int, bounds: tuple[float, float]) -> Floats:
    low, high = bounds
    return np.asarray(low + (high - low) * (place / count), dtype=np.float64)  # type: ignore[operator]
