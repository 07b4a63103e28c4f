"""The golden files: one of JSON for each source, a line for each fact, with the versions that they were made with."""

from __future__ import annotations

import difflib
import importlib.metadata
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.golden.observed import Entry

FOLDER = Path(__file__).parent
VERSIONED = ("sqlglot", "duckdb")
_MOST_LINES = 12

MADE: dict[str, dict[str, list[Entry]]] | None = None
"""Where `tests.golden.make` collects what tests have seen; None where they compare."""


def path_of(source: str) -> Path:
    """The golden file of a source."""
    return FOLDER / (re.sub(r"[/.]", "_", source) + ".json")


def installed() -> dict[str, str]:
    """The versions of the packages that hashes and plans depend on."""
    return {name: importlib.metadata.version(name) for name in VERSIONED}


@dataclass(frozen=True)
class Golden:
    """A golden file: the versions that it was made with, and what it holds of each part of its source."""

    made_with: dict[str, str]
    parts: dict[str, list[Entry]]


@cache
def read(source: str) -> Golden:
    """The golden file of a source; without parts where nothing is asked in it."""
    if not path_of(source).exists():
        return Golden(installed(), {})
    return Golden(**json.loads(path_of(source).read_text(encoding="utf-8")))


def write(source: str, parts: dict[str, list[Entry]]) -> None:
    """Write the file of a source."""
    lines = [f'{{"made_with": {json.dumps(installed())},', '"parts": {']
    for place, key in enumerate(sorted(parts)):
        entries = parts[key]
        lines.append(f"{json.dumps(key, ensure_ascii=False)}: [")
        for number, entry in enumerate(entries):
            lines += _written(entry, number + 1 == len(entries))
        lines.append("]," if place + 1 < len(parts) else "]")
    path_of(source).write_text("\n".join([*lines, "}}"]) + "\n", encoding="utf-8")


def _written(entry: Entry, is_last: bool) -> Iterator[str]:
    """An entry: lists with a line for each of their parts, all else in a line."""
    yield " {"
    for place, (name, value) in enumerate(entry.items()):
        comma = "," if place + 1 < len(entry) else ""
        if isinstance(value, list) and value:
            yield f"  {json.dumps(name)}: ["
            yield from (f"   {_json(one)}{',' if i + 1 < len(value) else ''}" for i, one in enumerate(value))
            yield f"  ]{comma}"
        else:
            yield f"  {json.dumps(name)}: {_json(value)}{comma}"
    yield " }" if is_last else " },"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def check(source: str, key: str, seen: Sequence[Entry]) -> None:
    """Compare what was seen of a part of a source with its file; where files are made, keep it.

    Raises:
        AssertionError: it differs; the message holds the first lines that do, and the versions where they differ.

    """
    if MADE is not None:
        if seen:
            MADE.setdefault(source, {})[key] = list(seen)
        return
    golden = read(source)
    difference = list(lines_that_differ(golden.parts.get(key, []), seen))
    if difference:
        more = [f"… and {len(difference) - _MOST_LINES} lines more"] if len(difference) > _MOST_LINES else []
        shown = "\n".join(difference[:_MOST_LINES] + more)
        raise AssertionError(
            f"{source}: {key}\nis not what {path_of(source).name} holds{other_versions(golden.made_with)}; "
            f"where that is meant, run python -m tests.golden.make and read the difference\n{shown}"
        )


def other_versions(made_with: dict[str, str]) -> str:
    """Which packages are not those of the file, in brackets; nothing where they are."""
    now = installed()
    other = [f"made with {name} {was}, installed is {now[name]}" for name, was in made_with.items() if now[name] != was]
    return f" ({'; '.join(other)})" if other else ""


def lines_that_differ(held: Sequence[Entry], seen: Sequence[Entry]) -> Iterator[str]:
    """The facts that one has and the other has not, with ``-`` what the file holds and ``+`` what is now."""
    for line in difflib.unified_diff(_lines(held), _lines(seen), lineterm="", n=0):
        if not line.startswith(("---", "+++", "@@")):
            yield line[:400]


def _lines(entries: Sequence[Entry]) -> list[str]:
    lines = []
    for entry in json.loads(_json(list(entries))):
        for name, value in entry.items():
            parts = value if isinstance(value, list) else [value]
            for part in parts:
                facts = part.items() if isinstance(part, dict) else [("", part)]
                lines += [f"{name} {fact}: {_json(one)}" if fact else f"{name}: {_json(one)}" for fact, one in facts]
    return lines
