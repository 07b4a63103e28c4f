"""A mergeable Misra-Gries sketch of the presence counts: few counters, and a floor, for keys too many to group at once.

The counters are a histogram of at most ``size`` keys, the floor is what was subtracted on the way, and a unit moves
either some counters up by one, or some down by one and the floor up by one. This holds where every unit is in exactly
one of the tables that are absorbed, whole, and where the others' places do not depend on it (`bound.shards`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dpsql.bound.shards import SHARDS
from dpsql.errors import EngineError
from dpsql.state import to_arrow, to_numpy

Run = Callable[[str, dict[str, pa.Table]], pa.Table]
"""Runs SQL over in-memory tables."""

MOST_UNITS = 2**62 - 1
"""Counters are clamped here, so that two of them, or one with noise, fit 64 bits. The clamp, like all the rest of a
step, is monotone and moves no two counts further apart."""


@dataclass(frozen=True)
class Sketch:
    """Exact counters and floor on their way to the noise; its text shows nothing.

    A key's true count is at least its counter and at most counter + floor, and at most floor where it has none.

    Attributes:
        size: most counters; a public number.
        counters: columns key_0… and units (int64, at least 1), largest first; each key stands once.
        floor: what was subtracted from every key; at most the sum of all true counts / (size + 1).

    """

    size: int
    counters: pa.Table
    floor: int

    def __post_init__(self) -> None:
        if self.size < 1 or self.floor < 0 or self.counters.num_rows > self.size:
            raise ValueError("no sketch has less than one counter, more than its size, or a negative floor")
        if self.counters.column_names[-1:] != ["units"] or self.counters.schema.field("units").type != pa.int64():
            raise ValueError("counters are keys, then units as int64")

    def __repr__(self) -> str:
        return "Sketch(…)"


def absorb(sketch: Sketch, exact: pa.Table, run: Run) -> Sketch:
    """Add the exact counts of units that the sketch has not met; subtract once what keeps it within its size.

    *Guarantee*: with one unit more, in this step or in one before or after it, the result is the same but for +1 in
    some counters, or but for -1 in some counters and +1 in the floor. A table without rows changes nothing.
    *Source*: Lebeda and Tetek 2023 (merged Misra-Gries sketches). The counts are added and lose h, their
    (size + 1)-th largest; what is not above 0 is dropped. If some counts are larger by one, h is the same or larger
    by one, and what is left of a count moves by 0 or +1, or by 0 or -1; if some are smaller by one, the same the
    other way round, where a smaller h takes the one back from the floor.
    *Assumes*: every unit of ``exact`` is in it with all its keys and in no other step; keys are in one spelling
    (`bound.rows_sql`) and of a type that Arrow keeps, so that all engines tell the same keys apart.
    *Randomness*: none.

    Args:
        sketch: what was absorbed so far.
        exact: the sketch's key columns and units (distinct units, int64).
        run: runs SQL over in-memory tables (the sandbox).

    """
    names = _key_names(sketch.counters)
    keys = ", ".join(names)
    ties = "".join(f", {name} ASC NULLS LAST" for name in names)
    each = f"SELECT {keys}, least(units, {MOST_UNITS}) AS units FROM"
    largest = run(
        f"SELECT {keys}, CAST(least(sum(units), {MOST_UNITS}) AS BIGINT) AS units "
        # least() skips a NULL: a count that is none would be the largest
        f"FROM ({each} held UNION ALL {each} added WHERE units > 0) GROUP BY {keys} "
        f"ORDER BY units DESC NULLS LAST{ties} LIMIT {sketch.size + 1}",
        {"held": sketch.counters, "added": exact},
    )
    units = to_numpy(largest.column("units"))
    subtracted = int(units[sketch.size]) if len(units) > sketch.size else 0
    left = int(np.count_nonzero(units > subtracted))
    counters = largest.slice(0, left).set_column(len(names), "units", to_arrow(units[:left] - subtracted))
    return Sketch(sketch.size, counters, sketch.floor + subtracted)


def sketched(size: int, pieces: Iterable[pa.Table], run: Run) -> Sketch:
    """Return the sketch of a frame, from the rows of `sketch_sql`.

    An empty shard is absorbed like all others. So the time does not show how many shards have a unit.

    Args:
        size: most counters.
        pieces: columns shard (ascending over all pieces), key_0… and units; at least one piece, which may be empty.
            Where pieces end means nothing: a shard is absorbed when it is complete.
        run: runs SQL over in-memory tables (the sandbox).

    Raises:
        EngineError: there is no piece, or the shards are not in order; the message is constant.

    """
    remaining = iter(pieces)
    first = next(remaining, None)
    if first is None:
        raise EngineError("the engine returned no columns to sketch", withheld=False)
    counters = first.select(_key_names(first)).schema.append(pa.field("units", pa.int64()))
    sketch = Sketch(size, counters.empty_table(), 0)
    empty_shards = SHARDS
    for shard in _shards(itertools.chain([first], remaining)):
        sketch = absorb(sketch, shard, run)
        empty_shards -= 1
    for _ in range(empty_shards):
        sketch = absorb(sketch, first.drop_columns("shard").slice(0, 0), run)
    return sketch


def _shards(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The tables of whole shards, each from one piece or several."""
    parts: list[pa.Table] = []
    current = -1
    for piece in pieces:
        numbers = to_numpy(piece.column("shard")).astype(np.int64)
        steps = np.diff(numbers, prepend=current)
        if np.any(steps < 0):
            raise EngineError("the engine returned the shards of a sketch out of order", withheld=False)
        counts = piece.drop_columns("shard")
        edges: list[int] = np.unique([0, *np.flatnonzero(steps), len(numbers)]).tolist()
        for start, end in itertools.pairwise(edges):
            if steps[start] and parts:
                yield pa.concat_tables(parts)
                parts = []
            parts.append(counts.slice(start, end - start))
        current = int(numbers[-1]) if len(numbers) else current
    if parts:
        yield pa.concat_tables(parts)


def _key_names(table: pa.Table) -> Sequence[str]:
    return [name for name in table.column_names if name not in ("shard", "units")]
