"""Intervals of covariances, correlations, lines and geometric means cover the exact number, and are no wider than due.

Each table is copied into many groups, so that its numbers are answered many times with independent noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

import dpsql
from dpsql.model.frame import Statistic
from dpsql.release import moments
from dpsql.release.moments import Floats, Noisy
from tests.noise_sources import seeded_noise

pytestmark = pytest.mark.statistical

COLUMNS = (
    "geomean(z)",
    "covar_pop(y, x)",
    "covar_samp(y, x)",
    "corr(y, x)",
    "regr_slope(y, x)",
    "regr_intercept(y, x)",
    "regr_r2(y, x)",
)
GROUPS, MANY = 200, 1000
LEAST = 175
"""Fewer of 200 intervals at 95 % cover with probability below 1e-4 (binomial)."""


@dataclass(frozen=True)
class Pairs:
    """Random pairs with a correlation, of people with one row each; ``shift`` moves x and y away from the middle."""

    name: str
    people: int
    correlation: float
    rho: float
    is_skewed: bool = False
    shift: float = 0.0

    def __repr__(self) -> str:
        return self.name

    @property
    def values(self) -> tuple[Floats, Floats]:
        """Values of x and y, nearly all from -4 to 4."""
        chance = np.random.default_rng(self.people)
        x, other = chance.normal(size=(2, self.people))
        y = self.correlation * x + np.sqrt(1.0 - self.correlation**2) * other
        if self.is_skewed:
            x, y = np.exp(x / 2.0) - 2.0, np.exp(y / 2.0) - 2.0
        return np.clip(x + self.shift, -4.0, 4.0), np.clip(y + self.shift, -4.0, 4.0)


FIFTY = Pairs("50 people", 50, 0.5, rho=20.0)
SHIFTED = Pairs("correlation 0.97, off the middle", 400, 0.97, rho=2.0, shift=1.5)
FALLING = Pairs("correlation -0.97, off the middle", 300, -0.97, rho=2.0, shift=2.0)
TABLES = (
    FIFTY,
    Pairs("50 people, skewed", 50, -0.3, rho=20.0, is_skewed=True),
    SHIFTED,
    Pairs("correlation 0.99", 300, 0.99, rho=1.0),
    Pairs("500 people, skewed", 500, 0.2, rho=1.0, is_skewed=True),
    Pairs("1,500 people, no correlation", 1500, 0.0, rho=0.1),
)


@contextmanager
def opened(table: Pairs, groups: int) -> Iterator[dpsql.Session]:
    """A session with a table in so many groups."""
    x, y = table.values
    with dpsql.connect() as session:
        connection = session.connection
        connection.execute("CREATE TABLE people (person INTEGER, x DOUBLE, y DOUBLE)")
        connection.executemany(
            "INSERT INTO people VALUES (?, ?, ?)",
            [(i, float(a), float(b)) for i, (a, b) in enumerate(zip(x, y, strict=True))],
        )
        connection.execute(
            f"CREATE TABLE visits AS SELECT person * {groups} + city AS patient, city, x, y, exp(y) AS z "
            f"FROM people, range({groups}) t(city)"
        )
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, privacy_unit_column := 'patient', "
            "max_groups_contributed := 1, max_rows_per_group := 1, rho_budget := 1e6, delta_threshold := 0.5, "
            "delta_conversion := 1e-6)"
        )
        for column, low, high in (("x", -4, 4), ("y", -4, 4), ("z", 0.018, 55)):
            session.sql(f"CALL dp_domain('visits', '{column}', bounds := [{low}, {high}])")
        session.sql(f"CALL dp_domain('visits', 'city', keys := {list(range(groups))})")
        session._runner.noise_source = seeded_noise(5)
        yield session


def measured(session: dpsql.Session, rho: float) -> dict[str, tuple[int, float]]:
    """Return of each column how many intervals cover, and the median width over the middle 95 % of the errors."""
    exact = session.connection.execute(f"SELECT {', '.join(COLUMNS)} FROM visits WHERE city = 0").fetchone()
    assert exact is not None
    found = {}
    for column, true in zip(COLUMNS, exact, strict=True):
        text = f"SELECT city, {column} AS n, dp_interval_low(n), dp_interval_high(n) FROM visits GROUP BY city"
        rows = np.array(
            [[np.nan if one is None else one for one in row] for row in session.sql(text, rho=rho).fetchall()], float
        )
        _, value, low, high = rows.T
        covered = int(np.sum((low - 1e-3 * abs(true) <= true) & (true <= high + 1e-3 * abs(true))))
        errors = np.quantile(value[np.isfinite(value)] - true, [0.025, 0.975])
        found[column] = covered, float(np.median(high - low) / (errors[1] - errors[0]))
    return found


def test_intervals_cover_and_are_no_wider_than_due(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(FALLING, GROUPS) as session:
        found = measured(session, FALLING.rho)
        assert min(covered for covered, _ in found.values()) >= LEAST
        assert max(ratio for _, ratio in found.values()) <= 1.5
        assert found["regr_intercept(y, x)"][1] <= 1.2
        # two planted faults: the covariance of both parts of a quotient is left out, or has the wrong sign
        variance = moments.covariance
        for factor in (0.0, -1.0):

            def wrong(one: Noisy, other: Noisy, noise: Mapping[Statistic, Floats], factor: float = factor) -> Floats:
                return variance(one, other, noise) * (1.0 if one is other else factor)

            monkeypatch.setattr(moments, "covariance", wrong)
            found = measured(session, 2.0 * FALLING.rho)
            assert found["regr_intercept(y, x)"][1] > 1.2
        assert found["regr_slope(y, x)"][0] < LEAST


@pytest.mark.long
@pytest.mark.parametrize("table", TABLES, ids=repr)
def test_intervals_of_six_tables_cover(table: Pairs) -> None:
    with opened(table, MANY) as session:
        found = measured(session, table.rho)
    print(table, {name: (covered / MANY, round(ratio, 2)) for name, (covered, ratio) in found.items()})  # noqa: T201
    assert min(covered for covered, _ in found.values()) >= 0.93 * MANY
    assert max(ratio for _, ratio in found.values()) <= 2.0


def test_intervals_of_few_people_at_a_low_level_cover() -> None:
    with opened(FIFTY, GROUPS) as session:
        assert min(covered for covered, _ in measured(session, 0.2).values()) >= LEAST
