"""Speed of the working tree beside a commit's: python benchmarks/paired_timing.py --base COMMIT [--pairs N].

Each pair runs the commit and the working tree, one after the other in a fresh process each, and the order changes from
pair to pair, so that a slow minute of the machine meets both. A process measures, through the public interface alone:

- *import*: ``import dpsql``, and of what it needs.
- *plan*: ``dp_explain`` over a table of one row, the median of several texts after a first one.
- *small release*: a count over 1,000 rows that was not asked before, the median of several.
- *first release* of a count at 100,000 private keys, charged and stored in a file.
- *re-release*: the same text again, the median of several.

Claim: no measure is slower by more than 5 %. Printed are the median of the ratios of pairs and its 95 % interval, from
the order of the ratios alone (the sign test, no assumption about their distribution); at least six pairs are needed
for one. The claim fails where the lower end is above 1.05.

The commit stands in a git worktree of its own meanwhile, with a copy of the native aggregate where it is built here.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scipy import stats

ROOT = Path(__file__).resolve().parents[1]
ALLOWED_RATIO = 1.05
CONFIDENCE = 0.95
FEWEST_PAIRS = 6
"""Fewer have no interval."""
MEASURES = ("import", "plan", "small release", "first release", "re-release")

# Runs in both trees, so it may use nothing that one of them lacks. Every key has enough units to be shown.
CHILD = """
import json, statistics, sys, time
clock = getattr(time, sys.argv[3])
began = clock()
import dpsql
seconds = {"import": clock() - began}

folder, tree, keys, units, repeats, threads = *sys.argv[1:3], *map(int, sys.argv[4:])
assert dpsql.__file__.startswith(tree), f"{dpsql.__file__} is not in {tree}"
QUERY = "SELECT key, count(*) AS n{} FROM {} GROUP BY key"
PROTECTION = (
    "CALL dp_protect('{}', coverage := FALSE, unit := 'person', privacy_unit_column := 'unit', "
    "max_groups_contributed := 1, max_rows_per_group := 1)"
)

def timed(session, text, **options):
    began = clock()
    answer = session.sql(text, **options)
    return clock() - began, answer

with dpsql.connect(f"{folder}/keys.duckdb", threads=threads, allow_unsigned_extensions=True) as session:
    session.connection.execute("SET enable_progress_bar = false")
    session.connection.execute("CREATE TABLE one AS SELECT 1 AS unit, 'a' AS key")
    session.connection.execute(
        f"CREATE TABLE many AS SELECT i AS unit, 'key_' || (i % {keys}) AS key FROM range({keys * units}) t(i)"
    )
    session.sql("CALL dp_unit('person', rho_budget := 1000, delta_threshold := 0.5, delta_conversion := 1e-6)")
    session.sql(PROTECTION.format("one"))
    session.sql(PROTECTION.format("many"))
    session.connection.execute("CREATE TABLE small AS SELECT i AS unit, i % 9 AS key, i AS size FROM range(1000) t(i)")
    session.sql(PROTECTION.format("small"))
    times = []
    for number in range(repeats + 1):
        question = QUERY.format(number, "one")
        times.append(timed(session, f"FROM dp_explain($${question}$$, rho := 1, delta := 1e-6)")[0])
    seconds["plan"] = statistics.median(times[1:])
    times = []
    for number in range(repeats + 1):
        small = QUERY.format("", "small").replace("GROUP", f"WHERE size <> {number} GROUP")
        times.append(timed(session, small, rho=4.0, delta=1e-6)[0])
    seconds["small release"] = statistics.median(times[1:])
    seconds["first release"], answer = timed(session, QUERY.format("", "many"), rho=4.0, delta=1e-6)
    assert len(answer) > 0.95 * keys, f"only {len(answer)} of {keys} keys are shown"
    times = []
    for _ in range(repeats):
        took, answer = timed(session, QUERY.format("", "many"), rho=4.0, delta=1e-6)
        assert answer.receipt.reused
        times.append(took)
    seconds["re-release"] = statistics.median(times)
