"""Levels that round to no level: an error of our own that names the option, at every door, and no charge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.errors import CalibrationError, PolicyError, UnsupportedQueryError
from dpsql.frontends.dbt.model_options import model_options
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end.prepared import with_declarations, with_own_state
from tests.serving import ask, door, in_background

PRIVATE = "SELECT city, count(*) AS n FROM visits GROUP BY city"
PUBLIC = "SELECT kind, count(*) AS n FROM visits GROUP BY kind"
SUM = "SELECT kind, sum(cost, contribution_bounds_per_row => AUTO) AS n FROM visits GROUP BY kind"
HIDDEN_SUM = "SELECT city, sum(cost, contribution_bounds_per_row => AUTO) AS n FROM visits GROUP BY city"
SETS = "SELECT city, kind, count(*) AS n FROM visits GROUP BY GROUPING SETS ((city), (kind))"
TABLES = "CREATE TABLE visits AS SELECT i AS pid, i % 3 AS city, i % 5 AS kind, i % 7 AS cost FROM range(3000) t(i)"
DECLARED = (
    "CALL dp_unit('patient', rho_budget := 1, delta_threshold := 1e-6, delta_conversion := 1e-6)",
    "CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'pid', max_groups_contributed := 2, "
    "max_rows_per_group := 3, default_delta := 1e-9)",
    "CALL dp_domain('visits', 'kind', keys := [0, 1, 2, 3, 4])",
    "CALL dp_analyst('ana')",
)
Options = dict[str, Any]
RELATIVE: Options = {"target_relative_error": 0.5}
WIDE: Options = {"target_half_width": 50}


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with with_declarations(TABLES, DECLARED) as session:
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        yield session


def refusals(session: dpsql.Session, text: str, options: Options) -> tuple[str, str]:
    """Return what a question is refused by, when it is explained and when it is asked."""
    statement = read_statement(text)
    assert isinstance(statement, SelectStatement)
    with pytest.raises(CalibrationError) as explained:
        session._runner.explained(statement, options, CURATOR)
    with pytest.raises(CalibrationError) as asked:
        session.sql(text, **options)
    assert session._access.read().ledger.spent("patient").rho_nano == 0
    return str(explained.value), str(asked.value)


@pytest.mark.parametrize("level", [5e-324, 1e-12, 4e-10, 1e-9])
@pytest.mark.parametrize(
    ("text", "others", "name"),
    [
        (PRIVATE, {}, "rho"),
        (PRIVATE, {}, "epsilon"),
        (SETS, {}, "rho"),
        (SETS, {}, "epsilon"),
        *((text, RELATIVE, "max_rho") for text in (PRIVATE, PUBLIC, SUM, HIDDEN_SUM)),
        (SUM, WIDE, "max_rho"),
    ],
)
def test_a_level_that_rounds_to_none_is_refused_in_its_own_words(
    session: dpsql.Session, text: str, others: Options, name: str, level: float
) -> None:
    for told in refusals(session, text, {**others, name: level}):
        assert told.startswith((f"{name} = {level:.3g} is too small for ", f"{name} = {level:.9g} is too small for "))
        assert told.endswith(f"Ask for more {name}.")


@pytest.mark.parametrize("text", [PUBLIC, SUM, PRIVATE])
def test_an_epsilon_of_a_target_that_allows_no_level_is_refused(session: dpsql.Session, text: str) -> None:
    for told in refusals(session, text, {**RELATIVE, "max_epsilon": 1e-7}):
        assert told == "max_epsilon = 1e-07 allows no rho; ask for more max_epsilon"


def test_the_smallest_cap_that_is_granted_is_asked(session: dpsql.Session) -> None:
    text = "SELECT count(DISTINCT pid) AS n FROM visits"
    with pytest.raises(CalibrationError, match="max_rho = 1e-10 is too small for 1 statistic: "):
        session.sql(text, **RELATIVE, max_rho=1e-10)
    session.sql(text, **RELATIVE, max_rho=1e-9)
    assert session._access.read().ledger.spent("patient").rho_nano == 1


def test_a_ceiling_or_window_below_every_level_is_refused(session: dpsql.Session) -> None:
    values: Options = {"rho_ceiling": (1e-12, 9e-10), "rho_window": ([1e-12, 1], [1e-12, 2e-12])}
    for option in values:
        for value in values[option]:
            with pytest.raises(
                UnsupportedQueryError, match=rf"option {option} has a value.* from 1e-[69] to a million"
            ):
                session.sql(PRIVATE, rho=0.1, **{option: value})


@pytest.mark.parametrize(
    "call",
    [
        "dp_protect('visits', default_rho := 1e-12)",
        "dp_protect('visits', rho_ceiling := 9e-10)",
        "dp_protect('visits', rho_window := [1e-12, 1])",
        "dp_protect('visits', rho_window := [1e-12, 2e-12])",
        "dp_analyst('bob', rho_limit := 1e-12)",
        "dp_unit('q', rho_budget := 1e-12, delta_threshold := 1e-7, delta_conversion := 1e-7)",
        "dp_unit('q', epsilon_budget := 1e-9, delta_budget := 1e-6)",
        "dp_unit('q', epsilon_budget := 1e-9, delta_budget := 1e-6, thresholds := false)",
    ],
)
def test_a_declared_level_that_rounds_to_none_is_refused(session: dpsql.Session, call: str) -> None:
    before = session._access.read().policy()
    with pytest.raises(PolicyError, match=r"at least (rho = )?1e-9"):
        session.sql(f"CALL {call}")
    assert session._access.read().policy() == before


def test_a_budget_part_that_rounds_to_nothing_grants_nothing(session: dpsql.Session) -> None:
    session.sql("CALL dp_analyst('bob', budget_part := 1e-12)")
    with pytest.raises(dpsql.BudgetError, match="the part of the budget"):
        session.as_analyst("bob").sql(PUBLIC, rho=0.01)


def test_a_cap_that_rounds_to_none_is_refused_at_every_door(session: dpsql.Session) -> None:
    told = "max_rho = 4e-10 is too small for 3 statistics: each takes rho = 1e-9 at least. Ask for more max_rho."
    options = {**RELATIVE, "max_rho": 4e-10}
    for text in ("FROM dp_explain($$ {} $$, {})", "FROM dp_query($$ {} $$, {})"):
        named = ", ".join(f"{name} := {value}" for name, value in options.items())
        with pytest.raises(CalibrationError) as refused:
            session.sql(text.format(PUBLIC, named))
        assert str(refused.value) == told
    with pytest.raises(CalibrationError) as refused:
        session.sql(PUBLIC, **model_options("m", {**options, "materialized": "private_table"}, {"materialized"}))
    assert str(refused.value) == told
    unit = dpsql.unit("small levels", column="pid", epsilon_budget=3, delta_budget=1e-6)
    rows: Any = pd.DataFrame({"pid": range(300), "kind": [0, 1, 2] * 100})
    with pytest.raises(CalibrationError, match=r"max_rho = 4e-10 is too small for \d statistic.*more max_rho\."):
        rows.dp.groupby("kind", unit=unit, max_groups=1, public_keys=[0, 1, 2], **options).size()
    with in_background(session, door("ana")) as urls:
        answer = ask(urls.analysts, "ana", PUBLIC, **options)
    assert answer.status == 422
    assert told in answer.body.decode()
