"""Half widths with nothing named: AUTO finds the bounds, and the level follows from them, up to max_rho."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

import dpsql
from dpsql.frontends.dbt.model_options import model_options
from tests.end_to_end.prepared import with_declarations, with_own_rows, with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.json_rows import plain_rows
from tests.noise_sources import seeded_noise, silence
from tests.serving import ask, door, in_background, token_of

TABLES = """
CREATE TABLE visits AS
SELECT i % 2000 AS patient, i % 3 AS ward, i % 7 AS doctor, i * 7919 % 100 AS cost, i % 2 AS half
FROM range(12_000) t(i)
"""
DECLARED = (
    "CALL dp_unit('patient', rho_budget := 2, delta_threshold := 1e-4, delta_conversion := 1e-6)",
    "CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient', coverage := FALSE)",
    "CALL dp_domain('visits', 'ward', keys := [0, 1, 2])",
)
BY_WARD = "SELECT ward, count(*) AS n FROM visits GROUP BY ward"
BY_DOCTOR = "SELECT doctor, count(*) AS n, sum(cost) AS c FROM visits GROUP BY doctor"
BOTH = {"n": 300.0, "c": 15_000.0}
SUM_ALONE = "SELECT ward, sum(cost) AS c FROM visits GROUP BY ward"


@pytest.fixture(scope="module")
def declared() -> Iterator[dpsql.Session]:
    with with_declarations(TABLES, DECLARED) as session:
        yield session


@pytest.fixture
def clinic(declared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(declared) as session:
        session._runner.noise_source = seeded_noise(46)
        yield session


def spent(session: dpsql.Session) -> float:
    (row,) = session.sql("FROM dp_budget()").arrow().to_pylist()
    return float(row["rho_spent"])


def explained(handle: dpsql.Session | dpsql.Analyst, text: str, **options: Any) -> dict[tuple[str, str], str]:
    named = "".join(f", {name} := {value!r}" for name, value in options.items())
    return {(row[0], row[1]): row[2] for row in handle.sql(f"FROM dp_explain($$ {text} $$ {named})").fetchall()}


def widths(receipt: dpsql.Receipt) -> dict[str, float]:
    return {one.name: one.half_width_95 for one in receipt.columns if one.half_width_95 is not None}


@pytest.mark.parametrize(
    ("text", "target", "cap"),
    [(BY_WARD, 60, {"max_rho": 0.5}), (BY_DOCTOR, BOTH, {"max_rho": 0.5}), (BY_DOCTOR, BOTH, {"max_epsilon": 4})],
    ids=["public keys", "private keys", "max_epsilon"],
)
def test_the_half_width_holds_exactly_for_the_bounds_that_auto_finds(
    clinic: dpsql.Session, text: str, target: Any, cap: dict[str, Any]
) -> None:
    plan = explained(clinic, text, target_half_width=target, **cap)
    most = float(plan["target", "max_rho"])
    assert plan["target", "dearest outcome"].startswith(f"rho = {most:.9g} ")
    assert plan["target", "affordable"] == "yes"
    answer = clinic.sql(text, target_half_width=target, **cap)
    receipt = receipt_of(answer)
    asked = dict.fromkeys(widths(receipt), target) if isinstance(target, int) else target
    excess = max(width / asked[name] for name, width in widths(receipt).items())
    assert 1.0 - 1e-6 < excess <= 1.0
    # all of it is paid, and it is less than the cap; the guarantee is that of the cap
    assert receipt.charged_rho == pytest.approx(receipt.rho) == pytest.approx(spent(clinic))
    assert receipt.rho < most
    assert receipt.epsilon == pytest.approx(float(plan["mechanism", "this query alone"].split()[2].rstrip(",")), 1e-5)
    assert receipt.epsilon <= cap.get("max_epsilon", receipt.epsilon)
    assert not receipt.missing
    # one part in 32 of the cap is AUTO's, shared by its questions
    histograms = [float(one) for note in receipt.notes for one in re.findall(r"^AUTO chose .* at rho = ([^,]+),", note)]
    assert sum(histograms) == pytest.approx(most / 32, abs=3e-9)
    # a level of one nano-rho less is too low
    plan = explained(clinic, text, target_half_width=target, **cap)
    assert plan["target", "reached"] == "yes"
    assert float(plan["target", "rho"]) == pytest.approx(receipt.rho, abs=2e-9)
    again = clinic.sql(text, target_half_width=target, **cap)
    assert receipt_of(again).charged_rho == 0.0
    assert again.fetchall() == answer.fetchall()
    assert (receipt_of(again).rho, receipt_of(again).epsilon) == (receipt.rho, receipt.epsilon)


def test_a_cap_that_is_too_low_is_answered_with_its_half_width_and_marked(clinic: dpsql.Session) -> None:
    answer = clinic.sql(BY_WARD, target_half_width=20, max_rho=0.01)
    receipt = receipt_of(answer)
    assert receipt.rho == pytest.approx(0.01, abs=2e-9) == pytest.approx(spent(clinic), abs=2e-9)
    (missed,) = receipt.missing
    width = re.fullmatch(
        r"the target is not reached: n has a half width of ([\d.]+) in place of 20; for the bounds that AUTO found, "
        r"max_rho = 0\.01 is too low; write (max_rho = [\d.]+)",
        missed,
    )
    assert width
    assert widths(receipt)["n"] <= float(width[1]) <= 1.01 * widths(receipt)["n"]
    assert str(answer).split("\n\n")[1].startswith("missed  n has a half width of")
    assert explained(clinic, BY_WARD, target_half_width=20, max_rho=0.01)["target", "reached"] == missed
    # what the sentence says to write is enough, and hardly more than that
    enough = float(width[2].removeprefix("max_rho = "))
    better = receipt_of(clinic.sql(BY_WARD, target_half_width=20, max_rho=enough))
    assert not better.missing
    assert widths(better)["n"] <= 20.0
    assert better.rho > 0.96 * enough


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (BY_WARD, {}),
        (BY_WARD, {"max_groups_contributed": "AUTO"}),
        (BY_WARD.replace("count(*)", "count(*, contribution_norm => AUTO)"), {"bounding": "NORM"}),
        (BY_DOCTOR, {"confidence": 0.99}),
    ],
)
def test_half_widths_with_auto_are_refused_without_a_cap(
    clinic: dpsql.Session, text: str, options: dict[str, Any]
) -> None:
    with pytest.raises(dpsql.UnsupportedQueryError) as raised:
        clinic.sql(text, target_half_width=500, **options)
    (refusal,) = raised.value.refusals
    assert refusal.code == "option"
    assert refusal.hint == "Write OPTIONS (max_rho = <most rho to spend>)."
    assert spent(clinic) == 0.0
    # with the blank filled in, it is answered
    assert receipt_of(clinic.sql(text, target_half_width=500, max_rho=0.5, **options)).charged_rho > 0.0


def test_the_dearest_outcome_is_refused_before_auto_is_charged(clinic: dpsql.Session) -> None:
    """AUTO may find bounds so large that they take the whole cap, whatever the half width is."""
    clinic.sql("CALL dp_analyst('ana', rho_limit := 0.3)")
    clinic.sql("CALL dp_analyst('bea', budget_part := 0.25)")
    cases: list[tuple[dpsql.Session | dpsql.Analyst, type[dpsql.DpsqlError], float]] = [
        (clinic, dpsql.BudgetError, 2.0),
        (clinic.as_analyst("ana"), dpsql.AccessError, 0.3),
        (clinic.as_analyst("bea"), dpsql.BudgetError, 0.5),
    ]
    for handle, error, granted in cases:
        above: dict[str, Any] = {"target_half_width": 5_000, "max_rho": 1.01 * granted}
        with pytest.raises(error, match=rf"max_rho = {granted:g}\b") as raised:
            handle.sql(BY_WARD, **above)
        assert raised.value.asks_too_much
    assert spent(clinic) == 0.0
    assert not len(clinic.sql("FROM dp_cascade()"))
    # for a reader with a limit the question of the curator counts at its cap, which is the whole budget
    clinic.sql(
        "CALL dp_unit('patient', rho_budget := 3, delta_threshold := 1e-4, delta_conversion := 1e-6, replace := true)"
    )
    for handle, _, granted in cases:
        receipt = receipt_of(handle.sql(BY_WARD, target_half_width=5_000, max_rho=granted))
        assert widths(receipt)["n"] <= 5_000.0


def test_the_price_is_that_of_the_most_groups_if_no_bound_is_missing(clinic: dpsql.Session) -> None:
    """Units have one, two or three groups. So the level of three is the dearest outcome, and not the cap."""
    text = "SELECT ward, count(DISTINCT patient) AS n FROM visits GROUP BY ward"
    asked: dict[str, Any] = {"max_groups_contributed": "AUTO", "target_half_width": 50, "max_rho": 1.5}
    plan = explained(clinic, text, **asked)
    dearest = re.match(r"rho = ([\d.]+) ", plan["target", "dearest outcome"])
    assert dearest
    receipt = receipt_of(clinic.sql(text, **asked))
    assert receipt.max_groups == 3
    assert float(dearest[1]) == pytest.approx(receipt.rho, abs=2e-9)
    assert receipt.rho < 0.1


def test_a_reader_with_a_limit_has_choices_by_points_up_to_it(clinic: dpsql.Session) -> None:
    clinic.sql("CALL dp_analyst('ana', rho_limit := 0.02)")
    asked: dict[str, Any] = {"target_half_width": 400, "max_rho": 0.02}
    clinic.sql(BY_WARD, target_half_width=30, max_rho=1.5)
    ana = clinic.as_analyst("ana")
    answer = ana.sql(BY_WARD, **asked)
    receipt = receipt_of(answer)
    histograms = [float(one) for note in receipt.notes for one in re.findall(r"^AUTO chose .* at rho = ([^,]+),", note)]
    assert histograms
    assert all(level <= 0.02 / 32 / 2 for level in histograms)
    assert receipt.rho <= 0.02
    assert widths(receipt)["n"] <= 400.0
    clinic.sql(BY_WARD.replace("ward,", "ward AS w,"), target_half_width=25, max_rho=1.5)
    assert ana.sql(BY_WARD, **asked).fetchall() == answer.fetchall()


def test_a_budget_that_fell_after_auto_is_refused_with_a_cap_that_is_granted(clinic: dpsql.Session) -> None:
    clinic.sql(BY_WARD, target_half_width=500, max_rho=0.5)
    clinic.sql("SELECT count(DISTINCT patient) FROM visits", rho=2.0 - spent(clinic) - 0.01)
    with pytest.raises(dpsql.BudgetError) as raised:
        clinic.sql(BY_WARD, target_half_width=20, max_rho=0.5)
    cap = re.search(r"Ask with max_rho = ([\d.]+)\.", str(raised.value))
    assert cap
    receipt = receipt_of(clinic.sql(BY_WARD, target_half_width=20, max_rho=float(cap[1])))
    assert receipt.missing
    assert spent(clinic) <= 2.0


def test_a_column_that_auto_finds_no_bounds_for_takes_no_level(clinic: dpsql.Session) -> None:
    """If no column is left that has a half width, the question takes the least that can be drawn."""
    few = SUM_ALONE.replace("GROUP", "WHERE patient = 7 GROUP")
    answer = clinic.sql(few, target_half_width=500, max_rho=0.3)
    assert [row[1] for row in answer.fetchall()] == [None] * 3
    receipt = receipt_of(answer)
    assert not widths(receipt)
    assert 0.3 / 32 <= receipt.charged_rho + 2e-9 < 0.3 / 31
    assert all("is NULL" in note for note in receipt.missing)


def test_all_doors_give_one_answer_and_mark_what_is_missed(clinic: dpsql.Session) -> None:
    clinic.sql("CALL dp_analyst('ana')")
    options: dict[str, Any] = {"target_half_width": 20, "max_rho": 0.01}
    paid = clinic.sql(BY_WARD, **options)
    written = {"target_half_width": "2e1", "max_rho": "1e-2", "materialized": "private_table"}
    by_dbt = clinic.sql(BY_WARD, **model_options("m", written, {"materialized"}))
    with in_background(clinic, door("ana")) as urls:
        by_http = dpsql.remote.connect(urls.analysts, token=token_of("ana")).sql(BY_WARD, **options)
        posted = ask(urls.analysts, "ana", BY_WARD, **options)
    assert by_dbt.fetchall() == by_http.fetchall() == paid.fetchall()
    assert [tuple(row.values()) for row in plain_rows(posted.json)] == paid.fetchall()
    (missed,) = receipt_of(paid).missing
    assert receipt_of(by_http).missing == receipt_of(by_dbt).missing == (missed,)
    assert missed[: missed.index(";")] in by_http._repr_html_()
    assert spent(clinic) == pytest.approx(0.01, abs=2e-9)


def test_frames_leave_bounds_to_auto() -> None:
    rows = pd.DataFrame({"patient": [*range(900)] * 3, "ward": [1, 2, 3] * 900})
    unit = dpsql.unit("patients", column="patient", epsilon_budget=20, delta_budget=1e-4)
    asked = dpsql.from_frame(rows).groupby("ward", unit=unit, target_half_width=90)
    with pytest.raises(dpsql.UnsupportedQueryError, match=r"Write groupby\(…, max_rho=<most rho to spend>\)"):
        asked.size()
    answer: Any = dpsql.from_frame(rows).groupby("ward", unit=unit, target_half_width=90, max_rho=1).size()
    assert len(answer) == 3
    assert "± 90.0 (95 %)" in str(answer.attrs["dpsql"])


def test_one_unit_moves_an_answer_by_no_more_than_is_charged(declared: dpsql.Session) -> None:
    """Without noise numbers are exact. The unit has more than AUTO's norm, so it has all of the charge but a part."""
    answers = []
    for more in ("", " UNION ALL SELECT 5000, i % 3, 1, 99, 0 FROM range(3_000) t(i)"):
        with with_own_rows(declared, f"{TABLES}{more}") as session:
            silence(session)
            answers.append(session.sql(SUM_ALONE, target_half_width=2_000, max_rho=0.5))
    without, found = answers
    receipt = receipt_of(found)
    assert receipt.columns == receipt_of(without).columns
    (sigma,) = (one.sigma for one in receipt.columns)
    assert sigma is not None
    moved = [one[1] - other[1] for one, other in zip(found.fetchall(), without.fetchall(), strict=True)]
    distance = sum(one**2 for one in moved) / (2.0 * sigma**2)
    level = receipt.charged_rho - 0.5 / 32
    assert 0.5 * level < distance <= level


