"""Approximate sizes of the rows of a frame, by which a formulation is chosen, as one DuckDB query."""

from __future__ import annotations

from dpsql.bound.aggregation import held_source_sql, listed_sql, rows_sql, source_sql
from dpsql.model.frame import Frame

_ROWS_COUNTED = 100_000
"""About the most rows of which the sizes are counted. Counting all of them can take a fifth of the query."""
_USUAL_ROWS = 80 * _ROWS_COUNTED
"""The number of rows that is assumed if it is not known."""
_LARGEST_HASH = 2**64 - 1


def approximate_sizes_sql(frame: Frame, salt: bytes, rows: int | None, *, held_rows: bool = False) -> str:
    """Return SQL for the ``Sizes`` by which a formulation is chosen: one row of four numbers, in one pass.

    All rows of some units are counted: the more rows there are, the fewer units. The salt chooses the units, and hides
    which values move an approximate number.

    Args:
        frame: what is grouped.
        salt: as for ``bounded_sql``.
        rows: how many rows there are at most; None if that is not known.
        held_rows: as for ``bounded_sql``.

    """
    share = min(1.0, _ROWS_COUNTED / max(_USUAL_ROWS if rows is None else rows, 1))
    keys, secret = ", ".join(frame.key_columns), f"'{salt.hex()}'"
    source = held_source_sql(frame, []) if held_rows else source_sql(frame, [], salt)
    # the comparison is made at any share: where all units pass, it takes as long as where nearly all do
    return (
        f"WITH source AS ({source}),\nrows AS ({rows_sql(frame, [])})\n"
        f"SELECT count(*), approx_count_distinct(hash(unit, {secret})), approx_count_distinct(hash({keys}, {secret})), "
        f"approx_count_distinct(hash(unit, {keys}, {secret})) "
        f"FROM (SELECT * FROM {listed_sql('rows', frame)} "
        f"WHERE unit IS NOT NULL AND hash(hash(unit, {secret})) <= {min(_LARGEST_HASH, int(share * _LARGEST_HASH))})"
    )
