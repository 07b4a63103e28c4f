"""The bounded aggregation and its coverage in one pass: each is what its own query gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dpsql.bound.aggregation import bounded_sql
from dpsql.bound.coverage import coverage_sql
from dpsql.bound.one_pass import one_pass_sql
from dpsql.model.frame import PRESENCE
from dpsql.plan.features.coverage import with_coverage
from tests.unit.bound.exact_runs import SALT, Laboratory
from tests.unit.bound.normed_cases import normed_cases
from tests.unit.bound.query_descriptions import Case
from tests.unit.bound.random_cases import cases

_SHORT = settings(
    max_examples=12, derandomize=True, database=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,)
)


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    opened = Laboratory()
    yield opened
    opened.close()


def _rows(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, table.to_pylist()))


def _check(laboratory: Laboratory, case: Case) -> bool:
    with laboratory.run(case) as run:
        query = run.query.first
        asked = tuple(one for one in with_coverage(query).statistics if one.covered)
        if not asked:
            return False
        listed = laboratory.public_keys(run)

        def read(sql: str) -> pa.Table:
            return laboratory.engine.aggregate(sql, listed_keys=listed, timeout_seconds=None).reveal()

        covered = _rows(read(coverage_sql(query.frame, asked, SALT)))
        # also where the numbers are stored already, and coverage alone needs a column
        for due in (query.statistics, (PRESENCE,), query.statistics[:2]):
            bounded = _rows(read(bounded_sql(query.frame, due, SALT)))
            for formulation in {"groups_first", *laboratory.formulations(query.frame)} & {"groups_first", "last_kept"}:
                found = read(one_pass_sql(query.frame, due, asked, SALT, formulation=formulation))
                is_group = pc.is_null(found.column("measure"))
                groups = found.filter(is_group).drop_columns(["measure", "place"])
                assert _rows(groups) == bounded
                places = found.filter(pc.invert(is_group)).select(["measure", "place", "units"])
                assert _rows(places) == covered
    return True


@settings(_SHORT)
@given(case=st.one_of(cases(), normed_cases()))
def test_one_pass_gives_what_two_queries_give(laboratory: Laboratory, case: Case) -> None:
    _check(laboratory, case)


@pytest.mark.long
@settings(max_examples=2000, suppress_health_check=list(HealthCheck))
@given(case=st.one_of(cases(), normed_cases()))
def test_one_pass_gives_what_two_queries_give_over_many_cases(laboratory: Laboratory, case: Case) -> None:
    _check(laboratory, case)
