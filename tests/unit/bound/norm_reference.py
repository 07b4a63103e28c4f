"""A reference of what norms leave of units: plain Python on rows, with whole numbers alone."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from dpsql.model.frame import Norm, Statistic
from tests.unit.bound.plain_reference import Group, Priority, by_unit_and_group, contribution, kept_groups
from tests.unit.bound.query_descriptions import Aggregate, Case, Row, Value

_ANY_ROWS = 10**12


@dataclass(frozen=True)
class NormedPart:
    """A statistic, and which aggregate it is."""

    aggregate: int
    statistic: Statistic


def normed_table(
    case: Case, exponents: Sequence[int], priority: Priority, parts: Sequence[NormedPart], max_groups: int
) -> dict[Group, tuple[int, ...]]:
    """The exact table: units and each part, recentred and scaled down, in steps of the noise.

    ``case.query.max_groups`` is the number of groups in which a unit counts at all, ``max_groups`` that in which it
    counts fully.
    """
    query = case.query
    present = by_unit_and_group(case)
    kept = kept_groups(present, query, priority)
    sizes = Counter(unit for unit, _ in kept)
    groups: dict[Value, list[Group]] = defaultdict(list)
    for unit, group in kept:
        groups[unit].append(group)
    totals: dict[Group, list[int]] = defaultdict(lambda: [0] * (1 + len(parts)))
    if not query.keys:
        totals[()] = [0] * (1 + len(parts))
    for unit, own in groups.items():
        weight = math.isqrt((max_groups << 40) // max(sizes[unit], max_groups))
        rows = [present[unit, group][1] for group in own]
        for group in own:
            totals[group][0] += weight
        for i, part in enumerate(parts, start=1):
            aggregate, exponent = query.aggregates[part.aggregate], exponents[part.aggregate]
            for group, left in zip(own, _left(rows, aggregate, exponent, part.statistic, weight), strict=True):
                totals[group][i] += left
    return {group: tuple(found) for group, found in totals.items()}


def _left(
    rows: Sequence[Sequence[Row]], aggregate: Aggregate, exponent: int, statistic: Statistic, weight: int
) -> list[int]:
    """What is left of one unit in each of its groups."""
    shift = statistic.lattice_exponent - statistic.noise_exponent
    values = [contribution(of_group, aggregate, _ANY_ROWS, exponent) for of_group in rows]
    norm = statistic.limit
    if not isinstance(norm, Norm):
        centre, bits = statistic.centre_steps, 20 - shift
        return [math.trunc(Fraction((value - centre) * weight, 2**bits)) for value in values]
    less = math.trunc(Fraction(norm.centre_steps * weight << shift, 2**20))
    shifted = [(value << shift) - less for value in values]
    sizes, most = shifted, norm.l2_steps << shift
    if norm.row_steps:
        counted = Aggregate("rows", aggregate.value, aggregate.condition)
        sizes = [contribution(of_group, counted, _ANY_ROWS, -1) for of_group in rows]
        most = norm.row_steps
    square = sum(size * size for size in sizes)
    if square <= most**2:
        return shifted
    # to 60 bits behind the point
    root = math.isqrt(square << 120)
    return [math.trunc(Fraction(value * most << 60, root)) for value in shifted]
