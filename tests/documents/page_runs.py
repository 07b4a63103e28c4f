"""Runs the blocks of code of a page, and compares what they print with what stands below them."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import dpsql
from dpsql.errors import UnsupportedQueryError
from dpsql.frontends import cli
from dpsql.session.runner import StatementRunner
from dpsql.sql.statements import SelectStatement, read_statement
from tests.cures import Question, cures_of, mended
from tests.deterministic_entropy import seeded_system
from tests.documents.page_numbers import check_outputs
from tests.documents.pages import Block, Page, commands, statements
from tests.end_to_end.printed_answers import short_answers
from tests.golden.facts import Entry
from tests.golden.observed import observed

SEED = 6
"""Seed of the noise of a run. The noise that the page shows is other noise."""

# Commands that a page may show and no test of pages runs, with the reason.
NOT_RUN = {
    ("pip", "install"): "changes the environment",
    ("make",): "sets itself up; it is what runs the tests",
    ("python", "-m", "benchmarks"): "takes minutes",
    ("dpsql", "shell"): "test_shell.py drives it at a terminal",
    ("dpsql", "install-extension"): "writes into the home folder; test_shell.py does it elsewhere",
}


@dataclass(frozen=True)
class Run:
    """A run of a page: for each block the entries of a golden file, and the outputs of the page with the printed ones.

    Attributes:
        asked: entries of what each block has asked.
        outputs: for each block with an output its place, the output on the page, and the printed one.

    """

    asked: list[list[Entry]]
    outputs: list[tuple[str, str, str]]


def run_page(page: Page) -> Run:
    """Run the blocks of a page in order, with the noise of the operating system."""
    names: dict[str, object] = {}
    run = Run([], [])
    with contextlib.ExitStack() as sessions, tried_cures(), short_answers(), observed() as seen:
        for block in page.blocks:
            before, place = len(seen), f"{page.name}, line {block.line}"
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                run_block(block, page, names, sessions)
            run.asked.append(seen[before:])
            if block.output is not None:
                run.outputs.append((place, block.output, printed.getvalue()))
        for value in names.values():
            if isinstance(value, dpsql.Session):
                value.close()
    return run


def compared_run(page: Page) -> Run:
    """Run a page with seeded noise, and compare what it prints with the page.

    Raises:
        AssertionError: an output differs.

    """
    with seeded_system(SEED):
        run = run_page(page)
    check_outputs(page.name, run.outputs)
    return run


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
    if statement.split(maxsplit=1)[0] in ("CREATE", "ALTER", "DROP", "INSERT"):
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
