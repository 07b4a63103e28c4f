"""Composition and thresholds of a unit, named in pandas and in dbt: a file of today and one of an earlier program."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dpsql
from dpsql.frontends.dbt.declarations import declarations
from dpsql.session.declarations.budgets import budgeted
from tests.fixtures.stories import FOLDER, TABLES

EPSILON, DELTA = 20, 0.01
NAMED: dict[str, Any] = {"epsilon_budget": EPSILON, "delta_budget": DELTA}
DEFAULTS: dict[str, Any] = {"composition": "gaussian", "thresholds": True}
TERMS: list[dict[str, Any]] = [
    {},
    {"composition": "zcdp"},
    {"thresholds": False},
    {"composition": "zcdp", "thresholds": False},
]


def old_file(folder: Path) -> Path:
    """A state file of an earlier program, whose unit has the budget that ``NAMED`` gave it there."""
    state = folder / "old.dpsql"
    then = budgeted("patient", EPSILON, DELTA, "zcdp")
    with closing(sqlite3.connect(state)) as connection:
        connection.executescript((FOLDER / "plain.sql").read_text(encoding="utf-8"))
        connection.execute(
            "UPDATE unit SET rho_budget = ?, delta_threshold = ?, delta_conversion = ?",
            (then.rho_budget, str(then.delta_threshold), then.delta_conversion),
        )
        connection.commit()
        # it has no columns for compositions and thresholds yet
        assert len(connection.execute("SELECT * FROM unit").fetchone()) == 4
    return state


def by_day(unit: dpsql.PrivacyUnit, frame: Any) -> Any:
    """Count patients by day; the days are public keys."""
    return frame.dp.groupby("day", unit=unit, rho=0.5, max_groups=2, public_keys=[0, 1, 2, 3]).nunique_units()


@pytest.fixture(scope="module")
def visits() -> Any:
    """The rows of table visits, as Any, because type checkers know nothing of ``df.dp``."""
    with dpsql.connect() as session:
        session.connection.execute(TABLES.read_text(encoding="utf-8"))
        return session.connection.sql("FROM visits").df()


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_a_frame_declares_the_terms_of_a_new_unit_and_keeps_them(
    terms: dict[str, Any], visits: Any, tmp_path: Path
) -> None:
    def unit(**named: Any) -> dpsql.PrivacyUnit:
        return dpsql.unit("patient", column="patient", state=tmp_path / "new.dpsql", source="visits", **named)

    answer = by_day(unit(**NAMED, **terms), visits)
    declared = {**DEFAULTS, **terms}
    assert unit().budget()["rho_budget"].item() == budgeted("patient", EPSILON, DELTA, **declared).rho_budget / 1e9
    # what is not named is what the unit has
    for agreeing in ({}, NAMED, terms, {**NAMED, **declared}):
        assert by_day(unit(**agreeing), visits).equals(answer), agreeing
    others: tuple[dict[str, Any], ...] = (
        {"composition": "zcdp" if declared["composition"] == "gaussian" else "gaussian"},
        {"thresholds": not declared["thresholds"]},
    )
    for other in (*others, {**NAMED, **others[0]}, {**NAMED, **others[1]}, {**NAMED, "epsilon_budget": 21}):
        named = ", ".join(f"{name}={value!r}" for name, value in other.items())
        with pytest.raises(dpsql.PolicyError, match=re.escape(f"has another budget than {named}; leave them out")):
            by_day(unit(**other), visits)


def test_a_frame_agrees_with_the_unit_of_an_earlier_program(visits: Any, tmp_path: Path) -> None:
    state = old_file(tmp_path)
    for named in ({}, NAMED, {**NAMED, "composition": "zcdp", "thresholds": True}):
        answer = by_day(dpsql.unit("patient", state=state, source="visits", **named), visits)
        assert answer.attrs["dpsql"]["charged_rho"] == 0
    with pytest.raises(dpsql.PolicyError, match="has another budget than composition='gaussian'"):
        by_day(dpsql.unit("patient", state=state, source="visits", composition="gaussian"), visits)


def test_terms_without_a_budget_begin_no_unit(visits: Any) -> None:
    nobody = dpsql.unit("nobody", column="patient", source="visits", composition="zcdp", thresholds=False)
    with pytest.raises(dpsql.PolicyError, match="has no budget yet"):
        by_day(nobody, visits)


def test_a_word_that_no_unit_has_is_refused() -> None:
    for composition in ("pld", "", 3):
        with pytest.raises(dpsql.PolicyError, match=r"composition='gaussian' \(.*composition='zcdp' \("):
            dpsql.unit("patient", composition=composition)  # type: ignore[arg-type]
    with pytest.raises(dpsql.PolicyError, match=r"thresholds=True .* thresholds=False .*, not thresholds='no'"):
        dpsql.unit("patient", thresholds="no")  # type: ignore[arg-type]


def declared_by_dbt(session: dpsql.Session, budget: dict[str, Any]) -> Any:
    """Carry out the units of a dbt project as dbt has read them; returns what the policy says of units then."""
    node = {"name": "visits", "meta": {"dp": {"units": {"patient": budget}}}}
    for statement in declarations({"nodes": {"model.clinic.visits": node}, "sources": {}}, [], lambda _: None):
        session.sql(statement)
    policy = session.sql("FROM dp_policy()").fetchall()
    return {setting: value for kind, _, setting, value in policy if kind == "unit"}


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_a_dbt_project_declares_terms_and_changes_nothing_when_it_runs_again(
    terms: dict[str, Any], tmp_path: Path
) -> None:
    with dpsql.connect(state=tmp_path / "new.dpsql") as session:
        first = declared_by_dbt(session, {**NAMED, **terms})
        budget = budgeted("patient", EPSILON, DELTA, **{**DEFAULTS, **terms})
        assert first["rho_budget"] == str(budget.rho_budget / 1e9)
        assert (first["composition"], first["thresholds"]) == (budget.composition, str(budget.thresholds))
        # what meta.dp does not name stays
        for again in ({**NAMED, **terms}, NAMED, terms):
            assert declared_by_dbt(session, again) == first


def test_a_dbt_project_runs_twice_on_the_file_of_an_earlier_program(tmp_path: Path) -> None:
    with dpsql.connect(state=old_file(tmp_path)) as session:
        first = declared_by_dbt(session, {})
        for again in (NAMED, NAMED, {**NAMED, "composition": "zcdp", "thresholds": True}):
            assert declared_by_dbt(session, again) == first
        # it was charged
        for other in ({"composition": "gaussian"}, {"thresholds": False, "replace": True}):
            with pytest.raises(dpsql.PolicyError):
                declared_by_dbt(session, {**NAMED, **other})
        assert declared_by_dbt(session, {}) == first


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"composition": "pld"}, ("'gaussian'", "'zcdp'")),
        ({"composition": True}, ("composition takes text",)),
        ({"thresholds": "false"}, ("thresholds takes TRUE or FALSE",)),
        ({"compositon": "zcdp"}, ("no argument compositon", "Did you mean composition?")),
        ({"treshold": False}, ("no argument treshold", "Did you mean thresholds?")),
    ],
)
def test_a_word_that_meta_dp_does_not_take_is_refused(named: dict[str, Any], words: tuple[str, ...]) -> None:
    with dpsql.connect() as session, pytest.raises(dpsql.PolicyError) as refused:
        declared_by_dbt(session, {**NAMED, **named})
    assert all(word in str(refused.value) for word in words), refused.value
