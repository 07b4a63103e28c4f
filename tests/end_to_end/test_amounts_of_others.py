"""A reader with a limit sees no amount of the unit: charges of others follow from numbers that others were shown."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

import dpsql
from tests.end_to_end.prepared import with_declarations, with_own_state
from tests.noise_sources import seeded_noise

TABLES = "CREATE TABLE visits AS SELECT i AS patient, i % 10 AS ward, i % 90 AS cost FROM range(3_000) t(i)"
DECLARED = (
    "CALL dp_unit('patient', rho_budget := 4, delta_threshold := 1e-5, delta_conversion := 1e-6)",
    "CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 1, "
    "max_rows_per_group := 1, coverage := FALSE)",
    "CALL dp_domain('visits', 'cost', bounds := [0, 100])",
    "CALL dp_analyst('ana', rho_limit := 1e-6)",
    "CALL dp_analyst('bea', rho_limit := 1e-6, budget_part := 0.25)",
    "CALL dp_analyst('carl')",
)
TARGET = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (target_relative_error = 0.02, max_rho = 2) count(*) AS n FROM visits "
    "WHERE ward = 3"
)
OF_THE_UNIT = ("epsilon_next", "questions_left", "half_width_factor", "rho_left", "threshold_delta_left")


@pytest.fixture(scope="module")
def declared() -> Iterator[dpsql.Session]:
    with with_declarations(TABLES, DECLARED) as session:
        yield session


@pytest.fixture
def clinic(declared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(declared) as session:
        session._runner.noise_source = seeded_noise(47)
        yield session


def books(handle: dpsql.Session | dpsql.Analyst) -> dict[str, float | str | None]:
    (row,) = handle.sql("FROM dp_budget('patient')").arrow().to_pylist()
    return dict(row)


def test_a_count_is_not_read_off_the_charge_of_a_target(clinic: dpsql.Session) -> None:
    """The steps stop where 2.04 sigma is within 2 % of the count, so the charge of others tells it to 2 %."""
    ana, before = clinic.as_analyst("ana"), books(clinic.as_analyst("ana"))
    clinic.sql(TARGET)
    spent = books(clinic)["rho_spent"]
    assert isinstance(spent, float)
    assert 2.04 / 0.02 / math.sqrt(2.0 * spent) == pytest.approx(300, rel=0.1)
    assert books(ana) == before
    assert (before["rho_spent"], before["epsilon_spent"], before["rho_budget"]) == (0.0, 0.0, 4.0)
    assert {name: before[name] for name in OF_THE_UNIT} == dict.fromkeys(OF_THE_UNIT)
    assert "budget_part" in str(before["note"])
    # who has no limit sees all, and the curator likewise
    assert books(clinic.as_analyst("carl"))["rho_spent"] == spent


def test_a_reader_with_a_limit_sees_their_own_charges_and_their_own_part(clinic: dpsql.Session) -> None:
    bea = clinic.as_analyst("bea")
    clinic.sql(TARGET)
    answer = bea.sql("SELECT count(*) AS n FROM visits", rho=1e-6)
    own = books(bea)
    assert (own["rho_spent"], own["rho_left"]) == (1e-6, 1.0 - 1e-6)
    assert own["questions_left"] == 999_999
    # the line of the price is about the part, as the table is
    assert "spent so far: rho 1e-06 of 1" in str(answer)
    assert "spent so far" not in str(clinic.as_analyst("ana").sql("SELECT count(*) AS n FROM visits", rho=1e-6))


@pytest.fixture(params=[1, 2], ids=["one outcome", "another outcome"])
def stopped(declared: dpsql.Session, request: pytest.FixtureRequest) -> Iterator[dpsql.Session]:
    """Yield a session in which a target of the curator stopped at another level for each outcome."""
    with with_own_state(declared) as session:
        session.sql("CALL dp_analyst('dan', rho_limit := 3)")
        session._runner.noise_source = seeded_noise(request.param)
        session.sql(TARGET.replace("ward = 3", f"ward < {request.param}").replace("0.02", "0.2"))
        yield session


def test_a_reader_with_a_limit_is_refused_by_the_cap_of_others(stopped: dpsql.Session) -> None:
    """The cap of 2 is counted of a budget of 4, whatever the steps took of it."""
    dan, carl = stopped.as_analyst("dan"), stopped.as_analyst("carl")
    for text in ("SELECT count(*) AS n FROM visits WHERE cost = 1", "SELECT count(*) AS n FROM visits WHERE cost = 2"):
        with pytest.raises(dpsql.BudgetError, match="not shown to a reader with a rho_limit") as raised:
            dan.sql(text, rho=2.000_000_001)
        assert (raised.value.requested_rho, raised.value.remaining_rho) == (2.000_000_001, None)
        assert raised.value.remaining_delta is None
    plan = dict(
        row[1:]
        for row in dan.sql(f"FROM dp_explain($$ {TARGET.replace('max_rho = 2', 'max_rho = 2.5')} $$)").fetchall()
    )
    assert plan["affordable"] == "no: what is left is not shown to a reader with a rho_limit"
    # who has no limit is checked against what is charged, exactly
    spent = books(carl)["rho_spent"]
    assert isinstance(spent, float)
    assert 0.0 < spent < 0.1
    dan.sql("SELECT count(*) AS n FROM visits WHERE cost = 1", rho=2)
    with pytest.raises(dpsql.BudgetError, match=r"rho = 1\.9"):
        carl.sql("SELECT count(*) AS n FROM visits WHERE cost = 3", rho=2)
    carl.sql("SELECT count(*) AS n FROM visits WHERE cost = 3", rho=1.9)


def test_a_price_and_a_level_of_a_shared_statistic_follow_from_what_a_reader_may_see(stopped: dpsql.Session) -> None:
    dan = stopped.as_analyst("dan")
    of_target = TARGET[TARGET.index("count") :].replace("ward = 3", "ward < {}")
    before = books(stopped)["rho_spent"]
    for outcome in (1, 2):
        text = f"SELECT {of_target.format(outcome)}"
        plan = dict(row[1:] for row in dan.sql(f"FROM dp_explain($$ {text} $$, rho := 0.001)").fetchall())
        receipt = dan.sql(text, rho=0.001).receipt
        assert receipt is not None
        assert (receipt.rho, receipt.charged_rho, plan["rho"]) == (
            0.001,
            0.001,
            "0.001",
        )
        assert "to be drawn" in plan["distinct units"]
        # asked again it is free, and so is a lower level
        again, lower = dan.sql(text, rho=0.001).receipt, dan.sql(text, rho=0.0005).receipt
        assert again is not None
        assert lower is not None
        assert again.reused
        assert lower.reused
    own, spent = books(dan), books(stopped)["rho_spent"]
    assert own["rho_spent"] == 0.002
    # the ledger took the one that nobody had paid for, and a part of the other one if any
    assert isinstance(spent, float)
    assert isinstance(before, float)
    assert 0.001 - 1e-9 < spent - before < 0.002
    releases = dan.sql("FROM dp_releases()").df()
    assert releases.charged_rho.sum() == pytest.approx(0.002)


def test_no_reader_is_granted_more_than_the_budget_has(clinic: dpsql.Session) -> None:
    """Amounts by texts miss what a refreshed question with AUTO cost again; the exact check beside them does not."""
    clinic.sql("CALL dp_analyst('dan', rho_limit := 3)")
    dan = clinic.as_analyst("dan")
    for refresh in ("FALSE", "TRUE", "TRUE", "TRUE"):
        clinic.sql(
            f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (refresh = {refresh}) "
            "sum(cost, contribution_bounds_per_row => AUTO) AS s FROM visits",
            rho=0.9,
        )
    spent = books(clinic)["rho_spent"]
    assert isinstance(spent, float)
    assert spent > 3
    with pytest.raises(dpsql.BudgetError, match="not shown to a reader"):
        dan.sql("SELECT count(*) AS n FROM visits WHERE cost = 1", rho=1)
    assert books(clinic)["rho_spent"] == spent
    dan.sql("SELECT count(*) AS n FROM visits WHERE cost = 1", rho=4 - spent - 0.01)


def test_free_questions_of_others_take_nothing_from_a_reader_with_a_limit(clinic: dpsql.Session) -> None:
    clinic.sql("CALL dp_analyst('dan', rho_limit := 3)")
    carl, dan = clinic.as_analyst("carl"), clinic.as_analyst("dan")
    text = "SELECT sum(cost, contribution_bounds_per_row => AUTO) AS s{} FROM visits"
    for number in range(4):
        assert carl.sql(text.format(number), rho=1).receipt.reused == (number > 0)  # type: ignore[union-attr]
    carl.sql("SELECT count(*) AS n FROM visits", rho=0.5)
    free = TARGET.replace(" WHERE ward = 3", "").replace("max_rho = 2", "max_rho = 50").replace("0.02", "0.5")
    assert carl.sql(free).receipt.charged_rho == 0  # type: ignore[union-attr]
    dan.sql("SELECT count(*) AS n FROM visits WHERE cost = 1", rho=2)


def test_a_threshold_that_shows_keys_was_paid(clinic: dpsql.Session) -> None:
    """A threshold belongs to its point, also after a question with AUTO: its price is that of the one that is used."""
    clinic.sql("CALL dp_analyst('dan', rho_limit := 3)")
    carl, dan = clinic.as_analyst("carl"), clinic.as_analyst("dan")
    grouped = "SELECT ward, count(*) AS n FROM visits GROUP BY ward"
    carl.sql(f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (max_groups_contributed = AUTO) {grouped[7:]}", rho=0.05)
    first = carl.sql(grouped, rho=0.02, delta=1e-12).receipt
    answer = dan.sql(grouped, rho=0.02, delta=3e-6).receipt
    assert first is not None
    assert answer is not None
    assert (answer.threshold, answer.charged_delta) == (first.threshold, 0.0)
