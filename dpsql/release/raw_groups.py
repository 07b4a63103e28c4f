"""Raw rows of units in groups, read for the curator alone: they get no noise, and nothing of them is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dpsql.bound.aggregation import bounded_sql
from dpsql.bound.raw_pairs import RawValue, key_text, raw_pairs_sql, raw_totals_sql, raw_values_sql
from dpsql.engine import Engine
from dpsql.model.frame import PRESENCE, Frame, Statistic
from dpsql.operations.dialect import quote
from dpsql.release.bound_errors import PEOPLE, ROWS, UNITS_LEFT_OUT, Pairs
from dpsql.state import to_numpy

MOST_PAIRS = 400_000
"""About the most places of (unit, group) that are read: of larger tables a part of the units is."""
_ANY_SALT = bytes(16)
"""Chooses the groups of a unit with too many. What is read under it is shown to the curator alone."""
QUANTILES = (0.0002, 0.002, 0.01, 0.05, 0.25, 0.75, 0.95, 0.99, 0.998, 0.9998)
"""Shares of the values below the quantiles that are read."""


Totals = dict[str, dict[str, float]]
"""The true number of each group, by people, rows and columns."""


@dataclass(frozen=True, slots=True)
class ValueSpread:
    """The place of the values of a column.

    Attributes:
        counted: number of values.
        low, high: the least and the largest one.
        quantiles: the values at `QUANTILES`.
        usual: the least and the largest value of units that are not left out (`UNITS_LEFT_OUT`).
        inside: share of the values within each of some bounds.
        kept: share of their absolute sum that is left if they are clamped to these bounds.

    """

    counted: int
    low: float
    high: float
    quantiles: tuple[float, ...]
    usual: tuple[float, float]
    inside: dict[tuple[float, float], float]
    kept: dict[tuple[float, float], float]


def read_rows(
    engine: Engine, sql: str, listed: pa.Table | None = None, timeout_seconds: float | None = None
) -> pa.Table:
    """Return the rows of a query on raw rows.

    Raises:
        EngineError: it failed or ran out of time; the message is constant.

    """
    return engine.aggregate(sql, listed_keys=listed, timeout_seconds=timeout_seconds).reveal()


def raw_value(column: str, statistic: Statistic, bounds: Sequence[tuple[float, float]]) -> RawValue:
    """Return a value whose sums are read, and the bounds that are compared."""
    return RawValue(column, statistic, tuple(bounds))


def count_rows(engine: Engine, relation: str, unit: str, timeout_seconds: float | None = None) -> int:
    """Return the number of the rows that have a unit."""
    sql = f"SELECT count({quote(unit)}) AS row_count FROM {relation}"
    (row,) = read_rows(engine, sql, timeout_seconds=timeout_seconds).to_pylist()
    return int(row["row_count"])


def read_pairs(
    engine: Engine,
    frame: Frame,
    values: Sequence[RawValue],
    listed: pa.Table | None,
    share: float,
) -> Pairs:
    """Return the rows of units in groups.

    Args:
        engine: where the rows are.
        frame: the rows, the unit and the keys.
        values: the columns whose sums are read.
        listed: the listed keys; None if keys are private.
        share: share of the units that is read.

    """
    table = read_rows(engine, raw_pairs_sql(frame, values, share), listed)
    encoded = table.column("group_key").combine_chunks().dictionary_encode()
    names = tuple(encoded.dictionary.to_pylist())
    counts, totals, clamped = {}, {}, {}
    for i, one in enumerate(values, start=1):
        column = one.column
        counts[column] = to_numpy(table.column(f"count_{i}")).astype(np.int64)
        totals[column] = to_numpy(table.column(f"total_{i}")).astype(np.float64)
        for j, bounds in enumerate(one.bounds):
            clamped[column, bounds] = to_numpy(table.column(f"clamped_{i}_{j}")).astype(np.float64)
    key, groups, most_rows, rows = (
        to_numpy(one).astype(np.int64)
        for one in (
            pa.chunked_array([encoded.indices]),
            *(table.column(name) for name in ("groups", "most_rows", "row_count")),
        )
    )
    empty = (listed.num_rows if listed is not None else 0) - len(names)
    return Pairs(key, groups, most_rows, rows, counts, totals, clamped, names, max(empty, 0))


def read_totals(engine: Engine, frame: Frame, values: Sequence[RawValue], listed: pa.Table | None) -> Totals:
    """Return the true numbers of all groups. The arguments are those of `read_pairs`."""
    table = read_rows(engine, raw_totals_sql(frame, values), listed)
    names = table.column("group_key").to_pylist()
    columns = {PEOPLE: "people", ROWS: "row_count"} | {
        one.column: f"total_{i}" for i, one in enumerate(values, start=1)
    }
    numbers = {name: to_numpy(table.column(column)).astype(np.float64) for name, column in columns.items()}
    return {name: dict(zip(names, of_groups.tolist(), strict=True)) for name, of_groups in numbers.items()}


def read_values(engine: Engine, frame: Frame, value: RawValue) -> ValueSpread | None:
    """Return how the values of a column lie; None if all units are left out, or there is none."""
    (row,) = read_rows(engine, raw_values_sql(frame, value, QUANTILES, UNITS_LEFT_OUT)).to_pylist()
    if not row["counted"] or row["usual_high"] is None:
        return None
    total = row["total"] or 1.0
    return ValueSpread(
        row["counted"],
        row["low"],
        row["high"],
        tuple(row["quantiles"]),
        (row["usual_low"], row["usual_high"]),
        {bounds: row[f"inside_{j}"] / row["counted"] for j, bounds in enumerate(value.bounds)},
        {bounds: min(1.0, row[f"clamped_{j}"] / total) for j, bounds in enumerate(value.bounds)},
    )


def read_bounded(
    engine: Engine, frame: Frame, statistic: Statistic | None, centre: float, listed: pa.Table
) -> dict[str, float]:
    """Return the exact number of each group under the bounds of a frame, before any noise.

    Args:
        engine: where the rows are.
        frame: what is grouped, and how units are bounded.
        statistic: of the number beside the count of units; None if it is that count.
        centre: how often the count of units is added.
        listed: the keys of the groups.

    """
    statistics = (PRESENCE, *filter(None, [statistic]))
    inner = bounded_sql(frame, statistics, _ANY_SALT, ending="held" if frame.has_private_keys else "chosen")
    sql = f"SELECT {key_text(frame)} AS group_key, * FROM ({inner})"
    table = read_rows(engine, sql, listed)
    number = centre * to_numpy(table.column("units")).astype(np.float64) * 2.0 ** frame.exact_exponent(PRESENCE)
    if statistic:
        number = number + to_numpy(table.column("stat_1")).astype(np.float64) * 2.0 ** frame.exact_exponent(statistic)
    return dict(zip(table.column("group_key").to_pylist(), number.tolist(), strict=True))
