"""Rows in, answers out: what the script of each system shares with `benchmarks.peers`.

Only the standard library is imported, because every system runs in an environment of its own. A script says which
ways it has to ask its system; here they are timed, and each answer is written as soon as it is there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

PEOPLE, ROWS, SUMS = "people", "rows", "sums"
QUESTIONS = {PEOPLE: "count(DISTINCT person)", ROWS: "count(*)", SUMS: "sum(amount)"}
LOWEST_AMOUNT, HIGHEST_AMOUNT = 0.0, 100.0


@dataclass(frozen=True)
class Asked:
    """The level, and the bounds of a person for systems that need them."""

    epsilon: float = 1.0
    delta: float = 1e-6
    releases: int = 5
    max_groups: int = 8
    max_rows: int = 5
    """Rows of a person in one key."""
    public_keys: int = 100_000
    """Systems that do not select keys are told that the keys are 0, 1, … below this number."""
    seconds: float = 300.0
    """A question is not asked again once its releases have taken this long."""


Release = Callable[[], Mapping[int, float]]
"""One fresh private answer: the numbers of the keys that are shown."""


@dataclass(frozen=True)
class Way:
    """One manner of asking a system, and what the reader of the table must know about it."""

    name: str
    note: str
    questions: Mapping[str, Release]
    prepare: Callable[[], None] = lambda: None
    """Run before each release, and not timed: loading rows into a fresh session."""


def serve(package: str, ways: Callable[[Path, Asked], list[Way]]) -> None:
    """Answer the command line: CSV file of rows, file to write, and the fields of `Asked` as JSON."""
    parser = argparse.ArgumentParser(description=f"Answers of {package} for benchmarks.peers.")
    parser.add_argument("rows", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("asked", type=json.loads)
    given = parser.parse_args()
    asked = Asked(**given.asked)
    found: list[dict[str, Any]] = []
    for way in ways(given.rows, asked):
        for question, release in way.questions.items():
            answers: list[dict[str, Any]] = []
            found.append({"way": way.name, "note": way.note, "question": question, "releases": answers})
            while len(answers) < asked.releases and sum(one["seconds"] for one in answers) < asked.seconds:
                answers.append(_timed(way.prepare, release))
                text = json.dumps({"package": package, "version": version(package), "answers": found})
                given.answers.write_text(text, encoding="utf-8")


def _timed(prepare: Callable[[], None], release: Release) -> dict[str, Any]:
    prepare()
    began = time.perf_counter()
    shown = release()
    seconds = time.perf_counter() - began
    # pairs, because a JSON object would turn the keys into text
    return {"seconds": seconds, "shown": [(int(key), float(number)) for key, number in shown.items()]}


def as_text(asked: Asked) -> str:
    """The last argument of a script."""
    return json.dumps(asdict(asked))
