"""Files and classes of the source that pages name, and which of them are not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.documents.pages import ROOT

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
# session.sql is a method, tests/documents/clinic.sql a file
_FILE = re.compile(r"(?:[\w.-]+/)*[\w-]+\.(?:py|c|test|yml)|(?:[\w.-]+/)+[\w-]+\.sql")
_METHOD = re.compile(r"([A-Z][a-z]\w*)\.([a-z]\w*)(?:\(.*)?")
_FOLDERS = ("dpsql", "tests", "benchmarks", "udfs", "sample_data")


def not_there(path: Path) -> Iterator[str]:
    """Files and methods between backticks that the repository does not have.

    A file is named from the root, from dpsql/, or by its last part alone; a method as ``Class.method``.
    """
    for words in _CODE.findall(_FENCE.sub("", path.read_text(encoding="utf-8"))):
        if _FILE.fullmatch(words) and not _exists(words):
            yield words
        method = _METHOD.fullmatch(words)
        if method and method[1] in _classes() and not re.search(rf"\b{method[2]}\b", _classes()[method[1]]):
            yield words


def _exists(name: str) -> bool:
    if "/" not in name:
        return name in _files()
    return any((folder / name).exists() for folder in (ROOT, ROOT / "dpsql"))


@cache
def _files() -> frozenset[str]:
    found = {path.name for path in ROOT.iterdir()}
    return frozenset(found.union(*({path.name for path in (ROOT / folder).rglob("*")} for folder in _FOLDERS)))


@cache
def _classes() -> dict[str, str]:
    """Text of the files of dpsql/ that define a class, by its name."""
    found: dict[str, str] = {}
    for path in (ROOT / "dpsql").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"^class (\w+)", text, re.MULTILINE):
            found[name] = found.get(name, "") + text
    return found
