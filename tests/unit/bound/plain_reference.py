"""A second reference of the bounded aggregation: plain Python on rows, no SQL and no code of the rewriter.

DuckDB is asked for one thing only: the hashes that order a unit's groups, and its values in a group.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tests.unit.bound.query_descriptions import Aggregate, Bounds, Case, Query, Row, Value, is_missing

Group = tuple[Value | str, ...]
Priority = Callable[[Sequence[tuple[Value, tuple[Value, ...]]]], list[int]]
ValuePriority = Callable[[Value, Group, Sequence[Value], str], list[int]]
_SATURATION = 2**60


@dataclass(frozen=True)
class GroupTotals:
    """One group: distinct units, and per aggregate the sum over units in lattice steps (not recentred)."""

    units: int
    sums: tuple[int, ...]


def spelled(key: Sequence[Value]) -> Group:
    """A key in one spelling: all NaNs are one, and so are 0.0 and -0.0."""
    return tuple(("NaN" if math.isnan(value) else value + 0.0) if isinstance(value, float) else value for value in key)


def bounded_table(
    case: Case, exponents: Sequence[int], priority: Priority, value_priority: ValuePriority
) -> dict[Group, GroupTotals]:
    """The exact bounded table.

    Args:
        case: rows and query.
        exponents: per aggregate the power of two of its lattice.
        priority: for (unit, key) pairs, the numbers by which a unit's groups are kept, lowest first.
        value_priority: for a unit, a group and values of a type, those by which the values are kept.

    """
    query = case.query
    present = by_unit_and_group(case)
    kept = kept_groups(present, query, priority)
    totals: dict[Group, list[int]] = defaultdict(lambda: [0] * len(query.aggregates))
    units: dict[Group, int] = defaultdict(int)
    if not query.keys:
        units[()] = 0
        totals[()] = [0] * len(query.aggregates)
    found: dict[tuple[Group, int], set[Value]] = defaultdict(set)
    for unit, group in kept:
        rows = present[unit, group][1]
        units[group] += 1
        for i, aggregate in enumerate(query.aggregates):
            if aggregate.kind in ("values", "value_sum"):
                found[group, i] |= _kept_values(unit, group, rows, aggregate, query.row_cap, value_priority)
            else:
                totals[group][i] += contribution(rows, aggregate, query.row_cap, exponents[i])
    for (group, i), values in found.items():
        aggregate, step = query.aggregates[i], Fraction(2) ** exponents[i]
        steps = (_row_steps(float(value or 0), aggregate.per_row, step) for value in values)
        totals[group][i] = sum(steps) if aggregate.kind == "value_sum" else 2 * len(values)
    return {group: GroupTotals(units[group], tuple(totals[group])) for group in units}


def _kept_values(
    unit: Value, group: Group, rows: Sequence[Row], aggregate: Aggregate, row_cap: int | None, priority: ValuePriority
) -> set[Value]:
    """The values of a unit that count in a group: at most as many as it may have rows, or as the text says."""
    if aggregate.value is None:
        raise ValueError("distinct values are values of something")
    passing = [row for row in rows if aggregate.condition is None or aggregate.condition.evaluate(row) is True]
    values = [value for row in passing if not is_missing(value := aggregate.value.evaluate(row))]
    distinct = list(dict.fromkeys(value + 0.0 if isinstance(value, float) else value for value in values))
    numbers = priority(unit, group, distinct, aggregate.value.type)
    most = int(aggregate.per_group[1]) if aggregate.per_group else row_cap
    return {value for _, value in sorted(zip(numbers, distinct, strict=True), key=lambda pair: pair[0])[:most]}


@dataclass(frozen=True)
class WeightedPart:
    """A statistic: which aggregate it is, its centre in lattice steps, and the bits dropped after weighting."""

    aggregate: int
    centre: int
    bits: int


def weighted_table(
    case: Case, exponents: Sequence[int], priority: Priority, parts: Sequence[WeightedPart], max_groups: int
) -> dict[Group, tuple[int, ...]]:
    """The exact table with weights: units and each part, recentred, in steps of the noise.

    ``case.query.max_groups`` is the number of groups in which a unit counts at all, ``max_groups`` that in which it
    counts fully.
    """
    query = case.query
    present = by_unit_and_group(case)
    kept = kept_groups(present, query, priority)
    sizes = Counter(unit for unit, _ in kept)
    totals: dict[Group, list[int]] = defaultdict(lambda: [0] * (1 + len(parts)))
    for unit, group in kept:
        n = max(sizes[unit], max_groups)
        weight = math.isqrt((max_groups << 40) // n)
        totals[group][0] += weight
        for i, part in enumerate(parts, start=1):
            aggregate, exponent = query.aggregates[part.aggregate], exponents[part.aggregate]
            value = contribution(present[unit, group][1], aggregate, query.row_cap, exponent) - part.centre
            totals[group][i] += math.trunc(Fraction(value * weight, 2**part.bits))
    return {group: tuple(found) for group, found in totals.items()}


def contribution(rows: Sequence[Row], aggregate: Aggregate, row_cap: int | None, exponent: int) -> int:
    """What one unit's rows in one group add, in lattice steps."""
    for condition, wanted in ((aggregate.condition, True), (aggregate.counted_if, aggregate.decided_by)):
        if condition is not None:
            rows = [row for row in rows if condition.evaluate(row) is wanted]
    step = Fraction(2) ** exponent
    if aggregate.kind == "units":
        return int(bool(rows) / step)
    if aggregate.value is not None:
        values = [value for row in rows if not is_missing(value := aggregate.value.evaluate(row))]
        count = len(values)
    else:
        values, count = [], len(rows)
    if aggregate.kind == "rows":
        low, high = aggregate.per_group or (0, row_cap or 0)
        return int(max(low, min(count, high)) / step)
    steps = [_row_steps(float(value or 0), aggregate.per_row, step) for value in values]
    if not steps:
        return 0
    if aggregate.per_group is not None:
        low, high = (round(Fraction(bound) / step) for bound in aggregate.per_group)
        return max(low, min(sum(steps), high))
    scaled = Fraction(sum(steps) * min(count, row_cap or 0), count)
    return math.trunc(scaled)


