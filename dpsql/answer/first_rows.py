"""Groups of a join or a subquery that the query writes, of which the rows are read once if they are few.

Sizes of such rows, by which a formulation is chosen, may take as long as the rows themselves: a limit stops no join
that filters most rows away. So the first rows are held in a temporary table, with all that the statement reads of
them. If there are no more, the statement reads the table. It has one result in either case.
"""

from __future__ import annotations

import contextlib

import pyarrow as pa

from dpsql.answer.formulation import MOST_FIRST_ROWS, choose_formulation
from dpsql.bound.aggregation import FIRST_ROWS, approximate_sizes_sql, first_rows_sql
from dpsql.bound.formulations import Formulation, Sizes, chooses_groups
from dpsql.bound.statement import Bounded
from dpsql.engine import Engine, ExactTable, seconds_left
from dpsql.engine.connection import Cursor
from dpsql.errors import EngineError
from dpsql.model.frame import PRESENCE


def read_with_first_rows(
    bounded: Bounded, salt: bytes, engine: Engine, listed_keys: pa.Table | None, deadline: float | None
) -> ExactTable:
    """Return the exact groups of a statement, from its first rows alone if there are no more.

    The temporary table ends with the transaction.

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
    asked = (PRESENCE, *(one for one in bounded.statistics if one != PRESENCE))
    first = first_rows_sql(bounded.frame, asked, salt, MOST_FIRST_ROWS)

    def hold(cursor: Cursor) -> tuple[int, Sizes]:
        cursor.rows(f"CREATE TEMP TABLE {FIRST_ROWS} AS {first}")
        ((rows,),) = cursor.rows(f"SELECT count(*) FROM temp.main.{FIRST_ROWS}")
        (sizes,) = cursor.rows(approximate_sizes_sql(frame, salt, held_rows=True))
        return rows, Sizes(*sizes)

    formulation: Formulation = "groups_first"
    # rows are cut by windows, and DuckDB 2.0 never ends where a join of windows is read up to a limit
    if chooses_groups(frame) and not (frame.rows_sql.cuts or frame.rows_sql.single):
        # what fails here may succeed without the table, which takes memory
        with contextlib.suppress(EngineError), engine.transaction(seconds_left(deadline)) as transaction:
            rows, sizes = transaction.run(hold, listed_keys=listed_keys, timeout_seconds=seconds_left(deadline))
            formulation = choose_formulation(bounded, salt, engine, listed_keys, deadline, sizes)
            if rows < MOST_FIRST_ROWS:
                sql = bounded.sql(salt, formulation, held_rows=True)
                found = transaction.run(
                    lambda cursor: cursor.table(sql), listed_keys=listed_keys, timeout_seconds=seconds_left(deadline)
                )
                return ExactTable(found)
    return engine.aggregate_units(
        (), lambda _: bounded.sql(salt, formulation), listed_keys=listed_keys, timeout_seconds=seconds_left(deadline)
    )
