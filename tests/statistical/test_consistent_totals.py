"""Totals of grouping sets through SQL: least squares makes their error fall as predicted, and intervals hold.

Every clinic has totals of its own, and no set adds clinics up: each is one more repetition, independent of the others.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

import dpsql
from dpsql.features import consistent
from dpsql.features.consistent import Marginal, consistent_variances
from tests.noise_sources import seeded_noise

pytestmark = pytest.mark.statistical

Floats = npt.NDArray[np.float64]
CLINICS, LENGTHS = 1000, (3, 2, 2)
SETS = {0: (0, 1, 2), 1: (0, 1), 3: (0,), 7: ()}
"""By what GROUPING_ID says of a set's rows, which of the keys it has."""
TEXT = (
    "SELECT count(DISTINCT patient) AS n, dp_interval_low(n) AS low, dp_interval_high(n) AS high, "
    "grouping_id(ward, sex, kind) AS g FROM visits GROUP BY clinic, ROLLUP (ward, sex, kind)"
)
RHO = 0.02
OWN = len(SETS) / (2.0 * RHO)
"""Variance of the noise that is added to a group of every set, which has a quarter of rho."""
ACCEPTED, CAUGHT = 1e-4, 1e-7
"""With the right law a check falls below the first with that probability per seed; planted faults below the other."""


def answered(seed: int) -> tuple[dict[int, Floats], dpsql.Receipt]:
    """Errors of the first group of every clinic in each set, before rounding; the table is empty."""
    with dpsql.connect(threads=1) as session:
        session.connection.execute("CREATE TABLE visits (patient INT, clinic INT, ward INT, sex INT, kind INT)")
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "privacy_unit_column := 'patient', max_groups_contributed := 1, "
            "rho_budget := 1e6, delta_threshold := 0.1, delta_conversion := 1e-6)"
        )
        columns = zip(("clinic", "ward", "sex", "kind"), (CLINICS, *LENGTHS), strict=True)
        for column, length in columns:
            session.sql(f"CALL dp_domain('visits', '{column}', keys := {list(range(length))})")
        session._runner.noise_source = seeded_noise(seed)
        answer = session.sql(TEXT, rho=RHO)
    table = answer.arrow()
    middle = (table["low"].to_numpy() + table["high"].to_numpy()) / 2
    found = {g: middle[table["g"].to_numpy() == g].reshape(CLINICS, -1)[:, 0] for g in SETS}
    assert answer.receipt is not None
    return found, answer.receipt


@pytest.fixture(scope="module")
def answer() -> tuple[dict[int, Floats], dpsql.Receipt]:
    return answered(77)


def predicted(g: int) -> float:
    marginals = [Marginal(axes, OWN) for axes in SETS.values()]
    return dict(zip(SETS, consistent_variances(LENGTHS, marginals), strict=True))[g]


def p_of_variance(errors: Floats, variance: float) -> float:
    """Two-sided p of independent normal errors: the sum of their squares."""
    statistic = float(np.square(errors).sum() / variance)
    return 2.0 * min(stats.chi2.cdf(statistic, len(errors)), stats.chi2.sf(statistic, len(errors)))


@pytest.mark.parametrize("g", SETS)
def test_errors_fall_as_predicted(answer: tuple[dict[int, Floats], dpsql.Receipt], g: int) -> None:
    """The naive totals are those with the noise that was added to them: here 1.2 to 2.3 times the variance."""
    errors = answer[0][g]
    assert p_of_variance(errors, predicted(g)) > ACCEPTED
    assert 1.2 < OWN / predicted(g) < 2.3
    if g:
        assert p_of_variance(errors, OWN) < CAUGHT


def test_a_total_has_a_fifth_of_the_variance_of_added_noisy_groups(
    answer: tuple[dict[int, Floats], dpsql.Receipt],
) -> None:
    """Naive: all of rho on the finest groups, which are added up."""
    naive = math.prod(LENGTHS) / (2.0 * RHO)
    assert predicted(7) / naive == pytest.approx(0.2105, abs=1e-4)
    assert np.square(answer[0][7]).mean() / naive < 0.2105 * 1.2


@pytest.mark.parametrize("g", SETS)
def test_intervals_hold(answer: tuple[dict[int, Floats], dpsql.Receipt], g: int) -> None:
    errors, receipt = answer
    column = receipt.sets[list(SETS).index(g)].receipt.columns[0]
    assert column.half_width_95 is not None
    inside = int((np.abs(errors[g]) <= column.half_width_95).sum())
    assert stats.binomtest(inside, CLINICS, 0.95).pvalue > ACCEPTED


def test_sets_that_all_count_alike_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: a total and a sum of twelve noisy groups get one weight."""
    expected = predicted(7)
    whole = consistent._precisions
    monkeypatch.setattr(consistent, "_precisions", lambda *given: [float(p > 0.0) for p in whole(*given)])
    assert p_of_variance(answered(77)[0][7], expected) < CAUGHT
