"""Units with other terms: without thresholds they answer public keys alone; an exact budget refuses discrete noise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from dpsql.errors import ReleaseError, UnsupportedQueryError
from dpsql.state import Ledger, Spent
from tests.end_to_end.prepared import with_own_state
from tests.noise_sources import seeded_noise

WITH = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS"
NO_THRESHOLDS = "CALL dp_unit('patient', epsilon_budget := 3, delta_budget := 1e-6, thresholds := false)"
DISCRETE = f"{WITH} (mechanism = DISCRETE_CORRELATED_GAUSSIAN) city, count(*) FROM visits GROUP BY city"
PRIVATE = (  # more of them are records in tests/sql/refusals.test
    "SELECT kind, count(*) FROM visits GROUP BY kind",
    "SELECT city, kind, count(*) FROM visits GROUP BY CUBE (city, kind)",
    "SELECT kind, n FROM (SELECT kind, count(*) AS n FROM visits GROUP BY kind) WHERE n > 4",
    "SELECT a.kind, count(*) FROM visits a JOIN visits b USING (patient) GROUP BY a.kind",
    f"{WITH} (group_selection_strategy = GAUSSIAN_THRESHOLD) city, count(*) FROM visits GROUP BY city",
    f"{WITH} (top_k = 2) kind, count(*) FROM visits GROUP BY kind",
    f"{WITH} (min_privacy_units_per_group = 9) kind, count(*) FROM visits GROUP BY kind",
    f"{WITH} (rho_window = [0.0002, 0.1]) kind, count(*) FROM visits GROUP BY kind",
    f"{WITH} (as_of = '1') kind, count(*) FROM visits GROUP BY kind",
)
PUBLIC = (
    "SELECT count(*), sum(cost) FROM visits",
    "SELECT city, avg(cost), median(cost) FROM visits GROUP BY city",
    "SELECT city, day, count(*) FROM visits GROUP BY CUBE (city, day)",
    "SELECT day, sum(count(*)) OVER (ORDER BY day) FROM visits GROUP BY day",
    "SELECT city, sum(cost, contribution_bounds_per_group => AUTO) FROM visits GROUP BY city",
    "SELECT a.city, count(*) FROM visits a JOIN visits b USING (patient) GROUP BY a.city HAVING count(*) > 10",
    f"{WITH} (buckets = 'day') day // 2 AS week, count(*) FROM visits GROUP BY week",
    f"{WITH} (max_groups_contributed = AUTO, coverage = true) city, sum(cost) FROM visits GROUP BY city",
    f"{WITH} (bounding = NORM) city, sum(cost, contribution_norm => 50) FROM visits GROUP BY city",
    f"{WITH} (min_privacy_units_per_group = 20) city, count(*) FROM visits GROUP BY city",
    f"{WITH} (group_selection_strategy = PUBLIC_GROUPS, rho_ceiling = 0.01) city, count(*) FROM visits GROUP BY city",
    f"{WITH} (epsilon = 0.1) count(DISTINCT kind, contribution_bounds_per_group => (0, 2)) FROM visits",
)


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT 'p' || i % 200 AS patient, ['Lund', 'Oslo'][1 + i % 2] AS city, "
            "i % 7 AS day, ['flu', 'cold'][1 + i % 2] AS kind, (i % 50)::DOUBLE AS cost FROM range(600) t(i)"
        )
        session.sql("CALL dp_unit('patient', epsilon_budget := 3, delta_budget := 1e-6)")
        session.sql(
            "CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient', max_rows_per_group := 3, "
            "max_groups_contributed := 2, default_rho := 0.001, rho_window := [0.0001, 0.01])"
        )
        session.sql("CALL dp_domain('visits', 'city', keys := ['Lund', 'Oslo'])")
        session.sql("CALL dp_domain('visits', 'day', keys := [0, 1, 2, 3, 4, 5, 6])")
        session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 50])")
        session._runner.noise_source = seeded_noise(5)
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        yield session


def spent(session: dpsql.Session) -> Spent:
    return session._access.read().ledger.spent("patient")


@pytest.mark.parametrize("text", PRIVATE)
def test_private_keys_are_refused_without_thresholds(session: dpsql.Session, text: str) -> None:
    """A plan that was made before the unit changed is not used again."""
    session.sql(f"FROM dp_explain($$ {text} $$)")
    session.sql(NO_THRESHOLDS)
    for statement in (text, f"FROM dp_explain($$ {text} $$)"):
        with pytest.raises(UnsupportedQueryError, match="keeps no delta for thresholds") as raised:
            session.sql(statement)
        assert [one.code for one in raised.value.refusals] == ["public_keys_missing"]
    assert spent(session) == Spent(0, 0)


def test_public_keys_cost_hardly_any_of_the_delta_that_is_kept(session: dpsql.Session) -> None:
    session.sql(NO_THRESHOLDS)
    unit = session._access.read().policy().declared_unit("patient")
    for text in PUBLIC:
        before = spent(session)
        assert session.sql(text).receipt is not None
        assert 10_000 * (spent(session).delta_units - before.delta_units) < unit.delta_threshold, text
    assert spent(session).rho_nano > 0


def test_discrete_noise_needs_the_other_composition(session: dpsql.Session) -> None:
    with pytest.raises(UnsupportedQueryError, match="exact for Gaussian noise alone") as raised:
        session.sql(DISCRETE)
    (refusal,) = raised.value.refusals
    assert refusal.code == "mechanism"
    assert "dp_unit" not in refusal.for_analyst().hint
    assert spent(session) == Spent(0, 0)
    session.sql("CALL dp_unit('patient', composition := 'zcdp')")
    assert session.sql(DISCRETE).receipt.mechanism == "discrete_correlated_gaussian"  # type: ignore[union-attr]


def test_a_unit_that_changes_after_the_plan_is_not_charged_for_discrete_noise(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.sql("CALL dp_unit('patient', composition := 'zcdp')")
    state, charge = session._access.read(), Ledger.charge

    def change_before(ledger: Ledger, *given: Any) -> Any:
        with state._database.write() as connection:
            connection.execute("UPDATE unit SET composition = 'gaussian'")
        return charge(ledger, *given)

    monkeypatch.setattr(Ledger, "charge", change_before)
    with pytest.raises(ReleaseError, match="became 'gaussian', which does not hold"):
        session.sql(DISCRETE)
    assert spent(session) == Spent(0, 0)
    with pytest.raises(UnsupportedQueryError, match="exact for Gaussian noise alone"):
        session.sql(DISCRETE)
