"""OPTIONS (target_relative_error = …, max_epsilon = …): no step is above the epsilon that the question allows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

FEE = "fee, contribution_bounds_per_row => AUTO"
QUESTIONS = {
    "public keys": "ward, count(*) AS n, sum(cost) AS total, avg(cost) AS mean FROM visits GROUP BY ward",
    "private keys": "doctor, count(*) AS n, avg(cost) AS mean FROM visits GROUP BY doctor",
    "AUTO bounds": f"ward, sum({FEE}) AS fees, count(*) AS n FROM visits GROUP BY ward",
    "AUTO bounds, private keys": f"doctor, sum({FEE}) AS fees FROM visits GROUP BY doctor",
    "AUTO groups": "doctor, count(DISTINCT patient) AS n FROM open_visits GROUP BY doctor",
}


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT i // 2 AS patient, i % 3 AS ward, i % 5 AS doctor, i % 90 AS cost, "
            "i % 70 AS fee FROM range(4_000) t(i); CREATE TABLE open_visits AS FROM visits"
        )
        unit = "privacy_unit_column := 'patient', unit := 'patient', coverage := FALSE"
        session.sql("CALL dp_unit('patient', rho_budget := 40, delta_threshold := 1e-3, delta_conversion := 1e-6)")
        session.sql(f"CALL dp_protect('visits', {unit}, max_groups_contributed := 2, max_rows_per_group := 2)")
        session.sql(f"CALL dp_protect('open_visits', {unit})")
        session.sql("CALL dp_domain('visits', 'ward', keys := [0, 1, 2])")
        session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 100])")
        yield session


@pytest.mark.parametrize("kind", QUESTIONS)
def test_no_step_is_above_max_epsilon(prepared: dpsql.Session, kind: str) -> None:
    with with_own_state(prepared) as session:
        session._runner.noise_source = seeded_noise(1)
        options = "target_relative_error = 0.0001, max_epsilon = 2"
        receipt = receipt_of(session.sql(f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) {QUESTIONS[kind]}"))
        releases = session.sql("FROM dp_releases()").df()
    # the highest level of the grid is taken, and no higher one
    assert 1.7 < receipt.epsilon <= 2.0
    assert releases.epsilon.max() == receipt.epsilon
    assert releases.charged_rho.sum() == pytest.approx(receipt.rho, abs=2e-9)
    assert any(note.startswith("the target is not reached") for note in receipt.notes)


def test_an_epsilon_that_allows_no_level_is_refused_before_anything_is_charged(prepared: dpsql.Session) -> None:
    with with_own_state(prepared) as session:
        for text in QUESTIONS.values():
            options = "target_relative_error = 0.1, max_epsilon = 1e-8"
            with pytest.raises(dpsql.CalibrationError, match="max_epsilon"):
                session.sql(f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) {text}")
        assert session.sql("FROM dp_releases()").df().empty
        assert session.sql("FROM dp_budget()").df().rho_left.tolist() == [40.0]
