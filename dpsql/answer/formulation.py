"""Choice of the formulation in which a bounded query runs, by approximate sizes of the data.

All formulations have one result. So the choice decides how long a query takes, and nothing that is shown.
"""

from __future__ import annotations

import contextlib
import functools

import pyarrow as pa

from dpsql.bound.aggregation import approximate_sizes_sql
from dpsql.bound.formulations import Formulation, Sizes, chooses_groups, fastest, fastest_in_the_end, fastest_of_groups
from dpsql.bound.statement import Bounded
from dpsql.engine import Engine, seconds_left
from dpsql.errors import EngineError
from dpsql.model.frame import PRESENCE

MOST_FIRST_ROWS = 500_000
"""The number of rows that are looked at first, and about the number that a part of the units has.

Counting what all rows hold can take a fifth of the query.
"""
_MOST_CHOSEN = 16
"""Up to so many groups of a unit the aggregate in C chooses them without a look at the sizes. Its state has room for
all of them, so at 64 groups it takes twice the time of a window if most units have one."""
_USUAL_PARTS = 16
"""One unit in this many is looked at if the number of rows is not known."""


def choose_formulation(
    bounded: Bounded,
    salt: bytes,
    engine: Engine,
    listed_keys: pa.Table | None,
    deadline: float | None,
    first: Sizes | None = None,
) -> Formulation:
    """Return the formulation that is fastest, or the one that fits all data if the sizes cannot be read.

    The first rows are looked at. If more rows could choose another formulation, all rows of some units are.

    Args:
        bounded: what is asked of the rows.
        salt: the salt of the frame.
        engine: reads the rows.
        listed_keys: the keys that its groups are of, if they are known before it.
        deadline: the end of the time, on the clock `time.monotonic`.
        first: sizes of the first rows, if they are known.

    """
    if bounded.kind == "covered_groups":
        if (bounded.frame.bounding.most_counted or 0) > _MOST_CHOSEN:
            return "groups_first"
        return fastest_of_groups(bounded.frame, has_native=engine.has_native)
    frame = bounded.frame.bounding.finer or bounded.frame
    # rows are cut by windows, and DuckDB 2.0 never ends where a join of windows is read up to a limit
    if not chooses_groups(frame) or frame.rows_sql.cuts or frame.rows_sql.single:
        return "groups_first"
    others = tuple(statistic for statistic in bounded.statistics if statistic != PRESENCE)
    has_native = engine.has_native
    read = functools.partial(engine.sizes, listed_keys=listed_keys)
    with contextlib.suppress(EngineError):
        stored_rows: tuple[int, ...] | None = None
        if first is None:
            stored_rows = engine.stored_rows(frame.rows_sql.relation)
            sql = approximate_sizes_sql(frame, salt, most_rows=MOST_FIRST_ROWS)
            first = Sizes(*read(sql, timeout_seconds=seconds_left(deadline), stored_rows=stored_rows))
        chosen = fastest(frame, others, first, has_native=has_native)
        if first.rows < MOST_FIRST_ROWS or chosen == fastest_in_the_end(frame, others, has_native=has_native):
            return chosen
        if stored_rows is None:
            stored_rows = engine.stored_rows(frame.rows_sql.relation)
        parts = max(1, max(stored_rows, default=_USUAL_PARTS * MOST_FIRST_ROWS) // MOST_FIRST_ROWS)
        sql = approximate_sizes_sql(frame, salt, one_in=parts)
        of_part = Sizes(*read(sql, timeout_seconds=seconds_left(deadline), stored_rows=stored_rows))
        return fastest(frame, others, of_part, has_native=has_native)
    return "groups_first"
