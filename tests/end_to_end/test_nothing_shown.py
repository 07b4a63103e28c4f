"""An answer without rows says why, and a number that says nothing is printed as NULL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

import dpsql
from dpsql.remote import wire
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

BY_WARD = "SELECT ward, count(*) AS n FROM visits GROUP BY ward"
PROMISE = re.compile(r"; at (epsilon|rho) = ([\d.]+) (?:it|the lowest) would be ([\d.,]+); coarser keys")


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT i % 50 AS patient, 'w' || (i % 5) AS ward, i % 7 AS bed, "
            "CASE WHEN i < 90 THEN 'A' ELSE 'B' END AS site, i % 100 / 1.0 AS cost FROM range(100) t (i)"
        )
        session.sql("CALL dp_unit('patient', epsilon_budget := 10, delta_budget := 1e-6)")
        session.sql("CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient', coverage := FALSE)")
        session.sql("CALL dp_protect('visits', max_groups_contributed := 4, max_rows_per_group := 5)")
        session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 500])")
        session.sql("CALL dp_domain('visits', 'site', keys := ['A', 'B'])")
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        session._runner.noise_source = seeded_noise(1)
        yield session


def lowest_threshold(receipt: dpsql.Receipt) -> float:
    """Return the lowest threshold of a receipt, or of its sets."""
    every = (receipt.threshold, *(one.receipt.threshold for one in receipt.sets))
    return min(one for one in every if one is not None)


def test_an_answer_without_groups_says_why_everywhere(session: dpsql.Session) -> None:
    result = session.sql(BY_WARD, epsilon=0.1)
    assert not len(result)
    threshold = receipt_of(result).threshold
    (reason,) = receipt_of(result).nothing_shown
    assert reason.startswith(
        f"no noisy count passed the threshold of {threshold:.4g} units (patient); at epsilon = 0.4"
    )
    assert f"nothing {reason.split('; ')[0]}" in " ".join(str(result).split())
    assert "nothing no noisy count" in result._repr_html_()
    assert f"nothing {reason.split('; ')[0]}" in " ".join(result.plot().texts[0].get_text().split())
    plt.close()
    assert receipt_of(wire.result_of(wire.to_arrow(result))) == receipt_of(result)
    assert wire.receipt_of(wire.to_json(receipt_of(result))) == receipt_of(result)


@pytest.mark.parametrize(
    ("query", "options"),
    [
        (BY_WARD, {"epsilon": 0.1}),
        (BY_WARD, {"rho": 0.001, "min_privacy_units_per_group": 20}),
        (BY_WARD, {"rho": 0.001, "top_k": 3}),
        (BY_WARD, {"rho": 0.001, "rho_window": (0.0005, 0.01)}),
        (BY_WARD, {"epsilon": 0.1, "mechanism": "KEYS_FIRST"}),
        (BY_WARD, {"epsilon": 0.1, "other_group": "others"}),
        ("SELECT DISTINCT ward FROM visits", {"epsilon": 0.1}),
        ("SELECT ward, bed, count(*) FROM visits GROUP BY GROUPING SETS ((ward, bed), (ward))", {"epsilon": 0.05}),
    ],
)
def test_the_threshold_that_is_promised_is_the_one_that_is_served(
    session: dpsql.Session, query: str, options: dict[str, Any]
) -> None:
    receipt = receipt_of(session.sql(query, **options))
    # both sets have as many groups a unit, so one sentence is about both
    (reason,) = receipt.nothing_shown
    found = PROMISE.search(reason)
    assert found
    name, level, threshold = found.groups()
    asked = {**options, name: float(level)}
    served = lowest_threshold(receipt_of(session.sql(query, **asked)))
    assert float(threshold.replace(",", "")) == pytest.approx(served, rel=5e-4)
    assert served < lowest_threshold(receipt)


def test_what_was_asked_before_is_no_cure(session: dpsql.Session) -> None:
    session.sql(BY_WARD, epsilon=0.4)
    (reason,) = receipt_of(session.sql(BY_WARD, epsilon=0.1)).nothing_shown
    assert "at epsilon = 1.6 it would be" in reason


def test_a_reader_is_told_of_no_level_above_their_limit(session: dpsql.Session) -> None:
    session.sql("CALL dp_analyst('ana', rho_limit := 0.001)")
    (reason,) = receipt_of(session.as_analyst("ana").sql(BY_WARD, rho=0.001)).nothing_shown
    assert reason.endswith("units (patient); coarser keys or public keys help")


def test_a_set_without_groups_is_named(session: dpsql.Session) -> None:
    result = session.sql("SELECT ward, bed, count(*) FROM visits GROUP BY ROLLUP (ward, bed)", epsilon=0.1)
    reasons = receipt_of(result).nothing_shown
    assert len(result) == 1
    assert len(reasons) == 1
    assert re.match(r"groups by \([^()]*bed[^()]*\) and \([^()]*ward[^()]*\): no noisy count passed", reasons[0])


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT site, count(*) AS n FROM visits GROUP BY site HAVING n > 1e9", "HAVING left out all 2 groups"),
        ("SELECT count(*) AS n FROM visits HAVING n > 1e9", "HAVING left out the only group"),
        ("SELECT site, count(*) FROM visits GROUP BY site LIMIT 0", "LIMIT 0 left out all 2 groups"),
        (
            "SELECT * FROM (SELECT site, count(*) AS n FROM visits GROUP BY site) WHERE n > 1e9",
            "the outer query left out all 2 rows",
        ),
        (
            "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (min_privacy_units_per_group = 100000) site, count(*) "
            "FROM visits GROUP BY site",
            "no noisy count passed min_privacy_units_per_group = 100,000 units (patient); coarser keys help",
        ),
    ],
)
def test_a_clause_that_leaves_out_all_groups_is_named(session: dpsql.Session, query: str, said: str) -> None:
    result = session.sql(query, rho=0.01)
    assert receipt_of(result).nothing_shown == (said,)
    assert not len(result)


def test_a_number_that_says_nothing_is_printed_as_null(session: dpsql.Session) -> None:
    session._runner.noise_source = seeded_noise(2)
    result = session.sql(
        "SELECT site, avg(cost) AS mean, stddev_pop(cost) AS spread, "
        "median(cost, contribution_bounds_per_row => (0, 1000)) AS middle, count(*) AS n "
        "FROM visits GROUP BY site ORDER BY site",
        rho=0.3,
    )
    layout = result.layout
    assert layout is not None
    low, high = (end.to_pylist() for end in layout.interval("mean") or ())
    # of the few rows of site B nothing is known, and of those of site A something
    assert (low[1], high[1]) == (0.0, 500.0)
    assert (low[0], high[0]) != (0.0, 500.0)
    assert re.search(r"│ B +│ +NULL │", str(result))
    assert not re.search(r"│ A +│ +NULL │", str(result))
    below = "\nnull    NULL in mean, spread and middle: the 95 % intervals cover all possible values\n"
    assert below in str(result)
    assert f">{below.strip()}</div>" in result._repr_html_()
    assert "NULL <span" in result._repr_html_()
    # what is spent of the budget does not travel
    told = str(result).partition("; spent so far")[0]
    assert str(wire.result_of(wire.to_arrow(result))).startswith(f"{told}\n")
    axes = result.plot("mean")
    assert len(axes.containers[0]) == 1
    assert below in axes.texts[0].get_text()
    assert "not drawn: spread, middle, n and 1 NULL of mean" in " ".join(axes.texts[0].get_text().split())
    plt.close()
    # a count has no domain
    assert "NULL in n" not in str(result)
    assert np.isfinite(result.df()["mean"]).all()
    assert result.fetchall()[1][1] == result.arrow()["mean"][1].as_py() == result.df()["mean"][1]


def test_a_choice_of_auto_that_may_change_is_a_condition(session: dpsql.Session) -> None:
    (reason,) = receipt_of(session.sql(BY_WARD, epsilon=0.1, max_groups_contributed="AUTO")).nothing_shown
    assert re.search(
        r"at epsilon = 0\.4 it would be [\d.,]+, if AUTO chose the same bounds again; coarser keys", reason
    )
