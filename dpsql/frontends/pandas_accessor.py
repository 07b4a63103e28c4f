"""``df.dp`` and ``dpsql.from_frame``: private GROUP BY on the rows of a data frame.

``groupby(…)`` returns the methods of a pandas GroupBy that have a private form.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import pandas as pd
import pyarrow as pa

from dpsql.errors import PolicyError
from dpsql.frontends.frames.privacy_unit import PrivacyUnit
from dpsql.frontends.frames.question import Question
from dpsql.frontends.frames.rows import Frame, arrow_schema, column_names, is_polars, require_key, without_rows
from dpsql.frontends.frames.shape import (
    AnswerForm,
    Bounds,
    Measure,
    ReceiptRecord,
    ordered_keys,
    read_listed,
    read_measure,
    rows_to_show,
    table_of,
    typed_keys,
    typed_values,
)
from dpsql.session import Result, require

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
        return type(self)(dataclasses.replace(self._question, options={**options, **level}))

    def with_intervals(self) -> FrameGroupBy[AnswerT]:
        """The same question, answered with both ends of the 95 % interval beside each number, for nothing more."""
        form = dataclasses.replace(self._question.form, intervals=True)
        return type(self)(dataclasses.replace(self._question, form=form))

    def groups(self) -> AnswerT:
        """The keys of the groups alone, as columns: without numbers more of them are found."""
        form = dataclasses.replace(self._question.form, as_index=False)
        return type(self)(dataclasses.replace(self._question, form=form))._answer([])

    def size(self) -> AnswerT:
        """Rows of each group."""
        return self._single(Measure("size", None, "size"))

    def count(self, column: str | None = None) -> AnswerT:
        """Rows in which a column has a value; without one, those of every column but the keys."""
        if column is not None:
            return self._one(column, "count", None)
        others = [name for name in column_names(self._question.frame) if name not in self._question.keys]
        return self._answer([read_measure(name, (name, "count"), self._question.frame) for name in others])

    def nunique_units(self) -> AnswerT:
        """Distinct privacy units of each group."""
        return self._single(Measure("", None, "nunique"))

    def sum(self, column: str, bounds: Bounds = None) -> AnswerT:
        """Sum of a column; ``bounds`` are of what one unit adds to one group, or one number its norm over all."""
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
        plan, _ = self._question.ask(measures, explain=True)
        return self._like(plan.arrow())

    def _measures(self, named: dict[str, object]) -> list[Measure]:
        if not named:
            raise PolicyError("agg takes named columns, as in agg(cost=('cost', 'sum', (0, 500)))")
        return [read_measure(name, asked, self._question.frame) for name, asked in named.items()]

    def _one(self, column: str, function: str, bounds: Bounds) -> AnswerT:
        return self._single(read_measure(str(column), (column, function, bounds), self._question.frame))

    def _single(self, measure: Measure) -> AnswerT:
        """Ask for one column, which pandas gives as a Series."""
        return self._answer([measure])

    @abstractmethod
    def _answer(self, measures: Sequence[Measure]) -> AnswerT:
        """Ask, and shape what comes."""

    @abstractmethod
    def _like(self, table: pa.Table) -> AnswerT:
        """The table in the kind of the frame."""


class PandasGroupBy(FrameGroupBy["pd.Series[Any] | pd.DataFrame"]):
    """Answers as pandas gives them: keys as the index, and the receipt in ``attrs['dpsql']``."""

    def _single(self, measure: Measure) -> pd.Series[Any] | pd.DataFrame:
        answer = self._answer([measure])
        if isinstance(answer, pd.Series) or self._question.form.intervals or not self._question.form.as_index:
            return answer
        series = answer.iloc[:, 0]
        # pandas gives sizes no name
        return series.rename(None) if measure.function == "size" else series

    def _answer(self, measures: Sequence[Measure]) -> pd.Series[Any] | pd.DataFrame:
        asked = self._question
        result, measures = asked.ask(measures)
        empty = without_rows(asked.frame)
        assert isinstance(empty, pd.DataFrame)  # noqa: S101 — as the frame is
        rows = result.df()
        keys = typed_keys(rows, empty, asked.keys, asked.listed)
        values = {
            name: typed_values(rows.iloc[:, place], measure, empty, asked.keys) if measure else rows.iloc[:, place]
            for place, (name, measure) in enumerate(asked.columns(measures), start=len(asked.keys))
        }
        order = rows_to_show(keys, asked.listed, asked.form)
        keys, shown = keys.iloc[order], pd.DataFrame(values, index=keys.index).iloc[order]
        if asked.form.as_index:
            shown.index = pd.Index(keys.iloc[:, 0]) if keys.shape[1] == 1 else pd.MultiIndex.from_frame(keys)
        else:
            shown = pd.concat([keys, shown], axis=1).reset_index(drop=True)
        if result.receipt is not None:
            shown.attrs["dpsql"] = ReceiptRecord(result.receipt)
        return shown

    def _like(self, table: pa.Table) -> pd.Series[Any] | pd.DataFrame:
        return Result(table).df()


class TableGroupBy(FrameGroupBy[AnswerT]):
    """Answers as flat tables, keys first, in the order of the keys."""

    def _answer(self, measures: Sequence[Measure]) -> AnswerT:
        asked = self._question
        result, measures = asked.ask(measures)
        columns = asked.columns(measures)
        table = table_of(result.arrow(), arrow_schema(asked.frame), asked.keys, [measure for _, measure in columns])
        table = table.rename_columns([*asked.keys, *(name for name, _ in columns)])
        keys = ordered_keys(table.select(list(asked.keys)))
        return self._like(table.take(rows_to_show(keys, asked.listed, asked.form)))


class ArrowGroupBy(TableGroupBy[pa.Table]):
    """Answers as Arrow tables."""

    def _like(self, table: pa.Table) -> pa.Table:
        return table


class PolarsGroupBy(TableGroupBy["pl.DataFrame"]):
    """Answers as polars DataFrames; categories become texts."""

    def _like(self, table: pa.Table) -> pl.DataFrame:
        return Result(table).pl()


Keys = Hashable | Sequence[Hashable]
GroupByT = TypeVar("GroupByT", bound=FrameGroupBy[Any])

_ELSEWHERE = {
    "as_of": "name the version in dpsql.unit(…, version=…)",
    "buckets": "ask in SQL, on the database",
    "max_groups_contributed": "write max_groups=",
    "privacy_unit_column": "name it in dpsql.unit(…, column=…)",
}


class PandasFrame:
    """The private view of a DataFrame, ``df.dp``. It holds the frame and nothing else."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame

    def groupby(
        self,
        by: Keys,
        *,
        unit: PrivacyUnit | str,
        rho: float | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        max_groups: int | str | None = None,
        max_rows_per_group: int | None = None,
        max_rows_norm: float | None = None,
        public_keys: object = None,
        mechanism: str | None = None,
        as_index: bool = True,
        sort: bool = True,
        dropna: bool = True,
        observed: bool = True,
        **options: object,
    ) -> PandasGroupBy:
        """Group rows by columns; what is then asked of the groups is answered privately.

        Args:
            by: a column or a list of columns.
            unit: whose rows they are, as ``dpsql.unit`` says it; a text is ``dpsql.unit(text)``.
            rho: how private the answer shall be, as zCDP.
            epsilon: the same as epsilon at ``delta``, instead of rho.
            delta: what may go wrong with epsilon and with the threshold for keys; has a default.
            max_groups: most groups that one unit counts in, or ``"auto"``.
            max_rows_per_group: most rows that one unit adds to a group.
            max_rows_norm: most l2 norm of its rows over all groups, with ``bounding="NORM"``.
            public_keys: keys that are known without the data, each of which is then shown: a list; for several keys a
                dict of lists, a list of tuples, or a DataFrame.
            mechanism: how units are counted, as the option of SQL.
            as_index: whether keys become the index.
            dropna: whether groups whose key is missing are left out of the answer.
            sort: by key; otherwise public keys come as they are listed, and others by key too, because the order in
                which they appear is private.
            observed: False to be sure that every key is public and shown; refused where one is not.
            options: further options of ``Session.sql``.

        Raises:
            DpsqlError: see ``dpsql.errors``; before anything is charged.

        """
        keys, owner = _keys(self._frame, by), _unit(unit)
        options = _options(
            options, rho=rho, epsilon=epsilon, delta=delta, max_groups_contributed=max_groups, mechanism=mechanism
        )
        listed, form = read_listed(public_keys, keys, dropna=dropna), AnswerForm(sort, dropna, as_index)
        question = Question(
            self._frame, keys, owner, options, listed, max_rows_per_group, max_rows_norm, observed, form
        )
        return PandasGroupBy(question)


