"""Half widths that take more than a question allows, or stand beside windows, ceilings, versions and refreshes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import dpsql
from tests.end_to_end.receipts import receipt_of

PUBLIC = "SELECT city, count(*) AS n, sum(cost) AS c FROM visits GROUP BY city"
PRIVATE = "SELECT street, count(*) AS n FROM visits GROUP BY street"
SETS = "SELECT city, street, count(*) AS n FROM visits GROUP BY CUBE (city, street)"


def width_of(result: dpsql.Result) -> float:
    width = receipt_of(result).columns[0].half_width_95
    assert width is not None
    return width


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(":memory:", state=None, threads=1) as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT i % 500 AS patient_id, i % 3 AS city, (i % 7)::VARCHAR AS street, "
            "i % 100 AS cost FROM range(1000) t(i)"
        )
        for call in (
            "dp_unit('patient', epsilon_budget := 30, delta_budget := 1e-4)",
            "dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient_id', "
            "max_groups_contributed := 3, max_rows_per_group := 4, coverage := FALSE)",
            "dp_domain('visits', 'city', keys := [0, 1, 2])",
            "dp_domain('visits', 'cost', bounds := [0, 100])",
        ):
            session.sql(f"CALL {call}")
        yield session


def explained(session: dpsql.Session, text: str, options: str) -> dict[tuple[str, str], str]:
    hinted = text.replace("SELECT", f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options})", 1)
    return {(row[0], row[1]): row[2] for row in session.sql(f"FROM dp_explain($$ {hinted} $$)").fetchall()}


@pytest.mark.parametrize("text", [PUBLIC, PRIVATE, SETS], ids=["public", "private", "sets"])
@pytest.mark.parametrize("target", ["{'N': 250.3}"])
@pytest.mark.parametrize(("name", "most"), [("max_rho", 2e-4), ("max_epsilon", 0.07)])
def test_what_a_refusal_says_to_write_is_allowed_and_hardly_wider(
    session: dpsql.Session, text: str, target: str, name: str, most: float
) -> None:
    with pytest.raises(dpsql.CalibrationError) as raised:
        explained(session, text, f"target_half_width = {target}, {name} = {most}")
    assert not raised.value.asks_too_much
    wider, larger = re.fullmatch(r".*\. Write (.*) or (.*)", str(raised.value)).groups()  # type: ignore[union-attr]
    allowed = explained(session, text, f"{wider}, {name} = {most}")
    assert 0.98 * most < float(allowed["target", name.removeprefix("max_")]) <= most
    assert explained(session, text, f"target_half_width = {target}, {larger}")


@pytest.mark.parametrize(
    ("text", "options"),
    [(PUBLIC, ""), (PRIVATE, ""), (PRIVATE, ", rho_window = [0.01, 1]"), (SETS, ", delta = 1e-12")],
    ids=["public", "private", "window", "sets"],
)
def test_the_smallest_half_width_that_is_told_is_granted(session: dpsql.Session, text: str, options: str) -> None:
    with pytest.raises(dpsql.CalibrationError, match="too small for column") as raised:
        explained(session, text, f"target_half_width = 0.01{options}")
    smallest = float(str(raised.value).rpartition(" is ")[2])
    assert explained(session, text, f"target_half_width = {smallest}{options}")
    with pytest.raises(dpsql.CalibrationError, match=f"is {smallest:g}$"):
        explained(session, text, f"target_half_width = {0.98 * smallest}{options}")


def test_a_level_that_gives_no_half_width_is_not_said_to_give_one(session: dpsql.Session) -> None:
    with pytest.raises(dpsql.CalibrationError, match=r"Write max_rho = 0\.\d+$"):
        session.sql(PUBLIC, target_half_width=5000, max_rho=1e-9)


def test_a_target_goes_with_a_window(session: dpsql.Session) -> None:
    assert width_of(session.sql(PRIVATE, target_half_width=60, rho_window=(0.001, 0.1))) <= 60
    with pytest.raises(dpsql.CalibrationError, match="the smallest half width for this column is"):
        session.sql(PRIVATE, target_half_width=0.6, rho_window=(0.001, 0.1))


def test_a_level_above_a_ceiling_is_refused(session: dpsql.Session) -> None:
    with pytest.raises(dpsql.CalibrationError) as raised:
        session.sql(PUBLIC.replace(", sum(cost) AS c", ""), target_half_width=20, rho_ceiling=0.05)
    assert raised.value.asks_too_much


def test_a_target_goes_with_refresh_and_versions(session: dpsql.Session) -> None:
    text = PRIVATE.replace("GROUP", "WHERE cost < 90 GROUP")
    first = receipt_of(session.sql(text, target_half_width=70))
    second = receipt_of(session.sql(text, target_half_width=70, refresh=True))
    earlier = receipt_of(session.sql(text, target_half_width=70, as_of="1"))
    assert first.charged_rho == second.charged_rho > earlier.charged_rho == 0.0


def test_the_names_are_those_of_the_query_inside(session: dpsql.Session) -> None:
    text = (
        "WITH t AS (SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (target_half_width = {}){}) SELECT max(n) AS most FROM t"
    )
    assert width_of(session.sql(text.format("{'n': 60}", PRIVATE[6:]))) <= 60
    for wrong in ("{'most': 60}", "{'street': 60}"):
        with pytest.raises(dpsql.UnsupportedQueryError):
            session.sql(text.format(wrong, PRIVATE[6:]))


@pytest.mark.parametrize(
    "target", [True, "x", (50, 60), {}, {"n": True}, {"n": {"n": 5}}, {1: 2}, {"n": 1, "N": 2}, 10**400, 1e-400]
)
def test_a_wrong_target_is_one_refusal(session: dpsql.Session, target: object) -> None:
    with pytest.raises(dpsql.UnsupportedQueryError) as raised:
        session.sql("SELECT count(*) AS n, avg(cost) FROM visits", target_half_width=target)
    assert [one.code for one in raised.value.refusals] == ["option"]


@pytest.mark.parametrize("target", ["{'n': 1, 'n': 2}", "{'n': 1, 'N': 2}", "{'n': {'n': 1}}", "[5]", "'5'", "NULL"])
def test_a_wrong_target_in_the_text_is_one_refusal(session: dpsql.Session, target: str) -> None:
    with pytest.raises(dpsql.UnsupportedQueryError) as raised:
        explained(session, "SELECT count(*) AS n, avg(cost) FROM visits", f"target_half_width = {target}")
    assert [one.code for one in raised.value.refusals] == ["option"]
