"""Intervals of quantiles cover the cell of the exact quantile in at least 95 % of groups; levels share one cascade."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dpsql
from dpsql.model.cells import Cells
from dpsql.noise.running_totals import FractionalSum
from dpsql.release import estimates as quantiles
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

GROUPS = 400
EDGES = Cells.of(0.0, 100.0).edges
CELLS = len(EDGES) - 1
LEAST = 362
"""Fewer of 400 intervals at 95 % cover with probability below 1e-4 (binomial)."""
MEDIAN = "SELECT city, median(cost) AS m, dp_interval_low(m), dp_interval_high(m) FROM visits GROUP BY city"


DAYS = """
    SELECT city, median(DATE '2024-01-01' + CAST(cost AS INTEGER),
                        contribution_bounds_per_row => (DATE '2023-01-01', DATE '2025-01-01')) AS m,
           dp_interval_low(m), dp_interval_high(m) FROM visits GROUP BY city"""


def open_session(path: str | Path = ":memory:", *, public: bool = True) -> dpsql.Session:
    """60 patients with one to three rows in each of 400 cities, or 24,000 in one of four: costs from 0 to 100."""
    session = dpsql.connect(path)
    cities = GROUPS if public else 4
    session.connection.execute(
        f"CREATE TABLE visits AS SELECT p AS patient, p % {cities} AS city, "
        f"((hash(p, v) % 1000) / 10.0) ** (1 + (p % {cities}) % 3) / 100 ** ((p % {cities}) % 3) AS cost "
        f"FROM range({60 * GROUPS}) u(p), range(3) w(v) WHERE v <= p % 3"
    )
    session.sql(
        "CALL dp_protect('visits', coverage := FALSE, privacy_unit_column := 'patient', max_groups_contributed := 1, "
        "max_rows_per_group := 3, rho_budget := 10000, delta_threshold := 0.5, delta_conversion := 1e-6)"
    )
    session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 100])")
    if public:
        session.sql(f"CALL dp_domain('visits', 'city', keys := {list(range(GROUPS))})")
    session._runner.noise_source = seeded_noise(3)
    return session


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    """A session with all points that the tests of coverage read, drawn in this order whichever test comes first."""
    with open_session() as session:
        for text, rho in ((MEDIAN, 0.05), (MEDIAN, 2), (MEDIAN, 0.4), (DAYS, 0.05)):
            session.sql(text, rho=rho, mechanism="GAUSSIAN")
        yield session


def covered(session: dpsql.Session, rho: float) -> int:
    found = session.connection.execute("SELECT city, quantile_disc(cost, 0.5) FROM visits GROUP BY city").fetchall()
    exact = dict(found)
    rows = session.sql(MEDIAN, rho=rho, mechanism="GAUSSIAN").fetchall()
    return sum(low <= exact[city] <= high for city, _, low, high in rows)


@pytest.mark.statistical
@pytest.mark.parametrize("rho", [0.05, 2])
def test_intervals_cover(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch, rho: float) -> None:
    assert covered(session, rho) >= LEAST
    # the planted fault: intervals of a tenth of the noise
    monkeypatch.setattr(quantiles, "MISS", 0.845)
    assert covered(session, rho) < LEAST


def covered_days(session: dpsql.Session, rho: float) -> int:
    found = session.connection.execute(
        "SELECT city, CAST(quantile_disc(DATE '2024-01-01' + CAST(cost AS INTEGER), 0.5) AS TIMESTAMP) "
        "FROM visits GROUP BY city"
    ).fetchall()
    exact = dict(found)
    rows = session.sql(DAYS, rho=rho, mechanism="GAUSSIAN").fetchall()
    assert all(low <= shown <= high for _, shown, low, high in rows)
    return sum(low <= exact[city] <= high for city, _, low, high in rows)


@pytest.mark.statistical
def test_intervals_of_dates_cover(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    assert covered_days(session, 0.05) >= LEAST
    # the planted fault: intervals of a tenth of the noise
    monkeypatch.setattr(quantiles, "MISS", 0.845)
    assert covered_days(session, 0.05) < LEAST


def test_the_median_is_near_the_exact_one_and_cheaper_asked_again() -> None:
    with open_session(public=False) as session:
        exact = session.connection.execute(
            "SELECT city, median(cost), quantile_cont(cost, 0.9) FROM visits GROUP BY city ORDER BY city"
        ).fetchall()
        query = "SELECT city, median(cost), quantile_cont(cost, 0.9) FROM visits GROUP BY city ORDER BY city"
        prices = []
        for rho in (0.5, 2, 1, 2):
            answer = session.sql(query, rho=rho, delta=1e-4)
            prices.append(receipt_of(answer).charged_rho)
            assert np.allclose(np.array(answer.fetchall()), np.array(exact), atol=100 / 64 + 1)
        assert prices == pytest.approx([0.5, 1.5, 0, 0], abs=1e-8)
        # every quantile of the value is read from the same histogram
        assert receipt_of(session.sql(query.replace("0.9", "0.123"), rho=2, delta=1e-4)).charged_rho == 0


def noise_of_point(session: dpsql.Session, rho_nano: int) -> tuple[float, float]:
    """Root mean square of what a stored histogram differs by from the exact one, and the sigma that it states."""
    cascade = session.sql("FROM dp_cascade()").df()
    (statistic,) = cascade[cascade["keys"] == GROUPS * CELLS]["statistic"].unique()
    point = session._access.read().side_table.point(statistic, rho_nano)
    assert point is not None
    exact = np.zeros((GROUPS, CELLS), dtype=np.int64)
    rows = session.connection.execute("SELECT city, cost FROM visits").fetchnumpy()
    np.add.at(exact, (rows["city"], np.searchsorted(EDGES[1:-1], rows["cost"], side="right")), 1)
    sums = FractionalSum(CELLS).transform(exact * 256, 12).ravel()
    return float(np.sqrt(np.mean((point.values - sums).astype(float) ** 2))) * 2.0**-20, point.sigma


@pytest.mark.statistical
def test_every_point_has_the_noise_of_its_level(session: dpsql.Session) -> None:
    """A first draw, a rise and a bridge, of 115,200 draws each.

    Their root mean square is off by 3 % with probability below 1e-10 (chi-square).
    """
    cascade = session.sql("FROM dp_cascade()").df()
    levels = [round(rho * 1e9) for rho in cascade[cascade["keys"] == GROUPS * CELLS]["rho"]]
    assert len(levels) == 3
    found = [noise_of_point(session, rho_nano) for rho_nano in levels]
    assert all(spread == pytest.approx(sigma, rel=0.03) for spread, sigma in found)
    # the planted fault: the sigma of one level is no other's
    assert not any(found[i][0] == pytest.approx(found[j][1], rel=0.03) for i in range(3) for j in range(3) if i != j)
    # were a unit's rows taken to be in all cells at once, it would be many times that of three rows in one cell
    assert all(sigma < 2 * 3 / np.sqrt(2 * rho / 1e9) for (_, sigma), rho in zip(found, levels, strict=True))


def test_a_stored_histogram_outlives_its_session_and_its_table(tmp_path: Path) -> None:
    path = tmp_path / "clinic.duckdb"
    with open_session(path) as session:
        first = session.sql(MEDIAN + " ORDER BY city", rho=0.5, rho_ceiling=1).fetchall()
    with dpsql.connect(path) as session:
        session.connection.execute("DROP TABLE visits")
        again = session.sql(MEDIAN + " ORDER BY city", rho=0.5, rho_ceiling=1)
        assert again.fetchall() == first
        assert receipt_of(again).reused
