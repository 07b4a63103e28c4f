"""A table as it is printed: a box, in which each number has its 95 % interval beside it."""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

import duckdb
import pyarrow as pa

from dpsql.pictures.tables import digits_of
from dpsql.receipts.layout import Layout, rounded
from dpsql.state import texts_to_arrow

Number: TypeAlias = int | float | Decimal

_WIDTH = 240
"""Widest box in characters: a sentence of a plan is shown whole."""
_MOST_ROWS = 40
"""The most rows that a box prints: the first and the last half of them."""
_NULL = "NULL"
_TYPES = 2
"""Line of a box that holds the types of its columns."""
_ROUNDING = 1e-9
"""Part of a last digit by which ends may lie inside the exact ones: they are computed with rounding."""
_MUCH = 100.0
"""Half widths of so many last digits are not widened for the rounding of the number: half of a digit is too little."""


@dataclass(frozen=True, slots=True)
class PrintedTable:
    """A box and the ways in which it shows 95 % intervals.

    Attributes:
        box: the lines of the table.
        rows: number of rows of the answer.
        has_half_widths: whether a number is printed as ``630 ± 19``.
        has_ends: whether a number is printed as ``152 (130 … 173)``.
        end_columns: columns of the answer that are ends of intervals.

    """

    box: str
    rows: int
    has_half_widths: bool = False
    has_ends: bool = False
    end_columns: tuple[str, ...] = ()


def print_table(
    table: pa.Table, layout: Layout | None, *, intervals: bool, too_low: Collection[str] = ()
) -> PrintedTable:
    """Return the box of a table.

    Args:
        table: the answer.
        layout: the intervals of its columns; None if it has none.
        intervals: whether to write them beside the numbers.
        too_low: columns whose numbers are written as lower ends, ``≥ 630 ± 19``.

    """
    shown = rounded(table, layout)
    low = {name: _plain_cells(shown.column(name)) for name in shown.column_names if name in too_low}
    if layout is None:
        return PrintedTable(_box_of_texts(shown, _as_least(low, low)), len(table))
    found = {name: ends for name in table.column_names if (ends := layout.interval(name))}
    end_columns = {name: _end_columns(table, ends) for name, ends in found.items()}
    named = tuple(column for columns in end_columns.values() for column in columns)
    beside = {name: ends for name, ends in found.items() if intervals and not end_columns[name]}
    cells = {name: _cells(shown.column(name), *ends, _printed_rows(len(table))) for name, ends in beside.items()}
    texts = [text for column in cells.values() for text in column.values()]
    return PrintedTable(
        _box_of_texts(shown, _as_least(low | {name: one for name, one in cells.items() if one}, low)),
        len(table),
        has_half_widths=any("±" in text for text in texts),
        has_ends=any("…" in text for text in texts),
        end_columns=named,
    )


def markdown_table(table: pa.Table, layout: Layout | None, too_low: Collection[str] = ()) -> PrintedTable:
    """Return all rows as a table in Markdown, with the same texts as in a box.

    Args:
        table: the answer.
        layout: the intervals of its columns; None if it has none.
        too_low: columns whose numbers are written as lower ends, ``≥ 630 ± 19``.

    """
    shown, rows = rounded(table, layout), range(len(table))
    found = {name: ends for name in table.column_names if layout and (ends := layout.interval(name))}
    end_columns = {name: _end_columns(table, ends) for name, ends in found.items()}
    beside = {name: ends for name, ends in found.items() if not end_columns[name]}
    cells = {name: texts for name, ends in beside.items() if (texts := _cells(shown.column(name), *ends, rows))}
    columns = {name: [texts[row] for row in rows] for name, texts in cells.items()}
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        others = connection.from_arrow(shown).project("CAST(COLUMNS(*) AS VARCHAR)").fetchall()
    for place, name in enumerate(shown.column_names):
        plain = [_NULL if row[place] is None else row[place] for row in others]
        texts = dict(enumerate(columns.get(name, plain)))
        columns[name] = list(_as_least({name: texts}, too_low)[name].values())
    lines = [list(shown.column_names), ["---:" if _is_right(kind) else "---" for kind in shown.schema.types]]
    lines += map(list, zip(*(columns[name] for name in shown.column_names), strict=True))
    written = [text for texts in cells.values() for text in texts.values()]
    return PrintedTable(
        "".join(f"| {' | '.join(map(_in_markdown, line))} |\n" for line in lines),
        len(table),
        has_half_widths=any("±" in text for text in written),
        has_ends=any("…" in text for text in written),
        end_columns=tuple(column for named in end_columns.values() for column in named),
    )


