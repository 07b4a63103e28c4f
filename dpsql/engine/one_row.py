"""Tables of which a constraint says that no unit has two rows: read only where it says so.

The constraint is read in the transaction that reads the rows. So the rows are those that it holds of, whatever becomes
of the table meanwhile. It is a fact of the catalog, like the columns of a table, and none of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from dpsql.engine.catalog import unique_by
from dpsql.engine.connection import Cursor


def table_of_one_row(cursor: Cursor, stored_unit: Sequence[str], sql: Callable[[bool], str]) -> pa.Table | None:
    """Return the rows of a query, or None if no constraint keeps the unit column unique.

    Args:
        cursor: a cursor in no transaction.
        stored_unit: database, schema, table and column that hold the unit.
        sql: writes the query; of units with one row each, if its argument is true.

    """
    cursor.rows("BEGIN TRANSACTION")
    try:
        return cursor.table(sql(True)) if unique_by(cursor, stored_unit) else None
    finally:
        cursor.rows("ROLLBACK")
