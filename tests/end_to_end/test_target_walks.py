"""Steps of a question by relative error are few, for many groups that are alike and for averages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from tests.end_to_end.prepared import with_declarations, with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

SELECTED = {"alike": ("count(*)", 0.19), "average": ("avg(cost)", 0.1)}


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with with_declarations(
        "CREATE TABLE visits AS SELECT i // 2 AS patient, i % 40 AS ward, i * 7 % 90 AS cost FROM range(8_000) t(i)",
        (
            "CALL dp_protect('visits', privacy_unit_column := 'patient', coverage := FALSE, "
            "max_groups_contributed := 2, max_rows_per_group := 1, "
            "rho_budget := 100, delta_threshold := 1e-3, delta_conversion := 1e-6)",
            f"CALL dp_domain('visits', 'ward', keys := {list(range(40))})",
            "CALL dp_domain('visits', 'cost', bounds := [0, 100])",
        ),
    ) as session:
        yield session


@pytest.mark.parametrize("asked", SELECTED)
def test_steps_are_few_and_stop_close_to_the_best_level(prepared: dpsql.Session, asked: str) -> None:
    column, error = SELECTED[asked]
    with with_own_state(prepared) as session:
        session._runner.noise_source = seeded_noise(3)
        options = f"target_relative_error = {error}, at_least = 0.9, max_rho = 4"
        answer = session.sql(
            f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) ward, {column} AS n FROM visits GROUP BY ward"
        )
        releases = session.sql("FROM dp_releases()").df()
        assert not any("the target is not reached" in note for note in receipt_of(answer).notes)
    assert len(releases) <= 9
    # the last step is a small one
    levels = sorted(releases.rho)
    assert levels[-1] <= 1.3 * levels[-2]
