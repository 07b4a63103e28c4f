"""The how-to pages for contributors run as they are written: those of an aggregate, a mechanism, a front end, a kind.

They show code that is not part of dpsql, so what they ask is in no golden file. The pages of a mechanism and of a query
kind change files of dpsql, so they run in a copy.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.documents.page_runs import compared_run
from tests.documents.pages import ROOT, Block, read_page

FOLDER = ROOT / "docs" / "contribute"
PAGES = ("aggregate.md", "front-end.md")
KIND, MECHANISM = "query-kind.md", "mechanism.md"
CHANGED = {
    KIND: {"model/query_kinds.py", "features/in_steps.py", "features/kinds.py", "plan/planner.py"},
    MECHANISM: {"mechanism/laplace_zcdp.py", "mechanism/registry.py"},
}
"""Files of dpsql that a page changes."""


@pytest.mark.parametrize("name", PAGES)
def test_the_example_of_a_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sample_data").symlink_to(ROOT / "sample_data")
    monkeypatch.chdir(tmp_path)
    compared_run(read_page(FOLDER / name))


def test_every_page_with_code_is_run() -> None:
    pages = [read_page(path) for path in FOLDER.glob("*.md")]
    assert {Path(page.name).name for page in pages if page.blocks} == {*PAGES, *CHANGED}


def named_file(page: str, block: Block) -> str | None:
    """Return the file that the sentence above a block of a page names. Return None if it names none."""
    above = "".join(page.splitlines(keepends=True)[: block.line - 1]).rstrip()
    found = re.findall(r"`(dpsql/[\w/]+\.py)`", above.rpartition("\n\n")[2])
    assert len(found) < 2, f"the sentence above line {block.line} names several files"
    return found[0] if found else None


def place(block: Block, path: Path) -> None:
    """Put a block into a file: Python at its end, and of a diff each part where its old lines are."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if block.language == "python":
        path.write_text(f"{text}\n\n{block.text}" if text else block.text, encoding="utf-8")
        return
    assert block.language == "diff"
    for part in block.text.split("\n\n"):
        lines = part.splitlines()
        old, new = ("".join(f"{line[1:]}\n" for line in lines if line[0] in (" ", sign)) for sign in "-+")
        assert text.count(old) == 1, f"{path} has these lines once:\n{old}"
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def run_in(folder: Path, *arguments: str) -> str:
    """Run Python on the copy of dpsql in a folder, and return what it prints."""
    paths = os.pathsep.join((str(folder), str(ROOT)))
    command = [sys.executable, "-P", *arguments]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def copy_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes a folder with a copy of dpsql that has what a page adds."""

    @cache
    def made(name: str) -> Path:
        folder = tmp_path_factory.mktemp("copy")
        shutil.copytree(ROOT / "dpsql", folder / "dpsql")
        (folder / "sample_data").symlink_to(ROOT / "sample_data")
        page = (FOLDER / name).read_text(encoding="utf-8")
        for block in read_page(FOLDER / name).blocks:
            if path := named_file(page, block):
                place(block, folder / path)
        return folder

    return made


@pytest.mark.parametrize("name", CHANGED)
def test_what_a_page_adds_is_in_its_files_alone(name: str, copy_of: Callable[[str], Path]) -> None:
    folder = copy_of(name) / "dpsql"
    now = {path.relative_to(folder): path for path in folder.rglob("*.py")}
    before = {path.relative_to(ROOT / "dpsql"): path for path in (ROOT / "dpsql").rglob("*.py")}
    changed = {
        str(file)
        for file in now.keys() | before.keys()
        if file not in now or file not in before or now[file].read_bytes() != before[file].read_bytes()
    }
    assert changed == CHANGED[name]


@pytest.mark.parametrize("name", CHANGED)
def test_the_questions_of_a_page_are_answered(name: str, copy_of: Callable[[str], Path]) -> None:
    page = (FOLDER / name).read_text(encoding="utf-8")
    asked = [block for block in read_page(FOLDER / name).blocks if not named_file(page, block)]
    printed = run_in(copy_of(name), "-c", "\n".join(block.text for block in asked))
    assert printed == "".join(block.output or "" for block in asked) != ""


def test_the_kind_of_a_page_needs_nothing_else(copy_of: Callable[[str], Path]) -> None:
    """It has a price, a plan, AUTO and half widths; its rows are read once, and each step is paid once."""
    assert len(run_in(copy_of(KIND), "-m", "tests.documents.in_steps").split()) == 6


@pytest.mark.thorough
def test_the_mechanism_of_a_page_is_of_its_law(copy_of: Callable[[str], Path]) -> None:
    """Intervals cover what they say, lower levels are those of the law, and the epsilon is the pure one."""
    assert len(run_in(copy_of(MECHANISM), "-m", "tests.documents.second_law").split()) == 7
