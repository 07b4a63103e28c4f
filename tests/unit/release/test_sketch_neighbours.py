"""One unit more: counters go up by one, or counters go down by one and the floor goes up; whatever the other units are.

The same checks run on the product (SQL in the sandbox, each step of it cached) and, over more tables, on a reference in
plain Python that the product is compared with. Faults planted in the way data are cut into batches must be caught.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.engine import Sandbox
from dpsql.release.sketch import MOST_UNITS, Sketch, absorb
from tests.unit.release.sketch_reference import (
    EMPTY,
    Data,
    Plain,
    Step,
    absorbed,
    are_neighbours,
    batch_of,
    broken_bounds,
    by_shard,
    data_sets,
    reference_step,
    without,
)

Sketcher = Callable[[Data, Step], Plain]
_SHORT = settings(max_examples=150, derandomize=True, database=None)


def two_shards(data: Data, step: Step) -> Plain:
    return absorbed(by_shard(data, lambda unit: unit % 2), step)


def three_merged(data: Data, step: Step) -> Plain:
    """A sketch of every third unit, merged."""
    parts = [absorbed([batch], step) for batch in by_shard(data, lambda unit: unit % 3)]
    return reduce(step, parts, EMPTY)


class Product:
    """absorb of the product as steps of the reference's kind; two sketches are merged with both floors kept."""

    def __init__(self) -> None:
        self.sandbox = Sandbox()
        self._known: dict[tuple[int, Plain, Plain], Plain] = {}

    def step(self, size: int) -> Step:
        def step(held: Plain, added: Plain) -> Plain:
            place = (size, held, added)
            if place not in self._known:
                sketch = Sketch(size, _table(held), held.floor + added.floor)
                self._known[place] = _plain(absorb(sketch, _table(added), self.sandbox.run))
            return self._known[place]

        return step


def _table(sketch: Plain) -> pa.Table:
    rows = sorted(sketch.counters, key=repr)
    return pa.table(
        {"key_0": pa.array([r[0] for r in rows], pa.string()), "units": pa.array([r[1] for r in rows], pa.int64())}
    )


def _plain(sketch: Sketch) -> Plain:
    keys, units = (sketch.counters.column(name).to_pylist() for name in ("key_0", "units"))
    assert units == sorted(units, reverse=True)
    return Plain(frozenset(zip(keys, units, strict=True)), sketch.floor)


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    opened = Product()
    yield opened
    opened.sandbox.close()


def check_universe(universe: Iterator[dict[int, frozenset[object]]], size: int, sketcher: Sketcher, step: Step) -> int:
    """Every table, every unit removed from it; returns how many pairs moved the floor."""
    moved = 0
    for data in universe:
        larger = sketcher(data, step)
        assert broken_bounds(larger, data, size) == []
        for unit in data:
            smaller = sketcher(without(data, unit), step)
            assert are_neighbours(larger, smaller), (data, unit)
            moved += larger.floor > smaller.floor
    return moved


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("sketcher", [two_shards, three_merged])
def test_a_unit_moves_a_sketch_of_the_product_by_one_step(product: Product, size: int, sketcher: Sketcher) -> None:
    assert check_universe(data_sets(3, "abc"), size, sketcher, product.step(size)) > 50


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("sketcher", [two_shards, three_merged])
def test_a_unit_moves_a_sketch_of_the_reference_by_one_step(size: int, sketcher: Sketcher) -> None:
    universe = itertools.islice(data_sets(4, "abc"), 0, None, 3) if size < 3 else data_sets(2, "abcde")
    check_universe(universe, size, sketcher, reference_step(size))


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("sketcher", [two_shards, three_merged])
def test_a_unit_moves_a_sketch_by_one_step_over_every_table(size: int, sketcher: Sketcher) -> None:
    for units, keys in ((5, "abc"), (3, "abcde")):
        check_universe(data_sets(units, keys), size, sketcher, reference_step(size))


