"""The how-to pages for contributors run as they are written: aggregate.md, mechanism.md, front-end.md.

They show code that is not part of dpsql, so what they ask is in no golden file.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.page_runs import run_page
from tests.documents.pages import ROOT, read_page

PAGES = ("aggregate.md", "mechanism.md", "front-end.md")


@pytest.mark.parametrize("name", PAGES)
def test_the_example_of_a_page_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sample_data").symlink_to(ROOT / "sample_data")
    monkeypatch.chdir(tmp_path)
    run_page(read_page(ROOT / "docs" / "contribute" / name), capsys)


def test_every_page_with_code_is_run() -> None:
    pages = [read_page(path) for path in (ROOT / "docs" / "contribute").glob("*.md")]
    assert {Path(page.name).name for page in pages if page.blocks} == set(PAGES)
