"""A table of visits by clinic and day, both public, with running totals in mind; and what is exact of it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.model.private_query import PrivateQuery
from dpsql.noise.entropy import NoiseSource
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end.prepared import with_own_rows
from tests.noise_sources import seeded_noise

Floats = npt.NDArray[np.float64]
YEAR = 365
ORDER = (0.05, 0.5, 0.2, 1.0)
"""Levels of a cascade, with a step down among them."""
UNITS = "count(DISTINCT patient)"
COSTS = "sum(cost, contribution_bounds_per_group => (-20, 5))"


AGGREGATES = {
    "units": (UNITS, "count(*)"),
    "rows": ("count(*)", "sum(n)"),
    "dear": ("count(*) FILTER (WHERE cost > 0)", "sum(dear)"),
    "cost": ("sum(cost)", "sum(cost)"),
    "narrow": (COSTS, "sum(least(greatest(loose, -20), 5))"),
}
"""Private aggregates, and the same over patients, one row per patient and group."""


def options(**named: object) -> str:
    return f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({', '.join(f'{name} = {one}' for name, one in named.items())})"


def _tables(lengths: Mapping[str, int]) -> str:
    visits = "CREATE TABLE visits (patient BIGINT, clinic INTEGER, day INTEGER, cost DOUBLE);"
    return visits + "".join(
        f"CREATE TABLE {column}s AS SELECT CAST(range AS INTEGER) AS {column} FROM range({length});"
        for column, length in lengths.items()
    )


@functools.cache
def _prepared(days: int, clinics: int, declared: tuple[tuple[str, object], ...]) -> dpsql.Session:
    """Return a session with everything declared, which stays open until the process ends."""
    session = dpsql.connect(threads=1)
    session.connection.execute(_tables({"clinic": clinics, "day": days}))
    session.sql("CALL dp_unit('patient', rho_budget := 1e6, delta_threshold := 0.99, delta_conversion := 1e-6)")
    session.sql(
        "CALL dp_protect('visits', coverage := FALSE, unit := 'patient', privacy_unit_column := 'patient', "
        f"{', '.join(f'{name} := {value}' for name, value in declared)})"
    )
    for column in ("clinic", "day"):
        session.sql(f"CALL dp_public('{column}s')")
        session.sql(f"CALL dp_domain('visits', '{column}', keys_from := '{column}s.{column}')")
    session.sql("CALL dp_domain('visits', 'cost', bounds := [-10, 30])")
    return session


@contextlib.contextmanager
def open_session(
    days: int, clinics: int = 1, *, max_groups: int = 1, noise: NoiseSource | None = None, **policy: object
) -> Iterator[dpsql.Session]:
    """An empty table of visits; days and clinics are public, one row of cost is in [-10, 30], and a group has two."""
    declared = {"max_groups_contributed": max_groups, "max_rows_per_group": 2, "default_delta": 1e-6} | policy
    prepared = _prepared(days, clinics, tuple(declared.items()))
    with with_own_rows(prepared, _tables({"clinic": clinics, "day": days})) as session:
        session._runner.noise_source = noise or seeded_noise(5)
        yield session


def fill(session: dpsql.Session, days: int, clinics: int, per_group: int = 3) -> None:
    """One patient or more in each group, each in one group, with one or two rows; some costs are out of bounds."""
    groups = clinics * days
    session.connection.execute(
        "INSERT INTO visits SELECT u, p % $1, p // $1, (u * 31 + v * 17) % 301 / 4 - 20 "
        "FROM (SELECT u, CASE WHEN u < $2 THEN u ELSE hash(u) % $2 END AS p FROM range($3) t(u)), range(2) b(v) "
        "WHERE v <= u % 2",
        [clinics, groups, per_group * groups],
    )


def receipt_of(answer: dpsql.Result) -> dpsql.Receipt:
    assert answer.receipt is not None
    return answer.receipt


def spent(session: dpsql.Session) -> tuple[int, int]:
    """Nano-rho and delta units in the ledger."""
    total = session._access.read().ledger.spent("patient")
    return total.rho_nano, total.delta_units


def planned(session: dpsql.Session, text: str, **asked: object) -> PrivateQuery:
    statement = read_statement(text)
    assert isinstance(statement, SelectStatement)
    return session._runner.plan(statement, asked, CURATOR)[0]


def explained(session: dpsql.Session, text: str, rho: float) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = session.sql(f"FROM dp_explain($$ {text} $$, rho := {rho})").fetchall()
    return rows


def column(answer: dpsql.Result, name: str) -> Floats:
    return np.asarray(answer.arrow().column(name).to_numpy(), dtype=np.float64)


def middle(answer: dpsql.Result, name: str = "t") -> Floats:
    """A count before it is rounded: the middle of its interval, which has columns of its own."""
    return (column(answer, f"{name}_low") + column(answer, f"{name}_high")) / 2


def with_interval(aggregate: str, name: str = "t") -> str:
    return f"{aggregate} AS {name}, dp_interval_low({name}) AS {name}_low, dp_interval_high({name}) AS {name}_high"


def exact_groups(session: dpsql.Session, keys: Sequence[str]) -> str:
    """Every listed key with its exact bounded values; names are those of AGGREGATES."""
    patients = (
        f"SELECT patient, {', '.join(keys)}, count(*) AS n, count(*) FILTER (WHERE cost > 0) AS dear, "
        "sum(least(greatest(cost, -10), 30)) AS cost, sum(cost) AS loose FROM visits GROUP BY ALL"
    )
    values = ", ".join(f"{exact} AS {name}" for name, (_, exact) in AGGREGATES.items())
    zeros = ", ".join(f"coalesce({name}, 0) AS {name}" for name in AGGREGATES)
    listed = " CROSS JOIN ".join(f"(SELECT {key} FROM {key}s)" for key in keys)
    grouped = f"SELECT {', '.join(keys)}, {values} FROM ({patients}) GROUP BY ALL"
    return f"(SELECT {', '.join(keys)}, {zeros} FROM {listed} LEFT JOIN ({grouped}) USING ({', '.join(keys)}))"