def _row_steps(value: float, bounds: Bounds | None, step: Fraction) -> int:
    low, high = (round(Fraction(b) / step) for b in bounds) if bounds else (-_SATURATION, _SATURATION)
    scaled = max(Fraction(low), min(Fraction(value) / step, Fraction(high)))
    away = math.floor(abs(scaled) + Fraction(1, 2))
    return away if scaled >= 0 else -away


_Rows = dict[tuple[Value, Group], tuple[tuple[Value, ...], list[Row]]]


def by_unit_and_group(case: Case) -> _Rows:
    """The rows of each unit in each group, with the key as it stands in them."""
    query = case.query
    public = None if query.public_keys is None else {spelled(key) for key in query.public_keys}
    found: _Rows = {}
    for row in case.dictionaries():
        unit = row[case.unit.name]
        if unit is None or any(condition.evaluate(row) is not True for condition in query.where):
            continue
        key = tuple(expression.evaluate(row) for expression in query.keys)
        group = spelled(key)
        if public is None or group in public:
            found.setdefault((unit, group), (key, []))[1].append(row)
    return found


def kept_groups(
    present: Mapping[tuple[Value, Group], object], query: Query, priority: Priority
) -> list[tuple[Value, Group]]:
    pairs = list(present)
    if not query.keys:
        return pairs
    numbers = priority([(unit, tuple(math.nan if v == "NaN" else v for v in group)) for unit, group in pairs])
    by_unit: dict[Value, list[tuple[int, Group]]] = defaultdict(list)
    for (unit, group), number in zip(pairs, numbers, strict=True):
        by_unit[unit].append((number, group))
    return [
        (unit, group)
        for unit, groups in by_unit.items()
        for _, group in sorted(groups, key=lambda entry: entry[0])[: query.max_groups]
    ]
