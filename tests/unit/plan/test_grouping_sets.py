"""Which sets a GROUP BY stands for, as DuckDB says; and how far one unit moves sums of finer groups."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator

import duckdb
import numpy as np
import numpy.typing as npt
import pytest
from sqlglot import exp

import dpsql
from dpsql.bound.aggregation import bounded_sql
from dpsql.cascade.reader import CURATOR
from dpsql.engine import DuckDBEngine
from dpsql.model.private_query import FrameQuery, PrivateQuery
from dpsql.model.query_kinds import GroupingSets
from dpsql.operations.dialect import parse_statement
from dpsql.plan.environment.policy_view import SchemaView
from dpsql.sql.grouping_sets import MOST_SETS, written_sets
from dpsql.sql.statements import SelectStatement, read_statement

GROUPINGS = (
    "ROLLUP (a, b, c)",
    "CUBE (a, b)",
    "GROUPING SETS ((a, b), (a), ())",
    "a, ROLLUP (b, c)",
    "ROLLUP (a, (b, c))",
    "CUBE ((a, b), c)",
    "GROUPING SETS (a, ROLLUP (b, c))",
    "GROUPING SETS (CUBE (a, b), GROUPING SETS ((c), ()), (c))",
    "ROLLUP (a), CUBE (b, c)",
    "a, b, GROUPING SETS ((c), ())",
    "ROLLUP (a, a)",
    "GROUPING SETS ((a, a), (b, a))",
    "CUBE (a), CUBE (a)",
    "GROUPING SETS ((), (), (a))",
    "GROUPING SETS ((a))",
    "ROLLUP (1, 3), 2",
    "CUBE (a, b, c)",
)


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_the_sets_are_duckdbs(grouping: str) -> None:
    group = parse_statement(f"SELECT a, b, c FROM t GROUP BY {grouping}").args["group"]
    assert isinstance(group, exp.Group)
    sets = written_sets(group)
    assert sets is not None
    names = [frozenset("abc"[int(part.name) - 1] if part.name.isdigit() else part.name for part in one) for one in sets]
    shown = ", ".join(_shown(column, grouping) for column in "abc")
    rows = duckdb.execute(
        f"SELECT {shown} FROM (SELECT 'a' AS a, 'b' AS b, 'c' AS c) GROUP BY {_named(grouping)}"
    ).fetchall()
    assert Counter(names) == Counter(frozenset(name for name in row if name) for row in rows)


def _named(grouping: str) -> str:
    """Positions as columns: the select list of the test is another one."""
    return "ROLLUP (a, c), b" if "1, 3" in grouping else grouping


def _shown(column: str, grouping: str) -> str:
    named = _named(grouping)
    inside = any(part == column for part in named.replace("(", " ").replace(")", " ").replace(",", " ").split())
    return f"CASE WHEN grouping({column}) = 0 THEN '{column}' END" if inside else "NULL"


def test_more_sets_than_are_answered_are_not_written_out() -> None:
    keys = ", ".join(f"k{i}" for i in range(60))
    for text in (f"CUBE ({keys})", f"ROLLUP ({keys}), CUBE (a)", "CUBE (a, b, c), CUBE (d, e, f), CUBE (g)"):
        assert written_sets(parse_statement(f"SELECT 1 FROM t GROUP BY {text}").args["group"]) is None
    fits = written_sets(parse_statement("SELECT 1 FROM t GROUP BY CUBE (a, b, c), CUBE (d, e, f)").args["group"])
    assert fits is not None
    assert len(fits) == MOST_SETS


Floats = npt.NDArray[np.float64]
Exact = dict[tuple[int, ...], Floats]
WARDS, SEXES, KINDS = 4, 2, 3
POLICY = (
    "CALL dp_unit('patient', rho_budget := 1e6, delta_threshold := 0.1, delta_conversion := 1e-6)",
    "CALL dp_protect('visits', coverage := FALSE, "
    "unit := 'patient', privacy_unit_column := 'patient', max_rows_per_group := 3)",
    f"CALL dp_domain('visits', 'ward', keys := {list(range(WARDS))})",
    f"CALL dp_domain('visits', 'sex', keys := {list(range(SEXES))})",
    f"CALL dp_domain('visits', 'kind', keys := {list(range(KINDS))})",
)
SETS = ((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,), ())
TEXT = (
    "SELECT ward, sex, kind, count(*), sum(cost, contribution_bounds_per_row => (-2, 5)) FROM visits "
    "GROUP BY CUBE (ward, sex, kind)"
)


class Hospital:
    """A table of visits, and the exact values of every grouping set of one query."""

    def __init__(self) -> None:
        self.session = dpsql.connect(threads=1)
        self.session.connection.execute("CREATE TABLE visits (patient INT, ward INT, sex INT, kind INT, cost DOUBLE)")
        for declaration in POLICY:
            self.session.sql(declaration)
        self.engine = DuckDBEngine(self.session.connection)

    def fill(self, rows: npt.NDArray[np.int64]) -> None:
        self.session.connection.execute("DELETE FROM visits")
        if len(rows):
            self.session.connection.executemany("INSERT INTO visits VALUES (?, ?, ?, ?, ?)", rows.tolist())

    def plan(self, max_groups: int) -> PrivateQuery:
        statement = read_statement(TEXT)
        assert isinstance(statement, SelectStatement)
        options = {"rho": 1.0, "max_groups_contributed": max_groups}
        return self.session._runner.plan(statement, options, CURATOR)[0]

    def exact(self, part: FrameQuery) -> Exact:
        """Per group what is noised of each statistic, in its radius."""
        frame = part.frame.bounding.finer or part.frame
        assert frame.public_keys is not None
        view = SchemaView(self.session._access.read().policy(), self.engine, self.session._runner.sandbox)
        listed = view.public_key_table(frame.public_keys, [key.type for key in frame.keys])
        sql = bounded_sql(part.frame, part.statistics, bytes(range(16)))
        table = self.engine.aggregate(sql, listed_keys=listed, timeout_seconds=None).reveal()
        radii = np.array([statistic.radius_steps for statistic in part.statistics])
        keys = len(part.frame.keys)
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        return {row[:keys]: np.array(row[keys:]) / radii for row in rows}


def moved(before: Exact, after: Exact) -> tuple[Floats, Floats]:
    """Of each statistic how far it moved in one group, and in the square of the l2 norm, in its radius."""
    nothing = np.zeros(3)
    differences = np.array([before.get(key, nothing) - after.get(key, nothing) for key in {*before, *after}])
    if not len(differences):
        differences = np.zeros((1, 3))
    return np.abs(differences).max(axis=0), np.square(differences).sum(axis=0)


@pytest.fixture(scope="module")
def hospital() -> Iterator[Hospital]:
    hospital = Hospital()
    yield hospital
    hospital.session.close()


def rows_of(seed: int) -> npt.NDArray[np.int64]:
    """Visits of a few patients, some with many groups, and some outside of the lists."""
    chance = np.random.default_rng(seed)
    count = int(chance.integers(1, 40))
    columns = [chance.integers(0, high, count) for high in (4, WARDS + 1, SEXES, KINDS)]
    return np.stack([*columns, chance.integers(-4, 8, count)], axis=1)


@pytest.mark.parametrize(
    ("max_groups", "cases"),
    [(1, 1), (5, 2), *(pytest.param(groups, 20, marks=pytest.mark.long) for groups in (1, 2, 3, 5, 24))],
)
def test_a_unit_moves_every_set_by_no_more_than_its_frame_says(hospital: Hospital, max_groups: int, cases: int) -> None:
    parts = _parts(hospital, max_groups)
    for seed in range(cases):
        rows = rows_of(1000 * max_groups + seed)
        hospital.fill(rows)
        whole = [hospital.exact(part) for part in parts]
        hospital.fill(rows[rows[:, 0] != 0])
        for part, before in zip(parts, whole, strict=True):
            linf, squared = moved(before, hospital.exact(part))
            assert (linf <= part.frame.finer_per_group).all()
            assert (squared <= part.frame.unit_groups).all()


@pytest.mark.parametrize("max_groups", [2, 5, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 3, 7, 24))])
def test_one_unit_moves_as_far_as_that_and_further_than_a_plain_group_by(hospital: Hospital, max_groups: int) -> None:
    """Each set has its own worst unit: one whose groups lie in as few of it as they can."""
    for part in _parts(hospital, max_groups):
        kept = [("ward", "sex", "kind").index(key.sql.strip('"')) for key in part.frame.keys]
        every = sorted(
            itertools.product(range(WARDS), range(SEXES), range(KINDS)), key=lambda group: [group[i] for i in kept]
        )
        hospital.fill(np.array([(0, *group, 9) for group in every[:max_groups] for _ in range(9)]))
        before = hospital.exact(part)
        hospital.fill(np.empty((0, 5), dtype=np.int64))
        linf, squared = moved(before, hospital.exact(part))
        assert linf.max() == part.frame.finer_per_group
        assert squared.max() == part.frame.unit_groups
        if part.frame.bounding.finer is not None and part.frame.finer_per_group > 1:
            # what a plain GROUP BY of these keys would claim
            assert squared.max() > min(max_groups, part.frame.key_count or 1)


def _parts(hospital: Hospital, max_groups: int) -> tuple[FrameQuery, ...]:
    sets = hospital.plan(max_groups)
    assert isinstance(sets, GroupingSets)
    assert sets.adds_up
    assert len(sets.parts) == len(SETS)
    return sets.parts


@pytest.mark.parametrize("max_groups", [1, 2, 5, 9])
def test_the_sum_of_squares_is_the_largest_that_there_is(hospital: Hospital, max_groups: int) -> None:
    """Lemma 1 of the proof, by trying out all ways to put the groups of a unit into groups of the set."""
    for part in _parts(hospital, max_groups):
        frame = part.frame
        finer = frame.bounding.finer
        if finer is None or finer.key_count is None:
            continue
        inside = finer.key_count // (frame.key_count or 1)
        assert frame.unit_groups == _most_squares(max_groups, frame.key_count or 1, inside)


def _most_squares(groups: int, boxes: int, inside: int) -> float:
    if not boxes:
        return 0 if not groups else -math.inf
    return max(n * n + _most_squares(groups - n, boxes - 1, n) for n in range(min(groups, inside) + 1))
