"""Sentences of a page, with the line that each begins on and its number of words.

A paragraph, a heading, an item of a list and a cell of a table each end a sentence. Code in backticks is one word, and
so is a list of nothing but code. Blocks of code are left out.

`python -m tests.documents.sentences docs/sql.md` prints the sentences of a page that are too long. Without a name it
reads all pages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.documents.pages import ROOT

MOST_WORDS = 30

_BLOCK = re.compile(r"^ *```.*?^ *```$|<!--.*?-->|^::: .*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!`)(`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)\1(?!`)", re.DOTALL)
_BETWEEN_CODE = re.compile(r"(?<=`)[,/ \n]*(?=`)")
_ADDRESS = re.compile(r"(?<=\])\([^)\s]*\)")
_PASSAGE_BEGINS = re.compile(r"\s*(?:(?:[-*>]|\d+\.|#+)\s|\||$)")
# a full stop ends a sentence if a capital, a digit or code follows
_END = re.compile(r"[.!?][\"”)*_]*(?=\s+[\"“(*_\[]*[A-Z0-9`§])")
_WORD = re.compile(r"\S*\w\S*")


@dataclass(frozen=True)
class Sentence:
    """A sentence of a page: its text on one line, its number of words, and the line where it begins."""

    text: str
    words: int
    line: int


def readable_pages(root: Path = ROOT) -> list[Path]:
    """Return README, CONTRIBUTING and the pages of docs/ outside the proofs."""
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    return [page for page in pages if "proofs" not in page.parts]


def sentences(markdown: str) -> Iterator[Sentence]:
    """Yield the sentences of a page in their order."""
    text = masked(markdown)
    for start, end in _passages(text):
        begin = start
        for stop in [*(match.end() for match in _END.finditer(text, start, end)), end]:
            words = _WORD.findall(text[begin:stop])
            if words:
                first = stop - len(text[begin:stop].lstrip())
                yield Sentence(" ".join(markdown[first:stop].split()), len(words), markdown.count("\n", 0, first) + 1)
            begin = stop


def long_sentences(page: Path, most: int = MOST_WORDS) -> list[str]:
    """Return the sentences of a page that have more than `most` words, each with its line."""
    found = sentences(page.read_text(encoding="utf-8"))
    return [f"line {one.line}, {one.words} words: {one.text}" for one in found if one.words > most]


def masked(markdown: str) -> str:
    """Return a text of equal length: code is one word, and spaces replace blocks of code, comments and addresses."""
    text = _BLOCK.sub(_blank, markdown)
    text = _CODE.sub(lambda match: "`" + "x" * (len(match[0]) - 2) + "`", text)
    text = _BETWEEN_CODE.sub(lambda match: "x" * len(match[0]), text)
    return _ADDRESS.sub(_blank, text)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _passages(text: str) -> Iterator[tuple[int, int]]:
    """Yield the ends of the paragraphs, headings, items and cells of a page."""
    start = place = 0
    for line in text.splitlines(keepends=True):
        if _PASSAGE_BEGINS.match(line):
            yield start, place
            start = place
        place += len(line)
        if line.lstrip().startswith(("|", "#")):
            for cell in line.split("|"):
                yield start, start + len(cell)
                start += len(cell) + 1
            start = place
    yield start, place


if __name__ == "__main__":
    paths = [Path(name).resolve() for name in sys.argv[1:]] or readable_pages()
    for path in paths:
        for text in long_sentences(path):
            print(f"{path.relative_to(ROOT)}, {text}")  # noqa: T201 — a command prints