@pytest.mark.parametrize("count", [6, pytest.param(60, marks=pytest.mark.long)])
def test_no_charge_is_above_the_dearest_outcome(declared: dpsql.Session, count: int) -> None:
    choose = random.Random(46)
    missed = 0
    for _ in range(count):
        columns = choose.sample(["count(*)", "sum(cost)", "count(DISTINCT patient)", "sum(half)"], choose.randint(1, 3))
        shown = ", ".join(f"{one} AS c{place}" for place, one in enumerate(columns))
        key = choose.choice(("ward", "doctor"))
        text = f"SELECT {key}, {shown} FROM visits WHERE cost < {choose.randint(2, 100)} GROUP BY {key}"
        options: dict[str, Any] = {
            "target_half_width": float(f"{10 ** choose.uniform(0.5, 5):.3g}"),
            "confidence": choose.choice((0.9, 0.95, 0.99)),
            **choose.choice(({"max_rho": float(f"{10 ** choose.uniform(-4, 0):.3g}")}, {"max_epsilon": 2})),
        }
        with with_own_state(declared) as session:
            session._runner.noise_source = seeded_noise(choose.randint(0, 1000))
            plan = explained(session, text, **options)
            rho, delta = re.findall(r"= ([\d.e-]+)", plan["target", "dearest outcome"])
            receipt = receipt_of(session.sql(text, **options))
            assert receipt.charged_rho <= float(rho) * (1.0 + 1e-9), (text, options)
            assert receipt.charged_delta <= float(delta) * (1.0 + 1e-5), (text, options)
            assert float(rho) <= float(plan["target", "max_rho"])
            missed += any("not reached" in note for note in receipt.missing)
            assert receipt_of(session.sql(text, **options)).charged_rho == 0.0
    assert 0 < missed < count


