"""A kind of query that is one file and one row is answered, explained and refused; its rows are read once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.features.kinds import KINDS
from dpsql.model.query_kinds import OneSet
from dpsql.release import stage
from dpsql.release.exact import prepare_reading, read_exact
from dpsql.release.runtime import Runtime
from dpsql.release.stage import read_frame, release_frame
from dpsql.session.runner import StatementRunner
from dpsql.sql.statements import SelectStatement, read_statement
from dpsql.state import Charged, Ledger
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.query_in_steps import PARTS_OF_RHO, InSteps
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import silence

RHO = 0.4
NUMBERS = "count(*) AS n, sum(cost) AS c"
BY_KEYS = {
    "public": f"SELECT ward, {NUMBERS} FROM visits GROUP BY ward ORDER BY ward",
    "private": f"SELECT doctor, {NUMBERS} FROM visits GROUP BY doctor ORDER BY doctor",
    "none": f"SELECT {NUMBERS} FROM visits",
}


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT i // 2 AS patient, i % 3 AS ward, i % 5 AS doctor, i % 90 AS cost "
            "FROM range(1_200) t(i)"
        )
        session.sql(
            "CALL dp_protect('visits', privacy_unit_column := 'patient', coverage := FALSE, "
            "max_groups_contributed := 2, max_rows_per_group := 2, "
            "rho_budget := 1, delta_threshold := 1e-3, delta_conversion := 1e-6)"
        )
        session.sql("CALL dp_domain('visits', 'ward', keys := [0, 1, 2])")
        session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 100])")
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as own:
        silence(own)
        yield own


def in_steps(patched: pytest.MonkeyPatch) -> None:
    """Register the sixth kind, and let every plan of one set be a plan of it."""
    plan = StatementRunner.plan

    def planned(*arguments: Any, **named: Any) -> Any:
        query, *others = plan(*arguments, **named)
        assert type(query) is OneSet
        return InSteps(query.parts, after=query.after), *others

    patched.setitem(KINDS, InSteps, "tests.end_to_end.query_in_steps")
    patched.setattr(StatementRunner, "plan", planned)


def watched(patched: pytest.MonkeyPatch) -> list[str]:
    """Return the charges, readings and releases from here on, in their order."""
    seen: list[str] = []
    whole: dict[str, Callable[..., Any]] = {"charge": Ledger.charge, "read": read_exact, "release": release_frame}

    def noted(name: str) -> Any:
        def call(*arguments: Any) -> Any:
            seen.append(name)
            return whole[name](*arguments)

        return call

    patched.setattr(Ledger, "charge", noted("charge"))
    patched.setattr(stage, "read_exact", noted("read"))
    patched.setattr(stage, "release_frame", noted("release"))
    return seen


@pytest.mark.parametrize("keys", BY_KEYS)
def test_one_reading_is_released_step_by_step(
    session: dpsql.Session, prepared: dpsql.Session, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = BY_KEYS[keys]
    with monkeypatch.context() as patched:
        in_steps(patched)
        seen = watched(patched)
        answer = session.sql(text, rho=RHO)
        assert seen == ["charge", "read", "release", *["charge", "release"] * (len(PARTS_OF_RHO) - 1)]
        assert receipt_of(answer).charged_rho == pytest.approx(RHO, abs=1e-9)
        again = session.sql(text, rho=RHO)
        assert again.fetchall() == answer.fetchall()
        assert receipt_of(again).reused
    assert seen.count("read") == 1
    # every step is an ordinary release with its pin, so that its level is held from then on
    for part in PARTS_OF_RHO:
        assert receipt_of(session.sql(text, rho=part * RHO)).charged_rho == 0.0
    releases = session.sql("FROM dp_releases()").df()
    assert len(releases) == 3 * len(PARTS_OF_RHO)
    assert releases.charged_rho.sum() == pytest.approx(RHO, abs=1e-9)
    # the numbers are those of one release, and of three that read the rows three times
    with with_own_state(prepared) as other:
        silence(other)
        for part in PARTS_OF_RHO:
            apart = other.sql(text, rho=part * RHO)
        assert apart.fetchall() == answer.fetchall()
        assert len(answer) > 0
        charges = [
            one._access.read()._database.rows("SELECT rho_nano, delta_units FROM charge") for one in (session, other)
        ]
        assert charges[0] == charges[1]


def test_it_is_explained_and_refused_like_any_other(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    in_steps(monkeypatch)
    text = BY_KEYS["public"]
    rows = session.sql(f"FROM dp_explain($${text}$$, rho := {RHO})").fetchall()
    assert rows[0][:2] == ("frame", "table")
    assert ("price", "rho", f"{RHO:.9g}") in rows
    with pytest.raises(dpsql.BudgetError) as refused:
        session.sql(text, rho=2.0)
    granted = re.search(r"Ask with rho = ([0-9.]+)", str(refused.value))
    assert granted, refused.value
    assert session.sql("FROM dp_budget()").df().rho_spent[0] == 0.0
    assert receipt_of(session.sql(text, rho=float(granted[1]))).charged_rho == pytest.approx(1.0, abs=0.01)


def test_no_row_is_read_before_a_charge(session: dpsql.Session) -> None:
    statement, runner = read_statement(BY_KEYS["public"]), session._runner
    assert isinstance(statement, SelectStatement)
    query, state, _ = runner.plan(statement, {"rho": RHO}, CURATOR)
    runtime = Runtime(state, runner.engine, runner.sandbox, runner.noise_source)
    reading = prepare_reading(query.first.frame, query.first.statistics, runtime)
    with pytest.raises(AssertionError, match="after a charge"):
        read_frame(reading, Charged(), runtime, None)
