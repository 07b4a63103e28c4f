"""Tables of busy people for ``benchmarks.left_out``: bounds cut most of them, and some hardly.

Each table is made by a generator with a seed of its own, so its rows are the same at each run. Its columns are person
and key, and amount if its number is a sum. People of a table that is cut have many rows, or large amounts, by a law
with a heavy tail. Two tables of `sample_data` are asked by two columns each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Random = np.random.Generator
_SAMPLES = Path(__file__).parent.parent / "sample_data"
_MOST_HITS = 3_000.0


@dataclass(frozen=True, slots=True)
class Table:
    """A table and the number that is asked of each of its keys.

    Attributes:
        make: makes the rows.
        is_cut: whether bounds leave out more than 8 % of what is shown, if nothing is named.
        number: the aggregate.
        domain: the bounds of the amount that the curator declares; None if there is no amount.

    """

    make: Callable[[Random], pa.Table]
    is_cut: bool
    number: str = "count(*)"
    domain: tuple[float, float] | None = None


def _zipf(random: Random, size: int, keys: int, exponent: float) -> Integers:
    """Return keys by a Zipf law, numbered from the most frequent one."""
    edges = np.cumsum(np.arange(1, keys + 1, dtype=np.float64) ** -exponent)
    return np.asarray(np.searchsorted(edges, random.random(size) * edges[-1]), dtype=np.int64)


def _named(keys: Integers) -> pa.Array:
    """Return keys as texts."""
    return pa.array([f"/{number}" for number in range(int(keys.max()) + 1)]).take(pa.array(keys))


def _repeated(rows: npt.NDArray[np.floating[Any]]) -> Integers:
    """Return the person of each row, by the number of rows of each person."""
    return np.repeat(np.arange(len(rows)), rows.astype(np.int64))


def _hits(random: Random, index: float, visitors: int) -> Integers:
    """Return the visitor of each hit, by a Pareto law of hits a visitor that ends at 3,000."""
    return _repeated(np.minimum(np.floor(4.3 * random.pareto(index, visitors)) + 1.0, _MOST_HITS))


def _web_log(random: Random, *, index: float, visitors: int = 20_000) -> pa.Table:
    """Return hits of visitors on 40 pages, of which the first has a tenth of all."""
    visitor = _hits(random, index, visitors)
    return pa.table({"person": visitor, "key": _named(_zipf(random, len(visitor), 40, 0.6))})


def _days(random: Random) -> pa.Table:
    """Return hits of visitors on 30 days."""
    visitor = _hits(random, 1.2, 10_000)
    return pa.table({"person": visitor, "key": _named(random.integers(0, 30, len(visitor)))})


def _sessions(random: Random, *, spread: float, people: int = 10_000) -> pa.Table:
    """Return sessions of people on 200 titles, by a log-normal law of sessions; each has some titles of their own."""
    person = _repeated(np.ceil(random.lognormal(1.0, spread, people)))
    kinds = 1 + random.poisson(3.0, people)
    titles = _zipf(random, int(kinds.sum()), 200, 0.9)
    starts = np.cumsum(kinds) - kinds
    chosen = starts[person] + (random.random(len(person)) * kinds[person]).astype(np.int64)
    return pa.table({"person": person, "key": _named(titles[chosen])})


def _orders(random: Random, *, spread: float) -> pa.Table:
    """Return orders of 8,000 customers of 12 products: a wholesaler in 40 orders much more, and dearer ones."""
    customers = 8_000
    is_wholesaler = random.random(customers) < 1.0 / 40.0
    rows = 1.0 + random.poisson(np.where(is_wholesaler, 60.0, 3.0))
    customer = _repeated(rows)
    amount = random.lognormal(3.0 + 0.7 * is_wholesaler[customer], spread)
    amounts = np.round(np.minimum(amount, 5_000.0), 2)
    return pa.table({"person": customer, "key": _named(_zipf(random, len(customer), 12, 0.5)), "amount": amounts})


def _few_keys(random: Random) -> pa.Table:
    """Return calls of 8,000 people in 4 kinds, by a Pareto law of calls; each person prefers one kind."""
    person = _repeated(np.minimum(np.floor(3.0 * random.pareto(1.3, 8_000)) + 1.0, _MOST_HITS))
    own = random.integers(0, 4, 8_000)
    is_own = random.random(len(person)) < 0.7
    return pa.table(
        {"person": person, "key": _named(np.where(is_own, own[person], random.integers(0, 4, len(person))))}
    )


def _forum(random: Random) -> pa.Table:
    """Return posts in 24 boards: power users post in the first 12 in the reverse of the order of others."""
    users = 12_000
    is_power = random.random(users) < 0.02
    rows = np.where(is_power, np.ceil(random.lognormal(4.5, 0.8, users)), 1.0 + random.poisson(4.0, users))
    user = _repeated(rows)
    board = _zipf(random, len(user), 24, 0.8)
    elsewhere = 11 - _zipf(random, len(user), 12, 0.8)
    return pa.table({"person": user, "key": _named(np.where(is_power[user], elsewhere, board))})


def _one_person(random: Random) -> pa.Table:
    """Return rows of 10,000 people in 30 keys, and as many of one more person."""
    person = _repeated(1.0 + random.poisson(4.0, 10_000))
    person = np.append(person, np.full(len(person), 10_000))
    return pa.table({"person": person, "key": _named(_zipf(random, len(person), 30, 0.7))})


def _one_row(random: Random) -> pa.Table:
    """Return one row of each person."""
    return pa.table({"person": np.arange(40_000), "key": _named(_zipf(random, 40_000, 40, 0.8))})


def _regular(random: Random, *, rows: float, keys: int) -> pa.Table:
    """Return rows of 10,000 people by a Poisson law."""
    person = _repeated(1.0 + random.poisson(rows, 10_000))
    return pa.table({"person": person, "key": _named(_zipf(random, len(person), keys, 0.8))})


def _light_tail(random: Random) -> pa.Table:
    """Return rows of 10,000 people by a geometric law."""
    person = _repeated(random.geometric(0.25, 10_000).astype(np.float64))
    return pa.table({"person": person, "key": _named(_zipf(random, len(person), 25, 0.7))})


def _tickets(random: Random) -> pa.Table:
    """Return tickets of 15,000 people with prices from 5 to 50."""
    person = _repeated(1.0 + random.poisson(2.0, 15_000))
    prices = np.round(random.uniform(5.0, 50.0, len(person)), 2)
    return pa.table({"person": person, "key": _named(_zipf(random, len(person), 12, 0.6)), "amount": prices})


def _homes(random: Random) -> pa.Table:
    """Return rows of 20,000 people, each in up to 4 of 300 keys."""
    person = _repeated(1.0 + random.poisson(4.0, 20_000))
    homes = _zipf(random, 4 * 20_000, 300, 1.0).reshape(20_000, 4)
    return pa.table({"person": person, "key": _named(homes[person, random.integers(0, 4, len(person))])})


def _sample(_: Random, *, file: str, person: str, key: str) -> pa.Table:
    """Return two columns of a sample table, without rows of nobody or of no key."""
    return pq.read_table(_SAMPLES / file, columns=[person, key]).rename_columns(["person", "key"]).drop_null()


_flights = partial(_sample, file="flights.parquet", person="tailnum")
_clinic = partial(_sample, file="clinic/visits.parquet", person="patient_id")

TABLES: dict[str, Table] = {
    "web log, Pareto 1.05": Table(partial(_web_log, index=1.05, visitors=10_000), is_cut=True),
    "web log, Pareto 1.2": Table(partial(_web_log, index=1.2), is_cut=True),
    "web log, Pareto 1.4": Table(partial(_web_log, index=1.4), is_cut=True),
    "web log, Pareto 1.8": Table(partial(_web_log, index=1.8), is_cut=True),
    "web log by day": Table(_days, is_cut=True),
    "sessions, log-normal 1.5": Table(partial(_sessions, spread=1.5), is_cut=True),
    "sessions, log-normal 2": Table(partial(_sessions, spread=2.0, people=6_000), is_cut=True),
    "wholesalers": Table(partial(_orders, spread=0.8), True, "sum(amount)", (0.0, 5_000.0)),
    "wholesalers, dear orders": Table(partial(_orders, spread=1.4), True, "sum(amount)", (0.0, 5_000.0)),
    "few keys": Table(_few_keys, is_cut=True),
    "forum": Table(_forum, is_cut=True),
    "one person with half": Table(_one_person, is_cut=True),
    "flights by carrier": Table(partial(_flights, key="carrier"), is_cut=False),
    "flights by destination": Table(partial(_flights, key="dest"), is_cut=False),
    "clinic by city": Table(partial(_clinic, key="city"), is_cut=True),
    "clinic by diagnosis": Table(partial(_clinic, key="diagnosis"), is_cut=True),
    "one row a person": Table(_one_row, is_cut=False),
    "regular, 20 keys": Table(partial(_regular, rows=5.0, keys=20), is_cut=False),
    "regular, 4 keys": Table(partial(_regular, rows=12.0, keys=4), is_cut=False),
    "light tail": Table(_light_tail, is_cut=False),
    "tickets": Table(_tickets, False, "sum(amount)", (0.0, 50.0)),
    "homes": Table(_homes, is_cut=False),
}
