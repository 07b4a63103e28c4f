"""The pages of the documentation as code: their blocks, who runs them, and what must come out.

A page says in a comment how it is run; without one its ``python`` blocks run in order in one namespace.

    <!-- run by tests/end_to_end/test_shell.py -->     another test runs it, and names the page
    <!-- tables: tests/documents/clinic.sql -->        its ``sql`` blocks run in order in one session on these
    <!-- tables for each block: … -->                  … each in a session of its own
    <!-- tables: sample_data/clinic/patients.parquet -->  a table of a file's name
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^<!-- (run by|tables for each block|tables):? (.*?) -->$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code: its language, its text, the output that stands below it, and where it is."""

    language: str
    text: str
    output: str | None
    line: int


@dataclass(frozen=True)
class Page:
    """A page: its blocks, and how it says that they are run."""

    name: str
    blocks: tuple[Block, ...]
    runner: Path | None
    tables: Path | None
    is_fresh_for_each: bool


def pages(root: Path = ROOT) -> list[Page]:
    """README and everything below docs."""
    return [read_page(path, root) for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]]


def read_page(path: Path, root: Path = ROOT) -> Page:
    """One page."""
    text = path.read_text(encoding="utf-8")
    said = {kind: root / value for kind, value in _COMMENT.findall(text)}
    fresh = said.get("tables for each block")
    return Page(
        name=str(path.relative_to(root)),
        blocks=tuple(_blocks(text)),
        runner=said.get("run by"),
        tables=said.get("tables", fresh),
        is_fresh_for_each=fresh is not None,
    )


def _blocks(text: str) -> Iterator[Block]:
    found = list(_BLOCK.finditer(text))
    outputs = set()
    for place, match in enumerate(found):
        if place in outputs:
            continue
        after = found[place + 1] if place + 1 < len(found) else None
        output = None
        # what was printed stands in a block without a language, right below
        if match[1] not in ("", "text") and after is not None and not after[1] and after.start() == match.end() + 1:
            output = after[2]
            outputs.add(place + 1)
        yield Block(match[1], match[2], output, text.count("\n", 0, match.start()) + 1)


def statements(sql: str) -> list[str]:
    """The statements of a block or file; no literal of a page holds a semicolon."""
    bare = re.sub(r"(^|\s)--.*", "", sql)
    return [text.strip() for text in bare.split(";") if text.strip()]


def commands(sh: str) -> list[list[str]]:
    """The commands of a block, each as its words; quotes may go on over several lines."""
    found, waiting = [], ""
    for line in sh.splitlines():
        waiting += line.removesuffix("\\") + "\n"
        try:
            words = shlex.split(waiting, comments=True)
        except ValueError:
            continue
        if line.endswith("\\"):
            continue
        waiting = ""
        if words:
            found.append(words)
    assert not waiting.strip(), f"a quotation is not closed: {waiting}"
    return found


def with_block(page: str, begins: str, block: str, ends: str) -> str:
    """A page with a generated block between its two marks, each a line.

    Raises:
        ValueError: it has no such marks.

    """
    before, found, rest = page.partition(begins)
    _, closed, after = rest.partition(ends)
    if not found or not closed:
        raise ValueError(f"the page has no place for what {begins.strip()} is about")
    return before + begins + block + ends + after
