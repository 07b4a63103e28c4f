"""A relative error of ORDER BY … LIMIT: the rule counts the rows that the answer shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from dpsql.features import target_rule
from dpsql.features.target_rule import Step
from dpsql.model.query_kinds import RelativeError
from dpsql.receipts.receipt import heading_of
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

KEYS = 200


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        # 1,000 / rank visits of each page, by visitors of their own
        session.connection.execute(
            f"CREATE TABLE hits AS SELECT row_number() OVER () AS visitor, page, 'n' || page AS name "
            f"FROM range({KEYS}) p(page), range(1000) h(i) WHERE i < 1000 // (page + 1)"
        )
        session.sql(
            "CALL dp_protect('hits', privacy_unit_column := 'visitor', coverage := FALSE, max_groups_contributed := 1, "
            "max_rows_per_group := 1, rho_budget := 10, delta_threshold := 1e-3, delta_conversion := 1e-6)"
        )
        session.sql(f"CALL dp_domain('hits', 'page', keys := {list(range(KEYS))})")
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as own:
        own._runner.noise_source = seeded_noise(1)
        yield own


def asked(clauses: str, key: str = "page", max_rho: float = 5.0) -> str:
    options = f"OPTIONS (target_relative_error = 0.1, max_rho = {max_rho})"
    return f"SELECT WITH DIFFERENTIAL_PRIVACY {options} {key}, count(*) AS n FROM hits GROUP BY {key} {clauses}"


def test_the_rows_of_limit_are_paid_for_and_no_others(session: dpsql.Session) -> None:
    answer = session.sql(asked("ORDER BY n DESC LIMIT 5"))
    receipt = receipt_of(answer)
    # five rows need about 0.005; all 200 groups need over 1,000 times as much
    assert 0.002 < receipt.charged_rho < 0.03
    assert any(note.startswith("noise is within it in 5 of 5 rows after ") for note in receipt.notes)
    assert answer.layout is not None
    ends = answer.layout.interval("n")
    assert ends is not None
    for count, least, most in zip(answer.df()["n"], *(end.to_pylist() for end in ends), strict=True):
        assert (most - least) / 2 <= 0.1 * (count + 0.5)
    again = session.sql(asked("ORDER BY n DESC LIMIT 5"))
    assert again.fetchall() == answer.fetchall()
    assert receipt_of(again).charged_rho == 0.0
    plan = session.sql(f"FROM dp_explain($$ {asked('ORDER BY n DESC LIMIT 5')} $$)").fetchall()
    assert any("of the rows of LIMIT" in value for _, _, value in plan)


@pytest.mark.parametrize("clause", ["HAVING n > 300 ORDER BY n DESC LIMIT 5", "ORDER BY page LIMIT 3"])
def test_other_clauses_leave_all_groups_in_the_rule(session: dpsql.Session, clause: str) -> None:
    answer = session.sql(asked(clause, max_rho=0.05))
    assert "missed" in str(answer)
    notes = receipt_of(answer).notes
    (missed,) = (note for note in notes if note.startswith("the target is not reached"))
    assert " of 200 groups, and 180 are asked for" in missed
    left_out = "HAVING" if clause.startswith("HAVING") else "LIMIT"
    counts_all = f"the target counts all groups, also those that {left_out} leaves out"
    assert counts_all in notes
    assert heading_of(counts_all) == "error"
    assert any(note.startswith("HAVING picks rows") for note in notes) == clause.startswith("HAVING")


def test_private_keys_are_shown_as_often_as_limit_says_or_the_first_line_says_so(session: dpsql.Session) -> None:
    answer = session.sql(asked("ORDER BY n DESC LIMIT 5", key="name"))
    assert len(answer) == 5
    assert "missed" not in str(answer)
    few = session.sql(asked("ORDER BY n DESC LIMIT 20", key="name", max_rho=0.003))
    assert 0 < len(few) < 20
    assert f" of the {len(few)} rows that are shown, and 18 are asked for" in str(few)


@pytest.mark.parametrize("order", ["n DESC", "n DESC, page DESC", "n", "n LIMIT 7 OFFSET 3"])
def test_the_rule_counts_the_rows_that_are_shown(
    session: dpsql.Session, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Step] = []
    is_met = target_rule.is_met

    def noted(step: Step, target: RelativeError) -> bool:
        steps.append(step)
        return is_met(step, target)

    monkeypatch.setattr(target_rule, "is_met", noted)
    # of small counts many are equal
    clause = f"ORDER BY {order}" if "LIMIT" in order else f"ORDER BY {order} LIMIT 60"
    answer = session.sql(asked(clause, max_rho=0.5))
    counted = steps[-1].found.shown[steps[-1].places]
    assert answer.df()["page"].tolist() == counted.tolist()


def test_half_widths_are_those_of_a_group_that_is_named_before(session: dpsql.Session) -> None:
    text = asked("ORDER BY n DESC LIMIT 5").replace(
        "target_relative_error = 0.1, max_rho = 5.0", "target_half_width = 20"
    )
    receipt = receipt_of(session.sql(text))
    assert (receipt.columns[0].half_width_95 or 0.0) > 20.0
    assert (
        "the half widths that were asked for hold for a group named before, not for the rows of LIMIT" in receipt.notes
    )


def test_questions_for_other_rows_end_elsewhere(session: dpsql.Session) -> None:
    clauses = [
        "ORDER BY n DESC LIMIT 1",
        "ORDER BY n DESC LIMIT 5",
        "ORDER BY n DESC LIMIT 5 OFFSET 5",
        "ORDER BY n LIMIT 1",
    ]
    prices = [receipt_of(session.sql(asked(clause, max_rho=0.5))).charged_rho for clause in clauses]
    # each needs more than those before, and pays for the rest of its level
    assert all(price > 0.0 for price in prices)
    assert receipt_of(session.sql(asked("ORDER BY n DESC LIMIT 5", max_rho=0.5))).charged_rho == 0.0


def test_groups_with_too_few_units_are_not_waited_for(session: dpsql.Session) -> None:
    """Ten pages have 100 visitors or more."""
    question = asked("ORDER BY n DESC LIMIT 30")
    few = question.replace("max_rho = 5.0", "max_rho = 5.0, min_privacy_units_per_group = 95")
    answer = session.sql(few)
    assert len(answer) == 10
    assert receipt_of(answer).charged_rho < 0.2
    nobody = question.replace("max_rho = 5.0", "max_rho = 0.01, min_privacy_units_per_group = 5000")
    assert len(session.sql(nobody)) == 0
    assert "the target is not reached: no row is shown" in str(receipt_of(session.sql(nobody)))
