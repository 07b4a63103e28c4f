"""Answers of the working tree beside a commit's: python -m benchmarks.same_answers --base COMMIT [--questions N].

Shows that a refactoring changes nothing. Both trees get the same random sessions, each in a process of its own, with
noise and salts that repeat. Compared are, question by question, rows, receipt and printed texts of the answer, or type,
message and facts of the error, and what is logged; at the end of each session each table of its state file.

Sessions have themes (`benchmarks.same_questions`): kinds of keys, targets, AUTO, analysts, versions, little budget. In
each are repeated questions, plans, look-ups, refusals and crashes after a charge. Moments and folders are masked.

Claim: none differs. Where one does, the first differences are printed, and the exit code is 1. A change of the order
in which noise is drawn counts as a difference.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.paired_timing import ROOT, git, tree_of
from benchmarks.same_questions import THEMES, Question, Trial, trials

Outcome = dict[str, str]
CHILD = Path(__file__).with_name("same_session.py")
MOST_LINES = 14


def asked_in(tree: Path, plan: Path, written: Path) -> subprocess.Popen[bytes]:
    """Start a process that asks the questions of a plan with the dpsql of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", "TZ": "UTC"}
    command = [sys.executable, "-P", str(CHILD), str(tree), str(plan), str(written)]
    return subprocess.Popen(command, env=environment, cwd=plan.parent)


def outcomes(base: Path, asked: Sequence[tuple[int, Trial]]) -> tuple[list[list[Outcome]], list[list[Outcome]]]:
    """Return the outcomes of all sessions: of the base, and of the working tree. Both run at the same time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = folder / "plan.json"
        plan.write_text(json.dumps([asdict(trial) | {"number": number} for number, trial in asked]), encoding="utf-8")
        files = {tree: folder / f"{side}.json" for side, tree in (("base", base), ("here", ROOT))}
        running = [asked_in(tree, plan, file) for tree, file in files.items()]
        if sum(process.wait() != 0 for process in running):
            sys.exit("a process failed; nothing was compared")
        before, here = (json.loads(file.read_text(encoding="utf-8")) for file in files.values())
    return before, here


def in_pieces(text: str) -> list[str]:
    """Return the lines of a text, with long ones of JSON and HTML in pieces."""
    return re.sub(r"(?<=>)(?=<)|(?<=,) (?=\")", "\n", text).splitlines()


def difference(before: Outcome, here: Outcome) -> Iterator[str]:
    """Yield lines that differ, below the name of the thing that they are of."""
    for name in sorted(before.keys() | here.keys()):
        old, new = (in_pieces(side.get(name, "(nothing)")) for side in (before, here))
        if old != new:
            diff = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
            found = [line for line in diff if not line.startswith("@@")]
            yield f"  {name}:"
            yield from (f"    {line[:300]}" for line in found[:MOST_LINES])
            if len(found) > MOST_LINES:
                yield f"    and {len(found) - MOST_LINES} more lines"


def ending(told: Outcome) -> str:
    """Return how a question ended: an answer, a look-up, or the type of its error."""
    if "error" in told:
        return told["error"].partition(":")[0]
    return "answered" if "receipt" in told else "looked up or declared"


def main() -> None:
    """Ask both trees, compare, and exit with 1 if anything differs."""
    parser = argparse.ArgumentParser(description="Answers of the working tree beside a commit's.")
    parser.add_argument("--base", default="HEAD", help="the commit to compare the working tree with (HEAD)")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help=f"number of one session, 0 to {len(THEMES) - 1}")
    parser.add_argument("--shown", type=int, default=5, help="how many differences are printed (5)")
    parser.add_argument("--list", action="store_true", help="print outcomes of all questions, too")
    arguments = parser.parse_args()
    if not Path(__file__).resolve().is_relative_to(ROOT):
        parser.error(
            f"dpsql of {ROOT} is first on the path; start it in its own tree as python -m benchmarks.same_answers"
        )
    asked = [(number, one) for number, one in enumerate(trials(arguments.seed, arguments.questions))]
    asked = [one for one in asked if arguments.only in (None, one[0])]
    with tree_of(git("rev-parse", f"{arguments.base}^{{commit}}")) as base:
        before, here = outcomes(base, asked)
    different, ends, places = [], Counter[str](), Counter[str]()
    for (number, trial), old, new in zip(asked, before, here, strict=True):
        last = Question("the state file at the end of the session")
        for place, question in enumerate((*trial.questions, last)):
            crash = f", crash at the {question.crash}" if question.crash else ""
            title = f"session {number} ({trial.theme}), question {place}, {question.reader}{crash}"
            if question is not last:
                ends[ending(new[place])] += 1
                if arguments.list:
                    print(f"{title}\n  {question.text}\n  {new[place]['crash']} {new[place].get('error', '')[:300]}")
            if old[place] != new[place]:
                places.update(name for name in old[place] | new[place] if old[place].get(name) != new[place].get(name))
                different.append([title, f"  {question.text}", *difference(old[place], new[place])])
    print("\n".join(line for one in different[: arguments.shown] for line in one))
    count = sum(ends.values())
    print(
        f"{count} questions in {len(asked)} sessions, {len(different)} differ ({arguments.base}, seed {arguments.seed})"
    )
    print(", ".join(f"{number} {name}" for name, number in ends.most_common()))
    if different:
        print(f"They differ in: {', '.join(f'{name} ({number})' for name, number in places.most_common())}")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