print(json.dumps(seconds))
"""
UNITS, REPEATS = 8, 9


def git(*arguments: str) -> str:
    """Output of a git command in this repository; its errors go to the terminal."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """A worktree of a commit, with the native aggregate of this one; removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "base").resolve()
        git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            for library in (ROOT / "udfs" / "native").glob("*.duckdb_extension"):
                shutil.copy(library, tree / "udfs" / "native")
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def seconds_of(tree: Path, clock: str, keys: int, threads: int) -> dict[str, float]:
    """Seconds of each measure, of one fresh process with the dpsql of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    # else every process compiles dpsql anew
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        numbers = map(str, (keys, UNITS, REPEATS, threads))
        command = [sys.executable, "-c", CHILD, folder, str(tree), clock, *numbers]
        done = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def interval_of_median(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Interval that covers the median of the distribution of independent values at least that often.

    Of n values the k-th smallest and the k-th largest are its ends where at most (1 - confidence) / 2 of a
    binomial(n, 1/2) lies below k; fewer than six values have no such k at 95 %.
    """
    ordered = sorted(values)
    allowed = (1 - confidence) / 2
    first = max(k for k in range(1, len(ordered)) if stats.binom.cdf(k - 1, len(ordered), 0.5) <= allowed)
    return ordered[first - 1], ordered[-first]


def paired_seconds(
    base: Path, *, pairs: int, clock: str, keys: int, threads: int
) -> list[dict[str, tuple[float, float]]]:
    """Seconds (base, here) of each measure, pair by pair; one pair before them fills caches and is dropped."""
    found = []
    for number in range(pairs + 1):
        trees = {"base": base, "here": ROOT}
        order = ("base", "here") if number % 2 else ("here", "base")
        seconds = {side: seconds_of(trees[side], clock, keys, threads) for side in order}
        pair = {name: (seconds["base"][name], seconds["here"][name]) for name in MEASURES}
        ratios = ", ".join(f"{name} {here / before:.2f}" for name, (before, here) in pair.items())
        print(f"{f'pair {number} of {pairs}' if number else 'warming up'}: {ratios}", file=sys.stderr, flush=True)
        found += [pair] if number else []
    return found


def main() -> None:
    """Measure both trees in pairs, and say whether the claim holds."""
    parser = argparse.ArgumentParser(description="Speed of the working tree beside a commit's.")
    parser.add_argument("--base", default="HEAD", help="the commit to compare the working tree with (HEAD)")
    parser.add_argument("--pairs", type=int, default=15, help=f"at least {FEWEST_PAIRS}")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--processor", action="store_true", help="processor seconds of all threads, which other work disturbs less"
    )
    arguments = parser.parse_args()
    if arguments.pairs < FEWEST_PAIRS:
        parser.error(f"an interval needs at least {FEWEST_PAIRS} pairs")
    commit = git("rev-parse", "--short", f"{arguments.base}^{{commit}}")
    has_native = any((ROOT / "udfs" / "native").glob("*.duckdb_extension"))
    if has_native and git("diff", "--name-only", commit, "--", "udfs/native"):
        print(f"udfs/native has changed since {commit}: both sides use the aggregate that is built here")
    with tree_of(commit) as base:
        measured = paired_seconds(
            base,
            pairs=arguments.pairs,
            clock="process_time" if arguments.processor else "perf_counter",
            keys=arguments.keys,
            threads=arguments.threads,
        )
    print(
        f"{arguments.pairs} pairs, {arguments.keys:,} keys, threads = {arguments.threads}; native: {has_native};",
        end=" ",
    )
    print("processor time" if arguments.processor else "wall time")
    print(f"{'':<16}{f'{commit} ms':>14}{'here ms':>10}{'ratio':>8}{'95 %':>16}   lower end <= {ALLOWED_RATIO}")
    held = []
    for name in MEASURES:
        before, here = (statistics.median(pair[name][side] for pair in measured) for side in (0, 1))
        ratios = [pair[name][1] / pair[name][0] for pair in measured]
        low, high = interval_of_median(ratios)
        held.append(low <= ALLOWED_RATIO)
        print(
            f"{name:<16}{1000 * before:>14,.1f}{1000 * here:>10,.1f}{statistics.median(ratios):>8.3f}"
            f"{f'{low:.3f} to {high:.3f}':>16}   {held[-1]}"
        )
    print(f"\nNothing is to be slower by more than {ALLOWED_RATIO - 1:.0%}: {all(held)}")


if __name__ == "__main__":
    main()
