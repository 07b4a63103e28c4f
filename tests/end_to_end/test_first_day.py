"""The transcript of a first day: every message is as written, and cures work at once when they are pasted."""

from __future__ import annotations

import pytest

from dpsql.errors import ParseError
from tests.end_to_end.first_day import CONTROL, FILE, Day, begun, played

LEAST_MISTAKES = 60
LEAST_PASTED = 25
LEAST_CURED = 0.9
TRANSCRIPT = FILE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def day() -> Day:
    return played(TRANSCRIPT)


def test_every_message_is_as_written(day: Day) -> None:
    assert "\n".join(day.lines) + "\n" == TRANSCRIPT
    assert day.mistakes >= LEAST_MISTAKES


def test_nine_in_ten_cures_work_at_once(day: Day) -> None:
    """Count the cures that are whole texts; `day` has pasted each of them into the text that was refused."""
    cured, refused = (sum(line.startswith(f"  {sign} ") for line in day.lines) for sign in "+-")
    assert cured >= LEAST_CURED * (cured + refused)
    assert cured >= LEAST_PASTED


def test_no_cure_changes_another_answer(day: Day) -> None:
    """Noise is 0. A cure that changed the policy would change the statistics of the control question."""
    assert len(day.controls) >= LEAST_PASTED
    assert all(answer == day.controls[0] for answer in day.controls), CONTROL


def test_the_control_question_sees_a_bound_that_a_cure_would_declare() -> None:
    with begun() as day:
        day.session.sql("CALL dp_unit('patient', epsilon_budget := 90000, delta_budget := 0.01)")
        for bounds in ("", ", max_rows_per_group := 1"):
            table = f"'visits', unit := 'patient', privacy_unit_column := 'patient_id'{bounds}"
            day.session.sql(f"CALL dp_protect({table}, replace := true)")
            day.ask_control()
    first, second = day.controls
    assert first != second


def test_a_cure_with_a_blank_is_refused_until_it_is_filled_in(day: Day) -> None:
    assert len(day.marked) >= 5
    for refused in day.marked:
        assert isinstance(refused, ParseError)
        assert "fill in <" in str(refused)


def test_only_curators_are_told_to_call(day: Day) -> None:
    who = ""
    for line in day.lines:
        if not line.startswith("  "):
            who = line.partition(">")[0]
        elif who != "curator":
            assert "CALL" not in line, line
