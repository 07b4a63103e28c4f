"""What ``df.dp.groupby(…)`` returns: the methods of a pandas GroupBy that have a private form."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pandas as pd
import pyarrow as pa

from dpsql.errors import PolicyError
from dpsql.frontends.frames.measures import Bounds, Measure, read_measure
from dpsql.frontends.frames.question import Question
from dpsql.frontends.frames.rows import arrow_schema, column_names, without_rows
from dpsql.frontends.frames.shaped import ReceiptRecord, ordered_keys, rows_to_show, table_of, typed_keys, typed_values
from dpsql.session import Result

if TYPE_CHECKING:
    import polars as pl

AnswerT = TypeVar("AnswerT")


class FrameGroupBy(ABC, Generic[AnswerT]):
    """A question that lacks only what is asked of each group. It is a value: methods change nothing in it."""

    def __init__(self, question: Question) -> None:
        self._question = question

    def at(self, rho: float | None = None, *, epsilon: float | None = None) -> FrameGroupBy[AnswerT]:
        """The same question at another level of the same cascade: sharper costs the rise, coarser nothing."""
        if (rho is None) == (epsilon is None):
            raise PolicyError("a level is a rho or an epsilon, as in .at(0.01) or .at(epsilon=1)")
        options = {name: value for name, value in self._question.options.items() if name not in ("rho", "epsilon")}
        level: dict[str, object] = {"epsilon": epsilon} if rho is None else {"rho": rho}
        return self._with(dataclasses.replace(self._question, options={**options, **level}))

    def with_intervals(self) -> FrameGroupBy[AnswerT]:
        """The same question, answered with both ends of the 95 % interval beside each number, for nothing more."""
        return self._with(dataclasses.replace(self._question, intervals=True))

    def size(self) -> AnswerT:
        """Rows of each group."""
        return self._single(Measure("size", None, "size"))

    def count(self, column: str | None = None) -> AnswerT:
        """Rows in which a column has a value; without one, those of every column but the keys."""
        if column is not None:
            return self._one(column, "count", None)
        others = [name for name in column_names(self._question.frame) if name not in self._question.keys]
        return self._answer([self._read(name, (name, "count")) for name in others])

    def nunique_units(self) -> AnswerT:
        """Distinct privacy units of each group."""
        return self._single(Measure("", None, "nunique"))

    def sum(self, column: str, bounds: Bounds = None) -> AnswerT:
        """Sum of a column; ``bounds`` are of what one unit adds to one group."""
        return self._one(column, "sum", bounds)

    def mean(self, column: str, bounds: Bounds = None) -> AnswerT:
        """Mean of a column; ``bounds`` are of one value."""
        return self._one(column, "mean", bounds)

    def agg(self, **named: object) -> AnswerT:
        """Several at once: ``agg(visits=('patient_id', 'count'), cost=('cost', 'sum', (0, 500)))``.

        A function is 'size', 'count', 'nunique', 'sum', 'mean', 'median', 'std' or 'var'. Bounds are of what one unit
        adds to one group for the first four, and of one value for the others.
        """
        return self._answer(self._measures(named))

    def explain(self, **named: object) -> AnswerT:
        """Mechanism, noise and price of ``agg`` with the same arguments, or of ``size()``; spends nothing."""
        measures = self._measures(named) if named else [Measure("size", None, "size")]
        return self._plan(self._question.explain(measures))

    def _measures(self, named: dict[str, object]) -> list[Measure]:
        if not named:
            raise PolicyError("agg takes named columns, as in agg(cost=('cost', 'sum', (0, 500)))")
        return [self._read(name, asked) for name, asked in named.items()]

    def _read(self, name: str, asked: object) -> Measure:
        return read_measure(name, asked, self._question.frame)

    def _one(self, column: str, function: str, bounds: Bounds) -> AnswerT:
        return self._single(self._read(str(column), (column, function, bounds)))

    def _with(self, question: Question) -> FrameGroupBy[AnswerT]:
        return type(self)(question)

    def _single(self, measure: Measure) -> AnswerT:
        """Ask for one column, which pandas gives as a Series."""
        return self._answer([measure])

    @abstractmethod
    def _answer(self, measures: Sequence[Measure]) -> AnswerT:
        """Ask, and shape what comes."""

    @abstractmethod
    def _plan(self, result: Result) -> AnswerT:
        """A plan in the same kind of table."""


class PandasGroupBy(FrameGroupBy["pd.Series[Any] | pd.DataFrame"]):
    """Answers as pandas gives them: keys as the index, and the receipt in ``attrs['dpsql']``."""

    def _single(self, measure: Measure) -> pd.Series[Any] | pd.DataFrame:
        answer = self._answer([measure])
        if isinstance(answer, pd.Series) or self._question.intervals or not self._question.as_index:
            return answer
        series = answer.iloc[:, 0]
        # pandas gives sizes no name
        return series.rename(None) if measure.function == "size" else series

    def _answer(self, measures: Sequence[Measure]) -> pd.Series[Any] | pd.DataFrame:
        asked = self._question
        answer = asked.ask(measures)
        empty = without_rows(asked.frame)
        assert isinstance(empty, pd.DataFrame)  # noqa: S101 — as the frame is
        rows = answer.result.df()
        keys = typed_keys(rows, empty, asked.keys, asked.listed)
        values: dict[str, pd.Series[Any]] = {}
        place = len(asked.keys)
        for measure in answer.measures:
            name, *ends = asked.names(measure)
            values[name] = typed_values(rows.iloc[:, place], measure, empty, asked.keys)
            values |= {end: rows.iloc[:, place + i] for i, end in enumerate(ends, start=1)}
            place += 1 + len(ends)
        order = rows_to_show(keys, asked.listed, sort=asked.sort, dropna=asked.dropna)
        shown = self._framed(keys.iloc[order], pd.DataFrame(values).iloc[order])
        if answer.result.receipt is not None:
            shown.attrs["dpsql"] = ReceiptRecord(answer.result.receipt)
        return shown

    def _framed(self, keys: pd.DataFrame, values: pd.DataFrame) -> pd.DataFrame:
        if self._question.as_index:
            index = pd.Index(keys.iloc[:, 0]) if keys.shape[1] == 1 else pd.MultiIndex.from_frame(keys)
            return values.set_axis(index, axis=0)
        return pd.concat([keys, values], axis=1).reset_index(drop=True)

    def _plan(self, result: Result) -> pd.Series[Any] | pd.DataFrame:
        return result.df()


class TableGroupBy(FrameGroupBy[AnswerT]):
    """Answers as flat tables, keys first, in the order of the keys."""

    def _answer(self, measures: Sequence[Measure]) -> AnswerT:
        asked = self._question
        answer = asked.ask(measures)
        names, columns = list(asked.keys), []
        for measure in answer.measures:
            own = asked.names(measure)
            names += own
            columns += [measure, *(None for _ in own[1:])]
        schema = arrow_schema(asked.frame)
        table = table_of(answer.result.arrow(), schema, asked.keys, columns).rename_columns(names)
        keys = ordered_keys(table.select(list(asked.keys)))
        table = table.take(rows_to_show(keys, asked.listed, sort=asked.sort, dropna=asked.dropna))
        return self._like(table)

    def _plan(self, result: Result) -> AnswerT:
        return self._like(result.arrow())

    @abstractmethod
    def _like(self, table: pa.Table) -> AnswerT:
        """The table in the kind of the frame."""


class ArrowGroupBy(TableGroupBy[pa.Table]):
    """Answers as Arrow tables."""

    def _like(self, table: pa.Table) -> pa.Table:
        return table


class PolarsGroupBy(TableGroupBy["pl.DataFrame"]):
    """Answers as polars DataFrames; categories become texts."""

    def _like(self, table: pa.Table) -> pl.DataFrame:
        return Result(table).pl()
