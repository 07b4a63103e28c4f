"""Questions of the mechanism that docs/contribute/mechanism.md adds: python -m tests.documents.second_law.

They run on a copy of dpsql that has the mechanism. `tests/documents/test_contribute.py` builds it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

import dpsql
from dpsql.accounting import zcdp
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise, silence

KEYS, UNITS = 4_000, 30
RHO = 4.0
HIGH, BETWEEN, LOW = 0.4, 0.1, 0.02
OPTIONS: dict[str, Any] = {"mechanism": "LAPLACE_ZCDP"}
ENDS = ", ".join(f"dp_interval_low({name}) AS {name}_low, dp_interval_high({name}) AS {name}_high" for name in "ncsa")
TRUE = "SELECT place, count(DISTINCT unit) AS n, count(*) AS c, sum(x) AS s, avg(x) AS a FROM visits GROUP BY place"
ALL = TRUE.replace(" FROM", f", {ENDS} FROM")
COUNTS = "SELECT place, count(DISTINCT unit) AS n FROM visits GROUP BY place"
NEAR = 0.1
"""Share by which the variance of so many draws may differ from that of the law."""
QUANTILE = -math.log(0.05) / math.sqrt(2.0)
"""Standard deviations that 5 % of Laplace noise exceed in size."""
Numbers = dict[str, npt.NDArray[np.float64]]


@contextmanager
def asked(composition: str = "zcdp", seed: int = 1) -> Iterator[dpsql.Session]:
    """Open a session on units with one to three rows in one of 4,000 places; no bound cuts anything."""
    with dpsql.connect() as session:
        session.connection.execute(
            f"CREATE TABLE visits AS SELECT i // 3 AS unit, i // 3 % {KEYS} AS place, i * 7919 % 11 AS x "
            f"FROM range({3 * KEYS * UNITS}) t(i) WHERE i % 3 <= i // 3 // {KEYS} % 3"
        )
        budget = "rho_budget := 100, delta_threshold := 1e-7, delta_conversion := 1e-6"
        if composition == "pure":
            budget = "epsilon_budget := 3"
        session.sql(f"CALL dp_unit('unit', {budget}, composition := '{composition}')")
        session.sql(
            "CALL dp_protect('visits', unit := 'unit', privacy_unit_column := 'unit', max_groups_contributed := 1, "
            "max_rows_per_group := 3, coverage := FALSE)"
        )
        session.sql(f"CALL dp_domain('visits', 'place', keys := {list(range(KEYS))})")
        session.sql("CALL dp_domain('visits', 'x', bounds := [0, 10])")
        session._runner.noise_source = seeded_noise(seed)
        yield session


def by_place(table: pd.DataFrame) -> Numbers:
    """Return the columns of a table in the order of its places."""
    ordered = table.sort_values("place")
    return {str(name): ordered[name].to_numpy(dtype=np.float64) for name in ordered.columns}


def truth(session: dpsql.Session) -> Numbers:
    """Return the true numbers of all places."""
    return by_place(session.connection.execute(TRUE).df())


def answer(session: dpsql.Session, text: str, rho: float) -> Numbers:
    """Return the numbers of an answer."""
    return by_place(session.sql(text, rho=rho, **OPTIONS).df())


def spent(session: dpsql.Session) -> float:
    """Return the rho that was spent."""
    return float(session.sql("FROM dp_budget()").df().rho_spent[0])


def check_that_intervals_cover_numbers() -> None:
    widest = {"n": 8.0, "c": 17.0, "s": 200.0, "a": 5.0}
    with asked() as session:
        found, true = answer(session, ALL, RHO), truth(session)
        for name, width in widest.items():
            low, high = found[f"{name}_low"], found[f"{name}_high"]
            assert len(low) == KEYS
            assert np.mean((low <= true[name]) & (true[name] <= high)) >= 0.94, name
            assert np.median(high - low) < width, (name, np.median(high - low))


def check_that_noise_is_of_its_law() -> None:
    with asked(seed=2) as session:
        response, true = session.sql(ALL, rho=RHO, **OPTIONS), truth(session)
        found = by_place(response.df())
        for column in receipt_of(response).columns[:3]:
            errors, sigma = found[column.name] - true[column.name], column.sigma
            assert sigma is not None
            assert errors.var() == pytest.approx(sigma**2, rel=NEAR), column
            assert abs(errors.mean()) < 5 * sigma / math.sqrt(KEYS), column
        averages = found["a"] - true["a"]
        # of a quotient, by its derivative
        assert averages.var() < (found["a_high"] - found["a_low"]).mean() ** 2


def check_that_a_lower_level_is_a_fresh_release_at_that_level() -> None:
    with asked(seed=3) as session:
        true = truth(session)["n"]
        errors = {rho: answer(session, COUNTS, rho)["n"] - true for rho in (HIGH, LOW, BETWEEN)}
        assert spent(session) == pytest.approx(HIGH)
        for rho, error in errors.items():
            # of the law, and of rounding to whole numbers
            assert error.var() == pytest.approx(1 / rho + 1 / 12, rel=NEAR), rho
            assert np.mean(np.abs(error) > QUANTILE / math.sqrt(rho) + 0.5) < 0.06, rho
        # it is the higher one with more noise
        step = errors[LOW] - errors[HIGH]
        assert step.var() == pytest.approx(1 / LOW - 1 / HIGH + 1 / 6, rel=2 * NEAR)
        assert np.array_equal(answer(session, COUNTS, BETWEEN)["n"] - true, errors[BETWEEN])


def check_that_levels_below_a_ceiling_are_a_chain() -> None:
    with asked(seed=4) as session:
        true = truth(session)["n"]
        errors = {}
        for rho in (HIGH, LOW, BETWEEN):
            found = by_place(session.sql(COUNTS, rho=rho, rho_ceiling=HIGH, **OPTIONS).df())
            errors[rho] = found["n"] - true
        assert spent(session) == pytest.approx(HIGH)
        for high, low in ((HIGH, BETWEEN), (BETWEEN, LOW)):
            # each is the one above with more noise
            step = errors[low] - errors[high]
            assert step.var() == pytest.approx(1 / low - 1 / high + 1 / 6, rel=2 * NEAR), (high, low)


def check_that_a_higher_level_is_a_release_of_its_own() -> None:
    with asked(seed=5) as session:
        true = truth(session)["n"]
        first, second = (answer(session, COUNTS, rho)["n"] - true for rho in (LOW, HIGH))
        assert spent(session) == pytest.approx(LOW + HIGH)
        assert second.var() == pytest.approx(1 / HIGH + 1 / 12, rel=NEAR)
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
        assert np.array_equal(answer(session, COUNTS, LOW)["n"] - true, first)
        (row,) = session.sql("FROM dp_budget()").df().to_dict("records")
        assert row["rho_held"] == pytest.approx(LOW + HIGH)
    with asked() as session:
        # both numbers that the rows wait for have a count in common, at two levels
        text = (
            "SELECT place, count(*) AS n FROM visits WHERE x > (SELECT avg(x) FROM visits) "
            "AND x < 3 * (SELECT stddev(x) FROM visits) GROUP BY place"
        )
        receipt = receipt_of(session.sql(text, rho=0.3, **OPTIONS))
        charged = receipt.charged_rho
        assert receipt.epsilon == pytest.approx(zcdp.epsilon(receipt.delta, receipt.rho), rel=1e-3)
        assert spent(session) == pytest.approx(charged)
        assert charged <= 0.3 * (1 + 1e-9)


def check_that_the_epsilon_is_the_pure_one() -> None:
    with asked() as session:
        receipt = receipt_of(session.sql(COUNTS, rho=0.125, **OPTIONS))
        # scale b of one count that moves by 1: rho = 1 / (2 b^2)
        assert receipt.epsilon == pytest.approx(0.5, rel=1e-9)
        assert receipt.epsilon >= 0.5
        assert receipt.delta == 0.0
    with asked() as session:
        several = receipt_of(session.sql(ALL, rho=0.05, **OPTIONS))
        assert several.delta == 0.0
        # that of four statistics, which is largest at equal levels
        assert math.sqrt(2 * 0.05) < several.epsilon <= math.sqrt(4 * 2 * 0.05), several.epsilon
    with asked() as session:
        # of many statistics that of zCDP is smaller
        sums = ", ".join(f"sum(x) FILTER (WHERE x > {i})" for i in range(9))
        many = receipt_of(session.sql(TRUE.replace("avg(x) AS a", sums), rho=1.0, delta=1e-2, **OPTIONS))
        assert many.delta == pytest.approx(1e-2)
        assert many.epsilon == pytest.approx(zcdp.epsilon(1e-2, 1.0), rel=1e-6)


def check_that_what_does_not_go_with_it_is_refused() -> None:
    refused: tuple[tuple[str, dict[str, Any]], ...] = (
        ("SELECT unit % 7 AS k, count(*) FROM visits GROUP BY k", {}),
        ("SELECT place, median(x) FROM visits GROUP BY place", {}),
        ("SELECT place, sum(count(*)) OVER (ORDER BY place) FROM visits GROUP BY place", {}),
        ("SELECT place, count(*) FROM visits GROUP BY GROUPING SETS ((place), ())", {}),
        (COUNTS, {"max_groups_contributed": "AUTO"}),
        (COUNTS, {"bounding": "L2", "max_groups_contributed": 1}),
    )
    with asked() as session:
        for text, options in refused:
            with pytest.raises(dpsql.UnsupportedQueryError):
                session.sql(text, rho=0.1, **options, **OPTIONS)
        with pytest.raises(dpsql.UnsupportedQueryError):
            session.sql(COUNTS, target_relative_error=0.1, max_rho=1.0, **OPTIONS)
        assert spent(session) == 0.0
        silence(session)
        for rho in (0.1, 0.01, 0.05):
            assert np.array_equal(answer(session, COUNTS, rho)["n"], truth(session)["n"]), rho
    with asked("gaussian") as session, pytest.raises(dpsql.UnsupportedQueryError, match="exact for Gaussian"):
        session.sql(COUNTS, rho=0.1, **OPTIONS)
    with asked("pure") as session, pytest.raises(dpsql.UnsupportedQueryError, match="draws other noise"):
        session.sql(COUNTS, epsilon=0.1, **OPTIONS)


if __name__ == "__main__":
    for check in [function for name, function in vars().items() if name.startswith("check_")]:
        check()
        sys.stdout.write(f"{check.__name__}\n")
