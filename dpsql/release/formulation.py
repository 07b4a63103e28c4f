"""Choice of the formulation in which a bounded query runs, by approximate sizes of the data.

All formulations have one result. So the choice decides how long a query takes, and nothing that is shown. It follows
from thresholds that the salt of the frame draws, so no number of rows or units is known to change it.

Rows of a join or a subquery that the query writes are read once, into a temporary table. Sizes of such rows may take as
long as the rows themselves: a limit stops no join that filters most rows away. So all rows are held, with all that the
statement reads of them. The sizes are read from the table, and so are the groups. Hence the work grows by about a row
with a row, and no row is made a second time.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pyarrow as pa

from dpsql.bound.formulations import Formulation, Sizes, chooses_groups, drawn_factor, fastest_of_groups, state_bytes
from dpsql.bound.statement import Bounded
from dpsql.engine import Engine, ExactTable, seconds_left
from dpsql.errors import EngineError
from dpsql.model.frame import PRESENCE, Frame, Statistic

MOST_CHOSEN = 16
"""Up to so many groups of a unit the aggregate in C chooses them without a look at the sizes. Its state has room for
all of them, so at 64 groups it takes twice the time of a window if most units have one."""

_STATE_BYTES_PER_ROW = 64
"""The native states of all units may take this much for each row, about what the other formulations need for it."""
_FEW_ROWS = 1_000
"""With fewer rows all formulations are fast, and one serves: a single row would be a large part of all rows."""
_ROWS_PER_GROUP = 1.5
"""With fewer rows of a unit in a group a window over rows is faster than grouping them all (benchmarks/bounding.py)."""


def choose_formulation(
    bounded: Bounded,
    salt: bytes,
    engine: Engine,
    listed_keys: pa.Table | None,
    deadline: float | None,
    sizes: Sizes | None = None,
) -> Formulation:
    """Return the formulation that is fastest, or the one that fits all data if the sizes cannot be read.

    Args:
        bounded: what is asked of the rows.
        salt: the salt of the frame.
        engine: reads the rows.
        listed_keys: the keys that its groups are of, if they are known before it.
        deadline: the end of the time, on the clock `time.monotonic`.
        sizes: of the rows, if they are known.

    """
    if bounded.kind == "covered_groups":
        if (bounded.frame.bounding.most_counted or 0) > MOST_CHOSEN:
            return "groups_first"
        return fastest_of_groups(bounded.frame, has_native=engine.has_native)
    frame = bounded.frame.bounding.finer or bounded.frame
    if not chooses_groups(frame) or frame.rows_sql.cuts or frame.rows_sql.single:
        return "groups_first"
    with contextlib.suppress(EngineError):
        sizes = sizes or engine.sizes(bounded, salt, listed_keys=listed_keys, timeout_seconds=seconds_left(deadline))
        others = tuple(statistic for statistic in bounded.statistics if statistic != PRESENCE)
        # the text of the sizes names all that the rows depend on
        factor = drawn_factor(salt, bounded.sizes_sql(salt, None))
        return fastest(frame, others, sizes, factor, has_native=engine.has_native)
    return "groups_first"


def fastest(
    frame: Frame, others: tuple[Statistic, ...], sizes: Sizes, factor: float, *, has_native: bool
) -> Formulation:
    """Return the formulation that is about the fastest at some sizes, and needs about as little memory as any.

    Args:
        frame: the rows and keys.
        others: the statistics beside the presence count.
        sizes: of its rows, or of all rows of some units.
        factor: of the thresholds (`drawn_factor`).
        has_native: whether the library is loaded.

    """
    rows = factor * sizes.rows
    if rows < _FEW_ROWS:
        return "groups_first"
    if has_native:
        unit_bytes = state_bytes(frame, list(enumerate(others)))
        # a dictionary pays only where keys repeat
        repeats = 2 * sizes.keys <= rows
        if repeats and unit_bytes and sizes.units * unit_bytes <= rows * _STATE_BYTES_PER_ROW:
            return "native"
    return "rows_first" if rows < _ROWS_PER_GROUP * sizes.pairs else "groups_first"


def read_held_rows(
    bounded: Bounded, salt: bytes, engine: Engine, listed_keys: pa.Table | None, deadline: float | None
) -> ExactTable:
    """Return the exact groups of a statement, over its rows in a temporary table.

    The table ends with the transaction. DuckDB moves it to disk if it does not fit in memory.

    Args:
        bounded: what is asked of the rows; groups without coverage.
        salt: the salt of the frame.
        engine: reads the rows.
        listed_keys: the keys that its groups are of, if they are known before it.
        deadline: the end of the time, on the clock `time.monotonic`.

    Raises:
        EngineError: it failed or ran out of time; the message is constant.

    """
    frame = bounded.frame.bounding.finer or bounded.frame
    # rows that are cut by windows are not held: their windows are most of the work
    if chooses_groups(frame) and not (frame.rows_sql.cuts or frame.rows_sql.single):
        # what fails here may succeed without the table, which takes memory and disk
        with contextlib.suppress(EngineError), engine.transaction(seconds_left(deadline)) as transaction:
            sizes = transaction.make_rows(
                bounded, salt, listed_keys=listed_keys, timeout_seconds=seconds_left(deadline)
            )
            formulation = choose_formulation(bounded, salt, engine, listed_keys, deadline, sizes)
            return transaction.exact(
                replace(bounded, held_rows=True),
                salt,
                formulation,
                listed_keys=listed_keys,
                timeout_seconds=seconds_left(deadline),
            )
    return engine.exact(bounded, salt, groups_first, listed_keys=listed_keys, timeout_seconds=seconds_left(deadline))


def groups_first() -> Formulation:
    """Return the formulation that fits all data."""
    return "groups_first"
