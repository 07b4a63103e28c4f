"""``df.dp`` and ``dpsql.from_frame``: private GROUP BY on the rows of a data frame.

``groupby(…)`` returns the methods of a pandas GroupBy that have a private form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

import pandas as pd
import pyarrow as pa

from dpsql.errors import PolicyError
from dpsql.frontends.frames.groupby import ArrowGroupBy, FrameGroupBy, PandasGroupBy, PolarsGroupBy
from dpsql.frontends.frames.privacy_unit import PrivacyUnit
from dpsql.frontends.frames.question import Question
from dpsql.frontends.frames.rows import Frame, is_polars, require_key
from dpsql.frontends.frames.shape import AnswerForm, read_listed
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

    @with_terms
    def groupby(
        self,
        by: Keys,
        *,
        unit: PrivacyUnit | str,
        as_index: bool = True,
        sort: bool = True,
        dropna: bool = True,
        observed: bool = True,
        ordered: Keys = (),
        **options: Unpack[Terms],
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
        by: Keys,
        *,
        unit: PrivacyUnit | str,
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


def _keys(frame: Frame, by: Keys) -> tuple[str, ...]:
    # a tuple is one name to pandas, and SQL has no such names
    listed = list(by) if isinstance(by, list) else [by]
    if not listed:
        raise PolicyError("groupby takes a column or a list of columns")
    keys = tuple(require_key(frame, key) for key in listed)
    if len(set(keys)) != len(keys):
        raise PolicyError("a key is given twice")
    return keys


def _ordered_keys(frame: pd.DataFrame, ordered: Keys, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys whose categories the user says are public, checked to be keys with categories."""
    listed = list(ordered) if isinstance(ordered, list | tuple | set) else [ordered]
    for key in listed:
        if key not in keys or not isinstance(frame[key].dtype, pd.CategoricalDtype):
            raise PolicyError(f"ordered={key!r} is no key with categories; name such keys, as in ordered=['month']")
    return tuple(map(str, listed))


def _unit(unit: PrivacyUnit | str) -> PrivacyUnit:
    if isinstance(unit, str):
        return PrivacyUnit(unit)
    if not isinstance(unit, PrivacyUnit):
        raise PolicyError("unit takes dpsql.unit('patient', column='patient_id', …), or the name of one")
    return unit


def _question(frame: Frame, by: Keys, unit: PrivacyUnit | str, terms: Terms, form: AnswerForm) -> Question:
    """Return the question that ``groupby`` asks with some terms, each of which may be missing or None."""
    keys, owner = _keys(frame, by), _unit(unit)
    require(*((name not in terms, f"groupby has no {name}=; {instead}") for name, instead in _ELSEWHERE.items()))
    options: dict[str, object] = {name: value for name, value in terms.items() if name not in _OF_FRAMES}
    options["max_groups_contributed"] = terms.get("max_groups")
    listed = read_listed(terms.get("public_keys"), keys, dropna=form.dropna)
    most_rows, most_norm = terms.get("max_rows_per_group"), terms.get("max_rows_norm")
    return Question(frame, keys, owner, options, listed, most_rows, most_norm, form=form)
