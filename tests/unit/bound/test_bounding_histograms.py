"""Delete one unit: the cells of its groups move by what a unit's rows may be, no others; plain Python agrees."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest

from dpsql.bound.aggregation import bounded_sql
from dpsql.model.cells import Cells
from dpsql.model.private_query import PrivateQuery
from tests.frames import with_relation
from tests.unit.bound.exact_runs import SALT, Laboratory
from tests.unit.bound.query_descriptions import literal

CAP, MAX_GROUPS = 3, 2
EDGES = Cells.of(-5.0, 20.0).edges
CELLS = len(EDGES) - 1
STEPS = 256
QUERY = (
    "SELECT k, median(x, contribution_bounds_per_row => (-5, 20)) FILTER (WHERE y > 0), "
    "quantile_cont(x, 0.1, contribution_bounds_per_row => (-5, 20)) FILTER (WHERE y > 0), count(DISTINCT y) "
    "FROM {table} GROUP BY k"
)
Row = tuple[int | None, int | None, float | None, int | None]
Counts = dict[int | None, npt.NDArray[np.int64]]


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    opened = Laboratory()
    yield opened
    opened.close()


def random_rows(chance: random.Random) -> list[Row]:
    usual = (chance.uniform(-8, 25) for _ in range(9))
    small = (chance.uniform(-1, 1) * 10.0 ** -chance.uniform(1, 6) for _ in range(4))
    values = (None, math.nan, math.inf, -math.inf, -1e300, 1e300, -5.0, 20.0, 0.0, EDGES[200], *usual, *small)
    rows: list[Row] = []
    for unit in (1, 2, 3, None):
        for key in chance.sample([0, 1, 2, 3, None], 4):
            rows += [
                (unit, key, chance.choice(values), chance.choice([None, -1, 1, 2]))
                for _ in range(chance.choice([1, 2, 3, 9]))
            ]
    chance.shuffle(rows)
    return rows


def planned(laboratory: Laboratory, table: str, rows: list[Row]) -> PrivateQuery:
    connection = laboratory.session.connection
    connection.execute(f"CREATE OR REPLACE TABLE {table} (pid INTEGER, k INTEGER, x DOUBLE, y INTEGER)")
    listed = ", ".join(f"({', '.join(map(literal, row))})" for row in rows)
    connection.execute(f"INSERT INTO {table} VALUES {listed}")
    laboratory.session.sql(
        f"CALL dp_protect('{table}', coverage := FALSE, "
        f"unit := 'u', privacy_unit_column := 'pid', max_rows_per_group := {CAP}, "
        f"max_groups_contributed := {MAX_GROUPS})"
    )
    return laboratory.plan(QUERY.format(table=table))


def exact(
    laboratory: Laboratory, query: PrivateQuery, rewrite: Callable[[str], str] = str, *, without: int | None = None
) -> Counts:
    """Return the cells of every group, of all rows or of those of other units than ``without``.

    The query's histogram is one statistic, whatever its quantiles.
    """
    (place,) = (i for i, one in enumerate(query.first.statistics) if one.kind == "histogram")
    frame = query.first.frame
    if without is not None:
        relation = f"(SELECT * FROM {frame.rows_sql.relation} WHERE pid IS DISTINCT FROM {without})"
        frame = with_relation(frame, relation)
    sql = rewrite(bounded_sql(frame, query.first.statistics, SALT))
    table = laboratory.engine.aggregate(sql, listed_keys=None, timeout_seconds=None).reveal()
    columns = [table.column(f"stat_{place}_{j}").to_pylist() for j in range(CELLS)]
    return dict(zip(table.column("key_0").to_pylist(), np.array(columns, dtype=np.int64).T, strict=True))


def reference(laboratory: Laboratory, rows: list[Row]) -> Counts:
    """The same by plain Python; DuckDB is asked for the hashes that order groups alone."""
    groups: dict[int, set[int | None]] = defaultdict(set)
    for unit, key, _, _ in rows:
        if unit is not None:
            groups[unit].add(key)
    pairs = [(unit, key) for unit, keys in groups.items() for key in keys]
    order = dict(zip(pairs, laboratory.hashes(pairs, ["INTEGER", "INTEGER"]), strict=True))
    found: Counts = {}
    for unit, keys in groups.items():
        for key in sorted(keys, key=lambda one: order[unit, one])[:MAX_GROUPS]:
            values = [x for u, k, x, y in rows if (u, k) == (unit, key) and y is not None and y > 0 and x is not None]
            places = Counter(cell(x) for x in values if math.isfinite(x))
            cells = found.setdefault(key, np.zeros(CELLS, dtype=np.int64))
            n = sum(places.values())
            for place, count in places.items():
                cells[place] += count * CAP * STEPS // n if n > CAP else count * STEPS
    return found


def cell(value: float) -> int:
    return sum(edge <= value for edge in EDGES[1:-1])


def moves(before: Counts, after: Counts) -> list[int]:
    """How far the cells of each group that moved at all are moved, in the l1 norm."""
    zeros = np.zeros(CELLS, dtype=np.int64)
    moved = [int(np.abs(before.get(k, zeros) - after.get(k, zeros)).sum()) for k in {**before, **after}]
    return [steps for steps in moved if steps]


def checked(laboratory: Laboratory, seed: int, rewrite: Callable[[str], str] = str) -> Iterator[tuple[int, int]]:
    """Yield the number of groups, and the most rows (in steps), that each unit moves."""
    rows = random_rows(random.Random(seed))
    query = planned(laboratory, f"h{seed}", rows)
    whole = exact(laboratory, query, rewrite)
    if rewrite is str:
        expected = reference(laboratory, rows)
        assert {k: cells.tolist() for k, cells in whole.items()} == {k: c.tolist() for k, c in expected.items()}
    for unit in (1, 2, 3):
        found = moves(whole, exact(laboratory, query, rewrite, without=unit))
        yield len(found), max(found, default=0)


def test_a_unit_moves_cells_by_no_more_than_its_rows(laboratory: Laboratory) -> None:
    found = [moved for seed in range(2) for moved in checked(laboratory, seed)]
    assert max(groups for groups, _ in found) == MAX_GROUPS
    assert max(steps for _, steps in found) == CAP * STEPS


def _uncapped(sql: str) -> str:
    return sql.replace(f"n > {CAP} THEN", "n > 1000 THEN")


def _unkept(sql: str) -> str:
    return sql.replace(f"<= {MAX_GROUPS}),", "<= 1000),")


def test_planted_faults_are_seen(laboratory: Laboratory) -> None:
    assert any(steps > CAP * STEPS for _, steps in checked(laboratory, 0, _uncapped))
    assert any(groups > MAX_GROUPS for groups, _ in checked(laboratory, 0, _unkept))