class TableFrame(Generic[GroupByT]):
    """The private view of a table without an index."""

    _answers: type[GroupByT]

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def groupby(
        self,
        by: Keys,
        *,
        unit: PrivacyUnit | str,
        rho: float | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        max_groups: int | str | None = None,
        max_rows_per_group: int | None = None,
        max_rows_norm: float | None = None,
        public_keys: object = None,
        mechanism: str | None = None,
        dropna: bool = False,
        **options: object,
    ) -> GroupByT:
        """As ``df.dp.groupby``: flat answers in the order of their keys; a missing key is a group, as it is there."""
        keys = _keys(self._frame, by)
        listed = read_listed(public_keys, keys, dropna=dropna)
        options = _options(
            options, rho=rho, epsilon=epsilon, delta=delta, max_groups_contributed=max_groups, mechanism=mechanism
        )
        form = AnswerForm(dropna=dropna, as_index=False)
        owner = _unit(unit)
        question = Question(self._frame, keys, owner, options, listed, max_rows_per_group, max_rows_norm, form=form)
        return self._answers(question)


class PolarsFrame(TableFrame[PolarsGroupBy]):
    """The private view of a polars DataFrame."""

    _answers = PolarsGroupBy


class ArrowFrame(TableFrame[ArrowGroupBy]):
    """The private view of an Arrow table."""

    _answers = ArrowGroupBy


