"""A released table as HTML for notebooks: intervals beside the numbers, the receipt folded, every text escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

MOST_ROWS = 40
_STYLE = "text-align:right;font-variant-numeric:tabular-nums"
_MUTED = "color:gray;font-size:85%"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table.

    Attributes:
        name: of the column.
        values: its values.
        intervals: the ends of their 95 % intervals, if it has any.
        is_too_low: whether its numbers are shown as lower ends, with a sign before them.

    """

    name: str
    values: Sequence[object]
    intervals: Sequence[tuple[float | None, float | None]] | None = None
    is_too_low: bool = False


def html_table(
    columns: Sequence[TableColumn], count: int, lines: Sequence[str] = (), summary: str = "", details: str = ""
) -> str:
    """Render the first rows, and below them sentences and a summary that unfolds to the details.

    Args:
        columns: of one length; their first rows are enough.
        count: how many rows there are.
        lines: plain texts, each on a line of its own.
        summary: plain text; where it is empty, nothing is below.
        details: plain text.

    """
    head = "".join(f"<th>{escape(column.name)}</th>" for column in columns)
    rows = [
        "<tr>" + "".join(_cell(column, row) for column in columns) + "</tr>" for row in range(min(count, MOST_ROWS))
    ]
    if count > MOST_ROWS:
        rows.append(f'<tr><td colspan="{len(columns)}" style="{_MUTED}">… {count - MOST_ROWS:,} rows more</td></tr>')
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    fold = f"<details><summary>{escape(summary)}</summary><pre>{escape(details)}</pre></details>" if summary else ""
    below = "".join(f'<div style="{_MUTED}">{escape(line)}</div>' for line in lines)
    return f"<div>{table}{below}{fold}</div>"


def _cell(column: TableColumn, row: int) -> str:
    value = column.values[row]
    sign = "≥ " if column.is_too_low and value is not None else ""
    low, high = column.intervals[row] if column.intervals is not None else (None, None)
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        text = sign + escape(_written(value, None))
        return f'<td style="{_STYLE}">{text}</td>' if _is_number(value) else f"<td>{text}</td>"
    digits = digits_of((high - low) / 2)
    ends = f"{low:,.{digits}f} … {high:,.{digits}f}"
    number = sign + escape(_written(value, digits))
    return f'<td style="{_STYLE}">{number} <span style="{_MUTED}">{escape(ends)}</span></td>'


def _is_number(value: object) -> bool:
    return hasattr(value, "__round__") and not isinstance(value, bool)


def digits_of(half_width: float) -> int:
    """Digits after the point that show two of half of an interval."""
    return max(0, min(12, 1 - math.floor(math.log10(half_width)))) if half_width > 0 else 6


def short(number: float, digits: int = 3) -> str:
    """A number with so many digits that count, and no exponent.

    >>> short(2536.36), short(18.3215), short(0.0012345), short(10.0)
    ('2,540', '18.3', '0.00123', '10')
    """
    is_whole = not math.isfinite(number) or number.is_integer()
    decimals = 0 if is_whole else max(0, digits - 1 - math.floor(math.log10(abs(number))))
    return f"{float(f'{number:.{digits}g}'):,.{decimals}f}"


def _written(value: object, digits: int | None) -> str:
    match value:
        case None:
            return "NULL"
        case bytes():
            return "".join(f"\\x{byte:02X}" for byte in value)
        case int() if not isinstance(value, bool):
            return f"{value:,}"
        case float():
            return f"{value:.10g}" if digits is None else f"{value:,.{digits}f}"
        case _:
            return str(value)
