"""Other systems and dpsql on the same questions of the same rows: time, groups shown, and errors.

    python -m benchmarks.peers [--releases 5] [--epsilon 1] [--delta 1e-6] [--max-groups 8] [--max-rows 5]
        [--systems opendp pydp] [--folder FOLDER]

Every system but dpsql gets a virtual environment of its own in --folder, with the versions named below, from pip; the
first run needs a network and some minutes. A system that cannot be installed is said and left out. The rows are those
of `contribution_norm`; the person is protected with all rows, the keys are private wherever the system selects keys,
and --max-groups keys of a person with --max-rows rows in each are the bounds of systems that need bounds. What a system
lacks is done by hand, and said below the table. Time is that of one answer of rows that are loaded already. Noise
differs from run to run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.csv

from benchmarks.contribution_norm import made_rows
from benchmarks.peer_systems.exchange import QUESTIONS, Asked, as_text

ROOT = Path(__file__).resolve().parents[1]
OWN = "dpsql"
SYSTEMS: dict[str, tuple[str, ...]] = {
    OWN: (),
    "opendp": ("opendp[polars]==0.16.0",),
    "pipelinedp": ("pipeline-dp==0.3.1",),
    "smartnoise": ("smartnoise-sql==1.0.10",),
    "pydp": ("python-dp==1.1.5", "numpy"),
    # newer versions of scikit-learn no longer have what diffprivlib 0.6.6 imports
    "diffprivlib": ("diffprivlib==0.6.6", "scikit-learn<1.6"),
}
"""What pip installs for each; dpsql runs in the environment of this command."""
LARGEST = 18


@dataclass(frozen=True)
class Errors:
    """Errors of one answer; NaN where no group is shown."""

    groups: int
    shown: float
    """Root mean squared error over the groups that it shows."""
    largest: float
    """Root mean squared error over the largest groups of all, a hidden group counted as 0."""
    both: int
    """Groups that it and the answer beside it show."""
    own_of_both: float
    other_of_both: float


def errors(answer: Mapping[int, float], beside: Mapping[int, float], exact: Mapping[int, float]) -> Errors:
    """Errors of an answer, and of the one beside it over the groups that both show. Keys without rows count 0."""
    both = answer.keys() & beside.keys()
    largest = sorted(exact, key=lambda key: -exact[key])[:LARGEST]
    return Errors(
        len(answer),
        _error([answer[key] - exact.get(key, 0) for key in answer]),
        _error([answer.get(key, 0) - exact[key] for key in largest]),
        len(both),
        _error([answer[key] - exact.get(key, 0) for key in both]),
        _error([beside[key] - exact.get(key, 0) for key in both]),
    )


def _error(differences: list[float]) -> float:
    return math.sqrt(statistics.fmean(one * one for one in differences)) if differences else math.nan


def default_folder() -> Path:
    """Folder of the environments: in the user's cache, since they are larger than the tree."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "dpsql" / "peers"


def environment(name: str, folder: Path) -> Path:
    """Python of the system's environment, which is made where it does not exist or was made for other versions."""
    if name == OWN:
        return Path(sys.executable)
    home, wanted = folder / name, "\n".join(SYSTEMS[name])
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = home / "installed.txt"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"installing {', '.join(SYSTEMS[name])} …", file=sys.stderr)
        venv.create(home, clear=True, with_pip=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *SYSTEMS[name]], check=True, capture_output=True, text=True
        )
        stamp.write_text(wanted, encoding="utf-8")
    return python


