"""Every block of code in README and docs runs, and prints what stands below it."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpsql
from dpsql.frontends import cli
from dpsql.sql.row_rules import FUNCTION_EXAMPLES
from tests.documents import reference
from tests.documents.pages import ROOT, Block, Page, commands, pages, read_page, statements, without_numbers
from tests.golden import files
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
PAGES = {page.name: page for page in pages()}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs_as_it_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = PAGES[name]
    if page.runner is not None:
        assert Path(name).name in page.runner.read_text(encoding="utf-8"), f"{page.runner} does not run {name}"
        return
    (tmp_path / "sample_data").symlink_to(ROOT / "sample_data")
    monkeypatch.chdir(tmp_path)
    # lists of the command line are as wide as the screen
    monkeypatch.setenv("COLUMNS", "100")
    for number, seen in enumerate(run_page(page, capsys), start=1):
        files.check(name, f"block {number:02}", seen)


def run_page(page: Page, capsys: pytest.CaptureFixture[str]) -> list[list[Entry]]:
    """Run the blocks in order, compare what they print, and return what each has asked."""
    names: dict[str, object] = {}
    asked: list[list[Entry]] = []
    with contextlib.ExitStack() as sessions, observed() as seen:
        for block in page.blocks:
            before = len(seen)
            capsys.readouterr()
            place = f"{page.name}, line {block.line}"
            run_block(block, page, names, sessions)
            asked.append(seen[before:])
            if block.output is not None:
                assert without_numbers(capsys.readouterr().out) == without_numbers(block.output), place
        for value in names.values():
            if isinstance(value, dpsql.Session):
                value.close()
    return asked


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
        if any(_begins(words, known) for known in NOT_RUN):
            continue
        assert words[0] == "dpsql", f"{place}: nothing runs {words[0]}"
        assert cli.main(words[1:]) == 0, f"{place}: {' '.join(words)}"


def _begins(words: list[str], known: tuple[str, ...]) -> bool:
    return len(words) >= len(known) and all(
        word == part or word.startswith(f"{part}.") for word, part in zip(words, known, strict=False)
    )


def test_the_reference_is_what_is_generated() -> None:
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), "run: python -m tests.documents.reference"


def test_the_page_of_sql_lists_the_functions_that_are_allowed() -> None:
    text = (ROOT / "docs" / "sql.md").read_text(encoding="utf-8")
    section = text[text.index("## Row expressions") : text.index("Other names of the same functions")]
    listed = set(re.findall(r"`(\w+)`", section[section.index("- numbers") :]))
    casts = {"cast", "try_cast"}
    assert listed | casts == {reference.name_of(example) for example in FUNCTION_EXAMPLES}


def test_every_reason_not_to_run_a_command_is_needed() -> None:
    blocks = [block for page in pages() for block in page.blocks if block.language == "sh"]
    shown = [words for block in blocks for words in commands(block.text)]
    assert [known for known in NOT_RUN if not any(_begins(words, known) for words in shown)] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```rust\nfn main() {}\n```\n", "nothing runs a block of rust"),
        ("```\n1 2 3\n```\n", "nothing runs a block of no language"),
        ("```sh\nrm -r everything\n```\n", "nothing runs rm"),
        ("```sql\nSELECT 1;\n```\n", "says on which tables"),
        ("```python\nprint('one')\n```\n```\ntwo\n```\n", "'one'"),
        ("```sh\ndpsql budget nowhere.duckdb\n```\n", "dpsql budget nowhere"),
    ],
)
def test_a_block_that_nothing_runs_or_that_prints_something_else_is_a_failure(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.md").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match=said):
        run_page(read_page(tmp_path / "page.md", tmp_path), capsys)
