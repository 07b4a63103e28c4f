"""Links of the pages: where they lead, and which lead nowhere.

The pages are read in two ways: as plain Markdown in the repository, and as the site that `make docs` builds of docs/.
Both make an address of a heading, by rules of their own; a link to a heading is right where both give the same one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from tests.documents.pages import ROOT

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def markdown_files(root: Path = ROOT) -> list[Path]:
    """README, CONTRIBUTING, CHANGELOG and the pages of docs/."""
    names = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
    return [*(root / name for name in names), *sorted((root / "docs").rglob("*.md"))]


def targets(path: Path) -> list[str]:
    """Relative links of a page, in order, without those inside code."""
    return _LINK.findall(_CODE.sub("", _FENCE.sub("", path.read_text(encoding="utf-8"))))


def anchors(path: Path) -> set[str]:
    """Addresses of a page's headings that plain Markdown and the site agree on."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", path.read_text(encoding="utf-8"))):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        if plain_address(words) == site_address(words):
            found.add(plain_address(words))
    return found


def plain_address(heading: str) -> str:
    """Address of a heading where a repository shows plain Markdown."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def site_address(heading: str) -> str:
    """Address of a heading on the site: that of Python-Markdown, in ASCII."""
    ascii_alone = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_alone).strip().lower())


def broken(path: Path, root: Path = ROOT) -> Iterator[str]:
    """Links of a page that lead nowhere, and those of docs/ that the site cannot follow."""
    docs = root / "docs"
    for target in targets(path):
        name, _, anchor = target.partition("#")
        led_to = (path.parent / name).resolve() if name else path
        if not led_to.exists():
            yield f"{target}: no such file"
        elif docs in path.parents and docs not in led_to.parents:
            yield f"{target}: the site holds docs/ alone"
        elif anchor and anchor not in anchors(led_to):
            yield f"{target}: no such heading"


def without_blank_line(path: Path) -> Iterator[str]:
    """First lines of lists and tables right below a paragraph: plain Markdown shows them, the site does not."""
    text = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), path.read_text(encoding="utf-8"))
    before = ""
    for line in text.splitlines():
        begins = re.match(r"(- |\* |\d+\. |\|)", line)
        continues = re.match(r"(- |\* |\d+\. |\||#|<!--|  )", before)
        if begins and before.strip() and not continues:
            yield line
        before = line
