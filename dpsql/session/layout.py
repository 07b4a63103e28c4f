"""What the columns of an answer are, beside the answer itself: keys, and the intervals of its numbers."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from dpsql.query.dialect import quote
from dpsql.query.frame import PRESENCE
from dpsql.query.private_query import PrivateQuery


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What the columns of an answer are; as public as the answer.

    Attributes:
        keys: names of the columns that tell the groups apart.
        is_cut: whether groups are shown by one threshold, the receipt's, on their noisy count of units.
        units: the column with that count; None where there is none.
        ends: of each column ``name`` that is one aggregate, the ends of its 95 % intervals, as columns ``low name`` and
            ``high name``; what ``dp_interval_low`` and ``dp_interval_high`` give.

    """

    keys: tuple[str, ...]
    is_cut: bool
    units: str | None
    ends: pa.Table

    def interval(self, name: str) -> tuple[pa.ChunkedArray, pa.ChunkedArray] | None:
        """The ends of the intervals of a column."""
        if f"low {name}" not in self.ends.column_names:
            return None
        return self.ends.column(f"low {name}"), self.ends.column(f"high {name}")


def laid_out(query: PrivateQuery, finished: pa.Table) -> tuple[pa.Table, Layout]:
    """The answer, and its layout, from what `finish_sql` gave: the answer's columns, then the ends of the intervals."""
    columns = query.finish.columns
    names = [column.name for column in columns]
    table = finished.select(list(range(len(columns))))
    keys = {quote(f"key_{i}") for i in range(len(query.keys))}
    numbered = [column.name for column in columns if column.estimate is not None]
    ends = finished.select(list(range(len(columns), finished.num_columns)))
    ends = ends.rename_columns([f"{end} {name}" for name in numbered for end in ("low", "high")])
    is_cut = query.grouping is None and query.buckets is None and query.frame.sparsity is None
    layout = Layout(
        keys=tuple(name for name, column in zip(names, columns, strict=True) if column.sql in keys),
        is_cut=is_cut,
        units=_units(query) if is_cut else None,
        ends=ends,
    )
    return table, layout


def _units(query: PrivateQuery) -> str | None:
    """The column that shows the count of units by which groups are shown."""
    for column in query.finish.columns:
        estimate = None if column.estimate is None else query.estimates[column.estimate]
        if estimate is None or estimate.denominator is not None or estimate.total is not None:
            continue
        linear = estimate.numerator
        if linear.centre == 1.0 and linear.statistic in (None, PRESENCE):
            return column.name
    return None
