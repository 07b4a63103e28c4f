"""Words that pages and messages use for one meaning alone: the table in the glossary, and where a text breaks it.

`python -m tests.documents.word_uses docs/sql.md` prints the words to replace on a page, each with its line and with
words to write. Without a name it reads all pages and messages.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.documents.pages import ROOT
from tests.documents.sentences import masked, readable_pages

GLOSSARY = ROOT / "docs" / "glossary.md"
HEADING = "## Words with one meaning\n"

_CELLS = re.compile(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
_QUOTED = re.compile("“([^”]+)”")


@dataclass(frozen=True)
class WordUse:
    """A row of the table: a word, its meaning, words that are not written, and words to write."""

    word: str
    meaning: str
    refused: tuple[str, ...]
    cure: str

    def places(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the place of each refused word in a text, and the word."""
        listed = "|".join(re.escape(one).replace(r"\ ", r"\s+") for one in self.refused)
        for match in re.finditer(rf"(?<![\w-])(?:{listed})(?![\w-])", text, re.IGNORECASE):
            yield match.start(), " ".join(match[0].split())


def word_uses(glossary: str) -> list[WordUse]:
    """Return the rows of the table in the text of the glossary."""
    rows = _CELLS.findall(glossary.partition(HEADING)[2])[2:]
    return [WordUse(word, meaning, tuple(_QUOTED.findall(refused)), cure) for word, meaning, refused, cure in rows]


def refused_words(text: str, uses: list[WordUse]) -> list[tuple[int, str]]:
    """Return the place of each refused word of a text, and the word with words to write, in the order of the text."""
    return sorted((place, f"{word!r}; write: {use.cure}") for use in uses for place, word in use.places(text))


def page_faults(page: Path, uses: list[WordUse]) -> list[str]:
    """Return the refused words of a page, each with its line; code and the table of words are not read."""
    text = page.read_text(encoding="utf-8").partition(HEADING)[0]
    found = refused_words(masked(text), uses)
    return ["line {}: {}".format(text.count("\n", 0, place) + 1, fault) for place, fault in found]


def message_faults(module: Path, uses: list[WordUse]) -> list[str]:
    """Return the refused words of a module's messages, each with its message."""
    found = ((message, fault) for message in messages(module) for _, fault in refused_words(message, uses))
    return [f"{fault}; in {message!r}" for message, fault in found]


def messages(path: Path) -> Iterator[str]:
    """Yield the strings with a space in a module, but for its docstrings: its messages, and some SQL."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from [node.value] if " " in node.value else []


def sources() -> list[Path]:
    """Return the modules of dpsql."""
    return sorted((ROOT / "dpsql").rglob("*.py"))


def main(names: list[str]) -> None:
    """Print the refused words of pages, or of all pages and messages."""
    uses = word_uses(GLOSSARY.read_text(encoding="utf-8"))
    found = {page: page_faults(page, uses) for page in [Path(name).resolve() for name in names] or readable_pages()}
    if not names:
        found |= {module: message_faults(module, uses) for module in sources()}
    for path, faults in found.items():
        sys.stdout.writelines(f"{path.relative_to(ROOT)}, {fault}\n" for fault in faults)


if __name__ == "__main__":
    main(sys.argv[1:])
