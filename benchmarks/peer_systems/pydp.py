"""PyDP: its partition selection for the keys, its Count for each key that is kept, of rows that are bounded by hand."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from pydp.algorithms.laplacian import Count
from pydp.algorithms.partition_selection import create_partition_strategy

from benchmarks.peer_systems.by_hand import Integers, bounded, read_pairs
from benchmarks.peer_systems.exchange import PEOPLE, ROWS, Asked, Way, serve

STRATEGY = "gaussian"


def ways(rows: Path, asked: Asked) -> list[Way]:
    """Counts; no sums, because the amounts of a person would have to be bounded by hand too."""
    pairs = read_pairs(rows)
    note = "Gaussian partition selection takes half of epsilon, and Count half; a person is bounded by hand"
    most = {PEOPLE: 1, ROWS: asked.max_rows}
    return [
        Way(
            "selected keys", note, {question: partial(_released, pairs, asked, rows) for question, rows in most.items()}
        )
    ]


def _released(pairs: tuple[Integers, Integers, Integers], asked: Asked, max_rows: int) -> dict[int, float]:
    key, rows = bounded(pairs, asked.max_groups, max_rows)
    people = np.bincount(key, minlength=asked.public_keys)
    numbers = np.bincount(key, weights=rows, minlength=asked.public_keys).astype(int)
    selection = create_partition_strategy(STRATEGY, asked.epsilon / 2, asked.delta, asked.max_groups)
    shown: dict[int, float] = {}
    for each in np.flatnonzero(people).tolist():
        if selection.should_keep(int(people[each])):
            count = Count(asked.epsilon / 2, l0_sensitivity=asked.max_groups, linf_sensitivity=max_rows, dtype="int")
            shown[each] = count.quick_result([1] * int(numbers[each]))
    return shown


if __name__ == "__main__":
    serve("python-dp", ways)