def test_the_guarantee_of_a_cap_by_epsilon_is_within_it() -> None:
    """The pair of the answer's own level has a larger epsilon at a smaller delta. It is not mixed with the cap's."""
    with dpsql.connect(threads=1) as session:
        session.connection.execute("CREATE TABLE visits AS SELECT i % 800 AS pid, i % 300 AS day FROM range(6000) t(i)")
        session.sql("CALL dp_unit('p', rho_budget := 5.0, delta_threshold := 1e-3, delta_conversion := 1e-6)")
        session.sql(
            "CALL dp_protect('visits', unit := 'p', privacy_unit_column := 'pid', max_groups_contributed := 1, "
            "coverage := FALSE)"
        )
        text = "SELECT day, count(*) AS n FROM visits GROUP BY day"
        receipt = session.sql(text, target_half_width=2, max_epsilon=0.5).receipt
        assert receipt is not None
        assert 0.49 < receipt.epsilon <= 0.5
        # points above the cap are shown, so the guarantee is theirs, and no note says otherwise
        session.sql(text, rho=0.3)
        receipt = session.sql(text, target_half_width=2.5, max_epsilon=0.5).receipt
        assert receipt is not None
        assert receipt.epsilon > 0.5
        assert not any("epsilon is that of max_epsilon" in note for note in receipt.notes)