@pytest.mark.parametrize("size", [1, 2])
def test_the_product_takes_every_small_step_as_the_reference_does(product: Product, size: int) -> None:
    counts = [
        frozenset((key, n) for key, n in zip("ab", ns, strict=True) if n)
        for ns in itertools.product(range(3), repeat=2)
    ]
    held = [Plain(c, floor) for c in counts if len(c) <= size for floor in (0, 2)]
    for a, b in itertools.product(held, (Plain(c, 0) for c in counts)):
        assert product.step(size)(a, b) == reference_step(size)(a, b)


keys_of_units = st.dictionaries(
    st.integers(0, 40), st.frozensets(st.sampled_from("abcdefghijkl"), max_size=9), max_size=25
)


@st.composite
def trees(draw: st.DrawFn, leaves: int) -> object:
    """A binary tree over the numbers of some leaves, in any order."""
    forest: list[object] = list(draw(st.permutations(range(leaves))))
    while len(forest) > 1:
        a = forest.pop(draw(st.integers(0, len(forest) - 1)))
        b = forest.pop(draw(st.integers(0, len(forest) - 1)))
        forest.append((a, b))
    return forest[0]


def _fold(tree: object, leaves: Sequence[Plain], step: Step) -> Plain:
    if isinstance(tree, tuple):
        return step(_fold(tree[0], leaves, step), _fold(tree[1], leaves, step))
    assert isinstance(tree, int)
    return leaves[tree]


def check_tree(data: Data, size: int, shards: int, tree: object, removed: int, step: Step) -> None:
    """Sketches of all shards merged in the shape of a tree, with and without a unit."""

    def sketch(rows: Data) -> Plain:
        leaves = [
            step(EMPTY, batch_of([keys for unit, keys in rows.items() if unit % shards == s])) for s in range(shards)
        ]
        return _fold(tree, leaves, step)

    larger = sketch(data)
    assert broken_bounds(larger, data, size) == []
    assert are_neighbours(larger, sketch(without(data, removed)))


@settings(_SHORT, max_examples=150)
@given(st.data(), keys_of_units, st.integers(1, 8), st.integers(1, 6))
def test_any_tree_of_merges_stays_within_the_bounds(draw: st.DataObject, data: Data, size: int, shards: int) -> None:
    tree = draw.draw(trees(shards))
    removed = draw.draw(st.sampled_from(sorted(data) or [0]))
    check_tree(data, size, shards, tree, removed, reference_step(size))


@settings(_SHORT, max_examples=25)
@given(st.data(), keys_of_units, st.integers(1, 5), st.integers(1, 4))
def test_any_tree_of_the_products_merges_stays_within_the_bounds(
    product: Product, draw: st.DataObject, data: Data, size: int, shards: int
) -> None:
    tree = draw.draw(trees(shards))
    removed = draw.draw(st.sampled_from(sorted(data) or [0]))
    check_tree(data, size, shards, tree, removed, product.step(size))


def test_a_batch_without_rows_changes_nothing(product: Product) -> None:
    held = Plain(frozenset({("a", 3), ("b", 1)}), 5)
    assert product.step(2)(held, EMPTY) == held


def test_keys_without_a_count_change_nothing(product: Product) -> None:
    """Not even the floor, though with them there are more keys than counters."""
    held = Sketch(1, _table(Plain(frozenset({("a", 3)}), 0)), 0)
    nothing = pa.table({"key_0": ["b", None, "c"], "units": pa.array([0, None, 0], pa.int64())})
    assert _plain(absorb(held, nothing, product.sandbox.run)) == _plain(held)


def test_the_floor_reaches_its_bound() -> None:
    """The bound on the floor has no slack to hide a fault in: all of size + 1 keys equally often."""
    data = {unit: frozenset("abc") for unit in range(4)}
    sketch = two_shards(data, reference_step(2))
    assert sketch == Plain(frozenset(), 4)
    assert sketch.floor * 3 == 12


def _each_key_alone(data: Data, step: Step) -> Plain:
    """The textbook sketch, row by row: what is subtracted is subtracted once per key and not once per step."""
    rows = [(unit, key) for unit, keys in sorted(data.items()) for key in sorted(keys, key=repr)]
    return absorbed([batch_of([frozenset({key})]) for _, key in rows], step)


