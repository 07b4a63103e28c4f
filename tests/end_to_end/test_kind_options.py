"""Each kind of query with each option: it is answered and the option has its effect, or a refusal names the option."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace

import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.features.kinds import KINDS
from dpsql.plan.frames import GroupedSource, read_levels
from dpsql.sql.source.sources import SelectText
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end.kind_options import CASES, WANTED, Case
from tests.end_to_end.kind_questions import DECLARED, QUESTIONS, TABLES, Asked
from tests.end_to_end.prepared import with_declarations, with_own_state
from tests.noise_sources import silence

Answered = Mapping[str, tuple[dpsql.Session, dpsql.Result]]
"""By the kind, the answer to its question without an option, and the session that has it."""


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with with_declarations(TABLES, DECLARED) as session:
        yield session


@pytest.fixture(scope="module")
def plain(prepared: dpsql.Session) -> Iterator[Answered]:
    with ExitStack() as stack:
        sessions = {kind: stack.enter_context(with_own_state(prepared)) for kind in QUESTIONS}
        for session in sessions.values():
            silence(session)
        yield {kind: (session, session.sql(QUESTIONS[kind].text)) for kind, session in sessions.items()}


def test_each_kind_has_a_question_and_each_option_a_case(prepared: dpsql.Session) -> None:
    assert {name for names in CASES for name in names.split(", ")} == WANTED
    planned = {}
    for kind, question in QUESTIONS.items():
        statement = read_statement(question.text)
        assert isinstance(statement, SelectStatement)
        planned[kind] = type(prepared._runner.plan(statement, {}, CURATOR)[0])
    assert [kind.__name__ for kind in planned.values()] == [kind.partition(",")[0] for kind in planned]
    assert set(planned.values()) == set(KINDS)


@pytest.mark.parametrize("name", CASES)
def test_an_option_has_its_effect_or_is_refused(prepared: dpsql.Session, plain: Answered, name: str) -> None:
    case = CASES[name]
    # with a number, keys alone are another kind
    kinds = [kind for kind, question in QUESTIONS.items() if question.numbers or not case.needs_numbers]
    found = {kind: fault_of(case, kind, prepared, plain) for kind in kinds}
    assert {kind: fault for kind, fault in found.items() if fault} == {}
    # a case that no kind answers shows no effect
    assert "" in found.values()


def test_an_option_that_grouping_sets_drop_is_found(
    prepared: dpsql.Session, plain: Answered, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_delta(text: SelectText) -> GroupedSource:
        return read_levels(replace(text, options=replace(text.options, delta=None)) if text.has_sets else text)

    monkeypatch.setattr("dpsql.plan.planner.read_levels", without_delta)
    kinds = ("OneSet, public keys", "GroupingSets, sums", "GroupingSets, apart")
    assert [fault_of(CASES["delta"], kind, prepared, plain) for kind in kinds] == ["", "no effect", "no effect"]


def fault_of(case: Case, kind: str, prepared: dpsql.Session, plain: Answered) -> str | None:
    """Return what is wrong with a question: an empty text if it is answered, and None if it is refused in our words."""
    stored, before = plain[kind]
    with with_own_state(stored if case.is_stored else prepared) as session:
        silence(session)
        for statement in case.declared:
            session.sql(statement)
        try:
            answer = session.sql(case.change(QUESTIONS[kind]).text)
        except dpsql.UnsupportedQueryError as error:
            told = [f"{one.message} {one.hint}" for one in error.refusals]
            is_named = any(word in words for words in told for word in case.words)
            return None if is_named and all(one.hint for one in error.refusals) else f"not named: {told}"
        return "" if case.had_effect(Asked(before, answer)) else "no effect"
