"""Grouped rows of a frame: the methods of a pandas GroupBy that have a private form, and the form of their answers."""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from dpsql.errors import PolicyError
from dpsql.frontends.frames.arguments import (
    Selected,
    example_column,
    measures_of,
    measures_of_agg,
    read_selection,
    read_shares,
)
from dpsql.frontends.frames.arrow_shape import ordered_keys, table_of
from dpsql.frontends.frames.key_terms import KeyTerm
from dpsql.frontends.frames.question import Question
from dpsql.frontends.frames.refused_methods import is_known_elsewhere, method_refused, require_plain_arguments
from dpsql.frontends.frames.rows import arrow_schema, column_names, without_rows
from dpsql.frontends.frames.shape import (
    Bounds,
    Measure,
    ReceiptRecord,
    read_measure,
    rows_to_show,
    typed_keys,
    typed_values,
)
from dpsql.session import OPTIONS_OF_TARGETS, Receipt, Result

if TYPE_CHECKING:
    import polars as pl

AnswerT = TypeVar("AnswerT")

_OF_TARGETS = frozenset().union(*OPTIONS_OF_TARGETS.values())
"""Options that go with a target alone."""
_PACKAGE = __name__.partition(".")[0]


class FrameGroupBy(ABC, Generic[AnswerT]):
    """A question that lacks only what is asked of each group. It is a value: methods change nothing in it."""

    def __init__(self, question: Question, selected: Selected = None) -> None:
        self._question = question
        self._selected = selected

    def __getitem__(self, columns: Hashable | Sequence[Hashable]) -> FrameGroupBy[AnswerT]:
        """Select a column, or a list of columns, for the next method, as in ``groupby('city')['cost'].mean()``."""
        return type(self)(self._question, read_selection(self._question, self._selected, columns))

    def __getattr__(self, name: str) -> FrameGroupBy[AnswerT]:
        """Select the column of this name.

        Raises:
            MethodRefusedError: GroupBy or a frame has a method of this name elsewhere, and it has no private form.
            AttributeError: there is no such column.

        """
        if not name.startswith("_"):
            columns = column_names(self._question.frame) if self._selected is None else ()
            if is_known_elsewhere(name, columns):
                raise self._refused(name)
            if name in columns:
                return self[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __len__(self) -> int:
        """Raise an error, because the number of groups is private."""
        raise self._refused("ngroups")

    def __iter__(self) -> Iterator[Any]:
        """Raise an error, because the rows of a group are private."""
        raise self._refused("get_group")

    def at(
        self,
        rho: float | None = None,
        *,
        epsilon: float | None = None,
        target_half_width: float | Mapping[str, float] | None = None,
        target_relative_error: float | None = None,
    ) -> FrameGroupBy[AnswerT]:
        """Return the question at another level of its cascade: a higher one costs the rise, a lower one nothing.

        A target keeps the question's ``confidence``, ``max_rho`` and ``max_epsilon``; rho and epsilon drop them. A
        relative error keeps ``at_least`` and ``method``, too. It needs ``max_rho`` or ``max_epsilon`` of ``groupby``.
        """
        levels = {
            "rho": rho,
            "epsilon": epsilon,
            "target_half_width": target_half_width,
            "target_relative_error": target_relative_error,
        }
        level = {name: value for name, value in levels.items() if value is not None}
        if len(level) != 1:
            raise PolicyError(
                "a level is a rho, an epsilon, a half width or a relative error, as in .at(0.01), .at(epsilon=1), "
                ".at(target_half_width=50) or .at(target_relative_error=0.1)"
            )
        (name,) = level
        replaced = levels.keys() | (_OF_TARGETS - OPTIONS_OF_TARGETS.get(name, frozenset()))
        kept = {name: value for name, value in self._question.options.items() if name not in replaced}
        return self._with(options={**kept, **level})

    def with_intervals(self) -> FrameGroupBy[AnswerT]:
        """Return the question with both ends of the 95 % interval beside each number, for nothing more."""
        return self._with(form=dataclasses.replace(self._question.form, intervals=True))

    def with_within_target(self) -> FrameGroupBy[AnswerT]:
        """Return the question with a truth value beside each number: whether ``target_relative_error`` holds for it."""
        return self._with(form=dataclasses.replace(self._question.form, within_target=True))

    def groups(self) -> AnswerT:
        """Return the keys of the groups alone, as columns: without numbers more of them are found."""
        return self._with(form=dataclasses.replace(self._question.form, as_index=False))._answer([])

    def size(self) -> AnswerT:
        """Return the number of rows of each group."""
        return self._single(Measure("size", None, "size"))

    def count(self, column: str | None = None, bounds: Bounds = None) -> AnswerT:
        """Return the number of rows in which a column has a value; without one, of every column but the keys."""
        if column is not None or self._selected is not None:
            return self._one("count", column, bounds, {})
        others = [name for name in column_names(self._question.frame) if name not in self._question.keys]
        return self._answer([read_measure(name, (name, "count", bounds), self._question.frame) for name in others])

    def nunique_units(self) -> AnswerT:
        """Return the number of distinct privacy units of each group."""
        return self._single(Measure("", None, "nunique"))

    def nunique(self, column: str | None = None, bounds: Bounds = None, **others: object) -> AnswerT:
        """Return the number of distinct values; ``bounds`` are of what one unit adds to one group."""
        return self._one("nunique", column, bounds, others)

    def sum(self, column: str | None = None, bounds: Bounds = None, **others: object) -> AnswerT:
        """Return the sum; ``bounds`` are of what one unit adds to one group, or one number its norm over all."""
        return self._one("sum", column, bounds, others)

    def mean(self, column: str | None = None, bounds: Bounds = None, **others: object) -> AnswerT:
        """Return the mean; ``bounds`` are of one value."""
        return self._one("mean", column, bounds, others)

    def median(self, column: str | None = None, bounds: Bounds = None, **others: object) -> AnswerT:
        """Return the median; ``bounds`` are of one value."""
        return self._one("median", column, bounds, others)

    def std(self, column: str | None = None, bounds: Bounds = None, **others: object) -> AnswerT:
        """Return the standard deviation; ``bounds`` are of one value."""
        return self._one("std", column, bounds, others)

    def var(self, column: str | None = None, bounds: Bounds = None, **others: object) -> AnswerT:
        """Return the variance; ``bounds`` are of one value."""
        return self._one("var", column, bounds, others)

    def quantile(
        self,
        q: float | Sequence[float] = 0.5,
        interpolation: str = "linear",
        *,
        bounds: Bounds = None,
        **others: object,
    ) -> AnswerT:
        """Return the value below which a share ``q`` of the values lies; ``bounds`` are of one value.

        A list of shares is answered for the price of one. It gives a row for each share, as in pandas.
        """
        require_plain_arguments("quantile", others)
        shares = read_shares(q, interpolation)
        measures = measures_of(self._question, self._selected, "quantile", None, bounds)
        if isinstance(q, list | tuple | np.ndarray):
            return self._quantiles(measures, shares)
        measures = [dataclasses.replace(one, share=shares[0]) for one in measures]
        return self._answer(measures) if isinstance(self._selected, tuple) else self._single(measures[0])

    def agg(self, func: object = None, **named: object) -> AnswerT:
        """Return several numbers at one price, as in ``agg(visits=('patient_id', 'count'), cost=('cost', 'sum'))``.

        Args:
            func: instead of names, a dict such as ``{'cost': 'mean'}``; after ``[…]`` a function or a list of them.
            named: columns of the answer, each with (column, function) or (column, function, bounds).

        A function is 'size', 'count', 'nunique', 'sum', 'mean', 'median', 'std' or 'var', or a pair of it and bounds
        where the column is said. Bounds are of what one unit adds to one group for the first four, and of one value for
        the others.

        """
        measures = measures_of_agg(self._question, self._selected, func, named)
        # other libraries' expressions cannot be compared with a text
        is_series = isinstance(func, str | tuple) and (isinstance(self._selected, str) or func == "size")
        return self._single(measures[0]) if is_series else self._answer(measures)

    aggregate = agg

    def explain(self, func: object = None, **named: object) -> AnswerT:
        """Return mechanism, noise and price of ``agg`` with the same arguments, or of ``size()``; spend nothing."""
        is_rows = func is None and not named
        measures = measures_of_agg(
            self._question, None if is_rows else self._selected, "size" if is_rows else func, named
        )
        plan, _ = self._question.ask(measures, explain=True)
        return self._like(plan.arrow())

    def _with(self, **changes: Any) -> FrameGroupBy[AnswerT]:
        return type(self)(dataclasses.replace(self._question, **changes), self._selected)

    def _refused(self, name: str) -> Exception:
        return method_refused(name, self._question.key_columns, example_column(self._question, self._selected))

    def _quantiles(self, measures: Sequence[Measure], shares: Sequence[float]) -> AnswerT:
        """Ask for several quantiles of each column."""
        column = measures[0].column
        raise PolicyError(f"quantile takes one share here, as in groupby(…)[{column!r}].quantile({shares[0]!r})")

    def _one(self, function: str, column: str | None, bounds: Bounds, others: Mapping[str, object]) -> AnswerT:
        require_plain_arguments(function, others)
        measures = measures_of(self._question, self._selected, function, column, bounds)
        return self._answer(measures) if isinstance(self._selected, tuple) else self._single(measures[0])

    def _single(self, measure: Measure) -> AnswerT:
        """Ask for one column, which pandas gives as a Series."""
        return self._answer([measure])

    @abstractmethod
    def _answer(self, measures: Sequence[Measure]) -> AnswerT:
        """Ask, and shape what comes."""

    @abstractmethod
    def _like(self, table: pa.Table) -> AnswerT:
        """Return the table in the kind of the frame."""


class PandasGroupBy(FrameGroupBy["pd.Series[Any] | pd.DataFrame"]):
    """Answers as pandas gives them: keys as the index, and the receipt in ``attrs['dpsql']``."""

    def _single(self, measure: Measure) -> pd.Series[Any] | pd.DataFrame:
        answer = self._answer([measure])
        if isinstance(answer, pd.Series) or self._question.form.beside or not self._question.form.as_index:
            return answer
        series = answer.iloc[:, 0]
        if measure.function != "size":
            return series
        # pandas gives sizes the name of one selected column, else none
        return series.rename(self._selected if isinstance(self._selected, str) else None)

    def _answer(self, measures: Sequence[Measure]) -> pd.Series[Any] | pd.DataFrame:
        asked = self._question
        result, measures = asked.ask(measures)
        empty = without_rows(asked.frame)
        assert isinstance(empty, pd.DataFrame)  # noqa: S101 — as the frame is
        if asked.terms:
            # they stay as SQL has them until the answer is in order
            empty = empty.assign(**{key: pd.Series(dtype=object) for key in asked.terms})
        rows = result.df()
        keys = typed_keys(rows, empty, asked.keys, asked.listed, asked.form.ordered)
        values = {
            name: typed_values(rows.iloc[:, place], measure, empty, asked.keys) if measure else rows.iloc[:, place]
            for place, (name, measure) in enumerate(asked.columns(measures), start=len(asked.keys))
        }
        order = rows_to_show(keys, asked.listed, asked.form)
        keys, shown = _labelled(keys.iloc[order], asked.terms), pd.DataFrame(values, index=keys.index).iloc[order]
        empty_columns = [one.name for one in measures if len(shown) and bool(shown[one.name].isna().all())]
        _warn_of_empty(empty_columns, result.receipt, value="NaN")
        if asked.form.as_index:
            shown.index = pd.Index(keys.iloc[:, 0]) if keys.shape[1] == 1 else pd.MultiIndex.from_frame(keys)
        else:
            shown = pd.concat([keys, shown], axis=1).reset_index(drop=True)
        if result.receipt is not None:
            shown.attrs["dpsql"] = ReceiptRecord(result.receipt)
        return shown

    def _quantiles(self, measures: Sequence[Measure], shares: Sequence[float]) -> pd.Series[Any] | pd.DataFrame:
        """Ask for several quantiles of each column; the shares are the last level of the index."""
        form = self._question.form
        named = {
            (one.name, share): dataclasses.replace(one, name=f"{one.name} {share!r}", share=share)
            for one in measures
            for share in shares
        }
        wide = self._with(form=dataclasses.replace(form, as_index=True))._answer(list(named.values()))
        columns = {
            one.name + end: wide[[named[one.name, share].name + end for share in shares]].to_numpy().ravel()
            for one in measures
            for end in ("", *form.beside)
        }
        levels = [wide.index.get_level_values(place).repeat(len(shares)) for place in range(wide.index.nlevels)]
        index = pd.MultiIndex.from_arrays([*levels, np.tile(shares, len(wide))], names=[*wide.index.names, None])
        long = pd.DataFrame(columns, index=index)
        long.attrs.update(wide.attrs)
        if not form.as_index:
            return long.reset_index()
        return long if form.beside or isinstance(self._selected, tuple) else long.iloc[:, 0]

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
        table = table.take(rows_to_show(keys, asked.listed, asked.form))
        empty_columns = [one.name for one in measures if len(table) and table[one.name].null_count == len(table)]
        _warn_of_empty(empty_columns, result.receipt, value="null")
        if result.receipt is None:
            return self._like(table)
        return self._with_receipt(table, ReceiptRecord(result.receipt))

    @abstractmethod
    def _with_receipt(self, table: pa.Table, receipt: ReceiptRecord) -> AnswerT:
        """Return the table in the kind of the frame, with the receipt."""


class ArrowGroupBy(TableGroupBy[pa.Table]):
    """Answers as Arrow tables, with the receipt in the metadata of the schema."""

    def _like(self, table: pa.Table) -> pa.Table:
        return table

    def _with_receipt(self, table: pa.Table, receipt: ReceiptRecord) -> pa.Table:
        return table.replace_schema_metadata({"dpsql": json.dumps(receipt), "dpsql_text": repr(receipt)})


class PolarsGroupBy(TableGroupBy["pl.DataFrame"]):
    """Answers as polars DataFrames, with the receipt as attribute ``dpsql``; categories become texts."""

    def _like(self, table: pa.Table) -> pl.DataFrame:
        return Result(table).pl()

    def _with_receipt(self, table: pa.Table, receipt: ReceiptRecord) -> pl.DataFrame:
        answer = self._like(table)
        # polars has no metadata of frames; it sets its own accessors as attributes of a frame, too
        vars(answer)["dpsql"] = receipt
        return answer


def _labelled(keys: pd.DataFrame, terms: Mapping[str, KeyTerm]) -> pd.DataFrame:
    """Return the keys of an answer, those that are computed with the values and names that they have in pandas."""
    if not terms:
        return keys
    names = map(str, keys.columns)
    shown = [terms[key].labelled(keys[key]).rename(terms[key].column) if key in terms else keys[key] for key in names]
    return pd.concat(shown, axis=1)


def _warn_of_empty(columns: Sequence[str], receipt: Receipt | None, *, value: str) -> None:
    """Warn once that columns have no number in any group; do nothing if there is no such column.

    Args:
        columns: their names.
        receipt: of the answer.
        value: what stands in place of a number, ``NaN`` or ``null``.

    """
    if not columns:
        return
    reasons: dict[str, list[str]] = {}
    for name in columns:
        reasons.setdefault(_reason(name, receipt), []).append(name)
    sentences = [f"{', '.join(names)}: {value} in every group, {reason}" for reason, names in reasons.items()]
    warnings.warn("\n".join(sentences), UserWarning, stacklevel=_level_of_caller())


def _reason(column: str, receipt: Receipt | None) -> str:
    """Return the reason that the receipt gives for a column, or what else makes a number unknown."""
    for note in receipt.missing if receipt else ():
        names, is_null, why = note.partition(" is NULL, ")
        if is_null and column in names.split(", "):
            return why
    return "because the noise hides what it is computed from; ask with more epsilon or rho"


def _level_of_caller() -> int:
    """Return the level of the first frame outside dpsql, as `warnings.warn` counts it from its own caller."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        level, frame = level + 1, frame.f_back
    return level
