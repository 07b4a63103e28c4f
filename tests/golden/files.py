"""Golden files: one of JSON for each source, a line for each statement, and the versions that it was made with."""

from __future__ import annotations

import difflib
import importlib.metadata
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.golden.facts import Entry

FOLDER = Path(__file__).parent
VERSIONED = {"sqlglot": 1, "duckdb": 2}
"""Packages that hashes and plans depend on; facts may change with the first one, or two, parts of their versions."""
COMMAND = "python -m tests.golden.make"
_MOST_LINES = 12

MADE: dict[str, dict[str, list[Entry]]] | None = None
"""Entries that tests have seen while `tests.golden.make` runs them; None if tests compare."""


def path_of(source: str) -> Path:
    """Return the golden file of a source."""
    return FOLDER / (re.sub(r"[/.]", "_", source) + ".json")


def installed() -> dict[str, str]:
    """Return the versions of the packages that hashes and plans depend on, as far as they may change facts."""
    return {name: ".".join(importlib.metadata.version(name).split(".")[:most]) for name, most in VERSIONED.items()}


@dataclass(frozen=True)
class Golden:
    """A golden file: the versions that it was made with, and the entries of each part of its source."""

    made_with: dict[str, str]
    parts: dict[str, list[Entry]]


@cache
def read(source: str) -> Golden:
    """Read the golden file of a source; without parts if nothing is asked in it."""
    if not path_of(source).exists():
        return Golden(installed(), {})
    return Golden(**json.loads(path_of(source).read_text(encoding="utf-8")))


def write(source: str, parts: dict[str, list[Entry]]) -> None:
    """Write the file of a source."""
    lines = [f'{{"made_with": {json.dumps(installed())},', '"parts": {']
    for place, key in enumerate(sorted(parts)):
        entries = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in parts[key])
        comma = "," if place + 1 < len(parts) else ""
        lines.append(f"{json.dumps(key, ensure_ascii=False)}: [{entries}]{comma}")
    path_of(source).write_text("\n".join([*lines, "}}"]) + "\n", encoding="utf-8")


def check(source: str, key: str, seen: Sequence[Entry]) -> None:
    """Compare the entries of a part of a source with its file, or keep them while files are made.

    Raises:
        AssertionError: they differ; the message holds the first facts that do, and versions that differ.

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
            f"{source}: {key}\ndiffers from {path_of(source).name}{other_versions(golden.made_with)}; if that is "
            f"meant, run {COMMAND} and read the difference\n{shown}"
        )


def other_versions(made_with: dict[str, str]) -> str:
    """Name the packages whose versions are not those of the file, in brackets; nothing if there are none."""
    now = installed()
    other = [f"made with {name} {was}, installed is {now[name]}" for name, was in made_with.items() if now[name] != was]
    return f" ({'; '.join(other)})" if other else ""


def lines_that_differ(held: Sequence[Entry], seen: Sequence[Entry]) -> Iterator[str]:
    """Yield the facts that differ: with ``-`` those of the file, with ``+`` those of now."""
    for line in difflib.unified_diff(_lines(held), _lines(seen), lineterm="", n=0):
        if not line.startswith(("---", "+++", "@@")):
            yield line[:400]


def _lines(entries: Sequence[Entry]) -> list[str]:
    return [line for number, entry in enumerate(entries, start=1) for line in _facts(f"{number}", entry)]


def _facts(name: str, value: object) -> Iterator[str]:
    """Yield a line for each number and each hash of a value, each with its path in the value."""
    if isinstance(value, dict):
        for field, one in value.items():
            yield from _facts(f"{name} {field}", one)
    elif isinstance(value, list):
        for one in value:
            yield from _facts(name, one)
    else:
        yield f"{name}: {value}"
