"""Runs the blocks of code of a page, and compares what they print with what stands below them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import dpsql
from dpsql.errors import UnsupportedQueryError
from dpsql.frontends import cli
from dpsql.session.runner import StatementRunner
from dpsql.sql.statements import SelectStatement, read_statement
from tests.cures import Question, cures_of, mended
from tests.documents.pages import Block, Page, commands, statements, without_numbers
from tests.end_to_end.printed_answers import short_answers
from tests.golden.facts import Entry
from tests.golden.observed import observed

# Commands that a page may show and no test of pages runs, with the reason.
NOT_RUN = {
    ("pip", "install"): "changes the environment",
    ("make",): "sets itself up; it is what runs the tests",
    ("python", "-m", "benchmarks"): "takes minutes",
    ("dpsql", "shell"): "test_shell.py drives it at a terminal",
    ("dpsql", "install-extension"): "writes into the home folder; test_shell.py does it elsewhere",
}


def run_page(page: Page, capsys: pytest.CaptureFixture[str]) -> list[list[Entry]]:
    """Run the blocks in order, compare what they print, and return what each has asked."""
    names: dict[str, object] = {}
    asked: list[list[Entry]] = []
    with contextlib.ExitStack() as sessions, tried_cures(), short_answers(), observed() as seen:
        for block in page.blocks:
            before = len(seen)
            capsys.readouterr()
            place = f"{page.name}, line {block.line}"
            run_block(block, page, names, sessions)
            asked.append(seen[before:])
            if block.output is not None:
                printed, expected = without_numbers(capsys.readouterr().out), without_numbers(block.output)
                assert printed == expected, f"{place}: printed {printed!r} in place of {expected!r}"
        for value in names.values():
            if isinstance(value, dpsql.Session):
                value.close()
    return asked


@contextlib.contextmanager
def tried_cures() -> Iterator[None]:
    """Plan what refusals from here on tell people to write, for nothing; declarations are left out."""
    plan = StatementRunner.plan

    def planned(
        asked: StatementRunner, statement: SelectStatement, options: Mapping[str, object], reader: str, **named: Any
    ) -> Any:
        try:
            return plan(asked, statement, options, reader, **named)
        except UnsupportedQueryError as error:
            before = [(one.code, one.message) for one in error.refusals]
            for refusal in error.refusals:
                for cure in cures_of(refusal.for_analyst().hint):
                    question = mended(Question(statement.text, options), cure, refusal.span)
                    after = []
                    try:
                        mended_text = read_statement(question.text)
                        assert isinstance(mended_text, SelectStatement)
                        plan(asked, mended_text, question.options, reader)
                    except UnsupportedQueryError as other:
                        after = [(one.code, one.message) for one in other.refusals]
                    this = refusal.code, refusal.message
                    assert after.count(this) < before.count(this), f"{refusal.hint} mends nothing: {question}"
            raise

    with mock.patch.object(StatementRunner, "plan", planned):
        yield


def run_block(block: Block, page: Page, names: dict[str, object], sessions: contextlib.ExitStack) -> None:
    place = f"{page.name}, line {block.line}"
    if block.language == "python":
        exec(compile(block.text, place, "exec"), names)  # noqa: S102 — the pages are ours
    elif block.language == "sql":
        with contextlib.ExitStack() as here:
            sys.stdout.write(run_sql(block, page, names, here if page.is_fresh_for_each else sessions))
    elif block.language == "sh":
        run_sh(block, place)
    else:
        assert block.language == "text", f"{place}: nothing runs a block of {block.language or 'no language'}"


def run_sql(block: Block, page: Page, names: dict[str, object], sessions: contextlib.ExitStack) -> str:
    """What the last statement of a block shows, on the page's tables or in the session of its Python."""
    session = names.get("session")
    if page.tables is not None and (page.is_fresh_for_each or session is None):
        session = sessions.enter_context(session_on(page.tables))
        if not page.is_fresh_for_each:
            names["session"] = session
    assert isinstance(session, dpsql.Session), f"{page.name} says on which tables its SQL runs"
    shown = ""
    for statement in statements(block.text):
        shown = str(run_statement(session, statement))
    return shown


def run_statement(session: dpsql.Session, statement: str) -> dpsql.Result | None:
    if statement.split(maxsplit=1)[0] in ("CREATE", "ALTER", "INSERT"):
        session.connection.execute(statement)
        return None
    return session.sql(statement)


@contextlib.contextmanager
def session_on(tables: Path) -> Iterator[dpsql.Session]:
    """A session on a table of a file's name, or on what a file of SQL makes."""
    with dpsql.connect() as session:
        if tables.suffix == ".parquet":
            session.connection.execute(f"CREATE TABLE {tables.stem} AS FROM '{tables}'")
        else:
            for statement in statements(tables.read_text(encoding="utf-8")):
                run_statement(session, statement)
        yield session


def run_sh(block: Block, place: str) -> None:
    for words in commands(block.text):
        if any(begins(words, known) for known in NOT_RUN):
            continue
        assert words[0] == "dpsql", f"{place}: nothing runs {words[0]}"
        assert cli.main(words[1:]) == 0, f"{place}: {' '.join(words)}"


def begins(words: list[str], known: tuple[str, ...]) -> bool:
    """Check whether a command begins with these words, or with their versions."""
    return len(words) >= len(known) and all(
        word == part or word.startswith(f"{part}.") for word, part in zip(words, known, strict=False)
    )
