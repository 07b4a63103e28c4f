"""Exact values of what bounds leave out: from rows, from pairs, and from pairs after bounds, all the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest

import dpsql
from dpsql.bound.coverage import unclamped
from dpsql.bound.kept_pairs import KEPT_PAIRS
from dpsql.bound.pairs import PAIRS
from dpsql.bound.statement import Bounded, LeftOut
from dpsql.cascade.reader import CURATOR
from dpsql.engine import DuckDBEngine
from dpsql.model.frame import PRESENCE, Statistic
from dpsql.model.private_query import FrameQuery
from dpsql.operations.row_sql import STAND_IN_SALT
from dpsql.release.exact import no_keys, require_runs
from dpsql.release.held_pairs import HeldPairs
from dpsql.release.left_out_stage import read_left_out
from dpsql.release.runtime import Runtime, hold_kept, hold_pairs, read_units
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end.reading_rows import watch_statements

SALT = bytes(range(16))
BY_CITY = "SELECT city, count(*), sum(cost), count(DISTINCT person) FROM visits GROUP BY city"
IN_ALL = "SELECT count(*), sum(cost) FROM visits"
SHOWN = pa.table({"key_0": ["city 1", "city 2", "city 5"]})


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect() as opened:
        opened.connection.execute(
            "CREATE TABLE visits AS SELECT hash(i) % 40 AS person, 'city ' || hash(i, 1) % 23 AS city, "
            "(hash(i, 2) % 900)::DOUBLE AS cost FROM range(2000) r(i)"
        )
        opened.connection.execute("CREATE TABLE people (person INTEGER PRIMARY KEY, city VARCHAR, cost DOUBLE)")
        opened.connection.execute("INSERT INTO people SELECT i, 'city ' || i % 7, 40 * i FROM range(60) r(i)")
        opened.sql("CALL dp_unit('person', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)")
        for table in ("visits", "people"):
            opened.sql(
                f"CALL dp_protect('{table}', unit := 'person', privacy_unit_column := 'person', "
                "max_groups_contributed := 4, max_rows_per_group := 2)"
            )
            opened.sql(f"CALL dp_domain('{table}', 'cost', bounds := [0, 500])")
        yield opened


def planned(session: dpsql.Session, text: str) -> FrameQuery:
    statement = read_statement(text)
    assert isinstance(statement, SelectStatement)
    return session._runner.plan(statement, {"rho": 0.1, "delta": 1e-6}, CURATOR)[0].first


def runtime_of(session: dpsql.Session) -> Runtime:
    """Return what a reading runs on; it draws nothing and stores nothing."""
    engine, nothing = DuckDBEngine(session.connection), cast("Any", None)
    return Runtime(nothing, engine, nothing, nothing)


def measured_in(query: FrameQuery) -> list[tuple[Statistic, int]]:
    return [(one, {"rows": 2, "sum": 9}[one.kind]) for one in query.statistics if one.kind in ("rows", "sum")]


def left_out(session: dpsql.Session, query: FrameQuery, *, held: str = "", listed: pa.Table | None) -> dict[str, int]:
    """Return what is left out, after the numbers were read, which hold pairs if they are to."""
    runtime, frame, measured = runtime_of(session), query.frame, measured_in(query)
    statistics = [one for one, _ in measured]
    bounded = Bounded(frame, tuple(one for one in query.statistics if not one.covered))
    needed = (*bounded.measured, *map(unclamped, statistics))
    with runtime.until_end:
        if "pairs" in held:
            hold_pairs(frame, needed, None, runtime)
            # a first reading, of presence counts alone
            read_units(Bounded(frame, (PRESENCE,)), SALT, runtime, None, None)
        if "kept" in held:
            hold_kept(bounded, statistics, SALT, None, runtime)
        numbers = read_units(bounded, SALT, runtime, None, None).reveal()
        apart = (
            DuckDBEngine(session.connection)
            .aggregate(bounded.sql(SALT), listed_keys=None, timeout_seconds=None)
            .reveal()
        )
        assert sorted(map(repr, numbers.to_pylist())) == sorted(map(repr, apart.to_pylist()))
        found = read_left_out(frame, measured, SALT, runtime, listed, None)
    return {f"{one.kind} {one.filter_sql}": value for one, value in found.items()}


@pytest.mark.parametrize("text", [BY_CITY, IN_ALL, BY_CITY.replace("visits", "people")])
def test_all_tables_have_the_same_values(session: dpsql.Session, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    query = planned(session, text)
    listed = SHOWN if query.frame.keys else None
    seen = watch_statements(monkeypatch, lambda sql: "lost" in sql)
    found = {
        held: left_out(session, query, held=held, listed=listed) for held in ("", "pairs", "kept", "kept from pairs")
    }
    assert all(one == found[""] for one in found.values())
    assert len(found[""]) == 2
    assert max(found[""].values()) > 0
    has_one_row = "people" in text
    reads = {"pairs": f"temp.main.{PAIRS}", "kept": f"temp.main.{KEPT_PAIRS}"}
    for name, table in reads.items():
        assert any(table in sql and "left_1" in sql for sql in seen) is not has_one_row, name


def test_fewer_shown_keys_have_less_left_out(session: dpsql.Session) -> None:
    query = planned(session, BY_CITY)
    some, none = (left_out(session, query, held="kept", listed=keys) for keys in (SHOWN, SHOWN.slice(0, 0)))
    assert all(some[name] > none[name] == 0 for name in some)


def test_the_statement_is_tried_on_empty_tables(session: dpsql.Session) -> None:
    for text in (BY_CITY, IN_ALL):
        query = planned(session, text)
        frame, measured = query.frame, measured_in(query)
        sql = LeftOut(frame, tuple(measured)).sql(STAND_IN_SALT)
        listed = no_keys(frame) if frame.keys else None
        require_runs(frame, [one for one, _ in measured], sql, listed, DuckDBEngine(session.connection))


def test_statistics_that_need_rows_have_no_pairs_after_bounds(session: dpsql.Session) -> None:
    query = planned(session, "SELECT city, count(*), count(DISTINCT cost) FROM visits GROUP BY city")
    assert any(one.kind == "values" for one in query.statistics)
    runtime, measured = runtime_of(session), [one for one in query.statistics if one.kind == "rows"]
    assert measured
    with runtime.until_end:
        hold_kept(Bounded(query.frame, query.statistics), measured, SALT, None, runtime)
        assert not runtime.held
        hold_kept(Bounded(query.frame, (PRESENCE, *measured), kind="coverage"), measured, SALT, None, runtime)
        assert not runtime.held
        hold_kept(Bounded(query.frame, (PRESENCE, *measured)), measured, SALT, None, runtime)
        assert [type(one) for one in runtime.held] == [HeldPairs]
