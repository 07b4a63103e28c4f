"""Every page is found from the front page and stands in the site, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents.links import anchors, broken, markdown_files, targets, without_blank_line
from tests.documents.pages import ROOT

FILES = markdown_files()
DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(DOCS)) for path in FILES if DOCS in path.parents}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    assert list(broken(path)) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lists_and_tables_begin_after_a_blank_line(path: Path) -> None:
    assert list(without_blank_line(path)) == []


def test_the_navigation_of_the_site_names_every_page_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r"[\w/-]+\.md$", text, re.MULTILINE)
    assert sorted(named) == sorted(PAGES)


def test_every_page_is_found_from_the_front_page_or_an_overview() -> None:
    assert "docs/index.md" in targets(ROOT / "README.md")
    found, waiting = {"index.md"}, [DOCS / "index.md"]
    for page in waiting:
        if page.name not in {"index.md", "architecture.md"}:
            continue
        led_to = [(page.parent / target.partition("#")[0]).resolve() for target in targets(page)]
        found |= {str(path.relative_to(DOCS)) for path in led_to if path.suffix == ".md"}
        waiting += [path for path in led_to if path not in waiting]
    assert found == PAGES


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[a](nowhere.md)", "nowhere.md: no such file"),
        ("[a](other.md#third)", "other.md#third: no such heading"),
        ("[a](#second)", "#second: no such heading"),
        ("[a](../outside.md)", "../outside.md: the site holds docs/ alone"),
        ("[a](other.md#one--two)", "other.md#one--two: no such heading"),
    ],
)
def test_a_link_that_leads_nowhere_is_found(text: str, fault: str, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (tmp_path / "outside.md").write_text("# Outside\n")
    (docs / "other.md").write_text("# First\n\n## Second\n\n```sh\n# Third\n```\n\n## One & two\n")
    page = docs / "page.md"
    page.write_text(f"# First\n\n{text} [b](other.md#second) [c](#first) `[d](code.md)`\n")
    assert list(broken(page, tmp_path)) == [fault]


def test_headings_of_code_and_links_have_addresses(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# `dp_unit` and more\n\n## See [this](that.md)\n")
    assert anchors(page) == {"dp_unit-and-more", "see-this"}


def test_a_list_below_a_paragraph_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Words:\n- one\n- two\n\n- three\n  more\n- four\n\n## Head\n- five\n\n```text\na\n- b\n```\n")
    assert list(without_blank_line(page)) == ["- one"]
