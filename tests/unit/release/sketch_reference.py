"""The sketch by plain Python, and every way that the tests state what it must do: on dictionaries, without SQL."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Key = Hashable
Keys = frozenset[Key]
Data = Mapping[int, Keys]
"""The keys of each unit."""


@dataclass(frozen=True)
class Plain:
    """A sketch as a set of (key, counter) and a floor."""

    counters: frozenset[tuple[Key, int]]
    floor: int

    def counts(self) -> dict[Key, int]:
        return dict(self.counters)


EMPTY = Plain(frozenset(), 0)
Step = Callable[[Plain, Plain], Plain]
"""Absorbs a batch (floor 0, any number of counters), or merges."""


def reference_step(size: int) -> Step:
    def step(held: Plain, added: Plain) -> Plain:
        total = Counter(held.counts())
        total.update(added.counts())
        subtracted = sorted(total.values(), reverse=True)[size] if len(total) > size else 0
        left = {key: count - subtracted for key, count in total.items() if count > subtracted}
        return Plain(frozenset(left.items()), held.floor + added.floor + subtracted)

    return step


def batch_of(units: Sequence[Keys]) -> Plain:
    return Plain(frozenset(Counter(itertools.chain.from_iterable(units)).items()), 0)


def by_shard(data: Data, shard_of: Callable[[int], int]) -> list[Plain]:
    """The batches, shard by shard; a shard without units has none."""
    shards: dict[int, list[Keys]] = {}
    for unit, keys in sorted(data.items()):
        shards.setdefault(shard_of(unit), []).append(keys)
    return [batch_of(units) for _, units in sorted(shards.items())]


def absorbed(batches: Sequence[Plain], step: Step) -> Plain:
    sketch = EMPTY
    for batch in batches:
        sketch = step(sketch, batch)
    return sketch


def without(data: Data, unit: int) -> Data:
    return {other: keys for other, keys in data.items() if other != unit}


def data_sets(units: int, keys: str) -> Iterator[dict[int, Keys]]:
    """Every table of these units and keys; a unit may have none."""
    subsets = [frozenset(c) for n in range(len(keys) + 1) for c in itertools.combinations(keys, n)]
    for chosen in itertools.product(subsets, repeat=units):
        yield dict(enumerate(chosen))


def are_neighbours(larger: Plain, smaller: Plain) -> bool:
    """Whether a unit more moved counters up alone, or counters down and the floor up, by one."""
    up, down = larger.counts(), smaller.counts()
    moves = {up.get(key, 0) - down.get(key, 0) for key in {*up, *down}}
    floor = larger.floor - smaller.floor
    return (floor == 0 and moves <= {0, 1}) or (floor == 1 and moves <= {0, -1})


def broken_bounds(sketch: Plain, data: Data, size: int) -> list[str]:
    """What a sketch of this data says that is not so."""
    truth = Counter(itertools.chain.from_iterable(data.values()))
    counts = sketch.counts()
    faults = []
    if len(sketch.counters) > size or len(counts) < len(sketch.counters) or min(counts.values(), default=1) < 1:
        faults.append("counters")
    faults += [
        f"count of {key!r}"
        for key in {*truth, *counts}
        if not counts.get(key, 0) <= truth[key] <= counts.get(key, 0) + sketch.floor
    ]
    if sketch.floor * (size + 1) > sum(truth.values()):
        faults.append("floor")
    return faults
