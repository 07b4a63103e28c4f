"""Rows of public tables: values of their columns, and how many rows agree on some columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dpsql.engine.catalog import PLACE, Catalog
from dpsql.engine.connection import Connection
from dpsql.errors import SchemaError
from dpsql.model.environment import TableSchema
from dpsql.operations.dialect import quote

MOST_COPIED = 1_000_000
MOST_BYTES = 256 * 2**20
_PIECE = 100_000
_LARGEST_BOUND = 2.0**53
_NARROWEST = 2.0**-20
"""Smallest width of bounds, as a part of the larger of them."""
_SMALLEST_WIDTH = 2.0**-60


class PublicRows(Catalog):
    """The catalog of a database, and the rows of its public tables."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._matches: dict[tuple[object, ...], tuple[object, int]] = {}

    def column_values(self, schema: TableSchema, column: str, key_type: str) -> pa.Array:
        """Return the distinct non-NULL values of a public table's column as ``key_type``, sorted."""
        with self._connection.pinned() as cursor:
            name = quote(column)
            table = cursor.table(
                f"SELECT DISTINCT TRY(CAST({name} AS {key_type})) AS key FROM {schema.relation} "
                f"WHERE TRY(CAST({name} AS {key_type})) IS NOT NULL ORDER BY key"
            )
        return table.column("key").combine_chunks()

    def distinct_rows(self, relation: str, columns: Sequence[str], conditions: Sequence[str], most: int) -> pa.Table:
        """Return the first distinct rows of expressions of public rows, in the order of their values.

        Args:
            relation: the public rows.
            columns: the expressions. The columns are called key_0, key_1, …
            conditions: those that the rows pass.
            most: number of distinct rows after which no more are returned.

        """
        keys = ", ".join(f"{sql} AS key_{place}" for place, sql in enumerate(columns))
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        order = ", ".join(f"key_{place} NULLS LAST" for place in range(len(columns)))
        with self._connection.pinned() as cursor:
            table = cursor.table(f"SELECT DISTINCT {keys} FROM {relation}{where} ORDER BY {order} LIMIT {most}")
        return table.combine_chunks()

    def copied(self, tables: Sequence[TableSchema]) -> list[pa.Table]:
        """Return the rows of public tables. The reading ends where they are too many.

        Raises:
            SchemaError: a table has more rows than `MOST_COPIED`, or all have more bytes than `MOST_BYTES`.

        """
        copies, size = [], 0
        with self._connection.pinned() as cursor:
            for schema in tables:
                pieces, rows = [], 0
                for piece in cursor.pieces(f"SELECT * FROM {schema.relation} LIMIT {MOST_COPIED + 1}", _PIECE):
                    pieces.append(piece)
                    rows += piece.num_rows
                    size += piece.nbytes
                    if rows > MOST_COPIED or size > MOST_BYTES:
                        raise SchemaError(
                            f"public tables are read beside answers if each has at most {MOST_COPIED:,} rows, and all "
                            f"of a text together at most {MOST_BYTES // 2**20} MiB.",
                            hint="Join them with private rows, or let the curator make smaller tables.",
                        )
                copies.append(pa.concat_tables(pieces))
        return copies

    def most_matches(self, schema: TableSchema, columns: Sequence[str], version: str | None) -> int:
        """Return the most rows of a public table that agree on some columns, none of them NULL; of no column, all rows.

        Counted once for a version of the table and its number of rows, as long as this engine lives: it takes a pass
        over the table, and every plan asks. Rows that change in place are counted again under a new version.
        """
        if version is None:
            return self._count_matches(schema, columns)
        tables = self._look_up(f"SELECT table_oid FROM duckdb_tables() WHERE {PLACE}", schema.catalog_name)
        # DuckDB's own estimate of the number may be newer than the rows that a transaction sees
        sizes = (tables, self._look_up(f"SELECT count(*) FROM {schema.relation}") if tables else None)
        place = (schema.catalog_name, schema.relation, tuple(sorted(columns)))
        known = self._matches.get(place)
        if known is None or known[0] != (version, sizes):
            known = ((version, sizes), self._count_matches(schema, columns))
            self._matches[place] = known
        return known[1]

    def _count_matches(self, schema: TableSchema, columns: Sequence[str]) -> int:
        if not columns:
            ((rows,),) = self._look_up(f"SELECT count(*) FROM {schema.relation} AS listed")
            return int(rows)
        names = ", ".join(quote(column) for column in columns)
        known = " AND ".join(f"{quote(column)} IS NOT NULL" for column in columns)
        ((most,),) = self._look_up(
            f"SELECT max(n) FROM (SELECT count(*) AS n FROM {schema.relation} WHERE {known} GROUP BY {names})"
        )
        return int(most or 0)

    def value_bounds(self, schema: TableSchema, column: str) -> tuple[float, float] | None:
        """Return the least and the largest finite number of a public table's column.

        Return None if there is none, or if numbers are too large, or too far from 0 for their width, to bound a sum.
        """
        number = f"CAST({quote(column)} AS DOUBLE)"
        ((low, high),) = self._look_up(
            f"SELECT min({number}), max({number}) FROM {schema.relation} WHERE isfinite({number})"
        )
        if low is None:
            return None
        largest = max(abs(low), abs(high))
        width = (high - low) or largest
        is_usual = largest <= _LARGEST_BOUND and width >= max(largest * _NARROWEST, _SMALLEST_WIDTH)
        return (float(low), float(high)) if is_usual or largest == 0.0 else None
