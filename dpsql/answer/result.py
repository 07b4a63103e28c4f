"""What a reader gets: a noisy table, materialised once, and the receipt that says what it cost and how sure it is."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import duckdb
import pyarrow as pa

from dpsql.answer import words
from dpsql.answer.layout import Layout, bars_of, readable, rounded, table_columns, unknown_lines
from dpsql.pictures.charts import draw_bars
from dpsql.pictures.tables import MOST_ROWS, html_table, short

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from matplotlib.axes import Axes


_HIDING = ("gshm", "csh")
"""Mechanisms of private keys."""

_LEAST_DELTA = 1e-15
"""What costs less is not written out."""

_WIDTH = 240
"""Widest box, in characters: a sentence of a plan is shown whole."""


@dataclass(frozen=True, slots=True)
class ColumnReceipt:
    """The noise of one column.

    Attributes:
        name: name of the column in the result.
        aggregate: the aggregate it shows.
        bounds: public interval of what one unit adds to one group; None for averages.
        linf: most that one unit was assumed to move one group of the noised sum (after recentring).
        l2: the same over all groups of the unit, with max_groups groups.
        sigma: standard deviation of the shown value, the largest of all rows; None for averages, whose error depends on
            what is shown.
        half_width_95: half of the 95 % interval, likewise.
        lattice: step of the grid on which the noised sum lives.

    """

    name: str
    aggregate: str
    bounds: tuple[float, float] | None
    linf: float | None
    l2: float | None
    sigma: float | None
    half_width_95: float | None
    lattice: float | None


@dataclass(frozen=True, slots=True)
class CoverageReceipt:
    """Coverage of one number: noisy numbers on what bounding leaves, released and paid for like those of the answer.

    All numbers of all coverage of one answer, but for ``share``, are true together with probability 95 %.

    Attributes:
        of: ``groups``, ``rows``, or the aggregate that adds them up.
        unit: whose.
        share: estimate of the part that is left, over units up to ``size``; None where it is unknown.
        low, high: the ends of its interval.
        size: number of groups or rows, or amount, up to which a unit's is told apart.
        least_beyond, beyond: fewest and most units with more than that; what bounds keep of theirs is not known.
        part_beyond: least part that they have of all that there is.
        high_of_all: most that bounds keep of all that there is; 1 where nothing is known.
        advice: where ``low`` is less than 95 %, what to write for more, and what that costs.
        unknown: why nothing is known, and what to write to know more; else empty.

    """

    of: str
    unit: str
    share: float | None = None
    low: float = 0.0
    high: float = 1.0
    size: float = 0.0
    least_beyond: int = 0
    beyond: int = 0
    part_beyond: float = 0.0
    high_of_all: float = 1.0
    advice: str = ""
    unknown: str = ""

    def __str__(self) -> str:
        if self.unknown:
            return words.coverage_unknown(self.of, self.unknown)
        kept = words.kept_up_to(self.of, self.unit, f"{self.size:,.9g}", self.low, self.high)
        more = words.units_beyond(self.least_beyond, self.beyond, self.part_beyond) if self.beyond else ""
        return "; ".join(filter(None, [kept, more, words.kept_of_all(self.of, self.high_of_all), self.advice]))


@dataclass(frozen=True, slots=True)
class SetReceipt:
    """The receipt of one grouping set, by its keys."""

    keys: tuple[str, ...]
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a release was, what it cost, and how noisy it is; a function of policy, text and past releases.

    Attributes:
        query_hash: identity of the statistics asked for.
        table, version, unit: which data, under whose budget.
        mechanism: ``gaussian``, ``correlated_gaussian`` or ``factorised_gaussian`` (public keys), ``gshm`` or ``csh``
            (private keys behind a threshold), ``discrete_correlated_gaussian`` where the noise is discrete,
            ``keys_first`` where keys are selected by releases of their own.
        rho: zCDP level of the numbers shown, whether paid now or before; where the keys beside them stem from a release
            at a higher level, notes name it.
        epsilon, delta: what numbers and keys shown guarantee together, by the exact joint analysis or, inside a window,
            from zCDP with the delta of all its thresholds.
        charged_rho, charged_delta: what this query took from the unit's budget.
        reused: whether everything was served from stored releases.
        max_groups: most groups that one unit was assumed (and made) to touch; None where it may touch any number.
        max_keys: most keys that have a count, whatever the data are (a public list, or top-k); None for any number.
        threshold: a key is shown if its noisy count of units exceeds this; None with public keys. Where max_keys bounds
            private keys: exceeds the largest group left out by more than this.
        columns: the noise per column.
        notes: rules that shaped the answer, as sentences.
        sets: of a query with several grouping sets, the receipt of each; of one with other_group that of the groups
            and that of the row, whose keys are (); of keys that are selected in rounds that of each round, by its
            number, and last that of the numbers, if there are any. What stands above is of all together, and of a
            column the largest.
        coverage: where it was asked for, what bounding leaves of what units have.
        nothing_shown: why the answer, or one of its grouping sets, has no groups, as sentences.
        asked_rho: zCDP level that was asked for; stored numbers of a higher level may serve it. None if a server of
            before does not tell it.

    """

    query_hash: str
    table: str
    version: str
    unit: str
    mechanism: str
    rho: float
    epsilon: float
    delta: float
    charged_rho: float
    charged_delta: float
    reused: bool
    max_groups: int | None
    max_keys: int | None
    threshold: float | None
    columns: tuple[ColumnReceipt, ...]
    notes: tuple[str, ...]
    sets: tuple[SetReceipt, ...] = ()
    coverage: tuple[CoverageReceipt, ...] = ()
    nothing_shown: tuple[str, ...] = ()
    asked_rho: float | None = None

    @property
    def price(self) -> str:
        """What was charged, in words."""
        if self.reused:
            return "nothing (served as stored)"
        # what the precision of the noise costs is of no interest to whoever reads
        delta = f"= {self.charged_delta:.3g}" if self.charged_delta >= _LEAST_DELTA else f"< {_LEAST_DELTA:.0e}"
        return f"rho = {self.charged_rho:.6g}, delta {delta}"

    @property
    def kept(self) -> tuple[str, ...]:
        """Sentences on what bounds keep, of each grouping set, too: they stand beside the numbers everywhere."""
        of_sets = (f"({', '.join(one.keys)}): {kept}" for one in self.sets for kept in one.receipt.coverage)
        return (*map(str, self.coverage), *of_sets)

    @property
    def missing(self) -> tuple[str, ...]:
        """Sentences on missing groups, columns that are NULL, and a missed target: they stand beside the numbers."""
        notes = dict.fromkeys([*self.notes, *(note for one in self.sets for note in one.receipt.notes)])
        return (*self.nothing_shown, *filter(words.says_missed, notes), *filter(words.says_null, notes))

    def __str__(self) -> str:
        level = words.served_at(self.rho, self.asked_rho)
        lines = [f"nothing  {sentence}" for sentence in self.nothing_shown]
        lines += [f"missed   {note}" for note in self.notes if words.says_missed(note)]
        # what bounds leave out stands nearest to the numbers
        lines += [f"kept     {sentence}" for sentence in self.kept]
        lines += [
            f"{self.mechanism} on {self.table} (version {self.version}), privacy unit {self.unit}",
            f"price    {self.price}",
            f"privacy  {level}; alone: epsilon = {self.epsilon:.4g} at delta = {self.delta:.3g}",
        ]
        if self.threshold is not None:
            # a list bounds the number of keys, too, but leaves none of them out
            is_relative = self.max_keys is not None and self.mechanism in _HIDING
            above = "the largest group left out by more than " if is_relative else ""
            lines.append(f"keys     shown where the noisy count of units exceeds {above}{short(self.threshold, 4)}")
        for one in self.sets:
            keys, own = ", ".join(one.keys), one.receipt
            hidden = "" if own.threshold is None else f"; shown above {short(own.threshold, 4)} units"
            level = words.served_at(own.rho, own.asked_rho)
            lines.append(f"set      ({keys}): {level}, charged {own.charged_rho:.6g}{hidden}")
        for column in self.columns:
            width = "differs by row" if column.half_width_95 is None else f"± {short(column.half_width_95)} (95 %)"
            lines.append(f"error    {column.name}: {width}")
        return "\n".join(lines + [f"note     {note}" for note in self.notes if not words.says_missed(note)])