def _split_unit(data: Data, step: Step) -> Plain:
    """A row's shard depends on its key too, so that a unit's rows lie in two."""
    halves = [batch_of([keys & frozenset(half) for keys in data.values()]) for half in ("ace", "bdf")]
    return absorbed(halves, step)


def _cut_by_rows(data: Data, step: Step) -> Plain:
    """A batch ends after the unit that fills it to three rows: whole units, but a removed one moves the borders."""
    batches: list[list[frozenset[object]]] = [[]]
    for _, keys in sorted(data.items()):
        if sum(map(len, batches[-1])) >= 3:
            batches.append([])
        batches[-1].append(keys)
    return absorbed([batch_of(batch) for batch in batches], step)


def _as_many_shards_as_units(data: Data, step: Step) -> Plain:
    """The number of shards follows the size of the table."""
    return absorbed(by_shard(data, lambda unit: unit % max(1, len(data) // 2)), step)


def _floor_forgotten(data: Data, step: Step) -> Plain:
    sketch = EMPTY
    for batch in by_shard(data, lambda unit: unit % 2):
        sketch = Plain(step(sketch, batch).counters, 0)
    return sketch


FAULTS: dict[str, tuple[Sketcher, int, str, int]] = {
    "one decrement per key": (_each_key_alone, 2, "abcd", 2),
    "a unit split over two shards": (_split_unit, 2, "abcd", 1),
    "batches cut by row count": (_cut_by_rows, 3, "abc", 1),
    "as many shards as units": (_as_many_shards_as_units, 4, "abc", 1),
    "the floor forgotten": (_floor_forgotten, 2, "abcd", 2),
}
"""The fault, and a universe that shows it: units, keys, size of the sketch."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault: str) -> None:
    sketcher, units, keys, size = FAULTS[fault]
    check_universe(data_sets(units, keys), size, two_shards, reference_step(size))
    with pytest.raises(AssertionError):
        check_universe(data_sets(units, keys), size, sketcher, reference_step(size))


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "the floor forgotten"])
def test_a_planted_fault_breaks_the_step_of_a_unit_and_no_bound(fault: str) -> None:
    """What makes these faults hard to see: every count is as exact as before, only neighbours are none."""
    sketcher, units, keys, size = FAULTS[fault]
    for data in data_sets(units, keys):
        assert broken_bounds(sketcher(data, reference_step(size)), data, size) == []


def test_counters_are_clamped_before_they_overflow(product: Product) -> None:
    """Two counters at the most, and a table beyond it, as no table has; neighbours stay neighbours."""
    most, run = MOST_UNITS, product.sandbox.run

    def sketch(a: int, b: int) -> Plain:
        held = Sketch(1, _table(Plain(frozenset({("a", a)}), 0)), 0)
        return _plain(absorb(held, _table(Plain(frozenset({("a", 2**63 - 1), ("b", b)}), 0)), run))

    assert sketch(most, 5) == Plain(frozenset({("a", most - 5)}), 5)
    assert sketch(most, most) == Plain(frozenset(), most)
    for a, b in ((most, 5), (most, most), (most - 1, most), (1, 1)):
        assert are_neighbours(sketch(a, b), sketch(a - 1 or 1, b - 1 or 1))
    assert 2 * most < 2**63


def test_a_sketch_shows_nothing(product: Product) -> None:
    counts = _table(batch_of([frozenset({"canary", "b"}), frozenset({"b"})]))
    sketch = absorb(Sketch(1, _table(EMPTY), 0), counts, product.sandbox.run)
    assert sketch.floor == 1
    assert repr(sketch) == str(sketch) == "Sketch(…)"


@pytest.mark.parametrize(("size", "floor", "rows"), [(0, 0, 0), (1, -1, 0), (1, 0, 2)])
def test_what_is_no_sketch_is_refused(size: int, floor: int, rows: int) -> None:
    counters = _table(Plain(frozenset({("a", 1), ("b", 1)}), 0)).slice(0, rows)
    with pytest.raises(ValueError, match="no sketch"):
        Sketch(size, counters, floor)


def test_counters_are_whole_numbers() -> None:
    with pytest.raises(ValueError, match="int64"):
        Sketch(1, pa.table({"key_0": ["a"], "units": [math.nan]}), 0)
