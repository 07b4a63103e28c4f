"""Keys found in rounds, in one weighted round and behind one threshold; the error of counts, and the time.

    python -m benchmarks.key_selection [--releases 20] [--epsilon 1] [--delta 1e-6]

The rows are made here (seeded, some seconds): of 50,000 people each has 1 + Poisson(7.5) home keys, at most 16, drawn
by the popularity k^-1.1 of 100,000 keys; each of a million rows is of some person and of one of their homes. Beside it
rows of people with one key each, and of flat popularity, where rounds are the worse choice. Noise differs from run to
run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import dpsql

ROWS, PEOPLE, KEYS = 1_000_000, 50_000, 100_000
MOST_HOMES = 16
_DRAWN = 8 * MOST_HOMES
"""Keys drawn for a person, of which the first different ones are their homes."""

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "keys alone, in rounds": ("SELECT DISTINCT key FROM data", {}),
    "keys alone, of one key a person": ("SELECT DISTINCT key FROM data", {"max_groups_contributed": 1}),
    "one weighted round, L2 of 1": (
        "SELECT key, count(DISTINCT person) FROM data GROUP BY key",
        {"max_groups_contributed": 1, "bounding": "L2"},
    ),
    "L2 of 8": (
        "SELECT key, count(DISTINCT person) FROM data GROUP BY key",
        {"max_groups_contributed": 8, "bounding": "L2"},
    ),
    "keys first, 16 groups": (
        "SELECT key, count(DISTINCT person) FROM data GROUP BY key",
        {"max_groups_contributed": 16, "mechanism": "KEYS_FIRST"},
    ),
    "L0 of 8": ("SELECT key, count(DISTINCT person) FROM data GROUP BY key", {"max_groups_contributed": 8}),
}


def home_rows(*, most_homes: int, exponent: float, seed: int, keys: int = KEYS) -> pa.Table:
    """Rows of people and keys: columns person and key."""
    generator = np.random.default_rng(seed)
    edges = np.cumsum(np.arange(1, keys + 1, dtype=np.float64) ** -exponent)
    homes = np.minimum(most_homes, 1 + generator.poisson(7.5, PEOPLE))
    drawn = np.searchsorted(edges, generator.random((PEOPLE, _DRAWN)) * edges[-1])
    different = [own[np.sort(np.unique(own, return_index=True)[1])] for own in drawn]
    homes = np.minimum(homes, [len(own) for own in different])
    starts = np.cumsum(homes) - homes
    of_people: npt.NDArray[np.int64] = np.concatenate(
        [own[:count] for own, count in zip(different, homes, strict=True)]
    )
    person = generator.integers(0, PEOPLE, ROWS)
    place = (generator.random(ROWS) * homes[person]).astype(np.int64)
    return pa.table({"person": person, "key": of_people[starts[person] + place]})


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Keys that are found, and the time that it takes.")
    parser.add_argument("--releases", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    asked = parser.parse_args()
    data = {
        "1 to 16 keys a person": home_rows(most_homes=MOST_HOMES, exponent=1.1, seed=1),
        "one key a person": home_rows(most_homes=1, exponent=1.1, seed=2),
        "flat popularity": home_rows(most_homes=MOST_HOMES, exponent=0.0, seed=3, keys=4_000),
    }
    print(
        f"epsilon = {asked.epsilon:g}, delta = {asked.delta:g}; keys found, mean of {asked.releases} releases, and time"
    )
    for name, rows in data.items():
        print(f"\n{name}: {len(rows):,} rows, {len(rows.column('key').unique()):,} keys")
        with dpsql.connect(threads=2, allow_unsigned_extensions=True) as session:
            session.connection.register("made", rows)
            session.connection.execute("CREATE TABLE data AS FROM made")
            session.sql(
                "CALL dp_protect('data', coverage := FALSE, "
                "privacy_unit_column := 'person', rho_budget := 1e6, delta_threshold := 0.5, "
                "delta_conversion := 1e-6)"
            )
            _compare(session, asked.releases, asked.epsilon, asked.delta)


def _compare(session: dpsql.Session, releases: int, epsilon: float, delta: float) -> None:
    found: dict[str, list[int]] = {name: [] for name in WAYS}
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    errors: dict[str, list[float]] = {name: [] for name in WAYS}
    plain: list[float] = []
    exact = dict(session.connection.sql("SELECT key, count(DISTINCT person) FROM data GROUP BY key").fetchall())
    for _ in range(releases):
        began = time.perf_counter()
        session.connection.sql("SELECT DISTINCT key FROM data").fetchall()
        plain.append(time.perf_counter() - began)
        for name, (text, options) in WAYS.items():
            began = time.perf_counter()
            answer = session.sql(text, epsilon=epsilon, delta=delta, refresh=True, **options)
            seconds[name].append(time.perf_counter() - began)
            found[name].append(len(answer))
            errors[name].append(_error(answer, exact))
    print(f"{'':32} {'keys':>6} {'RMSE':>6} {'seconds':>8}")
    for name in WAYS:
        keys, error = statistics.mean(found[name]), statistics.mean(errors[name])
        print(f"{name:32} {keys:>6.0f} {error:>6.1f} {statistics.median(seconds[name]):>8.2f}")
    print(f"{'DuckDB, SELECT DISTINCT':32} {'':>6} {'':>6} {statistics.median(plain):>8.2f}")


def _error(answer: dpsql.Result, exact: dict[int, int]) -> float:
    """Root mean squared error of the shown counts of people; NaN where keys stand alone."""
    rows = answer.fetchall()
    if not rows or len(rows[0]) == 1:
        return float("nan")
    return float(np.sqrt(np.mean([(count - exact[key]) ** 2 for key, count in rows])))


if __name__ == "__main__":
    main()
