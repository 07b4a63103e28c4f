"""Questions of the kind that docs/contribute/query-kind.md adds: python -m tests.documents.in_steps.

They run on a copy of dpsql that has the kind. `tests/documents/test_contribute.py` builds it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

import dpsql
from dpsql.errors import EngineError
from dpsql.model.query_kinds import OneSet
from dpsql.plan import planner
from dpsql.release import stage
from dpsql.release.exact import read_exact
from dpsql.release.stage import read_frame
from dpsql.state import Charged, Ledger
from tests.end_to_end.prepared import with_declarations, with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import silence

RHO = 0.4
STEPS = (0.1, 0.5, 1.0)
NUMBERS = "count(*) AS n, sum(cost) AS c"
BY_KEYS = {
    "public": f"SELECT ward, {NUMBERS} FROM visits GROUP BY ward ORDER BY ward",
    "private": f"SELECT doctor, {NUMBERS} FROM visits GROUP BY doctor ORDER BY doctor",
}
AUTO_BOUNDS = BY_KEYS["private"].replace("sum(cost)", "sum(cost, contribution_bounds_per_group => AUTO)")
TABLE = (
    "CREATE TABLE visits AS SELECT i // 2 AS patient, i % 3 AS ward, i % 5 AS doctor, i % 90 AS cost "
    "FROM range(1_200) t(i)"
)
DECLARATIONS = (
    "CALL dp_protect('visits', privacy_unit_column := 'patient', coverage := FALSE, "
    "max_groups_contributed := 2, max_rows_per_group := 2, "
    "rho_budget := 1, delta_threshold := 1e-3, delta_conversion := 1e-6)",
    "CALL dp_domain('visits', 'ward', keys := [0, 1, 2])",
    "CALL dp_domain('visits', 'cost', bounds := [0, 100])",
)


@contextmanager
def watched(fails_at: int | None = None) -> Iterator[list[str]]:
    """Note the charges, readings and releases from here on, in their order; let one of the releases fail."""
    seen: list[str] = []

    def noted(name: str, whole: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            seen.append(name)
            if name == "release" and seen.count(name) == fails_at:
                raise EngineError("interrupted")
            return whole(*arguments)

        return call

    with (
        mock.patch.object(Ledger, "charge", noted("charge", Ledger.charge)),
        mock.patch.object(stage, "read_exact", noted("read", read_exact)),
        mock.patch.object(stage, "release_frame", noted("release", stage.release_frame)),
    ):
        yield seen


def charges(session: dpsql.Session) -> list[dict[str, Any]]:
    """Return nano-rho and delta units of each charge."""
    return session._access.read()._database.rows("SELECT rho_nano, delta_units FROM charge")


def spent(session: dpsql.Session) -> float:
    """Return the rho that was spent."""
    return float(session.sql("FROM dp_budget()").df().rho_spent[0])


def explained(session: dpsql.Session, text: str, options: str) -> dict[tuple[str, str], str]:
    """Return the rows of a plan by section and name."""
    rows = session.sql(f"FROM dp_explain($${text}$$, {options})").fetchall()
    return {(section, name): value for section, name, value in rows}


def check_that_one_reading_is_released_step_by_step(prepared: dpsql.Session) -> None:
    for text in BY_KEYS.values():
        with with_own_state(prepared) as session, with_own_state(prepared) as apart:
            silence(session)
            with watched() as seen:
                answer = session.sql(text, rho=RHO)
                again = session.sql(text, rho=RHO)
            assert seen == ["charge", "read", "release", *["charge", "release"] * 2, *["release"] * 3]
            assert receipt_of(answer).charged_rho == pytest.approx(RHO, abs=1e-9)
            assert receipt_of(again).reused
            assert again.fetchall() == answer.fetchall()
            assert len(answer) > 0
            # the level of every step is held from then on
            assert [receipt_of(session.sql(text, rho=step * RHO)).charged_rho for step in STEPS] == [0.0] * 3
            # numbers and charges are those of questions of one release each, which read the rows three times
            silence(apart)
            with mock.patch.object(planner, "InSteps", OneSet), watched() as seen:
                *_, last = [apart.sql(text, rho=step * RHO) for step in STEPS]
            assert seen == ["charge", "read", "release"] * 3
            assert last.fetchall() == answer.fetchall()
            assert charges(apart) == charges(session)


def check_that_a_plan_says_what_an_answer_costs(prepared: dpsql.Session) -> None:
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        (BY_KEYS["public"], {"rho": RHO}),
        (BY_KEYS["private"], {"epsilon": 1.0}),
        (BY_KEYS["private"], {"target_half_width": 700.0}),
        (BY_KEYS["public"], {"rho": RHO, "max_groups_contributed": "AUTO"}),
        (AUTO_BOUNDS, {"epsilon": 1.0, "max_groups_contributed": "AUTO"}),
    )
    for text, options in cases:
        with with_own_state(prepared) as session:
            plan = explained(session, text, ", ".join(f"{name} := {value!r}" for name, value in options.items()))
            answer = session.sql(text, **options)
            receipt = receipt_of(answer)
            case = f"{text} {options}: {plan}, {receipt}"
            assert len(answer) > 0, case
            assert len(session.sql("FROM dp_releases()")) == len(STEPS), case
            assert receipt.charged_rho == pytest.approx(spent(session), abs=1e-9), case
            assert receipt.charged_rho == pytest.approx(receipt.asked_rho, abs=1e-8), case
            assert receipt.epsilon <= options.get("epsilon", 100.0), case
            rho, delta = (plan["price", name].split(",")[0] for name in ("rho", "threshold delta"))
            assert float(rho) == pytest.approx(receipt.charged_rho, abs=1e-8), case
            assert float(delta) >= receipt.charged_delta * (1 - 1e-5), case
            alone = re.findall(r"= ([\d.e-]+)", plan["mechanism", "this query alone"])
            assert [float(one) for one in alone] == pytest.approx([receipt.epsilon, receipt.delta], rel=1e-4), case
            if "target_half_width" in options:
                assert float(plan["target", "rho"]) == pytest.approx(receipt.charged_rho, abs=1e-8), case
                assert float(plan["target", "epsilon"]) == pytest.approx(receipt.epsilon, rel=1e-4), case
            assert receipt_of(session.sql(text, **options)).charged_rho == 0.0, case


def check_that_too_little_budget_charges_nothing(prepared: dpsql.Session) -> None:
    cases: tuple[dict[str, Any], ...] = ({}, {"max_groups_contributed": "AUTO"})
    for options in cases:
        with with_own_state(prepared) as session:
            with pytest.raises(dpsql.BudgetError) as refused:
                session.sql(BY_KEYS["private"], rho=2.0, **options)
            assert spent(session) == 0.0
            granted = re.search(r"Ask with rho = ([0-9.]+)", str(refused.value))
            assert granted, refused.value
            answer = session.sql(BY_KEYS["private"], rho=float(granted[1]), **options)
            assert receipt_of(answer).charged_rho == pytest.approx(1.0, abs=0.011)


def check_that_the_delta_of_all_thresholds_is_asked_for_before_auto(prepared: dpsql.Session) -> None:
    with with_own_state(prepared) as session:
        with pytest.raises(dpsql.BudgetError):
            session.sql(BY_KEYS["private"], rho=RHO, delta=4e-4, max_groups_contributed="AUTO")
        assert spent(session) == 0.0


def check_that_an_interrupted_question_is_paid_once(prepared: dpsql.Session) -> None:
    for keys, fails_at in (("public", 2), ("private", 3)):
        with with_own_state(prepared) as session:
            with watched(fails_at) as seen, pytest.raises(EngineError):
                session.sql(BY_KEYS[keys], rho=RHO)
            assert seen.count("charge") == fails_at
            assert spent(session) == pytest.approx(STEPS[fails_at - 1] * RHO, abs=1e-9)
            session.sql(BY_KEYS[keys], rho=RHO)
            assert spent(session) == pytest.approx(RHO, abs=1e-9)


def check_that_no_row_is_read_before_a_charge(prepared: dpsql.Session) -> None:
    def uncharged(reading: Any, _charged: Charged, *others: Any) -> Any:
        return read_frame(reading, Charged(), *others)

    with (
        with_own_state(prepared) as session,
        mock.patch.object(stage, "read_frame", uncharged),
        pytest.raises(AssertionError, match="after a charge"),
    ):
        session.sql(BY_KEYS["public"], rho=RHO)


if __name__ == "__main__":
    with with_declarations(TABLE, DECLARATIONS) as session:
        for check in [function for name, function in vars().items() if name.startswith("check_")]:
            check(session)
            sys.stdout.write(f"{check.__name__}\n")
