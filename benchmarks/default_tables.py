"""Queries that name nothing against the best named bounds in hindsight, over 40 generated tables.

    python -m benchmarks.default_tables [--epsilon 1] [--delta 1e-6] [--releases 2] [--compared 6] [--sizes 10000,…]

Tables of eight shapes in five sizes; of each, people and rows per key. What is compared is the sum over all keys of the
error, at most the truth, where keys that are not shown have an error as large as they are. Named bounds are a grid of
numbers of groups and of quantiles of the true norms, by a threshold and keys first: nobody who keeps to privacy could
choose them so. The best is found by some releases of each option, and compared by fresh ones: those that found it are
too good.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import dpsql

Rows = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
Random = np.random.Generator
_GROUPS = (1, 4, 16, 64)
_QUANTILES = (0.5, 0.9, 0.99, 0.999)
_CLOSE = 1.05


def _zipf(generator: Random, size: int, keys: int, exponent: float) -> npt.NDArray[np.int64]:
    edges = np.cumsum(np.arange(1, keys + 1, dtype=np.float64) ** -exponent)
    places: npt.NDArray[np.int64] = np.searchsorted(edges, generator.random(size) * edges[-1])
    return places


def _of_homes(generator: Random, rows: int, homes: float, draw: Callable[[int], npt.NDArray[np.int64]]) -> Rows:
    """Rows of people with some home keys each, every row of one of them."""
    people = max(50, rows // 20)
    counts = 1 + generator.poisson(homes, people)
    keys, starts = draw(int(counts.sum())), np.cumsum(counts) - counts
    person = generator.integers(0, people, rows)
    return person, keys[starts[person] + (generator.random(rows) * counts[person]).astype(np.int64)]


def _heavy(generator: Random, rows: int) -> Rows:
    person, key = _of_homes(generator, rows // 2, 6.0, lambda n: _zipf(generator, n, 20_000, 1.1))
    return np.append(person, np.full(rows // 2, 10**9)), np.append(key, generator.integers(0, 5, rows // 2))


def _sessions(generator: Random, rows: int) -> Rows:
    people = max(50, rows // 20)
    activity = generator.lognormal(0.0, 1.0, people)
    person = np.searchsorted(np.cumsum(activity), generator.random(rows) * activity.sum())
    return person, (person * 7919 + generator.geometric(0.3, rows) * 31) % max(40, rows // 500)


SHAPES: dict[str, Callable[[Random, int], Rows]] = {
    "short tail": lambda g, n: _of_homes(g, n, 2.0, lambda size: _zipf(g, size, 30, 1.0)),
    "long tail": lambda g, n: _of_homes(g, n, 6.5, lambda size: _zipf(g, size, 100_000, 1.1)),
    "flat": lambda g, n: _of_homes(g, n, 4.0, lambda size: g.integers(0, max(20, n // 2_000), size)),
    "one heavy person": _heavy,
    "one row a person": lambda g, n: (np.arange(n), _zipf(g, n, 20_000, 1.2)),
    "sessions": _sessions,
    "one key a person": lambda g, n: (g.integers(0, n // 20, n) * 2, np.zeros(n, dtype=np.int64)),
    "seven keys": lambda g, n: (g.integers(0, n // 20, n), g.integers(0, 7, n)),
}


def made(shape: str, rows: int, seed: int) -> pa.Table:
    """A table of people and keys."""
    generator = np.random.default_rng(seed)
    person, key = SHAPES[shape](generator, rows)
    if shape == "one key a person":
        key = _zipf(np.random.default_rng(seed + 1), int(person.max()) + 1, 5_000, 1.1)[person]
    return pa.table({"person": person, "key": key})


def scalar(shown: dict[int, float], exact: dict[int, float]) -> float:
    """Sum over all keys of the error, at most the truth."""
    return sum(min(abs(shown.get(key, 0.0) - true), true) for key, true in exact.items())


def named(select: str, norms: npt.NDArray[np.float64]) -> list[tuple[str, dict[str, Any]]]:
    """Queries with named bounds."""
    firsts: tuple[dict[str, Any], ...] = ({}, {"mechanism": "KEYS_FIRST"})
    groups = [{"max_groups_contributed": one, **first} for one in _GROUPS for first in firsts]
    if "DISTINCT" in select:
        return [(select, {"bounding": "L2", **one}) for one in groups]
    calls = [f"count(*, contribution_norm => {max(1.0, norm):.4g})" for norm in np.quantile(norms, _QUANTILES)]
    few = [
        one for one in groups if one["max_groups_contributed"] in (_GROUPS[1:3] if "mechanism" in one else _GROUPS[:3])
    ]
    return [(call, {"bounding": "NORM", **one}) for call in calls for one in few]


def compared(rows: pa.Table, asked: argparse.Namespace) -> dict[str, tuple[float, float, str]]:
    """Of people and rows: the scalar where nothing is named, the best of named bounds, and which."""
    found = {}
    with dpsql.connect(threads=2, allow_unsigned_extensions=True) as session:
        session.connection.register("made", rows)
        session.connection.execute("CREATE TABLE data AS FROM made")
        session.sql(
            "CALL dp_protect('data', privacy_unit_column := 'person', rho_budget := 1e6, delta_threshold := 0.5, "
            "delta_conversion := 1e-6)"
        )
        squares = (
            "SELECT sqrt(sum(n * n)) AS norm FROM (SELECT person, count(*) AS n FROM made GROUP BY person, key) "
            "GROUP BY person"
        )
        norms = session.connection.sql(squares).fetchnumpy()["norm"]
        for name, select in {"people": "count(DISTINCT person)", "rows": "count(*)"}.items():
            exact = dict(session.connection.sql(f"SELECT key, {select} FROM data GROUP BY key").fetchall())

            def mean(call: str, options: dict[str, Any], releases: int, exact: dict[int, float] = exact) -> float:
                text = f"SELECT key, {call} AS n FROM data GROUP BY key"
                level = {"epsilon": asked.epsilon, "delta": asked.delta, "refresh": True}
                answers = (session.sql(text, **level, **options) for _ in range(releases))
                return statistics.fmean(scalar(dict(answer.fetchall()), exact) for answer in answers)

            best, options = min(named(select, norms), key=lambda one: mean(one[0], one[1], asked.releases))
            found[name] = (mean(select, {}, asked.compared), mean(best, options, asked.compared), f"{best} {options}")
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Queries that name nothing against named bounds.")
    parser.add_argument("--releases", type=int, default=2)
    parser.add_argument("--compared", type=int, default=6)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--sizes", default="10000,30000,100000,300000,1000000")
    asked = parser.parse_args()
    close: dict[str, list[bool]] = {}
    for size in map(int, asked.sizes.split(",")):
        for seed, shape in enumerate(SHAPES):
            for name, (default, best, which) in compared(made(shape, size, seed), asked).items():
                close.setdefault(name, []).append(default <= _CLOSE * best)
                print(f"{shape:18} {size:>9,} {name:7} {default / best:6.3f} of {best:>12,.0f}: {which}", flush=True)
    for name, tables in close.items():
        print(f"{name}: within 5 % of the best for {sum(tables)} of {len(tables)}")


if __name__ == "__main__":
    main()
