"""Rows that LIMIT picks by one number: wider intervals of the same stored numbers, and a receipt that says so."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pytest

import dpsql
from dpsql.receipts.words import PICKED, RANKED
from tests.end_to_end.prepared import with_declarations
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

RHO = 0.01
COLUMNS = {"n": "count(DISTINCT patient)", "mean": "avg(cost)", "cost": "sum(cost)", "change": "sum(change)"}
"""The sum of changes has bounds around 0, so that its noise is all its own."""
WIDTHS = ", ".join(f"dp_interval_high({one}) - dp_interval_low({one}) AS {one}_width" for one in COLUMNS)
QUESTION = (
    f"SELECT month, {', '.join(f'{sql} AS {one}' for one, sql in COLUMNS.items())}, {WIDTHS} FROM visits GROUP BY month"
)
MONTHS = 12


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    """3,000 patients with two visits each, as many of them in each month."""
    with with_declarations(
        "CREATE TABLE visits AS SELECT i // 2 AS patient, i // 2 % 12 AS month, i * 7 % 50 AS cost, "
        "i * 7 % 50 - 25 AS change FROM range(6_000) t(i)",
        (
            "CALL dp_protect('visits', privacy_unit_column := 'patient', coverage := FALSE, "
            "max_groups_contributed := 1, max_rows_per_group := 2, "
            "rho_budget := 1e6, delta_threshold := 1e-3, delta_conversion := 1e-6)",
            f"CALL dp_domain('visits', 'month', keys := {list(range(MONTHS))})",
            "CALL dp_domain('visits', 'cost', bounds := [0, 50])",
            "CALL dp_domain('visits', 'change', bounds := [-50, 50])",
        ),
    ) as session:
        session._runner.noise_source = seeded_noise(4)
        session.sql(QUESTION, rho=RHO)
        yield session


def asked(session: dpsql.Session, clauses: str) -> tuple[pd.DataFrame, dpsql.Receipt]:
    """Return the rows and the receipt of the question with clauses; all of it is stored, so it is free."""
    answer = session.sql(f"{QUESTION} {clauses}", rho=RHO)
    assert receipt_of(answer).charged_rho == 0.0
    return answer.df().set_index("month"), receipt_of(answer)


def factors(session: dpsql.Session, clauses: str) -> dict[str, float]:
    """Return how many times as wide the intervals of each column are as without clauses, on the picked rows."""
    (plain, _), (picked, receipt) = asked(session, ""), asked(session, clauses)
    assert picked[list(COLUMNS)].equals(plain.loc[picked.index, list(COLUMNS)])
    wider = {one: picked[f"{one}_width"] / plain.loc[picked.index, f"{one}_width"] for one in COLUMNS}
    for one in receipt.columns:
        if one.half_width_95 is not None:
            assert picked[f"{one.name}_width"].to_numpy() == pytest.approx(2.0 * one.half_width_95)
    return {one: float(found.mean()) for one, found in wider.items()}


def test_intervals_of_picked_rows_are_wider_by_the_factor_of_the_receipt(session: dpsql.Session) -> None:
    found = factors(session, "ORDER BY n DESC LIMIT 5")
    (note,) = (note for note in asked(session, "ORDER BY n DESC LIMIT 5")[1].notes if note.startswith("LIMIT"))
    assert note.startswith("LIMIT picks the largest noisy numbers")
    assert f"intervals of n, mean and cost are {found['n']:.3g} times" in note
    assert found["n"] == pytest.approx(found["cost"])
    assert found["n"] > 1.15
    # Fieller's interval of an average widens by more
    assert found["mean"] > found["n"]
    assert found["change"] == 1.0


def test_a_sum_with_noise_of_its_own_widens_its_own_intervals_alone(session: dpsql.Session) -> None:
    found = factors(session, "ORDER BY change LIMIT 3 OFFSET 1")
    assert found.pop("change") > 1.15
    assert set(found.values()) == {1.0}


@pytest.mark.parametrize("clauses", [f"ORDER BY n LIMIT {MONTHS}", "ORDER BY n LIMIT 99", "ORDER BY month LIMIT 3"])
def test_rows_that_no_number_picks_keep_their_intervals(session: dpsql.Session, clauses: str) -> None:
    assert set(factors(session, clauses).values()) == {1.0}
    plain, receipt = asked(session, "")[1], asked(session, clauses)[1]
    assert (receipt.notes, receipt.columns) == (plain.notes, plain.columns)


@pytest.mark.parametrize(
    ("clauses", "clause"),
    [
        ("HAVING n > 100", "HAVING"),
        ("HAVING dp_interval_low(n) > 100", "HAVING"),
        ("ORDER BY n + cost LIMIT 3", "LIMIT"),
        ("ORDER BY dp_interval_low(n) DESC LIMIT 3", "LIMIT"),
        ("QUALIFY row_number() OVER (ORDER BY dp_interval_low(n)) < 3", "QUALIFY"),
        ("ORDER BY n OFFSET 3", "OFFSET"),
    ],
)
def test_other_clauses_that_pick_by_numbers_have_a_note(session: dpsql.Session, clauses: str, clause: str) -> None:
    text = f"SELECT month, count(DISTINCT patient) AS n, sum(cost) AS cost FROM visits GROUP BY month {clauses}"
    assert set(factors(session, clauses).values()) == {1.0}
    assert PICKED.format(clause=clause) in asked(session, clauses)[1].notes
    assert f" with 95 % probability, less for rows that {clause} picks" in str(session.sql(text, rho=RHO))


@pytest.mark.parametrize("clauses", ["ORDER BY month, n LIMIT 3", "QUALIFY row_number() OVER (ORDER BY month) < 3"])
def test_clauses_that_pick_by_keys_have_no_note(session: dpsql.Session, clauses: str) -> None:
    assert asked(session, clauses)[1].notes == asked(session, "")[1].notes


def test_a_window_orders_groups_and_picks_none(session: dpsql.Session) -> None:
    text = QUESTION.replace("month,", "month, rank() OVER (ORDER BY count(DISTINCT patient) DESC) AS place,", 1)
    notes = receipt_of(session.sql(text, rho=RHO)).notes
    assert RANKED in notes
    assert not any(" picks rows " in note for note in notes)


@pytest.mark.parametrize(
    ("around", "is_told"),
    [
        ("SELECT * FROM ({}) ORDER BY n DESC LIMIT 3", True),
        ("SELECT month, n AS visitors FROM ({}) ORDER BY visitors LIMIT 3", True),
        ("SELECT month, n FROM ({}) ORDER BY 2 LIMIT 3", True),
        ("SELECT month FROM ({}) WHERE mean > 20", True),
        ("WITH x AS ({}) SELECT * FROM x QUALIFY rank() OVER (ORDER BY n) < 3", True),
        ("SELECT * FROM ({} ORDER BY n + cost) LIMIT 3", True),
        ("SELECT max(n) FROM ({})", True),
        ("SELECT month AS m, n FROM ({}) WHERE month < 3 ORDER BY m LIMIT 3", False),
        ("SELECT sum(n) FROM ({})", False),
        ("SELECT * FROM ({}) ORDER BY n", False),
    ],
)
def test_a_query_around_an_answer_that_picks_by_numbers_has_a_note(
    session: dpsql.Session, around: str, is_told: bool
) -> None:
    notes = receipt_of(session.sql(around.format(QUESTION), rho=RHO)).notes
    assert (PICKED.format(clause="the outer query") in notes) == is_told


def test_errors_of_counts_near_a_threshold_differ_by_row(session: dpsql.Session) -> None:
    answer = session.sql(
        "SELECT patient % 200 AS ward, count(DISTINCT patient) AS n, dp_interval_high(n) - n AS width "
        "FROM visits GROUP BY ward ORDER BY n LIMIT 3",
        rho=0.1,
    )
    receipt, widths = receipt_of(answer), answer.df()["width"]
    (column,) = (one for one in receipt.columns if one.name == "n")
    assert column.sigma is not None
    assert (widths > 3.0 * column.sigma).any()
    # no error is stated that some rows exceed
    assert column.half_width_95 is None
    assert "n: differs by row" in str(receipt)
    (note,) = (note for note in receipt.notes if note.startswith("counts near the threshold"))
    factor = float(note.partition("up to ")[2].split()[0])
    assert widths.max() <= 1.01 * factor * 1.96 * column.sigma + 0.5


def test_truth_values_that_order_rows_widen_no_interval(session: dpsql.Session) -> None:
    text = QUESTION.replace("month,", "month, bool_or(cost > 5) AS dear,", 1) + " ORDER BY dear LIMIT 3"
    notes = receipt_of(session.sql(text, rho=RHO)).notes
    assert PICKED.format(clause="LIMIT") in notes
    assert not any("wider" in note or "times as wide" in note for note in notes)


@pytest.mark.parametrize(("clauses", "is_told"), [("LIMIT 3", True), (f"LIMIT {MONTHS}", False), ("LIMIT 0", False)])
def test_a_plan_says_that_intervals_are_wider_if_rows_are_left_out(
    session: dpsql.Session, clauses: str, is_told: bool
) -> None:
    rows = session.sql(f"FROM dp_explain($$ {QUESTION} ORDER BY n DESC {clauses} $$, rho := {RHO})").fetchall()
    assert any("intervals are wider" in value for *_, value in rows) == is_told


def test_truth_values_pick_rows_and_widen_no_interval(session: dpsql.Session) -> None:
    text = "SELECT month, count(DISTINCT patient) AS n, bool_or(cost > 40) AS dear FROM visits GROUP BY month"
    notes = receipt_of(session.sql(f"{text} ORDER BY dear DESC LIMIT 3", rho=RHO)).notes
    assert PICKED.format(clause="LIMIT") in notes
    assert not any(note.startswith("the rows of LIMIT") for note in notes)


def test_a_lower_level_knows_of_the_threshold_that_has_shown_its_keys() -> None:
    """300 keys have 8 visits each, and a threshold of 11.6 shows some of them by their noise."""
    with with_declarations(
        "CREATE TABLE visits AS SELECT i AS patient, i % 300 AS doctor FROM range(2_400) t(i)",
        (
            "CALL dp_protect('visits', privacy_unit_column := 'patient', coverage := FALSE, "
            "max_groups_contributed := 1, max_rows_per_group := 1, "
            "rho_budget := 1e6, delta_threshold := 1e-4, delta_conversion := 1e-6)",
        ),
    ) as session:
        session._runner.noise_source = seeded_noise(0)
        text = "SELECT doctor, count(*) AS n, dp_interval_low(n) AS low FROM visits GROUP BY doctor"
        assert len(session.sql(text, rho=0.1)) > 10
        answer = session.sql(f"{text} ORDER BY n DESC LIMIT 5", rho=0.09)
        assert receipt_of(answer).threshold is None
        assert (answer.df()["low"] <= 8).all()
        assert any("near the threshold of 11.6" in note for note in receipt_of(answer).notes)
