"""``df.dp`` and ``dpsql.from_frame``: private GROUP BY on the rows of a data frame.

``groupby(…)`` returns the methods of a pandas GroupBy that have a private form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, Unpack, overload

import pandas as pd
import pyarrow as pa

from dpsql.errors import PolicyError
from dpsql.frontends.frames.groupby import ArrowGroupBy, FrameGroupBy, PandasGroupBy, PolarsGroupBy
from dpsql.frontends.frames.key_terms import KeyTerm, column_of, cut, period
from dpsql.frontends.frames.privacy_unit import PrivacyUnit
from dpsql.frontends.frames.question import Question
from dpsql.frontends.frames.refused_methods import column_refused, frame_method_refused
from dpsql.frontends.frames.rows import Frame, column_names, is_polars, numeric_columns, require_key
from dpsql.frontends.frames.shape import AnswerForm, ListedKeys, read_listed
from dpsql.frontends.frames.terms import Terms, with_terms
from dpsql.session import require

if TYPE_CHECKING:
    import polars as pl

Keys = Hashable | Sequence[Hashable]
GroupByT = TypeVar("GroupByT", bound=FrameGroupBy[Any])

_ELSEWHERE = {
    "as_of": "name the version in dpsql.unit(…, version=…)",
    "buckets": "ask in SQL, on the database",
    "max_groups_contributed": "write max_groups=",
    "privacy_unit_column": "name it in dpsql.unit(…, column=…)",
}
_OF_FRAMES = ("max_groups", "max_rows_per_group", "max_rows_norm", "public_keys")
"""Terms that are no options of a SELECT, or have another name there."""


class PandasFrame:
    """The private view of a DataFrame, ``df.dp``. It holds the frame and nothing else."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame

    def __getitem__(self, columns: object) -> NoReturn:
        """Raise an error, because single columns have no private answer."""
        raise column_refused(columns, *self._examples())

    def __getattr__(self, name: str) -> NoReturn:
        """Raise an error that says what to write.

        Raises:
            MethodRefusedError: a DataFrame has this method, attribute or column.
            AttributeError: it has not.

        """
        if not name.startswith("_"):
            if hasattr(pd.DataFrame, name):
                raise frame_method_refused(name, *self._examples())
            if name in column_names(self._frame):
                raise column_refused(name, *self._examples())
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __len__(self) -> int:
        """Raise an error, because the number of rows is private."""
        raise frame_method_refused("size", *self._examples())

    def __iter__(self) -> NoReturn:
        """Raise an error, because the rows are private."""
        raise frame_method_refused("columns", *self._examples())

    def _examples(self) -> tuple[str, str]:
        """Return a column to group by, and one of numbers, for a cure."""
        numbers = numeric_columns(self._frame) or ["x"]
        others = [name for name in column_names(self._frame) if name not in numbers]
        return (others or ["city"])[0], numbers[-1]

    def cut(
        self,
        column: str,
        bins: Sequence[float],
        *,
        right: bool = True,
        labels: Sequence[str] | bool | None = None,
        include_lowest: bool = False,
    ) -> KeyTerm:
        """Return the bins of a column of numbers as a key of ``groupby``, as ``pd.cut`` computes them.

        Args:
            column: the column.
            bins: the edges, which must be known without the data. Then all bins are public keys, if the other keys have
                public lists.
            right: whether a bin holds its upper edge, and not its lower one.
            labels: names of the bins; False for their numbers.
            include_lowest: whether the first bin holds its lower edge, too.

        Raises:
            DpsqlError: the edges are not given, or the column holds no numbers.

        """
        return cut(self._frame, column, bins, right=right, labels=labels, include_lowest=include_lowest)

    @with_terms
    def groupby(
        self,
        by: Keys = None,
        *,
        unit: PrivacyUnit | str | None = None,
        as_index: bool = True,
        sort: bool = True,
        dropna: bool = True,
        observed: bool = True,
        ordered: Keys = (),
        **options: Unpack[Terms],
    ) -> PandasGroupBy:
        """Group rows by columns; what is then asked of the groups is answered privately.

        Args:
            by: a column or a list of columns. A Series counts as the column of this frame that it is, a ``pd.Grouper``
                with ``freq`` as the period, and `cut` gives bins.
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
            ordered: keys whose categories are public: they come in the order of their dtype, not of their letters.
            options: further options of ``Session.sql``. ``target_half_width=50`` asks for a half width in place of rho
                and epsilon, and ``target_half_width={"visits": 50}`` by the columns of the answer.
                ``target_relative_error=0.1, max_rho=0.5, at_least=0.9`` asks for a relative error in place of them.

        Raises:
            DpsqlError: see ``dpsql.errors``; before anything is charged.

        """
        form = AnswerForm(sort, dropna, as_index)
        question = _question(self._frame, by, unit, options, form)
        form = dataclasses.replace(form, ordered=_ordered_keys(self._frame, ordered, question.keys))
        return PandasGroupBy(dataclasses.replace(question, observed=observed, form=form))


