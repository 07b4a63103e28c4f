"""AUTO chooses by what a text asks: bounds of quantiles and averages by their own error, those of counts as before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

STAYS = """
CREATE TABLE visits AS
SELECT u AS pid, 'w' || (hash(u, i) % 5)::INTEGER AS ward, 1 + (hash(i, u) % 900) / 100.0 AS stay
FROM range(2000) r(u), range(20) s(i)
"""
PROTECT = "CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'pid'"
LEVEL: dict[str, Any] = {"epsilon": 0.5, "delta": 1e-6}
WEIGHED = "median(stay) is of at most 1 row of a patient in a group: patients with more weigh no more"


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect() as opened:
        opened.connection.execute(STAYS)
        opened.sql("CALL dp_unit('patient', rho_budget := 1e3, delta_threshold := 0.1, delta_conversion := 1e-6)")
        opened.sql(f"{PROTECT})")
        opened._runner.noise_source = seeded_noise(4)
        yield opened


def rows_of(answer: dpsql.Result) -> int:
    """Return how many rows of a unit AUTO lets count in a group."""
    (found,) = re.findall(r"AUTO lets at most (\d+) rows?", " ".join(receipt_of(answer).notes))
    return int(found)


def mean_half_width(answer: dpsql.Result, low: int) -> float:
    """Return the mean half width of intervals whose lower ends are in a column."""
    widths = [float(row[low + 1] - row[low]) for row in answer.fetchall()]
    assert len(widths) == 5
    return sum(widths) / 2.0 / len(widths)


def test_a_median_alone_has_few_rows_of_a_person_and_beside_a_count_those_of_the_count(
    session: dpsql.Session,
) -> None:
    median = "median(stay) AS stay, dp_interval_low(stay), dp_interval_high(stay)"
    alone = session.sql(f"SELECT ward, {median} FROM visits GROUP BY ward", **LEVEL)
    beside = session.sql(f"SELECT ward, {median}, count(*) FROM visits GROUP BY ward", **LEVEL)
    assert rows_of(alone) == 1
    assert receipt_of(alone).max_groups in (4, 5)
    # the planted fault: bounds of a count, as every query had them
    assert rows_of(beside) >= 8
    assert 3.0 * mean_half_width(alone, 2) < mean_half_width(beside, 2)


def test_people_are_counted_beside_a_median_by_their_own_bounds(session: dpsql.Session) -> None:
    people = session.sql("SELECT ward, count(DISTINCT pid) FROM visits GROUP BY ward", **LEVEL)
    both = session.sql("SELECT ward, count(DISTINCT pid), median(stay) FROM visits GROUP BY ward", **LEVEL)
    assert rows_of(both) == 1
    # a part of AUTO is stored: the price of the rest is that of all that may come of it
    assert receipt_of(people).max_groups == receipt_of(both).max_groups


def test_the_screen_and_the_receipt_say_of_how_many_rows_a_median_is(session: dpsql.Session) -> None:
    answer = session.sql("SELECT ward, median(stay) FROM visits GROUP BY ward", **LEVEL)
    assert WEIGHED in receipt_of(answer).notes
    shown = str(answer)
    assert "bounds  median(stay) is of at most 1 row of a patient in a group" in shown
    below = shown[shown.rindex("┘") :].strip("┘\n").splitlines()
    assert len(below) <= 4
    # bounds that somebody names are no choice of AUTO
    session.sql(f"{PROTECT}, max_rows_per_group := 1, replace := TRUE)")
    named = session.sql("SELECT ward, median(stay) FROM visits GROUP BY ward", **LEVEL)
    assert WEIGHED not in receipt_of(named).notes


def test_rows_wait_for_the_histogram_of_groups(session: dpsql.Session) -> None:
    """The norms of rows are stored, the groups of a unit not yet: both choose together."""
    text = "SELECT ward, median(stay) FROM visits GROUP BY ward"
    in_two = session.sql(text, max_groups_contributed=2, **LEVEL)
    assert rows_of(in_two) == 1
    again = session.sql(text, **LEVEL)
    assert rows_of(again) == 1
    assert receipt_of(again).max_groups in (4, 5)
    # one text has one choice
    assert receipt_of(session.sql(text, refresh=True, **LEVEL)).max_groups == receipt_of(again).max_groups


def test_an_average_alone_has_no_larger_norm_than_beside_a_count(session: dpsql.Session) -> None:
    session.connection.execute("INSERT INTO visits SELECT 1, 'w1', 2.0 FROM range(3000)")
    session.sql("CALL dp_new_version('visits')")

    def norm(calls: str) -> float:
        notes = " ".join(receipt_of(session.sql(f"SELECT ward, {calls} FROM visits GROUP BY ward", **LEVEL)).notes)
        return float(re.findall(r"AUTO chose a norm of ([\d.]+) for avg", notes)[0])

    assert norm("avg(stay)") <= norm("avg(stay), count(*)")