@overload
def from_frame(frame: pd.DataFrame) -> PandasFrame: ...
@overload
def from_frame(frame: pl.DataFrame) -> PolarsFrame: ...
@overload
def from_frame(frame: pa.Table) -> ArrowFrame: ...
def from_frame(frame: Frame) -> PandasFrame | PolarsFrame | ArrowFrame:
    """The private view of a frame: what ``df.dp`` is to pandas, for polars and Arrow, and for type checkers.

    Raises:
        PolicyError: it is none of these.

    """
    if isinstance(frame, pd.DataFrame):
        return PandasFrame(frame)
    if isinstance(frame, pa.Table):
        return ArrowFrame(frame)
    if is_polars(frame):
        return PolarsFrame(frame)
    hint = "; collect() it first" if type(frame).__name__ == "LazyFrame" else ""
    raise PolicyError(f"from_frame takes a DataFrame of pandas or polars, or an Arrow table{hint}")


def _keys(frame: Frame, by: Keys) -> tuple[str, ...]:
    # a tuple is one name to pandas, and SQL has no such names
    listed = list(by) if isinstance(by, list) else [by]
    if not listed:
        raise PolicyError("groupby takes a column or a list of columns")
    keys = tuple(require_key(frame, key) for key in listed)
    if len(set(keys)) != len(keys):
        raise PolicyError("a key stands twice")
    return keys


def _unit(unit: PrivacyUnit | str) -> PrivacyUnit:
    if isinstance(unit, str):
        return PrivacyUnit(unit)
    if not isinstance(unit, PrivacyUnit):
        raise PolicyError("unit takes dpsql.unit('patient', column='patient_id', …), or the name of one")
    return unit


def _options(further: dict[str, object], **named: object) -> dict[str, object]:
    """The options of a question: those that groupby names, and further ones of ``Session.sql``."""
    require(*((name not in further, f"groupby has no {name}=; {instead}") for name, instead in _ELSEWHERE.items()))
    return {**named, **further}
