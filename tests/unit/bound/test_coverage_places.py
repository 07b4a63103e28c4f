"""Coverage: one unit stands in one place of each histogram, and places tell on average what bounding leaves."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from dpsql.bound.aggregation import bounded_sql
from dpsql.bound.coverage import BUCKETS, CORNERS, PLACES, coverage_sql, first_end, most_left
from dpsql.model.frame import PRESENCE, Frame, Statistic
from dpsql.model.private_query import FrameQuery
from dpsql.plan.features.coverage import with_coverage
from tests.frames import with_relation
from tests.unit.bound.exact_runs import SALT, Laboratory, Rewrite, Run, is_unit, unchanged
from tests.unit.bound.normed_cases import normed_cases
from tests.unit.bound.query_descriptions import Case
from tests.unit.bound.random_cases import cases

Integers = npt.NDArray[np.int64]
_SHORT = settings(
    max_examples=10, derandomize=True, database=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,)
)


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    opened = Laboratory()
    yield opened
    opened.close()


def _covered(query: FrameQuery) -> tuple[Statistic, ...]:
    return tuple(one for one in with_coverage(query).statistics if one.covered)


def _counts(
    laboratory: Laboratory, run: Run, statistics: Sequence[Statistic], without: str, rewrite: Rewrite
) -> Integers:
    frame = run.query.first.frame
    if without:
        frame = with_relation(frame, f"(SELECT * FROM {frame.rows_sql.relation} WHERE NOT ({without}))")
    sql = rewrite(coverage_sql(frame, statistics, SALT))
    table = laboratory.engine.aggregate(sql, listed_keys=laboratory.public_keys(run), timeout_seconds=None).reveal()
    counts = np.zeros((len(statistics), PLACES), dtype=np.int64)
    for measure, place, units in zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True):
        counts[measure - 1, place] += units
    return counts


def _check(laboratory: Laboratory, case: Case, rewrite: Rewrite = unchanged) -> None:
    with laboratory.run(case) as run:
        if not run.query.first.frame.is_measured:
            return
        statistics = _covered(run.query.first)
        if not statistics:
            return
        before = _counts(laboratory, run, statistics, "", rewrite)
        after = _counts(laboratory, run, statistics, is_unit(case, case.removed), rewrite)
        moved = before - after
        assert moved.min() >= 0, "places of other units"
        assert moved.sum(axis=1).max() <= 1, "places of one unit"
        units = len({row[0] for row in case.rows if row[0] is not None})
        assert before.sum(axis=1).max() <= units, "places of all units"


@settings(_SHORT)
@given(case=st.one_of(cases().filter(lambda case: case.removed is not None), normed_cases()))
def test_a_unit_stands_in_one_place_of_each_histogram(laboratory: Laboratory, case: Case) -> None:
    _check(laboratory, case)


@pytest.mark.long
@settings(max_examples=2000, suppress_health_check=list(HealthCheck))
@given(case=st.one_of(cases().filter(lambda case: case.removed is not None), normed_cases()))
def test_a_unit_stands_in_one_place_of_each_histogram_over_many_cases(laboratory: Laboratory, case: Case) -> None:
    _check(laboratory, case)


_FAULTS = {
    "a place for each group": lambda sql: re.sub(
        r"FROM per_group GROUP BY unit\)",
        "FROM per_group GROUP BY ALL)",
        (sql.replace("SELECT unit, count(*) AS n", "SELECT unit, hash(per_group) AS own, count(*) AS n")),
    ),
    "drawn by all units together": lambda sql: sql.replace(
        "hash(hash(unit, 'coverage", "hash(hash((SELECT count(*) FROM per_unit), 'coverage"
    ),
}


@pytest.mark.parametrize("fault", _FAULTS)
def test_the_check_catches_a_planted_fault(laboratory: Laboratory, fault: str) -> None:
    @settings(_SHORT, max_examples=150, derandomize=False)
    @seed(5)
    @given(case=cases().filter(lambda case: case.removed is not None))
    def look(case: Case) -> None:
        _check(laboratory, case, _FAULTS[fault])

    with pytest.raises(AssertionError, match="places of"):
        look()


SALTS = 20
"""Units are drawn by the salt and by themselves: many units under few salts tell as much as few under many."""
ROWS = (
    "CREATE TABLE IF NOT EXISTS t AS SELECT u, i AS k, j, (u % 7) * 1e0 + j AS x "
    "FROM range(300) r(u), range(12) s(i), range(9) n(j) "
    "WHERE (u * 7 + i * 5) % 11 < u % 9 AND j <= (u + i) % 6"
)
QUESTIONS = {
    "groups": ("count(DISTINCT u)", "max_groups_contributed = 3"),
    "rows": ("count(*)", "max_groups_contributed = 3"),
    "some rows": ("count(*) FILTER (WHERE x > 4)", "max_groups_contributed = 3"),
    "rows with weights": ("count(*)", "max_groups_contributed = 3, bounding = L2"),
    "clamped rows": ("sum(x, contribution_bounds_per_row => (0, 6))", "max_groups_contributed = 3"),
    "clamped groups": ("sum(x, contribution_bounds_per_group => (0, 12))", "max_groups_contributed = 12"),
    "rows by norm": ("count(*, contribution_norm => 4)", "max_groups_contributed = 6, bounding = NORM"),
    "sums by norm": ("sum(x, contribution_norm => 20)", "max_groups_contributed = 6, bounding = NORM"),
    "rows by norm, many groups": ("count(*, contribution_norm => 9)", "max_groups_contributed = 2, bounding = NORM"),
    "values that cancel": (
        "sum(CASE WHEN j % 2 = 0 THEN 10 ELSE -9 END, contribution_bounds_per_group => (-9, 9))",
        "max_groups_contributed = 12",
    ),
    "no keys": ("count(*, contribution_bounds_per_group => (0, 5))", ""),
}


def _totals(laboratory: Laboratory, frame: Frame, covered: Statistic, salt: bytes) -> float:
    """What the numbers themselves add up to, over all groups."""
    statistics = (PRESENCE,) if covered == PRESENCE else (PRESENCE, covered)
    rows = laboratory.session.connection.execute(bounded_sql(frame, statistics, salt)).fetchall()
    keys, step = len(frame.keys), 2.0 ** frame.exact_exponent(statistics[-1])
    total = float(sum(row[-1] for row in rows) * step)
    if covered.kind == "presence":
        return total
    units = sum(row[keys] for row in rows) * 2.0 ** frame.exact_exponent(statistics[0])
    return float(total + covered.centre * units)


@pytest.mark.parametrize("question", QUESTIONS)
def test_places_tell_on_average_what_bounding_leaves(laboratory: Laboratory, question: str) -> None:
    aggregate, options = QUESTIONS[question]
    session = laboratory.session
    session.connection.execute(ROWS)
    session.sql(
        "CALL dp_protect('t', coverage := FALSE, unit := 'u', privacy_unit_column := 'u', max_rows_per_group := 3)"
    )
    hint = f"WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) " if options else ""
    by = "" if question == "no keys" else " GROUP BY k"
    query = laboratory.plan(f"SELECT {hint}{aggregate} FROM t{by}").first
    (asked,) = (one for one in _covered(query) if one.covered and one.covered.kind in ("presence", "rows", "sum"))
    covered = asked.covered
    assert covered is not None
    salts = [bytes([number % 256, number // 256, *range(14)]) for number in range(SALTS)]
    ends = first_end(covered) * np.ldexp(1.0, np.arange(BUCKETS))
    most = most_left(covered, query.frame)
    sizes, left, kept = [], [], []
    for salt in salts:
        found = session.connection.execute(coverage_sql(query.frame, (asked,), salt)).fetchall()
        counts = np.zeros(PLACES)
        for _, place, units in found:
            counts[place] += units
        assert counts[-1] == 0
        corners = counts[:-1].reshape(BUCKETS, CORNERS)
        sizes.append(float(ends @ (corners[:, 1] + corners[:, 3])))
        left.append(float(np.minimum(ends, most) @ (corners[:, 2] + corners[:, 3])))
        kept.append(_totals(laboratory, query.frame, covered, salt))
    condition = " WHERE x > 4" if question == "some rows" else ""
    what = {"presence": "count(DISTINCT (u, k))", "rows": "count(*)", "sum": "sum(x)"}[covered.kind]
    source = f"t{condition}"
    if "cancel" in question:
        source = "(SELECT abs(sum(CASE WHEN j % 2 = 0 THEN 10 ELSE -9 END)) AS x FROM t GROUP BY u, k)"
    (whole,) = session.connection.execute(f"SELECT {what} FROM {source}").fetchall()[0]
    # four standard deviations of a mean of 20; p = 1e-3 for each (Student)
    limit = 4 / math.sqrt(SALTS)
    assert np.mean(sizes) == pytest.approx(whole, abs=limit * float(np.std(sizes)) + 1e-9)
    spread = math.hypot(float(np.std(left)), float(np.std(kept)))
    by_norm = 0.02 * whole if "norm" in question else 0.0
    assert np.mean(left) == pytest.approx(np.mean(kept), abs=limit * spread + by_norm + 1e-9)
    assert np.mean(kept) < 0.97 * whole
