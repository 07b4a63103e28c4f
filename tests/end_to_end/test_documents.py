"""Every block of code in README and docs runs, and prints what stands below it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dpsql.model.private_query import OPTION_NAMES
from dpsql.model.refusals import CODES
from tests.documents import reference
from tests.documents.page_runs import NOT_RUN, begins, compared_run
from tests.documents.pages import ROOT, commands, pages, read_page
from tests.golden import files

PAGES = {page.name: page for page in pages()}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs_as_it_is_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = PAGES[name]
    if page.runner is not None:
        assert Path(name).name in page.runner.read_text(encoding="utf-8"), f"{page.runner} does not run {name}"
        return
    (tmp_path / "sample_data").symlink_to(ROOT / "sample_data")
    monkeypatch.chdir(tmp_path)
    # lists of the command line are as wide as the screen
    monkeypatch.setenv("COLUMNS", "100")
    for number, seen in enumerate(compared_run(page).asked, start=1):
        files.check(name, f"block {number:02}", seen)


def test_the_reference_is_what_is_generated() -> None:
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), "run: python -m tests.documents.reference"


def test_the_page_of_refusals_lists_every_code() -> None:
    text = (ROOT / "docs" / "sql-refusals.md").read_text(encoding="utf-8")
    assert re.findall(r"^- `(\w+)`: ", text[: text.index("## Other errors")], re.MULTILINE) == sorted(CODES)


def test_the_page_of_options_lists_every_option() -> None:
    text = (ROOT / "docs" / "sql-options.md").read_text(encoding="utf-8")
    assert [name for name in OPTION_NAMES if f"`{name}`" not in text] == []


def test_every_reason_not_to_run_a_command_is_needed() -> None:
    blocks = [block for page in pages() for block in page.blocks if block.language == "sh"]
    shown = [words for block in blocks for words in commands(block.text)]
    assert [known for known in NOT_RUN if not any(begins(words, known) for words in shown)] == []


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
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page.md").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match=said):
        compared_run(read_page(tmp_path / "page.md", tmp_path))
