"""The meaning of the columns of an answer: keys, intervals of numbers, and bars of them.

Of a released table nothing is looked at but the table and what came with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.errors import SchemaError
from dpsql.model.estimates import IN_PLACE_OF, UNITS, BoundedValue
from dpsql.model.private_query import Buckets, PrivateQuery
from dpsql.model.query_kinds import GroupingSets
from dpsql.operations.dialect import quote
from dpsql.pictures.charts import Bars
from dpsql.pictures.tables import TableColumn, digits_of, short
from dpsql.receipts.phrases import interval_of, listed
from dpsql.receipts.receipt import ColumnReceipt
from dpsql.state import to_arrow, to_numpy

_WHOLE = 1.0 - 1e-9
"""Part of a domain from which on an interval covers all of it: its ends are computed with rounding."""
_MOST_NAMED = 6
"""Largest number of columns that a picture names as not drawn."""


HUGEINT = pa.decimal128(38, 0)
"""Arrow's type of a HUGEINT."""


def readable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column, or its text if it holds an infinite date or one outside the years 1 to 9999."""
    innermost = column.type
    while pa.types.is_list(innermost) or pa.types.is_fixed_size_list(innermost):
        innermost = innermost.value_type
    if not pa.types.is_temporal(innermost):
        return column
    try:
        column.to_pylist()
        column.to_pandas()
    except (OverflowError, ValueError, NotImplementedError):
        with duckdb.connect(":memory:") as connection:
            text = connection.from_arrow(pa.table({"value": column})).project("CAST(value AS VARCHAR) AS value")
            return text.to_arrow_table().column("value")
    return column


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as Python has them: a HUGEINT is an int, a MAP a dict."""
    values: list[Any] = readable(column).to_pylist(maps_as_pydicts="strict")
    return values if column.type != HUGEINT else [one if one is None else int(one) for one in values]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Meaning of the columns of an answer; as public as the answer.

    Attributes:
        keys: names of the columns that tell the groups apart.
        is_cut: whether groups are shown by one threshold, the receipt's, on their noisy count of units.
        units: the column with that count; None where there is none.
        ends: of each column ``name`` that is one aggregate, the ends of its 95 % intervals, as columns ``low name`` and
            ``high name``; what ``dp_interval_low`` and ``dp_interval_high`` give. A column ``unknown name`` is true in
            rows whose interval covers the whole domain of an average, a spread or a quantile. A column ``within name``
            has the truth values of ``dp_within_target(name)``, if it is a column of the answer.
        domains: these domains in words, by the names of their columns.
        has_others: whether it has columns of any type that are computed from released numbers.

    """

    keys: tuple[str, ...]
    is_cut: bool
    units: str | None
    ends: pa.Table
    domains: Mapping[str, str] = field(default_factory=dict)
    has_others: bool = False

    def unknown(self, name: str, rows: int) -> pa.ChunkedArray:
        """Return in which of the first rows a column that has a domain says nothing."""
        return self.ends.column(f"unknown {name}").slice(0, rows)

    def within(self, name: str, rows: int) -> list[bool | None] | None:
        """Return the truth values of a column about its target in the first rows, or None if the answer has none."""
        if f"within {name}" not in self.ends.column_names:
            return None
        found: list[bool | None] = self.ends.column(f"within {name}").slice(0, rows).to_pylist()
        return found

    def interval(self, name: str) -> tuple[pa.ChunkedArray, pa.ChunkedArray] | None:
        """Return both ends of the intervals of a column, or None if it has none."""
        if f"low {name}" not in self.ends.column_names:
            return None
        return self.ends.column(f"low {name}"), self.ends.column(f"high {name}")


def layout_of(query: PrivateQuery, finished: pa.Table) -> Layout:
    """Return the layout of an answer from the table of `finish_sql`: its columns, then the ends of intervals."""
    first, columns = query.first, query.first.finish.columns
    keys = {quote(f"key_{i}") for i in range(len(query.keys))}
    numbered = [(column.name, column.estimate) for column in columns if column.estimate is not None]
    ends = finished.select(list(range(len(columns), finished.num_columns)))
    ends = ends.rename_columns([f"{end} {name}" for name, _ in numbered for end in ("low", "high")])
    adds_up = isinstance(query, GroupingSets) or isinstance(first.groups, Buckets)
    is_cut = not (adds_up or first.frame.bounding.sparsity)
    counts = [name for name, estimate in numbered if first.estimates[estimate].value == UNITS]
    estimates = {name: first.estimates[estimate] for name, estimate in numbered}
    bounded = {name: one.value.bounds for name, one in estimates.items() if isinstance(one.value, BoundedValue)}
    unknown = {f"unknown {name}": _covering(name, bounds, ends) for name, bounds in bounded.items()}
    if first.finish.within:
        unknown |= _truth_values(numbered, query, finished)
    # times are drawn as no bars
    ends = ends.select([end.name for end in ends.schema if pa.types.is_floating(end.type)])
    return Layout(
        keys=tuple(column.name for column in columns if column.sql in keys),
        is_cut=is_cut,
        units=counts[0] if is_cut and counts else None,
        ends=pa.table([*ends.columns, *unknown.values()], [*ends.column_names, *unknown]),
        domains={
            name: interval_of(bounds, are_times=estimates[name].type != "DOUBLE") for name, bounds in bounded.items()
        },
    )


def _truth_values(
    numbered: Sequence[tuple[str, int]], query: PrivateQuery, finished: pa.Table
) -> dict[str, pa.ChunkedArray]:
    """Return the columns of the answer that are ``dp_within_target`` of another one, by the name of that one.

    Args:
        numbered: columns that are one aggregate, each with the number of its estimate.
        query: the question.
        finished: the table of `finish_sql`.

    """
    places = {column.sql: place for place, column in enumerate(query.first.finish.columns)}
    truths = {name: places.get(quote(f"agg_{estimate}_within")) for name, estimate in numbered}
    return {f"within {name}": finished.column(place) for name, place in truths.items() if place is not None}


def _covering(name: str, bounds: tuple[float, float], ends: pa.Table) -> pa.Array:
    """Return in which rows the interval of a column covers all of its bounds, up to rounding.

    Bounds without a width say all of the value.
    """
    low, high = (_seconds(ends.column(f"{end} {name}")) for end in ("low", "high"))
    width = bounds[1] - bounds[0]
    covers = (width > 0.0) & (high - low >= _WHOLE * width)
    return to_arrow(covers.astype(np.int8)).cast(pa.bool_())


def passed_domain(
    sources: Sequence[tuple[Layout | None, str]], low: pa.ChunkedArray, high: pa.ChunkedArray
) -> tuple[str, pa.Array] | None:
    """Return the domain of numbers of other answers, and in which rows their intervals cover it.

    Args:
        sources: layouts of the answers that a column shows numbers of, each with its name there.
        low: the ends of the intervals of the column.
        high: likewise.

    """
    domains, covering = set[str | None](), set[tuple[object, object]]()
    for layout, name in sources:
        domains.add(layout.domains.get(name) if layout else None)
        if layout and name in layout.domains and (ends := layout.interval(name)):
            unknown = layout.unknown(name, layout.ends.num_rows)
            rows = zip(*(column.to_pylist() for column in (*ends, unknown)), strict=True)
            covering |= {(begin, end) for begin, end, is_unknown in rows if is_unknown}
    (domain, *others) = domains
    if domain is None or others:
        return None
    return domain, pa.array([pair in covering for pair in zip(low.to_pylist(), high.to_pylist(), strict=True)])


def told(table: pa.Table, layout: Layout | None) -> pa.Table:
    """Return the table with NULL in place of averages, spreads and quantiles that say nothing."""
    if layout is None:
        return table
    for name in layout.domains:
        place = table.column_names.index(name)
        column = table.column(place)
        values = pc.if_else(layout.unknown(name, table.num_rows), pa.nulls(1, column.type)[0], column)
        table = table.set_column(place, table.field(place), values)
    return table


def unknown_domains(table: pa.Table, layout: Layout | None) -> dict[str, str]:
    """Return the columns of the table in which `told` has put NULL, with their domains in words."""
    if layout is None:
        return {}
    return {
        name: domain
        for name, domain in layout.domains.items()
        if name in table.column_names and pc.any(layout.unknown(name, table.num_rows)).as_py()
    }


def has_computed_numbers(table: pa.Table, layout: Layout | None, columns: Sequence[ColumnReceipt]) -> bool:
    """Return whether an answer has a number, a time or a list of numbers that is no key and no aggregate by itself.

    A quantile in place of an extreme is none.

    Args:
        table: the answer.
        layout: what its columns are; None if it is not known. Then no number is one.
        columns: those that are one aggregate.

    """
    if layout is None:
        return False
    asked = {*layout.keys, *(one.name for one in columns if IN_PLACE_OF not in one.aggregate)}
    return layout.has_others or any(_is_measured(one.type) for one in table.schema if one.name not in asked)


def bars_of(table: pa.Table, layout: Layout | None, threshold: float | None, column: str | None, rows: int) -> Bars:
    """Return one column of an answer as bars.

    Args:
        table: the answer.
        layout: what its columns are.
        threshold: of the receipt.
        column: which one; None for the first number that is no key.
        rows: how many groups, from the first on.

    Raises:
        SchemaError: there is no such column, it holds no numbers, or no row is to be drawn.

    """
    if rows < 1:
        raise SchemaError("a picture has one row or more.", hint="Write plot(rows=40).")
    layout = layout or _layout_of(table)
    keys = layout.keys
    column = _number(table, keys) if column is None else column
    if column not in table.column_names:
        raise SchemaError(f"the answer has no column {column!r}.", hint=f"It has {', '.join(table.column_names)}.")
    if not _is_number(table.schema.field(column).type):
        raise SchemaError(f"column {column!r} holds no numbers.", hint="Name a count, a sum or an average.")
    others, count = _other_numbers(table, layout, column), table.num_rows
    table = told(table.slice(0, rows), layout)
    low, high = _ends(layout, column, table.num_rows)
    kinds = [table.schema.field(key).type for key in keys]
    values = _floats(table.column(column))
    on_axis = layout.is_cut and layout.units == column
    drawn = column if count else "nothing, because there is no group"
    drawn += f" of the first {rows} of {count:,} groups" if count > rows else ""
    drawn += ", with 95 % intervals as lines" if np.isfinite(low + values).any() else ""
    if on_axis and threshold is not None:
        drawn += f"; shaded: at most {short(threshold)}, where no group is shown"
    empty = int(np.isnan(values).sum())
    nulls = [f"{empty:,} NULL{'s' * (empty > 1)} of {column}"] if empty else []
    if not_drawn := [*others, *nulls]:
        drawn += f"; not drawn: {listed(not_drawn)}"
    return Bars(
        title=f"{column} by {', '.join(keys)}" if keys else column,
        value_name=column,
        names=_names(table, keys),
        values=values,
        low=low,
        high=high,
        threshold=threshold if on_axis else None,
        is_along=len(kinds) == 1 and (pa.types.is_temporal(kinds[0]) or _is_number(kinds[0])),
        lines=(drawn,),
    )


def _other_numbers(table: pa.Table, layout: Layout, drawn: str) -> list[str]:
    """Return the columns of numbers that a picture of one column does not show, not even as ends of its intervals.

    Of many columns, return their number in words.
    """
    ends = layout.interval(drawn) or ()
    names = [
        name
        for name, values in zip(table.column_names, table.columns, strict=True)
        if name not in (drawn, *layout.keys) and _is_number(values.type) and not any(end.equals(values) for end in ends)
    ]
    return names if len(names) <= _MOST_NAMED else [f"{len(names)} other columns"]


def table_columns(table: pa.Table, layout: Layout | None, too_low: Collection[str] = ()) -> list[TableColumn]:
    """Return all columns with the known intervals of their numbers.

    Args:
        table: the answer.
        layout: what its columns are.
        too_low: columns whose numbers are shown as lower ends.

    """
    layout = layout or _layout_of(table)
    columns, table = [], told(table, layout)
    for name, column in zip(table.column_names, table.columns, strict=True):
        ends = layout.interval(name)
        intervals = None
        if ends:
            low, high = (end.slice(0, table.num_rows).to_pylist() for end in ends)
            intervals = list(zip(low, high, strict=True))
        columns.append(TableColumn(name, values_of(column), intervals, name in too_low))
    return columns


def rounded(table: pa.Table, layout: Layout | None) -> pa.Table:
    """Return the table as it is printed: each number with two digits of the narrowest half of its intervals.

    Ends of these intervals are rounded alike. A number that says nothing is NULL. Numbers in lists have four digits.
    Other columns are as they are.
    """
    table = told(table, layout)
    ends = [] if layout is None else [(name, layout.interval(name)) for name in table.column_names]
    intervals = {name: interval for name, interval in ends if interval}
    for place, shown in enumerate(table.schema):
        if not pa.types.is_floating(shown.type):
            table = _short(table, place) if pa.types.is_list(shown.type) or shown.type == HUGEINT else table
            continue
        column = table.column(place)
        own = (
            one
            for name, one in intervals.items()
            if any(alike.equals(column) for alike in (table.column(name), *one)) or name == shown.name
        )
        low, high = (_floats(end) for end in next(own, (pa.chunked_array([], pa.float64()),) * 2))
        halves = (high - low) / 2.0
        halves = halves[np.isfinite(halves) & (halves > 0.0)]
        if halves.size:
            table = table.set_column(place, shown, pc.round(column, digits_of(float(halves.min()))))
    return table


def _short(table: pa.Table, place: int) -> pa.Table:
    """Return a table in which numbers in lists have four digits that count, and whole numbers of 128 bits have 64."""
    shown, lists = table.schema.field(place), table.column(place).to_pylist()
    if shown.type == HUGEINT:
        fits = all(one is None or abs(one) < 2**63 for one in lists)
        return table.set_column(place, shown.name, table.column(place).cast(pa.int64())) if fits else table
    if not pa.types.is_floating(shown.type.value_type):
        return table
    short_lists = [one and [value if value is None else float(f"{value:.4g}") for value in one] for one in lists]
    return table.set_column(place, shown, pa.array(short_lists, shown.type))


def _layout_of(table: pa.Table) -> Layout:
    """Return the layout of a table without one: its key is the first column without numbers, and no column has ends."""
    names = [field.name for field in table.schema if not _is_number(field.type)]
    return Layout(keys=tuple(names[:1]), is_cut=False, units=None, ends=pa.table({}))


def _number(table: pa.Table, keys: Sequence[str]) -> str:
    for column in table.schema:
        if column.name not in keys and _is_number(column.type):
            return str(column.name)
    raise SchemaError("the answer has no column of numbers to draw.")


def _names(table: pa.Table, keys: Sequence[str]) -> list[object]:
    if not keys:
        return [""] * table.num_rows
    columns: list[list[object]] = [readable(table.column(key)).to_pylist() for key in keys]
    if len(columns) == 1:
        return columns[0]
    return [" · ".join("NULL" if part is None else str(part) for part in parts) for parts in zip(*columns, strict=True)]


def _ends(layout: Layout, column: str, rows: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    ends = layout.interval(column)
    if not ends:
        return np.full(rows, np.nan), np.full(rows, np.nan)
    low, high = (_floats(end.slice(0, rows)) for end in ends)
    return low, high


def _seconds(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """Return numbers as they are, and times as seconds since 1970."""
    if pa.types.is_temporal(column.type):
        return _floats(pc.cast(pc.cast(column, pa.timestamp("us")), pa.int64())) / 1e6
    return _floats(column)


def _floats(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    return to_numpy(pc.cast(column, pa.float64(), safe=False))


def _is_measured(kind: pa.DataType) -> bool:
    return _is_number(getattr(kind, "value_type", kind)) or bool(pa.types.is_temporal(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
