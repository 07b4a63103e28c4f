"""The result that a reader gets: a noisy table, materialised once, and its receipt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import duckdb
import pyarrow as pa

from dpsql.pictures.charts import draw_bars
from dpsql.pictures.tables import MOST_ROWS, html_table
from dpsql.receipts.column_types import duckdb_type
from dpsql.receipts.layout import (
    HUGEINT,
    Layout,
    bars_of,
    has_computed_numbers,
    readable,
    table_columns,
    unknown_domains,
    values_of,
)
from dpsql.receipts.left_out_words import light_bars
from dpsql.receipts.receipt import Receipt

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from matplotlib.axes import Axes

    from dpsql.receipts.printed_table import PrintedTable
    from dpsql.receipts.screen import Standing


class Result:
    """Table that was computed once: reading it again costs nothing and changes nothing.

    It is read as a result of DuckDB is: ``fetchone``, ``fetchmany`` and ``fetchall`` take rows one after the other, and
    after ``fetchall`` they begin again. It is also a sequence of rows: ``len``, ``result[0]``, ``for row in result``.

    Attributes:
        receipt: of a private answer.

    """

    def __init__(
        self,
        table: pa.Table,
        receipt: Receipt | None = None,
        layout: Layout | Callable[[], Layout] | None = None,
        standing: Standing | Callable[[], Standing | None] | None = None,
    ) -> None:
        self._table = table
        self._fetched = 0
        self.receipt = receipt
        self._layout = layout
        self._standing = standing

    @cached_property
    def layout(self) -> Layout | None:
        """Meaning of the columns of a private answer; None for a table that is looked up or computed from an answer."""
        return self._layout() if callable(self._layout) else self._layout

    @property
    def standing(self) -> Standing | None:
        """Budget of the unit now; None if it cannot be looked up."""
        return self._standing() if callable(self._standing) else self._standing

    def __getstate__(self) -> dict[str, Any]:
        # what is handed on holds layout and budget, and nothing of the plan and the state that they are read from
        return self.__dict__ | {"_layout": self.layout, "_standing": self.standing}

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return [str(name) for name in self._table.column_names]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, number of columns."""
        return len(self), len(self.columns)

    @property
    def description(self) -> list[tuple[str, str, None, None, None, None, None]]:
        """Columns as PEP 249 has them: name, DuckDB type, and five values that are None."""
        return [(one.name, duckdb_type(one.type), *(None,) * 5) for one in self._table.schema]

    def __len__(self) -> int:
        return int(self._table.num_rows)

    # a row is written out everywhere: through an alias of it, mypy finds no type for dict(result.fetchall())
    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._rows)

    @overload
    def __getitem__(self, place: int) -> tuple[Any, ...]: ...

    @overload
    def __getitem__(self, place: slice) -> list[tuple[Any, ...]]: ...

    def __getitem__(self, place: int | slice) -> tuple[Any, ...] | list[tuple[Any, ...]]:
        """Return one row by its number, or a list of rows by a slice."""
        return self._rows[place]

    def arrow(self) -> pa.Table:
        """Return the table as Arrow."""
        return self._table

    def df(self) -> pd.DataFrame:
        """Return the table as a pandas DataFrame; dates that Python cannot hold become text."""
        # as DuckDB has it: pandas has no whole numbers of 128 bits
        whole = [column.cast(pa.float64()) if column.type == HUGEINT else column for column in self._table.columns]
        columns = [readable(column) for column in whole]
        frame: pd.DataFrame = pa.table(columns, self._table.column_names).to_pandas()
        return frame

    fetchdf = df
    to_df = df
    fetch_arrow_table = arrow
    to_arrow_table = arrow

    def pl(self) -> pl.DataFrame:
        """Return the table as a polars DataFrame (polars must be installed)."""
        import polars as pl  # noqa: PLC0415 — optional, so imported where it is used

        frame = pl.from_arrow(self._table)
        assert isinstance(frame, pl.DataFrame)  # noqa: S101 — a table never becomes a Series
        return frame

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row as a tuple, or None after the last row; dates that Python cannot hold become text."""
        row = self.fetchmany(1)
        return row[0] if row else None

    def fetchmany(self, size: int = 1) -> list[tuple[Any, ...]]:
        """Return the next rows, at most ``size`` of them; an empty list after the last row."""
        start = self._fetched
        self._fetched = min(start + max(size, 0), len(self))
        return self._rows[start : self._fetched]

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows that were not fetched yet; the next fetch begins again at the first row."""
        start, self._fetched = self._fetched, 0
        return self._rows[start:]

    @cached_property
    def _rows(self) -> list[tuple[Any, ...]]:
        """Return all rows, read once: the whole column decides if its dates become text."""
        return list(zip(*map(values_of, self._table.columns), strict=True))

    def to_parquet(self, path: str | Path) -> None:
        """Write the table as one Parquet file."""
        with duckdb.connect(":memory:") as connection:
            connection.from_arrow(self._table).write_parquet(str(path))

    def show(self, *, intervals: bool = True) -> None:
        """Print the table, and below it at most four lines on error, bounds, price and keys.

        Args:
            intervals: whether each number has its 95 % interval beside it.

        """
        print(self.printed(intervals=intervals), end="")  # noqa: T201 — printing is what this method is for

    def printed(self, *, intervals: bool = True, receipt_at: str = "answer.receipt") -> str:
        """Return the text that `show` prints: numbers are rounded to what their intervals know.

        Numbers of a column that is too low, because bounds leave out rows, are printed as ``≥ 630 ± 19``.

        Args:
            intervals: whether each number has its 95 % interval beside it.
            receipt_at: where the reader finds the receipt.

        """
        from dpsql.receipts.printed_table import print_table  # noqa: PLC0415 — few answers are printed

        printed = print_table(self._table, self.layout, intervals=intervals, too_low=self._too_low)
        return "".join([printed.box, *(f"{line}\n" for line in self._lines(printed, receipt_at))])

    def markdown(self, *, receipt_at: str = "answer.receipt") -> str:
        """Return the answer as a table in Markdown with all rows, and below it the lines that `show` prints.

        Numbers are rounded as `show` does it, and have their 95 % intervals beside them.

        Args:
            receipt_at: where the reader finds the receipt.

        """
        from dpsql.receipts.printed_table import markdown_table  # noqa: PLC0415 — few answers are printed

        printed = markdown_table(self._table, self.layout, self._too_low)
        lines = self._lines(printed, receipt_at)
        return "\n".join([printed.box, "```text", *lines, "```", ""]) if lines else printed.box

    def lines_below(self, *, receipt_at: str = "answer.receipt", has_ends: bool = False) -> list[str]:
        """Return the lines that stand below the table of an answer, for a table that is drawn by others.

        Args:
            receipt_at: where the reader finds the receipt.
            has_ends: whether the table shows the ends of intervals beside the numbers.

        """
        from dpsql.receipts.printed_table import PrintedTable  # noqa: PLC0415 — few answers are printed

        return self._lines(PrintedTable("", len(self), has_ends=has_ends), receipt_at)

    def _lines(self, printed: PrintedTable, receipt_at: str, digits: int = 4) -> list[str]:
        """Return the lines below a table."""
        if not self.receipt:
            return []
        from dpsql.receipts.screen import Screen  # noqa: PLC0415 — few answers are printed

        names, unknown = self._table.column_names, unknown_domains(self._table, self.layout)
        others = has_computed_numbers(self._table, self.layout, self.receipt.columns)
        return Screen(self.receipt, printed, unknown, self.standing, receipt_at, digits, others, names).lines()

    @property
    def _too_low(self) -> frozenset[str]:
        """Return the columns whose numbers are lower ends."""
        return self.receipt.too_low_columns if self.receipt else frozenset()

    def __str__(self) -> str:
        return self.printed()

    def __repr__(self) -> str:
        return str(self)

    def plot(self, column: str | None = None, *, ax: Axes | None = None, rows: int = 40) -> Axes:
        """Draw one column: a bar a group with its 95 % interval; of the count of units also the shaded threshold.

        If the numbers are too low, a light bar behind each reaches to the estimate of the whole number.

        Above the picture stands what is drawn, and what of the answer is not; then the lines that `show` prints.

        Args:
            column: its name; by default the first number that is no key.
            ax: where to draw; by default a figure of its own.
            rows: how many groups, from the first on.

        Raises:
            MissingPackageError: matplotlib is not installed (``pip install 'dpsql[plot]'``).
            SchemaError: there is no such column, or it holds no numbers.

        """
        from dpsql.receipts.printed_table import print_table  # noqa: PLC0415 — few answers are printed
        from dpsql.receipts.screen import Part, head_width  # noqa: PLC0415 — few answers are printed

        threshold = self.receipt.threshold if self.receipt else None
        bars = bars_of(self._table, self.layout, threshold, column, rows)
        if self.receipt and (found := self.receipt.too_low_of(bars.value_name)):
            told = [f"{line}; {light_bars(found)}" for line in bars.lines]
            bars = replace(bars, whole=found.estimated(bars.values), lines=told)
        printed = print_table(self._table, self.layout, intervals=True)
        lines = self._lines(printed, "answer.receipt", digits=3)
        drawn = Part("drawn", bars.lines, most=MOST_ROWS).lines(head_width(lines))
        return draw_bars(replace(bars, lines=(*drawn, *lines)), ax)

    def _repr_html_(self) -> str:
        """Return the answer for notebooks: intervals beside the numbers, a folded receipt, and every text escaped."""
        shown = self._table.slice(0, MOST_ROWS)
        columns = table_columns(shown, self.layout, self._too_low)
        if not self.receipt:
            return html_table(columns, len(self))
        lines = self.lines_below(has_ends=any(column.intervals is not None for column in columns))
        return html_table(columns, len(self), lines, "answer.receipt", str(self.receipt))