def _is_right(kind: pa.DataType) -> bool:
    """Check that a column of a type is aligned to the right."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _in_markdown(text: str) -> str:
    r"""Return a text as a cell of a table, in which no letter of it is a mark.

    >>> _in_markdown("a|b\n<c>")
    'a\\|b<br>&lt;c>'
    """
    escaped = re.sub(r"([\\`*_\[\]|~])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))
    return "<br>".join(escaped.splitlines()) or " "


def _end_columns(table: pa.Table, ends: tuple[pa.ChunkedArray, pa.ChunkedArray]) -> list[str]:
    """Return the columns that are ends of an interval; none if only one of its ends is a column."""
    columns = [[name for name in table.column_names if end.equals(table.column(name))] for end in ends]
    return [name for name in table.column_names if any(name in one for one in columns)] if all(columns) else []


def _box(table: pa.Table) -> str:
    """Return a table as DuckDB draws it."""
    box = io.StringIO()
    with duckdb.connect(":memory:") as connection, contextlib.redirect_stdout(box):
        connection.from_arrow(table).show(max_width=_WIDTH, max_rows=_MOST_ROWS)
    return box.getvalue()


def _box_of_texts(table: pa.Table, cells: dict[str, dict[int, str]]) -> str:
    """Return the box of a table with texts in place of numbers, under the types of the numbers.

    Args:
        table: the answer.
        cells: texts by the number of their row, for each column that has texts.

    """
    if not any(cells.values()):
        return _box(table)
    types = [_type_word(kind) for kind in table.schema.types]
    places = {table.column_names.index(name): texts for name, texts in cells.items()}
    for place, texts in places.items():
        width = max([len(types[place]), *map(len, texts.values())])
        # rows in the middle of a long table are not printed
        column = texts_to_arrow([texts.get(row, "").rjust(width) for row in range(table.num_rows)])
        table = table.set_column(place, table.column_names[place], column)
    lines = _box(table).split("\n")
    words = lines[_TYPES].split("│")
    # a box that is too wide leaves out columns
    if len(words) == len(types) + 2:
        for place in places:
            words[place + 1] = f"{types[place]:^{len(words[place + 1])}}"
        lines[_TYPES] = "│".join(words)
    return "\n".join(lines)


def _type_word(kind: pa.DataType) -> str:
    """Return the type of a column of numbers as DuckDB calls it in a box.

    >>> _type_word(pa.int64()), _type_word(pa.decimal128(38, 2))
    ('int64', 'decimal(38,2)')
    """
    return str(kind).replace("decimal128", "decimal").replace(", ", ",")


def _cells(column: pa.ChunkedArray, low: pa.ChunkedArray, high: pa.ChunkedArray, rows: Iterable[int]) -> dict[int, str]:
    """Return the numbers of a column with their intervals, by the numbers of the rows that are printed.

    A column without any finite interval has no texts.
    """
    values = {row: column[row].as_py() for row in rows}
    ends = {row: (low[row].as_py(), high[row].as_py()) for row in values}
    known = [row for row in values if values[row] is not None and _is_finite(*ends[row])]
    if not known:
        return {}
    texts = {row: _NULL if value is None else f"{value:,}" for row, value in values.items()}
    has_centres = all(_has_centre(values[row], *ends[row]) for row in known)
    write = _with_half_width if has_centres else _with_ends
    return texts | {row: write(values[row], *ends[row]) for row in known}


def _plain_cells(column: pa.ChunkedArray) -> dict[int, str]:
    """Return the numbers of a column without intervals, by the number of their row; only of rows that are printed."""
    values = {row: column[row].as_py() for row in _printed_rows(len(column))}
    return {row: _NULL if value is None else f"{value:,}" for row, value in values.items()}


def _as_least(cells: dict[str, dict[int, str]], too_low: Collection[str]) -> dict[str, dict[int, str]]:
    """Return cells in which the numbers of some columns are lower ends; NULL is none."""
    return {
        name: {row: text if text == _NULL or name not in too_low else f"≥ {text}" for row, text in texts.items()}
        for name, texts in cells.items()
    }


def _printed_rows(count: int) -> Iterator[int]:
    """Yield the numbers of the rows that a box can show."""
    yield from range(min(count, _MOST_ROWS))
    yield from range(max(_MOST_ROWS, count - _MOST_ROWS), count)


def _is_finite(low: float | None, high: float | None) -> bool:
    """Check that an interval has two ends that are numbers."""
    return low is not None and high is not None and math.isfinite(low) and math.isfinite(high)


def _has_centre(value: Number, low: float, high: float) -> bool:
    """Check that a number is in the middle of its interval, up to its rounding."""
    place = _last_place(low, high)
    return abs((high - float(value)) - (float(value) - low)) <= (max(1.0, place) if isinstance(value, int) else place)


def _with_half_width(value: Number, low: float, high: float) -> str:
    """Return a number with half of its interval; both together cover the exact interval.

    Of a whole number they cover all whole numbers of the exact interval, whose centre is rounded to it. An interval of
    `_MUCH` last digits or more is covered but for half of a digit.

    >>> _with_half_width(630, 611.3, 648.7), _with_half_width(0.5, 0.4901, 0.5099)
    ('630 ± 19', '0.5000 ± 0.0099')
    """
    digits, unit = digits_of((high - low) / 2.0), _last_place(low, high)
    number = _number(value, digits)
    is_exact = isinstance(value, int) or high - low >= 2.0 * _MUCH * unit
    centre = (low + high) / 2.0 if is_exact else float(number.replace(",", ""))
    half = math.ceil(max(high - centre, centre - low) / unit - _ROUNDING) * unit
    return f"{number} ± {half:,.{digits}f}"


def _with_ends(value: Number, low: float, high: float) -> str:
    """Return a number with the ends of its interval, which are rounded outwards.

    >>> _with_ends(152.3, 130.4, 180.2)
    '152 (130 … 181)'
    """
    digits, unit = digits_of((high - low) / 2.0), _last_place(low, high)
    ends = math.floor(low / unit + _ROUNDING) * unit, math.ceil(high / unit - _ROUNDING) * unit
    return f"{_number(value, digits)} ({ends[0]:,.{digits}f} … {ends[1]:,.{digits}f})"


def _number(value: Number, digits: int) -> str:
    """Return a number with so many digits after its point; a whole number of a column of whole numbers has none."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def _last_place(low: float, high: float) -> float:
    """Return the unit of the last digit that is printed of a number with this interval."""
    return float(10.0 ** -digits_of((high - low) / 2.0))
