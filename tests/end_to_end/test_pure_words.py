"""Texts and public numbers of units with composition 'pure': they say epsilon, and other units say rho as before."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

import dpsql
from dpsql.errors import AccessError, BudgetError, CalibrationError, DpsqlError, PolicyError, UnsupportedQueryError
from dpsql.mechanism.laplace import deviation_of
from dpsql.receipts.plan_rows import LEVELS_APART
from dpsql.remote.wire import error_of, error_to_json, receipt_of, to_json
from dpsql.session import as_record
from tests.end_to_end.prepared import with_declarations, with_own_state
from tests.noise_sources import seeded_noise

TABLES = """
CREATE TABLE v AS SELECT i AS person, i % 5 AS city, i % 11 AS nights FROM range(2000) t(i);
CREATE TABLE w AS SELECT i AS nurse, i % 5 AS city FROM range(2000) t(i);
"""
ONE = "max_groups_contributed := 1, max_rows_per_group := 1"
DECLARED = (
    "CALL dp_unit('person', epsilon_budget := 3, delta_budget := 1e-6, composition := 'pure')",
    f"CALL dp_protect('v', unit := 'person', privacy_unit_column := 'person', {ONE})",
    "CALL dp_domain('v', 'city', keys := [0, 1, 2, 3, 4])",
    "CALL dp_unit('nurse', epsilon_budget := 3, delta_budget := 1e-6)",
    f"CALL dp_protect('w', unit := 'nurse', privacy_unit_column := 'nurse', {ONE})",
    "CALL dp_analyst('ana', rho_limit := 0.1)",
    "CALL dp_analyst('ben', budget_part := 0.5)",
)
COUNT = "SELECT city, count(*) AS n FROM v GROUP BY city"
NIGHTS = "SELECT nights, count(*) AS n FROM v GROUP BY nights"
OF_RHO = ("rho_budget", "rho_spent", "rho_left", "rho_held")


@pytest.fixture(scope="module")
def declared() -> Iterator[dpsql.Session]:
    with with_declarations(TABLES, DECLARED) as session:
        yield session


@pytest.fixture
def hotel(declared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(declared) as session:
        session._runner.noise_source = seeded_noise(7)
        yield session


def _asked(session: dpsql.Session, text: str, **options: Any) -> tuple[dpsql.Receipt, dict[str, str]]:
    """Return the receipt, and the lines below the printed answer by their first word."""
    answer = session.sql(text, **options)
    assert answer.receipt
    lines = [line for line in answer.printed().splitlines() if line[:1].isalpha()]
    return answer.receipt, {line.partition(" ")[0]: line.partition(" ")[2].strip() for line in lines}


def _rows(session: dpsql.Session, text: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = session.sql(text).arrow().to_pylist()
    return rows


def _refusal(session: dpsql.Session | dpsql.Analyst, text: str, **options: Any) -> str:
    with pytest.raises(DpsqlError) as caught:
        session.sql(text, **options)
    return str(caught.value)


def test_an_answer_is_priced_in_epsilon(hotel: dpsql.Session) -> None:
    receipt, lines = _asked(hotel, COUNT, epsilon=1)
    assert lines["price"].startswith("epsilon 1; spent so far: epsilon 1 of 3, room for 2 more such questions")
    assert lines["bounds"] == "all rows: the counted part is not known: with composition = 'pure' it is not measured"
    assert receipt.sections["price"] == ("epsilon 1",)
    assert receipt.sections["privacy"][1:] == ("this answer alone has epsilon 1 at delta 0",)
    assert receipt.asked_by == "epsilon"
    again, lines = _asked(hotel, COUNT, epsilon=0.5)
    assert lines["price"].startswith("nothing: served as stored, with epsilon 0.5; spent so far: epsilon 1 of 3")
    assert "rho" not in f"{receipt}{again}{lines}"


def test_a_higher_level_that_serves_is_told_beside_the_one_that_was_asked(hotel: dpsql.Session) -> None:
    text = "SELECT count(*) AS n, sum(nights, contribution_bounds_per_row => (0, 10)) AS s FROM v"
    _asked(hotel, text, epsilon=1)
    receipt, lines = _asked(hotel, text, epsilon=0.4)
    assert f"with epsilon {receipt.epsilon:.6g} (asked: 0.4)" in lines["price"]
    assert receipt.sections["privacy"][1].endswith(" at delta 0; the question asked for epsilon 0.4")


def test_private_keys_have_a_delta_beside_epsilon(hotel: dpsql.Session) -> None:
    receipt, lines = _asked(hotel, NIGHTS, epsilon=1)
    assert lines["price"].startswith(f"epsilon 1 at delta {receipt.delta:.3g}; spent")
    assert receipt.price == f"epsilon 1 and threshold delta {receipt.charged_delta:.3g}"
    # keys stem from the release at the higher level, and the guarantee is of both
    receipt, lines = _asked(hotel, NIGHTS, epsilon=0.5)
    assert lines["price"].startswith("nothing: served as stored, with epsilon 1 at delta ")
    assert any("a release with a count of units at epsilon = 1, which" in note for note in receipt.notes)
    receipt, lines = _asked(hotel, NIGHTS, epsilon=1.5)
    assert lines["price"].startswith("epsilon 1.5 and threshold delta ")
    assert "for an answer with epsilon 2.5 at delta" in lines["price"]


def test_parts_of_a_text_share_an_epsilon(hotel: dpsql.Session) -> None:
    text = "SELECT (SELECT count(*) FROM v) AS a, (SELECT count(*) FROM v WHERE nights > 3) AS b"
    rows = hotel.sql(f"FROM dp_explain($$ {text} $$, epsilon := 1)").fetchall()
    assert ("all parts of unit person", "epsilon", "1") in rows
    receipt, lines = _asked(hotel, text, epsilon=1)
    assert lines["price"].startswith("epsilon 1; spent so far: epsilon 1 of 3")
    assert receipt.sections["price"] == ("epsilon 1", "(part 1): epsilon 0.5", "(part 2): epsilon 0.5")
    inside = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2) count(*) FROM v WHERE nights > 5"
    told = _refusal(hotel, f"SELECT ({inside}) AS a, (SELECT count(*) FROM v WHERE nights > 6) AS b", epsilon=1)
    assert "add up to epsilon 2, and the whole text has epsilon 1" in told


def test_units_of_both_kinds_are_told_apart(hotel: dpsql.Session) -> None:
    receipt, lines = _asked(hotel, "SELECT (SELECT count(*) FROM v) AS a, (SELECT count(*) FROM w) AS b", epsilon=1)
    assert receipt.amount == "rho"
    assert [one.receipt.amount for one in receipt.sets] == ["epsilon", "rho"]
    assert receipt.charged_rho == receipt.sets[1].receipt.charged_rho < 0.1
    assert "of unit person epsilon 1 was charged, and this answer alone has epsilon 1 at delta 0" in receipt.notes
    assert lines["price"].startswith("epsilon 1 at delta")


def test_refusals_ask_for_less_epsilon(hotel: dpsql.Session) -> None:
    _asked(hotel, COUNT, epsilon=1)
    with pytest.raises(BudgetError) as caught:
        hotel.sql("SELECT count(*) FROM v", epsilon=2.5)
    error = caught.value
    assert str(error) == (
        "the budget of privacy unit 'person' does not cover this query at epsilon = 2.5 (it costs epsilon = 2.5; left "
        "is epsilon = 2). Ask with epsilon = 2. FROM dp_releases() lists what is free."
    )
    assert (error.amount, error.requested_rho) == ("epsilon", 2.5)
    assert (error.requested_epsilon, error.remaining_epsilon) == (2.5, 2.0)
    arrived = error_of(json.loads(json.dumps(error_to_json(error))))
    assert isinstance(arrived, BudgetError)
    assert (arrived.amount, str(arrived)) == ("epsilon", str(error))
    assert "left are epsilon = 2 and delta = 1e-06" in _refusal(hotel, NIGHTS, epsilon=2.5)
    told = _refusal(hotel, "SELECT count(*) FROM v", target_half_width=0.1)
    assert told.startswith("target_half_width = 0.1 takes epsilon = ")
    assert "has epsilon = 2 left. Write target_half_width = " in told
    part = _refusal(hotel.as_analyst("ben"), "SELECT count(*) FROM v", epsilon=1.7)
    assert (
        "may spend does not cover this query at epsilon = 1.7 (it costs epsilon = 1.7; left is epsilon = 1.5)" in part
    )
    with pytest.raises(
        CalibrationError, match=r"^epsilon = 1e-09 is too small .*takes epsilon = 1e-9 .*more epsilon\.$"
    ):
        hotel.sql("SELECT count(*), sum(nights, contribution_bounds_per_row => (0, 10)) FROM v", epsilon=1e-9)


def test_refusals_of_texts_with_parts_name_an_epsilon_that_is_granted(hotel: dpsql.Session) -> None:
    _asked(hotel, COUNT, epsilon=1)
    texts = [
        "SELECT (SELECT count(*) FROM v) AS a, (SELECT count(*) FROM v WHERE nights > 3) AS b",
        "SELECT count(*) FROM v WHERE nights > 4 UNION ALL SELECT count(*) FROM v WHERE nights > 5",
    ]
    with pytest.raises(BudgetError) as caught:
        hotel.sql(texts[0], epsilon=2.5)
    assert str(caught.value) == (
        "the budget of privacy unit 'person' does not cover this query at epsilon = 2.5 (it costs epsilon = 2.5; left "
        "is epsilon = 2). Ask with epsilon = 2. FROM dp_releases() lists what is free."
    )
    assert (caught.value.requested_epsilon, caught.value.remaining_epsilon) == (2.5, 2.0)
    assert _asked(hotel, texts[0], epsilon=0.877)[0].charged_rho == pytest.approx(0.877)
    assert "left is epsilon = 1.123). Ask with epsilon = 1.1. FROM" in _refusal(hotel, texts[1], epsilon=1.2)
    assert _asked(hotel, texts[1], epsilon=1.1)[0].charged_rho == pytest.approx(1.1)
    # a part with a level of its own would stay at it
    inside = texts[0].replace("(SELECT", "(SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2)", 1)
    assert "Ask for less, or reuse a release" in _refusal(hotel, inside, epsilon=2.5)


def test_a_budget_has_no_rho(hotel: dpsql.Session) -> None:
    _asked(hotel, "SELECT count(*) AS n FROM v", epsilon=0.5)
    (row,) = _rows(hotel, "FROM dp_budget('person')")
    assert {name: row[name] for name in OF_RHO} == dict.fromkeys(OF_RHO)
    numbers = [row[f"epsilon_{name}"] for name in ("budget", "spent", "next", "held")]
    assert numbers == [3.0, 0.5, 2.5, 0.5]
    # a half width is about one over epsilon
    assert (row["questions_left"], row["half_width_factor"]) == (5, 0.2)
    assert row["note"].startswith("with composition = 'pure' epsilon adds up")
    (other,) = _rows(hotel, "FROM dp_budget('nurse')")
    assert None not in [other[name] for name in OF_RHO]
    settings = [row[2] for row in hotel.sql("FROM dp_policy()").fetchall() if row[:2] == ("unit", "person")]
    assert settings[0] == "epsilon_budget"


def test_tables_of_releases_and_points_say_epsilon(hotel: dpsql.Session) -> None:
    hotel.sql("SELECT count(*) AS n FROM w", epsilon=1)
    before = _rows(hotel, "FROM dp_releases()"), _rows(hotel, "FROM dp_cascade()")
    assert not any("epsilon" in name for name in (*before[1][0], *before[0][0]) if name != "epsilon")
    hotel.sql("SELECT count(*) AS n FROM v", epsilon=1)
    *others, release = _rows(hotel, "FROM dp_releases()")
    assert (release["rho"], release["charged_rho"], release["epsilon"], release["charged_epsilon"]) == (
        None,
        None,
        1,
        1,
    )
    assert others[0] == {**before[0][0], "charged_epsilon": None}
    points = _rows(hotel, "FROM dp_cascade()")
    assert [(one["rho"] is None, one["epsilon"]) for one in points][-1] == (True, 1.0)
    assert points[0] == {**before[1][0], "epsilon": None}


def test_a_plan_says_epsilon(hotel: dpsql.Session) -> None:
    rows = [
        *hotel.sql(f"FROM dp_explain($$ {COUNT} $$, epsilon := 1)").fetchall(),
        *hotel.sql(f"FROM dp_explain($$ {COUNT} $$, target_half_width := 10)").fetchall(),
    ]
    assert not [row for row in rows if "rho" in " ".join(row)]
    assert {("mechanism", "epsilon", "1"), ("price", "epsilon", "1")} < set(rows)
    assert ("price", "rule", LEVELS_APART) in rows
    (statistic,) = {value for section, _, value in rows if section == "statistic" and "epsilon = 1," in value}
    assert statistic.endswith("lattice = 1 (to be drawn)"), "counts have noise in whole steps"
    rows = hotel.sql("FROM dp_explain($$ SELECT count(*) AS n FROM w $$, epsilon := 1)").fetchall()
    assert not [row for row in rows if row[:2] == ("price", "rule")]
    assert [value for section, _, value in rows if section == "statistic" and "lattice = 9.53674316e-07" in value]


@pytest.mark.parametrize(("epsilon", "half_width"), [(0.5, 6.0), (3.0, 1.0), (10.0, 0.0)])
def test_whole_noise_has_no_rounding(hotel: dpsql.Session, epsilon: float, half_width: float) -> None:
    hotel.sql("CALL dp_unit('person', epsilon_budget := 30, replace := true)")
    receipt, _ = _asked(hotel, "SELECT count(*) AS n FROM v", epsilon=epsilon)
    assert receipt.columns[0].sigma == pytest.approx(deviation_of(epsilon), rel=1e-5)
    assert receipt.columns[0].half_width_95 == half_width
    # a sum has finer steps and half of the level, and is rounded to be shown
    text = "SELECT sum(nights, contribution_bounds_per_row => (-5, 5)) AS s FROM v"
    receipt, _ = _asked(hotel, text, epsilon=epsilon)
    of_sum = math.hypot(math.sqrt(2.0) * 10.0 / epsilon, math.sqrt(1.0 / 12.0))
    assert receipt.columns[0].sigma == pytest.approx(of_sum, rel=1e-5)


def test_a_budget_is_raised_in_epsilon(hotel: dpsql.Session) -> None:
    with pytest.raises(PolicyError, match=r"epsilon_budget from 3 to 5\b") as caught:
        hotel.sql("CALL dp_unit('person', epsilon_budget := 5)")
    assert "rho" not in str(caught.value)
    with pytest.raises(PolicyError, match="delta_budget from 1e-06 to 2e-06"):
        hotel.sql("CALL dp_unit('person', delta_budget := 2e-6)")


def test_levels_of_rho_are_refused(hotel: dpsql.Session) -> None:
    for setting in ("default_rho := 0.1", "rho_ceiling := 0.1", "rho_window := [0.01, 0.1]"):
        with pytest.raises(PolicyError, match=r"is a level of rho, and unit 'person' counts epsilon"):
            hotel.sql(f"CALL dp_protect('v', {setting})")
    hotel.sql("CALL dp_protect('w', rho_ceiling := 0.1)")
    with pytest.raises(PolicyError, match=r"rho_ceiling of table 'main\.w' is a level of rho, and unit 'nurse'"):
        hotel.sql("CALL dp_unit('nurse', composition := 'pure')")
    ana = hotel.as_analyst("ana")
    with pytest.raises(AccessError, match=r"a rho_limit is a level of rho, and unit 'person' counts epsilon"):
        ana.sql("SELECT count(*) FROM v", epsilon=0.1)
    assert ana.sql("SELECT count(*) FROM w", rho=0.01).receipt
    assert not _rows(hotel, "FROM dp_budget('person')")[0]["epsilon_spent"]


def test_records_say_what_is_counted(hotel: dpsql.Session) -> None:
    pure, _ = _asked(hotel, "SELECT count(*) AS n FROM v", epsilon=1)
    other, _ = _asked(hotel, "SELECT count(*) AS n FROM w", epsilon=1)
    for record in (as_record(pure), to_json(pure)):
        assert (record["amount"], record["rho"], record["charged_rho"]) == ("epsilon", 1.0, 1.0)
    assert receipt_of(json.loads(json.dumps(to_json(pure)))) == pure
    assert "amount" not in {**as_record(other), **to_json(other)}
    assert receipt_of(to_json(other)).amount == "rho"


def test_a_frame_may_count_epsilon() -> None:
    unit = dpsql.unit("guest", column="guest", epsilon_budget=3, composition="pure")
    frame: Any = pd.DataFrame({"guest": range(1000), "city": [number % 4 for number in range(1000)]})
    towns = {"public_keys": [0, 1, 2, 3], "max_groups": 1, "max_rows_per_group": 1}
    answer = frame.dp.groupby("city", unit=unit, epsilon=1, **towns).size()
    record = answer.attrs["dpsql"]
    assert (record["amount"], record["epsilon"], record["delta"]) == ("epsilon", 1.0, 0.0)
    assert str(record).startswith("price    epsilon 1\n")
    keys = {"unit": unit, "epsilon": 1, "max_groups": 1, "max_rows_per_group": 1}
    with pytest.raises(UnsupportedQueryError) as refused:
        frame.dp.groupby("city", **keys).size()
    assert "(composition='pure' without delta_budget). List the values of every key in public_keys=." in str(
        refused.value
    )
    assert "as dpsql.unit(…, composition='pure', delta_budget=1e-6)" in str(refused.value)
    host = dpsql.unit("host", column="host", epsilon_budget=3, composition="pure", delta_budget=1e-6)
    frame = pd.DataFrame({"host": range(1000), "city": [number % 4 for number in range(1000)]})
    assert frame.dp.groupby("city", **{**keys, "unit": host}).size().attrs["dpsql"]["delta"] > 0.0
    with pytest.raises(PolicyError, match=r"or composition='pure' \(counts epsilon\), not composition='laplace'"):
        dpsql.unit("guest", column="guest", epsilon_budget=3, composition="laplace")
