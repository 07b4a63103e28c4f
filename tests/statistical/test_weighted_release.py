"""bounding = L2 through SQL: a unit alone in as many groups as it may have is shown as often as was paid for.

Every unit has groups of its own, so each is one more repetition.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import stats

import dpsql
from dpsql.accounting.sparse_histogram import WeightedProfile
from dpsql.bound import formulations, norms
from tests.noise_sources import seeded_noise

pytestmark = pytest.mark.statistical

UNITS, MAX_GROUPS, COUNTED = 3000, 2, 4
# With the right law the check fails with probability 1e-4 per seed; the twin falls below 1e-7.
ACCEPTED, CAUGHT = 1e-4, 1e-7


def _p_value() -> float:
    with dpsql.connect() as session:
        session._runner.noise_source = seeded_noise(5)
        session.connection.execute(
            f"CREATE TABLE t AS SELECT u, {COUNTED} * u + g AS k FROM range({UNITS}) r(u), range({COUNTED}) s(g)"
        )
        session.sql(
            "CALL dp_protect('t', coverage := FALSE, "
            "privacy_unit_column := 'u', rho_budget := 10, delta_threshold := 0.5, "
            "delta_conversion := 1e-6)"
        )
        answer = session.sql(
            f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 1, delta = 0.2, max_groups_contributed = {MAX_GROUPS}, "
            "bounding = L2) k, count(DISTINCT u) FROM t GROUP BY k"
        )
    assert answer.receipt is not None
    assert answer.receipt.threshold is not None
    # what is shown lies above the threshold on the grid of 2**-20, half a step of which is part of the mechanism
    expected = WeightedProfile(max_groups=MAX_GROUPS, counted_groups=COUNTED, sigma=1.0).threshold_delta(
        answer.receipt.threshold - 1.0
    )
    shown = len(np.unique(np.array([row[0] for row in answer.fetchall()]) // COUNTED))
    return float(stats.binomtest(shown, UNITS, expected).pvalue)


def test_a_lonely_unit_is_shown_as_often_as_the_threshold_costs() -> None:
    assert _p_value() > ACCEPTED


def test_the_check_catches_weights_that_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    weighted = norms.weight_sql
    for module in (norms, formulations):
        monkeypatch.setattr(
            module,
            "weight_sql",
            lambda *of, **named: re.sub(r"THEN (\d+) ELSE", r"THEN \1 ELSE \1 + 0 *", weighted(*of, **named)),
        )
    assert _p_value() < CAUGHT
