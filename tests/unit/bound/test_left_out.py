"""What bounds leave out of units, in SQL: it is what each unit has less what its own answer keeps of it, cut."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dpsql.bound import statement
from dpsql.bound.aggregation import bounded_sql
from dpsql.bound.coverage import numbers_of
from dpsql.bound.formulations import Formulation, fastest_of_groups
from dpsql.bound.kept_pairs import KEPT_PAIRS, KeptPairs
from dpsql.bound.left_out import PART_BITS, is_measurable, left_out_sql
from dpsql.bound.pairs import PAIRS, Pairs
from dpsql.engine.transaction import DuckDBTransaction
from dpsql.model.frame import PRESENCE, Frame
from dpsql.plan.features.coverage import coverage_of
from tests.frames import with_bounding, with_relation
from tests.unit.bound.exact_runs import SALT, ExactTable, Laboratory, Rewrite, Run, is_unit, read_exact, unchanged
from tests.unit.bound.left_out_reference import LeftOut, Measured
from tests.unit.bound.normed_cases import normed_cases
from tests.unit.bound.plain_reference import Group, spelled
from tests.unit.bound.query_descriptions import Aggregate, Case, Field, Query, Value, above, column
from tests.unit.bound.random_cases import cases
from tests.unit.bound.test_weighted_bounding import weighted_cases

_SHORT = settings(
    max_examples=5, derandomize=True, database=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,)
)
_PID, _KEY, _X = Field("pid", "INTEGER"), Field("k", "VARCHAR"), Field("x", "INTEGER")
_SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    opened = Laboratory()
    yield opened
    opened.close()


def _all_cases() -> st.SearchStrategy[Case]:
    return st.one_of(cases(), weighted_cases(), normed_cases())


def _measured(run: Run, chance: random.Random) -> Measured:
    """Return what can be measured of a run, with cuts from far below a step of the lattice to far above any value."""
    frame = run.query.first.frame
    found = [one for one in run.query.first.statistics if is_measurable(frame, one)]
    cuts = {"rows": (-25, -1, 0, 1, 2, 3, 4, 5, 30, 140), "sum": (-25, -1, 0, 10, 20, 24, 26, 28, 62, 140)}
    return [(one, one.lattice_exponent + chance.choice(cuts[one.kind])) for one in found]


def _check(laboratory: Laboratory, case: Case, seed: int, rewrite: Rewrite = unchanged) -> bool:
    chance = random.Random(seed)
    with laboratory.run(case) as run:
        frame, measured = run.query.first.frame, _measured(run, chance)
        if not measured:
            return False
        listed, shown = laboratory.public_keys(run), None
        if frame.has_private_keys and chance.random() < 0.8:
            listed = _some_keys(laboratory, frame, chance)
            shown = {spelled(tuple(key.values())) for key in listed.to_pylist()}
        _check_all(_Check(laboratory, run, measured, listed, shown, rewrite), chance)
    return True


def _some_keys(laboratory: Laboratory, frame: Frame, chance: random.Random) -> pa.Table:
    """Return some of the keys that the rows have."""
    sql = bounded_sql(with_bounding(frame, minimum_units=1), (PRESENCE,), SALT)
    table = laboratory.engine.aggregate(sql, listed_keys=None, timeout_seconds=None).reveal().select(frame.key_columns)
    return table.filter(pa.array([chance.random() < 0.6 for _ in range(table.num_rows)], pa.bool_()))


class _Check:
    """What is compared for one run: the keys that are shown, and the fault that is put into the SQL."""

    def __init__(
        self,
        laboratory: Laboratory,
        run: Run,
        measured: Measured,
        listed: pa.Table | None,
        shown: set[Group] | None,
        rewrite: Rewrite,
    ) -> None:
        self.laboratory, self.run, self.measured = laboratory, run, measured
        self.listed, self.shown, self.rewrite = listed, shown, rewrite
        self.frame = run.query.first.frame

    def read(self, transaction: DuckDBTransaction, sql: str) -> tuple[int, ...]:
        table = transaction.aggregate(self.rewrite(sql), listed_keys=self.listed, timeout_seconds=None).reveal()
        assert set(table.schema.types) == {pa.int64()}
        (row,) = table.to_pylist()
        return tuple(row[f"left_{i}"] for i in range(1, len(row) + 1))

    def make(self, transaction: DuckDBTransaction, name: str, sql: str) -> None:
        """Make a table in place of the one that the transaction would make."""
        made = f"CREATE OR REPLACE TEMP TABLE {name} AS {self.rewrite(sql)}"
        transaction._run_on(
            lambda cursor: cursor.rows(made), self.laboratory.public_keys(self.run), None, transaction._cursor
        )

    def left_out_sql(self, frame: Frame, formulation: Formulation, pairs: Pairs | None) -> str:
        are_listed = self.shown is not None
        return left_out_sql(frame, self.measured, SALT, formulation=formulation, pairs=pairs, are_listed=are_listed)


def _check_all(check: _Check, chance: random.Random) -> None:
    """Compare formulations, over rows and over both tables, with brute force; and without one unit."""
    laboratory, case, frame, measured = check.laboratory, check.run.case, check.frame, check.measured
    brute = LeftOut(laboratory, check.run, measured, check.shown)
    expected, less = brute.totals(measured), brute.totals(measured, without=case.removed)
    fastest = fastest_of_groups(frame, has_native=laboratory.has_native)
    formulations: list[Formulation] = ["groups_first", "few_choose", fastest] if frame.keys else ["groups_first"]
    pairs = Pairs.of(frame, numbers_of([coverage_of(one) for one, _ in measured]))
    with laboratory.engine.transaction(None) as transaction:
        if pairs:
            check.make(transaction, PAIRS, pairs.sql())
        for formulation in dict.fromkeys(formulations):
            for table in dict.fromkeys((pairs, None if formulation != "few_choose" else pairs)):
                assert check.read(transaction, check.left_out_sql(frame, formulation, table)) == expected
        if case.removed is not None:
            rows = f"(SELECT * FROM {frame.rows_sql.relation} WHERE NOT ({is_unit(case, case.removed)}))"
            found = check.read(transaction, check.left_out_sql(with_relation(frame, rows), "groups_first", None))
            assert found == less
        kept = KeptPairs.of(frame, check.run.query.first.statistics, [one for one, _ in measured], SALT)
        if kept:
            table = pairs if pairs and all(map(pairs.has, kept.needed)) else None
            check.make(transaction, KEPT_PAIRS, kept.sql(chance.choice(formulations), table))
            assert check.read(transaction, kept.left_out_sql(measured, are_listed=check.shown is not None)) == expected
            _check_numbers(check, transaction, kept)
    assert all(0 <= one - other <= 1 << PART_BITS for one, other in zip(expected, less, strict=True))


def _check_numbers(check: _Check, transaction: DuckDBTransaction, kept: KeptPairs) -> None:
    """Compare the numbers over pairs after bounds with those over rows."""
    statistics, width = check.run.query.first.statistics, len(check.frame.keys)
    public = check.laboratory.public_keys(check.run)

    def numbers(sql: str) -> ExactTable:
        table = transaction.aggregate(sql, listed_keys=public, timeout_seconds=None)
        return read_exact(table.reveal(), width)

    over_rows = numbers(bounded_sql(check.frame, statistics, SALT))
    assert numbers(kept.bounded_sql(statistics, ending="chosen")) == over_rows


@settings(_SHORT)
@given(case=_all_cases(), seed=_SEEDS)
def test_what_is_left_out_is_that_of_each_unit_alone(laboratory: Laboratory, case: Case, seed: int) -> None:
    _check(laboratory, case, seed)


@pytest.mark.long
@settings(max_examples=1500, suppress_health_check=list(HealthCheck), deadline=None)
@given(case=_all_cases(), seed=_SEEDS)
def test_what_is_left_out_is_that_of_each_unit_alone_over_many_cases(
    laboratory: Laboratory, case: Case, seed: int
) -> None:
    _check(laboratory, case, seed)


@settings(_SHORT, max_examples=2)
@given(case=_all_cases(), seed=_SEEDS)
def test_units_with_one_row_need_no_grouping(laboratory: Laboratory, case: Case, seed: int) -> None:
    first = {row[0]: row for row in case.rows}
    with laboratory.run(replace(case, rows=tuple(first.values()))) as run:
        measured = _measured(run, random.Random(seed))
        if measured:
            check = _Check(laboratory, run, measured, laboratory.public_keys(run), None, unchanged)
            both: tuple[Formulation, ...] = ("one_row", "groups_first")
            with laboratory.engine.transaction(None) as transaction:
                found = [check.read(transaction, check.left_out_sql(check.frame, one, None)) for one in both]
            brute = LeftOut(laboratory, run, measured, None)
            assert found == [brute.totals(measured)] * 2


def _busy_case(bounding: str = "") -> Case:
    """Return units with more groups than they may have, more rows in them, and values above the bounds."""
    rows: list[tuple[Value, ...]] = [(1, k, x) for k in "abcdefg" for x in (3, 12, 20)]
    rows += [(2, "a", 5), (2, "b", 5), *((3, k, 40) for k in "abcd" * 3), (4, "a", None)]
    rows += [(None, "a", 500)] * 30
    summed = Aggregate("sum", column(_X), per_row=(0, 10))
    aggregates = (Aggregate("rows"), summed, Aggregate("rows", condition=above(column(_X), 4)))
    query = Query((column(_KEY),), aggregates, max_groups=2, row_cap=2)
    if bounding:
        query = replace(query, bounding="L2", option_in_text=True)
    return Case((_PID, _KEY, _X), tuple(rows), query, removed=1)


def test_a_unit_with_its_cut_left_out_moves_the_sum_by_the_cut(laboratory: Laboratory) -> None:
    """Unit 1 has 21 rows and keeps 4, unit 3 has 12 and keeps 4, no other has more than two in a group."""
    with laboratory.run(_busy_case()) as run:
        frame = run.query.first.frame
        (counted,) = [one for one in run.query.first.statistics if one.kind == "rows" and not one.filter_sql]
        without = with_relation(frame, f"(SELECT * FROM {frame.rows_sql.relation} WHERE pid <> 1)")

        def left(rows: Frame, exponent: int) -> int:
            sql = left_out_sql(rows, [(counted, exponent)], SALT)
            return int(
                laboratory.engine.aggregate(sql, listed_keys=None, timeout_seconds=None)
                .reveal()
                .column("left_1")[0]
                .as_py()
            )

        assert left(frame, 3) == 2 << PART_BITS
        assert left(frame, 4) == (16 + 8) << PART_BITS >> 4
        assert left(frame, 5) == (17 + 8) << PART_BITS >> 5
        assert [left(frame, k) - left(without, k) for k in (3, 4)] == [1 << PART_BITS] * 2
        assert left(frame, 5) - left(without, 5) == 17 << PART_BITS >> 5


def _cut_at(changed: Callable[[int], int]) -> Callable[[str], str]:
    cut = r"(least\(greatest\(lost_\d+, 0\)(?: // \d+::HUGEINT)?, )(\d+)\)"
    return lambda sql: re.sub(cut, lambda found: f"{found[1]}{changed(int(found[2]))})", sql)


def _chosen_by_others(sql: str) -> str:
    """Priorities are those of codes of keys, which follow from the keys of all units."""
    return sql.replace("hash(hash(unit, key_0,", "hash(hash(unit, (SELECT count(*) FROM per_group) % 4, key_0,")


_FAULTS: dict[str, Callable[[str], str]] = {
    "no cut": _cut_at(lambda most: 2**62),
    "above the cut": _cut_at(lambda most: most + 1),
    "chosen by the rows of others": _chosen_by_others,
    "another salt": lambda sql: sql.replace(SALT.hex(), SALT[::-1].hex()),
    "every group kept": lambda sql: re.sub(r"NOT is_kept", "false", sql),
    "one group too many": lambda sql: re.sub(r"<= 2 AS is_kept", "<= 3 AS is_kept", sql),
    "all keys": lambda sql: re.sub(r"lost SEMI JOIN .* (?=WHERE)", "lost ", sql),
    "NULL units": lambda sql: sql.replace("WHERE unit IS NOT NULL ", ""),
    "values after their clamp": lambda sql: re.sub(
        r"coalesce\(sum\(x_\d+\)(.{0,24}?), 0\) AS whole_(\d)", r"coalesce(sum(x_\2)\1, 0) AS whole_\2", sql
    ),
    "weights forgotten": lambda sql: re.sub(
        r"root - CAST\(.*? AS BIGINT\) AS weight", f"{2**20}::BIGINT AS weight", sql
    ),
}


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_fault_is_found(laboratory: Laboratory, fault: str) -> None:
    case = _busy_case("L2" if fault == "weights forgotten" else "")
    changed: list[str] = []

    def rewrite(sql: str) -> str:
        found = _FAULTS[fault](sql)
        changed.extend([sql] * (found != sql))
        return found

    def check() -> None:
        for seed in range(5, 9):
            _check(laboratory, case, seed, rewrite)

    with pytest.raises(AssertionError):
        check()
    assert changed


@pytest.mark.parametrize("bounding", ["", "L2"])
def test_the_busy_case_is_right(laboratory: Laboratory, bounding: str) -> None:
    assert _check(laboratory, _busy_case(bounding), 1)


def test_units_whose_priorities_are_equal_choose_by_a_window(laboratory: Laboratory) -> None:
    """Of the priorities one bit is left, so that most units have equal ones."""
    seen: list[str] = []

    def with_one_bit(sql: str) -> str:
        seen.extend([sql] * (" >> 32 " in sql))
        return sql.replace(" >> 32 ", " >> 63 ")

    assert _check(laboratory, _busy_case(), 1, with_one_bit)
    assert bool(seen) is laboratory.has_native


@pytest.mark.parametrize("bounding", ["", "L2"])
def test_no_size_of_values_is_an_error(laboratory: Laboratory, bounding: str) -> None:
    with laboratory.run(_busy_case(bounding)) as run:
        frame = run.query.first.frame
        measured = [(one, k) for one in run.query.first.statistics[1:] for k in (-2000, -40, 0, 40, 90, 2000)]
        pairs = Pairs.of(frame, numbers_of([coverage_of(one) for one, _ in measured]))
        assert pairs
        huge = f"SELECT * REPLACE ({{}}) FROM ({pairs.sql()})"
        with laboratory.engine.transaction(None) as transaction:
            for size in (f"{2**100}::HUGEINT", f"-{2**100}::HUGEINT"):
                check = _Check(laboratory, run, measured, None, None, unchanged)
                names = re.findall(r" AS ((?:sum|count)_\d+)", pairs.sql())
                large = [f"{2**41 if name.startswith('count') else size} AS {name}" for name in names]
                check.make(transaction, PAIRS, huge.format(", ".join(large)))
                formulations: tuple[Formulation, ...] = ("groups_first", "few_choose")
                for formulation in formulations:
                    sql = check.left_out_sql(frame, formulation, pairs)
                    found = check.read(transaction, sql)
                    assert min(found) >= 0
                    assert max(found) <= 4 << PART_BITS


def test_without_rows_nothing_is_left_out(laboratory: Laboratory) -> None:
    for keys in ((column(_KEY),), ()):
        case = _busy_case()
        case = replace(case, rows=(), removed=None, query=replace(case.query, keys=keys, max_groups=1))
        with laboratory.run(case) as run:
            measured = [(one, 3) for one in run.query.first.statistics[1:]]
            sql = left_out_sql(run.query.first.frame, measured, SALT)
            (row,) = laboratory.engine.aggregate(sql, listed_keys=None, timeout_seconds=None).reveal().to_pylist()
            assert set(row.values()) == {0}


def test_only_bounded_rows_and_sums_are_measured(laboratory: Laboratory) -> None:
    raised = Aggregate("rows", per_group=(2, 5))
    case = _busy_case()
    with laboratory.run(replace(case, query=replace(case.query, aggregates=(raised, Aggregate("units"))))) as run:
        for one in run.query.first.statistics:
            with pytest.raises(AssertionError):
                left_out_sql(run.query.first.frame, [(one, 3)], SALT)
    with laboratory.run(case) as run:
        frame, counted = run.query.first.frame, run.query.first.statistics[1]
        asked = statement.LeftOut(frame, ((counted, 3),))
        assert asked.sql(SALT) == left_out_sql(frame, [(counted, 3)], SALT, are_listed=True)
        with pytest.raises(AssertionError):
            left_out_sql(with_bounding(frame, max_rows=5), [(counted, 3)], SALT)
