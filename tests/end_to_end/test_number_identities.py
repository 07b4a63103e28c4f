"""Numbers that private rows wait for: each number is another question, and none is taken for another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from dpsql.errors import UnsupportedQueryError
from tests.end_to_end.composed import DECLARED, TABLES, WITH, receipt_of, spent
from tests.noise_sources import silence

ABOVE = "SELECT count(*) AS n FROM visits WHERE ward = 1 OR cost > (SELECT avg(cost) FROM visits)"
OF_PUBLIC = (
    "SELECT count(*) AS n FROM visits "
    "WHERE cost > (SELECT max(w.beds) * 7 + 0 * max(a.n) FROM (SELECT count(*) AS n FROM visits) a, wards w)"
)


@pytest.fixture
def clinic() -> Iterator[dpsql.Session]:
    with dpsql.connect(":memory:") as session:
        for statement in TABLES.split(";"):
            session.connection.execute(statement)
        for call in DECLARED:
            session.sql(call)
        silence(session)
        yield session


def test_public_rows_of_a_number_are_part_of_the_question(clinic: dpsql.Session) -> None:
    assert clinic.sql(OF_PUBLIC, rho=0.1).fetchall() == [(96,)]
    clinic.connection.execute("UPDATE wards SET beds = 1")
    changed = clinic.sql(OF_PUBLIC, rho=0.1)
    assert changed.fetchall() == [(1104,)]
    assert receipt_of(changed).charged_rho == pytest.approx(0.05)
    clinic.connection.execute("UPDATE wards SET beds = 10 + ward")
    back = clinic.sql(OF_PUBLIC, rho=0.1)
    assert (back.fetchall(), receipt_of(back).charged_rho) == ([(96,)], 0.0)


@pytest.mark.parametrize("in_text", [False, True])
def test_the_least_units_of_a_number_are_part_of_the_question(clinic: dpsql.Session, in_text: bool) -> None:
    assert clinic.sql(ABOVE, rho=0.4).fetchall() == [(756,)]
    if in_text:
        option = f"{WITH} (rho = 0.2, min_privacy_units_per_group = 100000)"
        hidden = clinic.sql(ABOVE.replace("SELECT avg", f"SELECT {option} avg"), rho=0.4)
    else:
        hidden = clinic.sql(ABOVE.replace("ward = 1", "true"), rho=0.4, min_privacy_units_per_group=601)
        assert "compared with NULL" in "".join(receipt_of(hidden).notes)
        hidden = clinic.sql(ABOVE, rho=0.4, min_privacy_units_per_group=601)
    assert "compared with NULL" in "".join(receipt_of(hidden).notes)
    assert hidden.fetchall() == ([(300,)] if in_text else [])
    assert receipt_of(hidden).charged_rho == pytest.approx(0.2)


def test_two_levels_of_one_number_are_two_numbers(clinic: dpsql.Session) -> None:
    low, high = (f"(SELECT {WITH} (rho = {rho}) avg(cost) FROM visits WHERE ward = 1)" for rho in (0.01, 0.05))
    # the higher level is stored, so that both are served by it
    clinic.sql(high[1:-1])
    text = f"SELECT {WITH} (rho = 0.1) count(*) AS n FROM visits WHERE cost > {low} AND cost < 30 + {high}"
    asked = clinic.sql(text)
    parts = [one for one in receipt_of(asked).sets if one.name.startswith("part")]
    assert [one.receipt.asked_rho for one in parts][:2] == pytest.approx([0.01, 0.05])


def test_a_number_that_is_released_anew_is_refused_before_the_charge(clinic: dpsql.Session) -> None:
    with pytest.raises(UnsupportedQueryError, match="released anew"):
        clinic.sql(ABOVE, rho=0.2, refresh=True)
    assert spent(clinic, "patient").rho_nano == 0


PART = "(SELECT ward, count(*) AS n, sum(cost) AS t FROM visits {where} GROUP BY ward)"
FIRST, OTHER = PART.format(where=""), PART.format(where="WHERE cost > 50")


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT n, t FROM {FIRST} UNION ALL SELECT t, n FROM {OTHER}",
        f"SELECT n AS a, t AS b FROM {FIRST} WHERE n NOT IN (SELECT t FROM {OTHER})",
        f"SELECT a, n FROM (SELECT n AS a, ward AS w FROM {FIRST}), {OTHER} WHERE w = ward",
        f"SELECT unnamed_subquery.n, b.t FROM {FIRST}, {OTHER} b WHERE b.ward = unnamed_subquery.ward",
    ],
)
def test_a_subquery_without_a_name_is_answered_with_intervals_of_its_own(clinic: dpsql.Session, text: str) -> None:
    answer = clinic.sql(text, rho=0.4)
    table = answer.arrow()
    assert table.num_rows >= 4
    for name in table.column_names:
        ends = answer.layout.interval(name) if answer.layout else None
        if "unnamed" in text:
            continue
        assert ends
        for value, low, high in zip(table.column(name).to_pylist(), *(end.to_pylist() for end in ends), strict=True):
            assert low <= value <= high
            assert (low + high) / 2 == pytest.approx(value, abs=1)