class TableFrame(Generic[GroupByT]):
    """The private view of a table without an index."""

    _answers: type[GroupByT]

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    @with_terms
    def groupby(
        self,
        by: Keys = None,
        *,
        unit: PrivacyUnit | str | None = None,
        dropna: bool = False,
        **options: Unpack[Terms],
    ) -> GroupByT:
        """As ``df.dp.groupby``: flat answers in the order of their keys; a missing key is a group, as it is there."""
        return self._answers(_question(self._frame, by, unit, options, AnswerForm(dropna=dropna, as_index=False)))

    group_by = groupby


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
    """Return the private view of a frame: ``df.dp`` for polars, Arrow and type checkers.

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


def _keys(frame: Frame, by: Keys) -> tuple[tuple[str, ...], dict[str, KeyTerm]]:
    """Return the names of the keys, and how those are computed that are no columns of the frame."""
    # a tuple is one name to pandas, and SQL has no such names
    listed = list(by) if isinstance(by, list) else [by]
    if not listed:
        raise PolicyError("groupby takes a column or a list of columns")
    known = [_key_of_pandas(frame, key) if isinstance(frame, pd.DataFrame) else key for key in listed]
    columns = [require_key(frame, key.column if isinstance(key, KeyTerm) else key) for key in known]
    if len(set(columns)) != len(columns):
        raise PolicyError("a key is given twice")
    terms = {key.name: key for key in known if isinstance(key, KeyTerm)}
    if taken := [name for name in terms if name in column_names(frame)]:
        raise PolicyError(f"the frame has a column {taken[0]!r}; name it otherwise")
    names = (key.name if isinstance(key, KeyTerm) else column for key, column in zip(known, columns, strict=True))
    return tuple(names), terms


def _key_of_pandas(frame: pd.DataFrame, key: object) -> object:
    """Return what a key of pandas means: a name or a term; a Series is the column that it is."""
    if isinstance(key, pd.Series):
        return column_of(frame, key)
    return period(frame, key) if isinstance(key, pd.Grouper) else key


def _listed(
    public_keys: object, keys: Sequence[str], terms: Mapping[str, KeyTerm], *, dropna: bool
) -> ListedKeys | None:
    """Return the public keys. Bins are public as they are, if all other keys have public lists.

    Raises:
        PolicyError: values are listed for a key that is computed, or in a form that does not say of which key.

    """
    if not terms:
        return read_listed(public_keys, keys, dropna=dropna)
    others = [key for key in keys if key not in terms]
    given = read_listed(public_keys, others, dropna=dropna) if public_keys is not None and others else None
    is_read = given is not None and given.shown is None and all(one.listed for one in terms.values())
    if public_keys is not None and not is_read:
        raise PolicyError(
            "beside computed keys public_keys is a dict of columns, as in public_keys={'city': ['Lund', 'Oslo']}; bins "
            "are public as they are, and periods are private keys"
        )
    bins = {name: term.listed for name, term in terms.items() if term.listed}
    columns = {**({} if given is None else given.columns), **bins}
    return ListedKeys(columns) if all(key in columns for key in keys) else None


def _ordered_keys(frame: pd.DataFrame, ordered: Keys, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys whose categories the user says are public, checked to be keys with categories."""
    listed = list(ordered) if isinstance(ordered, list | tuple | set) else [ordered]
    for key in listed:
        if key not in keys or not isinstance(frame[key].dtype, pd.CategoricalDtype):
            raise PolicyError(f"ordered={key!r} is no key with categories; name such keys, as in ordered=['month']")
    return tuple(map(str, listed))


def _unit(unit: PrivacyUnit | str | None) -> PrivacyUnit:
    if isinstance(unit, str):
        return PrivacyUnit(unit)
    if not isinstance(unit, PrivacyUnit):
        raise PolicyError(
            "groupby needs unit=, which says whose rows they are: write "
            "unit=dpsql.unit('patient', column='patient_id', …), or the name of a unit"
        )
    return unit


def _question(frame: Frame, by: Keys, unit: PrivacyUnit | str | None, terms: Terms, form: AnswerForm) -> Question:
    """Return the question that ``groupby`` asks with some terms, each of which may be missing or None."""
    (keys, computed), owner = _keys(frame, by), _unit(unit)
    require(*((name not in terms, f"groupby has no {name}=; {instead}") for name, instead in _ELSEWHERE.items()))
    options: dict[str, object] = {name: value for name, value in terms.items() if name not in _OF_FRAMES}
    options["max_groups_contributed"] = terms.get("max_groups")
    listed = _listed(terms.get("public_keys"), keys, computed, dropna=form.dropna)
    most_rows, most_norm = terms.get("max_rows_per_group"), terms.get("max_rows_norm")
    return Question(frame, keys, owner, options, listed, most_rows, most_norm, form=form, terms=computed)