class Result:
    """A table that was computed once; reading it again costs nothing and changes nothing.

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
    ) -> None:
        self._table = table
        self._fetched = 0
        self.receipt = receipt
        self._layout = layout

    @cached_property
    def layout(self) -> Layout | None:
        """What the columns of a private answer are; None of what is looked up, or computed around an answer."""
        return self._layout() if callable(self._layout) else self._layout

    def __getstate__(self) -> dict[str, Any]:
        # what is handed on holds the layout, and nothing of the plan that it is made of
        return self.__dict__ | {"_layout": self.layout}

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return [str(name) for name in self._table.column_names]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, number of columns."""
        return len(self), len(self.columns)

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
        """One row by its number, or a list of rows by a slice."""
        return self._rows[place]

    def arrow(self) -> pa.Table:
        """The table as Arrow."""
        return self._table

    def df(self) -> pd.DataFrame:
        """The table as a pandas DataFrame; dates that Python cannot hold become text."""
        columns = [readable(column) for column in self._table.columns]
        frame: pd.DataFrame = pa.table(columns, self._table.column_names).to_pandas()
        return frame

    fetchdf = df
    to_df = df
    fetch_arrow_table = arrow
    to_arrow_table = arrow

    def pl(self) -> pl.DataFrame:
        """The table as a polars DataFrame (polars must be installed)."""
        import polars as pl  # noqa: PLC0415 — optional, so imported where it is used

        frame = pl.from_arrow(self._table)
        assert isinstance(frame, pl.DataFrame)  # noqa: S101 — a table never becomes a Series
        return frame

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row as a Python tuple, None after the last; dates that Python cannot hold become text."""
        row = self.fetchmany(1)
        return row[0] if row else None

    def fetchmany(self, size: int = 1) -> list[tuple[Any, ...]]:
        """The next rows, at most ``size`` of them; an empty list after the last."""
        start = self._fetched
        self._fetched = min(start + max(size, 0), len(self))
        return self._rows[start : self._fetched]

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that ``fetchone`` and ``fetchmany`` have left; they begin again at the first row afterwards."""
        start, self._fetched = self._fetched, 0
        return self._rows[start:]

    @cached_property
    def _rows(self) -> list[tuple[Any, ...]]:
        """All rows, read once: whether dates become text is said by the whole column."""
        return list(zip(*(readable(column).to_pylist() for column in self._table.columns), strict=True))

    def to_parquet(self, path: str | Path) -> None:
        """Write the table as one Parquet file."""
        with duckdb.connect(":memory:") as connection:
            connection.from_arrow(self._table).write_parquet(str(path))

    def show(self) -> None:
        """Print the table as a box, its numbers rounded to what their intervals know, and the receipt under it."""
        print(self)  # noqa: T201 — printing is what this method is for

    def __str__(self) -> str:
        box = io.StringIO()
        with duckdb.connect(":memory:") as connection, contextlib.redirect_stdout(box):
            connection.from_arrow(rounded(self._table, self.layout)).show(max_width=_WIDTH, max_rows=40)
        lines = [f"{line}\n" for line in unknown_lines(self._table, self.layout)]
        return "".join([box.getvalue(), *lines, f"{self.receipt}\n" if self.receipt else ""])

    def __repr__(self) -> str:
        return str(self)

    def plot(self, column: str | None = None, *, ax: Axes | None = None, rows: int = 40) -> Axes:
        """Draw one column: a bar a group with its 95 % interval; of the count of units also what is not shown.

        Args:
            column: its name; by default the first number that is no key.
            ax: where to draw; by default a figure of its own.
            rows: how many groups, from the first on.

        Raises:
            MissingPackageError: matplotlib is not installed (``pip install 'dpsql[plot]'``).
            SchemaError: there is no such column, or it holds no numbers.

        """
        threshold = self.receipt.threshold if self.receipt else None
        bars = bars_of(self._table, self.layout, threshold, column, rows)
        told = [f"{sentence}." for sentence in (self.receipt.kept if self.receipt else ())]
        told += [f"{one}." for one in (self.receipt.missing if self.receipt else ())]
        return draw_bars(replace(bars, remark=" ".join(filter(None, [bars.remark, *told]))), ax)

    def _repr_html_(self) -> str:
        """For notebooks: intervals beside the numbers, the receipt folded, every text escaped."""
        shown = self._table.slice(0, MOST_ROWS)
        columns, lines = table_columns(shown, self.layout), unknown_lines(shown, self.layout)
        if not self.receipt:
            return html_table(columns, len(self), lines)
        receipt = self.receipt
        summary = (
            f"{receipt.mechanism} · epsilon = {receipt.epsilon:.4g} at delta = {receipt.delta:.3g} · "
            f"price: {receipt.price}"
        )
        summary = " · ".join([summary, *receipt.kept])
        return html_table(columns, len(self), [*receipt.missing, *lines], summary, str(receipt))
