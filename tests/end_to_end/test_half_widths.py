"""Questions by half width: the level follows from it, and the question is an ordinary one from then on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dpsql
from tests.end_to_end.receipts import receipt_of

COUNTS = "SELECT city, count(*) AS n FROM visits GROUP BY city"
TWO = "SELECT city, count(*) AS n, sum(cost) AS c FROM visits GROUP BY city"


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(":memory:", state=None, threads=1) as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT i % 500 AS patient_id, i % 3 AS city, i % 100 AS cost FROM range(1000) t(i)"
        )
        for call in (
            "dp_unit('patient', epsilon_budget := 3, delta_budget := 1e-6)",
            "dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient_id', "
            "max_groups_contributed := 3, max_rows_per_group := 4)",
            "dp_domain('visits', 'city', keys := [0, 1, 2])",
            "dp_domain('visits', 'cost', bounds := [0, 100])",
        ):
            session.sql(f"CALL {call}")
        yield session


def widths(receipt: dpsql.Receipt) -> dict[str, float]:
    return {one.name: one.half_width_95 for one in receipt.columns if one.half_width_95 is not None}


def test_the_smallest_level_with_a_half_width_is_asked_for(session: dpsql.Session) -> None:
    answer = receipt_of(session.sql(COUNTS, target_half_width=30))
    assert 29.999 < widths(answer)["n"] <= 30.0
    below = receipt_of(session.sql(COUNTS.replace("visits G", "visits WHERE cost < 99 G"), rho=answer.rho - 1e-9))
    assert widths(below)["n"] > 30.0


def test_a_float_of_numpy_is_a_number(session: dpsql.Session) -> None:
    width = np.float64(30)
    assert (
        receipt_of(session.sql(COUNTS, target_half_width=width)).rho
        == receipt_of(session.sql(COUNTS, target_half_width=30)).rho
    )


def test_it_is_the_ordinary_question_at_that_level(session: dpsql.Session) -> None:
    asked = f"{TWO[:6]} WITH DIFFERENTIAL_PRIVACY OPTIONS (target_half_width = {{'n': 40, 'c': 5000}}){TWO[6:]}"
    by_target = receipt_of(session.sql(asked))
    assert by_target.charged_rho == by_target.rho
    again = receipt_of(session.sql(TWO, rho=by_target.rho))
    assert (again.query_hash, again.rho, again.charged_rho) == (by_target.query_hash, by_target.rho, 0.0)
    assert receipt_of(session.sql(TWO, target_half_width={"N": 40, "c": 5000})).charged_rho == 0.0
    assert widths(by_target)["n"] <= 40.0
    assert widths(by_target)["c"] <= 5000.0


PATIENTS = "SELECT cost, count(DISTINCT patient_id) AS n FROM visits GROUP BY cost"
PRIVATE = "SELECT cost, count(*) AS n, sum(cost) AS c FROM visits GROUP BY cost"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (TWO, {}),
        (TWO, {"rho_ceiling": 0.06}),
        (PRIVATE, {"mechanism": "GSHM"}),
        (PRIVATE, {"mechanism": "CSH", "top_k": 20}),
        (PRIVATE, {"rho_window": [0.0001, 1]}),
    ],
)
def test_no_half_width_is_wider_if_more_is_stored(session: dpsql.Session, text: str, options: dict[str, Any]) -> None:
    session.sql(text, rho=0.09, **options)
    for most in (53, 117):
        target = {"n": most, "c": 150 * most}
        free = receipt_of(session.sql(text, target_half_width=target, **options))
        assert free.charged_rho == 0
        assert all(widths(free)[name] <= target[name] for name in target), most
        again = receipt_of(session.sql(text, target_half_width=target, **options))
        assert (again.rho, widths(again)) == (free.rho, widths(free))


@pytest.mark.parametrize(
    ("text", "options"),
    [(COUNTS, {}), (PATIENTS, {"mechanism": "GSHM"}), (PATIENTS, {"mechanism": "CSH", "top_k": 20})],
)
def test_it_is_no_wider_after_the_same_level_was_asked_for_by_rho(
    session: dpsql.Session, text: str, options: dict[str, Any]
) -> None:
    """A level that was asked for is served from the grid below; it stays so, and so does the answer by half width."""
    named = "".join(f", {name} := {value!r}" for name, value in options.items())
    plan = session.sql(f"FROM dp_explain($$ {text} $$, target_half_width := {{'n': 117}}{named})").fetchall()
    (level,) = (float(value) for section, name, value in plan if (section, name) == ("target", "rho"))
    session.sql(text, rho=0.06, **options)
    by_rho = session.sql(text, rho=level, **options)
    by_width = session.sql(text, target_half_width={"n": 117}, **options)
    assert widths(receipt_of(by_rho))["n"] > 117
    assert widths(receipt_of(by_width))["n"] <= 117
    assert session.sql(text, rho=level, **options).fetchall() == by_rho.fetchall()
    assert session.sql(text, target_half_width={"n": 117}, **options).fetchall() == by_width.fetchall()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"target_half_width": 0.1}, dpsql.CalibrationError),
        ({"target_half_width": 5, "max_rho": 0.001}, dpsql.CalibrationError),
        ({"target_half_width": 5, "rho": 0.001}, dpsql.UnsupportedQueryError),
        ({"target_half_width": -5}, dpsql.UnsupportedQueryError),
        ({"target_half_width": float("nan")}, dpsql.UnsupportedQueryError),
        ({"target_half_width": dict.fromkeys(map(str, range(30_000)), 5)}, dpsql.UnsupportedQueryError),
        ({"target_half_width": 5, "confidence": 0.8}, dpsql.UnsupportedQueryError),
        ({"rho": 0.1, "max_rho": 0.2}, dpsql.UnsupportedQueryError),
    ],
)
def test_a_target_that_cannot_be_met_is_refused_for_nothing(
    session: dpsql.Session, options: dict[str, Any], error: type[dpsql.DpsqlError]
) -> None:
    with pytest.raises(error):
        session.sql(COUNTS, **options)
    assert session.sql("FROM dp_budget()").df()["rho_spent"].tolist() == [0.0]
