"""Each bound that neither policy nor text names is left to AUTO by itself, and a named one is used."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.errors import Refusal
from dpsql.model.frame import Norm
from dpsql.model.private_query import AutoGroups, FrameQuery
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

BOUNDS = {"max_groups_contributed": 4, "max_rows_per_group": 2, "max_rows_per_unit": 20}
DECLARED = [names for size in range(4) for names in itertools.combinations(BOUNDS, size)]
KEYS = ("k", "p", "")
"""Private keys, public keys, no keys."""
CALLS = (
    "count(*)", "count(x)", "sum(x)", "avg(x)", "stddev(x)", "count(DISTINCT u)", "median(x)", "count(DISTINCT x)",
    "sum(x, contribution_bounds_per_group => (0, 10))", "sum(x, contribution_bounds_per_row => (0, 10))",
    "avg(x, contribution_bounds_per_row => (0, 10))", "count(*), sum(x, contribution_bounds_per_group => (0, 10))",
    "count(*), avg(x), median(x), sum(x)",
)  # fmt: skip


def named(declared: tuple[str, ...], with_domain: bool) -> str:
    return "".join(["t", *(str(list(BOUNDS).index(one)) for one in declared), "_domain" if with_domain else ""])


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    """Open 2,000 units with 4 rows, in 3 or 4 of 6 groups, under every choice of bounds, with and without a domain."""
    with dpsql.connect(threads=1) as opened:
        opened.connection.execute(
            "CREATE TABLE rows AS SELECT u, 'k' || (u + i * i) % 6 AS k, u % 2 = 0 AS p, "
            "(hash(u, i) % 100)::DOUBLE AS x FROM range(2000) r(u), range(4) s(i)"
        )
        opened.sql("CALL dp_unit('unit', rho_budget := 900, delta_threshold := 0.1, delta_conversion := 1e-6)")
        for declared, with_domain in itertools.product(DECLARED, (False, True)):
            table = named(declared, with_domain)
            opened.connection.execute(f"CREATE TABLE {table} AS FROM rows")
            bounds = "".join(f", {name} := {BOUNDS[name]}" for name in declared)
            opened.sql(
                f"CALL dp_protect('{table}', unit := 'unit', privacy_unit_column := 'u', coverage := FALSE, "
                f"default_rho := 0.5, default_delta := 1e-6{bounds})"
            )
            opened.sql(f"CALL dp_domain('{table}', 'p', keys := [true, false])")
            if with_domain:
                opened.sql(f"CALL dp_domain('{table}', 'x', bounds := [0, 100])")
        opened._runner.noise_source = seeded_noise(31)
        yield opened


def planned(session: dpsql.Session, sql: str, **options: object) -> FrameQuery:
    statement = read_statement(sql)
    assert isinstance(statement, SelectStatement)
    return session._runner.plan(statement, options, CURATOR)[0].first


def query_of(table: str, key: str, calls: str) -> str:
    return f"SELECT {key + ', ' if key else ''}{calls} FROM {table}" + (f" GROUP BY {key}" if key else "")


def check_named_bounds_are_used(query: FrameQuery, declared: tuple[str, ...]) -> None:
    bounding = query.frame.bounding
    finds_groups = any(isinstance(one, AutoGroups) for one in query.auto)
    if query.frame.key_count is None:
        assert finds_groups == ("max_groups_contributed" not in declared)
        assert finds_groups or bounding.max_groups == BOUNDS["max_groups_contributed"]
    if bounding.by_norm:
        most = BOUNDS["max_rows_per_unit"] if "max_rows_per_unit" in declared else None
        assert bounding.max_rows == most
    elif "max_rows_per_group" in declared:
        capped = {one.row_cap for one in query.statistics[1:] if not one.group_bounds_steps and one.kind != "values"}
        assert capped <= {BOUNDS["max_rows_per_group"]}
        assert not any(isinstance(one.limit, Norm) for one in query.statistics)


def check_plans(session: dpsql.Session, cases: Iterable[tuple[tuple[str, ...], str, str, bool]]) -> None:
    for declared, key, calls, with_domain in cases:
        query = planned(session, query_of(named(declared, with_domain), key, calls))
        check_named_bounds_are_used(query, declared)


def test_no_query_is_refused_for_a_missing_bound(session: dpsql.Session) -> None:
    """Every choice of bounds with every call; keys and domains in turn."""
    pairs = enumerate(itertools.product(DECLARED, CALLS))
    check_plans(session, ((bounds, KEYS[i % 3], calls, i % 2 == 0) for i, (bounds, calls) in pairs))


@pytest.mark.long
def test_no_query_at_all_is_refused_for_a_missing_bound(session: dpsql.Session) -> None:
    check_plans(session, itertools.product(DECLARED, KEYS, CALLS, (False, True)))


def test_a_number_of_groups_may_be_named_by_the_text(session: dpsql.Session) -> None:
    for i, declared in enumerate(DECLARED):
        query = planned(session, query_of(named(declared, False), "k", CALLS[i % 6]), max_groups_contributed=3)
        assert query.frame.bounding.max_groups == 3


@pytest.mark.parametrize("declared", [("max_groups_contributed",), ("max_rows_per_group",), ("max_rows_per_unit",)])
def test_what_is_left_to_auto_is_answered(session: dpsql.Session, declared: tuple[str, ...]) -> None:
    calls = "count(*) AS n, sum(x) AS s, avg(x) AS a, count(DISTINCT u) AS units"
    answer = session.sql(query_of(named(declared, False), "k", calls))
    rows = answer.arrow().to_pylist()
    assert {row["k"] for row in rows} == {f"k{i}" for i in range(6)}
    # no unit has more than two rows in a group
    exact = {
        row["k"]: row for row in session.connection.sql(query_of("rows", "k", calls)).arrow().read_all().to_pylist()
    }
    for row in rows:
        assert row["n"] == pytest.approx(exact[row["k"]]["n"], rel=0.25)
        assert row["s"] == pytest.approx(exact[row["k"]]["s"], rel=0.4)
        assert row["a"] == pytest.approx(exact[row["k"]]["a"], rel=0.25)
        assert row["units"] == pytest.approx(exact[row["k"]]["units"], rel=0.25)
    # nothing is asked of the data again
    assert receipt_of(session.sql(query_of(named(declared, False), "k", calls))).charged_rho == 0.0


def test_quantiles_and_distinct_values_need_only_a_unit(session: dpsql.Session) -> None:
    answer = session.sql(query_of("t", "", "median(x) AS m, count(DISTINCT x) AS n"))
    notes = receipt_of(answer).notes
    assert not any("max_rows_per_group" in note for note in notes), "nobody named it"
    assert any(note.startswith("median(x): read from ") for note in notes), "it is called as in the query"
    (row,) = answer.arrow().to_pylist()
    assert row["m"] == pytest.approx(50.0, abs=5.0)
    assert row["n"] == pytest.approx(100.0, abs=60.0)


def refused(session: dpsql.Session, sql: str, **options: Any) -> list[Refusal]:
    with pytest.raises(dpsql.UnsupportedQueryError) as raised:
        session.sql(sql, **options)
    return list(raised.value.refusals)


@pytest.fixture(scope="module")
def without_level() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as opened:
        opened.connection.execute("CREATE TABLE t (u INTEGER, k VARCHAR, p BOOLEAN, x DOUBLE)")
        opened.sql("CALL dp_protect('t', privacy_unit_column := 'u', epsilon_budget := 1, delta_budget := 1e-6)")
        opened.sql("CALL dp_domain('t', 'p', keys := [true, false])")
        yield opened


LEVELS: tuple[dict[str, float], ...] = (
    {},
    {"epsilo": 1},
    {"epsilon": 0},
    {"epsilon": -1},
    {"epsilon": 1, "rho": 1},
    {"epsilon": 1, "size": 2},
)
OF_LEVEL = {"option", "privacy_level_missing"}


@pytest.mark.parametrize(("options", "in_text"), [*((one, True) for one in LEVELS), ({"epsilo": 1}, False)], ids=str)
def test_without_a_level_nothing_else_is_wrong(
    without_level: dpsql.Session, options: dict[str, object], in_text: bool
) -> None:
    clause = f"WITH DIFFERENTIAL_PRIVACY OPTIONS ({', '.join(f'{a} = {b}' for a, b in options.items())}) "
    given = {} if in_text else options
    for key, calls in zip(KEYS, ("count(*), sum(x)", "avg(x), median(x)", "count(DISTINCT u)"), strict=True):
        sql = query_of("t", key, calls).replace("SELECT ", f"SELECT {clause if in_text and options else ''}")
        codes = [one.code for one in refused(without_level, sql, **given)]
        assert set(codes) <= OF_LEVEL
        assert ("option" in codes) == bool(options)
        # the same with what would be wrong at any level, after the level
        worse = refused(without_level, sql.replace(calls, f"{calls}, max(x)"), **given)
        assert [one.code for one in worse] == [*codes, "aggregate"]
        place = worse[-1].span
        assert place is not None
        assert place.start == sql.replace(calls, f"{calls}, max(x)").index("max(x)")


@pytest.mark.parametrize("options", [{"epsilon": 1}, {}, {"epsilo": 1}], ids=str)
def test_groups_of_one_unit_are_refused_with_all_else(without_level: dpsql.Session, options: dict[str, object]) -> None:
    codes = [one.code for one in refused(without_level, "SELECT u, count(*), max(x) FROM t GROUP BY u", **options)]
    assert [code for code in codes if code not in OF_LEVEL] == ["aggregate", "single_units"]
    codes = [one.code for one in refused(without_level, "SELECT u, sum(x) FROM t GROUP BY u", **options)]
    assert [code for code in codes if code not in OF_LEVEL] == ["single_units"]
