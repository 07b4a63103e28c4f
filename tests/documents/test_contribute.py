"""The how-to pages for contributors run as they are written: aggregate.md, mechanism.md, front-end.md.

They show code that is not part of dpsql, so what they ask is in no golden file.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.page_runs import compared_run
from tests.documents.pages import ROOT, read_page

PAGES = ("aggregate.md", "mechanism.md", "front-end.md")


@pytest.mark.parametrize("name", PAGES)
def test_the_example_of_a_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sample_data").symlink_to(ROOT / "sample_data")
    monkeypatch.chdir(tmp_path)
    compared_run(read_page(ROOT / "docs" / "contribute" / name))


def test_every_page_with_code_is_run() -> None:
    pages = [read_page(path) for path in (ROOT / "docs" / "contribute").glob("*.md")]
    assert {Path(page.name).name for page in pages if page.blocks} == set(PAGES)
