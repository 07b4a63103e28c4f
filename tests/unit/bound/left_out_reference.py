"""A reference of what bounds leave out: rows in plain Python, less the answer for each unit alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpsql.bound.aggregation import bounded_sql
from dpsql.bound.left_out import PART_BITS
from dpsql.model.frame import PRESENCE, WEIGHT_BITS, Statistic
from tests.frames import with_bounding, with_relation
from tests.unit.bound.exact_runs import SALT, Laboratory, Run, is_unit, linears, read_exact
from tests.unit.bound.plain_reference import Group, by_unit_and_group, contribution
from tests.unit.bound.query_descriptions import Value

_ANY = 2**200
Measured = list[tuple[Statistic, int]]


class LeftOut:
    """What is left out of each unit of a run, from its rows in Python and the answer for this unit alone."""

    def __init__(self, laboratory: Laboratory, run: Run, measured: Measured, shown: set[Group] | None) -> None:
        self.statistics = [one for one, _ in measured]
        wholes = _wholes(laboratory, run, self.statistics, shown)
        self.units = {
            unit: [
                (of_whole << WEIGHT_BITS) - of_kept
                for of_whole, of_kept in zip(whole, _kept(laboratory, run, unit, self.statistics, shown), strict=True)
            ]
            for unit, whole in wholes.items()
        }

    def totals(self, measured: Measured, *, without: Value = None) -> tuple[int, ...]:
        """Return the columns of ``left_out_sql``."""
        return tuple(
            sum(_cut(left[i], one, exponent) for unit, left in self.units.items() if unit != without)
            for i, (one, exponent) in enumerate(measured)
        )


def _cut(left: int, statistic: Statistic, exponent: int) -> int:
    """Return floor(min(l, C) * 2**20 / C) of one unit."""
    step = exponent - statistic.lattice_exponent + WEIGHT_BITS
    numerator, denominator = max(left, 0) << PART_BITS, 1
    numerator, denominator = (numerator, 1 << step) if step >= 0 else (numerator << -step, 1)
    return min(numerator // denominator, 1 << PART_BITS)


def _wholes(
    laboratory: Laboratory, run: Run, statistics: Sequence[Statistic], shown: set[Group] | None
) -> dict[Value, list[int]]:
    """Return what units have before bounds, in lattice steps."""
    case = laboratory._described(run)[0]
    found = [linear.statistic for linear in linears(run.query)]
    aggregates = [
        replace(case.query.aggregates[found.index(one)], per_row=None, per_group=(-_ANY, _ANY)) for one in statistics
    ]
    wholes: dict[Value, list[int]] = {}
    for (unit, group), (_, rows) in by_unit_and_group(case).items():
        whole = wholes.setdefault(unit, [0] * len(statistics))
        if shown is None or group in shown:
            for i, (one, aggregate) in enumerate(zip(statistics, aggregates, strict=True)):
                whole[i] += contribution(rows, aggregate, None, one.lattice_exponent)
    return wholes


def _kept(
    laboratory: Laboratory, run: Run, unit: Value, statistics: Sequence[Statistic], shown: set[Group] | None
) -> list[int]:
    """Return what the numbers keep of a unit, in steps of 2**-WEIGHT_BITS of the lattice."""
    frame = with_bounding(run.query.first.frame, minimum_units=1)
    frame = with_relation(frame, f"(SELECT * FROM {frame.rows_sql.relation} WHERE {is_unit(run.case, unit)})")
    sql = bounded_sql(frame, (PRESENCE, *statistics), SALT)
    table = laboratory.engine.aggregate(sql, listed_keys=laboratory.public_keys(run), timeout_seconds=None).reveal()
    kept = [0] * len(statistics)
    is_weighted = frame.bounding.counted_groups is not None
    for group, (presence, *values) in read_exact(table, len(frame.keys)).items():
        if shown is not None and group not in shown:
            continue
        for i, (one, value) in enumerate(zip(statistics, values, strict=True)):
            below = WEIGHT_BITS - one.lattice_exponent + frame.exact_exponent(one)
            kept[i] += (value << below) + one.centre_steps * (presence << (0 if is_weighted else WEIGHT_BITS))
    return kept
