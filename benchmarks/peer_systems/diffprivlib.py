"""diffprivlib: its histogram over a public list of keys, of rows that are bounded by hand."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from diffprivlib import tools

from benchmarks.peer_systems.by_hand import Integers, bounded, read_pairs
from benchmarks.peer_systems.exchange import PEOPLE, ROWS, Asked, Way, serve


def ways(rows: Path, asked: Asked) -> list[Way]:
    """Counts; no sums, because its histogram protects a row with a weight of 1."""
    pairs = read_pairs(rows)
    note = (
        f"no selection of keys: {asked.public_keys:,} public ones, all shown; a person is bounded by hand, and epsilon "
        "divided by the rows of a person, because the histogram protects one row"
    )
    most = {PEOPLE: 1, ROWS: asked.max_rows}
    return [
        Way("public keys", note, {question: partial(_released, pairs, asked, rows) for question, rows in most.items()})
    ]


def _released(pairs: tuple[Integers, Integers, Integers], asked: Asked, max_rows: int) -> dict[int, float]:
    key, rows = bounded(pairs, asked.max_groups, max_rows)
    numbers, _ = tools.histogram(
        np.repeat(key, rows),
        epsilon=asked.epsilon / (asked.max_groups * max_rows),
        bins=asked.public_keys,
        range=(0, asked.public_keys),
    )
    return dict(enumerate(numbers))


if __name__ == "__main__":
    serve("diffprivlib", ways)
