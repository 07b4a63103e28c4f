"""Tables of fixed generators for ``benchmarks.default_tables``, in seven families.

Each table is made by a generator whose seed follows from its name, so its rows are the same at each run. Its columns
are person and key, and amount if sums are asked of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Random = np.random.Generator
_MOST_ROWS = 3_000.0


@dataclass(frozen=True, slots=True)
class Table:
    """A table and the family that it stands for.

    Attributes:
        family: words for tables of its kind.
        make: makes the rows.
        has_amount: whether sums of an amount are asked, too.

    """

    family: str
    make: Callable[[Random], pa.Table]
    has_amount: bool = False


def _zipf(random: Random, size: int, keys: int, exponent: float) -> Integers:
    """Return keys by a Zipf law, numbered from the most frequent one."""
    edges = np.cumsum(np.arange(1, keys + 1, dtype=np.float64) ** -exponent)
    return np.asarray(np.searchsorted(edges, random.random(size) * edges[-1]), dtype=np.int64)


def _repeated(rows: Integers | Floats) -> Integers:
    """Return the person of each row, by the number of rows of each person."""
    return np.repeat(np.arange(len(rows)), rows.astype(np.int64))


def _pareto_rows(random: Random, index: float, people: int) -> Integers:
    """Return the person of each row, by a Pareto law of rows a person that ends at 3,000."""
    return _repeated(np.minimum(np.floor(4.0 * random.pareto(index, people)) + 1.0, _MOST_ROWS))


def _table(person: Integers, key: Integers, amount: Floats | None = None) -> pa.Table:
    """Return columns as a table."""
    columns: dict[str, Integers | Floats] = {"person": person, "key": key}
    return pa.table(columns if amount is None else columns | {"amount": np.round(amount, 2)})


def _of_homes(random: Random, person: Integers, kinds: Integers, homes: Integers) -> pa.Table:
    """Return rows of people, each row of one of the home keys of its person."""
    starts = np.cumsum(kinds) - kinds
    return _table(person, homes[starts[person] + (random.random(len(person)) * kinds[person]).astype(np.int64)])


def _pareto(random: Random, *, index: float, people: int, keys: int, exponent: float) -> pa.Table:
    """Return rows of people by a Pareto law, on keys by a Zipf law."""
    person = _pareto_rows(random, index, people)
    return _table(person, _zipf(random, len(person), keys, exponent))


def _log_normal(random: Random, *, spread: float, people: int, keys: int) -> pa.Table:
    """Return rows by a log-normal law, in some home keys of each person."""
    person = _repeated(np.ceil(random.lognormal(1.0, spread, people)))
    kinds = 1 + random.poisson(3.0, people)
    return _of_homes(random, person, kinds, _zipf(random, int(kinds.sum()), keys, 0.9))


def _regular(random: Random, *, rows: float, people: int, keys: int, exponent: float) -> pa.Table:
    """Return rows of people by a Poisson law, on keys by a Zipf law."""
    person = _repeated(1 + random.poisson(rows, people))
    return _table(person, _zipf(random, len(person), keys, exponent))


def _months(random: Random) -> pa.Table:
    """Return bills of 500 people in 12 months: nearly all have some in each month."""
    person = _repeated(np.full(500, 12))
    bills = random.poisson(2.0, len(person))
    return _table(np.repeat(person, bills), np.repeat(np.tile(np.arange(12), 500), bills))


def _retail(random: Random) -> pa.Table:
    """Return 20 to 60 baskets of each of 4,000 customers, with one of 500 products each."""
    person = _repeated(random.integers(20, 61, 4_000))
    return _table(person, random.integers(0, 500, len(person)))


def _flat(random: Random, *, people: int, keys: int, least: int, most: int) -> pa.Table:
    """Return one to three rows of people in each of some keys: people have about as many keys, and keys people."""
    person = _repeated(random.integers(least, most + 1, people))
    places = np.arange(len(person)) - np.searchsorted(person, person)
    key = (random.integers(0, keys, people)[person] + places * (keys // (most + 1))) % keys
    rows = random.integers(1, 4, len(person))
    return _table(np.repeat(person, rows), np.repeat(key, rows))


def _listeners(random: Random) -> pa.Table:
    """Return sessions of listeners, each on a few stations that lie close together."""
    activity = random.lognormal(0.0, 1.0, 1_500)
    person = np.searchsorted(np.cumsum(activity), random.random(30_000) * activity.sum()).astype(np.int64)
    return _table(person, (person * 7919 + random.geometric(0.3, len(person)) * 31) % 60)


def _titles(random: Random) -> pa.Table:
    """Return sessions of 12,000 people in some of 2,000 titles."""
    person = _repeated(random.geometric(0.15, 12_000))
    kinds = 1 + random.poisson(4.0, 12_000)
    return _of_homes(random, person, kinds, _zipf(random, int(kinds.sum()), 2_000, 1.0))


def _one_row(random: Random, *, rows: int, keys: int, exponent: float) -> pa.Table:
    """Return one row of each person."""
    return _table(np.arange(rows), _zipf(random, rows, keys, exponent))


def _one_person(random: Random) -> pa.Table:
    """Return payments of 5 to 50 of 10,000 people in 30 keys, and as many of one more person."""
    person = _repeated(1 + random.poisson(4.0, 10_000))
    person = np.append(person, np.full(len(person), 10_000))
    return _table(person, _zipf(random, len(person), 30, 0.7), random.uniform(5.0, 50.0, len(person)))


def _refunds(random: Random) -> pa.Table:
    """Return orders of 8,000 customers of 20 products, of which a quarter are refunds."""
    person = _repeated(1 + random.poisson(3.0, 8_000))
    amount = random.lognormal(3.0, 0.8, len(person)) * np.where(random.random(len(person)) < 0.25, -1.0, 1.0)
    return _table(person, _zipf(random, len(person), 20, 0.5), amount)


def _typing_errors(random: Random) -> pa.Table:
    """Return prices of 5 to 50 of 12,000 people in 12 keys, of which ten were typed 1,000 times too large."""
    person = _repeated(1 + random.poisson(2.0, 12_000))
    amount = random.uniform(5.0, 50.0, len(person))
    amount[random.choice(len(person), 10, replace=False)] *= 1_000.0
    return _table(person, _zipf(random, len(person), 12, 0.6), amount)


def _long_tail(random: Random) -> pa.Table:
    """Return 300,000 rows of 15,000 people in some of 100,000 keys."""
    person = random.integers(0, 15_000, 300_000)
    kinds = 1 + random.poisson(6.5, 15_000)
    return _of_homes(random, person, kinds, _zipf(random, int(kinds.sum()), 100_000, 1.1))


_HEAVY, _FEW, _EQUAL, _SESSIONS = "heavy tail", "few keys", "equal keys", "sessions"
_ONE, _OUTLIERS, _SMALL = "one row a unit", "outliers", "small keys"

TABLES: dict[str, Table] = {
    "Pareto 1.1": Table(_HEAVY, partial(_pareto, index=1.1, people=5_000, keys=40, exponent=0.6)),
    "Pareto 1.2 by day": Table(_HEAVY, partial(_pareto, index=1.2, people=6_000, keys=30, exponent=0.0)),
    "Pareto 1.5": Table(_HEAVY, partial(_pareto, index=1.5, people=10_000, keys=20_000, exponent=1.1)),
    "log-normal 2": Table(_HEAVY, partial(_log_normal, spread=2.0, people=4_000, keys=200)),
    "web log": Table(_HEAVY, partial(_pareto, index=1.3, people=8_000, keys=3_000, exponent=1.0)),
    "3 keys": Table(_FEW, partial(_regular, rows=4.0, people=4_000, keys=3, exponent=0.5)),
    "5 keys, Pareto 1.1": Table(_FEW, partial(_pareto, index=1.1, people=3_000, keys=5, exponent=0.3)),
    "8 keys": Table(_FEW, partial(_regular, rows=1.5, people=6_000, keys=8, exponent=1.5)),
    "12 months": Table(_FEW, _months),
    "retail": Table(_EQUAL, _retail),
    "flat, 20 keys": Table(_EQUAL, partial(_flat, people=2_000, keys=20, least=4, most=6)),
    "flat, 200 keys": Table(_EQUAL, partial(_flat, people=6_000, keys=200, least=7, most=9)),
    "flat, 1,000 keys": Table(_EQUAL, partial(_flat, people=12_000, keys=1_000, least=10, most=14)),
    "listeners": Table(_SESSIONS, _listeners),
    "log-normal 1.5": Table(_SESSIONS, partial(_log_normal, spread=1.5, people=8_000, keys=200)),
    "titles": Table(_SESSIONS, _titles),
    "one row, 10 keys": Table(_ONE, partial(_one_row, rows=1_000, keys=10, exponent=0.5)),
    "one row, 40 keys": Table(_ONE, partial(_one_row, rows=40_000, keys=40, exponent=0.8)),
    "one row, long tail": Table(_ONE, partial(_one_row, rows=100_000, keys=20_000, exponent=1.2)),
    "one person": Table(_OUTLIERS, _one_person, has_amount=True),
    "refunds": Table(_OUTLIERS, _refunds, has_amount=True),
    "typing errors": Table(_OUTLIERS, _typing_errors, has_amount=True),
    "long tail": Table(_SMALL, _long_tail),
    "short tail": Table(_SMALL, partial(_regular, rows=3.0, people=5_000, keys=2_000, exponent=0.8)),
}


def made(name: str) -> pa.Table:
    """Return the rows of a table, the same ones at each call."""
    return TABLES[name].make(np.random.default_rng(zlib.crc32(name.encode())))
