"""What a question by relative error may take: refusals name a cap that is granted, and nothing is charged for them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import dpsql
from tests.end_to_end.prepared import with_declarations, with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

TABLES = """
CREATE TABLE visits AS SELECT i AS patient, i % 3 AS ward, i % 5 AS doctor FROM range(3_000) t(i);
"""
DECLARED = (
    "CALL dp_protect('visits', privacy_unit_column := 'patient', max_groups_contributed := 1, max_rows_per_group := 1, "
    "coverage := FALSE, rho_budget := 0.3, delta_threshold := 1e-5, delta_conversion := 1e-6)",
    "CALL dp_domain('visits', 'ward', keys := [0, 1, 2])",
    "CALL dp_analyst('ana', rho_limit := 0.05)",
    "CALL dp_analyst('bea', budget_part := 0.25)",
)
CURE = re.compile(r"Ask with (\w+ = [^,\s]+(?:, \w+ = [^,\s]+)*)\.(?: |$)")
WITH_AUTO = "doctor, sum(ward, contribution_bounds_per_group => AUTO) AS n FROM visits GROUP BY doctor"
FORECAST = re.compile(r"by a forecast from these numbers, a question at rho = (\S+) would be within it")
BY_WARD, BY_DOCTOR = (f"{key}, count(*) AS n FROM visits GROUP BY {key}" for key in ("ward", "doctor"))


@pytest.fixture(scope="module")
def declared() -> Iterator[dpsql.Session]:
    with with_declarations(TABLES, DECLARED) as session:
        yield session


@pytest.fixture
def clinic(declared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(declared) as session:
        session._runner.noise_source = seeded_noise(4)
        yield session


def _ask(handle: dpsql.Session | dpsql.Analyst, options: str, question: str, error: float = 0.1) -> dpsql.Result:
    return handle.sql(
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (target_relative_error = {error}, {options}) {question}"
    )


@pytest.mark.parametrize(
    ("name", "question", "options", "cure"),
    [
        ("curator", BY_WARD, "max_rho = 0.5", "max_rho = 0.3"),
        ("curator", BY_WARD, "max_epsilon = 9", "max_epsilon = 4"),
        ("ana", BY_WARD, "max_rho = 0.5", "max_rho = 0.05"),
        ("ana", BY_DOCTOR, "max_rho = 0.055", "max_rho = 0.05"),
        ("ana", WITH_AUTO, "max_rho = 0.055", "max_rho = 0.05"),
        ("bea", BY_WARD, "max_rho = 0.5", "max_rho = 0.075"),
        ("curator", BY_DOCTOR, "max_rho = 0.25, delta = 1e-4", "max_rho = 0.25, delta = 1e-05"),
    ],
)
def test_a_refusal_names_a_cap_that_is_granted(
    clinic: dpsql.Session, name: str, question: str, options: str, cure: str
) -> None:
    handle = clinic if name == "curator" else clinic.as_analyst(name)
    with pytest.raises(dpsql.AccessError if name == "ana" else dpsql.BudgetError) as raised:
        _ask(handle, options, question)
    message = str(raised.value)
    assert options.split(",", 1)[0] in message
    found = CURE.search(message)
    assert found
    assert found[1] == cure
    granted = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (target_relative_error = 0.1, {cure}) {question}"
    plan = handle.sql(f"FROM dp_explain($$ {granted} $$)").df()
    assert list(plan[plan.name == "affordable"].value) == ["yes"]
    assert cure.startswith("max_rho") or list(plan[plan.name == "max_epsilon"].value) == ["4"]
    assert len(clinic.sql("FROM dp_releases()")) == 0
    assert receipt_of(handle.sql(granted)).charged_rho > 0
    if raised.type is dpsql.BudgetError:
        assert "may cost rho" in message


def test_what_is_held_answers_although_the_cap_cannot_be_paid(clinic: dpsql.Session) -> None:
    """A look at what is stored is free. What it does not answer is refused as a whole, and charges nothing."""
    clinic.sql(f"SELECT {BY_WARD}", rho=0.2)
    answer = receipt_of(_ask(clinic, "max_rho = 0.9", BY_WARD))
    assert (answer.charged_rho, answer.reused) == (0.0, True)
    for _ in range(2):
        with pytest.raises(dpsql.BudgetError, match=r"max_rho = 0\.9 "):
            _ask(clinic, "max_rho = 0.9", BY_WARD, 0.001)
    assert clinic.sql("FROM dp_releases()").df().charged_rho.sum() == pytest.approx(0.2)


def test_a_cap_that_was_too_low_is_told_with_a_level_that_would_do(clinic: dpsql.Session) -> None:
    receipt = receipt_of(_ask(clinic, "max_rho = 0.004", BY_WARD, 0.02))
    assert receipt.rho == 0.004
    assert receipt.missing
    (forecast,) = (found for note in receipt.notes if (found := FORECAST.search(note)))
    assert 0.004 < float(forecast[1]) < 0.1
    enough = receipt_of(_ask(clinic, f"max_rho = {2 * float(forecast[1])}", BY_WARD, 0.02))
    assert not enough.missing
    assert enough.charged_rho == pytest.approx(enough.rho - 0.004, abs=2e-9)
    # a question that cost its last level is counted by it
    (budget,) = clinic.sql("FROM dp_budget('visits')").arrow().to_pylist()
    assert budget["rho_spent"] == pytest.approx(enough.rho, abs=2e-9)
    assert budget["questions_left"] == int((0.3 - enough.rho) / enough.rho)


@pytest.mark.parametrize("question", [BY_WARD, BY_DOCTOR])
def test_charges_of_all_steps_store_the_level_of_the_cap(clinic: dpsql.Session, question: str) -> None:
    """A level from a text has no cap, even above a question by relative error that stored one."""
    answer = _ask(clinic, "max_rho = 0.25", question, error=0.5)
    clinic.sql(f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.01) {question}")
    rows = _charges(clinic)
    assert sum(rho_nano for rho_nano, _ in rows) > receipt_of(answer).charged_rho * 1e9
    assert len(rows) > 1
    assert rows[-1][1] is None
    # a window rounds a level down to its grid
    assert all(0.125e9 < cap_nano <= 0.25e9 for _, cap_nano in rows[:-1] if cap_nano)
    assert len({cap_nano for _, cap_nano in rows[:-1]}) == 1


def test_half_widths_over_the_bounds_of_auto_store_the_level_of_the_cap(clinic: dpsql.Session) -> None:
    clinic.sql(f"SELECT {WITH_AUTO}", target_half_width=500, max_rho=0.2)
    *histograms, count, total = _charges(clinic)
    assert histograms
    assert all(cap_nano is None for _, cap_nano in histograms)
    caps = [cap_nano or 0 for _, cap_nano in (count, total)]
    assert sum(caps) == pytest.approx(0.2e9 * 31 / 32, abs=2)
    assert all(rho_nano < cap_nano for (rho_nano, _), cap_nano in zip((count, total), caps, strict=True))


def _charges(session: dpsql.Session) -> list[tuple[int, int | None]]:
    """Return the amount and the cap of each charge."""
    with session._access.read()._database.read() as connection:
        return connection.execute("SELECT rho_nano, cap_nano FROM charge ORDER BY id").fetchall()
