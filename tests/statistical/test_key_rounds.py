"""Keys alone: the key of a unit that has no other is shown as often as the thresholds of both rounds cost.

Every unit has a key of its own, so each is one more repetition of both rounds.
"""

from __future__ import annotations

import pytest
from scipy import stats

import dpsql
from dpsql.accounting.sparse_histogram import WeightedProfile
from dpsql.plan.features.key_rounds import COUNTED_KEYS
from dpsql.release import points, stages
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

pytestmark = pytest.mark.statistical

UNITS = 20_000
# With the right law the check fails with probability 1e-4 per seed; the twin falls below 1e-7.
ACCEPTED, CAUGHT = 1e-4, 1e-7


def p_value() -> float:
    with dpsql.connect() as session:
        session._runner.noise_source = seeded_noise(8)
        session.connection.execute(f"CREATE TABLE t AS SELECT u, u AS k FROM range({UNITS}) r(u)")
        session.sql(
            "CALL dp_protect('t', coverage := FALSE, "
            "privacy_unit_column := 'u', rho_budget := 10, delta_threshold := 0.5, "
            "delta_conversion := 1e-6)"
        )
        answer = session.sql("SELECT DISTINCT k FROM t", rho=2, delta=0.4)
    hidden = 1.0
    for one in receipt_of(answer).sets:
        assert one.receipt.threshold is not None
        sigma = (2.0 * one.receipt.rho) ** -0.5
        # of a unit with one key, which is not the worst: what is charged covers one with up to 64
        own = WeightedProfile(max_groups=1, counted_groups=1, sigma=sigma)
        covered = WeightedProfile(max_groups=1, counted_groups=COUNTED_KEYS, sigma=sigma)
        shown = own.threshold_delta(one.receipt.threshold - 1.0)
        assert shown <= covered.threshold_delta(one.receipt.threshold - 1.0) <= 0.1
        hidden *= 1.0 - shown
    return float(stats.binomtest(len(answer), UNITS, 1.0 - hidden).pvalue)


def test_a_lonely_key_is_shown_as_often_as_both_thresholds_cost() -> None:
    assert p_value() > ACCEPTED


def test_the_check_catches_a_round_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin states both rounds, and shows the keys of the first alone."""
    keys = points.shown_key_table
    monkeypatch.setattr(
        stages, "shown_key_table", lambda offer, side: keys(offer, side).slice(0, 0 if offer.rho_nano > 1e9 else None)
    )
    assert p_value() < CAUGHT
