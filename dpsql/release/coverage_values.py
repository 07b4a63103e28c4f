"""Exact values of coverage: units by place, from the query that reads the numbers, or from one of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.bound.coverage import PLACES
from dpsql.bound.statement import Bounded
from dpsql.engine import Engine
from dpsql.model.frame import Statistic
from dpsql.state import to_numpy

Places = dict[Statistic, npt.NDArray[np.int64]]


def read_coverage(
    bounded: Bounded,
    salt: bytes,
    engine: Engine,
    *,
    listed_keys: pa.Table | None,
    timeout_seconds: float | None,
) -> Places:
    """Return the number of units in each place, of a query that reads nothing else.

    Raises:
        EngineError: the engine failed or ran out of time.

    """
    exact = engine.aggregate_units(
        bounded.frame.rows_sql.stored_unit,
        lambda has_one_row: bounded.sql(salt, "one_row" if has_one_row else "groups_first"),
        listed_keys=listed_keys,
        timeout_seconds=timeout_seconds,
    ).reveal()
    return _places_of(bounded.coverage, exact)


def split_coverage(coverage: Sequence[Statistic], exact: pa.Table) -> tuple[pa.Table, Places]:
    """Return the groups of ``one_pass_sql``, and the number of units in each place."""
    is_group = pc.is_null(exact.column("measure"))
    places = _places_of(coverage, exact.filter(pc.invert(is_group)))
    return exact.filter(is_group).drop_columns(["measure", "place"]), places


def _places_of(coverage: Sequence[Statistic], exact: pa.Table) -> Places:
    measures, places, units = (to_numpy(exact.column(name)) for name in ("measure", "place", "units"))
    counts = np.zeros((len(coverage), PLACES), dtype=np.int64)
    counts[measures - 1, places] = units
    return dict(zip(coverage, counts, strict=True))
