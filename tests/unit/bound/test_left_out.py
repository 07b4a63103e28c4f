"""What bounds leave out of units, in SQL: it is what each unit has less what its own answer keeps of it, cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dpsql.bound.aggregation import bounded_sql
from dpsql.bound.coverage import numbers_of
from dpsql.bound.formulations import Formulation, fastest_of_groups
from dpsql.bound.left_out import PART_BITS, left_out_sql
from dpsql.bound.pairs import PAIRS, Pairs
from dpsql.engine.transaction import Transaction
from dpsql.model.frame import PRESENCE, WEIGHT_BITS, Frame, Norm, Statistic
from dpsql.plan.features.coverage import coverage_of
from tests.frames import with_bounding, with_relation
from tests.unit.bound.exact_runs import SALT, Laboratory, Run, components, is_unit, linears, read_exact
from tests.unit.bound.normed_cases import normed_cases
from tests.unit.bound.plain_reference import Group, by_unit_and_group, contribution, spelled
from tests.unit.bound.query_descriptions import Case, Value
from tests.unit.bound.random_cases import cases
from tests.unit.bound.test_weighted_bounding import weighted_cases

_SHORT = settings(
    max_examples=12, derandomize=True, database=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,)
)
_ANY = 2**200
Measured = list[tuple[Statistic, int]]
LeftOut = dict[Value, list[int]]
"""What is left out of each unit, per statistic in steps of 2**-WEIGHT_BITS of its lattice; it may be negative."""


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    opened = Laboratory()
    yield opened
    opened.close()


def _measured(run: Run, chance: random.Random) -> Measured:
    """Return what can be measured of a run, with cuts from far below a step of the lattice to far above any value."""
    if not run.query.first.frame.is_measured:
        return []
    found = [one for one in run.query.first.statistics if one.kind in ("rows", "sum") and not one.is_raised]
    found = [one for one in found if not (isinstance(one.limit, Norm) and one.centre_steps)]
    return [(one, one.lattice_exponent + chance.choice((-25, -19, 0, 1, 2, 3, 5, 30, 62, 140))) for one in found]


class Brute:
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
            sum(_cut(left[i], one, exponent) for unit, left in self.units.items() if unit != without or unit is None)
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


def _check(laboratory: Laboratory, case: Case, seed: int) -> bool:
    chance = random.Random(seed)
    with laboratory.run(case) as run:
        measured, frame = _measured(run, chance), run.query.first.frame
        if not measured:
            return False
        public = laboratory.public_keys(run)
        _check_all(laboratory, run, measured, public, None)
        if frame.has_private_keys:
            listed = _some_keys(laboratory, frame, chance)
            _check_all(laboratory, run, measured, listed, {spelled(tuple(key.values())) for key in listed.to_pylist()})
    return True


def _some_keys(laboratory: Laboratory, frame: Frame, chance: random.Random) -> pa.Table:
    """Return some of the keys that the rows have."""
    sql = bounded_sql(with_bounding(frame, minimum_units=1), (PRESENCE,), SALT)
    table = laboratory.engine.aggregate(sql, listed_keys=None, timeout_seconds=None).reveal().select(frame.key_columns)
    return table.filter(pa.array([chance.random() < 0.6 for _ in range(table.num_rows)], pa.bool_()))


def _check_all(
    laboratory: Laboratory, run: Run, measured: Measured, listed: pa.Table | None, shown: set[Group] | None
) -> None:
    """Compare all formulations, over rows and over pairs, with brute force; and without one unit."""
    frame, removed = run.query.first.frame, run.case.removed
    brute = Brute(laboratory, run, measured, shown)
    for without in dict.fromkeys((None, removed)):
        rows = frame
        if without is not None:
            condition = is_unit(run.case, without)
            rows = with_relation(frame, f"(SELECT * FROM {frame.rows_sql.relation} WHERE NOT ({condition}))")
        expected = brute.totals(measured, without=without)
        for found in _found(laboratory, rows, measured, listed, are_listed=shown is not None):
            assert found == expected
    with_all, less = brute.totals(measured), brute.totals(measured, without=removed)
    assert all(0 <= one - other <= 1 << PART_BITS for one, other in zip(with_all, less, strict=True))


def _found(
    laboratory: Laboratory, frame: Frame, measured: Measured, listed: pa.Table | None, *, are_listed: bool
) -> list[tuple[int, ...]]:
    """Return what all formulations compute, over rows and over pairs."""
    pairs = Pairs.of(frame, numbers_of([coverage_of(one) for one, _ in measured]))
    formulations: dict[Formulation, None] = {"groups_first": None}
    if frame.keys:
        formulations |= {"few_choose": None, fastest_of_groups(frame, has_native=laboratory.has_native): None}
    with laboratory.engine.transaction(None) as transaction:
        if pairs:
            public = listed if frame.public_keys else None
            made = f"CREATE TEMP TABLE {PAIRS} AS {pairs.sql()}"
            transaction.run(lambda cursor: cursor.rows(made), listed_keys=public, timeout_seconds=None)
        return [
            _one_row(
                transaction,
                left_out_sql(frame, measured, SALT, formulation=one, pairs=table, are_listed=are_listed),
                listed,
            )
            for one in formulations
            for table in dict.fromkeys((None, pairs))
        ]


def _one_row(transaction: Transaction, sql: str, listed: pa.Table | None) -> tuple[int, ...]:
    table = transaction.run(lambda cursor: cursor.table(sql), listed_keys=listed, timeout_seconds=None)
    (row,) = table.to_pylist()
    assert set(table.schema.types) == {pa.int64()}
    return tuple(row[f"left_{i}"] for i in range(1, len(row) + 1))


@settings(_SHORT)
@given(case=st.one_of(cases(), weighted_cases(), normed_cases()), seed=st.integers(0, 2**32 - 1))
def test_what_is_left_out_is_that_of_each_unit_alone(laboratory: Laboratory, case: Case, seed: int) -> None:
    _check(laboratory, case, seed)
