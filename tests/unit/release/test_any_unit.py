"""Truth values told from noisy numbers of units: against numbers of the normal law."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpsql.model import estimates
from dpsql.model.estimates import AnyUnit, Estimate, Linear
from dpsql.model.frame import PRESENCE, Statistic
from dpsql.model.private_query import EachKey
from dpsql.release.estimates import COLUMNS, EstimatedColumn, NoisyFrame, NoisyValues, any_unit_column
from tests.histograms import independent

WITH_ROW = Statistic("units", 0, 2, -1, filter_sql="urgent")


def frame(units: list[float], presence: float = 100.0, noise: tuple[float, float] = (3.0, 8.0)) -> NoisyFrame:
    """Groups with noisy numbers of units with a true row; what is stored is recentred."""
    stored = np.array(units) - 0.5 * presence
    values = {
        WITH_ROW: NoisyValues(stored, noise[0]),
        PRESENCE: NoisyValues(np.full(len(units), presence), noise[1]),
    }
    return NoisyFrame(values, independent(1), EachKey())


def bool_or(*, told: bool = True) -> Estimate:
    return Estimate("bool_or(urgent)", AnyUnit(Linear(WITH_ROW, WITH_ROW.centre), told), "BOOLEAN")


def estimate_column(estimate: Estimate, noisy: NoisyFrame) -> EstimatedColumn:
    return COLUMNS[type(estimate.value)](estimate, estimate.value, noisy)


@pytest.mark.parametrize("told", [True, False])
def test_it_is_told_above_the_noise_and_nowhere_else(*, told: bool) -> None:
    # the presence count stands with half its noise in the number: 3 and 8/2 make 5
    edge = 5.0 * stats.norm.ppf(0.975)
    column = estimate_column(bool_or(told=told), frame([-1e6, -20.0, 0.0, edge - 1e-6, edge + 1e-6, 1e6]))
    assert np.isnan(column.value).tolist() == [True, True, True, True, False, False]
    assert column.value[4:].tolist() == [float(told)] * 2


def test_the_interval_is_that_of_the_number_of_units() -> None:
    column = estimate_column(bool_or(), frame([12.0]))
    assert (column.low[0], column.high[0]) == pytest.approx(stats.norm.interval(0.95, 12.0, 5.0))


def test_a_true_zero_is_told_of_with_a_fortieth() -> None:
    """The chance of the noise above the edge, by the law itself."""
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        is_told = not np.isnan(estimate_column(bool_or(), frame([middle])).value[0])
        low, high = (low, middle) if is_told else (middle, high)
    assert stats.norm.sf(high / 5.0) == pytest.approx(0.025, rel=1e-9)


def test_every_kind_of_value_has_a_function() -> None:
    bases = (estimates.LinearValue, estimates.BoundedValue)
    kinds = [kind for kind in vars(estimates).values() if isinstance(kind, type) and issubclass(kind, bases)]
    assert set(COLUMNS) == {*kinds, estimates.NoValue} - set(bases)
    assert COLUMNS[AnyUnit] is any_unit_column