def answers_of(name: str, folder: Path, rows: Path, asked: Asked) -> dict[str, Any]:
    """Answers of one system; what it wrote before it failed, where it fails."""
    try:
        python = environment(name, folder)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{name} is left out: it cannot be installed. {_last_line(error)}", file=sys.stderr)
        return {}
    found = rows.with_name(f"{name}.json")
    # a module of the tree, not a script: beside the script its own name would hide the package that it imports
    command = [str(python), "-m", f"benchmarks.peer_systems.{name}", str(rows), str(found), as_text(asked)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    except subprocess.CalledProcessError as error:
        print(f"{name} stopped early. {_last_line(error)}", file=sys.stderr)
    return json.loads(found.read_text(encoding="utf-8")) if found.exists() else {}


def _last_line(error: OSError | subprocess.CalledProcessError) -> str:
    text = str(error.stderr) if isinstance(error, subprocess.CalledProcessError) else str(error)
    return text.strip().rpartition("\n")[2]


def _shown(release: Mapping[str, Any]) -> dict[int, float]:
    return dict(release["shown"])


def print_system(found: Mapping[str, Any], beside: Mapping[str, Any], exact: Mapping[str, Mapping[int, float]]) -> None:
    """Print the lines of one system; `beside` has dpsql's releases of each question, nothing named."""
    for entry in found["answers"]:
        releases, question = entry["releases"], entry["question"]
        others = beside[question]
        # its own releases beside themselves would say nothing
        each = [
            errors(_shown(one), {} if others is releases else _shown(others[place % len(others)]), exact[question])
            for place, one in enumerate(releases)
        ]
        means = [
            statistics.fmean(getattr(one, column) for one in each)
            for column in ("groups", "shown", "largest", "both", "own_of_both", "other_of_both")
        ]
        seconds = statistics.median(one["seconds"] for one in releases)
        numbers = " ".join(f"{'–' if math.isnan(number) else f'{number:,.0f}':>9}" for number in means)
        label = f"{found['package']} {found['version']}, {entry['way']}"
        print(f"{label:48} {question:7} {len(releases):>3} {seconds:>8.2f} {numbers}", flush=True)


def main() -> None:
    """Print the table, and the notes below it."""
    parser = argparse.ArgumentParser(description="Other systems and dpsql on the same questions of the same rows.")
    parser.add_argument("--releases", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--max-groups", type=int, default=8, help="keys of a person that count")
    parser.add_argument("--max-rows", type=int, default=5, help="rows of a person that count in each key")
    parser.add_argument("--systems", nargs="+", choices=tuple(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--folder", type=Path, default=default_folder(), help="where the environments are kept")
    given = parser.parse_args()
    asked = Asked(given.epsilon, given.delta, given.releases, given.max_groups, given.max_rows)
    rows = made_rows()
    exact: dict[str, dict[int, float]] = {}
    with duckdb.connect() as plain:
        plain.register("data", rows)
        for name, select in QUESTIONS.items():
            exact[name] = dict(plain.sql(f"SELECT key, {select} FROM data GROUP BY key").fetchall())
    print(
        f"epsilon = {asked.epsilon:g}, delta = {asked.delta:g}, {len(rows):,} rows; means of releases, median seconds"
    )
    print(
        f"{'':48} {'of':7} {'n':>3} {'seconds':>8} {'groups':>9} {'RMSE':>9} {'of 18':>9} "
        f"{'both':>9} {'RMSE':>9} {'dpsql':>9}"
    )
    notes: dict[str, str] = {}
    beside: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.csv"
        pyarrow.csv.write_csv(rows, file)
        # dpsql comes first, because what others say is set beside its answers
        for name in [OWN, *(name for name in given.systems if name != OWN)]:
            found = answers_of(name, given.folder, file, asked)
            if not found and name == OWN:
                raise SystemExit("dpsql itself gave no answer to compare with")
            if not found:
                continue
            # reversed, so that the first way is the one that stays
            beside = beside or {one["question"]: one["releases"] for one in reversed(found["answers"])}
            print_system(found, beside, exact)
            notes |= {f"{found['package']}, {one['way']}": one["note"] for one in found["answers"]}
    for label, note in notes.items():
        print(f"- {label}: {note}.")


if __name__ == "__main__":
    main()
