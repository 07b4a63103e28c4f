"""Keys: what rows are grouped by, which of them a public list makes, and sequences of them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """What rows are grouped by: normalised SQL over the source's columns, and its DuckDB type."""

    sql: str
    type: str


@dataclass(frozen=True, slots=True)
class PublicKeys:
    """The columns (table, column) whose public lists make the keys, with lengths, a digest, and where NULL is listed.

    Each list has a digest of its own, by which the books know it.

    Keys are all combinations, in the order of their values, the last column's changing fastest.
    """

    columns: tuple[tuple[str, str], ...]
    lengths: tuple[int, ...]
    digest: str
    with_null: tuple[bool, ...]
    list_digests: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many keys there are."""
        return math.prod(self.lengths)


@dataclass(frozen=True, slots=True)
class Ordering:
    """Public keys along one of them: a sequence for each combination of the others.

    Attributes:
        axis: which of the frame's keys.
        lengths: number of values of each key.
        descending: whether sequences begin with the largest value.
        with_null: whether the last value is NULL, which comes last in both directions.

    """

    axis: int
    lengths: tuple[int, ...]
    descending: bool
    with_null: bool = False

    @property
    def length(self) -> int:
        """Keys in a sequence."""
        return self.lengths[self.axis]

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return math.prod(self.lengths) // self.length


Places = tuple[tuple[int, ...], ...]
"""Of each group, the places of its values in a public list."""
