"""OPTIONS (target_relative_error = …): the level rises in steps on one reading, and all steps cost the last one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from dpsql.release import stage
from dpsql.release.exact import Reading, read_exact
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

BY_WARD = "ward, count(*) AS n, avg(cost) AS mean, dp_within_target(n) AS close FROM visits GROUP BY ward ORDER BY ward"
TARGET = "target_relative_error = 0.05, max_rho = 0.5"
QUESTIONS = {
    "public": f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({TARGET}) {BY_WARD}",
    "private": f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({TARGET}) doctor, count(*) AS n FROM visits GROUP BY doctor",
    "none": f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({TARGET}) count(*) AS n, sum(cost) AS total FROM visits",
}


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT i // 2 AS patient, i % 3 AS ward, i % 5 AS doctor, i % 90 AS cost "
            "FROM range(6_000) t(i)"
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
        own._runner.noise_source = seeded_noise(1)
        yield own


@pytest.mark.parametrize("keys", QUESTIONS)
def test_all_steps_cost_the_last_level_and_rows_are_read_once(
    session: dpsql.Session, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: list[object] = []

    def noted(reading: Reading, *given: Any) -> Any:
        readings.append(reading)
        return read_exact(reading, *given)

    monkeypatch.setattr(stage, "read_exact", noted)
    answer = session.sql(QUESTIONS[keys])
    receipt = receipt_of(answer)
    assert len(readings) == 1
    releases = session.sql("FROM dp_releases()").df()
    assert len(releases) > 2
    assert receipt.charged_rho == pytest.approx(receipt.rho, abs=2e-9)
    assert releases.charged_rho.sum() == pytest.approx(receipt.rho, abs=1e-9)
    assert receipt.rho < 0.05
    # asked again it is the same, for nothing, whatever others have bought
    text = QUESTIONS[keys].replace(TARGET, "rho = 0.3").replace("dp_within_target(n) AS close", "1")
    assert receipt_of(session.sql(text)).charged_rho > 0.2
    again = session.sql(QUESTIONS[keys])
    assert again.fetchall() == answer.fetchall()
    assert receipt_of(again).charged_rho == 0.0
    assert receipt_of(again).reused
    # its plan has the wider intervals of numbers at which steps ended, as the receipt has
    plan = session.sql(f"FROM dp_explain($$ {QUESTIONS[keys]} $$)").fetchall()
    (error,) = (value for section, name, value in plan if (section, name) == ("expected error", "n"))
    assert error.endswith(f"95 % half width = {receipt.columns[0].half_width_95:.9g}")


def test_an_average_is_within_the_target_only_if_it_is_shown(session: dpsql.Session) -> None:
    """Any number from 90 to 100 is within 10 % of any other, and yet NULL is shown if noise hides which one it is."""
    options = "OPTIONS (target_relative_error = 0.1, max_rho = 0.5)"
    narrow = "ward, dp_avg(90 + cost % 10, 90, 100) AS mean, dp_within_target(mean) AS close"
    answer = session.sql(f"SELECT WITH DIFFERENTIAL_PRIVACY {options} {narrow} FROM visits GROUP BY ward")
    assert answer.df()["close"].all()
    assert "NULL" not in str(answer).split("\n\n")[0]
    # a receipt names the column that misses the target most
    around_zero = "ward, count(*) AS n, dp_avg(2 * (cost % 2) - 1, -1, 1) AS drift"
    options = "OPTIONS (target_relative_error = 0.1, max_rho = 0.01)"
    missed = session.sql(f"SELECT WITH DIFFERENTIAL_PRIVACY {options} {around_zero} FROM visits GROUP BY ward")
    assert "missed  noise is within 10 % for drift in 0 of 3 groups, and 3 are asked for" in str(missed)
