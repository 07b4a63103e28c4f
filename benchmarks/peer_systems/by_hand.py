"""Bounds of a person by hand, in numpy, for systems that leave them to the caller."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


def read_pairs(rows: Path) -> tuple[Integers, Integers, Integers]:
    """Person, key and number of rows of each pair of the two that has rows."""
    columns = np.loadtxt(rows, delimiter=",", skiprows=1, usecols=(0, 1), dtype=np.int64)
    pairs, counts = np.unique(columns, axis=0, return_counts=True)
    return pairs[:, 0], pairs[:, 1], counts.astype(np.int64)


def bounded(pairs: tuple[Integers, Integers, Integers], max_groups: int, max_rows: int) -> tuple[Integers, Integers]:
    """Key and number of rows of the pairs that count: of each person some at random, with so many rows at most."""
    person, key, rows = pairs
    order = np.lexsort((np.random.default_rng().random(len(person)), person))
    first = np.searchsorted(person[order], person[order])
    kept = order[np.arange(len(order)) - first < max_groups]
    return key[kept], np.minimum(rows[kept], max_rows)
