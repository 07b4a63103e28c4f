"""The record of a bounded statement: which rows each kind has, and which numbers of parts of a table add up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import dpsql
from dpsql.bound.formulations import Formulation
from dpsql.bound.statement import Bounded, Kind
from dpsql.cascade.reader import CURATOR
from dpsql.model.frame import PRESENCE
from dpsql.plan.features.coverage import with_coverage
from dpsql.sql.statements import SelectStatement, read_statement
from tests.frames import with_bounding, with_relation
from tests.unit.bound.exact_runs import SALT, ExactTable, Laboratory, read_exact
from tests.unit.bound.normed_cases import normed_cases
from tests.unit.bound.query_descriptions import Case
from tests.unit.bound.random_cases import cases

SHORT = settings(
    max_examples=20, derandomize=True, database=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,)
)
GROUPS, PLACES, SHARDS = ["key_0", "units", "stat_1"], ["measure", "place", "units"], ["shard", "key_0", "units"]


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    opened = Laboratory()
    yield opened
    opened.close()


def in_part(laboratory: Laboratory, bounded: Bounded, listed: pa.Table | None, condition: str) -> ExactTable:
    """Return the groups of the rows for which a condition holds."""
    frame = bounded.frame
    bounded = replace(bounded, frame=with_relation(frame, f"(SELECT * FROM {frame.rows_sql.relation} {condition})"))
    table = laboratory.engine.aggregate(bounded.sql(SALT), listed_keys=listed, timeout_seconds=None).reveal()
    return read_exact(table, len(frame.keys))


@SHORT
@given(case=st.one_of(cases(), normed_cases()))
def test_numbers_of_parts_with_whole_units_add_up(laboratory: Laboratory, case: Case) -> None:
    """Before the minimum and the floor; no number here is as large as the clamp."""
    with laboratory.run(case) as run:
        statistics = tuple(one for one in run.query.first.statistics if one.kind != "values")
        frame = with_bounding(run.query.first.frame, minimum_units=1, sparsity=None)
        bounded, listed = Bounded(frame, statistics), laboratory.public_keys(run)
        parts = [
            in_part(laboratory, bounded, listed, f"WHERE hash(pid) % 3 {sign} 0 AND pid IS NOT NULL")
            for sign in ("=", "<>")
        ]
        whole = in_part(laboratory, bounded, listed, "")
    assert parts[0].keys() | parts[1].keys() == whole.keys()
    for group, numbers in whole.items():
        found = [part[group] for part in parts if group in part]
        assert tuple(map(sum, zip(*found, strict=True))) == numbers


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect() as opened:
        opened.connection.execute(
            "CREATE TABLE visits AS SELECT i // 4 AS patient, 'city ' || i % 3 AS city FROM range(80) t(i)"
        )
        opened.sql(
            "CALL dp_protect('visits', privacy_unit_column := 'patient', max_groups_contributed := 2, "
            "epsilon_budget := 3, delta_budget := 1e-6)"
        )
        yield opened


def asked(session: dpsql.Session, kind: Kind) -> Bounded:
    """Return a record of a kind."""
    statement = read_statement("SELECT city, count(*) AS n FROM visits GROUP BY city")
    assert isinstance(statement, SelectStatement)
    query = with_coverage(session._runner.plan(statement, {"rho": 0.1, "delta": 1e-9}, CURATOR)[0].first)
    due = tuple(one for one in query.statistics if not one.covered)
    coverage = tuple(dict.fromkeys(one for one in query.statistics if one.covered))
    return Bounded(query.frame, due, coverage if kind in ("covered_groups", "coverage") else (), kind)


@pytest.mark.parametrize(
    ("kind", "formulation", "columns"),
    [
        ("groups", "groups_first", GROUPS),
        ("groups", "one_row", GROUPS),
        ("covered_groups", "groups_first", [*GROUPS, "measure", "place"]),
        ("covered_groups", "one_row", GROUPS),
        ("coverage", "groups_first", PLACES),
        ("coverage", "one_row", PLACES),
        ("shards", "groups_first", SHARDS),
    ],
)
def test_each_kind_has_its_rows(
    session: dpsql.Session, kind: Kind, formulation: Formulation, columns: list[str]
) -> None:
    table = session.connection.sql(asked(session, kind).sql(SALT, formulation)).to_arrow_table()
    assert table.column_names == columns
    assert table.num_rows > 0


def test_presence_counts_are_read_in_any_case(session: dpsql.Session) -> None:
    bounded = asked(session, "groups")
    (numbers,) = (one for one in bounded.statistics if one != PRESENCE)
    orders = ((numbers,), (PRESENCE, numbers), (numbers, PRESENCE))
    assert len({replace(bounded, statistics=due).sql(SALT) for due in orders}) == 1
