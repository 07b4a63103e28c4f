"""Composition and thresholds of a unit in declarations that are repeated, changed back, or come too late."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Iterator

import pytest

import dpsql
from dpsql.errors import PolicyError
from dpsql.session.declarations.budgets import epsilon_budget
from dpsql.state import ChargeItem, Unit
from tests.end_to_end.prepared import with_own_state

TERMS = tuple((composition, thresholds) for composition in ("'gaussian'", "'zcdp'") for thresholds in ("true", "false"))


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute("CREATE TABLE visits (pid INTEGER)")
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        yield session


def declare(session: dpsql.Session, said: dict[str, str], name: str = "dp_unit('patient'") -> None:
    session.sql(f"CALL {', '.join([name, *(f'{key} := {value}' for key, value in said.items())])})")


def unit(session: dpsql.Session) -> Unit:
    return session._access.read().policy().declared_unit("patient")


def log(session: dpsql.Session) -> list[tuple[str]]:
    with session._access.read()._database.read() as connection:
        return list(connection.execute("SELECT declaration FROM policy_log ORDER BY id"))


def budget(chosen: random.Random) -> dict[str, str]:
    """Return (epsilon, delta) as a curator may write them."""
    epsilon, delta = 10.0 ** chosen.uniform(-1, 1), 10.0 ** chosen.uniform(-12, -3)
    return {"epsilon_budget": f"{epsilon:.3g}", "delta_budget": f"{delta:.2g}"}


def script(chosen: random.Random) -> list[dict[str, str]]:
    """Return declarations of one unit that do not contradict each other: the first names a budget."""
    composition, thresholds = chosen.choice(TERMS)
    terms = {"composition": composition, "thresholds": thresholds}
    if chosen.random() < 0.25:
        # rho means something else by other terms, so these go with it
        parts = {
            "rho_budget": f"{chosen.uniform(0.01, 1):.3g}",
            "delta_conversion": f"{chosen.uniform(1e-9, 1e-6):.2g}",
        }
        parts |= {"delta_threshold": "1e-7"} if thresholds == "true" else {}
        first, later = parts | terms, [{name: value} for name, value in (parts | terms).items()]
    else:
        first = budget(chosen)
        later = [{name: value} for name, value in (first | terms).items()]
    return [first, *chosen.sample(later, len(later)), *chosen.sample(later, 2)]


def test_a_script_that_runs_again_changes_nothing(prepared: dpsql.Session) -> None:
    chosen = random.Random(33)
    for _ in range(20):
        with with_own_state(prepared) as session:
            if chosen.random() < 0.5:
                # there was another unit under this name
                declare(
                    session,
                    budget(chosen) | dict(zip(("composition", "thresholds"), chosen.choice(TERMS), strict=True)),
                )
            said = script(chosen)
            for one in said:
                declare(session, one | {"replace": "true"})
            before, logged = unit(session), log(session)
            for one in said:
                declare(session, one)
                assert unit(session) == before, (said, one)
            assert log(session) == logged


def test_other_terms_and_back_is_the_same_budget(prepared: dpsql.Session) -> None:
    chosen = random.Random(34)
    for _ in range(10):
        with with_own_state(prepared) as session:
            said = budget(chosen)
            declare(session, said)
            before = unit(session)
            for composition, thresholds in (*chosen.sample(TERMS, 3), TERMS[0]):
                # without replace: it protects no less
                declare(session, {"composition": composition, "thresholds": thresholds})
                after = unit(session)
                named = (float(said["epsilon_budget"]), float(said["delta_budget"]))
                assert (epsilon_budget(after), after.delta_budget) == named
            assert unit(session) == before


def test_another_composition_alone_changes_no_delta(session: dpsql.Session) -> None:
    parts = {"rho_budget": "0.5", "delta_threshold": "1e-6", "delta_conversion": "1e-7"}
    declare(session, parts | {"composition": "'zcdp'"})
    before = unit(session)
    declare(session, {"composition": "'gaussian'"})
    after = unit(session)
    assert (after.delta_threshold, after.delta_conversion) == (before.delta_threshold, before.delta_conversion)
    assert after.rho_budget > before.rho_budget
    assert epsilon_budget(after) == epsilon_budget(before)
    # a policy script that names the parts can run at every start
    declare(session, parts)
    assert unit(session).rho_budget == 500_000_000
    declare(session, {"composition": "'gaussian'"})
    assert unit(session) == dataclasses.replace(before, composition="gaussian")


def test_less_protection_by_other_terms_is_named(session: dpsql.Session) -> None:
    declare(session, {"epsilon_budget": "3", "delta_budget": "1e-6"})
    for said, words in (
        ({"epsilon_budget": "3.1"}, "epsilon_budget from 3 to 3.1"),
        ({"delta_budget": "2e-6"}, "delta_budget from 1e-06 to 2e-06"),
        ({"rho_budget": "0.3"}, "epsilon_budget from 3 to 3.6"),
    ):
        before = unit(session)
        with pytest.raises(PolicyError, match=re.escape(words)):
            declare(session, said | {"thresholds": "false"})
        assert unit(session) == before
    # less rho by a larger epsilon is less protection
    with pytest.raises(PolicyError, match=re.escape("epsilon_budget from 3 to 3.1")):
        declare(session, {"epsilon_budget": "3.1", "composition": "'zcdp'"})
    declare(session, {"epsilon_budget": "2.9", "delta_budget": "1e-6", "thresholds": "false"})


@pytest.mark.parametrize(
    ("name", "more"),
    [("dp_unit('visits'", {}), ("dp_protect('visits'", {"privacy_unit_column": "'pid'", "coverage": "false"})],
    ids=["dp_unit", "dp_protect"],
)
def test_terms_are_fixed_by_the_first_charge(session: dpsql.Session, name: str, more: dict[str, str]) -> None:
    declare(session, {"epsilon_budget": "3", "delta_budget": "1e-6"} | more, name)
    state = session._access.write()
    state.ledger.charge("visits", [ChargeItem("s", 1, 0)], "ana")
    before, logged = state.policy(), log(session)
    for said, words in (
        ({"composition": "'zcdp'"}, "composition is 'gaussian'"),
        ({"thresholds": "false"}, "thresholds is true"),
        ({"thresholds": "false", "composition": "'zcdp'"}, "composition is 'gaussian', thresholds is true"),
    ):
        for again in ({}, {"replace": "true"}, {"epsilon_budget": "0.1", "delta_budget": "1e-9"}):
            with pytest.raises(PolicyError, match=f"has paid for answers, .*{words}; leave that out"):
                declare(session, said | again, name)
            assert (state.policy(), log(session)) == (before, logged)
    # the terms that it has, in any letters, are no change
    declare(session, {"composition": "'GAUSSIAN'", "thresholds": "true"}, name)
    assert (state.policy(), log(session)) == (before, logged)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"composition": "'pld'"}, "'gaussian' .*'zcdp'"),
        ({"composition": "''"}, "'gaussian' .*'zcdp'"),
        ({"composition": "3"}, "composition takes text in quotes"),
        ({"composition": "NULL"}, "composition cannot be removed"),
        ({"thresholds": "NULL"}, "thresholds cannot be removed"),
        ({"thresholds": "0"}, "thresholds takes TRUE or FALSE"),
        ({"thresholds": "'no'"}, "thresholds takes TRUE or FALSE"),
    ],
)
def test_other_terms_are_refused(session: dpsql.Session, said: dict[str, str], words: str) -> None:
    new = {"epsilon_budget": "3", "delta_budget": "1e-6"}
    with pytest.raises(PolicyError, match=words):
        declare(session, new | said)
    assert session._access.read().policy().units == ()
    declare(session, new | {"composition": "'ZCDP'"})
    before = unit(session)
    assert before.composition == "zcdp"
    with pytest.raises(PolicyError, match=words):
        declare(session, said)
    assert unit(session) == before


def test_a_delta_that_draws_take_is_refused_without_thresholds(session: dpsql.Session) -> None:
    for small in ({"epsilon_budget": "1", "delta_budget": "1e-30"}, {"epsilon_budget": "1", "delta_budget": "1e-31"}):
        with pytest.raises(PolicyError, match="below what the finite precision of the noise costs"):
            declare(session, small | {"thresholds": "false"})
    # terms may change with the whole budget, whatever the old one was
    declare(session, {"epsilon_budget": "19", "delta_budget": "1e-20"})
    with pytest.raises(PolicyError, match="finite precision"):
        declare(session, {"thresholds": "false"})
    declare(session, {"epsilon_budget": "1", "delta_budget": "1e-6", "thresholds": "false", "replace": "true"})
    assert json.loads(log(session)[-1][0])["thresholds"] is False


def test_the_delta_for_imprecise_draws_never_rises_unsaid(session: dpsql.Session) -> None:
    """At levels as high as these, the kept delta of a budget by rho is less than that of its epsilon."""
    parts = {"rho_budget": "3.65546", "delta_conversion": "2.07e-12", "thresholds": "false"}
    declare(session, parts | {"composition": "'zcdp'"})
    declared = unit(session)
    epsilon = epsilon_budget(declared)
    declare(session, {"epsilon_budget": f"{epsilon!r}"})
    assert unit(session) == declared
    lower = {"epsilon_budget": f"{epsilon * (1.0 - 1e-9)!r}", "delta_budget": f"{declared.delta_budget!r}"}
    declare(session, lower)
    lowered = unit(session)
    assert lowered.rho_budget < declared.rho_budget
    assert (lowered.delta_threshold, lowered.delta_budget) == (declared.delta_threshold, declared.delta_budget)
    declare(session, lower)
    assert unit(session) == lowered
