"""Partial and merge: statements over parts of the units have the result of the statement on all rows, bit for bit."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dpsql.bound import partials
from dpsql.bound.formulations import Formulation
from dpsql.bound.kept_pairs import KEPT_PAIRS, LOST_PAIRS, KeptPairs
from dpsql.bound.left_out import is_measurable
from dpsql.bound.pairs import PAIRS, Pairs
from dpsql.bound.partials import Partial, partial_table
from dpsql.bound.statement import Bounded, LeftOut, UnitHistogram
from dpsql.engine.transaction import DuckDBTransaction
from dpsql.model.frame import PRESENCE, Frame, Sparsity, Statistic
from dpsql.model.statistic_kinds import StatisticKind
from dpsql.plan.features.coverage import with_coverage
from tests.frames import with_relation
from tests.unit.bound.exact_runs import SALT, Laboratory, is_unit, movements, read_exact
from tests.unit.bound.normed_cases import normed_cases
from tests.unit.bound.query_descriptions import Case
from tests.unit.bound.random_cases import cases

_SHORT = settings(
    max_examples=4, derandomize=True, database=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,)
)
_PARTS = 3
_BY_SUMS: tuple[StatisticKind, ...] = ("rows_norm", "sum_norm", "group_extremes")

_UNIT_OF_PARTS = ""
"""Column whose values decide on the part of a row, in place of the unit."""

Asked = Bounded | UnitHistogram | LeftOut


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    opened = Laboratory()
    yield opened
    opened.close()


class _Parts:
    """A partition of the units of a frame, by a hash that the salt has no part in."""

    def __init__(self, transaction: DuckDBTransaction, listed: pa.Table | None) -> None:
        self._transaction, self._listed = transaction, listed

    def frames(self, frame: Frame) -> list[Frame]:
        """Return the frame of each part."""
        return [_part(frame, place) for place in range(_PARTS)]

    def rows(self, sql: str) -> Counter[str]:
        """Return the rows of a text with the number of times that each is there."""
        return Counter(map(repr, self.table(sql).to_pylist()))

    def table(self, sql: str) -> pa.Table:
        """Return the rows of a text."""
        return self._transaction.aggregate(sql, listed_keys=self._listed, timeout_seconds=None).reveal()

    def make(self, name: str, sql: str) -> None:
        """Make a temporary table."""
        made = f"CREATE OR REPLACE TEMP TABLE {name} AS {sql}"
        self._transaction._run_on(lambda cursor: cursor.rows(made), self._listed, None, self._transaction._cursor)

    def merge(self, of_parts: Sequence[Partial]) -> str:
        """Make the tables that a merge reads, and return its text."""
        for place, rows in enumerate(of_parts[0].rows):
            columns = ", ".join((*rows.keys, *rows.totals))
            union = " UNION ALL ".join(f"(SELECT {columns} FROM ({one.rows[place].sql}))" for one in of_parts)
            self.make(partial_table(place), union)
        return of_parts[0].merged

    def over_rows(self, asked: Asked, formulation: Formulation = "groups_first") -> str:
        """Return the text of a merge, of what a statement has over the rows of the parts."""
        frames = self.frames(asked.frame)
        return self.merge([replace(asked, frame=one).partial(SALT, formulation) for one in frames])

    def over_pairs(self, asked: Asked, pairs: Pairs, kept: KeptPairs | None) -> str:
        """Return the same over tables of the parts, which are made one after the other."""
        held = []
        for place, frame in enumerate(self.frames(pairs.frame)):
            self.make(PAIRS, replace(pairs, frame=frame).sql())
            if kept:
                self.make(KEPT_PAIRS, kept.sql("groups_first", pairs))
                self.make(LOST_PAIRS, kept.lost_sql())
            partial = asked.partial(SALT, "groups_first", kept or pairs)
            for i, rows in enumerate(partial.rows):
                self.make(f"held_{i}_{place}", rows.sql)
            rows_of_part = (replace(one, sql=f"FROM held_{i}_{place}") for i, one in enumerate(partial.rows))
            held.append(replace(partial, rows=tuple(rows_of_part)))
        return self.merge(held)


def _part(frame: Frame, place: int) -> Frame:
    unit, finer = _UNIT_OF_PARTS or frame.rows.unit_column.sql, frame.bounding.finer
    is_here = f"coalesce(hash({unit}, 'part') % {_PARTS}, 0) = {place}"
    changed = with_relation(frame, f"(SELECT * FROM {frame.rows_sql.relation} WHERE {is_here})")
    return replace(changed, bounding=replace(changed.bounding, finer=finer and _part(finer, place)))


def _asked(frame: Frame, statistics: tuple[Statistic, ...]) -> list[Asked]:
    """Return statements of each kind on a frame."""
    plain = tuple(one for one in statistics if not one.covered)
    covering = tuple(one for one in statistics if one.covered)
    found: list[Asked] = [Bounded(frame, plain)]
    if covering:
        found += [Bounded(frame, plain, covering, "covered_groups"), Bounded(frame, (), covering, "coverage")]
    if frame.has_private_keys:
        small = replace(frame.bounding, minimum_units=2)
        for bounding in (small, replace(small, sparsity=Sparsity("top_k", 1))):
            found.append(Bounded(replace(frame, bounding=bounding), plain))
    one = Statistic(kind="rows_norm", low_steps=0, high_steps=1, lattice_exponent=0)
    found += [UnitHistogram(frame, replace(one, kind="groups"))] if frame.keys else []
    summed = [replace(one, value_sql=of.value_sql, filter_sql=of.filter_sql) for of in plain if of.kind == "sum"]
    found += [UnitHistogram(frame, replace(each, kind=kind)) for each in summed for kind in _BY_SUMS]
    if cuts := tuple((each, 3) for each in plain if not frame.has_private_keys and is_measurable(frame, each)):
        found.append(LeftOut(frame, cuts))
    return found


def _check(laboratory: Laboratory, case: Case) -> None:
    with laboratory.run(case) as run, laboratory.engine.transaction() as transaction:
        query = with_coverage(run.query.first)
        parts = _Parts(transaction, laboratory.public_keys(run))
        formulations = laboratory.formulations(query.frame)
        for asked in _asked(query.frame, query.statistics):
            whole = parts.rows(asked.sql(SALT))
            is_plain = isinstance(asked, Bounded) and not asked.coverage
            for formulation in formulations if is_plain else formulations[:1]:
                assert parts.rows(parts.over_rows(asked, formulation)) == whole, (asked, formulation)
            pairs = Pairs.of(query.frame, asked.measured)
            if pairs and pairs.serves(query.frame) and all(map(pairs.has, asked.measured)) and _has_tables(asked):
                assert parts.rows(parts.over_pairs(asked, pairs, None)) == whole, asked
                cut = [one for one, _ in asked.cuts] if isinstance(asked, LeftOut) else []
                if cut and (kept := KeptPairs.of(query.frame, (PRESENCE,), cut, SALT)):
                    assert parts.rows(parts.over_pairs(asked, pairs, kept)) == whole, asked


def _has_tables(asked: Asked) -> bool:
    """Return whether a statement is read of tables of pairs."""
    return not (isinstance(asked, Bounded) and asked.kind == "coverage")


@settings(_SHORT)
@given(case=st.one_of(cases(), normed_cases()))
def test_parts_have_the_result_of_the_whole(laboratory: Laboratory, case: Case) -> None:
    _check(laboratory, case)


@pytest.mark.long
@settings(max_examples=1000, suppress_health_check=list(HealthCheck))
@given(case=st.one_of(cases(), normed_cases()))
def test_parts_have_the_result_of_the_whole_over_many_cases(laboratory: Laboratory, case: Case) -> None:
    _check(laboratory, case)


def _check_neighbours(laboratory: Laboratory, case: Case) -> None:
    """Remove a unit: what the merge of parts has moves by no more than the receipt says."""
    with laboratory.run(case) as run, laboratory.engine.transaction() as transaction:
        parts, query = _Parts(transaction, laboratory.public_keys(run)), run.query.first
        found = []
        for without in ("false", is_unit(case, case.removed)):
            frame = with_relation(query.frame, f"(SELECT * FROM {query.frame.rows_sql.relation} WHERE NOT ({without}))")
            table = parts.table(parts.over_rows(Bounded(frame, query.statistics)))
            found.append(read_exact(table, len(frame.keys)))
        before, after = found
        for moved, claim in zip(movements(before, after, len(run.claims)), run.claims, strict=True):
            assert moved.l0 <= run.max_groups, "l0"
            assert moved.linf <= claim.linf, "linf"
            assert moved.l2 <= claim.l2 * (1 + 1e-12), "l2"


_WITH_A_UNIT = st.one_of(cases(), normed_cases()).filter(lambda case: case.removed is not None)


@pytest.mark.thorough
@settings(_SHORT, max_examples=40)
@given(case=_WITH_A_UNIT)
def test_a_unit_moves_what_parts_have_by_no_more_than_the_receipt_says(laboratory: Laboratory, case: Case) -> None:
    _check_neighbours(laboratory, case)


@pytest.mark.long
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(case=_WITH_A_UNIT)
def test_a_unit_moves_parts_by_no_more_over_many_cases(laboratory: Laboratory, case: Case) -> None:
    _check_neighbours(laboratory, case)


def test_a_unit_in_several_parts_moves_more(laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A twin that splits rows and not units must fail."""
    monkeypatch.setattr(sys.modules[__name__], "_UNIT_OF_PARTS", "k")
    laboratory.session.connection.execute("CREATE TABLE torn AS SELECT 1 AS pid, i AS k FROM range(9) t(i)")
    laboratory.session.sql(
        "CALL dp_protect('torn', coverage := FALSE, unit := 'u', privacy_unit_column := 'pid', "
        "max_groups_contributed := 2)"
    )
    query = laboratory.plan("SELECT k, count(DISTINCT pid) AS n FROM torn GROUP BY k").first
    with laboratory.engine.transaction() as transaction:
        parts = _Parts(transaction, None)
        assert parts.table(parts.over_rows(Bounded(query.frame, query.statistics))).num_rows > 2
        monkeypatch.undo()
        assert parts.table(parts.over_rows(Bounded(query.frame, query.statistics))).num_rows == 2


def test_a_merge_of_clamped_values_is_found(laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A twin that counts the values of each part by itself must differ: parts have values in common."""
    counted = partials._counted
    twin = "count(DISTINCT x)", "count(x)"
    monkeypatch.setattr(partials, "_counted", lambda *of: counted(*of).replace(*twin))
    connection = laboratory.session.connection
    connection.execute("CREATE TABLE valued AS SELECT i AS pid, i % 7 AS v, i % 2 AS k FROM range(60) t(i)")
    laboratory.session.sql(
        "CALL dp_protect('valued', coverage := FALSE, unit := 'u', privacy_unit_column := 'pid', "
        "max_groups_contributed := 2, max_rows_per_group := 3)"
    )
    text = "SELECT k, count(DISTINCT v) AS n, count(*) AS c FROM valued GROUP BY k"
    query = laboratory.plan(text).first
    asked = Bounded(query.frame, tuple(one for one in query.statistics if not one.covered))
    with laboratory.engine.transaction() as transaction:
        parts = _Parts(transaction, None)
        whole = parts.rows(asked.sql(SALT))
        assert parts.rows(parts.over_rows(asked)) != whole
        monkeypatch.undo()
        assert parts.rows(parts.over_rows(asked)) == whole
