"""Queries that name nothing against the best named bounds in hindsight, over 24 generated tables.

    python -m benchmarks.default_tables [--tables "12 months" retail …]
    python -m benchmarks.default_tables --best [--tables …]

A query names epsilon 1 and delta 1e-6, and the policy names the privacy unit. It counts people and rows by key; if the
table has an amount, it is summed in a third query. The error of a release is the sum over all keys of the error, at
most the truth. Keys that are not shown have an error as large as they are.

`--best` finds the best named bounds of a grid and writes their errors to `default_tables.json`, beside those of the
defaults of that day. Nobody who keeps to privacy could choose bounds so. The usual command draws fresh releases of the
present defaults, and prints their errors over those of the best bounds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa

import dpsql
from benchmarks.default_rows import TABLES, made

BEST = Path(__file__).with_suffix(".json")
QUESTIONS = {"people": "count(DISTINCT person)", "rows": "count(*)", "sums": "sum(amount)"}
_LEVEL: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
_GROUPS = (1, 4, 16, 64)
_NORMS = (0.9, 0.99, 0.999, 1.0)
_PER_GROUP = (0.99, 1.0)
_RELEASES, _OF_FEW_KEYS, _FEW_KEYS = 8, 16, 12
_FINALISTS = 4
_HOPELESS = 1.4
_OF_BEST = 16

Exact = dict[int, float]
Option = tuple[str, dict[str, Any]]


class Known(TypedDict):
    """One question of a table in `default_tables.json`.

    Attributes:
        truth: sum of the exact numbers of all keys, without signs.
        best: mean and median error of the best named bounds.
        option: these bounds.
        before: mean and median error of the defaults when the file was written, and the standard error of the mean.

    """

    truth: float
    best: tuple[float, float]
    option: str
    before: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """Errors of the present defaults over those of the best bounds, and of the defaults before."""

    family: str
    mean: float
    median: float
    before: float

    @property
    def change(self) -> float:
        """Error now over that before."""
        return self.mean / self.before


def opened(rows: pa.Table) -> dpsql.Session:
    """Return a session on the rows, where nothing but the unit is declared."""
    session = dpsql.connect(threads=1, allow_unsigned_extensions=True)
    session.connection.register("made", rows)
    session.connection.execute("CREATE TABLE data AS FROM made")
    session.sql(
        "CALL dp_protect('data', privacy_unit_column := 'person', rho_budget := 1e6, delta_threshold := 0.5, "
        "delta_conversion := 1e-6)"
    )
    return session


def questions(name: str) -> list[str]:
    """Return the questions that are asked of a table."""
    return [one for one in QUESTIONS if one != "sums" or TABLES[name].has_amount]


def truth(rows: pa.Table, question: str) -> Exact:
    """Return the exact number of each key."""
    with opened(rows) as session:
        text = f"SELECT key, {QUESTIONS[question]} FROM data GROUP BY key"
        return dict(session.connection.sql(text).fetchall())


def error(session: dpsql.Session, option: Option, exact: Exact, *, refresh: bool = False) -> float:
    """Return the error of one release: over all keys, at most the truth of each."""
    call, options = option
    answer = session.sql(f"SELECT key, {call} AS n FROM data GROUP BY key", refresh=refresh, **_LEVEL, **options)
    shown: dict[int, float | None] = dict(answer.fetchall())
    return sum(min(abs((shown.get(key) or 0.0) - true), abs(true)) for key, true in exact.items())


def releases(exact: Exact) -> int:
    """Return how many releases are compared: more of few keys, whose sums of errors vary more."""
    return _OF_FEW_KEYS if len(exact) <= _FEW_KEYS else _RELEASES


def default_errors(rows: pa.Table, question: str, exact: Exact, count: int) -> list[float]:
    """Return errors of the defaults; each release has a session of its own, so AUTO's histograms are drawn anew."""
    found = []
    for _ in range(count):
        with opened(rows) as session:
            found.append(error(session, (QUESTIONS[question], {}), exact))
    return found


