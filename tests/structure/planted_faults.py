"""Faults that the tests must find: python -m tests.structure.planted_faults [AREA …] plants them, one at a time.

Each fault is one change of one expression: a boundary, a direction of rounding, a missing term. When it was chosen, at
most three tests found it. The command plants it in a copy of the repository and runs the tests until one fails: those
of `make test` first, then the others of `make test-all`. It prints which set found it, and the test. That test must
pass in the copy without the fault. The command takes about 20 minutes on two cores, and less with names of areas.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_COPIED = (".git", ".venv", ".cache", ".hypothesis", ".*_cache", "__pycache__", "build", "dist", "out")
OWN_TEST = "tests/structure/test_planted_faults.py"
"""The test of this list. It fails with every fault, because it compares the texts with the files."""
SETS = {"make test": "not long and not thorough", "make test-all": "thorough and not long"}
"""The sets of tests in their order, each with the markers of those tests that the earlier sets do not have."""
MISSED = "missed"
_FAILED = re.compile(r"^FAILED (tests/\S+?\.py::.+?) \((?:setup|call|teardown)\)", re.MULTILINE)
_PASSED = (0, 5)
"""Exit codes of pytest: all tests passed, and no test was collected."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in one file.

    Attributes:
        area: the area whose tests must find it.
        path: the file, from the root.
        text: text that occurs in the file once.
        planted: text that takes its place.
        near: files of tests that run before all others, because they are likely to find it.

    """

    area: str
    path: str
    text: str
    planted: str
    near: str


FAULTS = (
    Fault(
        "accounting",
        "dpsql/accounting/window.py",
        "least[rho] = min(tau, least.get(rho, math.inf))",
        "least[rho] = tau",
        "tests/unit/accounting/test_window.py",
    ),
    Fault(
        "noise",
        "dpsql/noise/sparse_gradual.py",
        "chosen = np.flatnonzero(self.noise > bar - level * capped)",
        "chosen = np.flatnonzero(self.noise >= bar - level * capped)",
        "tests/unit/noise/test_sparse_gradual.py",
    ),
    Fault(
        "mechanism",
        "dpsql/mechanism/calibrate.py",
        "if histogram.hides and delta > _LARGEST_DELTA:",
        "if histogram.hides and delta >= _LARGEST_DELTA:",
        "tests/end_to_end/test_one_budget.py",
    ),
    Fault(
        "bound",
        "dpsql/bound/unit_histograms.py",
        '" AND x_1 IS NOT NULL" * bool(statistic.value_sql) + " AND f_1" * bool(statistic.filter_sql)',
        '" AND x_1 IS NOT NULL" * bool(statistic.value_sql)',
        "tests/unit/bound/test_pairs.py",
    ),
    Fault(
        "sql",
        "dpsql/sql/interval_arithmetic.py",
        "ends.append(image + outward * 4 * math.ulp(image) if math.isfinite",
        "ends.append(image if math.isfinite",
        "tests/unit/sql/test_intervals.py",
    ),
    Fault(
        "plan",
        "dpsql/plan/aggregates/lattice.py",
        "(per_group[1] - per_group[0]) * 2.0**28",
        "(per_group[1] - per_group[0]) * 2.0**29",
        "tests/unit/plan/test_sum_lattice.py",
    ),
    Fault(
        "engine",
        "dpsql/engine/public_rows.py",
        "if low is None:",
        "if False:",
        "tests/unit/test_public_bounds.py",
    ),
    Fault(
        "state",
        "dpsql/state/charges.py",
        "for row in rows) if folded_name(one.name) == name]",
        "for row in rows) if one.name == analyst]",
        "tests/unit/state/test_state_ledger.py",
    ),
    Fault(
        "cascade",
        "dpsql/cascade/servings.py",
        "if held and self._reader.may_see(total + keys.rho_nano):",
        "if held and self._reader.may_see(keys.rho_nano):",
        "tests/end_to_end/test_clearances.py",
    ),
    Fault(
        "answer",
        "dpsql/receipts/remarks.py",
        "is_open = not all(level.is_sure for offer in found for level in offer.query.auto_levels)",
        "is_open = False",
        "tests/end_to_end/test_nothing_shown.py",
    ),
    Fault(
        "features",
        "dpsql/features/target_levels.py",
        "if own is not None and own.low <= most_nano <= own.high:",
        "if own is not None and own.low < most_nano < own.high:",
        "tests/unit/features/test_target_levels.py",
    ),
    Fault(
        "front ends",
        "dpsql/frontends/server/messages.py",
        "(first and last and int(last) < int(first))",
        "(first and last and int(last) <= int(first))",
        "tests/unit/server/test_replies.py",
    ),
)


@dataclass(frozen=True, slots=True)
class Found:
    """The set of tests that found a fault, or `MISSED`, and the first test that failed."""

    by: str
    test: str = ""


def planted(fault: Fault, source: str) -> str:
    """Return the source of the fault's file with the fault.

    Raises:
        ValueError: the text does not occur exactly once.

    """
    if source.count(fault.text) != 1:
        raise ValueError(f"{fault.path} has {fault.text!r} {source.count(fault.text)} times; it must have it once")
    return source.replace(fault.text, fault.planted)


def copied(folder: Path) -> Path:
    """Copy the repository into a folder, without what is generated. Return the copy."""
    copy = folder / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)
    return copy


def found_in(copy: Path, fault: Fault) -> Found:
    """Plant a fault in a copy of the repository, run the tests until one fails, and take the fault out again."""
    file = copy / fault.path
    source = file.read_text(encoding="utf-8")
    file.write_text(planted(fault, source), encoding="utf-8")
    try:
        found = _first_failure(copy, fault)
    finally:
        file.write_text(source, encoding="utf-8")
    if found.test and _run(copy, [found.test, "-m", ""]):
        raise RuntimeError(f"{found.test} fails without the fault, too")
    return found


def _first_failure(copy: Path, fault: Fault) -> Found:
    for name, markers in SETS.items():
        for paths in ([fault.near], []):
            output = _run(copy, [*paths, "-m", markers, "-n", "2", "--dist", "worksteal", "--deselect", OWN_TEST])
            if output:
                return Found(name, _FAILED.findall(output)[0])
    return Found(MISSED)


def _run(copy: Path, arguments: Sequence[str]) -> str:
    """Run pytest in a copy until a test fails. Return its output then, and nothing if all tests pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if done.returncode in _PASSED:
        return ""
    if not _FAILED.search(done.stdout):
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout


def main() -> None:
    """Plant the faults of the areas on the command line, or all, and print a table."""
    areas = [fault.area for fault in FAULTS]
    parser = argparse.ArgumentParser(description="Plant faults and print which tests find them.")
    parser.add_argument("areas", nargs="*", metavar="AREA", help=", ".join(areas))
    asked = parser.parse_args().areas
    if unknown := sorted(set(asked) - set(areas)):
        parser.error(f"there is no area {', '.join(unknown)}")
    chosen = [fault for fault in FAULTS if not asked or fault.area in asked]
    by_set = dict.fromkeys((*SETS, MISSED), 0)
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        for fault in chosen:
            found = found_in(copy, fault)
            by_set[found.by] += 1
            print(f"{fault.area:<12} {found.by:<14} {found.test}", flush=True)  # noqa: T201
    print(", ".join(f"{name}: {number} of {len(chosen)}" for name, number in by_set.items()))  # noqa: T201
    if by_set[MISSED]:
        sys.exit(1)


if __name__ == "__main__":
    main()
