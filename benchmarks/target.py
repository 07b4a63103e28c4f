"""Price of questions by relative error, over that of the best level in hindsight.

    python -m benchmarks.target [--quick] [--svg docs/pictures/target.svg]

Five questions on the flights, 20 generated tables with public keys, and two questions by destination, whose keys are
private. The best level is the lowest one of the grid at which half of the fresh releases meet the rule, with the
interval of a level that was fixed beforehand. Nobody knows it without paying for it. Each question may take four times
as much. It is asked in sessions that hold nothing but the policy. Noise is seeded; the rows of a unit that count differ
from run to run.

Claims, for public keys: the median of price over best is at most 1.20 over all questions, and at most 1.35 for each of
them. At least 18 of the 20 tables are reached, each in half of its runs or more. A question takes 12 steps at most in
the mean. Charges add up to the last level, to the nano-rho; where AUTO chooses bounds, its share is part of that level.
``benchmarks.target_rows`` has the time. ``benchmarks.target_limit`` has questions with LIMIT, and their claims.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import dpsql
from benchmarks import target_limit
from benchmarks.target_questions import Outcome, Question, declared, flights, measured, walked

MOST_OF_ALL, MOST_OF_ONE, MOST_STEPS = 1.20, 1.35, 12.0
TABLES, REACHED = 20, 18
FLIGHT_QUESTIONS = (
    Question("aircraft by origin, 10 %", (("n", "count(DISTINCT unit)"),), "origin", 0.1),
    Question("aircraft by origin, 2 %", (("n", "count(DISTINCT unit)"),), "origin", 0.02),
    Question("flights by month, 10 %", (("n", "count(*)"),), "month", 0.1),
    Question("flights by carrier, 10 %", (("n", "count(*)"),), "carrier", 0.1, 0.75),
    Question("miles by origin, 10 %", (("n", "sum(distance)"),), "origin", 0.1),
)
AUTO_QUESTION = Question(
    "aircraft by origin", (("n", "count(DISTINCT unit)"),), "origin", 0.1, options="max_groups_contributed = AUTO"
)
DELTA = "delta = 1e-6"
PRIVATE = {
    (8, 20): Question(
        "aircraft by destination (private), 20 %",
        (("n", "count(DISTINCT unit)"),),
        "dest",
        0.2,
        0.8,
        DELTA,
        is_private=True,
    ),
    (4, 5): Question(
        "flights by destination (private), 20 %", (("n", "count(*)"),), "dest", 0.2, 0.8, DELTA, is_private=True
    ),
}
"""Questions with private keys, by the groups of an aircraft and its rows in each."""
SELECTED: tuple[tuple[tuple[str, str], ...], ...] = (
    (("n", "count(DISTINCT unit)"),),
    (("n", "count(*)"),),
    (("total", "sum(value)"),),
    (("n", "count(*)"), ("mean", "avg(value)")),
)


@contextmanager
def generated(seed: int) -> Iterator[tuple[dpsql.Session, Question]]:
    """Open a session on a generated table with public keys, and yield the question that is asked of it."""
    generator = np.random.default_rng(seed)
    rows, keys = int(np.exp(generator.uniform(np.log(2_000), np.log(30_000)))), int(generator.integers(2, 61))
    exponent, error = generator.uniform(0.0, 1.0), round(float(generator.uniform(0.05, 0.2)), 3)
    odds = np.arange(1, keys + 1) ** -exponent
    table = pa.table(
        {
            "unit": generator.integers(0, rows // 2, rows),
            "key": generator.choice(keys, rows, p=odds / odds.sum()),
            "value": generator.gamma(2.0, 20.0, rows),
        }
    )
    columns = SELECTED[seed % len(SELECTED)]
    name = f"table {seed}: {', '.join(value for _, value in columns)}; {rows:,} rows, {keys} keys, {100 * error:.1f} %"
    with declared(table, 2, 1, (f"'key', keys := {list(range(keys))}", "'value', bounds := [0, 100]")) as session:
        yield session, Question(name, columns, "key", error)


def compare(runs: int, tables: int) -> list[Outcome]:
    """Measure and print all questions; return those with public keys."""
    print(f"{'':66} {'best rho':>9} price over best      steps reached")
    with flights(3, 50) as session:
        found = [measured(session, question, runs) for question in FLIGHT_QUESTIONS]
        walked(session, AUTO_QUESTION.by_target(0.01), 1)
    for bounds, question in PRIVATE.items():
        with flights(*bounds) as session:
            measured(session, question, runs)
    for seed in range(tables):
        with generated(seed) as (session, question):
            found.append(measured(session, question, runs))
    return found


def hold(found: Sequence[Outcome]) -> bool:
    """Print each claim on questions with public keys, and return whether all hold."""
    median = statistics.median(ratio for outcome in found for ratio in outcome.ratios)
    worst = max(outcome.median for outcome in found)
    steps = statistics.fmean(outcome.steps for outcome in found)
    tables = found[len(FLIGHT_QUESTIONS) :]
    reached = sum(2 * outcome.reached >= len(outcome.walks) for outcome in tables)
    claims = {
        f"median of price over best {median:.2f}, at most {MOST_OF_ALL:.2f}": median <= MOST_OF_ALL,
        f"largest median of a question {worst:.2f}, at most {MOST_OF_ONE:.2f}": worst <= MOST_OF_ONE,
        f"mean number of steps {steps:.1f}, at most {MOST_STEPS:g}": steps <= MOST_STEPS,
        f"tables that are reached: {reached} of {len(tables)}": TABLES * reached >= REACHED * len(tables),
    }
    for claim, is_true in claims.items():
        print(f"{claim}: {'holds' if is_true else 'FAILS'}")
    print("charges add up to the last level in every run")
    return all(claims.values())


def draw(found: Sequence[Outcome], path: Path) -> None:
    """Draw the price of each run over the best level; needs matplotlib (the extra ``plot``)."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    pyplot.rcParams.update({"svg.hashsalt": "target", "svg.fonttype": "none"})
    figure, axes = pyplot.subplots(figsize=(8.0, 6.4), layout="constrained")
    for place, outcome in enumerate(found):
        times = Counter(round(ratio, 3) for ratio in outcome.ratios)
        axes.scatter(list(times), [place] * len(times), s=[9 * n for n in times.values()], color="#4878a8", alpha=0.6)
        axes.plot([outcome.median] * 2, [place - 0.35, place + 0.35], color="#b04030", lw=2)
    axes.axvline(1.0, color="0.6", lw=1)
    axes.set_yticks(range(len(found)), [outcome.question.name for outcome in found], size=7)
    axes.invert_yaxis()
    axes.set_xlabel("price over best (larger dots: more runs; red: median)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, print, and draw if asked to; the exit status says whether the claims hold."""
    parser = argparse.ArgumentParser(description="Price of questions by relative error over the best level.")
    parser.add_argument("--quick", action="store_true", help="6 runs of each question, and 8 tables")
    parser.add_argument("--svg", type=Path, help="where to draw the picture")
    arguments = parser.parse_args()
    if arguments.svg is not None and importlib.util.find_spec("matplotlib") is None:
        parser.error("--svg needs matplotlib: pip install 'dpsql[plot]'")
    found = compare(*((6, 8) if arguments.quick else (20, TABLES)))
    if arguments.svg is not None:
        draw(found, arguments.svg)
    holds = hold(found)
    of_limit = (6, 2, 60, target_limit.EXPONENTS[-1:]) if arguments.quick else (20, 5, 300, target_limit.EXPONENTS)
    raise SystemExit(not (target_limit.compare(*of_limit) and holds))


if __name__ == "__main__":
    main()