def _quantiles(session: dpsql.Session, text: str, places: tuple[float, ...]) -> list[float]:
    """Return quantiles of a query's one column, without repetition."""
    (column,) = session.connection.sql(text).fetchnumpy().values()
    return [float(f"{one:.4g}") for one in sorted({float(one) for one in np.quantile(np.asarray(column), places)})]


def _calls(session: dpsql.Session, question: str) -> list[tuple[str, bool]]:
    """Return a sum or count with bounds at quantiles of the true ones, and whether its bound is a norm."""
    name, argument = ("sum", "amount") if question == "sums" else ("count", "*")
    of_groups = f"SELECT person, {QUESTIONS[question]} AS n FROM made GROUP BY person, key"
    squares = f"SELECT sqrt(sum(n * n)) FROM ({of_groups}) GROUP BY person"
    norms = [
        (f"{name}({argument}, contribution_norm => {one:g})", True) for one in _quantiles(session, squares, _NORMS)
    ]
    signs = session.connection.sql(f"SELECT min(n) < 0 FROM ({of_groups})").fetchall()[0][0]
    sizes = _quantiles(session, f"SELECT abs(n) FROM ({of_groups})", _PER_GROUP)
    sizes = sizes if question == "sums" else [math.ceil(one) for one in sizes]
    least = {one: -one if signs else 0 for one in sizes}
    bounds = [
        (f"{name}({argument}, contribution_bounds_per_group => ({least[one]:g}, {one:g}))", False) for one in sizes
    ]
    return norms + bounds


def named(session: dpsql.Session, question: str) -> list[Option]:
    """Return the grid of named bounds.

    Numbers of groups are 1, 4, 16, 64, quantiles of the true ones, and the largest of a person. The last is also the
    number of keys if somebody has all of them. Each is asked by a threshold and by keys first.
    """
    text = "SELECT count(DISTINCT key) FROM made GROUP BY person"
    places = (0.5, 0.9, 0.99, 1.0) if question == "people" else (0.9, 1.0)
    of_people = [round(one) for one in _quantiles(session, text, places)]
    groups = sorted({one for one in _GROUPS if one < of_people[-1]} | set(of_people))
    ways: tuple[dict[str, Any], ...] = ({}, {"mechanism": "KEYS_FIRST"})
    plain = [{"max_groups_contributed": one, **way} for one in groups for way in ways]
    if question == "people":
        of_weight = [{"bounding": "L2", **one} for one in plain if one["max_groups_contributed"] < of_people[-1]]
        return [(QUESTIONS[question], one) for one in plain + of_weight]
    calls = _calls(session, question)
    return [(call, {"bounding": "NORM", **one} if is_norm else one) for call, is_norm in calls for one in plain]


def best(rows: pa.Table, question: str, exact: Exact) -> tuple[Option, list[float]]:
    """Return the best named bounds and errors of fresh releases of them.

    Two releases of each option find the finalists, or one if it is 1.4 times as bad as the best so far. Further ones of
    these find the best, and fresh ones are compared.
    """
    with opened(rows) as session:

        def mean(option: Option, count: int) -> float:
            return statistics.fmean(error(session, option, exact, refresh=True) for _ in range(count))

        found: list[tuple[float, Option]] = []
        for option in named(session, question):
            first, least = mean(option, 1), min((one for one, _ in found), default=float("inf"))
            hopeless = first > _HOPELESS * least
            found.append((first if hopeless else (first + mean(option, 1)) / 2.0, option))
        finalists = [option for _, option in sorted(found, key=lambda one: one[0])[:_FINALISTS]]
        chosen = min(finalists, key=lambda one: mean(one, releases(exact)))
        return chosen, [error(session, chosen, exact, refresh=True) for _ in range(_OF_BEST)]


def _digits(number: float) -> float:
    return float(f"{number:.5g}")


