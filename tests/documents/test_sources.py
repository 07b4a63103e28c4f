"""Files and methods that pages name are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.links import markdown_files
from tests.documents.pages import ROOT
from tests.documents.sources import not_there

OF_OTHERS = {"docs/comparison.md", "docs/dbt.md", "docs/dbt-settings.md"}
"""Pages that name files of other projects."""
MADE = {
    "docs/contribute/mechanism.md": {"dpsql/mechanism/laplace_zcdp.py"},
    "docs/contribute/query-kind.md": {"dpsql/features/in_steps.py"},
}
"""Files that a reader makes, by the page that says so."""


@pytest.mark.parametrize("path", markdown_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_page_names_is_there(path: Path) -> None:
    page = str(path.relative_to(ROOT))
    if page not in OF_OTHERS:
        assert set(not_there(path)) <= MADE.get(page, set())


def test_a_file_and_a_method_that_are_gone_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    there = "`mechanism/joint.py` `joint.py` `tests/documents/clinic.sql` `Session.sql`"
    gone = "`dpsql/session/gone.py` `gone.py` `Session.gone`"
    page.write_text(f"{there} {gone}\n```sh\nrm `lost.py`\n```\n")
    assert list(not_there(page)) == ["dpsql/session/gone.py", "gone.py", "Session.gone"]