def _figures(errors: list[float]) -> tuple[float, float]:
    return _digits(statistics.fmean(errors)), _digits(statistics.median(errors))


def _spread(errors: list[float]) -> float:
    """Return the standard error of the mean."""
    return _digits(statistics.stdev(errors) / len(errors) ** 0.5)


def write_best(names: list[str]) -> None:
    """Find the best bounds of tables, and write them and the errors of the present defaults to the file."""
    for name in names:
        rows, found = made(name), {}
        for question in questions(name):
            exact = truth(rows, question)
            (call, options), errors = best(rows, question, exact)
            defaults = default_errors(rows, question, exact, releases(exact))
            words = ", ".join([*(f"{key} = {value}" for key, value in options.items()), call])
            found[question] = Known(
                truth=_digits(sum(map(abs, exact.values()))),
                best=_figures(errors),
                option=words,
                before=(*_figures(defaults), _spread(defaults)),
            )
            print(
                f"{name:20} {question:7} {statistics.fmean(defaults) / statistics.fmean(errors):6.2f} {words}",
                flush=True,
            )
        stored = json.loads(BEST.read_text()) if BEST.exists() else {}
        stored[name] = found
        lines = (f"{json.dumps(one)}: {json.dumps(stored[one])}" for one in TABLES if one in stored)
        BEST.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def measured(name: str, known: dict[str, Known]) -> list[Line]:
    """Print the errors of the present defaults for each question of a table, and return them."""
    rows, lines = made(name), []
    for question in questions(name):
        exact, of = truth(rows, question), known[question]
        if _digits(sum(map(abs, exact.values()))) != of["truth"]:
            message = f"the rows of {name!r} have changed: run --best"
            raise SystemExit(message)
        errors = default_errors(rows, question, exact, releases(exact))
        mean, median = _figures(errors)
        line = Line(TABLES[name].family, mean / of["best"][0], median / of["best"][1], of["before"][0] / of["best"][0])
        noise = line.change * ((_spread(errors) / mean) ** 2 + (of["before"][2] / of["before"][0]) ** 2) ** 0.5
        print(
            f"{name:20} {question:7} {mean / of['truth']:7.1%} {line.mean:6.2f} {line.median:6.2f} {line.before:6.2f} "
            f"{line.change:6.2f} {noise:5.2f}  {of['option']}",
            flush=True,
        )
        lines.append(line)
    return lines


def print_families(lines: list[Line]) -> None:
    """Print the mean ratios of each family, and the line that became worst."""
    print(f"\n{'mean of ratios':28} {'':7} {'mean':>6} {'median':>6} {'before':>6}")
    parts: list[Callable[[Line], float]] = [lambda one: one.mean, lambda one: one.median, lambda one: one.before]
    for family in [*dict.fromkeys(line.family for line in lines), "all"]:
        chosen = [line for line in lines if family in {line.family, "all"}]
        means = (statistics.fmean(part(line) for line in chosen) for part in parts)
        print(f"{family:28} {len(chosen):>7} {' '.join(f'{one:6.2f}' for one in means)}")
    print(f"worst of now ÷ before: {max(line.change for line in lines):.2f}")


def main() -> None:
    """Print the table, or write the file of the best bounds."""
    parser = argparse.ArgumentParser(description="Queries that name nothing against the best named bounds.")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--best", action="store_true", help="write default_tables.json")
    asked = parser.parse_args()
    if asked.best:
        write_best(asked.tables)
        return
    stored = json.loads(BEST.read_text())
    print(f"{'':28} {'error':>7} {'mean':>6} {'median':>6} {'before':>6} {'change':>6} {'±':>5}  best named bounds")
    print_families([line for name in asked.tables if name in stored for line in measured(name, stored[name])])
    missing = [name for name in asked.tables if name not in stored]
    if missing:
        print(f"no best bounds are stored of {', '.join(missing)}: run --best")


if __name__ == "__main__":
    main()
